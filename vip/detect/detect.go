// Package detect tells whether the other hosts of a VIP live, and carries an opaque state between them.
//
// Three detectors run side by side: a TCP session to each peer, a broadcast heartbeat on the link (EtherType 0x88B5,
// IEEE 802 local experimental; it needs no ARP and passes host firewalls), and a unicast heartbeat by UDP. A crash is
// proven by the end of the session (FIN or RST) plus a redial that is refused or closed before its greeting, plus a
// challenge over the other detectors that nobody answers; it takes milliseconds. Everything else is silence, and
// only the silence of all detectors counts.
//
// Every packet is authenticated. A process draws a random incarnation at its start, and its packets carry a counter that only
// rises. A peer believes an incarnation only after it has sent back a nonce that the peer drew a moment before, and
// after a verdict of death it believes nothing but such an answer again: recordings prove nothing.
//
// The package says what it sees. What follows from it is the caller's.
package detect

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Config of a Detector. Host, Keys and Listen must be given.
type Config struct {
	// Host is the name of this host: 1 to MaxHost letters, digits, '.', '-' and '_', no other host may have it.
	Host string
	// Keys are secrets of 16 bytes or more, the same on all hosts: the first is used for what is sent, all are accepted.
	Keys [][]byte
	// Listen is the address of the TCP sessions and of the UDP heartbeats. A given address is also the source of
	// what is sent, so that no VIP becomes it. Port 0 lets the kernel choose (tests).
	Listen netip.AddrPort
	// Interfaces are those with a link heartbeat, by name; they may be missing, down, or come later. Empty: none.
	Interfaces []string
	// Interval is the time between two heartbeats: 10 ms to 10 s. 0: 50 ms where the process runs under a
	// real-time scheduler (sched(7)), 100 ms elsewhere; faster ones were seen to misfire under load.
	Interval time.Duration
	// Misses is how many intervals all detectors must be quiet until a host counts as silent: 2 to 100. 0: 3.
	Misses int
	// Confirm is how long a host whose session ended and that refused the redial has to answer a challenge on the
	// other detectors: 1 ms to 1 s. 0: 5 ms.
	Confirm time.Duration
	// Log takes transitions. nil: discarded.
	Log *slog.Logger
}

const (
	realTimeInterval = 50 * time.Millisecond
	normalInterval   = 100 * time.Millisecond
	defaultMisses    = 3
	defaultConfirm   = 5 * time.Millisecond
)

func (c Config) withDefaults() Config {
	if c.Interval == 0 {
		c.Interval = normalInterval
		if realTime() {
			c.Interval = realTimeInterval
		}
	}
	if c.Misses == 0 {
		c.Misses = defaultMisses
	}
	if c.Confirm == 0 {
		c.Confirm = defaultConfirm
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) check() error {
	switch {
	case !validHost(c.Host):
		return fmt.Errorf("host %q: write 1 to %d letters, digits, '.', '-' or '_'", c.Host, MaxHost)
	case !c.Listen.IsValid():
		return errors.New("listen: write an address and a port, such as 10.0.0.1:7947")
	case c.Interval < 10*time.Millisecond || c.Interval > 10*time.Second:
		return fmt.Errorf("interval %v: write 10ms to 10s", c.Interval)
	case c.Misses < 2 || c.Misses > 100:
		return fmt.Errorf("misses %d: write 2 to 100", c.Misses)
	case c.Confirm < time.Millisecond || c.Confirm > time.Second:
		return fmt.Errorf("confirm %v: write 1ms to 1s", c.Confirm)
	}
	return nil
}

// Peer is another host and where its detector listens.
type Peer struct {
	Host    string
	Address netip.AddrPort
}

// Detector watches the peers. All methods may be called from any goroutine.
type Detector struct {
	cfg         Config
	incarnation uint64
	counter     atomic.Uint64
	keys        atomic.Pointer[keyring]
	state       atomic.Pointer[[]byte]
	wanted      atomic.Pointer[[]Peer]

	listener  *net.TCPListener
	udp       *net.UDPConn
	strangers *strangers
	answers   *limiter

	do        chan func(time.Time) // capacity 0: work for the goroutine that owns the rest
	done      chan struct{}        // closed when that goroutine has ended
	published chan struct{}        // capacity 1: the newest state is read when it is sent
	peersSet  chan struct{}        // capacity 1: likewise
	events    chan Event           // capacity 0: what nobody took yet waits in the judge, where states coalesce
	closeOnce sync.Once

	mu    sync.Mutex // guards judge, for Status
	judge *judge

	// Owned by Run's goroutine.
	peers    map[string]*remote
	sessions map[*session]struct{}
	links    []*link
	udpOut   *outbox
}

// New opens the listeners; a port that is taken is an error that names it. Run closes them, or Close where Run is
// never called.
func New(cfg Config) (*Detector, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("detectors: %w", err)
	}
	ring, err := newKeyring(cfg.Keys)
	if err != nil {
		return nil, fmt.Errorf("detectors: %w", err)
	}
	cfg.Keys = nil
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	d := &Detector{
		cfg: cfg, incarnation: binary.BigEndian.Uint64(random[:]) | 1, // 0 stands for none
		strangers: newStrangers(cfg.Log), answers: &limiter{},
		do: make(chan func(time.Time)), done: make(chan struct{}), published: make(chan struct{}, 1), peersSet: make(chan struct{}, 1), events: make(chan Event),
		peers: map[string]*remote{}, sessions: map[*session]struct{}{}, udpOut: newOutbox(),
	}
	d.keys.Store(&ring)
	d.state.Store(&[]byte{})
	d.wanted.Store(&[]Peer{})
	d.judge = newJudge(rules{self: cfg.Host, incarnation: d.incarnation, interval: cfg.Interval, misses: cfg.Misses, confirm: cfg.Confirm}, time.Now())
	for _, name := range cfg.Interfaces {
		d.links = append(d.links, newLink(name))
		d.judge.detectors = append(d.judge.detectors, linkVia(name))
	}
	if err := d.listen(); err != nil {
		return nil, fmt.Errorf("detectors: %w", err)
	}
	return d, nil
}

// Address is where the detector listens.
func (d *Detector) Address() netip.AddrPort {
	return d.listener.Addr().(*net.TCPAddr).AddrPort() //nolint:forcetypeassert // a *net.TCPListener has no other
}

// Close closes the listeners of a Detector that is not run.
func (d *Detector) Close() error {
	var err error
	d.closeOnce.Do(func() { err = errors.Join(d.listener.Close(), d.udp.Close()) })
	return err
}

// SetPeers says whom to watch from now on. A peer that is no longer named is forgotten without an event; this
// host itself is left out. Names that are not valid and addresses without a port are an error, and change nothing.
func (d *Detector) SetPeers(peers []Peer) error {
	var list []Peer
	for _, p := range peers {
		if !validHost(p.Host) {
			return fmt.Errorf("peer %q: not a valid host name", p.Host)
		}
		if !p.Address.IsValid() || p.Address.Port() == 0 {
			return fmt.Errorf("peer %s: address %s: write an address and a port", p.Host, p.Address)
		}
		if p.Host != d.cfg.Host {
			list = append(list, p)
		}
	}
	d.wanted.Store(&list)
	poke(d.peersSet)
	return nil
}

// SetKeys replaces the keys at once: the first is used for what is sent, all are accepted. It does not block. A
// rotation without a gap adds the new key behind the old one on all hosts, then puts it first on all, then drops the old.
func (d *Detector) SetKeys(secrets [][]byte) error {
	ring, err := newKeyring(secrets)
	if err != nil {
		return fmt.Errorf("detectors: %w", err)
	}
	d.keys.Store(&ring)
	return nil
}

// Publish sets the state that the peers get: at once, and with each heartbeat from now on. It copies the bytes and does
// not block; of several in a row only the last may arrive. More than MaxState bytes are an error.
func (d *Detector) Publish(state []byte) error {
	if len(state) > MaxState {
		return fmt.Errorf("state of %d bytes: at most %d", len(state), MaxState)
	}
	state = slices.Clone(state)
	d.state.Store(&state)
	poke(d.published)
	return nil
}

// Events tells what changed. A slow reader misses no verdict, but of several states of a host only the newest.
// The channel is never closed.
func (d *Detector) Events() <-chan Event { return d.events }

// Interval is the time between two heartbeats, with the default applied.
func (d *Detector) Interval() time.Duration { return d.cfg.Interval }

// Status tells how the detectors see each peer, by host.
func (d *Detector) Status() []PeerStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.judge.status()
}

// Stalls is how often this process was found to have been stalled; judging paused after each.
func (d *Detector) Stalls() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.judge.stalls
}

// Strangers lists whose packets were not believed and why, newest last; at most maxStrangers are kept.
func (d *Detector) Strangers() []Stranger { return d.strangers.list() }

// Run sends, listens and judges until ctx ends; then it says farewell, and returns when all that it started has ended.
// It returns nil, or why the listeners failed.
func (d *Detector) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	failed := make(chan error, 2) // one for each listener, so that none waits
	running.Go(func() { failed <- d.accept(ctx, &running) })
	running.Go(func() { failed <- d.receiveUDP(ctx) })
	running.Go(func() { d.sendUDP(ctx) })
	for _, l := range d.links {
		running.Go(func() { d.runLink(ctx, l) })
	}
	err := d.own(ctx, failed, &running)
	close(d.done)
	d.sayFarewell()
	cancel()
	closing := d.Close()
	running.Wait()
	return errors.Join(err, closing)
}

// own is the goroutine that owns peers and sessions.
func (d *Detector) own(ctx context.Context, failed <-chan error, running *sync.WaitGroup) error {
	tick := time.NewTicker(d.cfg.Interval / ticksPerInterval)
	defer tick.Stop()
	deadline := time.NewTimer(time.Hour)
	defer deadline.Stop()
	var beaten time.Time
	d.judge.resume(time.Now())
	for {
		var out chan Event
		var next Event
		if len(d.judge.out) > 0 {
			out, next = d.events, d.judge.out[0]
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case out <- next:
			d.judged(func(j *judge) { j.taken() })
		case f := <-d.do:
			f(time.Now())
		case <-d.published:
			d.sendAll(letter{kind: beat})
		case <-d.peersSet:
			d.setPeers(ctx, running)
		case <-deadline.C:
			d.judged(func(j *judge) { j.tick(time.Now()) })
		case <-tick.C:
			now := time.Now()
			d.judged(func(j *judge) { j.tick(now) })
			if now.Sub(beaten) >= d.cfg.Interval-d.cfg.Interval/(2*ticksPerInterval) {
				beaten = now
				d.sendAll(letter{kind: beat})
			}
		}
		d.act(deadline)
	}
}

// ticksPerInterval is how often the judge looks in an interval.
const ticksPerInterval = 4

func (d *Detector) judged(f func(*judge)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d.judge)
}

// act does what the judge asks for: challenges, lines in the log, a look at the right time.
func (d *Detector) act(deadline *time.Timer) {
	j := d.judge // only this goroutine writes it
	for _, a := range j.asks {
		d.sendTo(a.host, letter{kind: challenge, nonce: a.nonce, to: a.host})
	}
	j.asks = j.asks[:0]
	for ; j.logged < len(j.out); j.logged++ {
		d.tell(j.out[j.logged])
	}
	if at, ok := j.due(); ok {
		deadline.Reset(max(time.Until(at), 0))
	}
}

func (d *Detector) tell(e Event) {
	log := d.cfg.Log.With("peer", e.Host, "verdict", e.Kind.String(), "reason", e.Reason)
	switch e.Kind {
	case State, Quiet: // neither changes anything yet
	case Crashed, Silent, Clash:
		log.Warn("peer judged")
	case Up, Left:
		log.Info("peer judged")
	case Lost:
		log.Warn("detector lost: the peer is judged by the others", "detector", string(e.Detector))
	case Regained:
		log.Info("detector regained", "detector", string(e.Detector))
	}
}

// post hands work to the owner; it is dropped when the detector stops.
func (d *Detector) post(f func(time.Time)) {
	select {
	case d.do <- f:
	case <-d.done:
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
