package speaker

import (
	"bytes"
	"net"
	"slices"
	"time"

	"headgate/vip/election"
)

// startProbe asks who answers for the VIP; probed gets the result.
func (m *machine) startProbe(u *unit) probing {
	m.token++
	m.probe(probe{token: m.token, vip: u.id, addresses: u.Addresses})
	return probing{token: m.token}
}

// probed learns what came of a probe. One that was given up meanwhile is no news.
func (m *machine) probed(now time.Time, r probeResult) {
	for _, u := range m.units {
		switch {
		case u.id != r.vip:
		case u.probe.token == r.token:
			u.probe = probing{}
			m.probedFree(u, now, r)
		case u.early.token == r.token:
			u.early.token, u.early.free = 0, r.err == nil && m.foreign(r) == nil
		case u.check.token == r.token:
			u.check = probing{}
			m.checked(u, now, r)
		}
	}
}

// probeEarly asks for a VIP whose owner is quiet, once for each time, where this host is the next one for it.
func (m *machine) probeEarly(u *unit, owner *peer, now time.Time) {
	if !owner.quiet.After(u.early.began) || now.Sub(owner.quiet) >= earlyLasts {
		return
	}
	next := election.Rank(u.Name, slices.DeleteFunc(m.candidates(u, now), func(c election.Candidate) bool { return c.Host == owner.host }))
	if len(next) == 0 || next[0].Host != m.Host {
		return
	}
	u.early = early{owner: owner.host, began: now, token: m.startProbe(u).token}
}

// probedEarly makes the early probe of a VIP whose owner fell silent meanwhile count: as the answer, or as the probe
// that is under way. True when it is free.
func (m *machine) probedEarly(u *unit, now time.Time) bool {
	e := u.early
	owner, _ := m.owning(u, func(p *peer) bool { return !p.alive })
	if owner == nil || owner.host != e.owner || e.began.Before(owner.quiet) || now.Sub(e.began) >= earlyLasts {
		return false
	}
	u.early.owner = "" // once
	if e.token != 0 {
		u.probe, u.early.token = probing{e.token}, 0
	}
	return e.free && m.stillFree(u, now)
}

// probedFree takes a free VIP for which nobody answers.
func (m *machine) probedFree(u *unit, now time.Time, r probeResult) {
	if u.state != Backup {
		return
	}
	occupant := m.foreign(r)
	switch {
	case occupant != nil:
		m.refuse(u, now, occupant)
	case r.err != nil:
		u.nextProbe = now.Add(probeRetry)
		m.Log.Warn("nobody can be asked who has the VIP: it is not taken", "vip", u.Name, "err", r.err)
	case m.stillFree(u, now):
		m.take(u, now, m.freedom(u, now).change)
	}
}

// foreign gives a hardware address that answered and is none of this host's; nil for none.
func (m *machine) foreign(r probeResult) net.HardwareAddr {
	for _, a := range r.answers {
		if !m.own(a.hardware) {
			return a.hardware
		}
	}
	return nil
}

func (m *machine) own(hardware net.HardwareAddr) bool {
	for _, l := range m.links {
		if bytes.Equal(l.HardwareAddr, hardware) {
			return true
		}
	}
	return false
}

// stillFree looks at what may have changed during a probe.
func (m *machine) stillFree(u *unit, now time.Time) bool {
	owner, _ := m.strongest(u)
	_, turn := m.turn(u, now)
	// Of two hosts that probe at once the better one goes on; its word may have come just now.
	u.probe.token = m.token
	first := !m.claimedByOther(u, now)
	u.probe.token = 0
	return owner == nil && turn && first && m.health.Ready && m.cannot(u, now) == "" && m.stopping.IsZero()
}

// refuse leaves a VIP to whoever answers for it, and asks again later.
func (m *machine) refuse(u *unit, now time.Time, occupant net.HardwareAddr) {
	p := m.peerWith(occupant)
	longest := maxProbePause
	if p == nil {
		longest = maxForeignPause
	}
	u.pause = min(max(probePause, u.pause*3/2), longest)
	u.nextProbe = now.Add(u.pause)
	if bytes.Equal(u.occupant, occupant) {
		return
	}
	u.occupant = occupant
	if p != nil {
		m.Log.Warn("the owner says nothing and still answers for the VIP: it is not taken", "vip", u.Name, "peer", p.host, "hardware", text(occupant))
		return
	}
	m.Log.Warn("a machine that is none of ours has the VIP's address: it is not taken; find that machine and remove the address there",
		"vip", u.Name, "hardware", text(occupant))
}

func (m *machine) peerWith(hardware net.HardwareAddr) *peer {
	for _, p := range m.peers {
		if p.has(hardware) {
			return p
		}
	}
	return nil
}

// conflict answers another machine that announces what is ours (RFC 5227 section 2.4 (b), but without giving up: a
// forged announcement must not move the VIP). A host of ours that says nothing is looked at more closely.
func (m *machine) conflict(now time.Time, c Conflict) {
	for _, u := range m.units {
		if u.state != Active || !u.has(c.IP) || m.own(c.HardwareAddr) {
			continue
		}
		p := m.peerWith(c.HardwareAddr)
		if p != nil && p.alive && (p.host == u.offer.to || m.outranks(u, p)) {
			continue // the successor announces before its word is here
		}
		u.conflicts++
		u.rival = bytes.Clone(c.HardwareAddr)
		// The kernel of a speaker that is dead answers for a while: that is as it must be.
		if p == nil || !p.proven || !now.Before(u.contested) {
			m.tell(u, now, p)
		}
		u.defend = later(now, u.announced.Add(defenceGap))
		if p == nil && m.health.Ready || p != nil && p.alive {
			continue
		}
		u.contest(now, rivalContest) // both go on announcing until one lets go, whatever gets lost
		if u.checkAt.IsZero() && u.check.token == 0 {
			u.checkAt = later(now, u.announced.Add(checkGap))
		}
	}
}

// outranks tells that the peer's word puts it above this host's claim.
func (m *machine) outranks(u *unit, p *peer) bool {
	e := p.state.find(u.id)
	return e != nil && e.Claim == claimActive && e.Term > u.term
}

func (m *machine) tell(u *unit, now time.Time, p *peer) {
	if now.Sub(u.told) < tellGap && !u.told.IsZero() {
		return
	}
	u.told = now
	var host election.Host
	if p != nil {
		host = p.host
	}
	m.Log.Warn("another machine announces a VIP that this host owns: it is answered", "vip", u.Name,
		"hardware", text(u.rival), "peer", host, "conflicts", u.conflicts)
}

// checked decides what follows from somebody else answering for a VIP that is ours. Of two of our hosts that do not
// hear each other the better rank keeps it, and the other one begins to probe again: that ends with the rival's silence.
func (m *machine) checked(u *unit, now time.Time, r probeResult) {
	hardware := m.foreign(r)
	if u.state != Active || hardware == nil {
		return
	}
	p := m.peerWith(hardware)
	expected := p != nil && p.proven && now.Before(u.contested) // the kernel of the owner that crashed
	if expected || p != nil && p.alive {
		return
	}
	u.rival = hardware
	u.conflicts++
	m.tell(u, now, p)
	u.contest(now, contestedEvery)
	if m.keeps(u, p) {
		return
	}
	c := change{to: Backup, reason: RivalAnswers, detail: text(hardware)}
	if p != nil {
		c.peer = p.host
	}
	m.letGo(u, now, c)
	u.occupant, u.nextProbe = hardware, now.Add(probePause)
}

// keeps tells that this host keeps a VIP for which another machine answers, which is p or none of ours. Of two the one keeps it that
// can serve it, then the better rank. A stranger is yielded to only by a host that cannot serve: it may be a host of ours that was
// never heard, and whatever it is, it answers.
func (m *machine) keeps(u *unit, p *peer) bool {
	if p == nil {
		return m.health.Ready
	}
	e := p.state.find(u.id)
	return e == nil || m.health.Ready && !better(u, p, e, m.Host, u.priority())
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
