package admin

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// WriteText prints s for somebody who was woken up: what is wrong first, then what is so. It ends at the
// first error of w.
func (s Status) WriteText(w io.Writer) error {
	t := &page{now: s.Time}
	t.verdict(s)
	t.source(s)
	t.revision(s)
	t.proxy(s)
	t.health(s.Health)
	t.activity(s)
	t.problems(s.Problems)
	_, err := io.WriteString(w, t.text.String())
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

// page collects lines; durations are told relative to now.
type page struct {
	text strings.Builder
	now  time.Time
}

func (p *page) line(label, format string, args ...any) {
	fmt.Fprintf(&p.text, "%-13s %s\n", label, fmt.Sprintf(format, args...))
}

func (p *page) ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return p.now.Sub(t).Round(time.Second).String() + " ago"
}

func (p *page) since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " for " + p.now.Sub(t).Round(time.Second).String()
}

func (p *page) verdict(s Status) {
	why := s.Degraded()
	if len(why) == 0 {
		p.line("headgate", "ok")
	} else {
		p.line("headgate", "DEGRADED")
		for _, w := range why {
			p.line("", "- %s", w)
		}
	}
	p.line("daemon", "%s, PID %d, started %s", s.Version, s.PID, p.ago(s.Started))
}

func (p *page) source(s Status) {
	p.line("source", "%s %s: %s, %s%s", s.Source.Kind, s.Source.Detail,
		word(s.Source.Synced, "synced", "NOT SYNCED"), word(s.Source.Healthy, "healthy", "UNHEALTHY"), p.since(s.Source.Since))
}

// word picks one of two words.
func word(yes bool, ifSo, ifNot string) string { return map[bool]string{true: ifSo, false: ifNot}[yes] }

func (p *page) revision(s Status) {
	p.line("revision", "desired %d, applied %d", s.Revision.Desired, s.Revision.Applied)
	p.line("serves", "%d hosts, %d routes, %d upstreams, %d peers, %d certificates",
		s.Counts.Hosts, s.Counts.Routes, s.Counts.Upstreams, s.Counts.Peers, s.Counts.Certificates)
	if len(s.Certificates) > 0 {
		first := s.Certificates[0]
		p.line("", "first to expire: %s on %s", first.ID, first.NotAfter.UTC().Format(time.DateOnly))
	}
}

func (p *page) proxy(s Status) {
	x := s.Proxy
	if !x.Reachable {
		p.line("proxy", "%s, DOES NOT ANSWER", x.Mode)
		return
	}
	p.line("proxy", "%s, nginx %s, master PID %d, generation %s", x.Mode, x.NginxVersion, x.MasterPID, short(x.Generation))
	if x.DictCapacityBytes > 0 {
		used := x.DictCapacityBytes - x.DictFreeBytes
		p.line("", "state memory %s of %s used", size(used), size(x.DictCapacityBytes))
	}
	for _, w := range x.Workers {
		p.line("  worker", "PID %d: revision %d, generation %s, seen %s ago", w.PID, w.Revision, short(w.Generation),
			(time.Duration(w.SeenMs) * time.Millisecond).String())
		for _, e := range w.Errors {
			p.line("", "ERROR %s", oneLine(e))
		}
	}
}

func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

func short(hash string) string {
	const enough = 12
	if len(hash) > enough {
		return hash[:enough]
	}
	return hash
}

// health is left out where nothing is checked.
func (p *page) health(h Health) {
	if h.Up+h.Down+h.Unknown == 0 {
		return
	}
	p.line("checks", "%d peers up, %d down, %d not yet known", h.Up, h.Down, h.Unknown)
	if len(h.AllDown) > 0 {
		p.line("", "%d upstreams with all peers down, which are used all the same, such as %s", len(h.AllDown), h.AllDown[0])
	}
}

func (p *page) activity(s Status) {
	p.line("passes", "%d, of them failed %d; pushes %d", s.Passes, s.Failures, s.Pushes)
	var reloads []string
	for _, reason := range slices.Sorted(maps.Keys(s.Reloads)) {
		reloads = append(reloads, fmt.Sprintf("%s %d", reason, s.Reloads[reason]))
	}
	if len(reloads) == 0 {
		reloads = []string{"none"}
	}
	p.line("reloads", "%s", strings.Join(reloads, ", "))
	if r := s.LastReload; r != nil {
		p.line("", "last %s for %s", p.ago(r.Time), strings.Join(r.Reasons, ", "))
		if r.Error != "" {
			p.line("", "it FAILED: %s", oneLine(r.Error))
		}
	}
	p.line("state log", "revision %d, %s, %s", s.StateLog.Revision, size(s.StateLog.SizeBytes), word(s.StateLog.Error == "", "healthy", "FAILING"))
}

func (p *page) problems(problems []Problem) {
	if len(problems) == 0 {
		p.line("problems", "none")
		return
	}
	p.line("problems", "%d", len(problems))
	for _, problem := range problems {
		p.line("", "%s", problem.Line())
	}
}

// Line gives the problem on one line: severity, object, field, reason, message.
func (p Problem) Line() string {
	where := p.Object()
	if p.Field != "" {
		where += " " + p.Field
	}
	return oneLine(fmt.Sprintf("%s %s: %s: %s", word(p.Warning, "warning", "problem"), where, p.Reason, p.Message))
}
