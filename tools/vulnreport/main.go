// Command vulnreport reads govulncheck's JSON stream from standard input, prints
// one line a vulnerability that the scanned code really calls, and exits with 1
// when one of them lies in a dependency, with 2 when the stream is not a whole one.
// The standard library's are warnings: its version is the choice of whoever builds.
// It scans nothing itself.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

func main() {
	report, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulnreport:", err)
		os.Exit(2)
	}
	report.print(os.Stdout)
	if len(report.called) > 0 {
		os.Exit(1)
	}
}

// message is the part of govulncheck's protocol (-format json) that decides; each message
// holds one of its fields, and the first is the config.
type message struct {
	Config  *struct{} `json:"config"`
	Finding *finding  `json:"finding"`
}

type finding struct {
	OSV          string  `json:"osv"`
	FixedVersion string  `json:"fixed_version"`
	Trace        []frame `json:"trace"` // from the vulnerable symbol up to our code
}

type frame struct {
	Module   string `json:"module"`
	Version  string `json:"version"`
	Package  string `json:"package"`
	Function string `json:"function"` // empty: only imported or required, not called
	Receiver string `json:"receiver"`
}

// report holds one line for each vulnerability, sorted.
type report struct {
	called, warnings []string
}

// read fails on a stream that is not govulncheck's: silence would look like "nothing found".
func read(r io.Reader) (report, error) {
	var (
		result report
		seen   = map[string]bool{}
		begun  bool
		stream = json.NewDecoder(r)
	)
	for {
		var m message
		err := stream.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return report{}, fmt.Errorf("decode findings: %w", err)
		}
		if m.Config != nil {
			begun = true
		}
		if m.Finding != nil {
			result.add(*m.Finding, seen)
		}
	}
	if !begun {
		return report{}, errors.New("no config message: govulncheck did not run")
	}
	slices.Sort(result.called)
	slices.Sort(result.warnings)
	return result, nil
}

func (r *report) add(f finding, seen map[string]bool) {
	if len(f.Trace) == 0 || f.Trace[0].Function == "" || seen[f.OSV+" "+f.Trace[0].Module] {
		return
	}
	top, ours := f.Trace[0], f.Trace[len(f.Trace)-1]
	seen[f.OSV+" "+top.Module] = true
	line := fmt.Sprintf("%s in %s %s: %s is called from %s; fixed in %s",
		f.OSV, top.Module, top.Version, top.symbol(), ours.symbol(), orNone(f.FixedVersion))
	if top.Module == "stdlib" {
		r.warnings = append(r.warnings, line)
		return
	}
	r.called = append(r.called, line)
}

func (f frame) symbol() string {
	if f.Receiver != "" {
		return f.Package + "." + f.Receiver + "." + f.Function
	}
	return f.Package + "." + f.Function
}

func orNone(version string) string {
	if version == "" {
		return "no version yet"
	}
	return version
}

func (r report) print(w io.Writer) {
	for _, line := range r.warnings {
		fmt.Fprintln(w, "vulncheck: warning:", line)
	}
	for _, line := range r.called {
		fmt.Fprintln(w, "vulncheck:", line)
	}
	fmt.Fprintf(w, "vulncheck: %d vulnerabilities of dependencies are called, and %d of the standard library (warnings)\n",
		len(r.called), len(r.warnings))
}
