package reconcile

import "time"

// The truce with another daemon that pushes to the same proxy.
const (
	firstTruce = time.Second
	lastTruce  = 5 * time.Minute
	// peace: after this long without a push of the other one the next quarrel starts small again.
	peace = 15 * time.Minute
)

// rivalry keeps two daemons on one proxy from fighting: whoever finds that the other one has pushed
// steps back, and the longer the more often it happens. The zero value knows of no rival.
type rivalry struct {
	name  string // the other pusher; "" while there is none
	wait  time.Duration
	seen  time.Time
	truce time.Time
}

// met notes a push (or an attempt) of the other one.
func (r *rivalry) met(name string, now time.Time) {
	if now.Sub(r.seen) > peace {
		r.wait = 0
	}
	if now.Before(r.truce) {
		// It goes on working while we hold still: that is one encounter, which lasts.
		r.truce = now.Add(r.wait)
	} else {
		r.wait = min(max(2*r.wait, firstTruce), lastTruce)
		r.truce = now.Add(r.wait)
	}
	r.name, r.seen = name, now
}

// blocked notes that the other one holds the push lock. That alone takes nothing from us, and asking again takes
// nothing from it; where it has died within a push its lock ends by itself, within ten seconds.
func (r *rivalry) blocked(name string, now time.Time) {
	r.name, r.seen, r.truce = name, now, now.Add(firstTruce)
}

// until is when the truce ends; in the past when there is none.
func (r *rivalry) until() time.Time { return r.truce }

// settled notes that a pass went through: the other one did not mind, or is gone.
func (r *rivalry) settled() { r.name = "" }
