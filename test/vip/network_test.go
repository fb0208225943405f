package vip

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"headgate/test/netns"
	"headgate/test/vip/lab"
)

func linkDown(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	owner := e.Settled(t)
	other := e.Other(owner)
	e.mark(t)
	e.LAN.Unplug(t, owner.Namespace, lab.Interface)
	netns.Eventually(t, lab.Patience, "the carrier is gone", func() bool {
		return owner.Namespace.Link(t, lab.Interface).Attrs().RawFlags&syscall.IFF_RUNNING == 0
	})
	e.taken(t, other, "the link is down")
	e.recovered(t, "the link is down")
	e.LAN.Plug(t, owner.Namespace, lab.Interface)
	e.Settled(t)
	e.known(t, other)
	e.shared(t, "the link was down", overlap, 1)
}

// While the cut lasts nobody can know better; after it there is one owner at once, and the client knows which.
func cutAndHeal(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	owner := e.Settled(t)
	other := e.Other(owner)
	e.mark(t)
	e.LAN.Cut(t, owner.Namespace, lab.Interface)
	netns.Eventually(t, lab.Patience, "the other one has the VIP, too", func() bool { return e.has(other) })
	e.recovered(t, "a silent cut")
	if !e.has(owner) {
		t.Error("the owner that is cut off gave its addresses away: nobody could take them")
	}
	e.mark(t)
	e.LAN.Heal(t, owner.Namespace, lab.Interface)
	e.taken(t, other, "the cut is healed")
	e.Settled(t)
	e.known(t, other)
	e.recovered(t, "the cut is healed")
	e.shared(t, "the cut is healed", 2*time.Second, 0)
}

// What the hosts say to each other is lost, and ARP is not: the owner is seen, and stays.
func blocked(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	owner := e.Settled(t)
	other := e.Other(owner)
	e.mark(t)
	walls := lab.Both(t, owner, other, lab.Heartbeats)
	netns.Eventually(t, lab.Patience, "both miss each other", func() bool {
		return !owner.Status(t).Peers[0].Alive && !other.Status(t).Peers[0].Alive
	})
	pass(t, 2*time.Second)
	for _, w := range walls {
		w.Dropped(t)
	}
	e.unnoticed(t, "heartbeats are blocked")
	e.shared(t, "heartbeats are blocked", 0, 0)
	if s := other.Status(t); s.VIPs[0].Owner != "" || s.VIPs[0].Occupant == "" || len(s.Degraded) == 0 {
		t.Errorf("the other one says: owner %q, occupant %q, %q", s.VIPs[0].Owner, s.VIPs[0].Occupant, s.Degraded)
	}
	for _, w := range walls {
		w.Open(t)
	}
	if now := e.Settled(t); now != owner {
		t.Errorf("%s has the VIP after the heal, want %s", now.Name, owner.Name)
	}
	pass(t, time.Second)
	e.shared(t, "and pass again", 0, 0)
}

// onSwitch is a pair on cables that can be bad.
func onSwitch(t *testing.T, proxy *lab.Proxy) *edge {
	t.Helper()
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b"}, VIPs: lab.Web("nopreempt: true"), Switch: true})
	for _, h := range e.Hosts {
		// The switch is part of this process, which has no real-time scheduler: on a busy machine it carries nothing for a while.
		h.Settings = append(h.Settings, "heartbeat: 200ms", "misses: 5")
	}
	e.Start(t)
	return e
}

func end(h *lab.Host) netns.End { return netns.End{Namespace: h.Namespace, Interface: lab.Interface} }

// The other host hears nothing of the owner, not even its answer to a probe. It must take the VIP, for the owner may be
// dead; the owner hears that, and gives it up.
func oneWay(t *testing.T, proxy *lab.Proxy) {
	e := onSwitch(t, proxy)
	owner := e.Settled(t)
	other := e.Other(owner)
	e.mark(t)
	e.Switch.Set(end(owner), end(other), netns.Fault{Cut: true})
	netns.Eventually(t, lab.Patience, "the other one hears nothing", func() bool { return !other.Status(t).Peers[0].Alive })
	if !owner.Status(t).Peers[0].Alive {
		t.Error("the owner does not hear the other one")
	}
	pass(t, 2*time.Second)
	netns.Eventually(t, lab.Patience, "there is one owner", func() bool { return e.alone(owner) || e.alone(other) })
	for _, s := range []lab.Shares{e.kernel.Shares(t, lab.Web4(), e.marked), e.kernel.Shares(t, lab.Web6(), e.marked)} {
		if s.Several > 2*time.Second {
			t.Errorf("%+v, want two owners for no longer than the owner needs to hear of the new one", s)
		}
	}
	e.Switch.Set(end(owner), end(other), netns.Fault{})
	e.taken(t, e.Settled(t), "the cable is whole")
}

func lossAndDuplicates(t *testing.T, proxy *lab.Proxy) {
	e := onSwitch(t, proxy)
	owner := e.Settled(t)
	other := e.Other(owner)
	bad := netns.Fault{Loss: 0.2, Duplicate: 0.2, Delay: 3 * time.Millisecond}
	e.mark(t)
	e.Switch.Set(end(owner), end(other), bad)
	e.Switch.Set(end(other), end(owner), bad)
	pass(t, 5*time.Second)
	e.shared(t, "a fifth is lost and a fifth comes twice", 0, 0)
	old := uint64(0)
	for _, d := range other.Status(t).Detectors[0].Detectors {
		old += d.Old
	}
	if old == 0 {
		t.Error("no duplicate was seen: the fault took no effect")
	}
	// And a planned move through it.
	owner.StopVIP(t)
	e.taken(t, other, "a stop over a bad cable")
	e.shared(t, "a stop over a bad cable", slow, 1)
}

// Other processes want all of the CPU: nothing moves.
func busy(t *testing.T, proxy *lab.Proxy) {
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b"}, VIPs: lab.Web("nopreempt: true")})
	e.Start(t)
	const hogs = 8
	for range hogs {
		hog := exec.CommandContext(t.Context(), "/bin/sh", "-c", "while :; do :; done")
		if err := hog.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = hog.Process.Kill()
			_ = hog.Wait()
		})
	}
	e.mark(t)
	pass(t, 5*time.Second)
	e.shared(t, "eight processes want the CPU", 0, 0)
	for _, h := range e.Hosts {
		for _, p := range h.Status(t).Detectors {
			if p.Crashes > 0 {
				t.Errorf("%s took %s for crashed", h.Name, p.Host)
			}
		}
	}
}
