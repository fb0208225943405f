package detect

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// A session is a TCP connection of frames: two bytes of length, one packet. Whoever accepts it sends a challenge at
// once: that is the greeting, which a dying listener's backlog cannot give. The dialer answers and sends a challenge of
// its own. When both were answered, both know which process is at the other end, and that it lives.

const (
	dialTimeout      = 250 * time.Millisecond
	handshakeTimeout = time.Second
	writeTimeout     = time.Second
	// handshakes bounds the accepted connections that have not proven themselves; more are greeted and closed.
	handshakes = 32
	// idleMisses is after how many quiet intervals (but at least idleLeast) a session is given up and dialed anew:
	// TCP may need minutes to notice that a cut has healed.
	idleMisses = 20
	idleLeast  = 2 * time.Second
	redialMost = time.Second
)

func (c Config) idle() time.Duration { return max(idleMisses*c.Interval, idleLeast) }

// remote is a peer whose session is kept by a goroutine.
type remote struct {
	address netip.AddrPort
	stop    context.CancelFunc
	ended   chan struct{} // capacity 1: the peer ended a session that it had dialed: dial now
}

type session struct {
	conn        net.Conn
	host        string
	incarnation uint64
	dialed      bool // by this host
	out         *outbox
	writing     sync.Mutex // frames are whole
}

// setPeers follows what SetPeers wants.
func (d *Detector) setPeers(ctx context.Context, running *sync.WaitGroup) {
	wanted := *d.wanted.Load()
	d.judged(func(j *judge) { j.watch(wanted) })
	keep := map[string]bool{}
	for _, p := range wanted {
		keep[p.Host] = true
		if known := d.peers[p.Host]; known != nil {
			if known.address == p.Address {
				continue
			}
			known.stop()
		}
		dialing, stop := context.WithCancel(ctx)
		r := &remote{address: p.Address, stop: stop, ended: make(chan struct{}, 1)}
		d.peers[p.Host] = r
		running.Go(func() { d.keepSession(dialing, p, r.ended) })
	}
	for host, r := range d.peers {
		if !keep[host] {
			r.stop()
			delete(d.peers, host)
		}
	}
	d.sendAll(letter{kind: beat})
}

// keepSession dials the peer for ever, and finds out what the end of a session means.
func (d *Detector) keepSession(ctx context.Context, p Peer, ended <-chan struct{}) {
	wait := d.cfg.Interval
	for ctx.Err() == nil {
		s, err := d.dial(ctx, p)
		switch {
		case err == nil:
			wait = d.cfg.Interval
			begun := time.Now()
			if d.runSession(ctx, s) == endedByPeer && time.Since(begun) > wait {
				continue // at once: the redial is the proof
			}
		case proves(err):
			d.post(func(now time.Time) {
				d.judged(func(j *judge) { j.refused(now, p.Host, err.Error()) })
			})
		}
		select {
		case <-ctx.Done():
		case <-ended:
		case <-time.After(wait):
			wait = min(2*wait, redialMost)
		}
	}
}

// errUngreeted is a connection that the peer's kernel accepted and ended before the greeting.
var errUngreeted = errors.New("closed before the greeting")

// proves says whether a redial shows that nobody serves the port: refused, or ended before the greeting. Timeouts and
// errors of this host's own network show nothing.
func proves(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, errUngreeted)
}

// dial connects and does the dialer's part of the handshake.
func (d *Detector) dial(ctx context.Context, p Peer) (*session, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	dialer.SetMultipathTCP(false)
	if own := d.cfg.Listen.Addr(); !own.IsUnspecified() && own.Is4() == p.Address.Addr().Is4() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(own, 0))
	}
	conn, err := dialer.DialContext(ctx, "tcp", p.Address.String())
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	s := &session{conn: conn, host: p.Host, dialed: true, out: newOutbox()}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // unblocks the handshake
	defer stop()
	if err := d.introduce(s); err != nil {
		_ = conn.Close() // the handshake's error counts
		return nil, err
	}
	return s, nil
}

func (d *Detector) introduce(s *session) error {
	if err := s.conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return fmt.Errorf("set a deadline: %w", err)
	}
	greeting, err := d.readPacket(s)
	if err != nil {
		if closedByPeer(err) {
			return errUngreeted
		}
		return fmt.Errorf("read the greeting: %w", err)
	}
	if greeting.kind != challenge {
		return errMalformed
	}
	if greeting.from != s.host {
		d.strangers.note(Stranger{Detector: Session, From: s.conn.RemoteAddr().String(), Claims: greeting.from, Reason: "at this address " + s.host + " was expected"}, time.Now())
		return errors.New("another host answers at this address")
	}
	ours := letter{kind: challenge, to: s.host}
	_, _ = rand.Read(ours.nonce[:]) // never fails (crypto/rand)
	if err := s.write(d.seal(letter{kind: answer, nonce: greeting.nonce, to: s.host}, overSession), d.seal(ours, overSession)); err != nil {
		return err
	}
	return d.awaitAnswer(s, ours.nonce)
}

// awaitAnswer reads until the other end has proven itself; its heartbeats may come first.
func (d *Detector) awaitAnswer(s *session, nonce [nonceBytes]byte) error {
	for {
		p, err := d.readPacket(s)
		if err != nil {
			return fmt.Errorf("handshake: %w", err)
		}
		if p.kind == answer && p.nonce == nonce && p.to == d.cfg.Host && (s.host == "" || p.from == s.host) {
			s.host, s.incarnation = p.from, p.incarnation
			return nil
		}
	}
}

// accept takes connections until the listener is closed.
func (d *Detector) accept(ctx context.Context, running *sync.WaitGroup) error {
	slots := make(chan struct{}, handshakes) // a semaphore, hence more than 1
	for {
		conn, err := d.listener.Accept()
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil //nolint:nilerr // the end that was asked for
		case err != nil:
			d.cfg.Log.Error("accept a session", "err", err) // out of file descriptors: it passes
			if !pause(ctx, d.cfg.Interval) {
				return nil
			}
			continue
		}
		s := &session{conn: conn, out: newOutbox()}
		select {
		case slots <- struct{}{}:
			running.Go(func() { d.welcome(ctx, s, func() { <-slots }) })
		default:
			_ = d.greet(s, [nonceBytes]byte{}) // shows that this process lives
			_ = conn.Close()                   // a flood of connections is not worth a line
		}
	}
}

func (d *Detector) greet(s *session, nonce [nonceBytes]byte) error {
	if err := s.conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return fmt.Errorf("set a deadline: %w", err)
	}
	return s.write(d.seal(letter{kind: challenge, nonce: nonce}, overSession))
}

// welcome does the accepting part of the handshake and runs the session; proven is called when it no longer counts
// among the handshakes.
func (d *Detector) welcome(ctx context.Context, s *session, proven func()) {
	release := sync.OnceFunc(proven)
	defer release()
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	var nonce [nonceBytes]byte
	_, _ = rand.Read(nonce[:]) // never fails (crypto/rand)
	err := d.greet(s, nonce)
	if err == nil {
		err = d.awaitAnswer(s, nonce)
	}
	if err != nil {
		_ = s.conn.Close() // strangers were noted when they were read
		return
	}
	release()
	if s.host == d.cfg.Host {
		d.post(func(now time.Time) { d.judged(func(j *judge) { j.selfClash(now) }) })
		_ = s.conn.Close() // told by the judge
		return
	}
	if d.runSession(ctx, s) == endedByPeer {
		d.post(func(time.Time) {
			if r := d.peers[s.host]; r != nil {
				poke(r.ended)
			}
		})
	}
}

type ending int

const (
	endedHere   ending = iota // by this side: a deadline, another session, the end
	endedByPeer               // FIN or RST
)

// runSession sends and receives until the session ends.
func (d *Detector) runSession(ctx context.Context, s *session) ending {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	d.post(func(now time.Time) { d.join(now, s) })
	var sending sync.WaitGroup
	end := endedHere
	sending.Go(func() { d.sendSession(ctx, s) })
	for {
		if err := s.conn.SetReadDeadline(time.Now().Add(d.cfg.idle())); err != nil {
			break
		}
		p, err := d.readPacket(s)
		if err != nil {
			if ctx.Err() == nil && closedByPeer(err) {
				end = endedByPeer
			}
			break
		}
		if p.from == s.host {
			d.believe(Session, p, address(s.conn), s.out.put)
		}
	}
	d.post(func(time.Time) {
		delete(d.sessions, s)
		if end == endedByPeer {
			d.judged(func(j *judge) { j.ended(s.host, s.incarnation) })
		}
	})
	cancel()
	_ = s.conn.Close() // its end was read already
	sending.Wait()
	return end
}

// join counts the session in; an older one of the same direction gives way.
func (d *Detector) join(now time.Time, s *session) {
	for other := range d.sessions {
		if other.host == s.host && other.dialed == s.dialed {
			delete(d.sessions, other)
			_ = other.conn.Close() // its reader ends with it
		}
	}
	d.sessions[s] = struct{}{}
	d.judged(func(j *judge) { j.greeted(now, s.host, s.incarnation) })
	s.out.put(letter{kind: beat})
}

func (d *Detector) sendSession(ctx context.Context, s *session) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.out.wake:
		}
		for _, l := range s.out.take() {
			if err := s.write(d.seal(l, overSession)); err != nil {
				return // the reader sees why
			}
		}
	}
}

// write sends packets, each in a frame, in one segment where they fit.
func (s *session) write(packets ...[]byte) error {
	var frames []byte
	for _, p := range packets {
		frames = binary.BigEndian.AppendUint16(frames, uint16(len(p)))
		frames = append(frames, p...)
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("set a deadline: %w", err)
	}
	if _, err := s.conn.Write(frames); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// readPacket reads the next packet that is to be believed. One that is not ends the session: TCP keeps frames in
// order, so nothing after it is better.
func (d *Detector) readPacket(s *session) (packet, error) {
	b, err := readFrame(s.conn)
	if err != nil {
		return packet{}, err
	}
	p, err := d.keys.Load().open(b, overSession)
	if err != nil {
		d.strangers.note(Stranger{Detector: Session, From: address(s.conn), Claims: p.from, Reason: err.Error()}, time.Now())
		return packet{}, err
	}
	return p, nil
}

// address leaves out the port: each redial has another.
func address(conn net.Conn) string {
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().String()
	}
	return conn.RemoteAddr().String()
}

func readFrame(r io.Reader) ([]byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("read a frame: %w", err)
	}
	length := int(binary.BigEndian.Uint16(head[:]))
	if length > maxPacket {
		return nil, errMalformed
	}
	b := make([]byte, length)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("read a frame: %w", err)
	}
	return b, nil
}

// closedByPeer tells a FIN or RST from a deadline, from what this side closed, and from bytes that are no frame.
func closedByPeer(err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func pause(ctx context.Context, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
