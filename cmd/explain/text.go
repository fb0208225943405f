package explain

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
)

// WriteText prints e for somebody who was woken up: what happens and why, then the way there, a fact a line.
func (e Explanation) WriteText(w io.Writer) error {
	p := &page{}
	p.verdict(e)
	p.way(e)
	p.peers(e)
	p.certificate(e.Certificate)
	for i, problem := range e.Problems {
		p.line(onlyFirst(i, "problems"), "%s", problem.Line())
	}
	if _, err := io.WriteString(w, p.text.String()); err != nil {
		return fmt.Errorf("write the explanation: %w", err)
	}
	return nil
}

type page struct{ text strings.Builder }

// line writes a fact. What a client or an object named may hold anything: it stays on its line.
func (p *page) line(label, format string, args ...any) {
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '�'
		}
		return r
	}, fmt.Sprintf(format, args...))
	p.text.WriteString(strings.TrimRight(fmt.Sprintf("%-12s %s", label, text), " ") + "\n")
}

func onlyFirst(i int, label string) string {
	if i > 0 {
		return ""
	}
	return label
}

func (p *page) verdict(e Explanation) {
	switch e.Outcome {
	case Backend:
		p.line("BACKEND", "%s answers", e.Upstream.ID)
	case Redirect:
		p.line(fmt.Sprint(e.Status), "redirect to %s", e.Location)
	case Failure:
		label := "ERROR"
		if e.Status != 0 {
			label = fmt.Sprint(e.Status)
		}
		p.line(label, "%s: %s", e.Reason, e.Why)
	}
	for _, hint := range e.Hints {
		p.line("", "- %s", hint)
	}
}

func (p *page) way(e Explanation) {
	p.line("request", "%s %s", e.Request.Method, e.Request.URL)
	if e.Listener != "" {
		p.line("listener", "%s", e.Listener)
	}
	if e.Host != nil {
		name := e.Host.Name
		if name == "" {
			name = "(any host)"
		}
		if e.Host.TLS {
			name += ", with TLS"
		}
		p.line("host", "%s", name)
	}
	if e.Match != nil {
		p.line("rule", "%s", e.Match)
	}
	if e.Request.Path != "" {
		p.line("path", "%s", e.Request.Path)
	}
	if s := e.Source; s != nil {
		name := s.Namespace + "/" + s.Name
		if s.Origin != "" {
			name += " (" + s.Origin + ")"
		}
		p.line(strings.ToLower(s.Kind), "%s", name)
		if s.Service != "" {
			p.line("service", "%s", strings.TrimSuffix(s.Namespace+"/"+s.Service+" port "+s.Port, " port "))
		}
	}
	for i, f := range e.filters() {
		p.line(onlyFirst(i, "filters"), "%s", f)
	}
	if s := e.Sent; s != nil {
		p.line("sent", "%s %s, Host: %s", s.Method, s.URI, s.Host)
	}
	p.profile(e.Profile)
}

func (p *page) profile(x *Profile) {
	if x == nil {
		return
	}
	text := "default"
	if x.Name != "" {
		text = x.Name
	}
	if x.MaxBodyBytes > 0 {
		text += fmt.Sprintf(", bodies up to %d bytes", x.MaxBodyBytes)
	} else {
		text += ", bodies of any size"
	}
	if x.Tries > 0 {
		ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
		text += fmt.Sprintf(", timeouts connect %s send %s read %s, %d tries", ms(x.ConnectMs), ms(x.SendMs), ms(x.ReadMs), x.Tries)
	}
	p.line("profile", "%s", text)
}

func (p *page) peers(e Explanation) {
	u := e.Upstream
	if u == nil {
		return
	}
	p.line("upstream", "%s", strings.TrimSuffix(u.ID+", "+u.Algorithm, ", "))
	if len(u.Among) > 0 {
		p.line("", "one of %s, by weight", strings.Join(u.Among, ", "))
	}
	const most = 10
	for i, peer := range u.Peers {
		if i == most {
			p.line("", "and %d more", len(u.Peers)-most)
			break
		}
		text := peer.Address
		if peer.Weight > 1 {
			text += fmt.Sprintf(", weight %d", peer.Weight)
		}
		if peer.Draining {
			text += ", draining"
		}
		p.line(onlyFirst(i, "peers"), "%s", text)
	}
	if len(u.Peers) == 0 {
		p.line("peers", "none")
	}
}

func (p *page) certificate(c *Certificate) {
	if c == nil {
		return
	}
	id := c.ID
	if id == "" {
		id = "(of a Secret that is not known any more)"
	}
	p.line("certificate", "%s, %s, until %s", id, c.Subject, c.NotAfter.UTC().Format(time.DateOnly))
	if len(c.Names) > 0 {
		p.line("", "for %s", strings.Join(c.Names, ", "))
	}
}
