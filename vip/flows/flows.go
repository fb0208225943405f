// Package flows gives established TCP flows a second chance after a planned move of a VIP. On the new owner
// nftables sends what belongs to no socket there on to the old owner; the old owner keeps the VIP on its loopback
// and answers the clients itself. It turns (VIP, old owner, deadline) into kernel state that ends by itself, and
// decides nothing. The speaker's process runs it.
//
// How a packet goes: a client sends it to the VIP, so to the new owner. There a rule before routing sees that it
// is TCP, no first SYN, and that the socket lookup finds no more than a listener. A copy goes out to the old
// owner's hardware address, unchanged but for its hop limit, and the original is dropped. The old owner finds the
// flow's socket, because the VIP is an address of its loopback, and answers from the VIP to the client. It answers
// no ARP for the VIP (arp_ignore) and never names it in a request (arp_announce); for IPv6 the kernel is so anyway.
//
// What it needs: both hosts on one Ethernet; a proxy that listens on the wildcard address, since a listener on the
// VIP itself cannot be told from a flow; nftables with socket and dup expressions; a firewall on the new owner that
// lets packets out which connection tracking does not know (untracked). While the new owner answers a SYN flood
// with cookies, handshakes of the moved VIP do not end there until the deadline.
package flows

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"headgate/vip/addr"
)

// MaxKeep is the longest that a flow may be kept: a forgotten one must end some day.
const MaxKeep = 24 * time.Hour

// loopback is where the old owner has the VIP.
const loopback = "lo"

// ErrElsewhere says that the old owner is not on a network of this host.
var ErrElsewhere = errors.New("the old owner is not on the same Ethernet")

// Config is what Flows need.
type Config struct {
	StateFile  string       // names the addresses on the loopback; as that of addr.Config, and another one
	Interfaces []string     // those that the VIPs are on; their ARP settings are set or complained about
	Log        *slog.Logger // required
}

// Role says which end of the move this host is.
type Role int

// The roles.
const (
	Forwarding Role = iota // the new owner: sends on what it does not know
	Keeping                // the old owner: answers what it still knows
)

// String is a word for people.
func (r Role) String() string {
	if r == Forwarding {
		return "forwarding"
	}
	return "keeping"
}

// Flow is a VIP whose old flows live on.
type Flow struct {
	VIP   netip.Addr
	Role  Role
	To    netip.Addr // the old owner, of Forwarding
	Until time.Time
}

// Flows is the second chances of this host. Its methods may be called from any goroutine; what they do happens in
// the network namespace of the calling thread, which is that of New.
type Flows struct {
	log        *slog.Logger
	interfaces []string
	routes     *netlink.Handle
	loopback   *addr.Set
	wake       chan struct{} // capacity 1: one token is enough to look again

	mu        sync.Mutex // guards what follows
	kept      map[netip.Addr]time.Time
	forwarded map[netip.Addr]target
	tables    map[string]bool // by family: the table is there, and this process has written it
}

// target is where the flows of a VIP are sent on.
type target struct {
	host  netip.Addr // without zone
	index int        // of the interface
	until time.Time
}

// New reads what a predecessor left, which goes on until its deadlines. The caller closes the Flows, which leaves
// everything as it is.
func New(c Config) (*Flows, error) {
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	set, err := addr.New(addr.Config{StateFile: c.StateFile, Log: c.Log})
	if err != nil {
		routes.Close()
		return nil, err
	}
	f := &Flows{
		log: c.Log, interfaces: slices.Clone(c.Interfaces), routes: routes, loopback: set, wake: make(chan struct{}, 1),
		kept: map[netip.Addr]time.Time{}, forwarded: map[netip.Addr]target{}, tables: map[string]bool{},
	}
	if err := f.adopt(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Close closes the sockets.
func (f *Flows) Close() {
	f.loopback.Close()
	f.routes.Close()
}

func (f *Flows) adopt() error {
	held, err := f.loopback.Held()
	if err != nil {
		return err
	}
	now := time.Now()
	for _, a := range held {
		f.kept[a.IP] = now.Add(a.Lifetime)
	}
	for _, fam := range families() {
		found, err := fam.read(now)
		if err != nil {
			// Without nftables there is nothing to adopt; Available says why.
			f.log.Debug("read no forwarded flows", "family", fam.name, "err", err)
		}
		maps.Copy(f.forwarded, found)
	}
	return nil
}

// Available says whether this host could forward flows of such a VIP: nil, or the reason why not, with what is
// missing. It tries in the kernel and leaves nothing behind.
func (f *Flows) Available(vip netip.Addr) error {
	fam, err := familyOf(vip)
	if err != nil {
		return err
	}
	return fam.available()
}

// Forward is for the new owner: it sends TCP packets to the VIPs that belong to no socket of this host on to the
// old owner, until the deadline, at most [MaxKeep] from now. Old is an address of that host on a network of this
// one and of the VIPs' family; a link-local one names this host's interface as its zone. Calling it again changes
// the old owner and the deadline. The change is atomic. The error wraps [ErrElsewhere] if the old owner is not
// on the link.
//
// Where old owners form a chain a packet passes at most [MaxHops] of them, so that a ring of them costs no more.
func (f *Flows) Forward(vips []netip.Addr, old netip.Addr, until time.Time) error {
	fam, err := familyOf(old)
	if err != nil {
		return err
	}
	for _, vip := range vips {
		if err := f.check(vip, old); err != nil {
			return err
		}
	}
	if err := checkDeadline(until); err != nil {
		return err
	}
	index, err := f.link(old)
	if err != nil {
		return err
	}
	some := map[netip.Addr]target{}
	for _, vip := range vips {
		some[vip.Unmap()] = target{host: old.WithZone("").Unmap(), index: index, until: until}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.append(fam, some) {
		return nil
	}
	next := f.of(fam)
	maps.Copy(next, some)
	return f.install(fam, next)
}

// append adds new targets to a table that is there, which costs nothing for the others. False: it did not, and the
// table must be written as a whole.
func (f *Flows) append(fam family, some map[netip.Addr]target) bool {
	now := f.of(fam)
	if len(now) == 0 && !f.tables[fam.name] {
		return false
	}
	for vip := range some {
		if _, known := now[vip]; known {
			return false
		}
	}
	if err := fam.add(some, time.Now()); err != nil {
		f.log.Debug("write the table anew", "family", fam.name, "err", err)
		return false
	}
	maps.Copy(f.forwarded, some)
	f.look()
	return true
}

func (f *Flows) check(vip, old netip.Addr) error {
	fam, err := familyOf(vip)
	if err != nil {
		return err
	}
	if other, _ := familyOf(old); other.name != fam.name {
		return fmt.Errorf("flows of %s cannot go to %s: name the old owner by an %s address on the VIP's network", vip, old, fam.word)
	}
	if vip.Unmap() == old.Unmap() {
		return fmt.Errorf("flows of %s cannot go to itself: name the old owner by an address of its own", vip)
	}
	return nil
}

func checkDeadline(until time.Time) error {
	if left := time.Until(until); left <= 0 || left > MaxKeep {
		return fmt.Errorf("keep flows for %s: want more than 0 and at most %s", left.Round(time.Second), MaxKeep)
	}
	return nil
}

// of is what is forwarded in the family now and not over.
func (f *Flows) of(fam family) map[netip.Addr]target {
	now := time.Now()
	found := map[netip.Addr]target{}
	for vip, t := range f.forwarded {
		if vip.Is4() == fam.isIPv4() && t.until.After(now) {
			found[vip] = t
		}
	}
	return found
}

// install makes the family's table hold exactly that; without anything there is no table.
func (f *Flows) install(fam family, next map[netip.Addr]target) error {
	if err := fam.write(next, time.Now()); err != nil {
		return err
	}
	f.tables[fam.name] = len(next) > 0
	maps.DeleteFunc(f.forwarded, func(vip netip.Addr, _ target) bool { return vip.Is4() == fam.isIPv4() })
	maps.Copy(f.forwarded, next)
	f.look()
	return nil
}

// link finds the interface that the old owner is on.
func (f *Flows) link(old netip.Addr) (int, error) {
	if zone := old.Zone(); zone != "" {
		l, err := f.routes.LinkByName(zone)
		if err != nil {
			return 0, fmt.Errorf("interface of the old owner %s: %w", old, err)
		}
		return l.Attrs().Index, nil
	}
	if old.IsLinkLocalUnicast() && old.Is6() {
		return 0, fmt.Errorf("the old owner %s needs the interface behind it, as in %s%%eth0", old, old)
	}
	found, err := f.routes.RouteGet(old.AsSlice())
	if err != nil {
		return 0, fmt.Errorf("route to the old owner %s: %w", old, err)
	}
	for _, r := range found {
		if r.Type == unix.RTN_LOCAL {
			return 0, fmt.Errorf("the old owner %s is this host", old)
		}
		if len(r.Gw) == 0 && r.Via == nil && r.LinkIndex > 0 {
			return r.LinkIndex, nil
		}
	}
	return 0, fmt.Errorf("old owner %s: %w: it is behind a gateway", old, ErrElsewhere)
}

// Own gives the addresses by which other hosts on the interface's network reach this one, for their Forward: the
// first IPv4 address and the link-local IPv6 one (without zone; the reader adds its own interface), else the first
// other. VIPs, and addresses that are tentative, temporary or deprecated, are left out: ask again a moment after a link came up. A family without an address has the zero one. The error is
// about the interface.
func (f *Flows) Own(iface string, vips []netip.Addr) (v4, v6 netip.Addr, err error) {
	link, err := f.routes.LinkByName(iface)
	if err != nil {
		return v4, v6, fmt.Errorf("interface %s: %w", iface, err)
	}
	list, err := f.routes.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return v4, v6, fmt.Errorf("addresses of %s: %w", iface, err)
	}
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); !ok || a.Flags&unusable != 0 || slices.Contains(vips, ip) {
			continue
		}
		switch {
		case ip.Is4() && !v4.IsValid():
			v4 = ip
		case ip.Is6() && (!v6.IsValid() || ip.IsLinkLocalUnicast() && !v6.IsLinkLocalUnicast()):
			v6 = ip
		}
	}
	return v4, v6, nil
}

// unusable addresses answer nobody yet, or not for long.
const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_TEMPORARY | unix.IFA_F_DEPRECATED

// Keep is for the old owner: it keeps the VIPs on the loopback until the deadline, at most [MaxKeep] from now,
// rounded up to a second; then the kernel takes them off by itself. Call it before the VIPs go from their interface.
// It first sees to the ARP settings of the interfaces and keeps no IPv4 VIP if it cannot: else this host would
// answer ARP for it. Calling it again changes the deadline. Each VIP costs itself only.
//
// Packets of flows that this host was still forwarding for the VIPs go on being forwarded.
func (f *Flows) Keep(vips []netip.Addr, until time.Time) error {
	if err := checkDeadline(until); err != nil {
		return err
	}
	quiet := f.quiet(vips)
	f.mu.Lock()
	defer f.mu.Unlock()
	var some []addr.Address
	for _, vip := range vips {
		if vip = vip.Unmap(); vip.Is6() || quiet == nil {
			f.kept[vip] = until
			some = append(some, addr.Address{IP: vip, Interface: loopback, Lifetime: time.Until(until)})
		}
	}
	f.look()
	return errors.Join(quiet, f.loopback.Add(some))
}

// quiet makes sure that no interface answers ARP for an address of the loopback.
func (f *Flows) quiet(vips []netip.Addr) error {
	if !slices.ContainsFunc(vips, func(vip netip.Addr) bool { return vip.Unmap().Is4() }) {
		return nil
	}
	var complaints []error
	for _, iface := range f.interfaces {
		all, err := addr.Sysctls(iface)
		complaints = append(complaints, err)
		for _, s := range all {
			if s.Err != nil && s.AboutARP() {
				complaints = append(complaints, fmt.Errorf("flows are not kept: %s", s.Complaint()))
			}
		}
	}
	return errors.Join(complaints...)
}

// apply makes the loopback hold what is kept.
func (f *Flows) apply() error {
	now := time.Now()
	var desired []addr.Address
	for vip, until := range f.kept {
		if until.After(now) {
			desired = append(desired, addr.Address{IP: vip, Interface: loopback, Lifetime: until.Sub(now)})
		} else {
			delete(f.kept, vip)
		}
	}
	slices.SortFunc(desired, func(a, b addr.Address) int { return a.IP.Compare(b.IP) })
	return f.loopback.Apply(desired)
}

// Expire ends the second chances of the VIPs now, in both roles.
func (f *Flows) Expire(vips []netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var faults []error
	for _, vip := range vips {
		delete(f.kept, vip.Unmap())
	}
	for _, fam := range families() {
		next := f.of(fam)
		before := len(next)
		for _, vip := range vips {
			delete(next, vip.Unmap())
		}
		if len(next) < before {
			faults = append(faults, f.install(fam, next))
		}
	}
	return errors.Join(append(faults, f.apply())...)
}

// Sweep removes what is over: tables without entries that a dead process left, and entries of addresses that
// expired. What has not reached its deadline goes on. Call it at the start, and never mind how the predecessor
// ended: the table changes as a whole, and an address is in the state file before it is in the kernel.
func (f *Flows) Sweep() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sweep()
}

func (f *Flows) sweep() error {
	faults := []error{f.apply()}
	now := time.Now()
	maps.DeleteFunc(f.forwarded, func(_ netip.Addr, t target) bool { return !t.until.After(now) })
	for _, fam := range families() {
		next := f.of(fam)
		if len(next) == 0 && fam.exists() {
			faults = append(faults, f.install(fam, next))
		}
	}
	return errors.Join(faults...)
}

// Clear ends all second chances, in both roles, and removes everything.
func (f *Flows) Clear() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.kept)
	clear(f.forwarded)
	return f.sweep()
}

// Status lists the second chances that go on, by address and role.
func (f *Flows) Status() []Flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	var all []Flow
	for vip, t := range f.forwarded {
		if t.until.After(now) {
			all = append(all, Flow{VIP: vip, Role: Forwarding, To: t.host, Until: t.until})
		}
	}
	for vip, until := range f.kept {
		if until.After(now) {
			all = append(all, Flow{VIP: vip, Role: Keeping, Until: until})
		}
	}
	slices.SortFunc(all, func(a, b Flow) int {
		if byVIP := a.VIP.Compare(b.VIP); byVIP != 0 {
			return byVIP
		}
		return int(a.Role) - int(b.Role)
	})
	return all
}

// slack is what the kernel may be late by: an address lives up to a second longer than asked for.
const slack = 2 * time.Second

// Run sweeps when a deadline has passed, until ctx ends. It returns nil. Nothing depends on it but tidiness.
func (f *Flows) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-timer.C:
			if err := f.Sweep(); err != nil {
				f.log.Warn("could not tidy up after forwarded flows", "err", err)
			}
		}
		if wait, pending := f.next(); pending {
			timer.Reset(wait + slack)
		}
	}
}

func (f *Flows) look() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// next is how long it is to the next deadline.
func (f *Flows) next() (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var first time.Time
	earlier := func(t time.Time) {
		if first.IsZero() || t.Before(first) {
			first = t
		}
	}
	for _, t := range f.forwarded {
		earlier(t.until)
	}
	for _, until := range f.kept {
		earlier(until)
	}
	if first.IsZero() {
		return 0, false
	}
	return max(time.Until(first), 0), true
}
