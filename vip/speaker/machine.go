package speaker

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"net"
	"slices"
	"time"

	"headgate/vip/election"
)

// machine is the state of the speaker. Events change what it knows; step decides and acts. Every method is told the
// time, and all times come from one clock that never goes back.
type machine struct {
	Config
	boot  uint64
	units []*unit
	peers map[election.Host]*peer
	links map[string]Link
	probe func(probe) // begins a probe; its result comes back through probed
	token uint64      // of the last probe

	started   time.Time
	settleAt  time.Time // the end of looking around
	settled   bool
	known     bool // the proxy's health was told
	health    Health
	draining  bool
	stopping  time.Time // zero: not
	stopped   bool
	requests  []outgoing
	nonce     uint32
	sequence  uint64
	published []byte // without the sequence
	recent    []Transition

	fresh     bool          // nothing was given to the kernel yet: what it holds is from the run before
	lifetime  time.Duration // that the kernel took last, and when
	appliedAt time.Time
	tried     []Address // what the kernel was last given, and whether it refused; nil before the first time
	failed    bool
	dirty     bool // the kernel changed behind our back
	retryAt   time.Time
	// triedLifetime belongs to tried.
	triedLifetime time.Duration
	relink        bool // look at the links again
	stepped       time.Time
	graceTill     time.Time // nothing is claimed before: news may wait in the queues
	stalls        uint64
}

// outgoing is a request of this host.
type outgoing struct {
	request
	till time.Time
}

func newMachine(c Config, boot uint64) *machine {
	m := &machine{Config: c, boot: boot, peers: map[election.Host]*peer{}, links: map[string]Link{}, draining: c.Draining, fresh: true}
	for _, v := range c.VIPs {
		m.units = append(m.units, &unit{VIP: v, id: vipID(v.Name)})
	}
	slices.SortFunc(m.units, func(a, b *unit) int { return cmp.Compare(a.Name, b.Name) })
	return m
}

// begin looks at what the run before left.
func (m *machine) begin(now time.Time) {
	m.started, m.stepped, m.relink = now, now, true
	m.look(now)
	held, err := m.Kernel.Held()
	if err != nil {
		m.Log.Warn("addresses of the run before are unknown: none is adopted", "err", err)
	}
	for _, u := range m.units {
		u.since = now
		u.held = !slices.ContainsFunc(u.Addresses, func(a Address) bool { return !holds(held, a) })
	}
}

func holds(held []Address, a Address) bool {
	return slices.ContainsFunc(held, func(h Address) bool { return h.IP == a.IP && h.Interface == a.Interface })
}

// look begins looking around: nothing is claimed until every expected peer was heard and is ready, or the time is over.
// Hosts that start together so have one owner from the first moment on. Two hosts that know nothing of each other do
// not end it at the same moment: the probe of the second one is answered.
func (m *machine) look(now time.Time) {
	const spread = 150 // ms
	m.settled, m.settleAt = false, now
	if m.Peers > 0 {
		h := fnv.New32a()
		_, _ = h.Write([]byte(m.Host)) // documented never to fail
		m.settleAt = now.Add(m.Timing.Settle + time.Duration(h.Sum32()%spread)*time.Millisecond)
	}
}

func (m *machine) setHealth(h Health) { m.known, m.health = true, h }

func (m *machine) kernelChanged() { m.dirty, m.relink = true, true }

func (m *machine) undrain() {
	m.draining = false
	for _, u := range m.units {
		u.released = false
	}
}

func (m *machine) stop(now time.Time) {
	if m.stopping.IsZero() {
		m.stopping = now
		m.Log.Info("stopping: the VIPs are handed over")
	}
}

func (m *machine) unit(name string) (*unit, error) {
	for _, u := range m.units {
		if u.Name == name || slices.ContainsFunc(u.Addresses, func(a Address) bool { return a.IP.String() == name }) {
			return u, nil
		}
	}
	names := make([]string, len(m.units))
	for i, u := range m.units {
		names[i] = u.Name
	}
	return nil, fmt.Errorf("no VIP is called %q: write one of %q", name, names)
}

// move asks the owner of the VIP, which may be this host, to give it to another one, and that one to take it.
func (m *machine) move(now time.Time, vip string, to election.Host) error {
	u, err := m.unit(vip)
	if err != nil {
		return err
	}
	if err := m.canMoveTo(u, to, now); err != nil {
		return fmt.Errorf("%s cannot be moved to %s: %w", u.Name, to, err)
	}
	if to == m.Host {
		u.released = false
	}
	owner, _ := m.strongest(u)
	switch {
	case u.state == Active && to == m.Host:
		u.sticky = true
	case u.state != Active && owner == nil && to == m.Host: // nobody need be asked: a free VIP is taken
	default:
		if u.state == Active {
			u.want(to, now)
		}
		// Told even when the VIP is ours, or nobody's: a host that released it is to know that it is wanted there.
		m.nonce = hash32(fmt.Sprint(m.boot, m.nonce))
		m.requests = append(m.requests, outgoing{request{m.nonce, u.id, hostID(to)}, now.Add(requestLasts)})
		m.requests = m.requests[max(0, len(m.requests)-maxRequests):]
	}
	return nil
}

// canMoveTo says why the host cannot take the VIP.
func (m *machine) canMoveTo(u *unit, to election.Host, now time.Time) error {
	if to == m.Host {
		switch {
		case !m.health.Ready:
			return fmt.Errorf("its proxy is not ready: %s", m.health.Reason)
		case m.draining:
			return fmt.Errorf("it is draining: undrain it first")
		}
		if why := m.cannot(u, now); why != "" && !u.released {
			return fmt.Errorf("%s", why)
		}
		return nil
	}
	p := m.peers[to]
	if p == nil {
		return fmt.Errorf("no host of that name is known: write one of %q", append(slices.Sorted(maps.Keys(m.peers)), m.Host))
	}
	e := p.state.find(u.id)
	switch {
	case !p.alive:
		return fmt.Errorf("nothing is heard of it: %s", p.reason)
	case e == nil:
		return fmt.Errorf("it does not have this VIP in its configuration")
	case p.state.Draining || p.state.Leaving:
		return fmt.Errorf("it is draining or stopping")
	case !p.state.Ready:
		return fmt.Errorf("its proxy is not ready")
	}
	// A host that released the VIP becomes able again when it hears that it is wanted.
	return nil
}

func (m *machine) release(vip string) error {
	u, err := m.unit(vip)
	if err != nil {
		return err
	}
	u.released = true
	return nil
}

// peerEvent learns what happened to a peer.
func (m *machine) peerEvent(now time.Time, e PeerEvent) {
	if e.Host == m.Host {
		return
	}
	p := m.peers[e.Host]
	if p == nil {
		p = newPeer(e.Host, now)
		m.peers[e.Host] = p
	}
	switch e.Kind {
	case PeerHeard:
		m.heard(now, p, e.State)
	case PeerCrashed:
		m.bereft(now, p)
		p.fall(now, e.Reason)
		p.proven = true
	case PeerSilent:
		m.bereft(now, p)
		p.fall(now, e.Reason)
	case PeerQuiet:
		p.quiet = now
	case PeerGone:
		p.fall(now, e.Reason)
		if m.holderOf(p) == nil {
			delete(m.peers, e.Host)
		}
	}
}

// bereft announces what is ours anew when a host is lost in the middle of a move. A successor may have added and announced
// the address, and nobody heard of it: clients ask it until its kernel forgets the address. An owner that did not come to
// let go answers for it as long.
func (m *machine) bereft(now time.Time, p *peer) {
	for _, u := range m.units {
		e := p.state.find(u.id)
		if u.state == Active && p.alive && (u.offer.to == p.host || e != nil && e.Claim == claimActive) {
			u.scheduleAnnounces(now, m.Timing.Lifetime)
		}
	}
}

// holderOf gives a VIP that the peer owned last, as far as is known; nil for none.
func (m *machine) holderOf(p *peer) *unit {
	for _, u := range m.units {
		if e := p.state.find(u.id); e != nil && e.Claim == claimActive && e.Term >= u.heard {
			return u
		}
	}
	return nil
}

func (m *machine) heard(now time.Time, p *peer, text []byte) {
	if len(text) == 0 || bytes.Equal(text, p.text) {
		if len(text) == 0 && !p.alive && p.proven {
			p.state, p.text = nil, nil // what it owned ended with the run that crashed
		}
		revived := !p.alive
		p.rise(now)
		if revived && p.state != nil {
			m.learn(now, p, p.state)
			for _, e := range p.state.Entries {
				note(p.able, e.ID, now, func() bool { return p.can(&e) })
			}
		}
		return
	}
	state, err := decode(text)
	if err != nil {
		if p.err == "" {
			m.Log.Warn("a peer cannot be understood: it is no candidate", "peer", p.host, "err", err)
		}
		p.rise(now)
		p.state, p.text, p.err = nil, bytes.Clone(text), err.Error()
		return
	}
	old, news := p.hear(now, state, bytes.Clone(text))
	if !news {
		return
	}
	m.learn(now, p, old)
	for _, r := range p.fresh() {
		m.requested(now, p, r)
	}
}

// learn compares the state of a peer with the one before.
func (m *machine) learn(now time.Time, p *peer, old *message) {
	for _, u := range m.units {
		before, after := old.find(u.id), p.state.find(u.id)
		if after == nil {
			continue
		}
		lost := before != nil && before.Claim == claimActive && after.Claim != claimActive
		if lost && after.Claim != claimAdopting && before.Term >= u.top() {
			u.freed = freed{before.Term, now, p.host}
		}
		u.heard = max(u.heard, after.Term)
		adopting := before != nil && before.Claim == claimAdopting
		switch {
		case u.state != Active:
		case after.Claim == claimAdopting && !adopting: // the run before may have announced it
			u.scheduleAnnounces(now, m.Timing.Lifetime)
		case lost, adopting && after.Claim == claimNone:
			u.scheduleAnnounces(now, 0) // the other one's addresses are off: the neighbours hear it at once
		}
	}
}

// requested does what another host's administrator asks for.
func (m *machine) requested(now time.Time, p *peer, r request) {
	for _, u := range m.units {
		if u.id != r.VIP {
			continue
		}
		if hostID(m.Host) == r.To {
			u.released = false
			continue
		}
		for _, to := range m.peers {
			if to.id != r.To || u.state != Active {
				continue
			}
			m.Log.Info("a move is asked for", "vip", u.Name, "to", to.host, "by", p.host)
			if err := m.canMoveTo(u, to.host, now); err != nil {
				m.Log.Warn("the move cannot be done", "vip", u.Name, "to", to.host, "err", err)
				continue
			}
			u.want(to.host, now)
		}
	}
}

// step decides and acts, and gives the time at which it wants to be called again at the latest.
func (m *machine) step(now time.Time) time.Time {
	m.stall(now)
	if m.relink {
		m.relink = false
		m.readLinks()
	}
	m.settle(now)
	for _, u := range m.units {
		m.judge(u, now)
	}
	m.reconcile(now)
	for _, u := range m.units {
		if u.state == Active && u.announceDue(now) {
			m.announce(u)
		}
	}
	m.finish(now)
	m.publish(now)
	m.stepped = now
	return m.next(now)
}

// stall finds out that this process did not run for a while. Whoever slept longer than the kernel keeps an address
// owns nothing any more; whoever slept at all first listens to what waits in the queues.
func (m *machine) stall(now time.Time) {
	const slept = maxSleep + 100*time.Millisecond
	const grace = 100 * time.Millisecond
	if now.Sub(m.stepped) > slept {
		m.graceTill = now.Add(grace)
	}
	if len(m.tried) == 0 || now.Sub(m.appliedAt) < m.lifetime {
		return
	}
	why := change{to: Init, reason: Stalled, detail: "not refreshed for " + now.Sub(m.appliedAt).Round(time.Millisecond).String()}
	if m.failed {
		why.reason = KernelRefused
	} else {
		m.stalls++
		m.Log.Warn("this process did not run for longer than the kernel keeps an address: it owns nothing and looks around")
	}
	for _, u := range m.units {
		if u.state == Active {
			m.letGo(u, now, why)
		}
	}
	m.look(now)
}

func (m *machine) readLinks() {
	for _, u := range m.units {
		for _, a := range u.Addresses {
			m.links[a.Interface] = Link{}
		}
	}
	for name := range m.links {
		link, err := m.Kernel.Link(name)
		if err != nil {
			m.Log.Debug("interface is as good as down", "iface", name, "err", err)
			link = Link{}
		}
		m.links[name] = link
	}
}

// settle ends looking around.
func (m *machine) settle(now time.Time) {
	if m.settled {
		return
	}
	if !m.known && now.Before(m.started.Add(healthPatience)) {
		return
	}
	ready := 0
	for _, p := range m.peers {
		if p.alive && p.state != nil && p.state.Ready {
			ready++
		}
	}
	if ready < m.Peers && now.Before(m.settleAt) || now.Before(m.graceTill) {
		return
	}
	m.settled = true
	for _, u := range m.units {
		if u.state == Init {
			m.settleUnit(u, now)
		}
	}
}

func (m *machine) settleUnit(u *unit, now time.Time) {
	rival, _ := m.strongest(u)
	if u.held && rival == nil && m.stopping.IsZero() && m.cannot(u, now) == "" && (m.health.Ready || m.nobodyCan(u, now)) {
		m.take(u, now, change{to: Active, reason: Adopted})
		return
	}
	m.change(u, now, change{to: Backup, reason: Started})
}

// nobodyCan tells that this host, whose proxy is not ready, may keep what its kernel held: every expected host was
// heard, and none is ready.
func (m *machine) nobodyCan(u *unit, now time.Time) bool {
	alive := 0
	for _, p := range m.peers {
		if p.alive {
			alive++
		}
	}
	return m.known && m.health.Why != Forbidden && alive >= m.Peers && len(election.Rank(u.Name, m.candidates(u, now))) == 0
}

// cannot says why this host cannot have the VIP, but for the proxy; "" when it can.
func (m *machine) cannot(u *unit, now time.Time) string {
	for _, a := range u.Addresses {
		if !m.links[a.Interface].Up {
			return a.Interface + " is down or does not exist"
		}
	}
	switch {
	case u.released:
		return "released by the administrator: 'headgate undrain' or 'headgate vip move' makes it a candidate again"
	case now.Before(u.blocked):
		return "the kernel refused its addresses"
	}
	return ""
}

// candidates are this host and the living peers that have the VIP. Those that were offered it in vain are left out
// for a while.
func (m *machine) candidates(u *unit, now time.Time) []election.Candidate {
	list := []election.Candidate{m.self(u, now)}
	for _, p := range m.peers {
		e := p.state.find(u.id)
		if !p.alive || e == nil {
			continue
		}
		since, able := p.able[u.id]
		list = append(list, election.Candidate{
			Host: p.host, Priority: e.Priority, Draining: p.state.Draining,
			Ready:   able && !now.Before(u.spurned[p.host]),
			Settled: able && now.Sub(since) >= u.PreemptDelay,
		})
	}
	return list
}

// self is this host as a candidate.
func (m *machine) self(u *unit, now time.Time) election.Candidate {
	return election.Candidate{
		Host: m.Host, Priority: u.priority(), Draining: m.draining, Settled: true,
		Ready: m.health.Ready && (u.state == Active || m.cannot(u, now) == ""),
	}
}

// strongest gives the living peer that owns the VIP with the best right, and its word; nil for nobody.
func (m *machine) strongest(u *unit) (*peer, *entry) {
	return m.owning(u, func(p *peer) bool { return p.alive })
}

func (m *machine) owning(u *unit, which func(*peer) bool) (*peer, *entry) {
	var best *peer
	var word *entry
	for _, p := range m.peers {
		e := p.state.find(u.id)
		if e == nil || e.Claim != claimActive || !which(p) {
			continue
		}
		if best == nil || e.Term > word.Term || e.Term == word.Term && better(u, p, e, best.host, word.Priority) {
			best, word = p, e
		}
	}
	return best, word
}

// better tells whether the peer has the better rank than another host.
func better(u *unit, p *peer, e *entry, other election.Host, priority uint8) bool {
	return election.Better(u.Name, election.Candidate{Host: p.host, Priority: e.Priority}, election.Candidate{Host: other, Priority: priority})
}

// change is a transition to be made.
type change struct {
	to     State
	reason Reason
	peer   election.Host
	detail string
}

// change notes and tells a transition; the kernel follows in reconcile.
func (m *machine) change(u *unit, now time.Time, c change) {
	t := Transition{
		VIP: u.Name, From: u.state, To: c.to, Term: u.top(), Reason: c.reason, Peer: c.peer, Detail: c.detail,
		Priority: u.priority(), At: now,
	}
	if c.to == Active {
		t.Term = u.term
	}
	u.state, u.since, u.reason = c.to, now, c.reason
	m.recent = append(m.recent, t)
	m.recent = slices.Clone(m.recent[max(0, len(m.recent)-recentTransitions):])
	m.Log.Info("VIP "+t.To.String(), //nolint:sloglint // the state is one of three words
		slog.String("vip", t.VIP), slog.String("from", t.From.String()), slog.String("reason", string(t.Reason)),
		slog.Uint64("term", uint64(t.Term)), slog.String("peer", string(t.Peer)), slog.String("detail", t.Detail))
	if m.Observe != nil {
		m.Observe(t)
	}
}

// snapshot gives the account for people.
func (m *machine) snapshot(now time.Time) Status {
	s := Status{
		Host: m.Host, Time: now, Ready: m.health.Ready, Health: m.health.Reason, Draining: m.draining,
		Stopping: !m.stopping.IsZero(), Lasting: m.lifetime >= m.Timing.Lasting, Stalls: m.stalls, Recent: m.recent,
		VIPs: []VIPStatus{}, Peers: []PeerStatus{},
	}
	for _, u := range m.units {
		s.VIPs = append(s.VIPs, m.vipStatus(u, now))
	}
	for _, name := range slices.Sorted(maps.Keys(m.peers)) {
		p := m.peers[name]
		status := PeerStatus{Host: p.host, Alive: p.alive, Since: p.since, Reason: p.reason, Crashed: p.proven, Error: p.err}
		if p.state != nil {
			status.Ready, status.Draining, status.Leaving = p.state.Ready, p.state.Draining, p.state.Leaving
		}
		s.Peers = append(s.Peers, status)
	}
	return s
}

func (m *machine) vipStatus(u *unit, now time.Time) VIPStatus {
	why := m.cannot(u, now)
	s := VIPStatus{
		Name: u.Name, State: u.state, Term: u.top(), Since: u.since, Reason: u.reason, Priority: u.priority(),
		Able: why == "", Why: why, Wants: m.wants(u, now), Successor: u.offer.to, Occupant: text(u.occupant),
		Conflicts: u.conflicts, Rival: text(u.rival), Manual: u.sticky, Released: u.released, Moves: u.moves,
	}
	for _, a := range u.Addresses {
		s.Addresses = append(s.Addresses, fmt.Sprintf("%s/%d %s", a.IP, a.Bits, a.Interface))
	}
	own := View{Host: m.Host, Claim: m.claim(u).String(), Able: why == "", Priority: u.priority(), Term: u.top()}
	s.Views = []View{own}
	if u.state == Active {
		s.Owner = m.Host
	} else if rival, _ := m.strongest(u); rival != nil {
		s.Owner = rival.host
	}
	for _, name := range slices.Sorted(maps.Keys(m.peers)) {
		if e := m.peers[name].state.find(u.id); e != nil {
			s.Views = append(s.Views, View{Host: name, Claim: e.Claim.String(), Able: e.Able, Priority: e.Priority, Term: e.Term})
		}
	}
	return s
}

func text(a net.HardwareAddr) string { return a.String() }

// String gives the word of the status.
func (c claimState) String() string {
	return []string{"none", "adopting", "probing", "active"}[c&3]
}
