// Package health keeps what is known of the peers' health equal to their health: it asks each peer of an upstream that
// wants checks, over HTTP, HTTPS or TCP, and turns the answers into verdicts (snapshot.Verdict). It asks the addresses that
// a build has let through and no others, follows no redirect, and decides nothing about traffic: build sets Peer.Down, and
// the proxy uses all peers of an upstream when all are down.
//
// The checker is run by cmd; the loop calls Want after a build and puts Verdicts into the next snapshot.
package health

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"headgate/gateway/build"
	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

const (
	defaultConcurrency = 512
	// firstWithin is the time in which peers that are new are asked first, however long their interval is.
	firstWithin = 10 * time.Second
	// again is when a check that said nothing of the peer is made again.
	again = time.Second
	// longStall is when so much has become due that it must be spread out again.
	longStall = time.Second
	// jitter keeps checks that fell together from staying together: an interval is longer or shorter by up to so much.
	jitter = 0.05
)

// Config says how to check. The zero value works.
type Config struct {
	// Concurrency is the number of checks at the same time; 0 means 512. With none free, checks are late: 10,000 peers at
	// 10 s that all run into a time-out of 1 s would need 1,000.
	Concurrency int
	// Logger gets a line when the verdict on a peer changes; nil discards.
	Logger *slog.Logger
}

// Checker checks the wanted peers. Its methods may be called from any goroutine.
type Checker struct {
	concurrency int
	log         *slog.Logger
	ask         func(ctx context.Context, address netip.AddrPort, p *policy) error

	changed   chan struct{} // capacity 1: a signal, not a queue
	wake      chan struct{} // capacity 1: the newest wanted set counts
	published atomic.Pointer[[]snapshot.Verdict]
	stats     atomic.Pointer[Stats]

	mu     sync.Mutex // guards wanted
	wanted []build.Check
}

// Stats are the numbers of a Checker.
type Stats struct {
	// Up, Down and Unknown count peers that are checked; one that two upstreams check in the same way counts once.
	Up, Down, Unknown int
	// Running checks at this moment, and Late: by how much the one that waits longest is behind its time.
	Running int
	Late    time.Duration
	// Succeeded, Failed and Void checks since the start. Void ones say nothing of the peer: this process did not run, or this
	// host had no means.
	Succeeded, Failed, Void uint64
	// WentDown and CameUp count changes of verdicts.
	WentDown, CameUp uint64
}

// New makes a Checker; it asks nothing before Run.
func New(config Config) *Checker {
	c := &Checker{
		concurrency: config.Concurrency, log: config.Logger, ask: newWire().check,
		changed: make(chan struct{}, 1), wake: make(chan struct{}, 1),
	}
	if c.concurrency <= 0 {
		c.concurrency = defaultConcurrency
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.published.Store(&[]snapshot.Verdict{})
	c.stats.Store(&Stats{})
	return c
}

// Want sets the checks to be run, replacing the former set; the state of what stays is kept. It never blocks. The
// caller does not change checks afterwards.
func (c *Checker) Want(checks []build.Check) {
	c.mu.Lock()
	c.wanted = checks
	c.mu.Unlock()
	signal(c.wake)
}

// Changed gets a value after Verdicts began to say something else.
func (c *Checker) Changed() <-chan struct{} { return c.changed }

// Verdicts are those on the peers that are down, sorted by upstream and address. All others are well, or not yet known
// not to be. The caller must not change the slice; while nothing changes it is the same one.
func (c *Checker) Verdicts() []snapshot.Verdict { return *c.published.Load() }

// Stats gives the newest numbers.
func (c *Checker) Stats() Stats { return *c.stats.Load() }

// outcome is one finished check on its way to the owner goroutine.
type outcome struct {
	probe   *probe
	failure error
	stalled time.Duration // stalls.total when it began
}

// work is the state of Run; one goroutine owns it.
type work struct {
	*Checker
	probes  map[key]*probe
	watched map[model.UpstreamID]*watch
	queue   queue
	stalls  stalls
	running int
	results chan outcome
	now     Stats
	dirty   bool // the verdicts are to be published
	told    teller
	helped  bool // the lack of means was told
	tasks   sync.WaitGroup
}

// watch is one upstream that is checked.
type watch struct {
	check  build.Check
	policy *policy // nil: it cannot be run
	probes []*probe
}

// Run checks until ctx ends, and returns nil then: at once, whatever time-outs run. It must run at most once.
func (c *Checker) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	w := &work{
		Checker: c, probes: map[key]*probe{}, watched: map[model.UpstreamID]*watch{}, results: make(chan outcome),
		told: teller{log: c.log},
	}
	defer w.tasks.Wait()
	defer cancel()
	beat := time.NewTicker(pulse)
	defer beat.Stop()
	for {
		if len(w.probes) == 0 {
			beat.Stop() // an idle daemon sleeps
			w.stalls.pause()
		} else {
			w.start(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
			w.adopt(beat)
		case <-beat.C:
			w.beat()
		case done := <-w.results:
			w.running--
			w.take(done)
		}
	}
}

// beat looks at the clock and publishes what is new.
func (w *work) beat() {
	now := time.Now()
	if missed := w.stalls.look(now); missed > longStall {
		w.log.Debug("this process did not run", "for", missed)
		w.spread(now)
	}
	w.told.beat(now)
	if w.dirty {
		w.publish()
	}
	w.tellStats(now)
}

func (w *work) tellStats(now time.Time) {
	s := w.now
	s.Running = w.running
	if len(w.queue) > 0 {
		s.Late = max(0, now.Sub(w.queue[0].due))
	}
	w.stats.Store(&s)
}

// spread keeps what became due while this process did not run from being asked in one moment.
func (w *work) spread(now time.Time) {
	for p := w.queue.next(now); p != nil; p = w.queue.next(now) {
		p.due = now.Add(1 + upTo(min(p.policy.Interval, firstWithin)))
		w.queue.add(p)
	}
}

// start begins what is due, the longest overdue first, as far as there is room.
func (w *work) start(ctx context.Context) {
	now := time.Now()
	for w.running < w.concurrency {
		p := w.queue.next(now)
		if p == nil {
			return
		}
		p.running = true
		w.running++
		stalled := w.stalls.total
		w.tasks.Go(func() {
			failure := w.ask(ctx, p.address, p.policy)
			select {
			case w.results <- outcome{p, failure, stalled}:
			case <-ctx.Done():
			}
		})
	}
}

// take counts the outcome of a check, and sets the time of the next one.
func (w *work) take(done outcome) {
	p := done.probe
	p.running = false
	if len(p.users) == 0 || errors.Is(done.failure, errShutdown) {
		return // nobody wants to know any more
	}
	now := time.Now()
	w.stalls.look(now)
	switch {
	case done.failure == nil:
		w.now.Succeeded++
		w.judge(p, nil)
	case w.stalls.voids(done.stalled, p.policy.Timeout), w.lacksMeans(done.failure):
		w.now.Void++
		p.due = now.Add(upTo(min(again, p.policy.Interval)))
		w.queue.add(p)
		return
	default:
		w.now.Failed++
		w.judge(p, done.failure)
	}
	p.due = now.Add(p.wait())
	w.queue.add(p)
}

// wait is the time to the next check. Of a long interval, the second one falls anywhere within it: from then on the peers
// are spread evenly, although all were asked soon at first.
func (p *probe) wait() time.Duration {
	if p.asked == 1 && p.policy.Interval > firstWithin {
		return upTo(p.policy.Interval)
	}
	return time.Duration(float64(p.policy.Interval) * (1 - jitter + 2*jitter*rand.Float64())) //nolint:gosec // no secret
}

// upTo gives a random time from 0 to most.
func upTo(most time.Duration) time.Duration {
	return time.Duration(rand.Int64N(int64(most) + 1)) //nolint:gosec // no secret
}

// lacksMeans tells once per lack that this host has no files, ports or memory for a check.
func (w *work) lacksMeans(failure error) bool {
	if !errors.Is(failure, errNoMeans) {
		return false
	}
	if !w.helped {
		w.helped = true
		w.log.Warn("a health check could not be made: the verdicts stay as they are", "err", failure)
	}
	return true
}

func (w *work) judge(p *probe, failure error) {
	w.helped = false
	before := p.state
	changed := p.count(failure)
	w.tally(before, -1)
	w.tally(p.state, 1)
	if !changed {
		return
	}
	w.dirty = true
	if p.state == down {
		w.now.WentDown++
	} else {
		w.now.CameUp++
	}
	w.told.tell(p)
}

func (w *work) tally(s state, by int) {
	switch s {
	case up:
		w.now.Up += by
	case down:
		w.now.Down += by
	default:
		w.now.Unknown += by
	}
}

// adopt makes the probes those of the wanted checks.
func (w *work) adopt(beat *time.Ticker) {
	w.mu.Lock()
	wanted := w.wanted
	w.mu.Unlock()
	idle := len(w.probes) == 0
	stays := make(map[model.UpstreamID]struct{}, len(wanted))
	for i := range wanted {
		stays[wanted[i].Upstream] = struct{}{}
		w.adoptOne(wanted[i])
	}
	for id, old := range w.watched {
		if _, ok := stays[id]; !ok {
			delete(w.watched, id)
			w.release(id, old.probes)
		}
	}
	if idle && len(w.probes) > 0 {
		w.stalls.look(time.Now())
		beat.Reset(pulse)
	}
	if w.dirty {
		w.publish()
	}
	w.tellStats(time.Now())
}

// adoptOne brings one upstream up to date. What did not change is known by the model's own pointers.
func (w *work) adoptOne(check build.Check) {
	old := w.watched[check.Upstream]
	if old != nil && samePeers(old.check.Peers, check.Peers) && sameCheck(old.check.Check, check.Check) {
		old.check = check
		return
	}
	next := &watch{check: check}
	w.watched[check.Upstream] = next
	if old != nil && sameCheck(old.check.Check, check.Check) {
		next.policy = old.policy
	} else {
		var err error
		if next.policy, err = newPolicy(check.Check); err != nil {
			w.log.Warn("the peers of an upstream are not checked", "upstream", check.Upstream, "err", err)
		}
	}
	if next.policy != nil {
		next.probes = w.hold(check, next.policy, old)
	}
	if old != nil {
		w.dropOthers(check.Upstream, old.probes, next.probes)
	}
}

// hold gives the probes of the peers, in their order. A peer whose check is another one now keeps the verdict until that
// one has found out.
func (w *work) hold(check build.Check, p *policy, old *watch) []*probe {
	now := time.Now()
	probes := make([]*probe, 0, len(check.Peers))
	for i := range check.Peers {
		k := key{check.Peers[i].Address, p.text}
		one := w.probes[k]
		if one == nil {
			one = &probe{address: k.address, policy: p, users: map[model.UpstreamID]struct{}{}, place: -1}
			if old != nil {
				one.inherit(old.probes)
			}
			one.due = now.Add(upTo(min(p.Interval, firstWithin)))
			w.probes[k] = one
			w.queue.add(one)
			w.tally(one.state, 1)
		}
		if _, known := one.users[check.Upstream]; !known {
			one.users[check.Upstream] = struct{}{}
			w.dirty = w.dirty || one.state == down
		}
		probes = append(probes, one)
	}
	return probes
}

// inherit takes over what another check of the same upstream found out. Both lists are sorted by address.
func (p *probe) inherit(old []*probe) {
	at, found := slices.BinarySearchFunc(old, p.address, func(o *probe, a netip.AddrPort) int { return o.address.Compare(a) })
	if found {
		p.state, p.reason = old[at].state, old[at].reason
	}
}

// dropOthers releases those of before that are not in after.
func (w *work) dropOthers(id model.UpstreamID, before, after []*probe) {
	kept := make(map[*probe]struct{}, len(after))
	for _, p := range after {
		kept[p] = struct{}{}
	}
	w.release(id, slices.DeleteFunc(slices.Clone(before), func(p *probe) bool {
		_, ok := kept[p]
		return ok
	}))
}

func (w *work) release(id model.UpstreamID, probes []*probe) {
	for _, p := range probes {
		delete(p.users, id)
		w.dirty = w.dirty || p.state == down
		if len(p.users) > 0 {
			continue
		}
		w.queue.remove(p)
		delete(w.probes, key{p.address, p.policy.text})
		w.tally(p.state, -1)
	}
}

func samePeers(a, b []model.Peer) bool {
	if len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) {
		return true
	}
	return slices.EqualFunc(a, b, func(a, b model.Peer) bool { return a.Address == b.Address })
}

func sameCheck(a, b model.HealthCheck) bool {
	ranges := slices.Equal(a.Statuses, b.Statuses)
	return ranges && a.Protocol == b.Protocol && a.Path == b.Path && a.Host == b.Host && a.Interval == b.Interval &&
		a.Timeout == b.Timeout && a.Rise == b.Rise && a.Fall == b.Fall
}

// publish makes the verdicts readable, and signals when they say something new.
func (w *work) publish() {
	w.dirty = false
	verdicts := []snapshot.Verdict{}
	for _, p := range w.probes {
		if p.state != down {
			continue
		}
		for id := range p.users {
			verdicts = append(verdicts, snapshot.Verdict{Upstream: string(id), Address: p.address, Down: true})
		}
	}
	slices.SortFunc(verdicts, func(a, b snapshot.Verdict) int {
		return cmp.Or(cmp.Compare(a.Upstream, b.Upstream), a.Address.Compare(b.Address))
	})
	if slices.Equal(*w.published.Load(), verdicts) {
		return
	}
	w.published.Store(&verdicts)
	signal(w.changed)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
