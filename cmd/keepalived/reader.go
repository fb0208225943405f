package keepalived

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// SyntaxError is a file that is none of keepalived's. It shows nothing of the file: there may be a password in it.
type SyntaxError struct {
	Place   Place
	Message string
}

// Error implements error.
func (e *SyntaxError) Error() string {
	if e.Place.Line == 0 {
		return e.Place.File + ": " + e.Message
	}
	return e.Place.String() + ": " + e.Message
}

// What a file may cost. The largest that people wrote for keepalived have a few thousand lines.
const (
	// MaxBytes bounds a file together with all that it includes.
	MaxBytes      = 1 << 20
	maxExpanded   = 1 << 20 // bytes of lines in which a parameter was replaced, with stepCost for each
	stepCost      = 64
	maxLines      = 100_000 // after that
	maxFiles      = 100
	maxIncludes   = 8 // depth
	maxDefinition = 1000
)

// line is what is left of a line without comments, conditions and parameters.
type line struct {
	place Place
	text  string
}

// reader makes lines of files (keepalived.conf(5), "Conditional configuration", "Parameter substitution").
type reader struct {
	id       string
	include  func(from, pattern string) ([]Source, error)
	params   map[string]string // a value of several lines has them with \n
	findings findings
	lines    []line
	budget   struct{ bytes, expanded, files int }
}

func newReader(o Options) *reader {
	r := &reader{id: o.ID, include: o.Include, params: map[string]string{"_HASH": "#", "_BANG": "!"}}
	r.budget.bytes, r.budget.expanded, r.budget.files = MaxBytes, maxExpanded, maxFiles
	return r
}

// file reads one file; depth is how many files include it.
func (r *reader) file(s Source, depth int) error {
	whole := Place{File: s.Name}
	r.budget.bytes -= len(s.Text)
	r.budget.files--
	switch {
	case r.budget.bytes < 0:
		return &SyntaxError{whole, fmt.Sprintf("larger than %d bytes, with all that is included: this is no keepalived.conf", MaxBytes)}
	case r.budget.files < 0:
		return &SyntaxError{whole, fmt.Sprintf("more than %d files are included", maxFiles)}
	case depth > maxIncludes:
		return &SyntaxError{whole, fmt.Sprintf("files include each other more than %d deep: is there a circle?", maxIncludes)}
	}
	r.params["_PWD"] = path.Dir(s.Name)
	raw, err := clean(s)
	if err != nil {
		return err
	}
	return r.work(r.definitions(raw), s.Name, depth)
}

// clean removes comments. What no text editor writes is an error.
func clean(s Source) ([]line, error) {
	var lines []line
	for i, b := range bytes.Split(s.Text, []byte("\n")) {
		at := Place{s.Name, i + 1}
		if j := bytes.IndexFunc(b, func(c rune) bool { return c < ' ' && c != '\t' && c != '\r' || c == 0x7f }); j >= 0 {
			return nil, &SyntaxError{at, fmt.Sprintf("the byte 0x%02x stands in it: this is no text, and no keepalived.conf", b[j])}
		}
		text, err := uncomment(strings.Trim(string(b), " \t\r"))
		if err != "" {
			return nil, &SyntaxError{at, err}
		}
		if !utf8.ValidString(text) {
			return nil, &SyntaxError{at, "bytes that are no UTF-8, outside of a comment: write the file in UTF-8"}
		}
		lines = append(lines, line{at, text})
	}
	return lines, nil
}

// uncomment ends a line at # or ! outside of double quotes; \# and \! are the characters themselves.
func uncomment(text string) (rest, mistake string) {
	var b strings.Builder
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
			if quoted || text[i] != '#' && text[i] != '!' {
				b.WriteByte(c)
			}
			b.WriteByte(text[i])
		case !quoted && (c == '#' || c == '!'):
			rest = strings.TrimRight(b.String(), " \t")
			if slashes := len(text) - len(strings.TrimRight(text, `\`)); slashes%2 == 1 {
				rest += ` \` // a comment does not end a definition of several lines
			}
			return rest, ""
		default:
			quoted = quoted != (c == '"')
			b.WriteByte(c)
		}
	}
	if quoted {
		return "", `a double quote (") without its partner: close it`
	}
	return b.String(), ""
}

// definitions joins the lines of a definition of several lines: all but the last end with a backslash.
func (r *reader) definitions(raw []line) []line {
	var out []line
	for i := 0; i < len(raw); i++ {
		l := raw[i]
		_, text := r.condition(l)
		if body, more := strings.CutSuffix(l.text, `\`); more && definition.MatchString(text) {
			lines := []string{strings.TrimRight(body, " \t")}
			for more && i+1 < len(raw) {
				i++
				if raw[i].text == "" {
					continue
				}
				body, more = strings.CutSuffix(raw[i].text, `\`)
				lines = append(lines, strings.TrimRight(body, " \t"))
			}
			l.text = strings.Join(lines, "\n")
		}
		if l.text != "" {
			out = append(out, l)
		}
	}
	return out
}

var (
	definition = regexp.MustCompile(`(?s)^\$([A-Za-z_][A-Za-z0-9_]*)=[ \t]*(.*)$`)
	parameter  = regexp.MustCompile(`\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*)(?:[ \t]|$))`)
	includes   = regexp.MustCompile(`^include[rmwba]?[ \t]+(.+)$`)
)

// condition tells whether the line is of this host, and what it is without the @.
func (r *reader) condition(l line) (ours bool, text string) {
	id, conditional := strings.CutPrefix(l.text, "@")
	if !conditional {
		return true, l.text
	}
	id, negated := strings.CutPrefix(id, "^")
	end := strings.IndexAny(id, " \t")
	if end < 0 {
		return false, ""
	}
	return (id[:end] == r.id && r.id != "") != negated, strings.TrimLeft(id[end:], " \t")
}

// work does what the lines say: those that a parameter of several lines stands for are worked on in its place.
func (r *reader) work(queue []line, file string, depth int) error {
	slices.Reverse(queue) // the next one is the last: what is put in front is appended
	for len(queue) > 0 {
		l := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		ours, text := r.condition(l)
		if !ours {
			r.findings.add(Note, l.place, "lines of other configuration ids (@) are left out: this host is %s; give --config-id if it is another one", shown(r.id))
			continue
		}
		if text == "" {
			continue
		}
		if d := definition.FindStringSubmatch(text); d != nil {
			if len(r.params) == maxDefinition {
				return &SyntaxError{l.place, fmt.Sprintf("more than %d parameters", maxDefinition)}
			}
			r.params[d[1]] = strings.TrimLeft(d[2], "\n")
			continue
		}
		if found := includes.FindStringSubmatch(text); found != nil {
			if err := r.included(l.place, found[1], depth); err != nil {
				return err
			}
			r.params["_PWD"] = path.Dir(file)
			continue
		}
		if strings.HasPrefix(text, "~") {
			r.findings.add(LeftOut, l.place, "~SEQ and ~LST are not expanded: write the lines out that they stand for")
			continue
		}
		expanded, err := r.expand(l.place, text)
		if err != nil {
			return err
		}
		if expanded == nil {
			r.lines = append(r.lines, line{l.place, text})
			if len(r.lines) > maxLines {
				return &SyntaxError{l.place, fmt.Sprintf("more than %d lines, once parameters are replaced", maxLines)}
			}
			continue
		}
		slices.Reverse(expanded)
		queue = append(queue, expanded...)
	}
	return nil
}

// expand replaces the first parameter, and gives the lines that are to be worked on instead; nil when there is none.
func (r *reader) expand(at Place, text string) ([]line, error) {
	for _, found := range parameter.FindAllStringSubmatchIndex(text, -1) {
		start, end, name := found[0], found[1], ""
		if found[2] >= 0 {
			name = text[found[2]:found[3]]
		} else {
			name, end = text[found[4]:found[5]], found[5]
		}
		value, defined := r.params[name]
		if !defined {
			continue
		}
		whole := text[:start] + value + text[end:]
		if r.budget.expanded -= len(whole) + stepCost; r.budget.expanded < 0 {
			return nil, &SyntaxError{at, "parameters ($) stand for more text than a configuration has: is one defined by itself?"}
		}
		lines := []line{}
		for part := range strings.SplitSeq(whole, "\n") {
			lines = append(lines, line{at, strings.Trim(part, " \t")})
		}
		return lines, nil
	}
	return nil, nil
}

func (r *reader) included(at Place, pattern string, depth int) error {
	pattern = strings.Trim(pattern, `"`)
	if r.include == nil {
		r.findings.add(LeftOut, at, "include %s: not read; give --include to follow it", shown(pattern))
		return nil
	}
	files, err := r.include(at.File, pattern)
	if err != nil {
		r.findings.add(LeftOut, at, "include %s: %v", shown(pattern), err)
		return nil
	}
	for _, f := range files {
		if err := r.file(f, depth+1); err != nil {
			return err
		}
	}
	return nil
}
