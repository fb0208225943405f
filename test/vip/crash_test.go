package vip

import (
	"math/rand/v2"
	"testing"
	"time"

	"headgate/test/netns"
	"headgate/test/vip/lab"
)

// lifetime is how long the kernel keeps an address at most after its speaker's last word.
const lifetime = 2500 * time.Millisecond

// The dead speaker's kernel answers until the address expires; the new owner takes it at once, and clients notice nothing.
func speakerKilled(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	owner := e.Settled(t)
	other := e.Other(owner)
	e.mark(t)
	owner.KillVIP(t)
	e.taken(t, other, "the speaker is killed")
	e.unnoticed(t, "the speaker is killed")
	e.shared(t, "the speaker is killed", lifetime+time.Second, 1)
	owner.StartVIP(t)
	e.Settled(t)
	pass(t, time.Second)
	e.shared(t, "and starts again", lifetime+time.Second, 1)
	e.known(t, other)
}

func everythingKilled(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	for range 2 {
		owner := e.Settled(t)
		other := e.Other(owner)
		e.mark(t)
		owner.KillBoth(t)
		e.taken(t, other, "speaker and proxy are killed")
		e.recovered(t, "speaker and proxy are killed")
		e.shared(t, "speaker and proxy are killed", lifetime+time.Second, 1)
		owner.StartProxy(t)
		owner.StartVIP(t)
		e.known(t, other)
	}
}

// A host that nobody could replace loses nothing by a kill -9, a stop or a cleanup of its speaker.
func alone(t *testing.T, proxy *lab.Proxy) {
	e := open(t, proxy, lab.Config{Hosts: []string{"a"}, VIPs: lab.Web("")})
	e.Start(t)
	e.ask(t)
	h := e.Hosts[0]
	e.taken(t, h, "a start")
	e.mark(t)
	for range 2 {
		h.KillVIP(t)
		h.Cleanup(t)
		pass(t, lifetime)
		h.StartVIP(t)
		e.Settled(t)
		h.StopVIP(t)
		pass(t, lifetime)
		h.StartVIP(t)
		e.Settled(t)
	}
	e.unnoticed(t, "restarts of a host alone")
	e.shared(t, "restarts of a host alone", 0, 0)
	if !e.alone(h) {
		t.Error("the addresses are gone")
	}
}

// However it is hit, nothing is left behind and there is one owner in the end.
func killedAtRandom(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	e.mark(t)
	const kills = 12
	for range kills {
		h := e.Hosts[rand.N(len(e.Hosts))] //nolint:gosec // any
		pass(t, rand.N(700*time.Millisecond))
		h.KillVIP(t)
		pass(t, rand.N(200*time.Millisecond))
		h.StartVIP(t)
	}
	e.known(t, e.Settled(t))
	for _, s := range []lab.Shares{e.kernel.Shares(t, lab.Web4(), e.marked), e.kernel.Shares(t, lab.Web6(), e.marked)} {
		if s.Several > lifetime+time.Second {
			t.Errorf("%+v, want two owners for no longer than a lifetime", s)
		}
	}
	// Whoever is killed last and never started again is swept by its cleanup.
	owner := e.Settled(t)
	owner.KillVIP(t)
	owner.Cleanup(t)
	e.taken(t, e.Other(owner), "the last kill")
}

// A speaker that hangs loses its addresses by their lifetime, and does not ask for them when it goes on.
func stoppedAndContinued(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	owner := e.Settled(t)
	other := e.Other(owner)
	e.mark(t)
	owner.FreezeVIP(t)
	e.taken(t, other, "the speaker hangs")
	for begun := time.Now(); time.Since(begun) < 7500*time.Millisecond; pass(t, 100*time.Millisecond) {
		if !e.alone(other) {
			t.Fatalf("meanwhile %v have the VIP", e.kernel.Holders(lab.Web4()))
		}
	}
	owner.ThawVIP(t)
	e.Settled(t)
	pass(t, time.Second)
	e.shared(t, "the speaker hung for 10 s", 0, 1)
	e.known(t, other)
	e.recovered(t, "the speaker hung for 10 s")
}

func proxyFails(t *testing.T, proxy *lab.Proxy) {
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b"}, VIPs: lab.Web("nopreempt: true")})
	for _, h := range e.Hosts {
		h.Settings = []string{"proxyTimeout: 300ms"}
	}
	e.Start(t)
	e.ask(t)
	owner := e.Settled(t)
	other := e.Other(owner)
	e.mark(t)
	owner.KillProxy(t)
	e.taken(t, other, "the proxy is killed")
	e.recovered(t, "the proxy is killed")
	e.shared(t, "the proxy is killed", overlap, 1)
	owner.StartProxy(t)
	e.Settled(t)
	e.mark(t)
	other.FreezeProxy(t)
	e.taken(t, owner, "the proxy hangs")
	e.recovered(t, "the proxy hangs")
	e.shared(t, "the proxy hangs", overlap, 1)
	other.ThawProxy(t)
	netns.Eventually(t, lab.Patience, "it is ready again", func() bool { return other.Status(t).Ready })
	e.known(t, owner)
}
