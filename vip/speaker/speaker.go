// Package speaker owns VIPs: it turns what peers, the proxy and the kernel say into addresses that are on or off on
// this host. All of it is decided in one goroutine by a state machine (Init, Backup, Active for each VIP) that reads
// no clock of its own, so that the simulation of its tests runs the very code that a host runs. It knows neither
// netlink nor sockets: the kernel, the wire and the peers are interfaces that cmd/vip fills.
//
// The rules, in short:
//
//   - A VIP has one owner, and the owner alone decides to give it away: it offers the VIP to a successor, which takes
//     it (address on, announced, told) before the owner lets go. No connection is refused.
//   - Whoever takes a VIP does it with a higher term than any it has heard of. Of two owners the lower term lets go
//     at once; equal terms are resolved by rank.
//   - A VIP whose owner fell silent is taken only when nobody answers a probe for it (RFC 5227). The probe begins when
//     the owner is quiet, so that the verdict does not have to wait for it. A crash that is proven, or the owner's own
//     word that it let go, needs no probe.
//   - The kernel forgets an address that this goroutine no longer refreshes. While no peer could take over, it
//     remembers it for a minute, and a stop leaves it there for the next start to adopt.
package speaker

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"headgate/vip/election"
)

// Address is one address of a VIP on an interface of this host.
type Address struct {
	IP        netip.Addr
	Bits      int // length of the prefix; 32 or 128 adds no route
	Interface string
}

// Link is the state of an interface.
type Link struct {
	Up           bool // administratively up and with a carrier
	HardwareAddr net.HardwareAddr
}

// Kernel keeps addresses. Its methods are called from the goroutine of Run only.
type Kernel interface {
	// Apply makes the kernel hold exactly these of our addresses, each for lifetime from now on.
	Apply(desired []Address, lifetime time.Duration) error
	// Held gives those of our addresses that the kernel has.
	Held() ([]Address, error)
	// Link tells how an interface is; an error is as good as down.
	Link(name string) (Link, error)
}

// Wire speaks ARP and NDP. Probe is called from goroutines of its own, the others from that of Run.
type Wire interface {
	// Announce tells the neighbours that the address is here.
	Announce(a Address) error
	// Watch names the addresses whose announcements by others are conflicts.
	Watch(addresses []Address)
	// Probe asks who has the address; false means that nobody answered within 40 ms.
	Probe(ctx context.Context, a Address) (net.HardwareAddr, bool, error)
}

// Publisher brings this host's state, at most MaxMessageBytes, to all peers: at once, and with every heartbeat. It
// must not block.
type Publisher interface {
	Publish(state []byte)
}

// PeerKind says what happened to a peer.
type PeerKind int

// The kinds of PeerEvent.
const (
	PeerHeard   PeerKind = iota // it lives; State holds what it published, or nil if that did not change
	PeerSilent                  // nothing was heard of it for too long, on any way
	PeerCrashed                 // its speaker ended without a word: proven, while its host answers
	PeerGone                    // it is no member any more
	PeerQuiet                   // nothing was heard of it for almost as long as PeerSilent takes; it may follow, or not
)

// PeerEvent is news of a peer. The sender vouches for it: a state is that of the process that lives now, not of one
// before it, and not replayed. States of one process may overtake each other.
type PeerEvent struct {
	Host   election.Host
	Kind   PeerKind
	State  []byte // kept by the speaker; the sender changes it no more
	Reason string // for people
}

// Conflict tells that somebody else announced one of our addresses.
type Conflict struct {
	IP           netip.Addr
	HardwareAddr net.HardwareAddr
}

// Health tells whether the proxy can serve.
type Health struct {
	Ready  bool
	Why    Lack   // of a proxy that is not ready
	Reason string // for people: why not, or what is served
}

// Lack is why a proxy is not ready. It decides what becomes of a VIP that no other host can serve either.
type Lack int

// The lacks.
const (
	Forbidden Lack = iota // this host must not serve, whatever its proxy can: the VIP is given up
	Dead                  // it serves nobody for sure: the VIP stays, unless a host of which nothing is heard might serve it
	Silent                // it says nothing in time; on a busy machine it may serve: the VIP stays
)

// VIP is one or more addresses that are elected and move together.
type VIP struct {
	// Name is the same on all hosts and unique; the first address is a good one.
	Name      string
	Addresses []Address
	// Priority of this host for the VIP, 1–254; 0 is election.DefaultPriority.
	Priority uint8
	// NoPreempt leaves the VIP with its owner when a better host comes back.
	NoPreempt bool
	// PreemptDelay is how long a better host must have been ready; 0 is at once.
	PreemptDelay time.Duration
}

// Config is what a Speaker works with; Host, Kernel, Wire, Publisher and Log are required.
type Config struct {
	Host election.Host
	VIPs []VIP // at most MaxVIPs
	// Peers is how many other hosts are expected. The speaker looks around before its first claim, and no longer
	// than until this many are ready; 0 means that this host is alone.
	Peers    int
	Draining bool // begin as after Drain
	Timing   Timing

	Kernel    Kernel
	Wire      Wire
	Publisher Publisher
	Log       *slog.Logger
	// Observe is called for each transition, in their order, from the goroutine of Run: it must not block. nil: nobody.
	Observe func(Transition)

	PeerEvents    <-chan PeerEvent
	Conflicts     <-chan Conflict
	Health        <-chan Health
	KernelChanged <-chan struct{} // an address or a link changed
}

// Timing are the speaker's times; a zero one gets its default.
type Timing struct {
	Lifetime     time.Duration // of an address while a peer could take over: 2 s (the kernel keeps it up to 0.3 s longer)
	Lasting      time.Duration // of an address while no peer could: 60 s
	Settle       time.Duration // looking around after the start, before the first claim: 400 ms
	OfferTimeout time.Duration // a successor that does not take over within it is passed over: 1 s
	StopTimeout  time.Duration // for handing everything over at the end: 3 s
}

func (t Timing) withDefaults() Timing {
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&t.Lifetime, 2 * time.Second},
		{&t.Lasting, time.Minute},
		{&t.Settle, 400 * time.Millisecond},
		{&t.OfferTimeout, time.Second},
		{&t.StopTimeout, 3 * time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.standard
		}
	}
	return t
}

// Speaker runs the state machine. Its methods but Run may be called from any goroutine.
type Speaker struct {
	machine  *machine
	config   Config
	commands chan command
	results  chan probeResult
	status   atomic.Pointer[Status]
	ended    chan struct{}
}

// command is something that the administrator asks for; do runs in the goroutine of Run.
type command struct {
	do   func(now time.Time) error
	done chan error // capacity 1: whoever asked may be gone
}

// New makes a speaker; it starts nothing. The error names what of c cannot be used.
func New(c Config) (*Speaker, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.Timing = c.Timing.withDefaults()
	s := &Speaker{config: c, commands: make(chan command), results: make(chan probeResult), ended: make(chan struct{})}
	s.machine = newMachine(c, randomBoot())
	return s, nil
}

func randomBoot() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return binary.BigEndian.Uint64(b[:])
}

func (c Config) check() error {
	if c.Host == "" || c.Kernel == nil || c.Wire == nil || c.Publisher == nil || c.Log == nil {
		return errors.New("a speaker needs a host, a kernel, a wire, a publisher and a log")
	}
	if len(c.VIPs) > MaxVIPs {
		return fmt.Errorf("%d VIPs are too many, at most %d are elected one by one: let addresses move together", len(c.VIPs), MaxVIPs)
	}
	names := map[uint32]string{}
	owners := map[netip.Addr]string{}
	for _, v := range c.VIPs {
		if other, taken := names[vipID(v.Name)]; taken {
			return fmt.Errorf("VIP %q cannot be told from %q: name it otherwise", v.Name, other)
		}
		names[vipID(v.Name)] = v.Name
		if len(v.Addresses) == 0 {
			return fmt.Errorf("VIP %q has no address", v.Name)
		}
		for _, a := range v.Addresses {
			if other, taken := owners[a.IP]; taken {
				return fmt.Errorf("VIP %q and VIP %q have the address %s: leave it in one", other, v.Name, a.IP)
			}
			owners[a.IP] = v.Name
		}
	}
	return nil
}

// The longest time that the loop sleeps, so that a gap tells that the process was stopped or starved.
const maxSleep = 100 * time.Millisecond

// Run owns the VIPs until ctx ends; then it hands them over and returns, after StopTimeout at the latest. The peers,
// the wire and the kernel must live until it has returned. It returns no error: what goes wrong is logged and tried again.
func (s *Speaker) Run(ctx context.Context) error {
	defer close(s.ended)
	var probes sync.WaitGroup
	defer probes.Wait()
	probing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	s.machine.probe = func(p probe) {
		probes.Go(func() {
			result := p.ask(probing, s.config.Wire)
			select {
			case s.results <- result:
			case <-probing.Done():
			}
		})
	}
	s.machine.begin(time.Now())
	stop := ctx.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-stop:
			stop = nil
			s.machine.stop(time.Now())
		case e := <-s.config.PeerEvents:
			s.machine.peerEvent(time.Now(), e)
		case c := <-s.config.Conflicts:
			s.machine.conflict(time.Now(), c)
		case h := <-s.config.Health:
			s.machine.setHealth(h)
		case <-s.config.KernelChanged:
			s.machine.kernelChanged()
		case r := <-s.results:
			s.machine.probed(time.Now(), r)
		case c := <-s.commands:
			c.done <- c.do(time.Now())
		case <-timer.C:
		}
		now := time.Now()
		next := s.machine.step(now)
		status := s.machine.snapshot(now)
		s.status.Store(&status)
		if s.machine.stopped {
			return nil
		}
		timer.Reset(min(next.Sub(now), maxSleep))
	}
}

// errEnded tells that a command came after the end of Run.
var errEnded = errors.New("the VIP speaker has stopped")

func (s *Speaker) order(ctx context.Context, do func(now time.Time) error) error {
	c := command{do, make(chan error, 1)}
	select {
	case s.commands <- c:
		return <-c.done
	case <-s.ended:
		return errEnded
	case <-ctx.Done():
		return fmt.Errorf("ask the VIP speaker: %w", ctx.Err())
	}
}

// Drain gives all VIPs to other hosts and takes none for as long as another host can serve it.
func (s *Speaker) Drain(ctx context.Context) error {
	return s.order(ctx, func(time.Time) error { s.machine.draining = true; return nil })
}

// Undrain ends Drain, and makes this host a candidate again for the VIPs that Release gave up.
func (s *Speaker) Undrain(ctx context.Context) error {
	return s.order(ctx, func(time.Time) error { s.machine.undrain(); return nil })
}

// Move asks the owner of a VIP, this host or another, to give it to a host, which then keeps it for as long as it can
// serve it. It returns once that is asked for; Status tells how it went. The error says why it cannot be asked for.
func (s *Speaker) Move(ctx context.Context, vip string, to election.Host) error {
	return s.order(ctx, func(now time.Time) error { return s.machine.move(now, vip, to) })
}

// Release gives a VIP up, to another host if one can serve it, else to nobody. This host is no candidate for it until
// Undrain, a Move to it, or the next start.
func (s *Speaker) Release(ctx context.Context, vip string) error {
	return s.order(ctx, func(time.Time) error { return s.machine.release(vip) })
}

// Status gives the newest account; it is never changed afterwards. Before Run begins it is empty.
func (s *Speaker) Status() Status {
	if status := s.status.Load(); status != nil {
		return *status
	}
	return Status{Host: s.config.Host}
}

// saturating adds one and stays at the end of the range: a term never wraps around.
func saturating(term uint32) uint32 {
	if term == math.MaxUint32 {
		return term
	}
	return term + 1
}
