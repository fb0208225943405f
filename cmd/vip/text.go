package vip

import (
	"fmt"
	"io"
	"strings"
	"time"

	"headgate/vip/detect"
	"headgate/vip/speaker"
)

// WriteText prints the status for somebody who was woken up: what is wrong first, then who owns what and why, then how
// the hosts see each other.
func (s Status) WriteText(w io.Writer) error {
	p := &page{now: s.Time}
	p.verdict(s)
	for _, v := range s.VIPs {
		p.vip(v)
	}
	p.hosts(s)
	p.flows(s.Flows)
	p.recent(s.Recent)
	if _, err := io.WriteString(w, p.text.String()); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

// page collects lines; times are told relative to now.
type page struct {
	text strings.Builder
	now  time.Time
}

func (p *page) line(label, format string, args ...any) {
	// Nothing that others said may begin a line of its own or steer the terminal.
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, fmt.Sprintf(format, args...))
	fmt.Fprintf(&p.text, "%-13s %s\n", label, text)
}

func (p *page) ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return p.age(t) + " ago"
}

// lasting tells how long something has been so; "" when that is unknown.
func (p *page) lasting(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " for " + p.age(t)
}

func (p *page) age(t time.Time) string {
	d := p.now.Sub(t)
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func (p *page) verdict(s Status) {
	if len(s.Degraded) == 0 {
		p.line("vip", "ok")
	} else {
		p.line("vip", "DEGRADED")
		for _, why := range s.Degraded {
			p.line("", "- %s", why)
		}
	}
	p.line("process", "%s, PID %d, started %s, %s, stalled %d times", s.Version, s.PID, p.ago(s.Started), s.Scheduler, s.Stalls+s.DetectorStalls)
	ready := "ready"
	if !s.Ready {
		ready = "NOT READY"
	}
	p.line("host", "%s: %s: %s%s", s.Host, ready, s.Health, also(s))
}

func also(s Status) string {
	var words []string
	if s.Draining {
		words = append(words, "drained")
	}
	if s.Stopping {
		words = append(words, "stopping")
	}
	if s.Lasting {
		words = append(words, "nobody else could take over: the addresses outlive this process for a minute")
	}
	if len(words) == 0 {
		return ""
	}
	return "; " + strings.Join(words, "; ")
}

func (p *page) vip(v speaker.VIPStatus) {
	owner := string(v.Owner)
	if owner == "" {
		owner = "NOBODY"
	}
	p.line("VIP", "%s: owner %s, term %d", v.Name, owner, v.Term)
	const most = 4
	p.line("", "%s%s", strings.Join(v.Addresses[:min(len(v.Addresses), most)], ", "), more(len(v.Addresses)-most))
	p.line("", "here %s%s, because %s; priority %d; %s", v.State, p.lasting(v.Since), v.Reason, v.Priority, v.Wants)
	if v.Manual {
		p.line("", "moved here by the administrator: it stays while this host can serve it")
	}
	if v.Why != "" {
		p.line("", "cannot be taken here: %s", v.Why)
	}
	if v.Conflicts > 0 {
		p.line("", "%d announcements by others while it was here, the last by %s", v.Conflicts, v.Rival)
	}
	for _, view := range v.Views {
		able := ""
		if !view.Able {
			able = ", not able"
		}
		p.line("", "%s says: %s, term %d, priority %d%s", view.Host, view.Claim, view.Term, view.Priority, able)
	}
}

func more(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

func (p *page) hosts(s Status) {
	detectors := map[string]detect.PeerStatus{}
	for _, d := range s.Detectors {
		detectors[d.Host] = d
	}
	for _, peer := range s.Peers {
		p.peer(peer, detectors[string(peer.Host)])
		delete(detectors, string(peer.Host))
	}
	for _, d := range s.Detectors {
		if _, left := detectors[d.Host]; left {
			p.line("peer", "%s at %s: nothing heard yet", d.Host, d.Address)
		}
	}
	for _, st := range s.Strangers {
		p.line("stranger", "%s over %s: %d packets, the last %s: %s", st.From, st.Detector, st.Count, p.ago(st.Last), st.Reason)
	}
}

func (p *page) peer(peer speaker.PeerStatus, d detect.PeerStatus) {
	state := "alive"
	if !peer.Alive {
		state = "NOT ALIVE (" + peer.Reason + ")"
	}
	if peer.Crashed {
		state += ", its process ended"
	}
	for _, w := range []struct {
		so   bool
		word string
	}{{peer.Alive && peer.Ready, "ready"}, {peer.Alive && !peer.Ready, "NOT READY"}, {peer.Draining, "drained"}, {peer.Leaving, "stopping"}} {
		if w.so {
			state += ", " + w.word
		}
	}
	p.line("peer", "%s: %s%s", peer.Host, state, p.lasting(peer.Since))
	for _, way := range d.Detectors {
		lost := ""
		if way.Lost {
			lost = ", LOST"
		}
		p.line("", "%s: heard %s, %d heartbeats%s", way.Detector, p.ago(way.Heard), way.Heartbeats, lost)
	}
	if d.Host != "" {
		p.line("", "deaths: %d proven (%d taken back), %d silent (%d taken back)", d.Crashes, d.FalseCrashes, d.Silences, d.FalseSilences)
	}
}

func (p *page) flows(list []Flow) {
	for _, f := range list {
		to := ""
		if f.To != "" {
			to = " to " + f.To
		}
		p.line("connections", "of %s: %s%s for %s", f.VIP, f.Role, to, f.Until.Sub(p.now).Round(time.Second))
	}
}

// recent shows the last transitions, the newest first.
func (p *page) recent(list []speaker.Transition) {
	const most = 10
	for i := len(list) - 1; i >= max(0, len(list)-most); i-- {
		t := list[i]
		detail := ""
		if t.Peer != "" {
			detail = ", " + string(t.Peer)
		}
		if t.Detail != "" {
			detail += " (" + t.Detail + ")"
		}
		p.line("transition", "%s: %s %s → %s: %s%s", p.ago(t.At), t.VIP, t.From, t.To, t.Reason, detail)
	}
}
