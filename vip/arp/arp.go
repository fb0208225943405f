// Package arp speaks ARP for VIPs on one interface: it announces a VIP, asks whether anybody has one, and
// hears when somebody else says that one is his (RFC 826, RFC 5227). It sets no address and decides nothing.
// The speaker's process runs it.
package arp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"

	"headgate/vip/ether"
	"headgate/vip/rivals"
)

// Conflict is the claim of somebody else on a watched VIP.
type Conflict = rivals.Conflict

// ErrNotIPv4 says that the address is none that ARP is for.
var ErrNotIPv4 = errors.New("ARP is for IPv4 addresses")

const (
	// probes and probeWait are RFC 5227's packets in a shorter time: a neighbour answers in some 0.1 ms, and the
	// RFC's own 4 to 7 s are an outage.
	probes    = 2
	probeWait = 20 * time.Millisecond

	// frameBytes holds an ARP packet with its header and padding; longer frames are cut off, which costs nothing.
	frameBytes = 128
)

// Link is ARP on one interface. It follows the interface's name: deleted and made anew, it goes on. It needs no
// IPv4 address there. Its methods may be called from any goroutine.
type Link struct {
	log    *slog.Logger
	socket *ether.Socket
	book   *rivals.Book
	closed chan struct{}
	once   sync.Once
	reader sync.WaitGroup
}

// Open starts listening on the interface, in the network namespace of the calling thread; it needs CAP_NET_RAW.
// The caller closes the Link. The error wraps ether.ErrNoInterface or ether.ErrNotEthernet where that is why.
func Open(iface string, log *slog.Logger) (*Link, error) {
	socket, err := ether.Open(iface, uint16(ethernet.EtherTypeARP))
	if err != nil {
		return nil, err
	}
	l := &Link{log: log.With("iface", iface), socket: socket, book: rivals.Open(), closed: make(chan struct{})}
	l.reader.Go(l.listen)
	return l, nil
}

// Close ends what Open started and returns when it has ended. Closing twice is no error.
func (l *Link) Close() error {
	var err error
	l.once.Do(func() {
		close(l.closed)
		err = l.socket.Close()
		l.reader.Wait()
		l.book.Close()
	})
	return err
}

// Announce sends an ARP announcement (RFC 5227 section 3) in request form: neighbours that know the VIP take our
// hardware address at once, even those that ignore replies which nobody asked for. It sends one packet; repeating
// is the caller's. It does not look whether this host has the VIP.
func (l *Link) Announce(vip netip.Addr) error {
	return l.request(vip, vip)
}

// Probe asks whether anybody has the VIP, by two ARP probes (RFC 5227 section 2.1.1), and waits 20 ms after each.
// It returns the hardware address of the first who says that it is his and true, or false if nobody does.
func (l *Link) Probe(ctx context.Context, vip netip.Addr) (net.HardwareAddr, bool, error) {
	answer, stop := l.book.Probe(vip.Unmap())
	defer stop()
	timer := time.NewTimer(probeWait)
	defer timer.Stop()
	for range probes {
		if err := l.request(netip.IPv4Unspecified(), vip); err != nil {
			return nil, false, err
		}
		timer.Reset(probeWait)
		select {
		case owner := <-answer:
			return owner, true, nil
		case <-timer.C:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		case <-l.closed:
			return nil, false, net.ErrClosed
		}
	}
	return nil, false, nil
}

// Watch sets the VIPs whose announcements by others are conflicts, in place of those of before.
func (l *Link) Watch(vips []netip.Addr) { l.book.Watch(vips) }

// Conflicts gives the newest claim of each watched VIP by somebody else: any ARP packet that names the VIP as
// its sender's address (RFC 5227 section 2.4) with another hardware address than ours. It may be left unread.
func (l *Link) Conflicts() <-chan Conflict { return l.book.Conflicts() }

func (l *Link) request(sender, target netip.Addr) error {
	sender, target = sender.Unmap(), target.Unmap()
	if !sender.Is4() || !target.Is4() {
		return fmt.Errorf("%s: %w", target, ErrNotIPv4)
	}
	own, err := l.socket.HardwareAddr()
	if err != nil {
		return err
	}
	frame, err := request(own, sender, target)
	if err != nil {
		return err
	}
	return l.socket.Send(frame)
}

// request is an ARP request to everybody. Nobody reads its target hardware address (RFC 5227 section 2.1.1).
func request(own net.HardwareAddr, sender, target netip.Addr) ([]byte, error) {
	unknown := make(net.HardwareAddr, len(own))
	packet, err := arp.NewPacket(arp.OperationRequest, own, sender, unknown, target)
	if err != nil {
		return nil, fmt.Errorf("ARP request for %s: %w", target, err)
	}
	payload, err := packet.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("ARP request for %s: %w", target, err)
	}
	frame := ethernet.Frame{Destination: ethernet.Broadcast, Source: own, EtherType: ethernet.EtherTypeARP, Payload: payload}
	return frame.MarshalBinary()
}

func (l *Link) listen() {
	buffer := make([]byte, frameBytes)
	for {
		length, err := l.socket.Receive(buffer)
		if err != nil {
			return // closed
		}
		ip, by, ok := claim(buffer[:length])
		if !ok || !l.book.Cares(ip) {
			continue
		}
		own, err := l.socket.HardwareAddr()
		if err != nil {
			l.log.Debug("heard a claim on an interface that has gone", "vip", ip.String(), "err", err)
			continue
		}
		if by.String() != own.String() {
			l.book.Claim(ip, by)
		}
	}
}

// The parts of an ARP packet of IPv4 over Ethernet (RFC 826), and where they begin in a frame.
const (
	headerBytes = 14
	packetBytes = 28
	hardware    = 6 // bytes
	protocol    = 4 // bytes
)

// claim reads who says that which address is his: the sender's addresses of an ARP packet, request or reply.
// A probe names no sender and claims nothing.
func claim(frame []byte) (netip.Addr, net.HardwareAddr, bool) {
	if len(frame) < headerBytes+packetBytes {
		return netip.Addr{}, nil, false
	}
	// The rest of the frame is padding.
	payload := frame[headerBytes : headerBytes+packetBytes]
	if payload[4] != hardware || payload[5] != protocol {
		return netip.Addr{}, nil, false
	}
	var packet arp.Packet
	if err := packet.UnmarshalBinary(payload); err != nil {
		return netip.Addr{}, nil, false
	}
	if packet.ProtocolType != uint16(ethernet.EtherTypeIPv4) || packet.SenderIP.IsUnspecified() {
		return netip.Addr{}, nil, false
	}
	return packet.SenderIP, packet.SenderHardwareAddr, true
}
