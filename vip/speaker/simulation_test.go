package speaker

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"headgate/vip/election"
)

// How many schedules the simulation tries; HEADGATE_TEST_SCHEDULES asks for more, HEADGATE_TEST_SEED for one.
const schedules = 30

func seeds(t *testing.T) (first, n uint64) {
	t.Helper()
	if one := os.Getenv("HEADGATE_TEST_SEED"); one != "" {
		seed, err := strconv.ParseUint(one, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return seed, 1
	}
	n = schedules
	if more := os.Getenv("HEADGATE_TEST_SCHEDULES"); more != "" {
		var err error
		if n, err = strconv.ParseUint(more, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	return rand.Uint64() >> 1, n
}

// fault is something that may happen to the world.
type fault struct {
	name string
	do   func(w *world, h, other *simHost)
}

func faults() []fault {
	at := func(f func(h *simHost)) func(*world, *simHost, *simHost) {
		return func(_ *world, h, _ *simHost) { f(h) }
	}
	return []fault{
		{"kill", at(func(h *simHost) { h.kill() })},
		{"kill both", at(func(h *simHost) { h.kill(); h.proxy = false })},
		{"kill and start", func(w *world, h, _ *simHost) {
			h.kill()
			w.after(w.between(0, 3*time.Second), h.start)
		}},
		{"start", at(func(h *simHost) { h.off = false; h.start() })},
		{"power off", at(func(h *simHost) { h.powerOff() })},
		{"proxy dies", at(func(h *simHost) { h.proxy = false })},
		{"proxy is back", at(func(h *simHost) { h.proxy = true })},
		{"proxy hangs", at(func(h *simHost) { h.hangs = true })},
		{"proxy goes on", at(func(h *simHost) { h.hangs = false })},
		{"all proxies hang", func(w *world, _, _ *simHost) {
			for _, h := range w.hosts {
				h.hangs = true
				w.after(w.between(0, 2*time.Second), func() { h.hangs = false })
			}
		}},
		{"proxy flaps", func(w *world, h, _ *simHost) {
			for i := range 6 {
				w.after(time.Duration(i)*w.between(20*time.Millisecond, 200*time.Millisecond), func() { h.proxy = i%2 == 1 })
			}
		}},
		{"link down", at(func(h *simHost) { h.link(false) })},
		{"link up", at(func(h *simHost) { h.link(true) })},
		{"link flaps", func(w *world, h, _ *simHost) {
			for i := range 4 {
				w.after(time.Duration(i)*w.between(20*time.Millisecond, 300*time.Millisecond), func() { h.link(i%2 == 1) })
			}
		}},
		{"sleep", func(w *world, h, _ *simHost) {
			begin := w.now
			h.sleep()
			w.after(w.between(10*time.Millisecond, 5*time.Second), func() { h.wakeUp(begin) })
		}},
		{"vanish", func(w *world, h, _ *simHost) {
			if h.vanished {
				return
			}
			begin := w.now
			h.vanish()
			w.after(w.between(10*time.Millisecond, 5*time.Second), func() { h.wakeUp(begin) })
		}},
		{"cut sessions", func(_ *world, h, o *simHost) { h.sessionTo[o.index], o.sessionTo[h.index] = false, false }},
		{"cut one way", func(_ *world, h, o *simHost) { h.sessionTo[o.index] = false }},
		{"cut all", func(_ *world, h, o *simHost) { h.l2To[o.index], o.l2To[h.index] = false, false }},
		{"cut all one way", func(_ *world, h, o *simHost) { h.l2To[o.index] = false }},
		{"isolate", func(w *world, h, _ *simHost) {
			for _, o := range w.hosts {
				h.l2To[o.index], o.l2To[h.index] = false, false
			}
		}},
		{"heal", func(w *world, _, _ *simHost) { w.heal() }},
		{"loss", func(w *world, _, _ *simHost) { w.loss, w.duplicates = 0.2*w.rand.Float64(), 0.3*w.rand.Float64() }},
		{"delay", func(w *world, _, _ *simHost) { w.slowest = w.between(time.Millisecond, 60*time.Millisecond) }},
		{"drain", at(func(h *simHost) { h.command(func(m *machine) { m.draining = true }) })},
		{"undrain", at(func(h *simHost) { h.command(func(m *machine) { m.undrain() }) })},
		{"stop", at(func(h *simHost) { h.command(func(m *machine) { m.stop(h.clock()) }) })},
		{"move", func(w *world, h, o *simHost) {
			h.command(func(m *machine) { _ = m.move(h.clock(), w.vips[w.rand.IntN(len(w.vips))].Name, o.name) })
		}},
		{"release", func(w *world, h, _ *simHost) {
			h.command(func(m *machine) { _ = m.release(w.vips[w.rand.IntN(len(w.vips))].Name) })
		}},
		{"forged announcement", func(w *world, h, _ *simHost) {
			for _, v := range w.vips {
				h.hear(Conflict{v.Addresses[0].IP, net.HardwareAddr{0xaa, 1, 2, 3, 4, 5}})
			}
		}},
		{"announcement forged for a peer", func(w *world, h, o *simHost) {
			for _, v := range w.vips {
				h.hear(Conflict{v.Addresses[0].IP, o.hardware})
			}
		}},
		{"address deleted", func(w *world, h, _ *simHost) {
			clear(h.kernel)
			h.command(func(m *machine) { m.kernelChanged() })
		}},
		{"kernel refuses", func(w *world, h, _ *simHost) {
			h.refuse = errNoLink
			w.after(w.between(time.Millisecond, 3*time.Second), func() { h.refuse = nil })
		}},
	}
}

func (h *simHost) link(up bool) {
	h.linkUp = up
	h.command(func(m *machine) { m.kernelChanged() })
}

func (h *simHost) command(do func(m *machine)) { h.give(h.boot, do) }

func (w *world) heal() {
	w.loss, w.duplicates, w.slowest = 0, 0, 2*time.Millisecond
	for _, h := range w.hosts {
		for i := range w.hosts {
			h.sessionTo[i], h.l2To[i] = true, true
		}
		if !h.linkUp {
			h.link(true)
		}
	}
}

// repair ends every fault.
func (w *world) repair() {
	w.note("repair")
	w.heal()
	for _, h := range w.hosts {
		h.refuse = nil
		if h.asleep || h.vanished {
			h.wakeUp(w.now)
		}
		h.proxy, h.hangs, h.off = true, false, false
		h.start()
		h.command(func(m *machine) { m.undrain() })
	}
}

// atPeace checks what must be true once nothing was wrong for a while: one owner each, which is the elected one, the
// kernels hold nothing else, and nothing changes any more.
func (w *world) atPeace() {
	w.t.Helper()
	w.repair()
	w.run(4 * time.Second)
	w.repair() // a host may have been in the middle of its stop
	w.until("peace", time.Minute, w.peaceful)
	w.run(time.Second)
	w.quiet(5 * time.Second)
	if !w.peaceful() {
		w.fail("the peace did not last")
	}
}

func (w *world) peaceful() bool {
	for _, v := range w.vips {
		owners := w.owners(v)
		if len(owners) != 1 || !slices.Equal(owners, w.holders(v)) {
			return false
		}
		if v.NoPreempt || w.host(owners[0]).unit(v).sticky {
			continue
		}
		var candidates []election.Candidate
		for _, h := range w.hosts {
			candidates = append(candidates, election.Candidate{Host: h.name, Ready: true, Settled: true})
		}
		if owners[0] != election.Owner(election.Policy{VIP: v.Name}, candidates, "") {
			return false
		}
	}
	return true
}

// TestRandomSchedules: whatever happens, two hosts that reach each other never own a VIP both for longer than the bound, and
// once nothing is wrong any more every VIP has its one owner.
func TestRandomSchedules(t *testing.T) {
	first, n := seeds(t)
	longest := map[string]time.Duration{}
	for seed := first; seed < first+n; seed++ {
		ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			w := randomWorld(t, seed)
			all := faults()
			for range 5 + w.rand.IntN(25) {
				w.run(w.between(0, 2*time.Second))
				h := w.hosts[w.rand.IntN(len(w.hosts))]
				o := w.other(h)
				if w.chance(0.5) {
					o = w.other(o)
				}
				if o == h {
					o = w.other(h)
				}
				f := all[w.rand.IntN(len(all))]
				w.note("%s: %s (%s)", f.name, h.name, o.name)
				f.do(w, h, o)
			}
			w.atPeace()
			for kind, d := range w.longest {
				longest[kind] = max(longest[kind], d)
			}
		})
		if !ok {
			t.Fatalf("HEADGATE_TEST_SEED=%d shows it again", seed)
		}
	}
	t.Logf("%d schedules; two owners at most for %v", n, longest)
}

// TestAlwaysAnOwner: whatever happens to the proxies, and however often speakers are killed and started, a VIP that had
// an owner once is never without one while hosts live that hear each other.
func TestAlwaysAnOwner(t *testing.T) {
	first, n := seeds(t)
	for seed := first; seed < first+n; seed++ {
		ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			w := randomWorld(t, seed)
			for _, h := range w.hosts {
				h.start()
			}
			w.until("one owner each", 2*time.Second, w.oneOwnerEach)
			w.run(2 * time.Second)
			only := slices.DeleteFunc(faults(), func(f fault) bool {
				return !slices.Contains([]string{"proxy dies", "proxy is back", "proxy flaps", "proxy hangs", "proxy goes on", "all proxies hang"}, f.name)
			})
			for range 20 {
				h := w.hosts[w.rand.IntN(len(w.hosts))]
				f := only[w.rand.IntN(len(only))]
				if w.chance(0.2) {
					f = fault{"killed and started", func(w *world, h, _ *simHost) {
						h.kill()
						w.run(w.between(0, time.Second))
						w.allHeld()
						h.start()
						w.run(time.Second)
					}}
				}
				w.note("%s: %s", f.name, h.name)
				f.do(w, h, w.other(h))
				for end := w.now + w.between(0, 4*time.Second); w.now < end; w.run(5 * time.Millisecond) {
					w.allHeld()
				}
			}
			w.atPeace()
		})
		if !ok {
			t.Fatalf("HEADGATE_TEST_SEED=%d shows it again", seed)
		}
	}
}

func (w *world) allHeld() {
	w.t.Helper()
	for _, v := range w.vips {
		if len(w.holders(v)) == 0 {
			w.fail("%s has no holder", v.Name)
		}
	}
}

func randomWorld(t *testing.T, seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	options := [][]func(*VIP){nil, {noPreempt}, {preemptAfter(time.Second)}}
	vips := []VIP{vip("192.0.2.10", options[r.IntN(3)]...)}
	if r.IntN(2) == 0 {
		vips = append(vips, vip("192.0.2.11", options[r.IntN(3)]...), vip("2001:db8::12"))
	}
	w := newWorld(t, seed, 2+r.IntN(3), vips...)
	for _, h := range w.hosts {
		w.after(w.between(0, 500*time.Millisecond), h.start)
	}
	return w
}

// TestEveryPairOfFaults tries each fault after each other one: at the owner or at another host, at once or later. One of
// the variants is tried of every third pair, or all of all pairs when HEADGATE_TEST_SCHEDULES asks for more than usual.
func TestEveryPairOfFaults(t *testing.T) {
	const variants = 8
	for i, a := range faults() {
		t.Run(a.name, func(t *testing.T) {
			for j, b := range faults() {
				for variant := range variants {
					if os.Getenv("HEADGATE_TEST_SCHEDULES") != "" || variant == (i*7+j)%variants && (i+j)%3 == 0 {
						pairOfFaults(t, uint64(i*1000+j*10+variant), a, b)
					}
				}
			}
		})
	}
}

func pairOfFaults(t *testing.T, seed uint64, a, b fault) {
	t.Helper()
	w := newWorld(t, seed, 2+int(seed%2), vip("192.0.2.10"))
	for _, h := range w.hosts {
		h.start()
	}
	w.until("an owner", time.Second, w.oneOwnerEach)
	w.run(time.Second)
	victim := w.owner()
	if seed&2 != 0 {
		victim = w.other(victim)
	}
	w.note("%s: %s", a.name, victim.name)
	a.do(w, victim, w.other(victim))
	distance := 15 * time.Millisecond
	if seed&4 != 0 {
		distance = 700 * time.Millisecond
	}
	w.run(distance)
	victim = w.hosts[w.rand.IntN(len(w.hosts))]
	w.note("%s: %s", b.name, victim.name)
	b.do(w, victim, w.other(victim))
	w.run(4 * time.Second)
	w.atPeace()
}
