package detect

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// nonceLife bounds how old the life is that an answer proves.
	nonceLife = time.Second
	// lostMisses is how many intervals one detector must be quiet to be told; more than a TCP retransmission needs.
	lostMisses = 10
	// keptIncarnations is how many earlier processes of a host are remembered: one that comes back is a clash.
	keptIncarnations = 8
)

// judge holds what is known of the peers and draws the verdicts. It knows no sockets, and time only as arguments.
type judge struct {
	rules
	detectors []Via
	peers     map[string]*peer
	ticked    time.Time
	grace     time.Time // no silence is judged before
	stalls    uint64
	mirror    peer // a process that bears the name of this host, to be challenged

	out    []Event // for the caller, oldest first
	logged int     // how many of out stand in the log
	asks   []ask   // challenges to send
}

type rules struct {
	self        string
	incarnation uint64
	interval    time.Duration
	misses      int
	confirm     time.Duration
}

func (r rules) silence() time.Duration { return time.Duration(r.misses) * r.interval }

// doubt is when silence is so near that it is told: early enough that a caller can ask on the wire meanwhile, late enough
// that heartbeats which are only late rarely get there.
func (r rules) doubt() time.Duration { return r.silence() - min(r.interval, r.silence()/3) }

type ask struct {
	host  string
	nonce [nonceBytes]byte
}

type peer struct {
	Peer
	incarnation uint64 // of the process that is believed; 0: none
	earlier     []uint64
	verdict     Kind
	since       time.Time
	reason      string
	ears        map[Via]*ear

	state        []byte
	stateCounter uint64

	nonce [nonceBytes]byte // of the challenge that is open
	asked time.Time        // when nonce was drawn; zero: none is open
	sent  time.Time        // when it was last sent

	ended     bool // the process's side ended a session, and has proven nothing since
	suspected bool // and the redial was refused
	suspicion string
	until     time.Time

	doubted bool      // Quiet was told, and nothing was heard since
	clashed time.Time // when a clash was told last

	crashes, silences, falseCrashes, falseSilences, doubts uint64
}

// ear is one detector of a peer.
type ear struct {
	DetectorStatus
	counter uint64 // of the newest packet
}

func newJudge(r rules, now time.Time) *judge {
	return &judge{rules: r, detectors: []Via{Session, UDP}, peers: map[string]*peer{}, ticked: now}
}

// resume begins to judge: what happened between newJudge and now was no stall.
func (j *judge) resume(now time.Time) {
	j.ticked = now
	j.grace = now.Add(j.silence())
}

// watch replaces the peers.
func (j *judge) watch(peers []Peer) {
	wanted := map[string]bool{}
	for _, p := range peers {
		wanted[p.Host] = true
		known := j.peers[p.Host]
		if known == nil {
			known = &peer{ears: map[Via]*ear{}}
			for _, d := range j.detectors {
				known.ears[d] = &ear{DetectorStatus: DetectorStatus{Detector: d}}
			}
			j.peers[p.Host] = known
		}
		known.Peer = p
	}
	for host := range j.peers {
		if !wanted[host] {
			delete(j.peers, host)
		}
	}
}

// hear takes an authentic packet of a peer. Only a process that has proven itself is believed, and only what is newer
// than all that came before on the same detector; of anything else a proof is asked for.
func (j *judge) hear(now time.Time, via Via, p packet) {
	from := j.peers[p.from]
	if from == nil || from.ears[via] == nil {
		return
	}
	e := from.ears[via]
	if p.kind == answer && j.proves(now, from, p) {
		j.prove(now, from, p.incarnation)
		e.listen(now, p.counter)
		j.hearState(now, from, p)
		return
	}
	if p.incarnation != from.incarnation || from.verdict != Up {
		e.Unproven++
		j.challenge(now, from)
		return
	}
	if p.counter <= e.counter {
		e.Old++
		return
	}
	if p.kind == farewell {
		j.leave(now, from)
		return
	}
	e.listen(now, p.counter)
	j.hearState(now, from, p)
}

func (e *ear) listen(now time.Time, counter uint64) {
	e.Heard = now
	e.Heartbeats++
	e.counter = max(e.counter, counter)
}

func (j *judge) proves(now time.Time, from *peer, p packet) bool {
	return !from.asked.IsZero() && p.to == j.self && p.nonce == from.nonce && now.Sub(from.asked) <= nonceLife
}

// greeted takes a finished handshake on the session: a proof, as an answer is.
func (j *judge) greeted(now time.Time, host string, incarnation uint64) {
	if from := j.peers[host]; from != nil {
		j.prove(now, from, incarnation)
		from.ears[Session].Heard = now
	}
}

// prove takes that the process lives now.
func (j *judge) prove(now time.Time, from *peer, incarnation uint64) {
	from.asked = time.Time{}
	if incarnation == from.incarnation {
		from.ended = false
	}
	switch {
	case incarnation == from.incarnation && from.verdict == Up:
		j.refute(from)
		return
	case incarnation == from.incarnation:
		j.takeBack(now, from)
		return
	case slices.Contains(from.earlier, incarnation):
		j.clash(now, from, "two processes answer to this name by turns: give each host a name of its own")
		return
	}
	reason := "first heard"
	restarted := from.incarnation != 0
	if restarted {
		reason = "a new process of this host"
		from.earlier = append(from.earlier, from.incarnation)
		from.earlier = from.earlier[max(0, len(from.earlier)-keptIncarnations):]
	}
	from.incarnation, from.ended, from.suspected = incarnation, false, false
	from.state, from.stateCounter = nil, 0
	for _, e := range from.ears {
		e.counter = 0
	}
	j.revive(now, from, Event{Kind: Up, Reason: reason, Restarted: restarted})
}

func (j *judge) refute(from *peer) {
	if from.suspected {
		from.suspected = false
		from.doubts++
	}
}

func (j *judge) takeBack(now time.Time, from *peer) {
	reason := "it came back after it had left"
	switch from.verdict {
	case Crashed:
		from.falseCrashes++
		reason = "it lives: its crash is taken back"
	case Silent:
		from.falseSilences++
		reason = fmt.Sprintf("heard again after %v: its death is taken back", now.Sub(from.since).Round(time.Millisecond))
	default:
	}
	j.revive(now, from, Event{Kind: Up, Reason: reason})
}

func (j *judge) revive(now time.Time, from *peer, e Event) {
	from.verdict, from.since, from.reason = Up, now, e.Reason
	for _, ear := range from.ears {
		ear.Lost = false
	}
	j.emit(now, from, e)
}

func (j *judge) hearState(now time.Time, from *peer, p packet) {
	if from.verdict != Up || p.incarnation != from.incarnation || p.counter <= from.stateCounter {
		return
	}
	from.stateCounter = p.counter
	if !bytes.Equal(p.state, from.state) {
		from.state = p.state
		j.emit(now, from, Event{Kind: State, Reason: "published"})
	}
}

// ended takes that the other side's kernel ended a session with the process.
func (j *judge) ended(host string, incarnation uint64) {
	if from := j.peers[host]; from != nil && from.incarnation == incarnation {
		from.ended = true
	}
}

// refused takes that nobody serves the host's port: a dial was refused, or ended before the greeting. After the end of a
// session with the process that is believed, that makes a crash, unless it answers once more.
func (j *judge) refused(now time.Time, host, why string) {
	from := j.peers[host]
	if from == nil || from.verdict != Up || !from.ended || from.suspected {
		return
	}
	from.suspected, from.suspicion, from.until = true, "its session ended, and the redial: "+why, now.Add(j.confirm)
	from.asked = time.Time{} // an answer that is under way already proves nothing
	j.challenge(now, from)
}

// due is when a verdict may be due: a suspected crash, or the end of a host's silence. Ticks alone would be late by
// part of an interval.
func (j *judge) due() (time.Time, bool) {
	var next time.Time
	for _, p := range j.peers {
		at := later(p.heard().Add(j.silence()+1), j.grace)
		if !p.doubted {
			at = at.Add(j.doubt() - j.silence())
		}
		if p.suspected && p.until.Before(at) {
			at = p.until
		}
		if p.verdict == Up && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next, !next.IsZero()
}

// confirmed tells the crashes that nobody refuted in time. A judge that comes late was stalled itself: the answer may
// lie in a queue, so it waits once more.
func (j *judge) confirmed(now time.Time) {
	for _, p := range j.sorted() {
		switch {
		case !p.suspected || now.Before(p.until):
		case now.Sub(p.until) > j.interval:
			p.until = now.Add(j.confirm)
			j.challenge(now, p)
		default:
			p.suspected = false
			p.crashes++
			j.bury(now, p, Event{Kind: Crashed, Reason: p.suspicion + ", and no detector answered"})
		}
	}
}

func (j *judge) leave(now time.Time, from *peer) {
	from.suspected = false
	j.bury(now, from, Event{Kind: Left, Reason: "it said that it stops"})
}

func (j *judge) bury(now time.Time, p *peer, e Event) {
	p.verdict, p.since, p.reason = e.Kind, now, e.Reason
	p.asked, p.doubted = time.Time{}, false
	j.emit(now, p, e)
}

// tick looks for crashes and silence. It must be called ticksPerInterval times in an interval or more often; when it was not, this process was
// stalled: what the peers sent meanwhile waits in queues, and they get the whole time again before they are judged.
func (j *judge) tick(now time.Time) {
	if now.Sub(j.ticked) > j.interval {
		j.stalls++
		j.grace = now.Add(j.silence())
	}
	j.ticked = now
	j.confirmed(now)
	for _, p := range j.sorted() {
		if p.verdict == Up {
			j.listenFor(now, p)
		}
	}
}

func (j *judge) listenFor(now time.Time, p *peer) {
	heard := p.heard()
	quiet := now.Sub(heard)
	switch {
	case quiet > j.silence() && !now.Before(j.grace):
		p.silences++
		p.suspected = false
		j.bury(now, p, Event{Kind: Silent, Reason: fmt.Sprintf("all detectors (%s) quiet for %v", j.names(), quiet.Round(time.Millisecond))})
		return
	case quiet > j.doubt():
		j.challenge(now, p) // its heartbeats may only be late
		if !p.doubted && !now.Before(j.grace.Add(j.doubt()-j.silence())) {
			p.doubted = true
			j.emit(now, p, Event{Kind: Quiet, Reason: fmt.Sprintf("nothing for %v", quiet.Round(time.Millisecond))})
		}
	default:
		p.doubted = false
	}
	if now.Before(j.grace) {
		return
	}
	for _, d := range j.detectors {
		j.compare(now, p, p.ears[d], quiet)
	}
}

// compare tells a detector that is quiet while another one hears the peer.
func (j *judge) compare(now time.Time, p *peer, e *ear, quiet time.Duration) {
	mine := now.Sub(later(e.Heard, p.since))
	switch {
	case !e.Lost && mine > lostMisses*j.interval && quiet <= j.silence():
		e.Lost = true
		e.Losses++
		reason := "quiet for " + mine.Round(time.Millisecond).String()
		if e.Heard.IsZero() {
			reason = "never heard there"
		}
		j.emit(now, p, Event{Kind: Lost, Detector: e.Detector, Reason: reason})
	case e.Lost && !e.Heard.IsZero() && now.Sub(e.Heard) <= j.silence():
		e.Lost = false
		e.Regains++
		j.emit(now, p, Event{Kind: Regained, Detector: e.Detector, Reason: "heard again"})
	}
}

// heard is when the peer was last heard at all; its proof counts.
func (p *peer) heard() time.Time {
	last := p.since
	for _, e := range p.ears {
		last = later(last, e.Heard)
	}
	return last
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// challenge asks for a proof of life, at most ticksPerInterval times in an interval. The nonce of an open challenge
// is used again while it is young, so that a slow answer counts.
func (j *judge) challenge(now time.Time, p *peer) {
	if p.asked.IsZero() || now.Sub(p.asked) > nonceLife/2 {
		_, _ = rand.Read(p.nonce[:]) // never fails (crypto/rand)
		p.asked, p.sent = now, time.Time{}
	}
	if now.Sub(p.sent) < j.interval/ticksPerInterval {
		return
	}
	p.sent = now
	j.asks = append(j.asks, ask{host: p.Host, nonce: p.nonce})
}

// hearSelf takes an authentic packet of another process that bears our name. It may be a recording of an earlier boot,
// so that one, too, has to answer before it is told.
func (j *judge) hearSelf(now time.Time, p packet) {
	j.mirror.Host = j.self
	if p.kind == answer && j.proves(now, &j.mirror, p) {
		j.selfClash(now)
		return
	}
	j.challenge(now, &j.mirror)
}

// selfClash tells that another process has proven to bear our name.
func (j *judge) selfClash(now time.Time) {
	j.mirror.Host, j.mirror.incarnation, j.mirror.asked = j.self, j.incarnation, time.Time{}
	j.clash(now, &j.mirror, "another process bears the name of this host: give each host a name of its own")
}

// clash tells at most once a minute.
func (j *judge) clash(now time.Time, p *peer, reason string) {
	if p.clashed.IsZero() || now.Sub(p.clashed) >= time.Minute {
		p.clashed = now
		j.emit(now, p, Event{Kind: Clash, Reason: reason})
	}
}

func (j *judge) emit(now time.Time, p *peer, e Event) {
	e.Host, e.At, e.Incarnation, e.State = p.Host, now, p.incarnation, p.state
	j.queue(e)
}

// queue appends the event. A state that nobody took yet gives way to a newer one, in its place when nothing else of
// the host came after.
func (j *judge) queue(e Event) {
	if e.Kind == State {
		for i := len(j.out) - 1; i >= 0; i-- {
			if j.out[i].Host != e.Host {
				continue
			}
			if j.out[i].Kind == State {
				j.out[i] = e
				return
			}
			break
		}
	}
	j.out = append(j.out, e)
}

// taken drops the first of out: the caller has it.
func (j *judge) taken() {
	j.out = slices.Delete(j.out, 0, 1)
	j.logged = max(j.logged-1, 0)
}

func (j *judge) sorted() []*peer {
	list := make([]*peer, 0, len(j.peers))
	for _, p := range j.peers {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *peer) int { return strings.Compare(a.Host, b.Host) })
	return list
}

func (j *judge) names() string {
	words := make([]string, 0, len(j.detectors))
	for _, d := range j.detectors {
		words = append(words, string(d))
	}
	return strings.Join(words, ", ")
}

func (j *judge) status() []PeerStatus {
	list := make([]PeerStatus, 0, len(j.peers))
	for _, p := range j.sorted() {
		s := PeerStatus{
			Host: p.Host, Address: p.Address, Verdict: p.verdict, Word: "unknown", Since: p.since, Reason: p.reason, Incarnation: p.incarnation,
			Crashes: p.crashes, Silences: p.silences, FalseCrashes: p.falseCrashes, FalseSilences: p.falseSilences, Doubts: p.doubts,
		}
		if p.verdict != 0 {
			s.Word = p.verdict.String()
		}
		for _, d := range j.detectors {
			s.Detectors = append(s.Detectors, p.ears[d].DetectorStatus)
		}
		list = append(list, s)
	}
	return list
}
