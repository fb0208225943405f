package nginxconf

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// value is what may stand in a directive. Each type can hold nothing that is syntax to nginx.
type value interface{ appendTo([]byte) []byte }

// literal is text of this package. Functions take it where only constants belong: a string variable
// does not convert to it by itself.
type literal string

func (l literal) appendTo(b []byte) []byte { return append(b, l...) }

// path is an absolute path, or a Lua search path; parsePath and parseSearchPath make it. It is
// always written in quotes, which is also how Lua reads it.
type path struct{ text string }

func (p path) appendTo(b []byte) []byte {
	b = append(b, '"')
	b = append(b, p.text...)
	return append(b, '"')
}

// forbidden are the bytes that end or change a quoted string in nginx.conf or Lua, expand a variable
// there, or would mislead a reader.
const forbidden = "\"'\\;{}$`"

func checkPlain(s, without string) error {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == 0x7f {
			return fmt.Errorf("%q holds a control character; write a path of printable characters", s)
		} else if strings.IndexByte(without, c) >= 0 {
			return fmt.Errorf("%q holds %q; write a path without any of %s", s, c, without)
		}
	}
	return nil
}

func parsePath(s string) (path, error) {
	if s == "" {
		return path{}, errors.New("is missing; write an absolute path")
	}
	if !filepath.IsAbs(s) {
		return path{}, fmt.Errorf("%q is not absolute; write a path that starts with /", s)
	}
	if err := checkPlain(s, forbidden); err != nil {
		return path{}, err
	}
	return path{s}, nil
}

// parseSearchPath reads a list of patterns as Lua has it; an empty one is Lua's built-in list (";;").
func parseSearchPath(patterns string) (path, error) {
	var all []string
	for p := range strings.SplitSeq(patterns, ";") {
		if p == "" {
			continue
		}
		if _, err := parsePath(p); err != nil {
			return path{}, err
		}
		if !strings.Contains(p, "?") {
			return path{}, fmt.Errorf("%q has no \"?\"; write a pattern such as /usr/share/lua/5.1/?.lua", p)
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		return path{";;"}, nil
	}
	return path{strings.Join(all, ";")}, nil
}

// name is a user, a group or a build: letters, digits, "_", "-", ".", not starting with "-".
type name string

func (n name) appendTo(b []byte) []byte { return append(b, n...) }

func parseName(s string) (name, error) {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("_-.", c) < 0 {
			return "", fmt.Errorf("%q holds %q; write letters, digits, \"_\", \"-\" and \".\" only", s, c)
		}
	}
	if s == "" || s[0] == '-' {
		return "", fmt.Errorf("%q is no name; write one that starts with a letter or digit", s)
	}
	return name(s), nil
}

// quoted is text without control characters and "$", checked before: in quotes nothing else of it is syntax, and
// nginx reads \" and \\ as what they stand for (ngx_conf_read_token).
type quoted string

func (q quoted) appendTo(b []byte) []byte {
	b = append(b, '"')
	for i := range len(q) {
		if q[i] == '"' || q[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, q[i])
	}
	return append(b, '"')
}

type number int64

func (n number) appendTo(b []byte) []byte { return strconv.AppendInt(b, int64(n), 10) }

// seconds is a duration in whole seconds, without a unit.
type seconds time.Duration

func (s seconds) appendTo(b []byte) []byte {
	return strconv.AppendInt(b, int64(time.Duration(s)/time.Second), 10)
}

type prefix netip.Prefix

func (p prefix) appendTo(b []byte) []byte { return netip.Prefix(p).Masked().AppendTo(b) }

type address netip.AddrPort

func (a address) appendTo(b []byte) []byte {
	ap := netip.AddrPort(a)
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()).AppendTo(b)
}

// join writes its parts without a space between them.
type join []value

func (j join) appendTo(b []byte) []byte {
	for _, v := range j {
		b = v.appendTo(b)
	}
	return b
}

// writer writes directives, four spaces an indent.
type writer struct {
	buf   []byte
	depth int
}

func (w *writer) bytes() []byte { return w.buf }

func (w *writer) indent() {
	for range w.depth {
		w.buf = append(w.buf, "    "...)
	}
}

// directive writes "name value …;".
func (w *writer) directive(name literal, values ...value) {
	w.head(name, values)
	w.buf = append(w.buf, ";\n"...)
}

// lines writes constant lines as they are; "" is an empty line.
func (w *writer) lines(lines ...literal) {
	for _, l := range lines {
		if l != "" {
			w.indent()
		}
		w.buf = append(w.buf, l...)
		w.buf = append(w.buf, '\n')
	}
}

// block writes "name value … { body }".
func (w *writer) block(body func(), name literal, values ...value) {
	w.head(name, values)
	w.buf = append(w.buf, " {\n"...)
	w.depth++
	body()
	w.depth--
	w.indent()
	w.buf = append(w.buf, "}\n"...)
}

func (w *writer) head(name literal, values []value) {
	w.indent()
	w.buf = append(w.buf, name...)
	for _, v := range values {
		w.buf = append(w.buf, ' ')
		w.buf = v.appendTo(w.buf)
	}
}
