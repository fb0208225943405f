package flows_test

import (
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"headgate/test/netns"
)

// far puts the client behind a router whose way to it is narrower than both ends know.
func (l *lab) far(narrow int) {
	l.t.Helper()
	router, client := netns.New(l.t), netns.New(l.t)
	n := networks()
	near := map[string][2]netip.Prefix{ // the router on the LAN, and the network behind it
		"IPv4": {netip.MustParsePrefix("192.0.2.254/24"), netip.MustParsePrefix("198.51.100.0/24")},
		"IPv6": {netip.MustParsePrefix("2001:db8::fe/64"), netip.MustParsePrefix("2001:db8:1::/64")},
	}
	l.lan.Join(l.t, router, "lan0")
	netns.Veth(l.t, netns.End{Namespace: router, Interface: "far0"}, netns.End{Namespace: client, Interface: iface})
	router.Sysctl(l.t, "net/ipv4/ip_forward", "1")
	router.Sysctl(l.t, "net/ipv6/conf/all/forwarding", "1")
	for name, own := range near {
		if n[name].table != l.net.table {
			continue
		}
		far, gateway := own[1], own[1].Addr().Next()
		router.AddAddress(l.t, "lan0", own[0])
		router.AddAddress(l.t, "far0", netip.PrefixFrom(gateway, far.Bits()))
		client.AddAddress(l.t, iface, netip.PrefixFrom(gateway.Next(), far.Bits()))
		client.AddRoute(l.t, iface, n[name].client.Masked(), gateway)
		for _, e := range []*edge{l.old, l.fresh} {
			e.AddRoute(l.t, iface, far, own[0].Addr())
		}
	}
	if err := router.Netlink().LinkSetMTU(router.Link(l.t, "far0"), narrow); err != nil {
		l.t.Fatal(err)
	}
	l.client = client
}

// The router tells the VIP, so the new owner, that a packet of the old one was too big.
func TestErrorMessagesReachTheOldOwner(t *testing.T) {
	const narrow, size = 1280, 300_000
	bothFamilies(t, func(t *testing.T, n network) {
		l := newLab(t, n)
		l.far(narrow)
		l.old.serve()
		l.fresh.serve()
		l.old.take(n.vip)
		before := l.open(5)
		l.move(l.old, l.fresh, n.old.Addr())
		for _, f := range before {
			if err := receive(f, size); err != nil {
				t.Fatal(err)
			}
		}
		if got := alive(before, patience); got != len(before) {
			t.Errorf("%d of %d flows live", got, len(before))
		}
		for _, f := range l.open(5) {
			if err := receive(f, size); err != nil || f.server != "fresh" {
				t.Errorf("a new flow to %s: %v", f.server, err)
			}
		}
	})
}

// Hosts with strict reverse path filters and a firewall that knows connections and drops all that is none.
func TestFlowsSurviveBehindFirewalls(t *testing.T) {
	bothFamilies(t, func(t *testing.T, n network) {
		l := newLab(t, n)
		for _, e := range []*edge{l.old, l.fresh} {
			e.Sysctl(t, "net/ipv4/conf/all/rp_filter", "1")
			e.firewall()
			e.serve()
		}
		l.old.take(n.vip)
		before := l.open(10)
		l.move(l.old, l.fresh, n.old.Addr())
		if got := alive(before, patience); got != len(before) {
			t.Errorf("%d of %d flows survived", got, len(before))
		}
		for _, f := range l.open(10) {
			if f.server != "fresh" || !f.lives(patience) {
				t.Errorf("a new flow to %s", f.server)
			}
		}
	})
}

// firewall lets in what belongs to a known connection, new ones to the port, and ICMP.
func (e *edge) firewall() {
	e.t.Helper()
	e.do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "firewall"})
		drop := nftables.ChainPolicyDrop
		chain := conn.AddChain(&nftables.Chain{
			Table: table, Name: "input", Type: nftables.ChainTypeFilter, Policy: &drop,
			Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter,
		})
		accept := func(parts ...expr.Any) {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(parts, &expr.Verdict{Kind: expr.VerdictAccept})})
		}
		state := func(bits uint32) []expr.Any {
			return []expr.Any{
				&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
				&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
				&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
			}
		}
		accept(state(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)...)
		for _, icmp := range []byte{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
			accept(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{icmp}})
		}
		const syn, all = 0x02, 0x17
		accept(append(state(expr.CtStateBitNEW),
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{all}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{syn}})...)
		return conn.Flush()
	})
}
