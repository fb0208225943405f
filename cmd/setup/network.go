package setup

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"headgate/cmd/config"
)

// Interface is one of this host.
type Interface struct {
	Name      string
	Addresses []netip.Prefix // without those of the link
}

// Interfaces are those of this host that are up and not loopback, in the order of the kernel.
func Interfaces() ([]Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	var list []Interface
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 || i.Flags&net.FlagUp == 0 {
			continue
		}
		addresses, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", i.Name, err)
		}
		one := Interface{Name: i.Name}
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
				one.Addresses = append(one.Addresses, p)
			}
		}
		list = append(list, one)
	}
	return list, nil
}

// InterfaceOf finds the one interface in whose network the VIP lies.
func InterfaceOf(all []Interface, vip string) (string, error) {
	p, err := config.ParseVIP(vip)
	if err != nil {
		return "", err
	}
	var found []string
	for _, i := range all {
		if slices.ContainsFunc(i.Addresses, func(a netip.Prefix) bool { return a.Contains(p.Addr()) }) {
			found = append(found, i.Name)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("no interface is in the network of %s: give --interface", p.Addr())
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%s is in the network of %s: give --interface", p.Addr(), strings.Join(found, " and "))
}

// ErrNoAddress tells that an interface has no address that other hosts could use.
var ErrNoAddress = errors.New("no address by which the other hosts reach this one: give --address")

// OwnAddress chooses the address of the interface that the other hosts are told: the first of the family of the first VIP that
// is no VIP itself.
func OwnAddress(all []Interface, name string, vips []string) (string, error) {
	taken := map[netip.Addr]bool{}
	ipv6 := false
	for n, text := range vips {
		p, err := config.ParseVIP(text)
		if err != nil {
			return "", err
		}
		if n == 0 {
			ipv6 = p.Addr().Is6()
		}
		taken[p.Addr()] = true
	}
	for _, i := range all {
		if i.Name != name {
			continue
		}
		for _, a := range i.Addresses {
			if a.Addr().Is6() == ipv6 && !taken[a.Addr()] {
				return a.Addr().String(), nil
			}
		}
	}
	return "", fmt.Errorf("%s has %w", name, ErrNoAddress)
}
