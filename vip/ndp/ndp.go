// Package ndp speaks Neighbor Discovery for VIPs on one interface: it announces a VIP, asks whether anybody has
// one, and hears when somebody else says that one is his (RFC 4861, RFC 4862). It sets no address and decides
// nothing. The speaker's process runs it.
//
// It sends whole frames and listens on a raw ICMPv6 socket that is bound to no address. So it needs no
// link-local address: it works while that one is tentative, and where an administrator wants none. Where there is
// one, probes are sent from it.
package ndp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"headgate/vip/ether"
	"headgate/vip/rivals"
)

// Conflict is the claim of somebody else on a watched VIP.
type Conflict = rivals.Conflict

// ErrNotIPv6 says that the address is none that Neighbor Discovery is for.
var ErrNotIPv6 = errors.New("neighbor discovery is for IPv6 addresses")

const (
	// probes and probeWait are as in vip/arp: a neighbour answers in some 0.1 ms, and RFC 4862's own second is
	// an outage.
	probes    = 2
	probeWait = 20 * time.Millisecond

	// messageBytes holds a neighbor message with any options that matter; what is longer is cut off and refused.
	messageBytes = 1500
)

// Link is Neighbor Discovery on one interface. It follows the interface's name: deleted and made anew, it goes
// on. Its methods may be called from any goroutine.
type Link struct {
	log      *slog.Logger
	sender   *ether.Socket
	messages *ipv6.PacketConn
	book     *rivals.Book
	closed   chan struct{}
	once     sync.Once
	reader   sync.WaitGroup
	local    *localAddress
}

// Open starts listening on the interface, in the network namespace of the calling thread; it needs CAP_NET_RAW.
// The caller closes the Link. The error wraps ether.ErrNoInterface or ether.ErrNotEthernet where that is why.
func Open(iface string, log *slog.Logger) (*Link, error) {
	sender, err := ether.Open(iface, 0)
	if err != nil {
		return nil, err
	}
	messages, err := receiver()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("interface %s: %w", iface, err), sender.Close())
	}
	local, err := openLocalAddress()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("interface %s: %w", iface, err), sender.Close(), messages.Close())
	}
	l := &Link{
		log: log.With("iface", iface), sender: sender, messages: messages, local: local,
		book: rivals.Open(), closed: make(chan struct{}),
	}
	l.reader.Go(l.listen)
	return l, nil
}

// receiver is a raw socket for neighbor messages of all interfaces; it has the hop limit and the interface of each.
func receiver() (*ipv6.PacketConn, error) {
	conn, err := rawSocket()
	if err != nil {
		return nil, fmt.Errorf("open an ICMPv6 socket (it needs IPv6 and CAP_NET_RAW): %w", err)
	}
	messages := ipv6.NewPacketConn(conn)
	var filter ipv6.ICMPFilter
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeNeighborAdvertisement)
	filter.Accept(ipv6.ICMPTypeNeighborSolicitation)
	err = errors.Join(
		messages.SetICMPFilter(&filter),
		messages.SetControlMessage(ipv6.FlagHopLimit|ipv6.FlagInterface, true))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return messages, nil
}

func rawSocket() (net.PacketConn, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMPV6)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "icmpv6")
	conn, err := net.FilePacketConn(file)
	return conn, errors.Join(err, file.Close()) // the connection has a descriptor of its own
}

// Close ends what Open started and returns when it has ended. Closing twice is no error.
func (l *Link) Close() error {
	var err error
	l.once.Do(func() {
		close(l.closed)
		err = errors.Join(l.sender.Close(), l.messages.Close())
		l.reader.Wait()
		l.book.Close()
		err = errors.Join(err, l.local.close())
	})
	return err
}

// Announce sends an unsolicited neighbor advertisement with the override flag to all nodes (RFC 4861 section
// 7.2.6), from the VIP itself: neighbours that know the VIP take our hardware address at once. It sends one
// packet; repeating is the caller's. It does not look whether this host has the VIP.
func (l *Link) Announce(vip netip.Addr) error {
	own, err := l.check(vip)
	if err != nil {
		return err
	}
	frame, err := advertisement(own, vip)
	if err != nil {
		return err
	}
	return l.sender.Send(frame)
}

// Probe asks whether anybody has the VIP, by two neighbor solicitations (RFC 4861 section 7.2.2) from the
// interface's link-local address, or without one as duplicate address detection does (RFC 4862 section 5.4.2), and
// waits 20 ms after each. It returns the hardware address of the first who says that it is his and true, or false
// if nobody does.
func (l *Link) Probe(ctx context.Context, vip netip.Addr) (net.HardwareAddr, bool, error) {
	answer, stop := l.book.Probe(vip)
	defer stop()
	from := l.from(time.Now())
	timer := time.NewTimer(probeWait)
	defer timer.Stop()
	for range probes {
		if err := l.solicit(from, vip); err != nil {
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

func (l *Link) solicit(from, vip netip.Addr) error {
	own, err := l.check(vip)
	if err != nil {
		return err
	}
	frame, err := solicitation(own, from, vip)
	if err != nil {
		return err
	}
	return l.sender.Send(frame)
}

// from is the address that probes are sent from.
func (l *Link) from(now time.Time) netip.Addr {
	index, err := l.sender.Index()
	if err != nil {
		return netip.IPv6Unspecified()
	}
	return l.local.of(index, now)
}

func (l *Link) check(vip netip.Addr) (net.HardwareAddr, error) {
	if !vip.Is6() || vip.Is4In6() || vip.Zone() != "" {
		return nil, fmt.Errorf("%s: %w", vip, ErrNotIPv6)
	}
	return l.sender.HardwareAddr()
}

// Watch sets the VIPs whose announcements by others are conflicts, in place of those of before.
func (l *Link) Watch(vips []netip.Addr) { l.book.Watch(vips) }

// Conflicts gives the newest claim of each watched VIP by somebody else: a neighbor advertisement of the VIP, or
// a solicitation from it, with another hardware address than ours. It may be left unread.
func (l *Link) Conflicts() <-chan Conflict { return l.book.Conflicts() }

func (l *Link) listen() {
	buffer := make([]byte, messageBytes)
	for {
		length, control, from, err := l.messages.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || control == nil || control.HopLimit != ndp.HopLimit {
			// A lower hop limit comes from beyond the link (RFC 4861 section 7.1).
			continue
		}
		ip, by, ok := claim(buffer[:length], source(from))
		if ok && l.book.Cares(ip) && l.isOurs(control.IfIndex) {
			l.heard(ip, by)
		}
	}
}

// isOurs says whether a message came in on our interface: the socket gets those of all.
func (l *Link) isOurs(index int) bool {
	own, err := l.sender.Index()
	return err == nil && own == index
}

func (l *Link) heard(ip netip.Addr, by net.HardwareAddr) {
	own, err := l.sender.HardwareAddr()
	if err != nil {
		l.log.Debug("heard a claim on an interface that has gone", "vip", ip.String(), "err", err)
		return
	}
	if by.String() != own.String() {
		l.book.Claim(ip, by)
	}
}

func source(from net.Addr) netip.Addr {
	known, ok := from.(*net.IPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip, _ := netip.AddrFromSlice(known.IP)
	return ip
}
