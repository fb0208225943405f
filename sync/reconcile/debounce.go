package reconcile

import "time"

// debouncer decides when a change is looked at. The first one after a quiet time is at once; those
// that follow within window of a pass, or of each other, are gathered, for at most maxDelay.
type debouncer struct {
	window, maxDelay time.Duration

	lastPass     time.Time
	firstPending time.Time // zero: nothing pending
	lastPending  time.Time
}

// change notes a change.
func (d *debouncer) change(now time.Time) {
	if d.firstPending.IsZero() {
		d.firstPending = now
	}
	d.lastPending = now
}

// due is when the pending changes are looked at; zero when there are none.
func (d *debouncer) due() time.Time {
	switch {
	case d.firstPending.IsZero():
		return time.Time{}
	case d.lastPass.IsZero() || d.firstPending.Sub(d.lastPass) >= d.window:
		return d.firstPending
	}
	quiet, latest := d.lastPending.Add(d.window), d.firstPending.Add(d.maxDelay)
	if latest.Before(quiet) {
		return latest
	}
	return quiet
}

// passed notes that a pass began (what was pending is in it) or ended (the window runs from there).
func (d *debouncer) passed(now time.Time) {
	d.lastPass = now
	d.firstPending, d.lastPending = time.Time{}, time.Time{}
}

// The back-off after the world's faults: the API, nginx, the kernel.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// backOff says when to try again. The zero value is ready.
type backOff struct {
	wait time.Duration
	at   time.Time
}

// fail notes a failure and returns how long to wait.
func (b *backOff) fail(now time.Time) time.Duration {
	b.wait = min(max(2*b.wait, firstRetry), lastRetry)
	b.at = now.Add(b.wait)
	return b.wait
}

// soon asks for another try without counting a failure.
func (b *backOff) soon(now time.Time, wait time.Duration) { b.at = now.Add(wait) }

// clear forgets the pending try, reset the failures, too.
func (b *backOff) clear() { b.at = time.Time{} }
func (b *backOff) reset() { b.wait = 0 }

func (b *backOff) due() time.Time { return b.at }
