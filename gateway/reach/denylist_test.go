package reach_test

import (
	"net/netip"
	"testing"

	"headgate/gateway/reach"
)

func TestRefuse(t *testing.T) {
	list := reach.New(reach.Config{
		Deny: prefixes("10.9.0.0/16", "::ffff:10.8.0.0/112", "2001:db8:bad::/48"),
		Allow: prefixes("10.9.1.0/24", "169.254.7.0/24", "192.0.2.10/32", "fe80::5/128",
			"127.0.0.0/8", "224.0.0.0/4", "0.0.0.0/8"),
		Own:        addrs("192.0.2.10", "192.0.2.11", "::ffff:192.0.2.12", "2001:db8::10"),
		APIServers: addrs("198.51.100.1"),
	})
	for address, want := range map[string]reach.Reason{
		"10.0.0.1":                 reach.Allowed,
		"2001:db8::1":              reach.Allowed,
		"fd00::1":                  reach.Allowed,
		"127.0.0.1":                reach.Loopback,
		"127.255.0.9":              reach.Loopback,
		"::1":                      reach.Loopback,
		"::ffff:127.0.0.1":         reach.Loopback,
		"64:ff9b::7f00:1":          reach.Loopback,
		"64:ff9b::a00:1":           reach.Allowed,
		"0.0.0.0":                  reach.Unspecified,
		"0.1.2.3":                  reach.Unspecified,
		"::":                       reach.Unspecified,
		"::ffff:0.0.0.0":           reach.Unspecified,
		"224.0.0.1":                reach.Multicast,
		"255.255.255.255":          reach.Multicast,
		"ff02::1":                  reach.Multicast,
		"169.254.169.254":          reach.LinkLocal,
		"::ffff:169.254.169.254":   reach.LinkLocal,
		"64:ff9b::a9fe:a9fe":       reach.LinkLocal,
		"169.254.7.1":              reach.Allowed,
		"fe80::1":                  reach.LinkLocal,
		"fe80::1%eth0":             reach.LinkLocal,
		"fe80::5%eth0":             reach.Allowed,
		"192.0.2.10":               reach.Allowed,
		"192.0.2.11":               reach.Own,
		"::ffff:192.0.2.11":        reach.Own,
		"192.0.2.12":               reach.Own,
		"2001:db8::10":             reach.Own,
		"2001:db8::10%eth0":        reach.Own,
		"198.51.100.1":             reach.APIServer,
		"64:ff9b::c633:6401":       reach.APIServer,
		"10.9.0.1":                 reach.Denied,
		"10.9.1.1":                 reach.Allowed,
		"10.8.3.3":                 reach.Denied,
		"2001:db8:bad::1":          reach.Denied,
		"::ffff:10.9.0.1":          reach.Denied,
		"::ffff:10.9.1.1":          reach.Allowed,
		"64:ff9b:1::7f00:1":        reach.Allowed,
		"2001:db8::ffff:127.0.0.1": reach.Allowed,
	} {
		if got := list.Refuse(netip.MustParseAddr(address)); got != want {
			t.Errorf("Refuse(%s) = %q, want %q", address, got, want)
		}
	}
	if got := list.Refuse(netip.Addr{}); got != reach.Invalid {
		t.Errorf("Refuse of no address = %q", got)
	}
}

func TestAllowLoopback(t *testing.T) {
	list := reach.New(reach.Config{AllowLoopback: true, Own: addrs("127.0.0.1")})
	for _, address := range addrs("127.0.0.1", "::1", "::ffff:127.0.0.2") {
		if got := list.Refuse(address); got != reach.Allowed {
			t.Errorf("Refuse(%s) = %q although loopback is allowed", address, got)
		}
	}
	if got := list.Refuse(netip.MustParseAddr("0.0.0.0")); got != reach.Unspecified {
		t.Errorf("Refuse(0.0.0.0) = %q", got)
	}
}

// FuzzRefuse proves that no spelling of a refused IPv4 address gets through.
func FuzzRefuse(f *testing.F) {
	for _, a := range []string{"127.0.0.1", "169.254.169.254", "10.0.0.1", "192.0.2.11", "255.255.255.255"} {
		b := netip.MustParseAddr(a).As4()
		f.Add(b[:])
	}
	list := reach.New(reach.Config{Own: addrs("192.0.2.11")})
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, ok := netip.AddrFromSlice(raw)
		if !ok || !a.Is4() {
			return
		}
		want := list.Refuse(a)
		if got := list.Refuse(netip.AddrFrom16(a.As16())); got != want {
			t.Errorf("Refuse(::ffff:%s) = %q, want %q", a, got, want)
		}
		b := a.As4()
		mapped := netip.AddrFrom16([16]byte{0, 0x64, 0xff, 0x9b, 12: b[0], 13: b[1], 14: b[2], 15: b[3]})
		if got := list.Refuse(mapped); got != want {
			t.Errorf("Refuse(%s) = %q, want %q", mapped, got, want)
		}
	})
}

func prefixes(in ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range in {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func addrs(in ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range in {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}
