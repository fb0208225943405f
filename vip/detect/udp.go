package detect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// listen opens the TCP and the UDP socket on one port.
func (d *Detector) listen() error {
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)   // the end of a session must be the end of its one connection
	ctx := context.Background() //nolint:forbidigo // an address that needs no look-up
	at := d.cfg.Listen
	tcp, err := lc.Listen(ctx, "tcp", at.String())
	if err != nil {
		return taken(fmt.Errorf("listen for sessions on %s: %w", at, err))
	}
	d.listener = tcp.(*net.TCPListener) //nolint:forcetypeassert // of network tcp
	udp, err := lc.ListenPacket(ctx, "udp", d.Address().String())
	if err != nil {
		return taken(errors.Join(fmt.Errorf("listen for UDP heartbeats on %s: %w", d.Address(), err), tcp.Close()))
	}
	d.udp = udp.(*net.UDPConn) //nolint:forcetypeassert // of network udp
	return nil
}

func taken(err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: another process has the port; stop it, or write another port on all hosts", err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%w: this host does not have the address", err)
	}
	return err
}

func (d *Detector) receiveUDP(ctx context.Context) error {
	buffer := make([]byte, maxPacket+1) // what is longer is none of ours
	for {
		n, from, err := d.udp.ReadFromUDPAddrPort(buffer)
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil //nolint:nilerr // the end that was asked for
		case err != nil && !passing(err):
			return fmt.Errorf("read UDP heartbeats: %w", err)
		case err != nil:
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		d.receive(UDP, overUDP, buffer[:n], from.Addr().String(), func(l letter) {
			l.address = from
			d.udpOut.put(l)
		})
	}
}

// passing tells errors of one datagram or one moment from those of the socket.
func passing(err error) bool {
	var timeout net.Error
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM) ||
		errors.Is(err, syscall.EMSGSIZE) || errors.As(err, &timeout) && timeout.Timeout()
}

func (d *Detector) sendUDP(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.udpOut.wake:
		}
		for _, l := range d.udpOut.take() {
			_, _ = d.udp.WriteToUDPAddrPort(d.seal(l, overUDP), l.address) // a lost heartbeat is what the peer judges by
		}
	}
}

// receive takes the bytes of one packet: complains of those that are not to be believed, answers challenges through
// reply, and hands the rest to the judge.
func (d *Detector) receive(via Via, over channel, b []byte, from string, reply func(letter)) {
	p, err := d.keys.Load().open(b, over)
	if err != nil {
		d.strangers.note(Stranger{Detector: via, From: from, Claims: p.from, Reason: err.Error()}, time.Now())
		return
	}
	d.believe(via, p, from, reply)
}

func (d *Detector) believe(via Via, p packet, from string, reply func(letter)) {
	if p.from == d.cfg.Host && p.incarnation == d.incarnation {
		return // our own broadcast, brought back by a bridge
	}
	if p.kind == challenge && p.to == d.cfg.Host && d.answers.allow(time.Now()) {
		reply(letter{kind: answer, nonce: p.nonce, to: p.from})
	}
	d.post(func(now time.Time) {
		d.judged(func(j *judge) {
			switch {
			case p.from == d.cfg.Host:
				j.hearSelf(now, p)
			case j.peers[p.from] == nil:
				d.strangers.note(Stranger{Detector: via, From: from, Claims: p.from, Reason: noPeer}, now)
			default:
				j.hear(now, via, p)
			}
		})
	})
}

// answersPerSecond bounds what replayed challenges can make this host send.
const answersPerSecond = 1000

// limiter allows answersPerSecond in any second that begins with the first of them.
type limiter struct {
	mu    sync.Mutex // guards the rest
	since time.Time
	count int
}

func (l *limiter) allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= time.Second {
		l.since, l.count = now, 0
	}
	l.count++
	return l.count <= answersPerSecond
}
