package check

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// The sizes of packets, in bytes. Below leastMTU the gossip could not be told to go: that is the least of gossip.mtu.
const (
	icmpHeader = 8
	ip4Header  = 20
	ip6Header  = 40
	smallest   = 576 // what IPv4 must carry (RFC 791)
	leastMTU   = 1280
)

// A ping that is not answered in time is sent once more.
const (
	pings    = 2
	pingWait = 400 * time.Millisecond
)

// pathMTU sends pings of gossip.mtu bytes that must not be fragmented to each other host. Gossip and heartbeats are as large.
func (r *run) pathMTU(ctx context.Context) {
	if len(r.Config.VIP.All()) == 0 || len(r.Config.Gossip.Peers) == 0 {
		return
	}
	peers, _ := r.peers(ctx) // the part before has told
	results := make([]int, len(peers))
	errs := make([]error, len(peers))
	var asked sync.WaitGroup
	for i, p := range peers {
		asked.Go(func() { results[i], errs[i] = largest(ctx, p.at.Addr(), r.Config.Gossip.MTU) })
	}
	asked.Wait()
	for i, p := range peers {
		r.judgeMTU(p, results[i], errs[i])
	}
}

func (r *run) judgeMTU(p peer, carried int, err error) {
	wanted := r.Config.Gossip.MTU
	switch {
	case errors.Is(err, os.ErrPermission):
		r.warn("run headgate doctor as root", "the MTU of the way to %s is not measured: this user may not send pings", p)
	case err != nil:
		r.warn("ping "+p.at.Addr().String(), "the MTU of the way to %s is not measured: %v", p, err)
	case carried == 0:
		r.warn("ping "+p.at.Addr().String()+"; let ICMP through, the kernel needs it to learn the MTU", "%s answers no ping: the MTU of the way is not known", p)
	case carried < wanted:
		advice := fmt.Sprintf("write gossip.mtu: %d on all hosts, or mend the MTU on the way", carried)
		if carried < leastMTU {
			advice = fmt.Sprintf("mend the MTU on the way: gossip needs %d", leastMTU)
		}
		r.fail(advice, "packets of %d bytes do not reach %s; the largest that do have %d", wanted, p, carried)
	default:
		r.ok("packets of %d bytes reach %s", wanted, p)
	}
}

// largest finds the size of the largest packet up to wanted that the address answers; 0 when it answers none.
func largest(ctx context.Context, to netip.Addr, wanted int) (int, error) {
	p, err := openPinger(to)
	if err != nil {
		return 0, err
	}
	defer func() { _ = p.conn.Close() }() // it was read
	if answered, err := p.ping(ctx, wanted); answered || err != nil {
		return wanted, err
	}
	low := min(smallest, wanted)
	if to.Is6() {
		low = min(leastMTU, wanted)
	}
	if answered, err := p.ping(ctx, low); !answered || err != nil {
		return 0, err
	}
	for high := wanted; high-low > 1; {
		middle := (low + high) / 2
		answered, err := p.ping(ctx, middle)
		if err != nil {
			return 0, err
		}
		if answered {
			low = middle
		} else {
			high = middle
		}
	}
	return low, nil
}

// pinger sends echo requests that routers must not fragment, whatever the kernel believes of the way.
type pinger struct {
	conn     *net.IPConn
	to       netip.Addr
	id       uint16
	sequence uint16
}

func openPinger(to netip.Addr) (*pinger, error) {
	network := "ip4:icmp"
	level, option := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	if to.Is6() {
		network, level, option = "ip6:ipv6-icmp", unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
	}
	conn, err := net.DialIP(network, nil, &net.IPAddr{IP: to.AsSlice()})
	if err != nil {
		return nil, fmt.Errorf("open a socket for pings: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		var set error
		err = raw.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), level, option, unix.IP_PMTUDISC_PROBE)
		})
		err = errors.Join(err, set)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("forbid fragments: %w", err), conn.Close())
	}
	return &pinger{conn: conn, to: to, id: uint16(os.Getpid())}, nil //nolint:gosec // any 16 bits do
}

// ping tells whether a packet of size bytes in all is answered. One that is larger than the interface allows is not.
func (p *pinger) ping(ctx context.Context, size int) (bool, error) {
	for range pings {
		p.sequence++
		text, err := p.request(size)
		if err != nil {
			return false, err
		}
		if _, err := p.conn.Write(text); errors.Is(err, unix.EMSGSIZE) {
			return false, nil
		} else if errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("send a ping: %w", err)
		}
		if answered, err := p.await(ctx); answered || err != nil {
			return answered, err
		}
	}
	return false, nil
}

func (p *pinger) request(size int) ([]byte, error) {
	message := icmp.Message{Type: ipv4.ICMPTypeEcho}
	headers := ip4Header + icmpHeader
	if p.to.Is6() {
		message.Type = ipv6.ICMPTypeEchoRequest
		headers = ip6Header + icmpHeader
	}
	message.Body = &icmp.Echo{ID: int(p.id), Seq: int(p.sequence), Data: make([]byte, size-headers)}
	text, err := message.Marshal(nil) // the kernel writes the checksum of IPv6
	if err != nil {
		return nil, fmt.Errorf("write a ping: %w", err)
	}
	return text, nil
}

// await waits for the answer to the last ping.
func (p *pinger) await(ctx context.Context) (bool, error) {
	deadline := time.Now().Add(pingWait)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := p.conn.SetReadDeadline(deadline); err != nil {
		return false, fmt.Errorf("set a deadline: %w", err)
	}
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := p.conn.ReadFrom(buffer) // Read would give the header of IPv4, too
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, ctx.Err()
		case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EMSGSIZE):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("read an answer: %w", err)
		case p.answers(buffer[:n]):
			return true, nil
		}
	}
}

// answers tells whether the packet is the answer to the last ping (RFC 792, RFC 4443 section 4.2).
func (p *pinger) answers(packet []byte) bool {
	kind := byte(0) // echo reply
	if p.to.Is6() {
		kind = byte(ipv6.ICMPTypeEchoReply)
	}
	return len(packet) >= icmpHeader && packet[0] == kind &&
		binary.BigEndian.Uint16(packet[4:]) == p.id && binary.BigEndian.Uint16(packet[6:]) == p.sequence
}
