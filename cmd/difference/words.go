package difference

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// object is one as luastate.Redacted writes it.
type object struct {
	Hash string          `json:"hash"`
	Body json.RawMessage `json:"body"`
}

func parseObject(text []byte, pointer string) *object {
	var all map[string]*object
	if err := json.Unmarshal(text, &all); err != nil {
		return nil
	}
	return all[pointer]
}

// The kinds, in the order in which they are shown.
const (
	hostKind        = "host"
	sniKind         = "certificate of host"
	upstreamKind    = "upstream"
	certificateKind = "certificate"
	settingKind     = "setting"
)

func kindRank(kind string) int {
	return slices.Index([]string{hostKind, sniKind, upstreamKind, certificateKind, settingKind}, kind)
}

// words names a pointer for people.
func words(pointer string) (kind, name string) {
	prefix, name, _ := strings.Cut(pointer, "/")
	kind = map[string]string{
		"host": hostKind, "sni": sniKind, "upstream": upstreamKind, "cert": certificateKind, "setting": settingKind,
	}[prefix]
	if name == "" {
		name = "* (any that no other serves)"
	}
	return kind, printable(name)
}

// describe says what differs between two versions of an object, a line each; nil stands for none. Where a version is
// not known there is nothing to say.
func describe(pointer string, before, after *object) []string {
	lines := []string{}
	prefix, _, _ := strings.Cut(pointer, "/")
	switch prefix {
	case "host":
		lines = append(lines, differ(paths(before), paths(after))...)
	case "upstream":
		lines = append(lines, differ(peers(before), peers(after))...)
	case "cert":
		lines = append(lines, differ(certificate(before), certificate(after))...)
	default:
		lines = append(lines, differ(fields(before), fields(after))...)
	}
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return lines
}

// printable keeps what users wrote from playing with the terminal.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return '\uFFFD'
		}
		return c
	}, text)
}

// facts are what can be said of an object: values under names, such as backends under a path.
type facts map[string]string

func differ(before, after facts) []string {
	var lines []string
	entry := func(sign, name, value string) {
		if value != "" {
			name += ": " + value
		}
		lines = append(lines, sign+" "+name)
	}
	for _, name := range sortedKeys(after) {
		was, there := before[name]
		switch {
		case !there:
			entry("+", name, after[name])
		case was != after[name]:
			entry("~", name, was+" -> "+after[name])
		}
	}
	for _, name := range sortedKeys(before) {
		if _, there := after[name]; !there {
			entry("-", name, before[name])
		}
	}
	return lines
}

// host is a body under host/ (gateway/luastate).
type host struct {
	Exact  map[string]int      `json:"exact"`
	Prefix map[string]int      `json:"prefix"`
	Regex  [][]json.RawMessage `json:"regex"`
	Routes []route             `json:"routes"`
}

type route struct {
	Backends    []string        `json:"backends"`
	Weights     []int           `json:"weights"`
	Unavailable bool            `json:"unavailable"`
	Redirect    json.RawMessage `json:"redirect"`
	Rewrite     json.RawMessage `json:"rewrite"`
	Policy      string          `json:"policy"`
	MaxBody     int64           `json:"maxBody"`
	Profile     string          `json:"profile"`
	Source      []string        `json:"source"`
}

func paths(o *object) facts {
	var h host
	if o == nil || json.Unmarshal(o.Body, &h) != nil {
		return nil
	}
	all := facts{}
	add := func(kind, path string, n int) {
		if n >= 1 && n <= len(h.Routes) {
			all["path "+kind+" "+path] = h.Routes[n-1].text()
		}
	}
	for path, n := range h.Exact {
		add("exact", path, n)
	}
	for path, n := range h.Prefix {
		if path == "" {
			path = "/"
		}
		add("prefix", path, n)
	}
	for _, pair := range h.Regex {
		var pattern string
		var n int
		if len(pair) == 2 && json.Unmarshal(pair[0], &pattern) == nil && json.Unmarshal(pair[1], &n) == nil {
			add("regex", pattern, n)
		}
	}
	return all
}

// text is one route on a line: where it goes, and what is special about it.
func (r route) text() string {
	parts := []string{"503, no backend"}
	if !r.Unavailable && len(r.Backends) > 0 {
		to := slices.Clone(r.Backends)
		for i := range to {
			if i < len(r.Weights) {
				to[i] += " weight " + strconv.Itoa(r.Weights[i])
			}
		}
		parts[0] = strings.Join(to, " and ")
	}
	add := func(present bool, text string) {
		if present {
			parts = append(parts, text)
		}
	}
	add(len(r.Redirect) > 0, "redirect to https")
	add(len(r.Rewrite) > 0, "rewrite "+rewriteTarget(r.Rewrite))
	add(r.Policy != "", "timeouts and tries "+r.Policy)
	add(r.MaxBody > 0, fmt.Sprintf("bodies up to %d bytes", r.MaxBody))
	add(r.Profile != "", "profile "+r.Profile)
	if len(r.Source) >= 3 {
		parts = append(parts, fmt.Sprintf("from %s %s/%s", r.Source[0], r.Source[1], r.Source[2]))
	}
	return strings.Join(parts, ", ")
}

func peers(o *object) facts {
	var u struct {
		Algorithm string   `json:"algorithm"`
		Peers     []string `json:"peers"`
		Weights   []int    `json:"weights"`
		Draining  []string `json:"draining"`
	}
	if o == nil || json.Unmarshal(o.Body, &u) != nil {
		return nil
	}
	all := facts{}
	if u.Algorithm != "" {
		all["algorithm"] = u.Algorithm
	}
	for i, p := range u.Peers {
		all["peer "+p] = ""
		if i < len(u.Weights) {
			all["peer "+p] = "weight " + strconv.Itoa(u.Weights[i])
		}
	}
	for _, p := range u.Draining {
		all["peer "+p] = "draining"
	}
	return all
}

// certificate tells the public part, and of the key only that it is another one.
func certificate(o *object) facts {
	var c struct{ Chain, Key string }
	if o == nil || json.Unmarshal(o.Body, &c) != nil {
		return nil
	}
	all := facts{}
	if block, _ := pem.Decode([]byte(c.Chain)); block != nil {
		if leaf, err := x509.ParseCertificate(block.Bytes); err == nil {
			all["names"] = strings.Join(leaf.DNSNames, ", ")
			all["valid until"] = leaf.NotAfter.UTC().Format(time.RFC3339)
			all["serial number"] = leaf.SerialNumber.Text(16)
		}
	}
	if digest, found := strings.CutPrefix(c.Key, "sha256:"); found {
		all["key with SHA-256"] = digest[:min(len(digest), 16)] + "…"
	}
	return all
}

// fields are those of any other object.
func fields(o *object) facts {
	var values map[string]json.RawMessage
	if o == nil || json.Unmarshal(o.Body, &values) != nil {
		return nil
	}
	all := facts{}
	for name, value := range values {
		var compact strings.Builder
		var text string
		if json.Unmarshal(value, &text) == nil {
			compact.WriteString(text)
		} else {
			compact.WriteString(strings.Join(strings.Fields(string(value)), " "))
		}
		all[name] = compact.String()
	}
	return all
}

// rewriteTarget writes the parts of a rewrite as the annotation does: literals, and $1 for a capture group.
func rewriteTarget(parts json.RawMessage) string {
	var list []any
	if err := json.Unmarshal(parts, &list); err != nil {
		return string(parts)
	}
	var b strings.Builder
	for _, part := range list {
		if group, ok := part.(float64); ok {
			fmt.Fprintf(&b, "$%d", int(group))
			continue
		}
		fmt.Fprint(&b, part)
	}
	return b.String()
}
