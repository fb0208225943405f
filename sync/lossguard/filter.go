package lossguard

import (
	"fmt"
	"slices"
	"time"

	"headgate/gateway/snapshot"
)

// What no configuration changes.
const (
	// troubleLasts is for how long a sign of trouble makes a loss doubtful: what follows from a broken connection comes with
	// the lists after it.
	troubleLasts = 30 * time.Second
	// marksInWindow bounds how many former snapshots are kept to compare with.
	marksInWindow = 5
)

// Limits say which loss is absurd, and for how long it is held.
type Limits struct {
	// Share in percent (1–100) of what there was: more than that must be lost; 0 means 50.
	Share int
	// Minimum is how much must be lost at least; 0 means 10.
	Minimum int
	// Window is the time within which it is lost; 0 means 5 s.
	Window time.Duration
	// Hold is for how long the old objects are held at most; 0 means 10 minutes. Addresses of pods are given to other pods.
	Hold time.Duration
}

func (l Limits) orDefaults() Limits {
	defaults := Limits{Share: 50, Minimum: 10, Window: 5 * time.Second, Hold: 10 * time.Minute}
	if l.Share <= 0 {
		l.Share = defaults.Share
	}
	if l.Minimum <= 0 {
		l.Minimum = defaults.Minimum
	}
	if l.Window <= 0 {
		l.Window = defaults.Window
	}
	if l.Hold <= 0 {
		l.Hold = defaults.Hold
	}
	return l
}

// absurd tells whether so much was lost that it is worth a doubt.
func (l Limits) absurd(before, now Sizes) bool {
	return before.each(now, func(before, now int) bool {
		lost := before - now
		return lost >= l.Minimum && lost*100 > l.Share*before
	})
}

// Signs are what a source tells of itself beside the snapshot.
type Signs struct {
	// Healthy tells that it can be read.
	Healthy bool
	// Trouble is when something about the connection was last out of order; zero: never. What says what it was.
	Trouble time.Time
	What    string
	// Elsewhere tells that the snapshot comes from another machine: a first reading is doubtful by itself.
	Elsewhere bool
	// Listed is when the reading began that the snapshot comes from: all of it was read after that.
	Listed time.Time
}

// troubled tells whether a loss that is seen at now may be none, and why.
func (s Signs) troubled(now time.Time) (bool, string) {
	if !s.Healthy {
		return true, "the source cannot be read"
	}
	return !s.Trouble.IsZero() && now.Sub(s.Trouble) < troubleLasts, s.What
}

// calm tells that nothing was out of order for a while.
func (s Signs) calm(now time.Time) bool {
	troubled, _ := s.troubled(now)
	return !troubled
}

// confirms tells whether the source was read as a whole, in good order, after last.
func (s Signs) confirms(now, last time.Time) bool {
	return s.calm(now) && s.Listed.After(last) && s.Listed.Sub(s.Trouble) >= troubleLasts
}

// Ending is why held objects were let go.
type Ending string

// The endings.
const (
	CameBack  Ending = "they came back"
	Confirmed Ending = "a complete reading of the source, in good order, confirms that they are gone"
	Accepted  Ending = "accepted by the administrator"
	TimeOver  Ending = "the time to hold them is over"
)

// Filter decides what of a source's loss is passed on. It is a state machine: it reads no clock and does nothing. Not safe
// for concurrent use. NewFilter makes one.
type Filter struct {
	limits Limits

	raw, served       counter
	latest            *snapshot.Snapshot // what the source gave last
	in, out           *snapshot.Snapshot // out was made of in
	marks             []mark             // of what was passed on, the oldest first
	withheld          time.Time
	remembered        Sizes
	why               string
	lastEnding        Ending
	ingresses         kept[snapshot.Ingress]
	classes           kept[snapshot.IngressClass]
	services          kept[snapshot.Service]
	endpoints         kept[snapshot.EndpointSlice]
	secrets           kept[snapshot.Secret]
	now, before, kept Sizes // what the source has; what it had; what is passed on
}

// mark is a former output, to compare with.
type mark struct {
	at    time.Time
	until time.Time // when something else was passed on; zero: it still is
	out   *snapshot.Snapshot
	sizes Sizes
}

// NewFilter makes a filter. remembered is what the last process passed on; the zero value when that is not known. A first
// snapshot that has absurdly less is withheld as a whole.
func NewFilter(limits Limits, remembered Sizes) *Filter {
	return &Filter{
		limits: limits.orDefaults(), remembered: remembered,
		ingresses: newKept(ingressKey, paths),
		classes:   newKept(classKey, one[snapshot.IngressClass]),
		services:  newKept(serviceKey, one[snapshot.Service]),
		endpoints: newKept(sliceKey, endpoints),
		secrets:   newKept(secretKey, one[snapshot.Secret]),
	}
}

// SetLimits replaces the limits; what is held stays held, by the new ones.
func (f *Filter) SetLimits(limits Limits) { f.limits = limits.orDefaults() }

// Pass takes a complete snapshot in and gives what is to be served; nil means what was served before this process began.
// It is called for each snapshot, and again as time passes while something is held.
func (f *Filter) Pass(now time.Time, s *snapshot.Snapshot, signs Signs) *snapshot.Snapshot {
	f.now, f.latest = f.raw.measure(s), s
	if f.out == nil {
		return f.first(now, s, signs)
	}
	f.forget(now)
	released := f.release(now, s, signs)
	base := f.base()
	troubled, why := signs.troubled(now)
	grew := false
	// Also when nothing is new: the sign of trouble may come after the loss.
	if troubled && !released && f.limits.absurd(base, f.now) {
		grew = f.hold(now, s, why)
	}
	if s != f.in || released || grew {
		f.in = s
		f.out = f.over(s)
		f.kept = f.served.measure(f.out)
	}
	if released {
		f.marks = nil // what was let go is nothing to compare with any more
	}
	f.note(now)
	return f.out
}

// first judges the first snapshot of this process, with nothing but numbers to compare with.
func (f *Filter) first(now time.Time, s *snapshot.Snapshot, signs Signs) *snapshot.Snapshot {
	troubled, why := signs.troubled(now)
	if !troubled && signs.Elsewhere {
		troubled, why = true, "the daemon has just started"
	}
	absurd := f.limits.absurd(f.remembered, f.now)
	switch {
	case !absurd && !f.withheld.IsZero():
		f.lastEnding = CameBack
	case !absurd || (f.withheld.IsZero() && !troubled):
	case f.withheld.IsZero():
		f.withheld, f.why, f.before = now, why, f.remembered
		return nil
	case now.Sub(f.withheld) >= f.limits.Hold:
		f.lastEnding = TimeOver
	case !f.remembered.emptied(f.now) && signs.confirms(now, f.withheld):
		f.lastEnding = Confirmed
	default:
		return nil
	}
	f.withheld = time.Time{}
	f.in, f.out = s, s
	f.kept = f.served.measure(s)
	f.note(now)
	return s
}

// hold begins to hold what is lost since the oldest mark of the window, and tells whether that is anything.
func (f *Filter) hold(now time.Time, s *snapshot.Snapshot, why string) bool {
	before := f.holding()
	for _, m := range append(slices.Clip(f.marks), mark{out: f.out}) {
		f.ingresses.lose(m.out.Ingresses, s.Ingresses, now)
		f.classes.lose(m.out.IngressClasses, s.IngressClasses, now)
		f.services.lose(m.out.Services, s.Services, now)
		f.endpoints.lose(m.out.EndpointSlices, s.EndpointSlices, now)
		f.secrets.lose(m.out.Secrets, s.Secrets, now)
	}
	if f.holding() == before {
		return false
	}
	f.why, f.lastEnding = why, ""
	if before == 0 {
		f.before = f.base()
	}
	f.before = f.before.most(f.base())
	return true
}

// release lets go of what came back, was confirmed to be gone, or was held long enough; true: something was let go that is
// not there.
func (f *Filter) release(now time.Time, s *snapshot.Snapshot, signs Signs) bool {
	if f.holding() == 0 {
		return false
	}
	_, last := f.times()
	confirmed := !f.before.emptied(f.now) && signs.confirms(now, last)
	keep := func(since time.Time) bool { return !confirmed && now.Sub(since) < f.limits.Hold }
	back, over := 0, 0
	count := func(b, o int) { back, over = back+b, over+o }
	count(f.ingresses.settle(s.Ingresses, keep))
	count(f.classes.settle(s.IngressClasses, keep))
	count(f.services.settle(s.Services, keep))
	count(f.endpoints.settle(s.EndpointSlices, keep))
	count(f.secrets.settle(s.Secrets, keep))
	if back+over > 0 {
		f.in = nil
	}
	if f.holding() == 0 {
		f.lastEnding = CameBack
		switch {
		case over > 0 && confirmed:
			f.lastEnding = Confirmed
		case over > 0:
			f.lastEnding = TimeOver
		}
	}
	return over > 0
}

// Accept lets go of everything that is held. The next Pass serves what the source has.
func (f *Filter) Accept() {
	if !f.Holding() {
		return
	}
	clear(f.ingresses.held)
	clear(f.classes.held)
	clear(f.services.held)
	clear(f.endpoints.held)
	clear(f.secrets.held)
	f.withheld, f.remembered = time.Time{}, Sizes{}
	f.marks, f.in = nil, nil
	f.lastEnding = Accepted
	if f.out != nil { // what is lost from here on is measured against what there is
		f.out = f.over(f.latest)
		f.kept = f.served.measure(f.out)
	}
}

func (f *Filter) over(s *snapshot.Snapshot) *snapshot.Snapshot {
	if f.holding() == 0 {
		return s
	}
	out := *s
	out.Ingresses = f.ingresses.over(s.Ingresses)
	out.IngressClasses = f.classes.over(s.IngressClasses)
	out.Services = f.services.over(s.Services)
	out.EndpointSlices = f.endpoints.over(s.EndpointSlices)
	out.Secrets = f.secrets.over(s.Secrets)
	return &out
}

// forget drops what was replaced before the window began: what went that long ago is not lost now.
func (f *Filter) forget(now time.Time) {
	f.marks = slices.DeleteFunc(f.marks, func(m mark) bool { return !m.until.IsZero() && now.Sub(m.until) >= f.limits.Window })
}

// note remembers what is passed on, at most marksInWindow times a window.
func (f *Filter) note(now time.Time) {
	if n := len(f.marks); n > 0 {
		last := &f.marks[n-1]
		if last.out == f.out {
			last.until = time.Time{}
			return
		}
		if last.until.IsZero() {
			last.until = now
		}
		if now.Sub(last.at) < f.limits.Window/marksInWindow {
			return
		}
	}
	f.marks = append(f.marks, mark{at: now, out: f.out, sizes: f.kept})
}

// base is the most that there was within the window.
func (f *Filter) base() Sizes {
	most := f.kept
	for _, m := range f.marks {
		most = most.most(m.sizes)
	}
	return most
}

func (f *Filter) holding() int {
	return len(f.ingresses.held) + len(f.classes.held) + len(f.services.held) + len(f.endpoints.held) + len(f.secrets.held)
}

// Holding tells whether something is held, or the whole snapshot is withheld.
func (f *Filter) Holding() bool { return f.holding() > 0 || !f.withheld.IsZero() }

// times are when the first and the last of the held objects was lost.
func (f *Filter) times() (first, last time.Time) {
	if !f.withheld.IsZero() {
		return f.withheld, f.withheld
	}
	f.ingresses.times(&first, &last)
	f.classes.times(&first, &last)
	f.services.times(&first, &last)
	f.endpoints.times(&first, &last)
	f.secrets.times(&first, &last)
	return first, last
}

// Report says what is held.
type Report struct {
	// Since is when the first of the held objects was lost, and Until when the last is let go at the latest; zero: nothing
	// is held.
	Since, Until time.Time
	// Withheld tells that not one snapshot was let through since the start.
	Withheld bool
	// Why says what makes the loss doubtful.
	Why string
	// Before is what there was, Now what the source has.
	Before, Now Sizes
}

// Held is how much of Before is not in Now.
func (r Report) Held() Sizes {
	if r.Since.IsZero() {
		return Sizes{}
	}
	return r.Before.minus(r.Now)
}

// String says it to people.
func (r Report) String() string {
	return fmt.Sprintf("the source had %s and has %s now, which may not be true: %s", r.Before, r.Now, r.Why)
}

// Report tells what is held at this moment.
func (f *Filter) Report() Report {
	if !f.Holding() {
		return Report{Now: f.now}
	}
	first, last := f.times()
	return Report{
		Since: first, Until: last.Add(f.limits.Hold), Withheld: !f.withheld.IsZero(),
		Why: f.why, Before: f.before, Now: f.now,
	}
}

// Passed is what is served, to be remembered for the next process. ok is false while that is not this process's.
func (f *Filter) Passed() (sizes Sizes, ok bool) { return f.kept, f.out != nil }

// LastEnding says why the last hold ended.
func (f *Filter) LastEnding() Ending { return f.lastEnding }
