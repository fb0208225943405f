package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"headgate/cmd/config"
	"headgate/cmd/vip"
	"headgate/vip/arp"
	"headgate/vip/ndp"
)

// vips looks at each VIP: is its interface there, is it in the interface's network, and who has it.
func (r *run) vips(ctx context.Context) {
	if len(r.Config.VIP.All()) == 0 {
		r.ok("no VIP is configured")
		return
	}
	here, err := own()
	if err != nil {
		r.warn("ip address", "the addresses of this host are not known: %v", err)
	}
	look := vipLook{run: r, here: here}
	if status, err := vip.Ask(ctx, vip.PathsOf(r.Config)); err == nil {
		look.status = &status
		for _, what := range status.Degraded {
			r.warn("headgate vip status", "%s", what)
		}
	}
	for _, g := range r.Config.VIP.All() {
		link, ok := r.vipInterface(g.Interface)
		if !ok {
			continue
		}
		for _, text := range g.Addresses {
			p, err := config.ParseVIP(text)
			if err != nil {
				continue // config has checked it
			}
			r.subnet(p, link)
			look.at(ctx, g, p, link)
		}
	}
}

func (r *run) vipInterface(name string) (*net.Interface, bool) {
	link, err := net.InterfaceByName(name)
	switch {
	case err != nil:
		r.fail("write one that 'ip link' shows into vip.interface", "there is no interface %s on this host", name)
		return nil, false
	case link.Flags&net.FlagUp == 0:
		r.fail("ip link set "+name+" up", "the interface %s is down", name)
		return nil, false
	case link.Flags&net.FlagRunning == 0:
		r.fail("see to the cable and the switch (ip link show "+name+")", "the interface %s has no carrier", name)
	}
	return link, true
}

// subnet wants neighbours to look for the VIP on the link. A VIP that brings a network of its own says so by its prefix.
func (r *run) subnet(vip netip.Prefix, link *net.Interface) {
	if vip.Bits() < vip.Addr().BitLen() {
		r.ok("%s brings its network to %s", vip, link.Name)
		return
	}
	addresses, err := link.Addrs()
	if err != nil {
		r.warn("ip address show "+link.Name, "the addresses of %s are not known: %v", link.Name, err)
		return
	}
	r.judgeSubnet(vip.Addr(), link.Name, prefixes(addresses))
}

func prefixes(addresses []net.Addr) []netip.Prefix {
	var list []netip.Prefix
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			list = append(list, p)
		}
	}
	return list
}

func (r *run) judgeSubnet(vip netip.Addr, iface string, have []netip.Prefix) {
	var networks []string
	for _, p := range have {
		if p.Addr() == vip || p.Addr().Is4() != vip.Is4() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if p.Contains(vip) {
			r.ok("%s is in the network %s of %s", vip, p.Masked(), iface)
			return
		}
		networks = append(networks, p.Masked().String())
	}
	family, of := "IPv4", "none"
	if vip.Is6() {
		family = "IPv6"
	}
	if len(networks) > 0 {
		of = strings.Join(networks, ", ")
	}
	r.fail("write an address of the interface's network, the interface of its network, or with a prefix ("+vip.String()+"/24) if the VIP brings a network of its own",
		"%s is in no network of %s (%s: %s): neighbours do not look for it there", vip, iface, family, of)
}

// vipLook is what is known while VIPs are looked at.
type vipLook struct {
	*run
	here   map[netip.Addr]string
	status *vip.Status // nil: no VIP process runs here
}

// owner is who has the VIP as far as the VIP process knows: "" for nobody.
func (l vipLook) owner(name string) string {
	for _, v := range l.status.VIPs {
		if v.Name == name {
			return string(v.Owner)
		}
	}
	return ""
}

// at finds out who has the address.
func (l vipLook) at(ctx context.Context, g config.VIPGroup, p netip.Prefix, link *net.Interface) {
	ip := p.Addr()
	if iface, is := l.here[ip]; is {
		switch {
		case l.status == nil:
			l.fail(fmt.Sprintf("headgate vip cleanup, or ip address del %s dev %s", p, iface),
				"%s is on %s of this host, and no VIP process runs here: another host may have it, too", ip, iface)
		case l.owner(g.Name) != string(l.status.Host):
			l.warn("headgate vip status", "%s is on %s of this host, which does not own it", ip, iface)
		default:
			l.ok("%s is here: this host owns it", ip)
		}
		return
	}
	mac, answered, err := l.Host.Probe(ctx, link.Name, ip)
	switch {
	case errors.Is(err, fs.ErrPermission):
		l.warn("run headgate doctor as root", "who has %s is not known: this user may not ask on %s", ip, link.Name)
	case err != nil:
		l.warn("headgate doctor, again", "who has %s is not known: %v", ip, err)
	case answered:
		l.answered(ctx, g, ip, link, mac)
	case l.status != nil && l.owner(g.Name) != "" && l.owner(g.Name) != string(l.status.Host):
		l.warn("see whether both hosts are on one link (VLAN, switch)", "%s is at %s, which does not answer for it on %s", ip, l.owner(g.Name), link.Name)
	default:
		l.ok("nobody has %s", ip)
	}
}

// answered judges who said that the address is his.
func (l vipLook) answered(ctx context.Context, g config.VIPGroup, ip netip.Addr, link *net.Interface, mac net.HardwareAddr) {
	if l.status != nil {
		if owner := l.owner(g.Name); owner != "" {
			l.ok("%s is at %s (hardware address %s)", ip, owner, mac)
			return
		}
	}
	if name := l.peerWith(ctx, link, mac); name != "" {
		l.ok("%s is at %s (hardware address %s)", ip, name, mac)
		return
	}
	l.fail(fmt.Sprintf("take %s off the machine with the hardware address %s, or write another address into vip", ip, mac),
		"%s is taken: the machine with the hardware address %s on %s answers for it, and it is no host of gossip.peers", ip, mac, link.Name)
}

// peerWith finds the other host with the hardware address in the kernel's table of neighbours.
func (l vipLook) peerWith(ctx context.Context, link *net.Interface, mac net.HardwareAddr) string {
	neighbours, err := netlink.NeighList(link.Index, netlink.FAMILY_ALL)
	if err != nil {
		return ""
	}
	peers, _ := l.peers(ctx) // told before
	for _, p := range peers {
		if slices.ContainsFunc(neighbours, func(n netlink.Neigh) bool {
			ip, ok := netip.AddrFromSlice(n.IP)
			return ok && ip.Unmap() == p.at.Addr() && bytes.Equal(n.HardwareAddr, mac)
		}) {
			return p.String()
		}
	}
	return ""
}

// probe asks the link who has the address (RFC 5227 section 2.1.1, RFC 4861 section 7.2.2).
func probe(ctx context.Context, iface string, ip netip.Addr) (net.HardwareAddr, bool, error) {
	log := slog.New(slog.DiscardHandler)
	if ip.Is6() {
		l, err := ndp.Open(iface, log)
		if err != nil {
			return nil, false, err
		}
		defer func() { _ = l.Close() }() // it only asked
		return l.Probe(ctx, ip)
	}
	l, err := arp.Open(iface, log)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = l.Close() }() // it only asked
	return l.Probe(ctx, ip)
}
