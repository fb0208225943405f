package speaker

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"headgate/vip/election"
)

// vip makes a VIP with one address; options change it.
func vip(ip string, options ...func(*VIP)) VIP {
	a := netip.MustParseAddr(ip)
	v := VIP{Name: ip, Addresses: []Address{{IP: a, Bits: a.BitLen(), Interface: "eth0"}}}
	for _, o := range options {
		o(&v)
	}
	return v
}

func noPreempt(v *VIP)                        { v.NoPreempt = true }
func preemptAfter(d time.Duration) func(*VIP) { return func(v *VIP) { v.PreemptDelay = d } }

// settled starts all hosts and waits for one owner for each VIP.
func settled(t *testing.T, hosts int, vips ...VIP) *world {
	t.Helper()
	return settledFrom(t, 1, hosts, vips...)
}

func settledFrom(t *testing.T, seed uint64, hosts int, vips ...VIP) *world {
	t.Helper()
	w := newWorld(t, seed, hosts, vips...)
	for _, h := range w.hosts {
		h.start()
	}
	w.until("one owner each", time.Second, w.oneOwnerEach)
	w.run(2 * time.Second)
	w.gaps, w.gapFrom = map[string]time.Duration{}, map[string]time.Duration{}
	return w
}

func (w *world) oneOwnerEach() bool {
	for _, v := range w.vips {
		if len(w.owners(v)) != 1 {
			return false
		}
	}
	return true
}

// owner is the host that owns the first VIP; other is the next one.
func (w *world) owner() *simHost {
	w.t.Helper()
	owners := w.owners(w.vips[0])
	if len(owners) != 1 {
		w.fail("owners %v, want one", owners)
	}
	return w.host(owners[0])
}

func (w *world) host(name election.Host) *simHost {
	i := slices.IndexFunc(w.hosts, func(h *simHost) bool { return h.name == name })
	return w.hosts[i]
}

func (w *world) other(than *simHost) *simHost { return w.hosts[(than.index+1)%len(w.hosts)] }

func (w *world) noGap() {
	w.t.Helper()
	for name, gap := range w.gaps {
		if gap > 0 {
			w.fail("%s had no owner for %s", name, gap)
		}
	}
}

func (w *world) ownedBy(h *simHost) func() bool {
	return func() bool { return slices.Equal(w.owners(w.vips[0]), []election.Host{h.name}) }
}

// quiet checks that nothing changes any more.
func (w *world) quiet(d time.Duration) {
	w.t.Helper()
	before := w.transitions
	w.run(d)
	if w.transitions != before {
		w.fail("%d transitions in a quiet time", w.transitions-before)
	}
}

func TestAlone(t *testing.T) {
	w := newWorld(t, 1, 1, vip("192.0.2.10"))
	w.hosts[0].start()
	took := w.until("an owner", time.Second, w.oneOwnerEach)
	if took > 150*time.Millisecond {
		t.Errorf("a lone host took %s", took)
	}
	w.quiet(200 * time.Second)
	if w.owner().machine.lifetime != time.Minute {
		t.Error("a lone host's address has the short lifetime")
	}
}

func TestStartAllAtOnce(t *testing.T) {
	for hosts := 2; hosts <= 5; hosts++ {
		w := newWorld(t, uint64(hosts), hosts, vip("192.0.2.10"), vip("2001:db8::10"))
		for _, h := range w.hosts {
			h.start()
		}
		took := w.until("one owner each", time.Second, w.oneOwnerEach)
		starts := hosts * 2 // from Init to Backup, or to Active later
		w.run(30 * time.Second)
		if w.transitions != starts+2 {
			w.fail("%d transitions of %d hosts, want %d", w.transitions, hosts, starts+2)
		}
		t.Logf("%d hosts: one owner after %s", hosts, took)
	}
}

// One peer of the configuration is not there yet.
func TestStartWithoutAPeer(t *testing.T) {
	w := newWorld(t, 1, 3, vip("192.0.2.10"))
	w.hosts[0].start()
	w.hosts[1].start()
	w.until("one owner", time.Second, w.oneOwnerEach)
	w.hosts[2].start()
	w.run(time.Second)
	w.owner()
}

func TestSpeakerKilled(t *testing.T) {
	for hosts := 2; hosts <= 5; hosts++ {
		w := settled(t, hosts, vip("192.0.2.10"))
		old := w.owner()
		old.kill()
		took := w.until("another owner", time.Second, func() bool { return len(w.owners(w.vips[0])) == 1 })
		if took > 20*time.Millisecond {
			t.Errorf("taken over after %s", took)
		}
		took = w.until("the old address expires", 3*time.Second, func() bool { return len(w.holders(w.vips[0])) == 1 })
		if took > 2500*time.Millisecond {
			t.Errorf("one holder after %s", took)
		}
		w.noGap()
		old.start()
		w.run(time.Second)
		w.owner()
		w.noGap()
	}
}

// The speaker is restarted faster than its address expires, and nobody else may have it: nothing is lost.
func TestRestartAdopts(t *testing.T) {
	w := newWorld(t, 1, 2, vip("192.0.2.10"))
	h := w.hosts[0]
	h.start()
	w.until("an owner", time.Second, w.oneOwnerEach)
	w.run(time.Minute)
	w.gaps = map[string]time.Duration{}
	h.kill()
	w.run(30 * time.Second)
	h.start()
	w.until("adopted", time.Second, w.oneOwnerEach)
	if got := h.unit(w.vips[0]).reason; got != Adopted {
		t.Errorf("owner again by %s", got)
	}
	w.quiet(2 * time.Minute)
	w.noGap()
}

// A stop that nobody can take over from leaves the address, for the next start.
func TestStopAlone(t *testing.T) {
	w := newWorld(t, 1, 2, vip("192.0.2.10"))
	h := w.hosts[0]
	h.start()
	w.hosts[1].proxy = false
	w.hosts[1].start()
	w.until("an owner", time.Second, w.oneOwnerEach)
	w.gaps = map[string]time.Duration{}
	h.machine.stop(h.clock())
	h.step()
	if h.machine != nil {
		t.Fatal("still runs")
	}
	w.run(50 * time.Second)
	h.start()
	w.until("adopted", time.Second, w.oneOwnerEach)
	w.noGap()
}

func TestPlannedMoves(t *testing.T) {
	for name, leave := range map[string]func(w *world, h *simHost){
		"stop":  func(_ *world, h *simHost) { h.machine.stop(h.clock()) },
		"drain": func(_ *world, h *simHost) { h.machine.draining = true },
		"move": func(w *world, h *simHost) {
			if err := h.machine.move(h.clock(), "192.0.2.10", w.other(h).name); err != nil {
				w.fail("%v", err)
			}
		},
		"release": func(w *world, h *simHost) {
			if err := h.machine.release("192.0.2.10"); err != nil {
				w.fail("%v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := settled(t, 3, vip("192.0.2.10"))
			old := w.owner()
			leave(w, old)
			old.step()
			took := w.until("one other owner", time.Second, func() bool {
				return w.oneOwnerEach() && !slices.Contains(w.owners(w.vips[0]), old.name)
			})
			if took > 20*time.Millisecond {
				t.Errorf("moved after %s", took)
			}
			w.quiet(time.Minute)
			w.noGap()
			if n := len(w.holders(w.vips[0])); n != 1 {
				t.Errorf("%d kernels hold the address", n)
			}
		})
	}
}

// Moves may be asked for anywhere, and the new owner keeps the VIP against a better one.
func TestMoveFromAThirdHost(t *testing.T) {
	w := settled(t, 3, vip("192.0.2.10", preemptAfter(time.Second)))
	old := w.owner()
	third, to := w.other(old), w.other(w.other(old))
	if err := third.machine.move(third.clock(), "192.0.2.10", to.name); err != nil {
		t.Fatal(err)
	}
	third.step()
	w.until("moved", time.Second, w.ownedBy(to))
	w.quiet(time.Minute)
	w.noGap()
	if err := to.machine.move(to.clock(), "192.0.2.10", "edge9"); err == nil || err.Error() !=
		fmt.Sprintf("192.0.2.10 cannot be moved to edge9: no host of that name is known: write one of [%q %q %q]", min(old.name, third.name), max(old.name, third.name), to.name) {
		t.Error(err)
	}
	if err := to.machine.move(to.clock(), "192.0.2.99", old.name); err == nil || err.Error() != `no VIP is called "192.0.2.99": write one of ["192.0.2.10"]` {
		t.Error(err)
	}
	old.proxy = false
	w.run(time.Second)
	if err := third.machine.move(third.clock(), "192.0.2.10", old.name); err == nil || err.Error() != "192.0.2.10 cannot be moved to "+string(old.name)+": its proxy is not ready" {
		t.Error(err)
	}
}

// A released VIP comes back to a host when it is moved there.
func TestReleaseAndMoveBack(t *testing.T) {
	w := settled(t, 2, vip("192.0.2.10"))
	old := w.owner()
	next := w.other(old)
	_ = old.machine.release("192.0.2.10")
	old.step()
	w.until("moved", time.Second, w.ownedBy(next))
	next.kill()
	w.run(10 * time.Second)
	if owners := w.owners(w.vips[0]); len(owners) != 0 {
		t.Fatalf("released, and owned by %v", owners)
	}
	next.start()
	w.until("owned again", 2*time.Second, w.ownedBy(next))
	if err := next.machine.move(next.clock(), "192.0.2.10", old.name); err != nil {
		t.Fatal(err)
	}
	next.step()
	w.until("moved back", time.Second, w.ownedBy(old))
}

// Released on both hosts it is nobody's, and a move brings it to the one or the other, wherever it is asked for.
func TestMoveOfWhatIsNobodys(t *testing.T) {
	for _, to := range []int{0, 1} {
		for _, by := range []int{0, 1} {
			w := settled(t, 2, vip("192.0.2.10"))
			for range w.hosts {
				old := w.owner()
				_ = old.machine.release("192.0.2.10")
				old.step()
				w.run(time.Second)
			}
			if owners := w.owners(w.vips[0]); len(owners) != 0 {
				t.Fatalf("released, and owned by %v", owners)
			}
			if err := w.hosts[by].machine.move(w.hosts[by].clock(), "192.0.2.10", w.hosts[to].name); err != nil {
				t.Fatal(err)
			}
			w.hosts[by].step()
			w.until("taken", time.Second, w.ownedBy(w.hosts[to]))
			w.quietAfter(time.Second, time.Minute)
		}
	}
}

func TestReleaseWithNobodyElse(t *testing.T) {
	w := settled(t, 1, vip("192.0.2.10"))
	h := w.owner()
	_ = h.machine.release("192.0.2.10")
	h.step()
	if len(w.holders(w.vips[0])) != 0 || h.unit(w.vips[0]).reason != Released {
		w.fail("not released")
	}
	w.quiet(time.Minute)
	h.machine.undrain()
	h.step()
	w.until("owned again", time.Second, w.oneOwnerEach)
}

func TestPreferredReturns(t *testing.T) {
	for name, c := range map[string]struct {
		option  func(*VIP)
		returns bool
	}{
		"preempt":   {preemptAfter(5 * time.Second), true},
		"nopreempt": {noPreempt, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := settled(t, 2, vip("192.0.2.10", c.option))
			best := w.owner()
			best.machine.draining = true
			best.step()
			w.until("moved", time.Second, w.ownedBy(w.other(best)))
			best.machine.draining = false
			best.step()
			w.run(4 * time.Second)
			w.ownedBy(w.other(best))
			w.run(3 * time.Second)
			if got := w.owner() == best; got != c.returns {
				w.fail("the best host owns it: %t, want %t", got, c.returns)
			}
			w.noGap()
		})
	}
}

func TestHostDies(t *testing.T) {
	for name, die := range map[string]func(h *simHost){
		"power off": func(h *simHost) { h.powerOff() },
		"vanishes":  func(h *simHost) { h.vanish() },
		"link down": func(h *simHost) { h.linkUp = false; h.machine.kernelChanged(); h.step() },
		"cut off": func(h *simHost) {
			for _, o := range h.w.hosts {
				h.l2To[o.index], o.l2To[h.index] = false, false
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var longest time.Duration
			for seed := range uint64(30) {
				w := settledFrom(t, seed, 3, vip("192.0.2.10"))
				old := w.owner()
				w.run(w.between(0, 200*time.Millisecond))
				die(old)
				took := w.until("another owner", time.Second, func() bool {
					return slices.ContainsFunc(w.owners(w.vips[0]), func(n election.Host) bool { return n != old.name })
				})
				longest = max(longest, took)
			}
			t.Logf("at most %s", longest)
			// 150 ms without a heartbeat, the detectors' and the hosts' clocks; the probing is over by then.
			if longest > 230*time.Millisecond {
				t.Errorf("taken over after %s", longest)
			}
		})
	}
}

// A host that takes a VIP back is killed just after it announced it and before its word is out: the owner knows nothing of
// that, and clients have it in their caches. They are led back before the kernel of the dead one, or its next run,
// takes the address off.
func TestKilledWhileItTakes(t *testing.T) {
	for name, restart := range map[string]time.Duration{"and starts at once": 0, "and starts": 100 * time.Millisecond, "and does not start": time.Hour} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				w := settledFrom(t, seed, 2, vip("192.0.2.10", preemptAfter(300*time.Millisecond)))
				best := w.owner()
				best.kill()
				w.run(w.between(0, 3*time.Second))
				best.start()
				best.diesAfterAnnouncing = true
				w.until("it dies", 2*time.Second, func() bool { return best.machine == nil })
				w.after(restart, best.start)
				for end := w.now + 5*time.Second; w.now < end; w.run(time.Millisecond) {
					w.served(w.vips[0])
				}
			}
		})
	}
}

// The owner is killed while it hands over: its kernel answers for a while, and the new owner announces until that is over.
func TestKilledWhileItGives(t *testing.T) {
	for seed := range uint64(20) {
		w := settledFrom(t, seed, 2, vip("192.0.2.10"))
		old := w.owner()
		other := w.other(old)
		old.machine.draining = true
		old.step()
		w.until("both have it", time.Second, func() bool { return len(w.holders(w.vips[0])) == 2 })
		old.kill()
		w.until("the old address expires", 3*time.Second, func() bool { return len(w.holders(w.vips[0])) == 1 })
		w.cache[w.vips[0].Addresses[0].IP] = old // it answered somebody in its last moment
		took := w.until("clients are led to the owner", contestedEvery+100*time.Millisecond, func() bool { return w.cache[w.vips[0].Addresses[0].IP] == other })
		t.Logf("after %s", took)
	}
}

// served checks that the host that a client has in its cache serves.
func (w *world) served(v VIP) {
	w.t.Helper()
	if h := w.cache[v.Addresses[0].IP]; !h.serves(v) {
		w.fail("clients ask %s, which does not serve %s", h.name, v.Name)
	}
}

func TestHealAfterAPartition(t *testing.T) {
	w := settled(t, 2, vip("192.0.2.10"))
	old := w.owner()
	other := w.other(old)
	old.l2To[other.index], other.l2To[old.index] = false, false
	w.until("two owners apart", time.Second, func() bool { return len(w.owners(w.vips[0])) == 2 })
	w.run(20 * time.Second)
	old.l2To[other.index], other.l2To[old.index] = true, true
	took := w.until("one owner", time.Second, w.ownedBy(other))
	if took > 100*time.Millisecond {
		t.Errorf("healed after %s", took)
	}
	w.noGap()
	if n := len(w.holders(w.vips[0])); n != 1 {
		t.Errorf("%d kernels hold the address", n)
	}
}

// Gossip and heartbeats are blocked, the L2 lives: the probe finds the owner.
func TestBlockedSessions(t *testing.T) {
	w := settled(t, 2, vip("192.0.2.10"))
	old := w.owner()
	other := w.other(old)
	old.sessionTo[other.index], other.sessionTo[old.index] = false, false
	w.quiet(time.Minute)
	w.noGap()
	old.sessionTo[other.index], other.sessionTo[old.index] = true, true
	w.quiet(time.Minute)
	if other.machine.lifetime != 0 && w.owner() != old || old.machine.lifetime != 2*time.Second {
		t.Errorf("lifetime %s once the peer is back", old.machine.lifetime)
	}
	w.noGap()
}

func TestProxyDies(t *testing.T) {
	w := settled(t, 2, vip("192.0.2.10"))
	old := w.owner()
	old.proxy = false
	took := w.until("another owner", time.Second, w.ownedBy(w.other(old)))
	if took > 100*time.Millisecond {
		t.Errorf("taken over after %s", took)
	}
	if r := w.other(old).unit(w.vips[0]).reason; r != OwnerUnready {
		t.Errorf("taken because of %s", r)
	}
	// Nobody could serve it: it stays, and moves as soon as somebody can.
	w.other(old).proxy = false
	w.quietAfter(100*time.Millisecond, 2*time.Minute)
	w.ownerIs(w.other(old))
	if lasts := w.other(old).machine.lifetime; lasts != time.Minute {
		t.Errorf("the address lasts %s while no peer could take over", lasts)
	}
	old.proxy = true
	if took := w.until("owned again", time.Second, w.ownedBy(old)); took > 100*time.Millisecond {
		t.Errorf("taken over after %s", took)
	}
}

func (w *world) ownerIs(h *simHost) {
	w.t.Helper()
	if !w.ownedBy(h)() {
		w.fail("owners %v, want %s", w.owners(w.vips[0]), h.name)
	}
}

// A proxy that hangs is replaced; where all hang the VIP stays, and moves once another host has been ready for a moment
// and the owner has not.
func TestProxyHangs(t *testing.T) {
	w := settled(t, 2, vip("192.0.2.10", noPreempt))
	old := w.owner()
	other := w.other(old)
	old.hangs = true
	if took := w.until("another owner", time.Second, w.ownedBy(other)); took > 100*time.Millisecond {
		t.Errorf("taken over after %s", took)
	}
	other.hangs = true
	w.quietAfter(100*time.Millisecond, 2*time.Minute)
	w.ownerIs(other)
	old.hangs = false
	if took := w.until("owned by the one that is ready", time.Second, w.ownedBy(old)); took > 350*time.Millisecond {
		t.Errorf("taken over after %s", took)
	}
}

// A busy machine lets both proxies be judged hung. They come back in any order, and that moves nothing.
func TestBothProxiesHang(t *testing.T) {
	for seed := range uint64(50) {
		w := settledFrom(t, seed, 2, vip("192.0.2.10"))
		old := w.owner()
		for _, h := range w.hosts {
			w.after(w.between(0, 20*time.Millisecond), func() { h.hangs = true })
			w.after(w.between(500*time.Millisecond, 600*time.Millisecond), func() { h.hangs = false })
		}
		before := w.transitions
		w.run(10 * time.Second)
		w.ownerIs(old)
		// The one that is judged first cannot know that the other one will be: then one move, and back again.
		if moved := w.transitions - before; moved > 4 {
			w.fail("%d transitions", moved)
		}
		for _, h := range w.hosts {
			h.hangs = true
			h.machine.setHealth(h.health())
		}
		for _, h := range w.hosts {
			h.step()
		}
		before = w.transitions
		w.run(w.between(100*time.Millisecond, 3*time.Second))
		w.other(old).hangs = false
		w.run(w.between(0, 100*time.Millisecond))
		old.hangs = false
		w.run(10 * time.Second)
		if w.transitions != before {
			w.fail("%d transitions", w.transitions-before)
		}
	}
}

// The owner's proxy is dead, and the hosts do not hear each other: it may be that the other one can serve, so it is let
// take the VIP. A proxy that only says nothing may serve, and the VIP stays.
func TestUnheardProxyFails(t *testing.T) {
	for _, dead := range []string{"hangs", "dies"} {
		w := settled(t, 2, vip("192.0.2.10", noPreempt))
		old := w.owner()
		other := w.other(old)
		old.sessionTo[other.index], other.sessionTo[old.index] = false, false
		w.run(time.Second)
		if dead == "hangs" {
			old.hangs = true
			w.quiet(time.Minute)
			w.ownerIs(old)
			continue
		}
		old.proxy = false
		w.until("another owner", time.Second, w.ownedBy(other))
		w.quiet(time.Minute)
	}
}

// The owner does not hear that another host could serve. That one takes the VIP, and keeps it.
func TestDeafOwnerWithoutProxy(t *testing.T) {
	for _, fault := range []func(h *simHost){func(h *simHost) { h.hangs = true }, func(h *simHost) { h.proxy = false }} {
		for seed := range uint64(10) {
			w := settledFrom(t, seed, 2, vip("192.0.2.10"))
			old := w.owner()
			other := w.other(old)
			other.sessionTo[old.index] = false
			w.run(time.Second)
			fault(old)
			w.until("the other one is the owner", 2*time.Second, w.ownedBy(other))
			w.quietAfter(time.Second, time.Minute)
			w.ownerIs(other)
		}
	}
}

// So it is where the owner has never heard of that host, because it was started since: what answers for the VIP is a stranger
// to it, and a VIP that it cannot serve is left to whoever answers.
func TestOwnerWithoutProxyThatNeverHeardOfTheOther(t *testing.T) {
	for seed := range uint64(10) {
		w := settledFrom(t, seed, 2, vip("192.0.2.10"))
		old := w.owner()
		other := w.other(old)
		other.sessionTo[old.index] = false
		w.run(time.Second)
		old.kill()
		old.start()
		w.until("adopted", 2*time.Second, func() bool { return old.unit(w.vips[0]).state == Active })
		w.run(5 * time.Second)
		w.ownerIs(old)
		old.hangs = true
		w.until("the other one is the owner", 4*time.Second, w.ownedBy(other))
		w.quietAfter(time.Second, time.Minute)
		w.ownerIs(other)
	}
}

// Both proxies had fallen silent, and when the other one is back the owner's dies: the other one is asked before the VIP goes,
// whenever that happens.
func TestProxyDiesWhileItIsWaitedFor(t *testing.T) {
	for after := time.Duration(0); after < 400*time.Millisecond; after += 5 * time.Millisecond {
		w := settled(t, 2, vip("192.0.2.10"))
		old := w.owner()
		other := w.other(old)
		for _, h := range w.hosts {
			h.hangs = true
			h.machine.setHealth(h.health())
		}
		for _, h := range w.hosts {
			h.step()
		}
		w.run(time.Second)
		w.ownerIs(old)
		other.hangs = false
		for end := w.now + after; w.now < end; w.run(time.Millisecond) {
			w.allHeld()
		}
		old.proxy = false
		for end := w.now + time.Second; w.now < end; w.run(time.Millisecond) {
			w.allHeld()
		}
		w.ownerIs(other)
	}
}

// A host that must not serve gives the VIP up, whoever else is there.
func TestForbidden(t *testing.T) {
	w := settled(t, 1, vip("192.0.2.10"))
	h := w.owner()
	h.machine.setHealth(Health{Reason: "another host has this host's name"})
	h.step()
	if len(w.holders(w.vips[0])) != 0 || h.unit(w.vips[0]).reason != ProxyNotReady {
		w.fail("not given up")
	}
}

// The proxy is dead and nobody else is ready: the link, and the administrator, still count.
func TestLeavingWithoutProxy(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(h *simHost)
		want Reason
	}{
		"release":   {func(h *simHost) { _ = h.machine.release("192.0.2.10") }, Released},
		"link down": {func(h *simHost) { h.linkUp = false; h.machine.kernelChanged() }, LinkDown},
	} {
		t.Run(name, func(t *testing.T) {
			w := settled(t, 1, vip("192.0.2.10"))
			h := w.owner()
			h.proxy = false
			w.quiet(time.Second)
			w.ownerIs(h)
			c.do(h)
			h.step()
			if got := h.unit(w.vips[0]).reason; len(w.holders(w.vips[0])) != 0 || got != c.want {
				w.fail("held by %v, %s", w.holders(w.vips[0]), got)
			}
		})
	}
}

// A speaker that starts again where no proxy is ready adopts what it had; not while a host is expected and not heard.
func TestRestartWithoutProxy(t *testing.T) {
	for heard, want := range map[bool]int{true: 1, false: 0} {
		w := settled(t, 2, vip("192.0.2.10"))
		h := w.owner()
		for _, each := range w.hosts {
			each.proxy = false
		}
		w.run(time.Second)
		if !heard {
			w.other(h).powerOff()
			w.run(time.Second)
		}
		h.kill()
		w.run(time.Second)
		h.start()
		w.run(3 * time.Second)
		if got := len(w.holders(w.vips[0])); got != want {
			w.fail("%d holders, want %d", got, want)
		}
	}
}

func TestSleep(t *testing.T) {
	w := settled(t, 2, vip("192.0.2.10", noPreempt))
	old := w.owner()
	old.sleep()
	w.run(10 * time.Second)
	other := w.other(old)
	if !w.ownedBy(other)() {
		w.fail("owners %v", w.owners(w.vips[0]))
	}
	if gap := w.gaps["192.0.2.10"]; gap > 500*time.Millisecond {
		t.Errorf("nobody served for %s", gap)
	}
	old.wakeUp(0)
	w.run(100 * time.Millisecond)
	if !w.ownedBy(other)() {
		w.fail("owners %v", w.owners(w.vips[0]))
	}
	w.quietAfter(time.Second, time.Minute)
}

// quietAfter lets things settle first.
func (w *world) quietAfter(first, d time.Duration) {
	w.t.Helper()
	w.run(first)
	w.quiet(d)
}

// A short sleep changes nothing: the kernel still has the address, and nobody else took it.
func TestNap(t *testing.T) {
	w := settled(t, 2, vip("192.0.2.10"))
	old := w.owner()
	for range 20 {
		old.sleep()
		w.run(w.between(200*time.Millisecond, 1500*time.Millisecond))
		old.wakeUp(0)
		w.run(w.between(500*time.Millisecond, time.Second))
	}
	if w.owner() != old {
		t.Error("the owner changed")
	}
	w.noGap()
}

func TestForeignMachine(t *testing.T) {
	w := newWorld(t, 1, 2, vip("192.0.2.10"), vip("192.0.2.11"))
	w.foreign[w.vips[0].Addresses[0].IP] = true
	for _, h := range w.hosts {
		h.start()
	}
	w.run(30 * time.Second)
	if owners := w.owners(w.vips[0]); len(owners) != 0 {
		t.Fatalf("%v took an address that another machine has", owners)
	}
	if owners := w.owners(w.vips[1]); len(owners) != 1 {
		t.Errorf("the other VIP is owned by %v", owners)
	}
	for _, h := range w.hosts {
		s := h.machine.snapshot(h.clock()).VIPs[0]
		if s.Occupant != "aa:00:00:00:00:01" || s.Wants != "refuses to take it: aa:00:00:00:00:01 answers for it" {
			t.Errorf("%s: occupant %q, %q", h.name, s.Occupant, s.Wants)
		}
	}
	w.foreign[w.vips[0].Addresses[0].IP] = false
	w.until("owned", 7*time.Second, w.oneOwnerEach)
}

// A forged announcement is answered, and moves nothing.
func TestForgedAnnouncements(t *testing.T) {
	w := settled(t, 2, vip("192.0.2.10"))
	old := w.owner()
	u := old.unit(w.vips[0])
	for range 100 {
		old.hear(Conflict{u.Addresses[0].IP, net.HardwareAddr{0xaa, 0, 0, 0, 0, 1}})
		before := w.now
		w.until("answered", 110*time.Millisecond, func() bool { return u.defend.IsZero() && u.announced.After(old.clock().Add(-150*time.Millisecond)) })
		w.run(110*time.Millisecond - (w.now - before))
	}
	w.quiet(time.Minute)
	w.noGap()
	if u.conflicts != 100 || text(u.rival) != "aa:00:00:00:00:01" {
		t.Errorf("%d conflicts with %s", u.conflicts, u.rival)
	}
	// Nor do those that carry the address of a living peer, or of one that is silent and does not answer.
	other := w.other(old)
	for range 20 {
		old.hear(Conflict{u.Addresses[0].IP, other.hardware})
		w.run(20 * time.Millisecond)
	}
	other.powerOff()
	w.run(time.Second)
	for range 20 {
		old.hear(Conflict{u.Addresses[0].IP, other.hardware})
		w.run(100 * time.Millisecond)
	}
	w.quiet(time.Minute)
	w.noGap()
}

// Both probes of a host that hears nothing were lost: two owners on one L2. One of them lets go.
func TestSplitOnOneLink(t *testing.T) {
	for _, first := range []int{0, 1} {
		w := settled(t, 2, vip("192.0.2.10"))
		a, b := w.hosts[first], w.hosts[1-first]
		a.sessionTo[b.index], b.sessionTo[a.index] = false, false
		a.l2To[b.index], b.l2To[a.index] = false, false
		w.until("two owners", time.Second, func() bool { return len(w.owners(w.vips[0])) == 2 })
		a.l2To[b.index], b.l2To[a.index] = true, true
		took := w.until("one owner", shadowBound, func() bool { return len(w.owners(w.vips[0])) == 1 })
		t.Logf("after %s", took)
		w.quiet(30 * time.Second)
		w.noGap()
		// The hold-down ends when the rival falls silent.
		w.owner().powerOff()
		w.until("the other one", 400*time.Millisecond, func() bool { return len(w.owners(w.vips[0])) == 1 })
	}
}

// One host does not hear the other, and both own the VIP.
func TestDeafRival(t *testing.T) {
	for _, deaf := range []int{0, 1} {
		w := settled(t, 2, vip("192.0.2.10"))
		a, b := w.hosts[deaf], w.hosts[1-deaf]
		a.l2To[b.index], b.l2To[a.index] = false, false
		w.until("two owners", time.Second, func() bool { return len(w.owners(w.vips[0])) == 2 })
		b.sessionTo[a.index] = false
		a.l2To[b.index], b.l2To[a.index] = true, true
		w.until("one owner", shadowBound, func() bool { return len(w.owners(w.vips[0])) == 1 })
		w.quiet(30 * time.Second)
		w.noGap()
	}
}

func TestSpreadAndPinned(t *testing.T) {
	var vips []VIP
	for i := range 20 {
		vips = append(vips, vip(fmt.Sprintf("192.0.2.%d", i+1)))
	}
	w := settled(t, 2, vips...)
	count := map[election.Host]int{}
	for _, v := range vips {
		count[w.owners(v)[0]]++
	}
	if count["edge1"] < 5 || count["edge2"] < 5 {
		t.Errorf("20 VIPs are spread as %v", count)
	}
	// A host that dies moves only its own; when it is back, only those move again.
	before := w.transitions
	w.hosts[0].powerOff()
	w.until("all owned", time.Second, w.oneOwnerEach)
	w.run(time.Second)
	if got := w.transitions - before; got != count["edge1"] {
		t.Errorf("%d transitions, want %d", got, count["edge1"])
	}
	before = w.transitions
	w.hosts[0].off = false
	w.hosts[0].start()
	w.run(5 * time.Second)
	if got, want := w.transitions-before, 20+2*count["edge1"]; got != want {
		t.Errorf("%d transitions, want %d", got, want)
	}

	pinned := []VIP{vip("192.0.2.1"), vip("192.0.2.2"), vip("192.0.2.3"), vip("192.0.2.4")}
	w = newWorld(t, 1, 2, pinned...)
	for i, h := range w.hosts {
		w.vips = nil
		for n, v := range pinned {
			v.Priority = uint8(100 + 50*((n+i)%2))
			w.vips = append(w.vips, v)
		}
		h.start()
	}
	w.until("all owned", time.Second, w.oneOwnerEach)
	w.run(time.Second)
	for n, v := range pinned {
		if want := w.hosts[(n+1)%2].name; w.owners(v)[0] != want {
			t.Errorf("%s is at %s, want %s", v.Name, w.owners(v)[0], want)
		}
	}
}

func TestKernelRefuses(t *testing.T) {
	w := settled(t, 2, vip("192.0.2.10"))
	best := w.owner()
	other := w.other(best)
	best.machine.draining = true
	best.step()
	w.until("moved", time.Second, w.ownedBy(other))
	best.refuse = errors.New("no space left on device")
	best.machine.draining = false
	best.step()
	w.run(30 * time.Second)
	if w.owner() != other {
		t.Error("a host that cannot hold it got the VIP")
	}
	w.noGap()
	best.refuse = nil
	w.until("moved back", time.Minute, w.ownedBy(best))
	w.noGap()
	// The owner's kernel refuses to refresh: what it still holds goes on for its lifetime.
	best.refuse = errors.New("no buffer space available")
	w.until("another owner", 4*time.Second, w.ownedBy(other))
	if gap := w.gaps["192.0.2.10"]; gap > 100*time.Millisecond {
		t.Errorf("nobody served for %s", gap)
	}
}

func TestAddressDeletedByHand(t *testing.T) {
	w := settled(t, 2, vip("192.0.2.10"))
	h := w.owner()
	delete(h.kernel, w.vips[0].Addresses[0].IP)
	h.machine.kernelChanged()
	h.step()
	if !h.holds(w.vips[0].Addresses[0].IP) {
		t.Fatal("not added again")
	}
	w.quiet(time.Second)
}

func TestInterfaceGone(t *testing.T) {
	w := settled(t, 2, vip("192.0.2.10"))
	h := w.owner()
	h.linkErr = errNoLink
	h.machine.kernelChanged()
	h.step()
	took := w.until("another owner", time.Second, w.ownedBy(w.other(h)))
	if took > 20*time.Millisecond {
		t.Errorf("after %s", took)
	}
	if got := h.machine.snapshot(h.clock()).VIPs[0].Why; got != "eth0 is down or does not exist" {
		t.Error(got)
	}
	h.linkErr = nil
	h.machine.kernelChanged()
	h.step()
	w.until("back", time.Second, w.ownedBy(h))
}

// A host with another configuration is a candidate only for what it has.
func TestDifferentConfigurations(t *testing.T) {
	w := newWorld(t, 1, 2, vip("192.0.2.10"), vip("192.0.2.11"))
	w.hosts[0].start()
	all := w.vips
	w.vips = all[:1]
	w.hosts[1].start()
	w.run(2 * time.Second)
	if u, _ := w.hosts[0].machine.unit("192.0.2.11"); u.state != Active {
		t.Error("nobody serves the VIP that only one host has")
	}
	w.owner()
}
