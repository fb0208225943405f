package build

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"headgate/gateway/annotations"
	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// maxPathBytes bounds a path of a rule. nginx reads request lines up to 8 KiB by default.
const maxPathBytes = 4096

// ingress is one version of an Ingress in build's words. It depends on nothing but that version, and is
// never changed once it is made.
type ingress struct {
	src    *snapshot.Ingress
	values annotations.Values
	hosts  []hostRules // sorted by name, a host once
	tls    []tlsSection
	// tlsNames are the hosts of tls, sorted by name, then by place.
	tlsNames []tlsName
	// bare is set for an Ingress without rules: its backend is the catch-all, untouched by
	// redirects and rewrites.
	bare bool
	// patterns are the regexes that only the proxy can judge.
	patterns []string
	// policy names what values.Balancing says; see policyName.
	policy string
	// invalid says why nothing of this version may be served: an annotation that cannot be read.
	invalid string
	// withheld says why its paths answer 503 although it can be read: an access control that is not served yet.
	withheld string
	// leftOut is set for an Ingress that claims nothing: a canary, which is not served yet.
	leftOut  bool
	problems []Problem
}

// hostRules are the paths that one Ingress has for a host.
type hostRules struct {
	name     model.HostName
	paths    []path
	fallback *path // spec.defaultBackend, for what no path of the host matches
}

// path is one path of a rule.
type path struct {
	rule, index int // place in the spec; rule is -1 for spec.defaultBackend
	value       string
	exact       bool
	regex       bool // its Ingress wants it read as a regular expression
	backend     backend
}

// backend is a service and its port, or the reason why it can be none.
type backend struct {
	service    string
	portName   string
	portNumber uint16
	invalid    string
}

// tlsName leads from a host to the section that names it.
type tlsName struct {
	host    model.HostName
	section int // in ingress.tls
}

// tlsSection is one entry of spec.tls.
type tlsSection struct {
	index  int
	hosts  []model.HostName
	secret string
}

func (p *path) field() string {
	if p.rule < 0 {
		return "spec.defaultBackend"
	}
	return fmt.Sprintf("spec.rules[%d].http.paths[%d]", p.rule, p.index)
}

// backendField names a field of the path's backend.
func (p *path) backendField(rest string) string {
	if p.rule < 0 {
		return "spec.defaultBackend." + rest
	}
	return p.field() + ".backend." + rest
}

func (b backend) port() string {
	if b.portName != "" {
		return b.portName
	}
	return fmt.Sprint(b.portNumber)
}

// rulesOf gives what the Ingress says about a host, or nil.
func (in *ingress) rulesOf(name model.HostName) *hostRules {
	at, found := slices.BinarySearchFunc(in.hosts, name, func(r hostRules, n model.HostName) int { return cmp.Compare(r.name, n) })
	if !found {
		return nil
	}
	return &in.hosts[at]
}

// sectionNaming gives the first section of spec.tls that names the host, or nil.
func (in *ingress) sectionNaming(name model.HostName) *tlsSection {
	at, found := slices.BinarySearchFunc(in.tlsNames, name, func(t tlsName, n model.HostName) int { return cmp.Compare(t.host, n) })
	if !found {
		return nil
	}
	return &in.tls[in.tlsNames[at].section]
}

func (in *ingress) key() snapshot.Key { return in.src.Key }

func (in *ingress) problem(field string, reason Reason, message string) Problem {
	return Problem{Object: objectOf("Ingress", &in.src.Meta), Field: field, Reason: reason, Message: message}
}

func (in *ingress) warning(field string, reason Reason, message string) Problem {
	p := in.problem(field, reason, message)
	p.Warning = true
	return p
}

func (in *ingress) note(p Problem) { in.problems = append(in.problems, p) }

// parse reads one version of an Ingress.
func (b *Builder) parse(src *snapshot.Ingress) *ingress {
	in := &ingress{src: src}
	in.readAnnotations(b.reader)
	in.readRules()
	in.readDefaultBackend()
	in.readTLS()
	return in
}

func (in *ingress) readAnnotations(reader *annotations.Reader) {
	var faults []annotations.Fault
	in.values, faults = reader.Read(in.src.Annotations)
	for _, f := range faults {
		field := annotationField(f.Name)
		switch f.Kind {
		case annotations.Invalid:
			in.refuse(field, f.Message)
		case annotations.Unsupported:
			in.note(in.unsupported(field, f))
		case annotations.Unknown, annotations.Idle:
			in.note(in.warning(field, reasonOf(f.Kind), f.Message))
		}
	}
	if in.values.Balancing != nil {
		in.policy = policyName(in.values.Balancing)
	}
	in.checkPeerSecret(reader.Prefix())
	if in.leftOut {
		// That it is served without some other annotation would be untrue.
		in.problems = slices.DeleteFunc(in.problems, func(p Problem) bool { return p.Warning && p.Reason == Unsupported })
	}
}

// refuse notes an annotation that keeps this version from being served.
func (in *ingress) refuse(field, message string) {
	in.note(in.problem(field, InvalidAnnotation, message))
	in.invalid = cmp.Or(in.invalid, message)
}

// checkPeerSecret keeps an Ingress from using the private key of another namespace.
func (in *ingress) checkPeerSecret(prefix string) {
	t := in.values.PeerTLS
	if t == nil || t.SecretNamespace == "" || t.SecretNamespace == in.src.Namespace {
		return
	}
	name := prefix + proxySSLSecret
	in.refuse(annotationField(name), fmt.Sprintf(
		"annotation %s: Secret %s/%s is of another namespace; copy it into namespace %s and write its name here",
		name, t.SecretNamespace, t.Secret, in.src.Namespace))
}

// unsupported closes or leaves out an Ingress whose annotation says who may come in, or that it is no Ingress of its own.
func (in *ingress) unsupported(field string, f annotations.Fault) Problem {
	switch f.Meanwhile {
	case annotations.ServeWithout:
		return in.warning(field, Unsupported, f.Message)
	case annotations.Withhold:
		in.withheld = cmp.Or(in.withheld, f.Message)
	case annotations.LeaveOut:
		in.leftOut = true
	}
	return in.problem(field, Unsupported, f.Message)
}

func (in *ingress) readRules() {
	places := make(map[model.HostName]int, len(in.src.Spec.Rules))
	for i := range in.src.Spec.Rules {
		rule := &in.src.Spec.Rules[i]
		name, err := model.ParseHostName(rule.Host)
		if err != nil {
			in.note(in.problem(fmt.Sprintf("spec.rules[%d].host", i), InvalidHost,
				err.Error()+"; the rule is not served"))
			continue
		}
		place, known := places[name]
		if !known {
			place = len(in.hosts)
			places[name] = place
			in.hosts = append(in.hosts, hostRules{name: name})
		}
		in.readPaths(i, rule.HTTP, &in.hosts[place])
	}
	slices.SortFunc(in.hosts, func(a, b hostRules) int { return cmp.Compare(a.name, b.name) })
}

func (in *ingress) readPaths(rule int, src *networkingv1.HTTPIngressRuleValue, into *hostRules) {
	if src == nil {
		return // all of the host goes to the default backend
	}
	into.paths = slices.Grow(into.paths, len(src.Paths))
	for j := range src.Paths {
		if p, ok := in.readPath(rule, j, &src.Paths[j]); ok {
			into.paths = append(into.paths, p)
		}
	}
}

func (in *ingress) readPath(rule, index int, src *networkingv1.HTTPIngressPath) (path, bool) {
	p := path{rule: rule, index: index, value: src.Path}
	if p.value == "" {
		p.value = "/"
	}
	if why := invalidPath(p.value); why != "" {
		in.note(in.problem(p.field()+".path", InvalidPath, why+"; the path is not served"))
		return path{}, false
	}
	p.exact = src.PathType != nil && *src.PathType == networkingv1.PathTypeExact
	if src.PathType != nil && !knownPathType(*src.PathType) {
		in.note(in.problem(p.field()+".pathType", InvalidPath, fmt.Sprintf(
			"%q is no path type; write Exact, Prefix or ImplementationSpecific; the path is not served", *src.PathType)))
		return path{}, false
	}
	p.regex = in.asksRegex(p.value)
	if p.regex && !plainPattern(p.value) {
		in.patterns = append(in.patterns, p.value)
	}
	in.readBackend(&p, &src.Backend)
	return p, true
}

// asksRegex follows ingress-nginx: a rewrite-target that equals the path rewrites nothing.
func (in *ingress) asksRegex(value string) bool {
	target := in.values.RewriteTarget.Text
	return in.values.UseRegex || (target != "" && target != value)
}

func (in *ingress) readBackend(p *path, src *networkingv1.IngressBackend) {
	p.backend, p.backend.invalid = readBackend(src)
	if p.backend.invalid != "" {
		field := "service"
		if src.Service == nil && src.Resource != nil {
			field = "resource"
		}
		in.note(in.problem(p.backendField(field), InvalidBackend, p.backend.invalid+"; the path answers 503"))
	}
}

func readBackend(src *networkingv1.IngressBackend) (backend, string) {
	if src.Service == nil {
		if src.Resource != nil {
			return backend{}, fmt.Sprintf("a backend of kind %q cannot be served; write a service and its port", src.Resource.Kind)
		}
		return backend{}, "the backend is empty; write a service and its port"
	}
	out := backend{service: src.Service.Name, portName: src.Service.Port.Name}
	number := src.Service.Port.Number
	switch {
	case out.service == "":
		return out, "the service has no name; write the name of a Service in the namespace of the Ingress"
	case out.portName != "":
		return out, ""
	case number == 0:
		return out, fmt.Sprintf("service %q has no port; write port.number or port.name", out.service)
	case number < 0 || number > 65535:
		return out, fmt.Sprintf("port %d of service %q is out of range; write 1 to 65535", number, out.service)
	}
	out.portNumber = uint16(number)
	return out, ""
}

// readDefaultBackend lets spec.defaultBackend serve the hosts of the Ingress, or every host that nobody
// claims when the Ingress has no rules.
func (in *ingress) readDefaultBackend() {
	src := in.src.Spec.DefaultBackend
	if len(in.src.Spec.Rules) == 0 {
		if src == nil {
			in.note(in.problem("spec", NoRules, "the Ingress serves nothing; write spec.rules or spec.defaultBackend"))
			return
		}
		in.bare = true
		in.hosts = append(in.hosts, hostRules{name: model.AnyHost})
	}
	if src == nil {
		return
	}
	fallback := &path{rule: -1, value: "/"}
	fallback.regex = !in.bare && in.asksRegex(fallback.value)
	in.readBackend(fallback, src)
	for i := range in.hosts {
		in.hosts[i].fallback = fallback
	}
}

func (in *ingress) readTLS() {
	for i := range in.src.Spec.TLS {
		src := &in.src.Spec.TLS[i]
		section := tlsSection{index: i, secret: src.SecretName}
		for j, h := range src.Hosts {
			field := fmt.Sprintf("spec.tls[%d].hosts[%d]", i, j)
			name, err := model.ParseHostName(h)
			switch {
			case err != nil:
				in.note(in.warning(field, InvalidHost, err.Error()+"; the entry is ignored"))
			case !in.servesCovered(name):
				in.note(in.warning(field, TLSHostUnused, fmt.Sprintf(
					"no rule of this Ingress is for host %q, so its TLS is not used; add a rule or remove the host", h)))
			default:
				section.hosts = append(section.hosts, name)
			}
		}
		// An entry whose hosts are all unusable must not turn into one for every host.
		if len(section.hosts) == 0 && len(src.Hosts) > 0 {
			continue
		}
		for _, name := range section.hosts {
			in.tlsNames = append(in.tlsNames, tlsName{name, len(in.tls)})
		}
		in.tls = append(in.tls, section)
	}
	slices.SortFunc(in.tlsNames, func(a, b tlsName) int {
		return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.section, b.section))
	})
}

// servesCovered tells whether the Ingress has a rule for the name, or for one under the wildcard.
func (in *ingress) servesCovered(name model.HostName) bool {
	if in.rulesOf(name) != nil {
		return true
	}
	return name.Wildcard() && slices.ContainsFunc(in.hosts, func(r hostRules) bool { return name.Covers(string(r.name)) })
}

func knownPathType(t networkingv1.PathType) bool {
	switch t {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix, networkingv1.PathTypeImplementationSpecific, "":
		return true
	}
	return false
}

func invalidPath(p string) string {
	switch {
	case p[0] != '/':
		return fmt.Sprintf("%s does not begin with \"/\"; write \"/\" in front of it", shown(p))
	case len(p) > maxPathBytes:
		return fmt.Sprintf("the path has %d bytes; write at most %d", len(p), maxPathBytes)
	}
	if i := strings.IndexFunc(p, func(r rune) bool { return r < 0x20 || r == 0x7f }); i >= 0 {
		return fmt.Sprintf("%s holds the control byte %q; write the path without it", shown(p), p[i:i+1])
	}
	return ""
}

// plainPattern tells whether every byte of p is one that no PCRE can stumble over, so that the proxy
// need not be asked.
func plainPattern(p string) bool {
	for i := range len(p) {
		c := p[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && !strings.ContainsRune("/.-_~%,:;@&=!", rune(c)) {
			return false
		}
	}
	return true
}

// shown cuts a value of unknown length for a message.
func shown(s string) string {
	const most = 80
	if len(s) <= most {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q…", s[:most])
}
