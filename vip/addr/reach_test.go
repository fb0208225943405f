package addr_test

import (
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"headgate/test/netns"
)

// A VIP serves clients, also one on an interface without any other address, and is never the address from which
// the host itself speaks: such a connection would break with the next move.
func TestAVIPServesAndDoesNotSpeak(t *testing.T) {
	client4, client6 := netip.MustParsePrefix("192.0.2.11/24"), netip.MustParsePrefix("2001:db8::11/64")
	for name, own := range map[string][]netip.Prefix{"with own addresses": {host4, host6}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			lan, n, client := netns.NewLAN(t), netns.New(t), netns.New(t)
			lan.Join(t, n, iface, own...)
			lan.Join(t, client, iface, client4, client6)
			h := &host{Namespace: n, t: t, state: filepath.Join(t.TempDir(), "vip.json")}
			h.set = h.open()
			h.apply(on(vip4), on(vip6))
			// A VIP brings no route: without an address of its own the host needs one to its clients.
			if own == nil {
				for _, to := range []netip.Prefix{client4, client6} {
					h.routeOnLink(to.Masked())
				}
			}
			for _, vip := range []netip.Addr{vip4, vip6} {
				reach(t, client, h.Namespace, vip)
			}
			if own == nil {
				return
			}
			for own, to := range map[netip.Prefix]netip.Prefix{host4: client4, host6: client6} {
				if got := reach(t, h.Namespace, client, to.Addr()); got != own.Addr() {
					t.Errorf("the host speaks from %s, want %s", got, own.Addr())
				}
			}
		})
	}
}

// reach connects to a server and returns the address that it did so from.
func reach(t *testing.T, from, to *netns.Namespace, ip netip.Addr) netip.Addr {
	t.Helper()
	var listener net.Listener
	err := to.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(ip, 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	var conn net.Conn
	err = from.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", listener.Addr().String(), limit)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

func (h *host) routeOnLink(to netip.Prefix) {
	h.t.Helper()
	network := &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
	route := &netlink.Route{LinkIndex: h.Link(h.t, iface).Attrs().Index, Dst: network, Scope: netlink.SCOPE_LINK}
	if err := h.Netlink().RouteAdd(route); err != nil {
		h.t.Fatal(err)
	}
}
