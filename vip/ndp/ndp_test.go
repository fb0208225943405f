package ndp_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"headgate/test/netns"
	"headgate/vip/ether"
	"headgate/vip/ndp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	iface = "eth0"
	limit = 10 * time.Second
)

var (
	vip    = netip.MustParseAddr("2001:db8::10")
	client = netip.MustParsePrefix("2001:db8::100/64")
)

// lab is two edge hosts without an address of their own but the link-local one, and a client, on one LAN.
type lab struct {
	t               *testing.T
	lan             *netns.LAN
	ours, rival, us *netns.Namespace // us is the client's side of the network
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, lan: netns.NewLAN(t), ours: netns.New(t), rival: netns.New(t), us: netns.New(t)}
	l.lan.Join(t, l.ours, iface)
	l.lan.Join(t, l.rival, iface)
	l.lan.Join(t, l.us, iface, client)
	return l
}

func open(t *testing.T, n *netns.Namespace) *ndp.Link {
	t.Helper()
	var link *ndp.Link
	err := n.Do(func() (err error) {
		link, err = ndp.Open(iface, slog.New(slog.DiscardHandler))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := link.Close(); err != nil {
			t.Error(err)
		}
	})
	return link
}

// resolve makes the client ask for the VIP.
func (l *lab) resolve() {
	l.t.Helper()
	err := l.us.Do(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(vip, 9).String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, err = conn.Write([]byte("x"))
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) clientKnows(n *netns.Namespace) bool {
	return l.us.Neighbour(l.t, iface, vip).String() == n.HardwareAddr(l.t, iface).String()
}

func announce(t *testing.T, link *ndp.Link) {
	t.Helper()
	if err := link.Announce(vip); err != nil {
		t.Fatal(err)
	}
}

func TestAnAnnouncementChangesANeighbourAtOnce(t *testing.T) {
	l := newLab(t)
	link := open(t, l.ours)
	l.rival.AddAddress(t, iface, netip.PrefixFrom(vip, 128))
	l.resolve()
	netns.Eventually(t, limit, "the client knows the rival", func() bool { return l.clientKnows(l.rival) })
	l.ours.AddAddress(t, iface, netip.PrefixFrom(vip, 128))
	l.rival.RemoveAddress(t, iface, netip.PrefixFrom(vip, 128))
	if !l.clientKnows(l.rival) {
		t.Fatal("the client learned of the move without an announcement")
	}
	start := time.Now()
	announce(t, link)
	netns.Eventually(t, 800*time.Millisecond, "the client knows us", func() bool { return l.clientKnows(l.ours) })
	t.Logf("the neighbour changed after %s", time.Since(start))
}

// owner probes until somebody answers: on a busy machine the 2 × 20 ms may pass before an answer is read.
func owner(t *testing.T, link *ndp.Link, ip netip.Addr) string {
	t.Helper()
	var by net.HardwareAddr
	netns.Eventually(t, limit, "somebody answers", func() bool {
		answered, found, err := link.Probe(t.Context(), ip)
		if err != nil || found != (answered != nil) {
			t.Fatalf("probe: %s, %t, %v", answered, found, err)
		}
		by = answered
		return found
	})
	return by.String()
}

func TestProbe(t *testing.T) {
	l := newLab(t)
	link := open(t, l.ours)
	start := time.Now()
	by, found, err := link.Probe(t.Context(), vip)
	if err != nil || found || by != nil {
		t.Errorf("nobody has it, got %s, %t, %v", by, found, err)
	}
	if took := time.Since(start); took < 40*time.Millisecond {
		t.Errorf("asked for %s, want 2 × 20 ms", took)
	}
	l.rival.AddAddress(t, iface, netip.PrefixFrom(vip, 128))
	if got := owner(t, link, vip); got != l.rival.HardwareAddr(t, iface).String() {
		t.Errorf("answered by %s, want the rival", got)
	}
	start = time.Now()
	owner(t, link, vip)
	t.Logf("answered after %s", time.Since(start))
	// Being the owner ourselves is no answer.
	l.rival.RemoveAddress(t, iface, netip.PrefixFrom(vip, 128))
	l.ours.AddAddress(t, iface, netip.PrefixFrom(vip, 128))
	if by, found, err = link.Probe(t.Context(), vip); err != nil || found {
		t.Errorf("we have it, got %s, %t, %v", by, found, err)
	}
}

// The kernel of a dead owner that is asked must not undo what the new owner has announced.
func TestAProbeChangesNoNeighbour(t *testing.T) {
	l := newLab(t)
	link := open(t, l.ours)
	l.rival.AddAddress(t, iface, netip.PrefixFrom(vip, 128))
	l.resolve()
	netns.Eventually(t, limit, "the client knows the rival", func() bool { return l.clientKnows(l.rival) })
	l.ours.AddAddress(t, iface, netip.PrefixFrom(vip, 128))
	announce(t, link)
	netns.Eventually(t, limit, "the client knows us", func() bool { return l.clientKnows(l.ours) })
	if got := owner(t, link, vip); got != l.rival.HardwareAddr(t, iface).String() {
		t.Errorf("answered by %s, want the rival", got)
	}
	if !l.clientKnows(l.ours) {
		t.Error("the answer to our probe made the client know the rival")
	}
}

func TestAProbeEnds(t *testing.T) {
	l := newLab(t)
	link := open(t, l.ours)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := link.Probe(ctx, vip); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was canceled", err)
	}
	l.ours.Down(t, iface)
	if _, _, err := link.Probe(t.Context(), vip); !errors.Is(err, unix.ENETDOWN) {
		t.Errorf("got %v, want that the network is down", err)
	}
	if err := link.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := link.Probe(t.Context(), vip); err == nil {
		t.Error("no error after Close")
	}
}

func conflict(t *testing.T, link *ndp.Link) ndp.Conflict {
	t.Helper()
	select {
	case c := <-link.Conflicts():
		return c
	case <-time.After(limit):
		t.Fatal("no conflict was told")
		return ndp.Conflict{}
	}
}

func noConflict(t *testing.T, link *ndp.Link) {
	t.Helper()
	select {
	case c := <-link.Conflicts():
		t.Errorf("told a conflict: %+v", c)
	default:
	}
}

func TestConflicts(t *testing.T) {
	l := newLab(t)
	link, other := open(t, l.ours), open(t, l.rival)
	second := netip.MustParseAddr("2001:db8::11")
	announce(t, other) // not watched yet
	announce(t, link)
	l.settle(link, other)
	noConflict(t, link)

	link.Watch([]netip.Addr{vip, second})
	announce(t, link) // our own
	if _, _, err := other.Probe(t.Context(), vip); err != nil {
		t.Fatal(err) // to ask for it claims nothing
	}
	l.settle(link, other)
	noConflict(t, link)

	// Nobody reads, and nothing stops. The kernel drops what it has no room for, so the single one comes first.
	if err := other.Announce(second); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		announce(t, other)
	}
	l.settle(link, other)
	for range 2 {
		c := conflict(t, link)
		if c.HardwareAddr.String() != l.rival.HardwareAddr(t, iface).String() || time.Since(c.At) > limit {
			t.Errorf("conflict %+v, want the rival's", c)
		}
	}
	link.Watch(nil)
	announce(t, other)
	l.settle(link, other)
	noConflict(t, link)
}

// settle returns when link has heard all that other sent before: the announcement of a marker comes after those.
func (l *lab) settle(link, other *ndp.Link) {
	l.t.Helper()
	marker := netip.MustParseAddr("2001:db8::99")
	ctx, stop := context.WithCancel(l.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = other.Announce(marker)
			select {
			case <-ctx.Done():
			case <-time.After(time.Millisecond):
			}
		}
	}()
	netns.Eventually(l.t, limit, "the marker is heard", func() bool {
		_, found, err := link.Probe(ctx, marker)
		return found && err == nil
	})
	stop()
	<-ended
}

func TestAnInterfaceThatIsMadeAnewGoesOn(t *testing.T) {
	l := newLab(t)
	link, other := open(t, l.ours), open(t, l.rival)
	link.Watch([]netip.Addr{vip})
	if err := l.ours.Netlink().LinkDel(l.ours.Link(t, iface)); err != nil {
		t.Fatal(err)
	}
	if err := link.Announce(vip); !errors.Is(err, ether.ErrNoInterface) {
		t.Errorf("got %v, want ErrNoInterface", err)
	}
	// The reader looks every 100 ms, and must go on looking.
	time.Sleep(250 * time.Millisecond)
	l.lan.Join(t, l.ours, iface)
	// Nothing is sent: the reader itself must find the new interface.
	netns.Eventually(t, limit, "a conflict on the new interface", func() bool {
		announce(t, other)
		select {
		case c := <-link.Conflicts():
			return c.IP == vip
		default:
			return false
		}
	})
	l.rival.AddAddress(t, iface, netip.PrefixFrom(vip, 128))
	if got := owner(t, link, vip); got != l.rival.HardwareAddr(t, iface).String() {
		t.Errorf("answered on the new interface by %s", got)
	}
}

func TestALinkThatGoesDownComesBack(t *testing.T) {
	l := newLab(t)
	link, other := open(t, l.ours), open(t, l.rival)
	link.Watch([]netip.Addr{vip})
	l.ours.Down(t, iface)
	l.ours.Up(t, iface)
	netns.Eventually(t, limit, "a conflict after the link came back", func() bool {
		announce(t, other)
		select {
		case <-link.Conflicts():
			return true
		default:
			return false
		}
	})
}

func TestTheHardwareAddressOfNowIsAnnounced(t *testing.T) {
	l := newLab(t)
	link := open(t, l.ours)
	l.ours.AddAddress(t, iface, netip.PrefixFrom(vip, 128))
	l.resolve()
	netns.Eventually(t, limit, "the client knows us", func() bool { return l.clientKnows(l.ours) })
	changed := net.HardwareAddr{0x02, 0xaa, 0xbb, 0xcc, 0xdd, 0xee}
	if err := l.ours.Netlink().LinkSetHardwareAddr(l.ours.Link(t, iface), changed); err != nil {
		t.Fatal(err)
	}
	link.Watch([]netip.Addr{vip})
	announce(t, link)
	netns.Eventually(t, limit, "the client knows the new address", func() bool {
		return l.us.Neighbour(t, iface, vip).String() == changed.String()
	})
	noConflict(t, link)
}

func TestOpenAndAddressesThatAreRefused(t *testing.T) {
	n := netns.New(t)
	for name, want := range map[string]error{"lo": ether.ErrNotEthernet, "nosuchif": ether.ErrNoInterface, "": ether.ErrNoInterface} {
		err := n.Do(func() error {
			_, err := ndp.Open(name, slog.New(slog.DiscardHandler))
			return err
		})
		if !errors.Is(err, want) {
			t.Errorf("%q: got %v, want %v", name, err, want)
		}
	}
	link := open(t, newLab(t).ours)
	for _, ip := range []netip.Addr{{}, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("::ffff:192.0.2.1")} {
		if err := link.Announce(ip); !errors.Is(err, ndp.ErrNotIPv6) {
			t.Errorf("announce %s: %v", ip, err)
		}
		if _, _, err := link.Probe(t.Context(), ip); !errors.Is(err, ndp.ErrNotIPv6) {
			t.Errorf("probe %s: %v", ip, err)
		}
	}
}

func TestAThousandAnnouncements(t *testing.T) {
	l := newLab(t)
	link := open(t, l.ours)
	start := time.Now()
	for i := range 1000 {
		if err := link.Announce(netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 14: byte(i >> 8), 15: byte(i)})); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(start); took > limit { // alone it takes some 5 ms
		t.Errorf("took %s", took)
	} else {
		t.Logf("took %s", took)
	}
}

// Addresses are tentative for a second or two after a link came up, and ndp.Listen fails as long.
func TestATentativeLinkLocalAddressIsNoHindrance(t *testing.T) {
	l := newLab(t)
	l.rival.AddAddress(t, iface, netip.PrefixFrom(vip, 128))
	fresh := netns.New(t)
	for key, value := range map[string]string{"accept_dad": "1", "dad_transmits": "10"} {
		fresh.Sysctl(t, "net/ipv6/conf/all/"+key, value)
		fresh.Sysctl(t, "net/ipv6/conf/default/"+key, value)
	}
	l.lan.Join(t, fresh, iface)
	link := open(t, fresh)
	if got := owner(t, link, vip); got != l.rival.HardwareAddr(t, iface).String() {
		t.Errorf("answered by %s, want the rival", got)
	}
	l.resolve()
	netns.Eventually(t, limit, "the client knows the rival", func() bool { return l.clientKnows(l.rival) })
	announce(t, link)
	netns.Eventually(t, limit, "the client knows the fresh host", func() bool { return l.clientKnows(fresh) })
	list, err := fresh.Netlink().AddrList(fresh.Link(t, iface), netlink.FAMILY_V6)
	if err != nil || len(list) != 1 || list[0].Flags&unix.IFA_F_TENTATIVE == 0 {
		t.Errorf("the link-local address was not tentative meanwhile: %v, %v", list, err)
	}
}

// The socket hears all interfaces of the host; only ours counts.
func TestClaimsOnOtherInterfacesAreNotOurs(t *testing.T) {
	l, elsewhere := newLab(t), newLab(t)
	elsewhere.lan.Join(t, l.ours, "eth1")
	link, other, far := open(t, l.ours), open(t, l.rival), open(t, elsewhere.rival)
	link.Watch([]netip.Addr{vip})
	for range 20 {
		announce(t, far)
	}
	// Where those arrive, this one arrives after them.
	second := netip.MustParseAddr("2001:db8::11")
	link.Watch([]netip.Addr{vip, second})
	l.settle(link, other)
	noConflict(t, link)
}

// A host that lost the VIP and still speaks from it claims it too.
func TestASolicitationFromTheVIPIsAClaim(t *testing.T) {
	l := newLab(t)
	link := open(t, l.ours)
	link.Watch([]netip.Addr{vip})
	l.ours.AddAddress(t, iface, netip.MustParsePrefix("2001:db8::1/64"))
	l.rival.AddAddress(t, iface, netip.PrefixFrom(vip, 64))
	err := l.rival.Do(func() error {
		dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: vip.AsSlice()}}
		conn, err := dialer.DialContext(t.Context(), "udp", "[2001:db8::1]:9")
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, err = conn.Write([]byte("x"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if c := conflict(t, link); c.HardwareAddr.String() != l.rival.HardwareAddr(t, iface).String() {
		t.Errorf("conflict %+v, want the rival's", c)
	}
}
