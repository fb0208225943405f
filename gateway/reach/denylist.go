// Package reach decides which addresses requests may be sent to. Whoever may write an EndpointSlice or an
// ExternalName must not be able to point the edge at itself, at the machine's neighbours on the link or at
// the API server. The package is pure: gateway/build asks it for every upstream address.
package reach

import (
	"net/netip"
	"slices"
)

// Reason says why an address is refused.
type Reason string

// The reasons, in the order in which they are looked for. Allowed is the zero value.
const (
	Allowed     Reason = ""
	Invalid     Reason = "not an address"
	Unspecified Reason = "an unspecified address, which means this host"
	Loopback    Reason = "a loopback address"
	Multicast   Reason = "a multicast or broadcast address"
	LinkLocal   Reason = "a link-local address"
	Own         Reason = "an address of this edge host"
	APIServer   Reason = "an address of the API server"
	Denied      Reason = "in a denied network"
)

// Config says what is refused besides what always is.
type Config struct {
	// AllowLoopback accepts 127.0.0.0/8 and ::1. The zero value refuses them.
	AllowLoopback bool
	// Deny refuses more networks.
	Deny []netip.Prefix
	// Allow makes exceptions from LinkLocal, Own, APIServer and Denied, never from Unspecified, Loopback
	// and Multicast: no honest upstream has such an address.
	Allow []netip.Prefix
	// Own are the addresses of this host, its virtual ones included.
	Own []netip.Addr
	// APIServers are the addresses of the Kubernetes API.
	APIServers []netip.Addr
}

// List is a deny-list. It is immutable and safe for concurrent use.
type List struct {
	allowLoopback   bool
	deny, allow     []netip.Prefix
	own, apiServers map[netip.Addr]struct{}
}

// New makes a List. Prefixes and addresses may be IPv4 written as IPv6 (::ffff:0:0/96).
func New(c Config) *List {
	return &List{
		allowLoopback: c.AllowLoopback,
		deny:          plainPrefixes(c.Deny),
		allow:         plainPrefixes(c.Allow),
		own:           addressSet(c.Own),
		apiServers:    addressSet(c.APIServers),
	}
}

// Refuse tells why requests must not be sent to a, or Allowed. An IPv4 address that is written as IPv6, or
// that a NAT64 gateway would reach (RFC 6052 section 2.1), is judged as the IPv4 address it is.
func (l *List) Refuse(a netip.Addr) Reason {
	if !a.IsValid() {
		return Invalid
	}
	a = plain(a)
	if r := l.refusePlain(a); r != Allowed {
		return r
	}
	if v4, ok := nat64(a); ok {
		return l.refusePlain(v4)
	}
	return Allowed
}

func (l *List) refusePlain(a netip.Addr) Reason {
	switch {
	case a.IsUnspecified() || thisNetwork().Contains(a):
		return Unspecified
	case a.IsLoopback():
		if l.allowLoopback {
			return Allowed
		}
		return Loopback
	case a.IsMulticast() || a == broadcast():
		return Multicast
	case contains(l.allow, a):
		return Allowed
	case a.IsLinkLocalUnicast():
		return LinkLocal
	}
	if _, ok := l.own[a]; ok {
		return Own
	}
	if _, ok := l.apiServers[a]; ok {
		return APIServer
	}
	if contains(l.deny, a) {
		return Denied
	}
	return Allowed
}

// thisNetwork is 0.0.0.0/8 (RFC 1122 section 3.2.1.3): Linux sends 0.0.0.0 to itself.
func thisNetwork() netip.Prefix { return netip.PrefixFrom(netip.IPv4Unspecified(), 8) }

func broadcast() netip.Addr { return netip.AddrFrom4([4]byte{255, 255, 255, 255}) }

// plain drops the zone and turns ::ffff:a.b.c.d into a.b.c.d.
func plain(a netip.Addr) netip.Addr { return a.WithZone("").Unmap() }

// nat64 gives the IPv4 address inside 64:ff9b::/96.
func nat64(a netip.Addr) (netip.Addr, bool) {
	b := a.As16()
	if !a.Is6() || [12]byte(b[:12]) != [12]byte{0x00, 0x64, 0xff, 0x9b} {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(b[12:])), true
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

func plainPrefixes(in []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range in {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		out = append(out, p.Masked())
	}
	return out
}

func addressSet(in []netip.Addr) map[netip.Addr]struct{} {
	out := make(map[netip.Addr]struct{}, len(in))
	for _, a := range in {
		out[plain(a)] = struct{}{}
	}
	return out
}
