package speaker

import (
	"slices"
	"time"

	"headgate/vip/election"
)

// judge decides what this host is to the VIP now. What it changes is brought to the kernel by reconcile.
func (m *machine) judge(u *unit, now time.Time) {
	switch u.state {
	case Active:
		m.judgeActive(u, now)
	case Backup:
		m.judgeBackup(u, now)
	case Init: // until looking around ends
	}
}

// judgeActive gives the VIP up when it must, and offers it when another host should have it.
func (m *machine) judgeActive(u *unit, now time.Time) {
	rival, word := m.strongest(u)
	if rival != nil {
		if why := m.yields(u, rival, word, now); why != "" {
			c := change{to: Backup, reason: why, peer: rival.host}
			if why == ProxyNotReady {
				c.detail = m.health.Reason
			}
			m.letGo(u, now, c)
			return
		}
	} else {
		u.rivalFrom = time.Time{}
	}
	if why := m.cannot(u, now); why != "" && !u.released {
		m.letGo(u, now, change{to: Backup, reason: LinkDown, detail: why})
		return
	}
	if !u.checkAt.IsZero() && !now.Before(u.checkAt) && u.check.token == 0 {
		u.checkAt, u.check = time.Time{}, m.startProbe(u)
	}
	if !m.health.Ready {
		m.escape(u, now)
		return
	}
	u.unready, u.escape = time.Time{}, escape{}
	m.offerOn(u, now)
}

// yields tells why this owner lets go for another one; "" when it does not. A lower term lets go at once. A rival with
// less right does the same as soon as it hears of us; where that does not happen it is deaf, and rank decides. It may
// know nothing of us at all: then only we can end it.
func (m *machine) yields(u *unit, rival *peer, word *entry, now time.Time) Reason {
	better := better(u, rival, word, m.Host, u.priority())
	switch {
	case word.Term > u.term && u.offer.to == rival.host && !u.unready.IsZero():
		return ProxyNotReady
	case word.Term > u.term && u.offer.to == rival.host:
		return HandedOver
	case word.Term > u.term:
		return HigherTerm
	case word.Term == u.term && better:
		return LowerRank
	}
	if m.health.Ready && !rival.state.Ready {
		u.contest(now, contestedEvery)
		return "" // it gives the VIP up as soon as it finds out that we answer
	}
	if u.rivalFrom.IsZero() || u.rivalHost != rival.host {
		u.rivalFrom, u.rivalHost = now, rival.host
		u.scheduleAnnounces(now, 0) // a neighbour may have heard of the rival last
	}
	switch stays := now.Sub(u.rivalFrom); {
	case better && stays > rivalPatience:
		return LowerRank
	case stays > deafPatience:
		return DeafRival
	}
	u.contest(now, contestedEvery)
	return ""
}

// escape is how a VIP is given away whose proxy cannot serve.
type escape struct {
	from  time.Time // since when a host that can serve it is known; zero: none is
	alone bool      // at first nobody could
}

// escape gives a VIP away whose proxy cannot serve any more. A host that can is offered it first: then clients are never
// without an address. It has a moment to take it, and no longer. While no host can the VIP stays: without an owner it
// would serve nobody either, clients would wait for answers instead of being refused, and a proxy that only was
// judged hung, as all proxies of a busy machine may be at once, would serve on.
func (m *machine) escape(u *unit, now time.Time) {
	if u.unready.IsZero() {
		u.unready, u.offer, u.escape = now, offer{}, escape{}
	}
	to := election.Owner(election.Policy{VIP: u.Name}, m.candidates(u, now), "")
	if to == "" {
		m.holdOut(u, now)
		return
	}
	if u.escape.from.IsZero() {
		u.escape.from = now
	}
	passed := now.Sub(u.escape.from)
	if u.escape.alone && m.health.Why == Silent {
		passed -= commonPatience // what made all proxies silent may end for ours in this moment
	}
	switch {
	case passed < 0:
	case u.offer.to != to: // however much time has passed, it was not asked
		u.offer = offer{to: to, at: now}
	case now.Sub(u.offer.at) >= escapePatience && !m.fading(to, now):
		m.letGo(u, now, change{to: Backup, reason: ProxyNotReady, detail: m.health.Reason})
	}
}

// holdOut keeps a VIP that neither this host nor any other can serve, unless it must not.
func (m *machine) holdOut(u *unit, now time.Time) {
	u.offer, u.escape = offer{}, escape{alone: true}
	switch {
	case u.released:
		m.letGo(u, now, change{to: Backup, reason: Released, detail: "no other host can serve it"})
	case m.health.Why == Forbidden, m.health.Why == Dead && m.unheard() && now.Sub(u.unready) >= escapePatience:
		m.letGo(u, now, change{to: Backup, reason: ProxyNotReady, detail: m.health.Reason})
	}
}

// unheard tells that there is a host of which nothing is heard, and which may live.
func (m *machine) unheard() bool {
	for _, p := range m.peers {
		if !p.alive && !p.proven {
			return true
		}
	}
	return false
}

// fading tells that a host that seems to live is about to be judged silent, perhaps.
func (m *machine) fading(host election.Host, now time.Time) bool {
	p := m.peers[host]
	return p != nil && !p.quiet.IsZero() && now.Sub(p.quiet) < earlyLasts
}

// offerOn keeps the offer equal to what the election, or the administrator, says.
func (m *machine) offerOn(u *unit, now time.Time) {
	candidates := m.candidates(u, now)
	policy := election.Policy{VIP: u.Name, NoPreempt: u.NoPreempt || u.sticky}
	to := election.Owner(policy, candidates, m.Host)
	if !m.stopping.IsZero() || u.released { // even to a host that is draining
		others := slices.DeleteFunc(slices.Clone(candidates), func(c election.Candidate) bool { return c.Host == m.Host })
		to = election.Owner(policy, others, "")
	}
	if u.wanted != "" {
		switch {
		case ready(candidates, u.wanted):
			to = u.wanted
		case now.Sub(u.wantedAt) > requestLasts: // a host that had released it needed a moment
			u.wanted = ""
		}
	}
	switch {
	case to == m.Host || to == "":
		u.offer = offer{}
		if u.released {
			m.letGo(u, now, change{to: Backup, reason: Released, detail: "no other host can serve it"})
		}
	case u.offer.to != to:
		u.offer = offer{to: to, at: now, manual: to == u.wanted}
		m.Log.Debug("offering a VIP", "vip", u.Name, "to", to)
	case now.Sub(u.offer.at) >= m.Timing.OfferTimeout:
		m.Log.Warn("the successor does not take the VIP over: it stays, and the next one is asked", "vip", u.Name, "successor", to)
		if u.spurned == nil {
			u.spurned = map[election.Host]time.Time{}
		}
		u.spurned[to] = now.Add(spurnPause)
		u.wanted, u.offer = "", offer{}
		m.offerOn(u, now)
	}
}

func ready(candidates []election.Candidate, host election.Host) bool {
	return slices.ContainsFunc(candidates, func(c election.Candidate) bool { return c.Host == host && c.Ready })
}

// letGo makes the VIP nobody's as far as this host is concerned.
func (m *machine) letGo(u *unit, now time.Time, c change) {
	// Nobody had it a moment ago: whoever takes it next needs no probe, this host among them. One that slept, or whose
	// link was down, cannot know that.
	if c.peer == "" && c.reason != Stalled && c.reason != LinkDown {
		u.freed = freed{u.term, now, m.Host}
	}
	u.rest()
	m.change(u, now, c)
}

// judgeBackup takes the VIP when it is offered, or when it is free and this host is the best one for it.
func (m *machine) judgeBackup(u *unit, now time.Time) {
	owner, word := m.strongest(u)
	able := m.health.Ready && m.cannot(u, now) == "" && m.stopping.IsZero()
	if owner != nil {
		u.freeSince, u.probe, u.nextProbe, u.occupant = time.Time{}, probing{}, time.Time{}, nil
		if able && word.Offered == hostID(m.Host) {
			c := change{to: Active, reason: HandedOver, peer: owner.host}
			if !owner.state.Ready {
				c.reason = OwnerUnready
			}
			m.take(u, now, c)
			u.sticky = word.Manual
		} else if able && m.deaf(u, owner, now) {
			m.take(u, now, change{to: Active, reason: OwnerUnready, peer: owner.host, detail: "it offers it to nobody"})
		} else if able && !now.Before(m.graceTill) {
			m.probeEarly(u, owner, now)
		}
		return
	}
	if u.freeSince.IsZero() {
		u.freeSince = now
	}
	if !able || now.Before(m.graceTill) {
		u.probe = probing{}
		return
	}
	wait, turn := m.turn(u, now)
	if !turn || now.Before(u.freeSince.Add(wait)) {
		return
	}
	free := m.freedom(u, now)
	switch {
	case !free.probe:
		if !m.adopting(u, now) {
			m.take(u, now, free.change)
		}
	case m.probedEarly(u, now):
		m.take(u, now, free.change)
	case m.claimedByOther(u, now):
		u.probe = probing{}
	case u.probe.token == 0 && !now.Before(u.nextProbe):
		u.probe = m.startProbe(u)
	}
}

// deaf tells that the owner cannot serve the VIP and does not hear that this host, the next one for it, can.
func (m *machine) deaf(u *unit, owner *peer, now time.Time) bool {
	wait, turn := m.turn(u, now)
	if owner.state.Ready || !turn {
		u.ownerUnready = time.Time{}
		return false
	}
	if u.ownerUnready.IsZero() {
		u.ownerUnready = now
	}
	return now.Sub(u.ownerUnready) >= deafOwner+wait && !now.Before(m.graceTill)
}

// turn tells how long this host waits until it takes a free VIP: nothing for the best one, a step more for each next
// one, because the best one may know better.
func (m *machine) turn(u *unit, now time.Time) (time.Duration, bool) {
	ranked := election.Rank(u.Name, m.candidates(u, now))
	at := slices.IndexFunc(ranked, func(c election.Candidate) bool { return c.Host == m.Host })
	return time.Duration(at) * claimStep, at >= 0
}

// freedom is why a VIP has no owner, and whether a probe must confirm it.
type freedom struct {
	change
	probe   bool
	contest time.Duration // how long the old owner's kernel may still answer
}

func (m *machine) freedom(u *unit, now time.Time) freedom {
	top := u.top()
	if f := u.freed; f.term == top && f.host != "" && now.Sub(f.at) < wordLasts {
		return freedom{change: change{to: Active, reason: OwnerReleased, peer: f.host}}
	}
	owner, word := m.owning(u, func(p *peer) bool { return !p.alive })
	switch {
	case owner == nil:
		return freedom{change: change{to: Active, reason: Vacant}, probe: true}
	case word.Term < top: // somebody had it after that one; it may be there still
		return freedom{change: change{to: Active, reason: Vacant}, probe: true, contest: m.Timing.Lasting}
	}
	// An owner that was cut off gives its addresses the long lifetime, and we did not hear of it.
	lasts := m.Timing.Lasting
	if owner.proven && !owner.state.Lasting {
		lasts = m.Timing.Lifetime
	}
	f := freedom{change: change{to: Active, reason: OwnerSilent, peer: owner.host, detail: owner.reason}, probe: true, contest: lasts}
	// The kernel of a dead speaker's host answers until the address expires. After that, whoever answers is another one.
	if owner.proven && now.Sub(owner.since) < lasts+kernelMargin {
		f.reason, f.probe = OwnerCrashed, false
	}
	return f
}

// claimedByOther tells that another host is about to take the VIP and goes first: it adopts what it held before, it
// began to probe while we do not, or it has the better rank.
func (m *machine) claimedByOther(u *unit, now time.Time) bool {
	if m.adopting(u, now) {
		return true
	}
	for _, p := range m.peers {
		e := p.state.find(u.id)
		if !p.alive || e == nil || e.Claim != claimProbing || now.Sub(p.claiming[u.id]) > claimPatience {
			continue
		}
		if u.probe.token == 0 || better(u, p, e, m.Host, u.priority()) {
			return true
		}
	}
	return false
}

func (m *machine) adopting(u *unit, now time.Time) bool {
	for _, p := range m.peers {
		e := p.state.find(u.id)
		if p.alive && e != nil && e.Claim == claimAdopting && now.Sub(p.claiming[u.id]) <= claimPatience {
			return true
		}
	}
	return false
}

// take makes this host the owner, with a term above all that were heard.
func (m *machine) take(u *unit, now time.Time, c change) {
	free := freedom{}
	if c.reason == OwnerCrashed || c.reason == OwnerSilent || c.reason == Vacant {
		free = m.freedom(u, now)
	}
	u.rest()
	u.term = saturating(u.top())
	u.moves++
	u.announced = now
	u.scheduleAnnounces(now, free.contest)
	if c.reason == OwnerCrashed || c.reason == Adopted {
		u.checkAt = now // it was taken without a probe: does a host answer that says nothing?
	}
	m.change(u, now, c)
}

// wants says in a few words what this host does about the VIP.
func (m *machine) wants(u *unit, now time.Time) string {
	owner, _ := m.strongest(u)
	switch {
	case u.state == Init:
		return "looks around"
	case u.state == Active && u.offer.to != "":
		return "gives it to " + string(u.offer.to)
	case u.state == Active && !m.health.Ready:
		return "keeps it although its proxy is not ready, for no other host can serve it"
	case u.state == Active && u.defend.IsZero() && u.rivalFrom.IsZero():
		return "serves it"
	case u.state == Active:
		return "serves it and defends it against " + text(u.rival)
	case owner != nil:
		return "stands by"
	case !m.health.Ready:
		return "waits for the proxy: " + m.health.Reason
	case m.cannot(u, now) != "":
		return "cannot take it: " + m.cannot(u, now)
	case u.occupant != nil:
		return "refuses to take it: " + text(u.occupant) + " answers for it"
	}
	return "is about to take it, unless a better host does"
}
