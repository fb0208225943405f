// Package annotations reads the annotations of an Ingress into typed values. Each annotation has a file of
// its own with its parser, limits, documentation and example; All is the only list of them. The names and
// meanings are those of ingress-nginx. No string leaves this package unparsed.
//
// It is pure: gateway/build runs it, the reference page is made from All.
package annotations

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// DefaultPrefix stands before "/" in the names of ingress-nginx's annotations.
const DefaultPrefix = "nginx.ingress.kubernetes.io"

// IngressClass is the annotation that names a class on Ingresses older than spec.ingressClassName. It has
// no configurable prefix.
const IngressClass = "kubernetes.io/ingress.class"

// Risk says how much harm the author of an annotation could do with it to others. The levels are those
// of ingress-nginx's annotations-risk-level.
type Risk string

// The risks, rising.
const (
	Low      Risk = "Low"
	Medium   Risk = "Medium"
	High     Risk = "High"
	Critical Risk = "Critical"
)

// Scope says what an annotation changes.
type Scope string

// The scopes: the paths of the annotated Ingress, or the whole host, whoever its other paths belong to.
const (
	Paths Scope = "paths"
	Host  Scope = "host"
)

// Annotation describes one annotation.
type Annotation struct {
	Name    string // without the prefix
	Doc     string // what it does, in sentences
	Values  string // what may be written: unit and range
	Default string // what holds without it
	Example string // a value that parses
	Risk    Risk
	Scope   Scope
	parse   func(value string, into *Values) error
}

// Parse reads value into its field of into. The error says what to write instead; into is then unchanged.
func (a Annotation) Parse(value string, into *Values) error { return a.parse(value, into) }

// All lists every annotation that headgate serves, sorted by name.
func All() []Annotation {
	return []Annotation{
		forceSSLRedirect(),
		preserveTrailingSlash(),
		rewriteTarget(),
		sslRedirect(),
		useRegex(),
	}
}

// Values are the parsed annotations of one Ingress. The zero value means that none is set.
type Values struct {
	// RewriteTarget is empty when it is not set.
	RewriteTarget RewriteTarget
	UseRegex      bool
	// SSLRedirect is nil when it is not set: the configuration decides.
	SSLRedirect           *bool
	ForceSSLRedirect      bool
	PreserveTrailingSlash bool
}

// FaultKind says what is wrong with an annotation.
type FaultKind string

// The kinds of faults. Only Invalid keeps the new version of the Ingress from being served.
const (
	Invalid     FaultKind = "invalid"     // the value does not parse
	Unsupported FaultKind = "unsupported" // ingress-nginx knows it, headgate does not serve it yet
	Unknown     FaultKind = "unknown"     // nobody knows the name
)

// Meanwhile says how an Ingress is served while one of its annotations is not.
type Meanwhile string

// The ways to serve it. Withhold closes its paths (503): without the annotation they would be open to those whom it
// keeps out. LeaveOut takes it for absent: without the annotation it would claim another Ingress's paths.
const (
	ServeWithout Meanwhile = ""
	Withhold     Meanwhile = "withhold"
	LeaveOut     Meanwhile = "leave-out"
)

// Fault is one annotation that cannot be served as it is written.
type Fault struct {
	Name    string // with the prefix, as written
	Kind    FaultKind
	Message string // what is wrong and what to write instead
	// Meanwhile is set for Unsupported only.
	Meanwhile Meanwhile
}

// Reader reads annotations under one prefix.
type Reader struct {
	prefix string // with "/"
	known  map[string]Annotation
	later  map[string]later
}

// NewReader makes a Reader; "" means DefaultPrefix. It is safe for concurrent use.
func NewReader(prefix string) *Reader {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	r := &Reader{prefix: prefix + "/", known: map[string]Annotation{}, later: map[string]later{}}
	for _, a := range All() {
		r.known[a.Name] = a
	}
	for _, k := range notYet() {
		r.later[k.name] = k
	}
	return r
}

// Read reads the annotations under the prefix, and no others. Faults are sorted by name.
func (r *Reader) Read(in map[string]string) (Values, []Fault) {
	var values Values
	var faults []Fault
	for full, value := range in {
		name, ours := strings.CutPrefix(full, r.prefix)
		if !ours {
			continue
		}
		if a, ok := r.known[name]; !ok {
			faults = append(faults, r.explain(full, name, value))
		} else if err := a.Parse(value, &values); err != nil {
			faults = append(faults, Fault{Name: full, Kind: Invalid, Message: fmt.Sprintf("annotation %s: %v; for example %q", full, err, a.Example)})
		}
	}
	slices.SortFunc(faults, func(a, b Fault) int { return strings.Compare(a.Name, b.Name) })
	return values, faults
}

func (r *Reader) explain(full, name, value string) Fault {
	if l, ok := r.later[name]; ok {
		return l.unsupported(full, value)
	}
	message := fmt.Sprintf("annotation %q is unknown; the Ingress is served without it", full)
	if near := r.nearest(name); near != "" {
		message = fmt.Sprintf("%s; did you mean %s%s?", message, r.prefix, near)
	}
	return Fault{Name: full, Kind: Unknown, Message: message}
}

func (l later) unsupported(full, value string) Fault {
	f := Fault{Name: full, Kind: Unsupported, Meanwhile: l.meanwhile}
	if on, err := strconv.ParseBool(value); l.meanwhile == LeaveOut && err == nil && !on {
		f.Meanwhile = ServeWithout
	}
	served := "the Ingress is served without it"
	switch f.Meanwhile {
	case ServeWithout:
	case Withhold:
		served = "its paths answer 503, for without it they would be open to everybody; remove it if that is what you want"
	case LeaveOut:
		served = "the Ingress is left out, for without it it would take over the paths of its main Ingress"
	}
	f.Message = fmt.Sprintf("annotation %s is known from ingress-nginx but not served yet; %s", full, served)
	return f
}

// shown cuts a value for a message: annotations may be 256 KiB long.
func shown(value string) string {
	const most = 80
	if len(value) <= most {
		return fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("%q…", value[:most])
}
