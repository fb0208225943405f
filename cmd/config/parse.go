package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
)

// parseScalar reads text as a value of type to. Types that it does not know stay text.
func parseScalar(text string, to reflect.Type) (any, error) {
	switch to {
	case reflect.TypeFor[Size]():
		return ParseSize(text)
	case reflect.TypeFor[Duration]():
		return ParseDuration(text)
	case reflect.TypeFor[netip.Prefix]():
		return parsePrefix(text)
	case reflect.TypeFor[netip.AddrPort]():
		return parseAddrPort(text)
	}
	switch to.Kind() {
	case reflect.Bool:
		return parseBool(text)
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a number: write a whole number", text)
		}
		return n, nil
	default:
		return text, nil
	}
}

func parseBool(text string) (any, error) {
	switch text {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return nil, fmt.Errorf("%q is neither true nor false", text)
}

// parsePrefix reads a CIDR and refuses one with bits beyond its length: 10.0.0.1/8 is more often a slip
// than a wish for all of 10.0.0.0/8.
func parsePrefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.Prefix{}, fmt.Errorf("%q is an address: write %s/%d for this one, or a network such as 10.0.0.0/8", text, a, a.BitLen())
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR: write one such as 10.0.0.0/8 or 2001:db8::/32", text)
	}
	if p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q mixes IPv4 and IPv6: write the IPv4 network", text)
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%q has bits beyond its length: write %s for the network, or %s/%d for the address",
			text, p.Masked(), p.Addr(), p.Addr().BitLen())
	}
	return p, nil
}

// dnsPort is where a name server answers when no port is given (RFC 1035 section 4.2).
const dnsPort = 53

// parseAddrPort reads address:port. An address alone gets port 0, which only dns.servers allows.
func parseAddrPort(text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil && a.Zone() == "" {
		return netip.AddrPortFrom(a.Unmap(), 0), nil
	}
	ap, err := netip.ParseAddrPort(text)
	switch {
	case err != nil && strings.HasPrefix(text, ":"):
		return netip.AddrPort{}, fmt.Errorf("%q lacks the address: write 0.0.0.0%s for IPv4, [::]%s for IPv6", text, text, text)
	case err != nil:
		return netip.AddrPort{}, fmt.Errorf("%q is not address:port: write one such as 0.0.0.0:80 or [::]:80", text)
	case ap.Addr().Zone() != "":
		return netip.AddrPort{}, fmt.Errorf("%q has a zone: write an address without %%", text)
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}
