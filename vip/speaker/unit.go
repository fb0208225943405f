package speaker

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"headgate/vip/election"
)

// unit is one VIP on this host.
type unit struct {
	VIP
	id     uint32
	state  State
	since  time.Time
	reason Reason
	term   uint32 // of the own claim while Active, else of the last one
	heard  uint32 // highest term that any other host told
	moves  uint64
	held   bool // the kernel holds all its addresses from the run before; only while Init

	released bool          // the administrator does not want it here
	sticky   bool          // the administrator moved it here; only while Active
	wanted   election.Host // whom the administrator wants it moved to, and until when that counts; only while Active
	wantedAt time.Time
	unready  time.Time // since when the proxy cannot serve what is ours; zero: it can
	escape   escape

	blocked  time.Time // the kernel refused the addresses: not able before
	refusals int

	// Backup
	freed     freed
	freeSince time.Time // zero while somebody owns the VIP
	probe     probing
	early     early
	nextProbe time.Time
	pause     time.Duration // between probes that were answered
	occupant  net.HardwareAddr
	// ownerUnready is since when the owner cannot serve it, and this host could.
	ownerUnready time.Time

	// Active
	offer     offer
	spurned   map[election.Host]time.Time // offered in vain: passed over until
	announces []time.Time                 // due ones, in order
	contested time.Time                   // until then an old owner's kernel may still answer: announce again and again
	announced time.Time
	defend    time.Time // zero: nothing to answer
	check     probing   // who else answers for what is ours?
	checkAt   time.Time // zero: nothing to check
	rivalFrom time.Time // since when another host claims it with less right, zero: none does
	rivalHost election.Host
	conflicts uint64
	rival     net.HardwareAddr
	told      time.Time // when the last conflict was logged
}

// freed is the word of a host that it let the VIP go.
type freed struct {
	term uint32
	at   time.Time
	host election.Host
}

// offer is an unfinished planned move.
type offer struct {
	to     election.Host // "" for none
	at     time.Time
	manual bool
}

// probing is a probe on its way; token is 0 when there is none.
// early is a probe for a VIP whose owner is quiet: should it be judged silent, nobody needs to ask again.
type early struct {
	owner election.Host // "": none
	began time.Time
	token uint64 // of the probe while it is under way
	free  bool   // nobody answered
}

// earlyLasts is how long that counts: longer than from quiet to silent, shorter than from then to the owner's return.
const earlyLasts = 500 * time.Millisecond

type probing struct {
	token uint64
}

// The times of the wire.
const (
	// claimStep is how much longer each next rank waits before it takes a free VIP: the best one may know better.
	claimStep = 200 * time.Millisecond
	// claimPatience is how long another host's probing is waited for.
	claimPatience = time.Second
	// wordLasts is how long the word of an owner that it let go spares the probe.
	wordLasts = 2 * time.Second
	// probePause and maxProbePause are between probes of a VIP that a silent host's kernel still answers for:
	// that ends with the lifetime of its address.
	probePause    = 100 * time.Millisecond
	maxProbePause = 200 * time.Millisecond
	// maxForeignPause is the same for a machine that is none of us.
	maxForeignPause = 5 * time.Second
	// probeRetry follows a probe that could not be sent.
	probeRetry = 300 * time.Millisecond
	// defenceGap is the shortest time between two answers to conflicting announcements.
	defenceGap = 100 * time.Millisecond
	// contestedEvery is how often the winner announces while an old owner's kernel may still answer.
	contestedEvery = time.Second
	// rivalContest is how long an owner goes on announcing after a host that says nothing announced, too.
	rivalContest = 5 * time.Second
	// checkGap is the shortest time between two looks at who else answers.
	checkGap = 500 * time.Millisecond
	// rivalPatience is how long an owner waits for a rival with less right to let go, before rank decides: that
	// one does not hear us.
	rivalPatience = time.Second
	// deafPatience is the same where rank speaks for us, and the rival has not let go by what it sees on the wire.
	deafPatience = 3 * time.Second
	// escapePatience is how long a VIP whose proxy cannot serve waits for a host that can.
	escapePatience = 100 * time.Millisecond
	// commonPatience is how much longer it stays where all proxies had fallen silent and another one is back first.
	commonPatience = 200 * time.Millisecond
	// deafOwner is how long a host that can serve waits for an owner that cannot and offers nothing. That one waits for
	// commonPatience, and a new owner's word takes its time.
	deafOwner = 600 * time.Millisecond
	// refreshAnnounce is how often an owner announces for switches that forget.
	refreshAnnounce = 30 * time.Second
	// kernelMargin is how much longer than asked for the kernel keeps an address (measured: up to 0.3 s).
	kernelMargin = 400 * time.Millisecond
	// refusalPause follows a refusal of the kernel, doubling with each up to maxRefusalPause.
	refusalPause    = time.Second
	maxRefusalPause = 30 * time.Second
	// spurnPause is how long a successor that did not take over is passed over.
	spurnPause = 10 * time.Second
	// requestLasts is how long a move is asked for.
	requestLasts = 2 * time.Second
	// tellGap is the shortest time between two lines of the log about conflicts of one VIP.
	tellGap = 10 * time.Second
	// healthPatience is how long the start waits for the first word about the proxy.
	healthPatience = 2 * time.Second
)

// announceAfter is when a new owner announces: a lost frame, or a neighbour in its 1 s locktime, must not black-hole.
func announceAfter() []time.Duration {
	return []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond}
}

func (u *unit) priority() uint8 {
	if u.Priority == 0 {
		return election.DefaultPriority
	}
	return u.Priority
}

// top is the highest term that is known.
func (u *unit) top() uint32 { return max(u.term, u.heard) }

func (u *unit) has(ip netip.Addr) bool {
	return slices.ContainsFunc(u.Addresses, func(a Address) bool { return a.IP == ip })
}

// scheduleAnnounces begins the series anew. contest is how long the old owner's kernel may still answer, 0 when it
// does not; the series ends after that.
func (u *unit) scheduleAnnounces(now time.Time, contest time.Duration) {
	u.announces = u.announces[:0]
	for _, after := range announceAfter() {
		u.announces = append(u.announces, now.Add(after))
	}
	if contest > 0 {
		u.contest(now, contest+kernelMargin)
		u.announces = append(u.announces, now.Add(contest+kernelMargin))
	}
}

func (u *unit) contest(now time.Time, d time.Duration) {
	if until := now.Add(d); until.After(u.contested) {
		u.contested = until
	}
}

// announceDue tells whether to announce now, and takes what was due off the list.
func (u *unit) announceDue(now time.Time) bool {
	due := !u.defend.IsZero() && !now.Before(u.defend) || !now.Before(u.nextRepeat(now))
	for len(u.announces) > 0 && !now.Before(u.announces[0]) {
		u.announces, due = u.announces[1:], true
	}
	if due {
		u.defend, u.announced = time.Time{}, now
	}
	return due
}

func (u *unit) nextRepeat(now time.Time) time.Time {
	if now.Before(u.contested) {
		return u.announced.Add(contestedEvery)
	}
	return u.announced.Add(refreshAnnounce)
}

// nextAnnounce is when announceDue will be true; only while Active.
func (u *unit) nextAnnounce(now time.Time) time.Time {
	next := u.nextRepeat(now)
	if len(u.announces) > 0 && u.announces[0].Before(next) {
		next = u.announces[0]
	}
	if !u.defend.IsZero() && u.defend.Before(next) {
		next = u.defend
	}
	return next
}

// want notes that the administrator wants the VIP moved.
func (u *unit) want(to election.Host, now time.Time) {
	u.wanted, u.wantedAt = to, now
	delete(u.spurned, to)
}

// rest forgets what belongs to owning and to claiming.
func (u *unit) rest() {
	u.sticky, u.wanted, u.offer, u.announces = false, "", offer{}, nil
	u.contested, u.defend, u.checkAt, u.rivalFrom, u.unready = time.Time{}, time.Time{}, time.Time{}, time.Time{}, time.Time{}
	u.probe, u.check, u.early = probing{}, probing{}, early{}
	u.spurned = nil
	u.freeSince, u.nextProbe, u.pause, u.occupant, u.ownerUnready = time.Time{}, time.Time{}, 0, nil, time.Time{}
	u.escape = escape{}
	u.held = false
}
