package health

import "time"

// pulse is how often the checker looks at the clock, and starts what is due.
const pulse = 25 * time.Millisecond

// stalls measures for how long this process did not run: stopped by a signal, or without a CPU. What fails in such a
// time says nothing of a peer. Go's clock does not run while the whole machine sleeps, so that is none.
type stalls struct {
	last  time.Time
	total time.Duration // all time that was missed
}

// look is called at least with each pulse, and gives for how long nothing ran since the last call.
func (s *stalls) look(now time.Time) time.Duration {
	var missed time.Duration
	if gap := now.Sub(s.last); !s.last.IsZero() && gap > 2*pulse {
		missed = gap - pulse
		s.total += missed
	}
	s.last = now
	return missed
}

// pause forgets the last pulse: until the next one nobody looks.
func (s *stalls) pause() { s.last = time.Time{} }

// voids tells whether a check with that time-out, begun when total was before, may have failed for want of time here.
func (s *stalls) voids(before, timeout time.Duration) bool { return s.total-before >= timeout/4 }
