package kubestatus

import (
	"log/slog"

	"headgate/gateway/build"
)

// maxLines bounds what one pass writes to the log: ten thousand Problems at once are one mistake of somebody's.
const maxLines = 100

// ProblemLog writes Problems to the log when they begin and when they end. It works for any source, on every host. It is not
// goroutine-safe: the loop owns it.
type ProblemLog struct {
	log  *slog.Logger
	seen map[build.Problem]struct{}
}

// NewProblemLog makes an empty one; nil discards.
func NewProblemLog(log *slog.Logger) *ProblemLog {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &ProblemLog{log: log, seen: map[build.Problem]struct{}{}}
}

// concern is what a Problem is about, whatever it says.
type concern struct {
	object build.Object
	field  string
	reason build.Reason
}

// concernOf leaves out where an object is written, which moves with every edit above it.
func concernOf(p build.Problem) concern {
	c := concern{p.Object, p.Field, p.Reason}
	if c.object.Name != "" {
		c.object.Origin = ""
	}
	return c
}

// Observe takes the Problems of a pass in: all there are, not only new ones.
func (l *ProblemLog) Observe(problems []build.Problem) {
	now := make(map[build.Problem]struct{}, len(problems))
	concerns := make(map[concern]struct{}, len(problems))
	lines, unsaid := 0, 0
	for _, p := range problems {
		now[p] = struct{}{}
		concerns[concernOf(p)] = struct{}{}
		if _, known := l.seen[p]; known {
			continue
		}
		if lines++; lines > maxLines {
			unsaid++
			continue
		}
		l.log.Warn("problem", "object", p.Object.String(), "field", p.Field, "reason", string(p.Reason), "message", p.Message, "served", p.Warning)
	}
	ended := 0
	for p := range l.seen {
		if _, still := concerns[concernOf(p)]; still {
			continue // perhaps in other words, which were told above
		}
		if ended++; ended <= maxLines {
			l.log.Info("problem is over", "object", p.Object.String(), "field", p.Field, "reason", string(p.Reason))
		}
	}
	if unsaid > 0 {
		l.log.Warn("more problems than fit into the log: see headgate status", "unsaid", unsaid)
	}
	l.seen = now
}
