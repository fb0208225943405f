// Package check looks at a configuration and at the host it is meant for, and says what is missing and which
// command mends it: proxy, ports, privileges, folders, limits, credentials, rights in the cluster, manifests, name
// servers. It changes nothing: what it must write to try something lies in a temporary folder that it removes. It
// never shows a secret. `headgate check` prints what Run finds; `headgate doctor` what Doctor does, which also looks at the
// network around this host.
package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"headgate/cmd/config"
)

// Verdict is what became of one look.
type Verdict string

// The verdicts. Warn is worth a look and keeps nothing from working; Fail must be mended.
const (
	OK   Verdict = "ok"
	Warn Verdict = "warn"
	Fail Verdict = "fail"
)

// Line is one look.
type Line struct {
	Area    string  `json:"area"` // "proxy", "listeners", …
	Verdict Verdict `json:"verdict"`
	Message string  `json:"message"`
	// Fix is the command or the edit that mends it; "" when all is well.
	Fix string `json:"fix,omitempty"`
}

// Report is everything that was found.
type Report struct {
	Lines []Line `json:"lines"`
}

// Count tells how many lines have that verdict.
func (r Report) Count(v Verdict) int {
	n := 0
	for _, l := range r.Lines {
		if l.Verdict == v {
			n++
		}
	}
	return n
}

// Host is what is looked at; This gives the one we run on. Tests hand in folders of their own.
type Host struct {
	// Root stands before every system path (/proc, /etc, …); "" is this host.
	Root string
	// UID is the effective user.
	UID int
	// Bind tries whether a socket can have this address, without listening on it; nil asks the kernel.
	Bind func(netip.AddrPort) error
	// BindUDP is the same for datagrams.
	BindUDP func(netip.AddrPort) error
	// Probe asks the link who has an address; nil does so, which needs CAP_NET_RAW.
	Probe func(ctx context.Context, iface string, ip netip.Addr) (net.HardwareAddr, bool, error)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// This is the host that we run on.
func This() Host { return Host{UID: os.Geteuid()} }

// Subject is what is checked.
type Subject struct {
	Config config.Config
	// File is the configuration file, "" when there is none.
	File string
	// Version is that of this binary.
	Version string
	Host    Host
}

// run collects the lines of one check.
type run struct {
	Subject
	deep  bool // for Doctor
	area  string
	lines []Line
}

// Run checks everything, one area after the other.
func Run(ctx context.Context, s Subject) Report {
	r := start(s)
	for _, part := range parts() {
		r.area = part.area
		part.look(r, ctx)
	}
	return Report{Lines: r.lines}
}

func start(s Subject) *run {
	if s.Host.Bind == nil {
		s.Host.Bind = bind
	}
	if s.Host.BindUDP == nil {
		s.Host.BindUDP = bindUDP
	}
	if s.Host.Probe == nil {
		s.Host.Probe = probe
	}
	if s.Host.Now == nil {
		s.Host.Now = time.Now
	}
	return &run{Subject: s}
}

type part struct {
	area string
	look func(*run, context.Context)
}

func parts() []part {
	return []part{
		{"config", (*run).configuration},
		{"proxy", (*run).proxy},
		{"listeners", (*run).listeners},
		{"folders", (*run).folders},
		{"limits", (*run).limits},
		{"kubeconfig", (*run).kubeconfig},
		{"manifests", (*run).manifests},
		{"dns", (*run).nameServers},
	}
}

// Refused is the report on a configuration that cannot be loaded: a line for each mistake. The rest waits for a
// good one.
func Refused(err error) Report {
	var r run
	r.area = "config"
	all := []error{err}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		all = joined.Unwrap()
	}
	for _, e := range all {
		fix := "headgate init"
		var field *config.FieldError
		switch {
		case errors.Is(e, fs.ErrPermission):
			fix = "run headgate check as root"
		case errors.As(e, &field) && field.Place != "":
			fix = "correct " + field.Place
		}
		r.fail(fix, "%v", e)
	}
	r.warn("", "everything else is looked at once the configuration can be read")
	return Report{Lines: r.lines}
}

func (r *run) add(v Verdict, fix, message string) {
	if r.deep {
		fix = strings.ReplaceAll(fix, "headgate check", "headgate doctor") // whoever runs the one means it again
	}
	r.lines = append(r.lines, Line{Area: r.area, Verdict: v, Message: oneLine(message), Fix: oneLine(fix)})
}

func (r *run) ok(format string, args ...any) { r.add(OK, "", fmt.Sprintf(format, args...)) }

func (r *run) warn(fix, format string, args ...any) { r.add(Warn, fix, fmt.Sprintf(format, args...)) }

func (r *run) fail(fix, format string, args ...any) { r.add(Fail, fix, fmt.Sprintf(format, args...)) }

// path is where a system file lies on the host that is looked at.
func (r *run) path(name string) string { return filepath.Join(r.Host.Root, name) }

func oneLine(text string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, strings.ReplaceAll(strings.TrimSpace(text), "\n", "; "))
}

// WriteText prints the report for people. What must be mended is in capitals.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, l := range r.Lines {
		word := string(l.Verdict)
		if l.Verdict == Fail {
			word = "FAIL"
		}
		fmt.Fprintf(&b, "%-4s  %-10s  %s\n", word, l.Area, l.Message)
		if l.Fix != "" {
			fmt.Fprintf(&b, "%-4s  %-10s  -> %s\n", "", "", l.Fix)
		}
	}
	fmt.Fprintf(&b, "\n%d ok, %d to look at, %d to mend\n", r.Count(OK), r.Count(Warn), r.Count(Fail))
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
