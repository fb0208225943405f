package health

import (
	"log/slog"
	"maps"
	"slices"
	"time"
)

// The log gets a line for each peer whose verdict changes; when a whole cluster goes, this many a minute, and their number.
const (
	linesPerWindow = 100
	lineWindow     = time.Minute
)

// teller writes the changes of verdicts into the log.
type teller struct {
	log    *slog.Logger
	since  time.Time // when the window began
	lines  int
	downs  int // that were not told
	backUp int
}

func (t *teller) tell(p *probe) {
	if t.lines == 0 {
		t.since = time.Now()
	}
	t.lines++
	if t.lines > linesPerWindow {
		if p.state == down {
			t.downs++
		} else {
			t.backUp++
		}
		return
	}
	users := slices.Sorted(maps.Keys(p.users))
	about := []any{"upstream", users[0], "peer", p.address.String()}
	if len(users) > 1 {
		about = append(about, "upstreams", len(users))
	}
	if p.state == down {
		t.log.Info("peer is down: its health check fails", append(about, "reason", p.reason.Error(), "failures", p.policy.Fall)...)
		return
	}
	t.log.Info("peer is up again", append(about, "successes", p.policy.Rise)...)
}

// beat ends the window when it is time.
func (t *teller) beat(now time.Time) {
	if t.lines == 0 || now.Sub(t.since) < lineWindow {
		return
	}
	if t.downs+t.backUp > 0 {
		t.log.Info("more peers changed than are told one by one", "down", t.downs, "upAgain", t.backUp)
	}
	t.lines, t.downs, t.backUp = 0, 0, 0
}
