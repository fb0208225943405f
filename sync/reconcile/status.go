package reconcile

import (
	"maps"
	"slices"
	"time"

	"headgate/gateway/build"
	"headgate/gateway/plan"
	"headgate/sync/luapush"
)

// Status is a moment of the loop. It is never changed once it is published.
type Status struct {
	// Synced tells that the source has been read whole.
	Synced bool
	// Ready tells that the proxy was seen to hold everything that the last pass wanted, but for what waits until profiles
	// that nginx does not accept are found.
	Ready bool
	// LastKnownGood tells that the proxy serves the state log's state, and no source was complete yet.
	LastKnownGood bool
	// Desired is the newest revision that was made, Applied the one that the proxy committed.
	Desired, Applied uint64
	// Result of the last build; nil before the first. Problems are in it.
	Result *build.Result
	// Problems are those of Result, and what the loop found beside (none of an object).
	Problems []build.Problem

	// Proxy is what the proxy said when it last answered; ProxyErr why it does not answer now.
	Proxy    luapush.State
	ProxyErr error
	// LogErr is why the state log is not written; nil when it is.
	LogErr error
	// Rival names another daemon that pushes to the same proxy; "" when there is none.
	Rival string
	// TooLarge are pointers whose objects are larger than the proxy takes: what it had stays.
	TooLarge []string

	// Err is why the last pass failed; nil when it did not.
	Err error
	// LastPass is when the last pass that went all the way ended.
	LastPass time.Time
	// LastReload is zero when there was none.
	LastReload Reload

	// Passes, Pushes and Failures (of passes) count since the start; so do Reloads, by reason. A
	// reload with two reasons counts under both; ReloadCount counts it once.
	Passes, Pushes, Failures, ReloadCount uint64
	Reloads                               map[plan.Reason]uint64
}

// Reload is one reload of nginx, or its start.
type Reload struct {
	Time    time.Time
	Reasons []plan.Reason
	Took    time.Duration
	// Err is why it failed; nil when it did not.
	Err error
}

// Status gives the newest snapshot. It may be called from any goroutine.
func (l *Loop) Status() Status { return *l.status.Load() }

func (l *Loop) publish() {
	s := l.now
	s.Applied = l.applied.Revision
	s.Desired = max(l.revision, l.applied.Revision)
	s.LogErr = l.cfg.StateLog.Condition()
	s.Rival = l.rival.name
	s.LastKnownGood = !s.Synced && s.ProxyErr == nil && s.Proxy.Revision > 0
	s.Result = l.result
	if l.result != nil {
		s.Problems = l.result.Problems
	}
	s.Reloads = maps.Clone(l.now.Reloads)
	s.TooLarge = slices.Clone(l.now.TooLarge)
	l.status.Store(&s)
}
