// Package addr keeps the VIPs of this host in the kernel: it turns a desired set of addresses into netlink
// requests, refreshes their lifetimes, and tells when somebody else changed an address or a link. It never
// decides who owns a VIP, announces nothing, and removes only what its state file says is its own. The
// speaker's process runs it; [Cleanup] is for whatever stops that process.
package addr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNoLink says that this host has no interface of the name.
var ErrNoLink = errors.New("no such interface")

// ErrForeign says that the interface has the address already and this package did not put it there.
var ErrForeign = errors.New("the address is there already and is not ours")

// Address is one address on one interface.
type Address struct {
	IP        netip.Addr    // unicast, without zone; an IPv4-mapped one counts as IPv4
	Bits      int           // prefix length, 1 to 32 or 128; 0 stands for the full length, which is usual for a VIP
	Interface string        // the kernel's name
	Lifetime  time.Duration // how long the kernel keeps it unless it is refreshed, rounded up to seconds; 0: for ever
}

// String writes the address as ip(8) has it, with the interface.
func (a Address) String() string {
	bits := a.Bits
	if bits == 0 {
		bits = a.IP.BitLen()
	}
	return netip.PrefixFrom(a.IP, bits).String() + " on " + a.Interface
}

// Link is the state of an interface.
type Link struct {
	Name         string
	Index        int  // changes when the interface is made anew
	Up           bool // set up, and the carrier is there
	HardwareAddr net.HardwareAddr
	MTU          int // bytes
}

// Config is what a Set needs.
type Config struct {
	StateFile string       // names what is ours; its folder must exist, best on a tmpfs: it is synced before each addition
	Log       *slog.Logger // required
}

// Set is the addresses of ours. Its methods may be called from any goroutine.
type Set struct {
	path    string
	log     *slog.Logger
	kernel  *netlink.Handle
	events  *nl.NetlinkSocket
	changes chan struct{} // capacity 1: one token is enough to look again
	closed  atomic.Bool   // the events are

	mu    sync.Mutex      // guards what follows
	owned ledger          // as in the state file
	links map[string]Link // what was last told of the interfaces that somebody asked for; Index 0: not there
}

// New reads the state file, if there is one, and opens the netlink sockets in the network namespace of the
// calling thread. A state file that cannot be read as one is moved to its name with ".refused" and told in the
// log; the addresses that it named are then somebody else's until they expire. The caller closes the Set.
func New(c Config) (*Set, error) {
	owned, err := loadOrRefuse(c.StateFile, c.Log)
	if err != nil {
		return nil, err
	}
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	events, err := subscribe()
	if err != nil {
		kernel.Close()
		return nil, err
	}
	return &Set{
		path: c.StateFile, log: c.Log, kernel: kernel, events: events,
		changes: make(chan struct{}, 1), owned: owned, links: map[string]Link{},
	}, nil
}

// Close closes the sockets. It leaves the addresses where they are: [Cleanup] and Apply(nil) remove them.
// Run ends with it.
func (s *Set) Close() {
	s.closeEvents()
	s.kernel.Close()
}

func (s *Set) closeEvents() {
	s.closed.Store(true)
	s.events.Close()
}

// Apply makes the kernel's addresses of ours equal to the desired ones: it adds (noprefixroute, and nodad for
// IPv6), refreshes lifetimes and removes what is ours and not desired. It may be called again and again; an
// address that is as desired and lives for ever costs nothing. IPv6 addresses are deprecated from the start
// (preferred lifetime 0), so that the host opens no connections of its own from a VIP.
//
// Each address costs itself only: the others are still applied, and the errors are joined. They wrap
// [ErrNoLink] for an interface that is not there and [ErrForeign] for an address that somebody else put there.
// While the state file cannot be written nothing new is added; refreshing and removing go on.
func (s *Set) Apply(desired []Address) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, err := present(s.kernel)
	if err != nil {
		return err
	}
	wanted, faults := s.place(desired, have)
	wanted, err = s.claim(wanted)
	faults = append(faults, err)
	var changed changes
	for _, w := range wanted {
		faults = append(faults, s.put(w, have, &changed))
	}
	s.await(changed.fresh)
	faults = append(faults, s.dropAllBut(wanted, have, &changed))
	changed.tell(s.log)
	return errors.Join(faults...)
}

const (
	// routePatience bounds the wait for the kernel to take packets to new IPv6 addresses, routeLook is between two looks. It
	// mostly takes less than a look; 2.7 ms were seen beside 8 CPU hogs.
	routePatience = 50 * time.Millisecond
	routeLook     = 300 * time.Microsecond
)

// await waits until the kernel takes packets to the addresses that were added. It has an IPv6 address as soon as it says so, and
// adds the route to it later, from a queue: what a neighbour sends in between, because the address was announced, is lost.
func (s *Set) await(fresh []placed) {
	timer := time.NewTimer(routePatience)
	defer timer.Stop()
	look := time.NewTicker(routeLook)
	defer look.Stop()
	for _, w := range fresh {
		for w.IP.Is6() && !s.takes(w.IP) {
			select {
			case <-look.C:
			case <-timer.C:
				s.log.Debug("the kernel takes no packets to a new address yet", "address", w.IP, "iface", w.Interface)
				return // its link may be down
			}
		}
	}
}

func (s *Set) takes(ip netip.Addr) bool {
	routes, err := s.kernel.RouteGet(ip.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// Add adds the addresses, or refreshes them, and leaves the others of ours as they are. It costs no look at all the
// kernel's addresses, so it is for callers that come with many, one after the other. The errors are those of Apply.
func (s *Set) Add(some []Address) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.owned
	wanted, faults := s.place(some, inventory{})
	wanted, err := s.claim(wanted)
	faults = append(faults, err)
	var changed changes
	for _, w := range wanted {
		err := s.add(w, before, &changed)
		if errors.Is(err, ErrForeign) && !before.has(w.entry()) {
			err = errors.Join(err, s.disclaim(w.entry()))
		}
		faults = append(faults, err)
	}
	s.await(changed.fresh)
	changed.tell(s.log)
	return errors.Join(faults...)
}

// add tries without a look, and looks if the kernel has the address already.
func (s *Set) add(w placed, before ledger, changed *changes) error {
	err := s.kernel.AddrAdd(nil, request(w))
	if err == nil {
		changed.add(w)
		return nil
	}
	if !errors.Is(err, unix.EEXIST) {
		return addError(w, err)
	}
	if before.has(w.entry()) && w.IP.Is4() {
		return addError(w, s.kernel.AddrReplace(nil, request(w)))
	}
	have, err := present(s.kernel)
	if err != nil {
		return err
	}
	if err := before.foreign(w, have); err != nil {
		return err
	}
	return s.put(w, have, changed)
}

// disclaim takes back what was written into the state file for an address that is somebody else's.
func (s *Set) disclaim(e entry) error {
	left := s.owned.copy()
	left.remove(e)
	if err := store(s.path, left); err != nil {
		return err
	}
	s.owned = left
	return nil
}

// changes is what one Apply did, for the log.
type changes struct {
	added, removed []string
	fresh          []placed // what added names
}

func (c *changes) add(w placed) {
	c.added, c.fresh = append(c.added, w.String()), append(c.fresh, w)
}

func (c changes) tell(log *slog.Logger) {
	if len(c.added)+len(c.removed) > 0 {
		log.Info("changed addresses", "added", c.added, "removed", c.removed)
	}
}

// Held lists those of ours that the kernel has, with the interface's present name and the lifetime that is left
// (at least a nanosecond, so that it is not taken for "for ever").
func (s *Set) Held() ([]Address, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, err := present(s.kernel)
	if err != nil {
		return nil, err
	}
	var held []Address
	for _, p := range have.list {
		if s.owned.owns(p) {
			held = append(held, Address{IP: p.ip, Bits: p.bits, Interface: p.iface, Lifetime: p.lifetime})
		}
	}
	return held, nil
}

// Changes gets a token when somebody else removed an address of ours, when one expired, and when an interface
// that an Address named or Link was asked for came, went, or changed its carrier, name, MTU or hardware address.
// Run must run.
func (s *Set) Changes() <-chan struct{} { return s.changes }

// Link tells the state of an interface now. The error wraps [ErrNoLink] if there is none.
func (s *Set) Link(name string) (Link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link(name)
}

func (s *Set) link(name string) (Link, error) {
	found, err := s.kernel.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		s.links[name] = Link{Name: name}
		return Link{}, fmt.Errorf("interface %s: %w", name, ErrNoLink)
	}
	if err != nil {
		return Link{}, fmt.Errorf("interface %s: %w", name, err)
	}
	l := linkOf(found.Attrs())
	s.links[name] = l
	return l, nil
}

func linkOf(a *netlink.LinkAttrs) Link {
	// The kernel sets IFF_RUNNING by the carrier and, where there is one, the supplicant (RFC 2863).
	const up = unix.IFF_UP | unix.IFF_RUNNING
	return Link{Name: a.Name, Index: a.Index, Up: a.RawFlags&up == up, HardwareAddr: a.HardwareAddr, MTU: a.MTU}
}

// placed is a desired address with the link that it belongs on.
type placed struct {
	Address
	index int
}

func (p placed) entry() entry {
	return entry{Interface: p.Interface, Index: p.index, IP: p.IP, Bits: p.Bits}
}

// spot is a place for an address: the kernel has an IPv6 address only once there.
type spot struct {
	index int
	ip    netip.Addr
}

// place checks the desired addresses and finds their links.
func (s *Set) place(desired []Address, have inventory) ([]placed, []error) {
	var wanted []placed
	var faults []error
	links := map[string]Link{}
	taken := map[spot]int{}
	for _, a := range desired {
		w, err := s.placeOne(a, links)
		if err == nil {
			err = s.owned.foreign(w, have)
		}
		if bits, twice := taken[spot{w.index, w.IP}]; err == nil && twice {
			err = fmt.Errorf("address %s on %s is asked for twice (prefix lengths %d and %d): leave one out", w.IP, w.Interface, bits, w.Bits)
		}
		if err != nil {
			faults = append(faults, err)
			continue
		}
		taken[spot{w.index, w.IP}] = w.Bits
		wanted = append(wanted, w)
	}
	return wanted, faults
}

func (s *Set) placeOne(a Address, links map[string]Link) (placed, error) {
	a, err := canonical(a)
	if err != nil {
		return placed{}, err
	}
	l, known := links[a.Interface]
	if !known {
		if l, err = s.link(a.Interface); err != nil {
			return placed{}, fmt.Errorf("address %s: %w", a.IP, err)
		}
		links[a.Interface] = l
	}
	return placed{Address: a, index: l.Index}, nil
}

func canonical(a Address) (Address, error) {
	a.IP = a.IP.Unmap()
	switch {
	case !a.IP.IsValid():
		return a, errors.New("an address without an IP was asked for")
	case a.IP.Zone() != "":
		return a, fmt.Errorf("address %s: name the interface apart from the address, without %%%s", a.IP, a.IP.Zone())
	case a.IP.IsUnspecified() || a.IP.IsMulticast() || a.IP.IsLoopback():
		return a, fmt.Errorf("address %s: a VIP is a unicast address that other hosts can reach", a.IP)
	case a.Bits < 0 || a.Bits > a.IP.BitLen():
		return a, fmt.Errorf("address %s: prefix length %d, want 1 to %d, or none", a.IP, a.Bits, a.IP.BitLen())
	case a.Lifetime < 0 || a.Lifetime > maxLifetime:
		return a, fmt.Errorf("address %s: lifetime %s, want 0 to %s", a.IP, a.Lifetime, maxLifetime)
	case a.Bits == 0:
		a.Bits = a.IP.BitLen()
	}
	return a, nil
}

// claim writes into the state file what will be added. What cannot be claimed is left out of the result.
func (s *Set) claim(wanted []placed) ([]placed, error) {
	claimed := s.owned.copy()
	var old []placed
	for _, w := range wanted {
		if s.owned.has(w.entry()) {
			old = append(old, w)
			continue
		}
		claimed.add(w.entry())
	}
	if len(old) == len(wanted) {
		return wanted, nil
	}
	if err := store(s.path, claimed); err != nil {
		return old, fmt.Errorf("nothing is added while the state file cannot be written: %w", err)
	}
	s.owned = claimed
	return wanted, nil
}

// put adds the address, or refreshes it.
func (s *Set) put(w placed, have inventory, changed *changes) error {
	there, ok := have.find(w)
	if ok && w.Lifetime == 0 && there.lifetime == 0 {
		return nil
	}
	if err := s.makeRoom(w, have, changed); err != nil {
		return err
	}
	err := s.kernel.AddrReplace(nil, request(w))
	if err == nil && !ok {
		changed.add(w)
	}
	return addError(w, err)
}

// addError says what the kernel did not like; nil stays nil.
func addError(w placed, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EACCES) && w.IP.Is6():
		return fmt.Errorf("add %s: IPv6 is off on the interface (%s): %w", w, command("net/ipv6/conf/"+w.Interface+"/disable_ipv6", "0"), err)
	}
	return fmt.Errorf("add %s: %w", w, err)
}

// makeRoom takes an IPv6 address of ours off that has another prefix length: the kernel has an IPv6 address
// only once on an interface, whatever its prefix length.
func (s *Set) makeRoom(w placed, have inventory, changed *changes) error {
	if w.IP.Is4() {
		return nil
	}
	var faults []error
	for _, p := range have.byIP[w.IP] {
		if p.index == w.index && p.bits != w.Bits {
			faults = append(faults, s.remove(p, changed))
		}
	}
	return errors.Join(faults...)
}

// dropAllBut removes what is ours and not wanted, from the kernel first and then from the state file.
func (s *Set) dropAllBut(wanted []placed, have inventory, changed *changes) error {
	keep := map[entry]bool{}
	for _, w := range wanted {
		keep[w.entry()] = true
	}
	left := ledger{}
	gone := false
	var faults []error
	for _, e := range s.owned.list() {
		if !keep[e] {
			err := s.drop(e, keep, have, changed)
			faults = append(faults, err)
			if err == nil {
				gone = true
				continue
			}
		}
		left.add(e)
	}
	if gone {
		s.owned = left
		// A state file that names too much is harmless: what it names is looked up in the kernel.
		faults = append(faults, store(s.path, left))
	}
	return errors.Join(faults...)
}

func (s *Set) drop(e entry, keep map[entry]bool, have inventory, changed *changes) error {
	var faults []error
	for _, p := range have.byIP[e.IP] {
		if e.names(p) && !keep[p.entry()] {
			faults = append(faults, s.remove(p, changed))
		}
	}
	if have.partial && !keepsAt(keep, e) {
		// It may be there and not be listed. If it is not, to remove it is no error.
		faults = append(faults, removeAddress(s.kernel, e.asKernel()))
	}
	return errors.Join(faults...)
}

// keepsAt says whether what is kept is the same address of the kernel under another name of its interface.
func keepsAt(keep map[entry]bool, e entry) bool {
	for k := range keep {
		if k.Index == e.Index && k.IP == e.IP && k.Bits == e.Bits {
			return true
		}
	}
	return false
}

func (s *Set) remove(p kernelAddress, changed *changes) error {
	err := removeAddress(s.kernel, p)
	if err == nil {
		changed.removed = append(changed.removed, p.String())
	}
	return err
}

// Cleanup removes all addresses that the state file names, and then the file. It is for systemd's ExecStopPost
// and needs no Set. Without a state file there is nothing to do. What fails stays in the file.
func Cleanup(stateFile string) error {
	owned, err := load(stateFile)
	if err != nil {
		return err
	}
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer kernel.Close()
	have, err := present(kernel)
	if err != nil {
		return err
	}
	var faults []error
	for _, p := range have.list {
		if owned.owns(p) {
			faults = append(faults, removeAddress(kernel, p))
		}
	}
	for _, e := range owned.list() {
		if have.partial {
			faults = append(faults, removeAddress(kernel, e.asKernel()))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	return forget(stateFile)
}

func removeAddress(kernel *netlink.Handle, p kernelAddress) error {
	err := kernel.AddrDel(nil, &netlink.Addr{IPNet: p.ipNet(), LinkIndex: p.index})
	// It went by itself in the meantime, or its link did.
	if err == nil || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return fmt.Errorf("remove %s: %w", p, err)
}

// maxLifetime is the kernel's: seconds in 32 bits, the highest of which means for ever.
const maxLifetime = (math.MaxUint32 - 1) * time.Second

// forever is the kernel's INFINITY_LIFE_TIME.
const forever = math.MaxUint32

func request(w placed) *netlink.Addr {
	a := &netlink.Addr{
		IPNet:     &net.IPNet{IP: w.IP.AsSlice(), Mask: net.CIDRMask(w.Bits, w.IP.BitLen())},
		LinkIndex: w.index,
		Flags:     unix.IFA_F_NOPREFIXROUTE,
		ValidLft:  forever,
	}
	if w.Lifetime > 0 {
		a.ValidLft = int((w.Lifetime + time.Second - 1) / time.Second)
	}
	if w.IP.Is6() {
		a.Flags |= unix.IFA_F_NODAD
		return a
	}
	// For IPv4 "deprecated" changes nothing but what ip addr shows.
	a.PreferedLft = a.ValidLft
	return a
}

// Run reads what the kernel tells of addresses and links, until ctx ends or the Set is closed. It returns nil
// then, and an error if the socket breaks.
func (s *Set) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.closeEvents)
	defer stop()
	return s.listen()
}
