package addr

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
)

// kernelAddress is an address as the kernel has it.
type kernelAddress struct {
	index    int
	iface    string
	ip       netip.Addr
	bits     int
	lifetime time.Duration // what is left of it; 0: for ever
}

func (p kernelAddress) entry() entry {
	return entry{Interface: p.iface, Index: p.index, IP: p.ip, Bits: p.bits}
}

func (p kernelAddress) ipNet() *net.IPNet {
	return &net.IPNet{IP: p.ip.AsSlice(), Mask: net.CIDRMask(p.bits, p.ip.BitLen())}
}

// String writes the address as ip(8) has it, with the interface.
func (p kernelAddress) String() string {
	return netip.PrefixFrom(p.ip, p.bits).String() + " on " + p.iface
}

// inventory is all addresses of the kernel at one moment.
type inventory struct {
	list    []kernelAddress
	byIP    map[netip.Addr][]kernelAddress
	partial bool // so much changed meanwhile that some may be missing
}

func (i inventory) find(w placed) (kernelAddress, bool) {
	for _, p := range i.byIP[w.IP] {
		if p.index == w.index && p.bits == w.Bits {
			return p, true
		}
	}
	return kernelAddress{}, false
}

// dumps is how often a dump is tried that the kernel calls interrupted because something changed meanwhile, as
// many IPv6 addresses do for a moment after they were added.
const dumps = 10

func present(kernel *netlink.Handle) (inventory, error) {
	var list []netlink.Addr
	var links []netlink.Link
	var err error = netlink.ErrDumpInterrupted
	for try := 0; try < dumps && errors.Is(err, netlink.ErrDumpInterrupted); try++ {
		list, err = kernel.AddrList(nil, netlink.FAMILY_ALL)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
		var broken error
		links, broken = kernel.LinkList()
		err = cmp.Or(broken, err)
	}
	partial := errors.Is(err, netlink.ErrDumpInterrupted)
	if err != nil && !partial {
		return inventory{}, fmt.Errorf("list the kernel's addresses: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	found := take(list, names)
	found.partial = partial
	return found, nil
}

func take(list []netlink.Addr, names map[int]string) inventory {
	i := inventory{byIP: map[netip.Addr][]kernelAddress{}}
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		name, there := names[a.LinkIndex]
		if !ok || !there {
			continue
		}
		bits, _ := a.Mask.Size()
		p := kernelAddress{index: a.LinkIndex, iface: name, ip: ip.Unmap(), bits: bits, lifetime: lifetimeOf(a)}
		i.list = append(i.list, p)
		i.byIP[p.ip] = append(i.byIP[p.ip], p)
	}
	return i
}

func lifetimeOf(a netlink.Addr) time.Duration {
	if uint32(a.ValidLft) == forever {
		return 0
	}
	// Zero seconds left is not for ever.
	return max(time.Duration(uint32(a.ValidLft))*time.Second, time.Nanosecond)
}
