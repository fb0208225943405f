package keepalived

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"headgate/cmd/config"
)

// group is what becomes one of vip.groups: addresses on one interface that move together.
type group struct {
	iface     string
	from      []*instance // at least one; one unless they are of a vrrp_sync_group
	addresses []address
}

// main is the instance that gives the group its name, the same on all hosts whatever the order of their files.
func (g *group) main() *instance {
	return slices.MinFunc(g.from, func(a, b *instance) int {
		return cmp.Or(cmp.Compare(a.vrid, b.vrid), cmp.Compare(a.name, b.name))
	})
}

// What headgate shares at most; cmd/config checks the same.
const (
	maxGroups    = 64
	maxAddresses = 2000
)

func (t *translator) config() config.Config {
	c := config.Default()
	groups := t.groups()
	names := map[string]bool{}
	for _, g := range groups {
		i := g.main()
		v := config.VIPGroup{Name: t.nameOf(g, names), Interface: g.iface, Priority: i.priority, NoPreempt: i.nopreempt.Line > 0}
		if i.delay != nil {
			v.PreemptDelay = config.Duration(*i.delay)
		}
		for _, a := range g.addresses {
			v.Addresses = append(v.Addresses, written(a.prefix))
		}
		c.VIP.Groups = append(c.VIP.Groups, v)
		t.origins = append(t.origins, origin(g))
		t.compare(g)
	}
	t.delays(&c.VIP, groups)
	hoist(&c.VIP)
	c.VIP.Notify = t.notify.argv
	t.gossip(&c)
	return c
}

// groups are those of all instances, in the order of the file: one of each interface that they or their vrrp_sync_group use.
func (t *translator) groups() []*group {
	type key struct {
		set   int // of a sync group from 0, or below for an instance alone
		iface string
	}
	sets := t.membership()
	byKey, taken := map[key]*group{}, map[netip.Addr]Place{}
	var all []*group
	for n, i := range t.instances {
		set, member := sets[i]
		if !member {
			set = -1 - n
		}
		for _, a := range i.addresses {
			k := key{set, cmp.Or(a.dev, i.iface)}
			if !t.free(taken, a, i) {
				continue
			}
			g := byKey[k]
			switch {
			case g == nil && len(all) == maxGroups:
				t.findings.add(LeftOut, i.place, "more than %d VIPs that move on their own: write addresses that move together into one of vip.groups", maxGroups)
				continue
			case g == nil:
				g = &group{iface: k.iface}
				byKey[k], all = g, append(all, g)
			}
			if !slices.Contains(g.from, i) {
				g.from = append(g.from, i)
			}
			g.addresses = append(g.addresses, a)
			taken[a.prefix.Addr()] = a.place
		}
	}
	return all
}

func (t *translator) free(taken map[netip.Addr]Place, a address, i *instance) bool {
	if first, found := taken[a.prefix.Addr()]; found {
		t.findings.add(LeftOut, a.place, "%s: %s stands in line %d already: it is taken over once", i, a.prefix.Addr(), first.Line)
		return false
	}
	if len(taken) == maxAddresses {
		t.findings.add(LeftOut, a.place, "more than %d addresses: headgate shares no more", maxAddresses)
		return false
	}
	return true
}

// membership gives the number of the vrrp_sync_group of each instance that is in one.
func (t *translator) membership() map[*instance]int {
	sets, named := map[*instance]int{}, map[string]*instance{}
	for _, i := range t.instances {
		named[i.name] = i
	}
	for n, set := range t.sets {
		ifaces := map[string]bool{}
		for _, name := range set.members {
			i := named[name]
			if i == nil {
				t.findings.add(LeftOut, set.place, "vrrp_sync_group %s: there is no vrrp_instance %s", shown(set.name), shown(name))
				continue
			}
			if _, other := sets[i]; other {
				t.findings.add(LeftOut, set.place, "vrrp_sync_group %s: %s is in another one already", shown(set.name), i)
				continue
			}
			sets[i] = n
			ifaces[i.iface] = true
		}
		if len(ifaces) > 1 {
			t.findings.add(Differs, set.place, "vrrp_sync_group %s: a VIP of headgate is on one interface: those on each of its %d interfaces move together, and on their own when only their link fails", shown(set.name), len(ifaces))
		}
	}
	return sets
}

// nameOf is made of the virtual router ID, because that is the same on all hosts.
func (t *translator) nameOf(g *group, taken map[string]bool) string {
	i := g.main()
	base := fmt.Sprintf("vrrp-%d", i.vrid)
	if i.vrid == 0 {
		base = "vrrp-" + plain(i.name)
		t.findings.add(Differs, i.place, "%s: no virtual_router_id: the VIP is called %s; it must have the same name on all hosts", i, base)
	}
	names := []string{base, base + "-" + plain(g.iface)}
	if g.iface != i.iface {
		names = names[1:]
	}
	if !slices.ContainsFunc(g.addresses, func(a address) bool { return a.prefix.Addr().Is4() }) {
		names = slices.Insert(names, 1, base+"-v6")
	}
	for n := 2; ; n++ {
		for _, name := range names {
			if !taken[name] {
				taken[name] = true
				return name
			}
		}
		names = append(names, base+"-"+strconv.Itoa(n))
		t.findings.add(Differs, i.place, "%s: several instances with the virtual_router_id %d: its VIP must have the same name on all hosts, look at that", i, i.vrid)
	}
}

// plain leaves of a name what that of a VIP may hold, and not more than fits.
func plain(name string) string {
	const most = 24
	out := []byte("")
	for _, c := range []byte(name) {
		if len(out) == most {
			break
		}
		if c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' {
			out = append(out, c)
		} else {
			out = append(out, '-')
		}
	}
	return string(out) + "x"[:ending(out)]
}

// ending is 1 where the name would end with something that it must not end with.
func ending(name []byte) int {
	if len(name) == 0 || name[len(name)-1] == '-' {
		return 1
	}
	return 0
}

// written is an address the way headgate.yaml has it: without a prefix when that is the address itself.
func written(p netip.Prefix) string {
	if p.Bits() == p.Addr().BitLen() {
		return p.Addr().String()
	}
	return p.String()
}

func origin(g *group) string {
	text := "vrrp_instance"
	for n, i := range g.from {
		if n > 0 {
			text += ","
		}
		text += " " + shown(i.name)
	}
	return text
}

// compare tells what the group does in another way than its instances did.
func (t *translator) compare(g *group) {
	i := g.main()
	for _, other := range g.from {
		if other.priority != i.priority {
			t.findings.add(Differs, other.place, "%s: it moves together with %s, and so its priority becomes %d", other, i, i.priority)
		}
		if (other.nopreempt.Line > 0) != (i.nopreempt.Line > 0) {
			t.findings.add(Differs, other.place, "%s: it moves together with %s, and so nopreempt is as there", other, i)
		}
	}
	if g.iface != i.iface {
		t.findings.add(Differs, g.addresses[0].place, "%s: addresses on %s are a VIP of their own: they move on their own when only that link fails", i, shown(g.iface))
	}
	if i.nopreempt.Line > 0 {
		t.findings.add(Differs, i.nopreempt, "nopreempt: the owner of a VIP decides whether it gives it back: write the same on all hosts")
	}
	if i.delay != nil {
		t.findings.add(Differs, i.delayed, "preempt_delay: the owner of a VIP waits that long for a better host to stay ready: write the same on all hosts")
	}
}

// delays writes preempt_delay 0, which a group cannot say: there it means what vip says.
func (t *translator) delays(v *config.VIP, groups []*group) {
	zero := slices.ContainsFunc(groups, func(g *group) bool { d := g.main().delay; return d != nil && *d == 0 })
	none := slices.ContainsFunc(groups, func(g *group) bool { return g.main().delay == nil && g.main().nopreempt.Line == 0 })
	usual := v.PreemptDelay
	if none {
		t.findings.add(Differs, Place{}, "a better host that comes back gets its VIPs when it was ready for %s (vip.preemptDelay); keepalived gives them back at once unless preempt_delay is written", time.Duration(usual))
	}
	if !zero {
		return
	}
	v.PreemptDelay = 0
	for n, g := range groups {
		if g.main().delay == nil {
			v.Groups[n].PreemptDelay = usual
		}
	}
}

// hoist writes what all groups have in common once.
func hoist(v *config.VIP) {
	if len(v.Groups) == 0 {
		return
	}
	first := v.Groups[0]
	same := func(what func(config.VIPGroup) bool) bool {
		return !slices.ContainsFunc(v.Groups, func(g config.VIPGroup) bool { return !what(g) })
	}
	if same(func(g config.VIPGroup) bool { return g.Interface == first.Interface }) {
		v.Interface = first.Interface
		for i := range v.Groups {
			v.Groups[i].Interface = ""
		}
	}
	if same(func(g config.VIPGroup) bool { return g.Priority == first.Priority }) {
		v.Priority = first.Priority
		for i := range v.Groups {
			v.Groups[i].Priority = 0
		}
	}
	if same(func(g config.VIPGroup) bool { return g.NoPreempt }) {
		v.NoPreempt = true
		for i := range v.Groups {
			v.Groups[i].NoPreempt = false
		}
	}
	if first.PreemptDelay != 0 && same(func(g config.VIPGroup) bool { return g.PreemptDelay == first.PreemptDelay }) {
		v.PreemptDelay = first.PreemptDelay
		for i := range v.Groups {
			v.Groups[i].PreemptDelay = 0
		}
	}
}

// gossip makes the list of hosts, sorted: so it is the same on all of them.
func (t *translator) gossip(c *config.Config) {
	slices.SortFunc(t.hosts, netip.Addr.Compare)
	hosts := slices.DeleteFunc(slices.Compact(t.hosts), func(a netip.Addr) bool { return t.isVIP(c, a) })
	fours := slices.DeleteFunc(slices.Clone(hosts), netip.Addr.Is6)
	sixes := slices.DeleteFunc(slices.Clone(hosts), netip.Addr.Is4)
	if len(fours) > 0 && len(sixes) > 0 {
		t.findings.add(Differs, Place{}, "gossip.peers names each host once: the file has addresses of IPv4 and IPv6, and those of one family are left out")
	}
	hosts, six := fours, len(sixes) > len(fours)
	if six {
		hosts = sixes
	}
	if six {
		c.Gossip.Listen = netip.AddrPortFrom(netip.IPv6Unspecified(), c.Gossip.Listen.Port())
		c.VIP.Listen = netip.AddrPortFrom(netip.IPv6Unspecified(), c.VIP.Listen.Port())
	}
	for _, h := range hosts {
		c.Gossip.Peers = append(c.Gossip.Peers, h.String())
	}
	for _, p := range t.multicast {
		if t.told {
			break
		}
		t.findings.add(LeftOut, p, "no unicast_peer: keepalived finds the others by multicast, headgate must be told: give --peer with the address of each host, or write gossip.peers; a host without peers is alone")
	}
}

// isVIP tells, and notes, that an address of a host is one that moves between them.
func (t *translator) isVIP(c *config.Config, host netip.Addr) bool {
	shared := slices.ContainsFunc(c.VIP.Groups, func(g config.VIPGroup) bool {
		return slices.ContainsFunc(g.Addresses, func(text string) bool {
			p, err := config.ParseVIP(text)
			return err == nil && p.Addr() == host
		})
	})
	if shared {
		t.findings.add(LeftOut, Place{}, "unicast_peer or unicast_src_ip %s: it is a VIP: write an address that one host has all the time into gossip.peers", host)
	}
	return shared
}
