package netns_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"headgate/test/netns"
)

var (
	left   = netip.MustParsePrefix("192.0.2.1/24")
	right  = netip.MustParsePrefix("192.0.2.2/24")
	left6  = netip.MustParsePrefix("2001:db8::1/64")
	right6 = netip.MustParsePrefix("2001:db8::2/64")
)

// exchange sends one datagram from a to b and says whether it came within the limit.
func exchange(t *testing.T, a, b *netns.Namespace, to netip.Addr, limit time.Duration) bool {
	t.Helper()
	var in net.PacketConn
	var out net.Conn
	err := errors.Join(
		b.Do(func() (err error) {
			in, err = net.ListenPacket("udp", netip.AddrPortFrom(to, 0).String())
			return err
		}),
		a.Do(func() (err error) {
			out, err = net.Dial("udp", in.LocalAddr().String())
			return err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = in.Close(), out.Close() }()
	if _, err := io.WriteString(out, "x"); err != nil {
		return false
	}
	_ = in.SetReadDeadline(time.Now().Add(limit))
	_, _, err = in.ReadFrom(make([]byte, 8))
	return err == nil
}

func TestLANCarriesUntilItIsCut(t *testing.T) {
	lan, a, b := netns.NewLAN(t), netns.New(t), netns.New(t)
	lan.Join(t, a, "eth0", left, left6)
	lan.Join(t, b, "eth0", right, right6)
	for _, to := range []netip.Addr{right.Addr(), right6.Addr()} {
		if !exchange(t, a, b, to, 5*time.Second) {
			t.Errorf("no datagram to %s over a good LAN", to)
		}
	}
	if got, want := a.Neighbour(t, "eth0", right.Addr()).String(), b.HardwareAddr(t, "eth0").String(); got != want {
		t.Errorf("the neighbour is %s, want %s", got, want)
	}
	lan.Cut(t, b, "eth0")
	if exchange(t, a, b, right.Addr(), 50*time.Millisecond) {
		t.Error("a datagram passed a cut LAN")
	}
	lan.Heal(t, b, "eth0")
	if !exchange(t, a, b, right.Addr(), 5*time.Second) {
		t.Error("no datagram after the LAN healed")
	}
}

func TestUnplugTakesTheCarrier(t *testing.T) {
	lan, a := netns.NewLAN(t), netns.New(t)
	lan.Join(t, a, "eth0", left)
	carrier := func() bool { return a.Link(t, "eth0").Attrs().OperState.String() == "up" }
	netns.Eventually(t, 5*time.Second, "carrier", carrier)
	lan.Unplug(t, a, "eth0")
	netns.Eventually(t, 5*time.Second, "no carrier", func() bool { return !carrier() })
	lan.Plug(t, a, "eth0")
	netns.Eventually(t, 5*time.Second, "carrier again", carrier)
}

func TestSwitchCutsOneWayLosesAndDelays(t *testing.T) {
	s, a, b := netns.NewSwitch(t, 1), netns.New(t), netns.New(t)
	s.Join(t, a, "tap0", left)
	s.Join(t, b, "tap0", right)
	toB, toA := netns.End{Namespace: b, Interface: "tap0"}, netns.End{Namespace: a, Interface: "tap0"}
	if !exchange(t, a, b, right.Addr(), 5*time.Second) || !exchange(t, b, a, left.Addr(), 5*time.Second) {
		t.Fatal("no datagram over a good switch")
	}
	s.Set(toA, toB, netns.Fault{Cut: true})
	if exchange(t, a, b, right.Addr(), 50*time.Millisecond) {
		t.Error("a datagram passed the cut direction")
	}
	if !exchange(t, b, a, left.Addr(), 5*time.Second) {
		t.Error("the other direction was cut as well")
	}
	const late = 80 * time.Millisecond
	s.Set(toA, toB, netns.Fault{Delay: late})
	start := time.Now()
	if !exchange(t, a, b, right.Addr(), 5*time.Second) || time.Since(start) < late {
		t.Errorf("a datagram took %s, want at least %s", time.Since(start), late)
	}
	s.Set(toA, toB, netns.Fault{Loss: 0.5})
	passed := 0
	for range 40 {
		if exchange(t, a, b, right.Addr(), 20*time.Millisecond) {
			passed++
		}
	}
	if passed < 8 || passed > 32 {
		t.Errorf("%d of 40 datagrams passed at half loss", passed)
	}
}

func TestDoTellsOfAFunctionThatLeftItsGoroutine(t *testing.T) {
	n := netns.New(t)
	if err := n.Do(func() error { return io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the function's own error", err)
	}
	if err := n.Do(func() error { return nil }); err != nil {
		t.Error(err)
	}
}
