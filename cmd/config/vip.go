package config

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Gossip says with whom this host shares VIPs.
type Gossip struct {
	Cluster string         `mapstructure:"cluster"`
	Host    string         `mapstructure:"host"` // "": see Name
	Listen  netip.AddrPort `mapstructure:"listen"`
	Peers   []string       `mapstructure:"peers"`
	KeyFile string         `mapstructure:"keyFile"`
	MTU     int            `mapstructure:"mtu"` // bytes
}

// VIP says which addresses the hosts share, and how.
type VIP struct {
	Interface    string     `mapstructure:"interface"`
	Addresses    []string   `mapstructure:"addresses"`
	Groups       []VIPGroup `mapstructure:"groups"`
	Priority     int        `mapstructure:"priority"`
	NoPreempt    bool       `mapstructure:"nopreempt"`
	PreemptDelay Duration   `mapstructure:"preemptDelay"`

	Listen        netip.AddrPort `mapstructure:"listen"`
	Heartbeat     Duration       `mapstructure:"heartbeat"` // 0: by the scheduler
	Misses        int            `mapstructure:"misses"`
	LinkHeartbeat bool           `mapstructure:"linkHeartbeat"`
	Realtime      bool           `mapstructure:"realtime"`
	ProxyTimeout  Duration       `mapstructure:"proxyTimeout"`
	KeepFlows     Duration       `mapstructure:"keepFlows"` // 0: not kept
	Notify        []string       `mapstructure:"notify"`
	MetricsListen string         `mapstructure:"metricsListen"`
}

// VIPGroup is a VIP of several addresses. A zero field is as in VIP.
type VIPGroup struct {
	Name         string   `mapstructure:"name"`
	Addresses    []string `mapstructure:"addresses"`
	Interface    string   `mapstructure:"interface"`
	Priority     int      `mapstructure:"priority"`
	NoPreempt    bool     `mapstructure:"nopreempt"`
	PreemptDelay Duration `mapstructure:"preemptDelay"`
}

func defaultGossip() Gossip {
	return Gossip{
		Cluster: "headgate", Listen: netip.MustParseAddrPort("0.0.0.0:7946"), KeyFile: "/etc/headgate/gossip.key", MTU: 1500,
	}
}

func defaultVIP() VIP {
	return VIP{
		Priority: 100, PreemptDelay: Duration(10 * time.Second), Listen: netip.MustParseAddrPort("0.0.0.0:7947"), Misses: 3,
		LinkHeartbeat: true, Realtime: true, ProxyTimeout: Duration(100 * time.Millisecond), KeepFlows: Duration(5 * time.Minute),
		MetricsListen: "127.0.0.1:9791",
	}
}

// Name is the name of this host: the one that is set, or the host name up to its first dot.
func (g Gossip) Name() (string, error) {
	if g.Host != "" {
		return g.Host, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("the host name is unknown (%w): write gossip.host", err)
	}
	name, _, _ = strings.Cut(name, ".")
	if !hostName.MatchString(name) {
		return "", fmt.Errorf("the host name %q cannot be used: write gossip.host, such as edge1", name)
	}
	return name, nil
}

// All gives the VIPs as groups with every field set: the addresses of the list, each a group of its own that has its name,
// and then the groups.
func (v VIP) All() []VIPGroup {
	var all []VIPGroup
	for _, a := range v.Addresses {
		name, _, _ := strings.Cut(a, "/")
		if ip, err := netip.ParseAddr(name); err == nil {
			name = ip.Unmap().String() // the same on all hosts, however it is written
		}
		all = append(all, VIPGroup{Name: name, Addresses: []string{a}})
	}
	all = append(all, v.Groups...)
	for i := range all {
		g := &all[i]
		if g.Interface == "" {
			g.Interface = v.Interface
		}
		if g.Priority == 0 {
			g.Priority = v.Priority
		}
		if g.PreemptDelay == 0 {
			g.PreemptDelay = v.PreemptDelay
		}
		g.NoPreempt = g.NoPreempt || v.NoPreempt
	}
	return all
}

// Interfaces are those of all VIPs, sorted.
func (v VIP) Interfaces() []string {
	var names []string
	for _, g := range v.All() {
		names = append(names, g.Interface)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ParseVIP reads an address with or without the length of a prefix; without one it is 32 or 128.
func ParseVIP(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if a, addrErr := netip.ParseAddr(text); addrErr == nil {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	switch a := p.Addr(); {
	case err != nil || a.Zone() != "":
		return netip.Prefix{}, fmt.Errorf("%q is no address: write one such as 192.0.2.10, 192.0.2.10/24 or 2001:db8::10", text)
	case a.Is4In6():
		return netip.Prefix{}, fmt.Errorf("%q mixes IPv4 and IPv6: write %s", text, a.Unmap())
	case !a.IsGlobalUnicast() || p.Bits() == 0:
		return netip.Prefix{}, fmt.Errorf("%q cannot be a VIP: write a unicast address that clients reach, such as 192.0.2.10", text)
	case a == p.Masked().Addr() && p.Bits() < a.BitLen()-1:
		return netip.Prefix{}, fmt.Errorf("%q is the address of the network itself: write one of a host in it, such as %s/%d", text, a.Next(), p.Bits())
	case a.Is4() && p.Bits() < a.BitLen()-1 && !p.Contains(a.Next()):
		return netip.Prefix{}, fmt.Errorf("%q is the broadcast address of its network: write one of a host in it, such as %s/%d", text, a.Prev(), p.Bits())
	}
	return p, nil
}

// What names may look like. maxVIPs is what vip/speaker can tell its peers.
var (
	hostName      = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	groupName     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:-]{0,61}[A-Za-z0-9])?$`)
	interfaceName = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,15}$`)
)

const (
	maxVIPs     = 64
	maxTogether = 2000 // addresses of all VIPs
)

func (v *checker) gossip(g *Gossip) {
	v.match("gossip.cluster", g.Cluster, hostName, "a name: write letters, digits, '.', '-' and '_', such as headgate")
	if g.Host != "" {
		v.match("gossip.host", g.Host, hostName, "a host name: write letters, digits, '.', '-' and '_', such as edge1")
	}
	v.port("gossip.listen", g.Listen, 7946)
	for i, p := range g.Peers {
		key := fmt.Sprintf("gossip.peers[%d]", i)
		host, port, err := net.SplitHostPort(p)
		if n, numErr := strconv.Atoi(port); err == nil && (numErr != nil || n < 1 || n > 65535) {
			v.fail(key, "%q has no port from 1 to 65535: write %s:7946, or leave the port out", p, host)
			continue
		}
		if err != nil {
			host = p
		}
		if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err != nil && !dnsName.MatchString(host) {
			v.fail(key, "%q is neither an address nor a DNS name in lower case: write one such as 10.0.0.12 or edge2.example.com:7946", p)
		}
		if slices.Index(g.Peers, p) < i {
			v.fail(key, "%q is listed twice: keep one", p)
		}
	}
	v.match("gossip.keyFile", g.KeyFile, safePath, "an absolute path of letters, digits and ._+-: write one such as /etc/headgate/gossip.key")
	within(v, "gossip.mtu", g.MTU, 1280, 9216)
}

func (v *checker) port(key string, a netip.AddrPort, standard uint16) {
	if a.Port() == 0 {
		v.fail(key, "%s lacks a port from 1 to 65535: write %s", a.Addr(), netip.AddrPortFrom(a.Addr(), standard))
	}
}

func (v *checker) vip(c *Config) {
	p := &c.VIP
	within(v, "vip.priority", p.Priority, 1, 254)
	within(v, "vip.preemptDelay", p.PreemptDelay, 0, Duration(time.Hour))
	v.port("vip.listen", p.Listen, 7947)
	if p.Listen == c.Gossip.Listen {
		v.fail("vip.listen", "%s is gossip.listen already: write another port", p.Listen)
	}
	if p.Heartbeat != 0 {
		within(v, "vip.heartbeat", p.Heartbeat, Duration(10*time.Millisecond), Duration(10*time.Second))
	}
	within(v, "vip.misses", p.Misses, 2, 100)
	within(v, "vip.proxyTimeout", p.ProxyTimeout, Duration(20*time.Millisecond), Duration(10*time.Second))
	within(v, "vip.keepFlows", p.KeepFlows, 0, Duration(24*time.Hour))
	if len(p.Notify) > 0 {
		v.match("vip.notify[0]", p.Notify[0], safePath, "an absolute path of letters, digits and ._+-: write the program first, such as /usr/local/bin/vip-changed")
	}
	v.loopback("vip.metricsListen", p.MetricsListen, 9791)
	v.groups(p)
	v.vips(p)
	v.own(c)
}

// own refuses VIPs where the address of one host must stand: whoever has the VIP would answer there.
func (v *checker) own(c *Config) {
	vips := map[netip.Addr]bool{}
	for _, g := range c.VIP.All() {
		for _, text := range g.Addresses {
			if p, err := ParseVIP(text); err == nil {
				vips[p.Addr()] = true
			}
		}
	}
	refuse := func(key string, a netip.Addr) {
		if vips[a.Unmap()] {
			v.fail(key, "%s is a VIP: write an address that one host has all the time", a)
		}
	}
	refuse("gossip.listen", c.Gossip.Listen.Addr())
	refuse("vip.listen", c.VIP.Listen.Addr())
	for i, p := range c.Gossip.Peers {
		host, _, err := net.SplitHostPort(p)
		if err != nil {
			host = strings.Trim(p, "[]")
		}
		if a, err := netip.ParseAddr(host); err == nil {
			refuse(fmt.Sprintf("gossip.peers[%d]", i), a)
		}
	}
}

// loopback keeps a metrics listener on loopback, as metrics does.
func (v *checker) loopback(key, listen string, standard int) {
	if listen == "" {
		return
	}
	a, err := netip.ParseAddrPort(listen)
	if err != nil || a.Port() == 0 {
		v.fail(key, "%q is not address:port: write 127.0.0.1:%d, or \"\" to turn metrics off", listen, standard)
	} else if !a.Addr().IsLoopback() {
		v.fail(key, "%s is not a loopback address: write 127.0.0.1:%d; to scrape from elsewhere put a proxy with authentication in front", listen, a.Port())
	}
}

func (v *checker) groups(p *VIP) {
	for i, g := range p.Groups {
		key := fmt.Sprintf("vip.groups[%d]", i)
		v.match(key+".name", g.Name, groupName, "a name: write letters, digits, '.', ':', '-' and '_', the same on all hosts, such as web")
		if g.Priority != 0 {
			within(v, key+".priority", g.Priority, 1, 254)
		}
		within(v, key+".preemptDelay", g.PreemptDelay, 0, Duration(time.Hour))
		if len(g.Addresses) == 0 {
			v.fail(key+".addresses", "the list is empty: write the addresses that move together, such as [192.0.2.11]")
		}
	}
}

// vips checks names, interfaces and addresses of all VIPs against each other.
func (v *checker) vips(p *VIP) {
	all := p.All()
	if len(all) > maxVIPs {
		v.fail("vip.addresses", "%d VIPs are too many, at most %d have an owner of their own: write a group of addresses that move together into vip.groups", len(all), maxVIPs)
	}
	names, taken := map[string]string{}, map[netip.Addr]string{}
	for i, g := range all {
		key, at := fmt.Sprintf("vip.addresses[%d]", i), func(int) string { return fmt.Sprintf("vip.addresses[%d]", i) }
		iface := "vip.interface"
		if n := i - len(p.Addresses); n >= 0 {
			key = fmt.Sprintf("vip.groups[%d]", n)
			at = func(j int) string { return fmt.Sprintf("%s.addresses[%d]", key, j) }
			iface = key + ".interface"
		}
		if g.Interface == "" {
			v.fail("vip.interface", "no interface for %s: write the one that clients reach, such as eth0", key)
		} else {
			v.match(iface, g.Interface, interfaceName, "an interface: write one that 'ip link' shows, such as eth0")
		}
		if other, found := names[g.Name]; found {
			v.fail(key, "the VIP %q stands in %s already: keep one", g.Name, other)
		}
		names[g.Name] = key
		v.addresses(g.Addresses, at, taken)
	}
	if len(taken) > maxTogether {
		v.fail("vip.groups", "%d addresses are too many: at most %d", len(taken), maxTogether)
	}
}

func (v *checker) addresses(list []string, at func(int) string, taken map[netip.Addr]string) {
	for j, text := range list {
		a, err := ParseVIP(text)
		if err != nil {
			v.fail(at(j), "%v", err)
			continue
		}
		if other, found := taken[a.Addr()]; found {
			v.fail(at(j), "%s stands in %s already: keep one", a.Addr(), other)
		}
		taken[a.Addr()] = at(j)
	}
}
