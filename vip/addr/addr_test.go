package addr_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"headgate/test/netns"
	"headgate/vip/addr"
)

const (
	iface = "eth0"
	limit = 10 * time.Second
)

var (
	vip4  = netip.MustParseAddr("192.0.2.10")
	vip6  = netip.MustParseAddr("2001:db8::10")
	host4 = netip.MustParsePrefix("192.0.2.2/24")
	host6 = netip.MustParsePrefix("2001:db8::2/64")
)

// host is a namespace with one interface and a Set in it.
type host struct {
	*netns.Namespace
	t     *testing.T
	state string
	set   *addr.Set
}

func newHost(t *testing.T, addresses ...netip.Prefix) *host {
	t.Helper()
	n := netns.New(t)
	netns.Veth(t, netns.End{Namespace: n, Interface: iface}, netns.End{Namespace: netns.New(t), Interface: iface})
	for _, a := range addresses {
		n.AddAddress(t, iface, a)
	}
	h := &host{Namespace: n, t: t, state: filepath.Join(t.TempDir(), "vip.json")}
	h.set = h.open()
	return h
}

// open is what a new process does.
func (h *host) open() *addr.Set {
	h.t.Helper()
	var set *addr.Set
	err := h.Do(func() (err error) {
		set, err = addr.New(addr.Config{StateFile: h.state, Log: slog.New(slog.DiscardHandler)})
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(set.Close)
	return set
}

func (h *host) apply(desired ...addr.Address) {
	h.t.Helper()
	if err := h.set.Apply(desired); err != nil {
		h.t.Fatal(err)
	}
}

// want asserts on the kernel: what the interface has, but for link-local addresses.
func (h *host) want(iface string, prefixes ...string) {
	h.t.Helper()
	var have []string
	for _, p := range h.Addresses(h.t, iface) {
		have = append(have, p.String())
	}
	slices.Sort(have)
	slices.Sort(prefixes)
	if !slices.Equal(have, prefixes) {
		h.t.Fatalf("%s has %q, want %q", iface, have, prefixes)
	}
}

// kernel is the kernel's address with the IP.
func (h *host) kernel(ip netip.Addr) netlink.Addr {
	h.t.Helper()
	list, err := h.Netlink().AddrList(h.Link(h.t, iface), netlink.FAMILY_ALL)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, a := range list {
		if known, _ := netip.AddrFromSlice(a.IP); known.Unmap() == ip {
			return a
		}
	}
	h.t.Fatalf("%s has no %s", iface, ip)
	return netlink.Addr{}
}

func (h *host) stateNames(ip netip.Addr) bool {
	text, _ := os.ReadFile(h.state)
	return strings.Contains(string(text), `"`+ip.String()+`"`)
}

func on(ip netip.Addr) addr.Address { return addr.Address{IP: ip, Interface: iface} }

func TestString(t *testing.T) {
	a := on(vip4)
	if got := a.String(); got != "192.0.2.10/32 on eth0" {
		t.Error(got)
	}
	a.Bits = 24
	if got := a.String(); got != "192.0.2.10/24 on eth0" {
		t.Error(got)
	}
}

func TestApplyAddsRefreshesAndRemoves(t *testing.T) {
	h := newHost(t, host4, host6)
	lasting := []addr.Address{on(vip4), on(vip6)}
	lasting[0].Lifetime, lasting[1].Lifetime = time.Minute, time.Minute
	h.apply(lasting...)
	h.want(iface, "192.0.2.2/24", "192.0.2.10/32", "2001:db8::2/64", "2001:db8::10/128")
	for _, ip := range []netip.Addr{vip4, vip6} {
		a := h.kernel(ip)
		if a.Flags&unix.IFA_F_NOPREFIXROUTE == 0 {
			t.Errorf("%s has no flag noprefixroute: %#x", ip, a.Flags)
		}
		if a.ValidLft < 50 || a.ValidLft > 60 {
			t.Errorf("%s is valid for %d s, want 60", ip, a.ValidLft)
		}
		if ip.Is6() && (a.Flags&unix.IFA_F_NODAD == 0 || a.Flags&unix.IFA_F_TENTATIVE != 0 || a.PreferedLft != 0) {
			t.Errorf("%s: flags %#x, preferred %d s; want nodad, not tentative, deprecated", ip, a.Flags, a.PreferedLft)
		}
	}
	lasting[0].Lifetime, lasting[1].Lifetime = time.Hour, 0
	h.apply(lasting...)
	if got := h.kernel(vip4).ValidLft; got < 3500 {
		t.Errorf("a refreshed address is valid for %d s, want 3600", got)
	}
	if got := uint32(h.kernel(vip6).ValidLft); got != 1<<32-1 {
		t.Errorf("an address without lifetime is valid for %d s, want for ever", got)
	}
	h.apply(lasting[1])
	h.want(iface, "192.0.2.2/24", "2001:db8::2/64", "2001:db8::10/128")
	if h.stateNames(vip4) || !h.stateNames(vip6) {
		t.Error("the state file names what is gone, or not what is there")
	}
	h.apply()
	h.want(iface, "192.0.2.2/24", "2001:db8::2/64")
}

func TestAddLeavesTheOthersAlone(t *testing.T) {
	h := newHost(t, host4, host6)
	add := func(some ...addr.Address) error { return h.set.Add(some) }
	next4, next6 := on(vip4.Next()), on(vip6.Next())
	next4.Lifetime, next6.Lifetime = time.Minute, time.Minute
	h.apply(on(vip4), on(vip6))
	for range 2 { // adds, then refreshes
		if err := add(next4, next6); err != nil {
			t.Fatal(err)
		}
		h.want(iface, "192.0.2.2/24", "192.0.2.10/32", "192.0.2.11/32", "2001:db8::2/64", "2001:db8::10/128", "2001:db8::11/128")
		for _, a := range []addr.Address{next4, next6} {
			if got := time.Duration(h.kernel(a.IP).ValidLft) * time.Second; got > a.Lifetime || got < a.Lifetime-10*time.Second {
				t.Errorf("%s is valid for %s, want %s", a.IP, got, a.Lifetime)
			}
			if !h.stateNames(a.IP) {
				t.Errorf("the state file does not name %s", a.IP)
			}
		}
		next4.Lifetime, next6.Lifetime = time.Hour, time.Hour
	}
	foreign := on(netip.MustParseAddr("192.0.2.12"))
	h.AddAddress(t, iface, netip.PrefixFrom(foreign.IP, 32))
	if err := add(foreign, on(host6.Addr())); !errors.Is(err, addr.ErrForeign) || !strings.Contains(err.Error(), "dev eth0") {
		t.Errorf("got %v, want ErrForeign", err)
	}
	if h.stateNames(foreign.IP) || h.stateNames(host6.Addr()) {
		t.Error("the state file names what is not ours")
	}
	if err := add(addr.Address{IP: vip4, Interface: "eth7"}); !errors.Is(err, addr.ErrNoLink) {
		t.Errorf("got %v, want ErrNoLink", err)
	}
	wider := next6
	wider.Bits = 64
	if err := add(wider); err != nil {
		t.Error(err)
	}
	h.apply()
	h.want(iface, "192.0.2.2/24", "192.0.2.12/32", "2001:db8::2/64")
}

func TestAnAddressExpiresUnlessItIsRefreshed(t *testing.T) {
	h := newHost(t)
	short := []addr.Address{on(vip4), on(vip6)}
	short[0].Lifetime, short[1].Lifetime = time.Second, 500*time.Millisecond
	start := time.Now()
	h.apply(short...)
	netns.Eventually(t, limit, "both addresses expire", func() bool { return len(h.Addresses(t, iface)) == 0 })
	if took := time.Since(start); took < 900*time.Millisecond || took > 4*time.Second {
		t.Errorf("addresses of 1 s expired after %s", took)
	}
}

func TestPrefixesChange(t *testing.T) {
	h := newHost(t)
	for _, bits := range []int{24, 32, 0, 16} {
		a, b := on(vip4), on(vip6)
		a.Bits, b.Bits = bits, bits*4
		h.apply(a, b)
		if bits == 0 {
			bits = 32
		}
		h.want(iface, netip.PrefixFrom(vip4, bits).String(), netip.PrefixFrom(vip6, bits*4).String())
	}
	routes, err := h.Netlink().RouteList(h.Link(t, iface), netlink.FAMILY_V4)
	if err != nil || len(routes) != 0 {
		t.Errorf("a VIP with a prefix brought the routes %v (%v), want none", routes, err)
	}
}

// A VIP with a prefix that came before the host's own address of that network is the primary one.
func TestRemovingAVIPTakesNoOtherAddressAlong(t *testing.T) {
	h := newHost(t)
	var settings []addr.Sysctl
	if err := h.Do(func() (err error) { settings, err = addr.Sysctls(iface); return err }); err != nil {
		t.Fatal(err, settings)
	}
	a := on(vip4)
	a.Bits = 24
	h.apply(a)
	h.AddAddress(t, iface, host4)
	h.apply()
	h.want(iface, "192.0.2.2/24")
}

func TestANewProcessAdoptsAndSweeps(t *testing.T) {
	h := newHost(t, host4)
	h.apply(on(vip4), on(vip6))
	h.set.Close() // kill -9
	h.set = h.open()
	held, err := h.set.Held()
	if err != nil || len(held) != 2 {
		t.Fatalf("a new process holds %v (%v), want both VIPs", held, err)
	}
	for _, a := range held {
		if a.Interface != iface || a.Lifetime != 0 || a.Bits != a.IP.BitLen() {
			t.Errorf("held %+v", a)
		}
	}
	h.apply(on(vip6))
	h.want(iface, "192.0.2.2/24", "2001:db8::10/128")
}

func TestOnlyWhatTheStateFileNamesIsRemoved(t *testing.T) {
	h := newHost(t, host4)
	foreign := netip.PrefixFrom(vip4, 32)
	h.AddAddress(t, iface, foreign)
	err := h.set.Apply([]addr.Address{on(vip4), on(vip6)})
	if !errors.Is(err, addr.ErrForeign) || !strings.Contains(err.Error(), "ip addr del 192.0.2.10/32 dev eth0") {
		t.Errorf("got %v, want ErrForeign with the command", err)
	}
	h.want(iface, "192.0.2.2/24", "192.0.2.10/32", "2001:db8::10/128")
	h.apply()
	if err := h.Do(func() error { return addr.Cleanup(h.state) }); err != nil {
		t.Error(err)
	}
	h.want(iface, "192.0.2.2/24", "192.0.2.10/32")
	h.RemoveAddress(t, iface, foreign)
	h.apply(on(vip4))
	h.want(iface, "192.0.2.2/24", "192.0.2.10/32")
}

// A process that died between writing the state file and the kernel leaves a name without an address.
func TestTheStateFileIsWrittenBeforeAnAddress(t *testing.T) {
	h := newHost(t)
	h.Sysctl(t, "net/ipv6/conf/"+iface+"/disable_ipv6", "1")
	err := h.set.Apply([]addr.Address{on(vip6)})
	if err == nil || !strings.Contains(err.Error(), "sysctl -w net.ipv6.conf.eth0.disable_ipv6=0") {
		t.Errorf("got %v, want the command that turns IPv6 on", err)
	}
	if !h.stateNames(vip6) {
		t.Error("the address was tried before the state file named it")
	}
	h.set.Close()
	h.set = h.open()
	if held, err := h.set.Held(); err != nil || len(held) != 0 {
		t.Errorf("holds %v (%v), want nothing", held, err)
	}
	h.Sysctl(t, "net/ipv6/conf/"+iface+"/disable_ipv6", "0")
	h.apply(on(vip6))
	h.want(iface, "2001:db8::10/128")
}

func TestWithoutAStateFileNothingIsAdded(t *testing.T) {
	h := newHost(t)
	short := on(vip4)
	short.Lifetime = time.Minute
	h.apply(short)
	folder := filepath.Dir(h.state)
	if err := os.Rename(folder, folder+".away"); err != nil {
		t.Fatal(err)
	}
	short.Lifetime = time.Hour
	err := h.set.Apply([]addr.Address{short, on(vip6)})
	if err == nil || !strings.Contains(err.Error(), "state file") {
		t.Errorf("got %v, want an error about the state file", err)
	}
	h.want(iface, "192.0.2.10/32")
	if got := h.kernel(vip4).ValidLft; got < 3500 {
		t.Errorf("the address was not refreshed: %d s", got)
	}
	// Removing goes on, and says that the file could not follow.
	if err := h.set.Apply(nil); err == nil {
		t.Error("no error although the state file could not be written")
	}
	h.want(iface)
	if err := os.Rename(folder+".away", folder); err != nil {
		t.Fatal(err)
	}
	h.apply(on(vip6))
	h.want(iface, "2001:db8::10/128")
}

func TestABrokenStateFileIsMovedAside(t *testing.T) {
	for _, text := range []string{"", "{", `{"schema":2}`, `{"schema":1,"addresses":[{"interface":"eth0","index":2,"ip":"192.0.2.10","bits":99}]}`} {
		h := newHost(t)
		if err := os.WriteFile(h.state, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := h.Do(func() error { return addr.Cleanup(h.state) }); err == nil || !strings.Contains(err.Error(), h.state) {
			t.Errorf("%q: cleanup gave %v, want an error that names the file", text, err)
		}
		h.set = h.open()
		h.apply(on(vip4))
		h.want(iface, "192.0.2.10/32")
		if moved, err := os.ReadFile(h.state + ".refused"); err != nil || string(moved) != text {
			t.Errorf("the broken file was not kept: %q, %v", moved, err)
		}
	}
}

func TestCleanupRemovesAllAndTheFile(t *testing.T) {
	h := newHost(t, host4)
	h.apply(on(vip4), on(vip6))
	h.set.Close()
	for range 2 { // the second finds nothing, and that is no error
		if err := h.Do(func() error { return addr.Cleanup(h.state) }); err != nil {
			t.Fatal(err)
		}
		h.want(iface, "192.0.2.2/24")
		if _, err := os.Stat(h.state); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the state file is still there: %v", err)
		}
	}
}

func TestAddressesThatAreRefused(t *testing.T) {
	h := newHost(t)
	for want, a := range map[string]addr.Address{
		"without an IP":     {Interface: iface},
		"unicast":           {IP: netip.MustParseAddr("224.0.0.18"), Interface: iface},
		"other hosts":       {IP: netip.MustParseAddr("::1"), Interface: iface},
		"without %eth0":     {IP: netip.MustParseAddr("fe80::1%eth0"), Interface: iface},
		"prefix length 33":  {IP: vip4, Bits: 33, Interface: iface},
		"prefix length -1":  {IP: vip6, Bits: -1, Interface: iface},
		"lifetime -1s":      {IP: vip6, Lifetime: -time.Second, Interface: iface},
		"no such interface": {IP: vip4, Interface: "eth7"},
	} {
		err := h.set.Apply([]addr.Address{a, on(vip6)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q in it", a, err, want)
		}
		h.want(iface, "2001:db8::10/128")
	}
	twice := on(vip6)
	twice.Bits = 64
	if err := h.set.Apply([]addr.Address{on(vip6), twice}); err == nil || !strings.Contains(err.Error(), "asked for twice") {
		t.Errorf("got %v for one address with two prefixes", err)
	}
	h.want(iface, "2001:db8::10/128")
	mapped := on(netip.AddrFrom16(vip4.As16()))
	h.apply(mapped)
	h.want(iface, "192.0.2.10/32")
}

// watch runs the Set and returns a function that waits for a change.
func (h *host) watch() func(what string) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.set.Run(ctx) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Error(err)
		}
	})
	return func(what string) {
		h.t.Helper()
		select {
		case <-h.set.Changes():
		case <-time.After(limit):
			h.t.Fatal("told nothing: " + what)
		}
	}
}

func TestChangesOfOthersAreTold(t *testing.T) {
	h := newHost(t, host4)
	changed := h.watch()
	h.apply(on(vip4), on(vip6))
	for range 3 {
		a := on(vip4)
		a.Lifetime = time.Minute
		h.apply(a)
		h.apply(a, on(vip6))
	}
	// Marker: all events of before are read when this one is.
	h.RemoveAddress(t, iface, netip.PrefixFrom(vip4, 32))
	changed("a VIP deleted by hand")
	select {
	case <-h.set.Changes():
		t.Error("what Apply did was told as a change")
	default:
	}
	h.apply(on(vip4), on(vip6))
	h.want(iface, "192.0.2.2/24", "192.0.2.10/32", "2001:db8::10/128")

	h.Down(t, iface)
	changed("interface down")
	netns.Eventually(t, limit, "the link is seen down", func() bool {
		l, err := h.set.Link(iface)
		return err == nil && !l.Up
	})
	// The kernel takes IPv6 addresses off with the link.
	h.Up(t, iface)
	changed("interface up")
	netns.Eventually(t, limit, "the VIPs are back", func() bool {
		return h.set.Apply([]addr.Address{on(vip4), on(vip6)}) == nil && len(h.Addresses(t, iface)) == 3
	})

	expiring := on(vip4)
	expiring.Lifetime = time.Second
	h.apply(expiring)
	for len(h.Addresses(t, iface)) > 1 {
		changed("a VIP expired") // or what was left of the link's coming up
	}
}

func TestAddressesOfOthersAreNotTold(t *testing.T) {
	h := newHost(t, host4)
	changed := h.watch()
	h.apply(on(vip4))
	h.RemoveAddress(t, iface, host4)
	h.AddAddress(t, iface, host4)
	netns.Veth(t, netns.End{Namespace: h.Namespace, Interface: "other0"}, netns.End{Namespace: netns.New(t), Interface: "x"})
	h.RemoveAddress(t, iface, netip.PrefixFrom(vip4, 32))
	changed("a VIP deleted by hand")
	if _, err := h.set.Held(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.set.Changes():
		t.Error("an address or a link of somebody else was told as a change")
	default:
	}
}

func TestAnInterfaceIsRenamed(t *testing.T) {
	h := newHost(t)
	changed := h.watch()
	h.apply(on(vip4), on(vip6))
	link := h.Link(t, iface)
	h.Down(t, iface)
	if err := h.Netlink().LinkSetName(link, "wan0"); err != nil {
		t.Fatal(err)
	}
	h.Up(t, "wan0")
	changed("renamed")
	netns.Eventually(t, limit, "the old name is gone", func() bool {
		_, err := h.set.Link(iface)
		return errors.Is(err, addr.ErrNoLink)
	})
	// The configuration still says eth0: nothing of ours may stay on what it is called now.
	if err := h.set.Apply([]addr.Address{on(vip4), on(vip6)}); !errors.Is(err, addr.ErrNoLink) {
		t.Errorf("got %v, want ErrNoLink", err)
	}
	h.want("wan0")
	h.apply(addr.Address{IP: vip4, Interface: "wan0"})
	h.want("wan0", "192.0.2.10/32")
}

func TestARenamedInterfaceIsAdoptedUnderItsNewName(t *testing.T) {
	h := newHost(t)
	h.apply(on(vip4))
	h.Down(t, iface)
	if err := h.Netlink().LinkSetName(h.Link(t, iface), "wan0"); err != nil {
		t.Fatal(err)
	}
	if held, err := h.set.Held(); err != nil || len(held) != 1 || held[0].Interface != "wan0" {
		t.Fatalf("holds %v (%v), want the VIP on wan0", held, err)
	}
	h.apply(addr.Address{IP: vip4, Interface: "wan0"})
	h.want("wan0", "192.0.2.10/32")
}

func TestAnInterfaceIsDeletedAndMadeAnew(t *testing.T) {
	h := newHost(t)
	changed := h.watch()
	h.apply(on(vip4), on(vip6))
	before, err := h.set.Link(iface)
	if err != nil || !before.Up || before.MTU != 1500 || len(before.HardwareAddr) != 6 {
		t.Fatalf("link %+v, %v", before, err)
	}
	if err := h.Netlink().LinkDel(h.Link(t, iface)); err != nil {
		t.Fatal(err)
	}
	changed("deleted")
	if err := h.set.Apply([]addr.Address{on(vip4), on(vip6)}); !errors.Is(err, addr.ErrNoLink) {
		t.Errorf("got %v, want ErrNoLink", err)
	}
	netns.Veth(t, netns.End{Namespace: h.Namespace, Interface: iface}, netns.End{Namespace: netns.New(t), Interface: iface})
	changed("made anew")
	h.apply(on(vip4), on(vip6))
	h.want(iface, "192.0.2.10/32", "2001:db8::10/128")
	after, err := h.set.Link(iface)
	if err != nil || after.Index == before.Index {
		t.Errorf("link %+v, %v; want another index than %d", after, err, before.Index)
	}
	held, err := h.set.Held()
	if err != nil || len(held) != 2 {
		t.Errorf("holds %v (%v), want both", held, err)
	}
}

func TestAThousandAddresses(t *testing.T) {
	const count, budget = 1000, 2 * time.Second // the machine may be busy; alone it takes some 50 ms
	h := newHost(t)
	var all []addr.Address
	for i := range count {
		a := on(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}))
		a.Lifetime = time.Minute
		all = append(all, a)
	}
	for _, what := range []string{"add", "refresh"} {
		start := time.Now()
		h.apply(all...)
		t.Logf("%s %d addresses: %s", what, count, time.Since(start))
		if took := time.Since(start); took > budget {
			t.Errorf("%s %d addresses took %s", what, count, took)
		}
	}
	if got := len(h.Addresses(t, iface)); got != count {
		t.Errorf("the kernel has %d addresses, want %d", got, count)
	}
}

func TestSysctls(t *testing.T) {
	h := newHost(t)
	read := func() map[string]addr.Sysctl {
		t.Helper()
		found := map[string]addr.Sysctl{}
		err := h.Do(func() error {
			all, err := addr.Sysctls(iface)
			for _, s := range all {
				found[s.Key] = s
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	h.Sysctl(t, "net/ipv4/conf/all/promote_secondaries", "0")
	h.Sysctl(t, "net/ipv4/conf/"+iface+"/promote_secondaries", "0")
	for key, s := range read() {
		if !s.Changed || s.Err != nil || s.Have != s.Want || s.Complaint() != "" {
			t.Errorf("%s: %+v, want it set", key, s)
		}
	}
	for path, want := range map[string]string{
		"net/ipv4/conf/eth0/arp_ignore": "1", "net/ipv4/conf/eth0/arp_announce": "2",
		"net/ipv4/conf/eth0/promote_secondaries": "1", "net/ipv4/ip_nonlocal_bind": "1", "net/ipv6/ip_nonlocal_bind": "1",
	} {
		if got := h.ReadSysctl(t, path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	for key, s := range read() {
		if s.Changed || s.Err != nil {
			t.Errorf("%s: %+v, want it untouched the second time", key, s)
		}
	}
	// The stricter value of an administrator stays; a wrong one that we may not lower is told.
	h.Sysctl(t, "net/ipv4/conf/"+iface+"/arp_ignore", "2")
	if s := read()["net.ipv4.conf.eth0.arp_ignore"]; s.Changed || s.Err != nil {
		t.Errorf("arp_ignore=2 was touched: %+v", s)
	}
	h.Sysctl(t, "net/ipv4/conf/all/arp_ignore", "8")
	if s := read()["net.ipv4.conf.all.arp_ignore"]; !strings.Contains(s.Complaint(), "sysctl -w net.ipv4.conf.all.arp_ignore=1") {
		t.Errorf("complaint %q, want the command", s.Complaint())
	}
}

func TestSysctlsThatCannotBeSet(t *testing.T) {
	h := newHost(t)
	var all []addr.Sysctl
	err := h.Do(func() (err error) {
		if err := readOnlySysctls(); err != nil {
			return err
		}
		all, err = addr.Sysctls(iface)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Key != "net.ipv4.conf.eth0.arp_ignore" {
			continue
		}
		if !errors.Is(s.Err, unix.EROFS) || !strings.Contains(s.Complaint(), "run sysctl -w net.ipv4.conf.eth0.arp_ignore=1") || s.Have != "0" {
			t.Errorf("%+v, %q", s, s.Complaint())
		}
		return
	}
	t.Error("arp_ignore was not looked at")
}

// readOnlySysctls is what ProtectKernelTunables=yes of systemd does, for this thread.
func readOnlySysctls() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return unix.Mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

func TestSysctlsOfNamesThatAreNone(t *testing.T) {
	netns.Require(t)
	for _, name := range []string{"", ".", "..", "../all", "eth0/x", "a b", "averyverylongname"} {
		if _, err := addr.Sysctls(name); err == nil || errors.Is(err, addr.ErrNoLink) {
			t.Errorf("%q: got %v, want an error about the name", name, err)
		}
	}
	if _, err := addr.Sysctls("nosuchif"); !errors.Is(err, addr.ErrNoLink) {
		t.Errorf("got %v, want ErrNoLink", err)
	}
}

// The kernel says that it has an IPv6 address before it takes packets to it, and Apply must not: the address is announced next.
func TestTheKernelTakesPacketsToWhatWasAdded(t *testing.T) {
	h := newHost(t, host4, host6)
	const rounds, many = 20, 50
	late := 0
	for range rounds {
		var desired []addr.Address
		for i := range many {
			ip := netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 14: 1, 15: byte(i)})
			desired = append(desired, addr.Address{IP: ip, Interface: iface, Lifetime: time.Minute})
		}
		h.apply(desired...)
		for _, a := range slices.Backward(desired) {
			routes, err := h.Netlink().RouteGet(a.IP.AsSlice())
			if err != nil || routes[0].Type != unix.RTN_LOCAL {
				late++
			}
		}
		h.apply()
	}
	if late > 0 {
		t.Errorf("%d of %d addresses were not there when Apply returned", late, rounds*many)
	}
}
