package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"headgate/bench/stage"
	"headgate/test/vip/lab"
)

// outcome is what clients noticed of one event, one value for each time that it was played.
type outcome struct {
	key        string
	four, six  []lab.Damage
	dual       []time.Duration // how long both hosts had the address
	unfinished int             // times that it went on when we stopped looking
}

// side is all that was measured of one contender.
type side struct {
	name     string
	outcomes []*outcome
	survived survivors
}

type survivors struct{ open, alive int }

// figures is everything.
type figures struct {
	ours, theirs *side
	starts       []float64 // ms
	flaps        int
	takeovers    []float64 // ms
	silent       uint64    // living peers that were judged dead under load
	moved        int       // VIPs that moved under load
}

func (s *side) of(key string) *outcome {
	for _, o := range s.outcomes {
		if o.key == key {
			return o
		}
	}
	o := &outcome{key: key}
	s.outcomes = append(s.outcomes, o)
	return o
}

func measure(ctx context.Context, p plan) (*figures, error) {
	f := &figures{}
	wanted, err := regexp.Compile(p.events)
	if err != nil {
		return nil, fmt.Errorf("-events: %w", err)
	}
	err = within(ctx, func(t testing.TB) { //nolint:contextcheck // that of t
		proxy := lab.Assemble(t, p.headgate)
		b := &bench{plan: p, proxy: proxy, wanted: wanted, figures: f}
		b.play(t)
	})
	return f, err
}

// play plays one part after the other, or in the quick run, which tries the benchmark rather than the product, all at once that
// mostly wait. The load comes last in any case.
func (b *bench) play(t testing.TB) {
	t.Helper()
	parts := []func(testing.TB){b.headgate}
	if b.plan.keepalived {
		parts = append(parts, b.keepalived)
	}
	for _, part := range []struct {
		key string
		do  func(testing.TB)
	}{{"cluster_start", b.clusterStarts}, {"takeover_1000", b.takeovers}} {
		if b.wanted.MatchString(part.key) {
			parts = append(parts, part.do)
		}
	}
	var beside errgroup.Group
	for _, part := range parts {
		if stage.Quick() {
			beside.Go(func() error { return within(t.Context(), part) })
			continue
		}
		b.inLab(t, part)
	}
	if err := beside.Wait(); err != nil {
		t.Fatal(err)
	}
	if b.wanted.MatchString("false_failovers") {
		b.inLab(t, b.underLoad)
	}
}

type bench struct {
	plan    plan
	proxy   *lab.Proxy
	wanted  *regexp.Regexp
	figures *figures
}

// inLab runs a part in a scope of its own, so that its hosts are gone before the next one begins.
func (b *bench) inLab(t testing.TB, part func(testing.TB)) {
	t.Helper()
	if err := within(t.Context(), part); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) headgate(t testing.TB) {
	t.Helper()
	l := lab.New(t, lab.Config{Binary: b.plan.headgate, Proxy: b.proxy, Hosts: []string{"a", "b"}, VIPs: lab.Web("preemptDelay: 300ms")})
	l.Hosts[0].Settings = []string{"priority: 150"}
	b.figures.ours = &side{name: "headgate"}
	b.playEvents(t, l, headgate{l}, b.figures.ours, b.plan.repeats)
}

func (b *bench) keepalived(t testing.TB) {
	t.Helper()
	l := lab.New(t, lab.Config{Binary: b.plan.headgate, Proxy: b.proxy, Hosts: []string{"a", "b"}, VIPs: lab.Web("")})
	b.figures.theirs = &side{name: "keepalived"}
	b.playEvents(t, l, &keepalived{lab: l, running: map[*lab.Host]*lab.Process{}}, b.figures.theirs, b.plan.rivals)
}

func (b *bench) playEvents(t testing.TB, l *lab.Lab, c contender, into *side, repeats int) {
	t.Helper()
	r := &round{plan: b.plan, lab: l, side: into, contender: c, kernel: l.Watch(t)}
	if k, ok := c.(*keepalived); ok {
		k.kernel = r.kernel
	}
	for _, h := range l.Hosts {
		h.StartProxy(t)
	}
	for _, h := range l.Hosts {
		c.Start(t, h)
	}
	c.Settled(t)
	r.clients = []*lab.Client{
		lab.NewClient(t, l.Client, lab.Web4(), time.Millisecond), lab.NewClient(t, l.Client, lab.Web6(), 2*time.Millisecond),
	}
	for _, e := range r.events() {
		if !b.wanted.MatchString(e.key) || stage.Quick() && into.name != "headgate" && e.tedious {
			continue
		}
		for range repeats {
			r.play(t, e)
		}
	}
}

// round is one contender in its lab.
type round struct {
	plan      plan
	lab       *lab.Lab
	side      *side
	contender contender
	kernel    *lab.Kernel
	clients   []*lab.Client
}

// event is a fault that comes over the first host, and its end.
type event struct {
	key string
	// tedious ones are left out of the quick run for keepalived.
	tedious bool
	fault   func(t testing.TB)
	// hold is how long the fault lasts at least; it lasts until clients are served again, but no longer than a limit.
	hold time.Duration
	mend func(t testing.TB)
	// back is the key under which the return of the first host is counted; "" for not.
	back string
}

// nothing is for comparison: what clients notice of the machine alone.
const nothing = "nothing"

// Shares of the time: how long is looked at least.
const (
	short = 300 * time.Millisecond
	limit = 8 * time.Second
)

func (r *round) events() []event {
	a, b := r.lab.Hosts[0], r.lab.Hosts[1]
	c := r.contender
	split, dead := 1500*time.Millisecond, 2500*time.Millisecond // long enough for every detector and address, and for keepalived's
	if c.Talk() == lab.VRRP {
		split, dead = 4*time.Second, 4*time.Second
	}
	var walls []*lab.Firewall
	start := func(t testing.TB) { c.Start(t, a) }
	startProxy := func(t testing.TB) { a.StartProxy(t) }
	return []event{
		{key: nothing, hold: time.Second, fault: func(testing.TB) {}, mend: func(testing.TB) {}},
		{key: "planned_stop", hold: short, fault: func(t testing.TB) { c.Stop(t, a) }, mend: start, back: "preferred_returns"},
		{key: "kill_daemon", tedious: true, hold: dead, fault: func(t testing.TB) { c.Kill(t, a) }, mend: r.restart},
		{key: "kill_both", hold: short, fault: func(t testing.TB) { c.KillBoth(t, a) }, mend: func(t testing.TB) { startProxy(t); r.restart(t) }},
		{key: "link_down", tedious: true, hold: short, fault: func(t testing.TB) { r.unplug(t, a) }, mend: func(t testing.TB) { r.lab.LAN.Plug(t, a.Namespace, lab.Interface) }},
		{
			key: "silent_cut", tedious: true, hold: short, fault: func(t testing.TB) { r.lab.LAN.Cut(t, a.Namespace, lab.Interface) },
			mend: func(t testing.TB) { r.lab.LAN.Heal(t, a.Namespace, lab.Interface) }, back: "heal",
		},
		{key: "proxy_dead", tedious: true, hold: short, fault: func(t testing.TB) { a.KillProxy(t) }, mend: startProxy},
		{key: "proxy_hung", tedious: true, hold: short, fault: func(t testing.TB) { a.FreezeProxy(t) }, mend: func(t testing.TB) { a.ThawProxy(t) }},
		{
			key: "partition", tedious: true, hold: split,
			fault: func(t testing.TB) { walls = lab.Both(t, a, b, c.Talk()) },
			mend: func(t testing.TB) {
				walls[1].Dropped(t)
				for _, w := range walls {
					w.Open(t)
				}
			},
		},
		{key: "sigstop", tedious: true, hold: r.plan.longPause, fault: func(t testing.TB) { c.Freeze(t, a) }, mend: func(t testing.TB) { c.Thaw(t, a) }},
	}
}

// restart starts the first host again after kill -9. keepalived's addresses are taken off before, as its next start does.
func (r *round) restart(t testing.TB) {
	t.Helper()
	r.contender.Start(t, r.lab.Hosts[0])
}

func (r *round) unplug(t testing.TB, h *lab.Host) {
	t.Helper()
	r.lab.LAN.Unplug(t, h.Namespace, lab.Interface)
	const noCarrier = "down"
	until(t, "the carrier is gone", func() bool {
		state := h.Namespace.Link(t, lab.Interface).Attrs().OperState.String()
		return state == noCarrier || state == "lower-layer-down"
	})
}

// play plays one event, at any phase of the heartbeats.
func (r *round) play(t testing.TB, e event) {
	t.Helper()
	var flows []*lab.Flows
	if e.key == "planned_stop" {
		flows = append(flows, lab.OpenFlows(t, r.lab.Client, lab.Web4(), r.plan.flows), lab.OpenFlows(t, r.lab.Client, lab.Web6(), r.plan.flows))
	}
	r.mark(t)
	pause(t, rand.N(200*time.Millisecond)) //nolint:gosec // a phase
	began := time.Now()
	e.fault(t)
	r.look(t, e.key, began, e.hold)
	for _, f := range flows {
		alive, _ := f.Survivors(t, time.Now())
		r.side.survived.open += r.plan.flows
		r.side.survived.alive += alive
		f.Close()
	}
	r.mark(t)
	began = time.Now()
	e.mend(t)
	r.contender.Settled(t)
	if e.back != "" {
		r.look(t, e.back, began, short)
	}
	r.calm(t)
}

// look waits until clients are served as before, at least for a while, and notes what they noticed.
func (r *round) look(t testing.TB, key string, began time.Time, least time.Duration) {
	t.Helper()
	if rest := least - time.Since(began); rest > 0 {
		pause(t, rest)
	}
	var all [2][]lab.Attempt
	last := time.Now()
	for {
		pause(t, lab.Flying)
		calm := true
		for i, c := range r.clients {
			for _, a := range c.Cut(t) {
				all[i] = append(all[i], a)
				if a.Error != "" && a.Began.After(last) {
					calm = false
				}
			}
		}
		last = time.Now().Add(-lab.Flying)
		if calm || time.Since(began) > limit+least {
			break
		}
	}
	o := r.side.of(key)
	four, six := lab.Assess(all[0]), lab.Assess(all[1])
	o.four, o.six = append(o.four, four), append(o.six, six)
	o.dual = append(o.dual, max(r.kernel.Shares(t, lab.Web4(), began).Several, r.kernel.Shares(t, lab.Web6(), began).Several))
	if four.Lasting || six.Lasting {
		o.unfinished++
	}
}

// calm waits until what the return of a host brings is over, clients without answers first of all: keepalived's are
// black-holed for most of a minute.
func (r *round) calm(t testing.TB) {
	t.Helper()
	pause(t, short)
	until(t, "clients are served by all", func() bool {
		r.mark(t)
		pause(t, lab.Flying)
		for _, c := range r.clients {
			if d := lab.Assess(c.Cut(t)); d.Failed > 0 || d.Attempts == 0 {
				return false
			}
		}
		return true
	})
}

func (r *round) mark(t testing.TB) {
	t.Helper()
	for _, c := range r.clients {
		c.Cut(t)
	}
}

func pause(t testing.TB, d time.Duration) {
	t.Helper()
	if err := stage.Wait(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}
