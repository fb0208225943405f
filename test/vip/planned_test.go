package vip

import (
	"testing"
	"time"

	"headgate/cmd/vip"
	"headgate/test/netns"
	"headgate/test/vip/lab"
)

// overlap is how long both hosts may have an address in a planned move.
const overlap = time.Second

// blink is what lies between two events of two hosts' kernels that happen at once: each is read by a thread of its own.
const blink = 5 * time.Millisecond

// Nobody is refused, and open connections go on, through a move, a drain and a stop.
func plannedMoves(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	for _, c := range []struct {
		what string
		do   func(owner, other *lab.Host)
		undo func(owner *lab.Host)
	}{
		{"move", func(owner, other *lab.Host) { owner.Order(t, "move", vip.Order{VIP: "web", Host: other.Name}) }, func(*lab.Host) {}},
		{"move, asked for elsewhere", func(_, other *lab.Host) {
			other.Order(t, "move", vip.Order{VIP: "192.0.2.100", Host: other.Name})
		}, func(*lab.Host) {}},
		{"release", func(owner, _ *lab.Host) { owner.Order(t, "release", vip.Order{VIP: "web"}) }, func(o *lab.Host) { o.Order(t, "undrain", vip.Order{}) }},
		{"drain", func(owner, _ *lab.Host) { owner.Order(t, "drain", vip.Order{}) }, func(o *lab.Host) { o.Order(t, "undrain", vip.Order{}) }},
		{"stop", func(owner, _ *lab.Host) { owner.StopVIP(t) }, func(o *lab.Host) { o.StartVIP(t) }},
	} {
		const open = 20
		owner := e.Settled(t)
		other := e.Other(owner)
		flows := []*lab.Flows{lab.OpenFlows(t, e.Client, lab.Web4(), open), lab.OpenFlows(t, e.Client, lab.Web6(), open)}
		e.served(t)
		e.mark(t)
		c.do(owner, other)
		e.taken(t, other, c.what)
		e.unnoticed(t, c.what)
		e.shared(t, c.what, overlap, 1)
		for _, f := range flows {
			if alive, why := f.Survivors(t, time.Now()); alive < open {
				t.Errorf("%s: %d of %d open connections survived: %s", c.what, alive, open, why)
			}
			f.Close()
		}
		c.undo(owner)
		e.known(t, other)
	}
}

// Each host in turn is drained by its stop, gets a new proxy and a new process; nobody notices.
func rollingRestart(t *testing.T, proxy *lab.Proxy) {
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b", "c"}, VIPs: lab.Web("preemptDelay: 100ms")})
	e.Start(t)
	e.ask(t)
	for _, h := range e.Hosts {
		h.StopVIP(t)
		h.KillProxy(t)
		h.StartProxy(t)
		h.StartVIP(t)
		e.Settled(t)
	}
	e.unnoticed(t, "a rolling restart")
	for _, s := range []lab.Shares{e.kernel.Shares(t, lab.Web4(), e.marked), e.kernel.Shares(t, lab.Web6(), e.marked)} {
		if s.Several > overlap || s.Nobody > blink {
			t.Errorf("%+v, want one owner all the time", s)
		}
	}
}

func startAtOnce(t *testing.T, proxy *lab.Proxy) {
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b", "c"}, VIPs: lab.Web("")})
	for _, h := range e.Hosts {
		h.StartProxy(t)
	}
	e.mark(t)
	for _, h := range e.Hosts {
		h.SpawnVIP(t)
	}
	netns.Eventually(t, lab.Patience, "somebody has the VIP", func() bool { return len(e.kernel.Holders(lab.Web4())) > 0 })
	for _, h := range e.Hosts {
		h.AwaitVIP(t)
	}
	owner := e.Settled(t)
	pass(t, 2*time.Second)
	e.shared(t, "a start at once", 0, 1)
	e.taken(t, owner, "a start at once")
}
