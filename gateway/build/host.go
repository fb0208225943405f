package build

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"headgate/gateway/annotations"
	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

const (
	// redirectToHTTPS is what ingress-nginx answers by default (http-redirect-code).
	redirectToHTTPS  = 308
	onlyBackendShare = 1
)

// hostOutput is one host of the model, and what it was made from.
type hostOutput struct {
	host      *model.Host
	upstreams []upstreamRef
	services  []snapshot.Key // looked at, existing or not
	secrets   []snapshot.Key // likewise
	// What its profiles name, and the policies of its upstreams. Nil for nearly all hosts.
	identities map[model.IdentityID]*model.Identity
	fastcgis   map[model.FastCGIID]*model.FastCGI
	overlays   map[string]*annotations.Balancing // by name of the policy
	// profiles are those of its routes but the default one, each once. Nil for nearly all hosts.
	profiles []model.Profile
	// wanted are those that its routes ask for, whether they get them or not: each once for each namespace.
	wanted []wanted
	// peerSecrets are those of secrets that are for TLS to peers.
	peerSecrets []snapshot.Key
}

// hostBuild is the work on one host.
type hostBuild struct {
	*Builder
	name     model.HostName
	entries  []*entry // the oldest first
	problems []Problem
	regex    bool
	tls      bool
	shares   map[upstreamRef]shared

	// What was looked at so far, in any order.
	usedUpstreams []upstreamRef
	seenServices  []snapshot.Key
	seenSecrets   []snapshot.Key
	// peerSecretKeys are those of them that are for TLS to peers.
	peerSecretKeys []snapshot.Key
	choices        map[choiceKey]choice
	identities     map[model.IdentityID]*model.Identity
	fastcgis       map[model.FastCGIID]*model.FastCGI
	overlays       map[string]*annotations.Balancing
	wanted         []wanted
	wantedAt       map[wish]int // places in wanted
}

// claim is one path of one Ingress that has won its place in the host.
type claim struct {
	entry *entry
	in    *ingress
	path  *path
	// regex is set for a path that is matched as a regular expression: its Ingress asks for it, can be
	// served, and the proxy has accepted the pattern. Only such a path turns its host into one of regexes.
	regex bool
	value string // path of the route; without the slash at the end for a prefix
}

// buildHosts makes the hosts anew that changed inputs reach.
func (b *Builder) buildHosts() {
	for key := range b.inputs.dirtyServices {
		b.hostsOfService.each(key, func(name model.HostName) { b.inputs.dirtyHosts[name] = struct{}{} })
	}
	for key := range b.inputs.dirtySecrets {
		b.hostsOfSecret.each(key, func(name model.HostName) { b.inputs.dirtyHosts[name] = struct{}{} })
	}
	for name := range b.inputs.dirtyHosts {
		entries := b.inputs.byHost[name]
		if len(entries) == 0 {
			b.replaceHost(name, nil)
			b.notes.set("host", string(name), nil)
			continue
		}
		h := &hostBuild{Builder: b, name: name, entries: entries, shares: map[upstreamRef]shared{}}
		out := h.build()
		b.replaceHost(name, &out)
		b.notes.set("host", string(name), h.problems)
	}
	clear(b.inputs.dirtyHosts)
}

// replaceHost puts a host in the place of its predecessor, whose pointer stays when nothing changed.
func (b *Builder) replaceHost(name model.HostName, next *hostOutput) {
	last := b.hosts[name]
	if next != nil {
		if last != nil && reflect.DeepEqual(last.host, next.host) {
			next.host = last.host
		}
		b.hosts[name] = next
		b.use(name, next)
	} else {
		delete(b.hosts, name)
	}
	if last != nil {
		b.unuse(name, last, next)
	}
	switch {
	case next == nil:
		b.changedHosts[name] = nil
	case last == nil || last.host != next.host:
		b.changedHosts[name] = next.host
	}
}

func (h *hostBuild) build() hostOutput {
	claims := h.claimPaths()
	h.regex = slices.ContainsFunc(claims, func(c claim) bool { return c.regex })
	if h.regex {
		claims = h.dropEqualPatterns(claims)
		slices.SortStableFunc(claims, compareRegexes)
	} else {
		slices.SortFunc(claims, comparePaths)
	}
	host := &model.Host{Name: h.name, Regex: h.regex}
	host.Certificate, h.tls = h.chooseCertificate()
	host.TLS = h.tls
	host.Routes = make([]*model.Route, 0, len(claims))
	for i := range claims {
		host.Routes = append(host.Routes, h.route(&claims[i]))
	}
	profiles := profilesOf(host, h.profile)
	h.dropUnused(profiles)
	return hostOutput{
		host:        host,
		services:    sortedUnique(h.seenServices, snapshot.Key.Compare),
		secrets:     sortedUnique(h.seenSecrets, snapshot.Key.Compare),
		peerSecrets: sortedUnique(h.peerSecretKeys, snapshot.Key.Compare),
		upstreams:   sortedUnique(h.usedUpstreams, compareUpstreamRefs),

		identities: h.identities, fastcgis: h.fastcgis, overlays: h.overlays, profiles: profiles, wanted: h.wanted,
	}
}

// profilesOf lists the profiles of a host but the default one, each once.
func profilesOf(h *model.Host, standard model.Profile) []model.Profile {
	var all []model.Profile
	var seen map[model.Profile]struct{}
	last := standard
	for _, r := range h.Routes {
		// Neighbours mostly have the same one: to compare it takes a tenth of hashing it.
		if r.Profile == last || r.Profile == standard {
			continue
		}
		last = r.Profile
		if _, twice := seen[last]; twice {
			continue
		}
		if seen == nil {
			seen = map[model.Profile]struct{}{}
		}
		seen[last] = struct{}{}
		all = append(all, last)
	}
	return all
}

// claimKey is what may exist once in a host.
type claimKey struct {
	exact bool
	value string
}

// claimPaths lets the oldest Ingress win each path; what spec.defaultBackend serves comes after every
// path that somebody wrote.
func (h *hostBuild) claimPaths() []claim {
	var claims []claim
	owners := map[claimKey]claim{}
	for _, e := range h.entries {
		paths := e.served.rulesOf(h.name).paths
		for i := range paths {
			c := h.claim(e, &paths[i])
			key := claimKey{c.path.exact, c.value}
			if owner, taken := owners[key]; taken {
				h.lose(c, owner)
				continue
			}
			owners[key] = c
			claims = append(claims, c)
		}
	}
	return h.claimRest(claims, owners)
}

func (h *hostBuild) claim(e *entry, p *path) claim {
	c := claim{entry: e, in: e.served, path: p, value: p.value}
	c.regex = p.regex && e.closed == "" && h.heldBack(p) == ""
	if !p.exact && !c.regex {
		c.value = withoutSlash(p.value)
	}
	return c
}

// claimRest gives the rest of the host to the oldest default backend, unless a path "/" has it.
func (h *hostBuild) claimRest(claims []claim, owners map[claimKey]claim) []claim {
	root := claimKey{exact: false, value: "/"}
	for _, e := range h.entries {
		fallback := e.served.rulesOf(h.name).fallback
		if fallback == nil {
			continue
		}
		c := h.claim(e, fallback)
		owner, taken := owners[root]
		if taken {
			if owner.path.rule < 0 {
				h.lose(c, owner)
			}
			continue
		}
		owners[root] = c
		claims = append(claims, c)
	}
	return claims
}

func (h *hostBuild) lose(c, winner claim) {
	what := fmt.Sprintf("path %s (%s) of host %q", shown(c.path.value), typeName(c.path), h.name)
	field := c.path.field() + ".path"
	if c.path.rule < 0 {
		what, field = fmt.Sprintf("the default backend of host %q", h.name), c.path.field()
	}
	message := fmt.Sprintf("%s belongs to Ingress %s, the oldest that names it; write another path or host, or remove one of the two",
		what, winner.in.key())
	if c.entry == winner.entry {
		message = fmt.Sprintf("%s stands in this Ingress twice, and %s comes first; remove one of the two", what, winner.path.field())
	}
	h.problems = append(h.problems, c.in.problem(field, PathConflict, message))
}

// dropEqualPatterns keeps the first of the paths that become the same regular expression: the others
// could never match.
func (h *hostBuild) dropEqualPatterns(claims []claim) []claim {
	owners := map[string]claim{}
	return slices.DeleteFunc(claims, func(c claim) bool {
		pattern := c.pattern()
		owner, taken := owners[pattern]
		if !taken {
			owners[pattern] = c
			return false
		}
		if c.path.rule >= 0 {
			h.lose(c, owner)
		}
		return true
	})
}

// pattern is the regex of a path in a host of regexes. A path that is none itself stands for itself,
// letter by letter.
func (c *claim) pattern() string {
	if c.regex {
		return c.path.value
	}
	return regexp.QuoteMeta(c.path.value)
}

// compareRegexes puts regexes into matching order: by length, then by text, both falling, as in
// ingress-nginx; it measures what the user wrote.
func compareRegexes(a, b claim) int {
	return cmp.Or(cmp.Compare(len(b.path.value), len(a.path.value)), cmp.Compare(b.path.value, a.path.value))
}

// comparePaths puts paths into matching order: exact ones, then prefixes, the longer first.
func comparePaths(a, b claim) int {
	switch {
	case a.path.exact && b.path.exact:
		return cmp.Compare(a.value, b.value)
	case a.path.exact:
		return -1
	case b.path.exact:
		return 1
	}
	return cmp.Or(cmp.Compare(len(b.value), len(a.value)), cmp.Compare(a.value, b.value))
}

func (h *hostBuild) route(c *claim) *model.Route {
	r := &model.Route{
		Match:        model.Match{Path: h.match(c)},
		Filters:      h.filters(c),
		Timeouts:     h.options.Defaults.Timeouts,
		Retry:        h.options.Defaults.Retry,
		MaxBodyBytes: h.options.DefaultMaxBodyBytes,
		Profile:      h.profile,
		Source: model.Source{
			Kind: "Ingress", Namespace: c.in.src.Namespace, Name: c.in.src.Name,
			Service: c.path.backend.service,
		},
	}
	if c.path.backend.invalid == "" {
		r.Source.Port = c.path.backend.port()
	}
	h.tune(r, &c.in.values)
	ref, cookie, why := h.resolve(c)
	share := h.backendShare(ref)
	if why == "" {
		r.Source.Port = share.port
	}
	r.Unavailable = cmp.Or(c.entry.closed, h.heldBack(c.path), why)
	if r.Unavailable == "" {
		h.fastCGI(&c.in.values, r)
		r.Unavailable = cmp.Or(h.namePeerHost(c, r), h.identify(c, r, ref))
	}
	if r.Unavailable == "" {
		r.Unavailable = h.wish(c, r.Profile)
	}
	if r.Unavailable == "" {
		r.Unavailable = h.profileRejected(c, r.Profile)
	}
	if r.Unavailable != "" {
		r.Profile, r.PeerHost = h.profile, "" // nobody needs the other profile in nginx.conf
		return r
	}
	r.Backends = share.backends
	h.usedUpstreams = append(h.usedUpstreams, ref)
	if cookie && !c.regex {
		r.CookiePath = cookiePath(c.value)
	}
	return r
}

// shared is what all routes of a host to one upstream hold in common: at 50,000 routes copies would cost
// several megabytes.
type shared struct {
	port     string
	backends []model.Backend
}

func (h *hostBuild) backendShare(ref upstreamRef) shared {
	s, known := h.shares[ref]
	if !known {
		s = shared{strconv.Itoa(int(ref.port)), []model.Backend{{Upstream: ref.id(), Weight: onlyBackendShare}}}
		h.shares[ref] = s
	}
	return s
}

func (h *hostBuild) match(c *claim) model.PathMatch {
	switch {
	case h.regex:
		return model.PathMatch{Type: model.PathRegex, Value: c.pattern()}
	case c.path.exact:
		return model.PathMatch{Type: model.PathExact, Value: c.value}
	}
	return model.PathMatch{Type: model.PathPrefix, Value: c.value}
}

func (h *hostBuild) filters(c *claim) []model.Filter {
	if c.in.bare {
		return nil
	}
	var filters []model.Filter
	values := &c.in.values
	redirect := h.options.SSLRedirect
	if values.SSLRedirect != nil {
		redirect = *values.SSLRedirect
	}
	if values.ForceSSLRedirect || (redirect && h.tls) {
		filters = append(filters, model.RedirectHTTPS{Status: redirectToHTTPS, KeepTrailingSlash: values.PreserveTrailingSlash})
	}
	if target := values.RewriteTarget; c.regex && target.Text != "" && target.Text != c.path.value {
		filters = append(filters, model.RewritePath{Parts: target.Parts})
	}
	return filters
}

// resolve finds the upstream of a path, or says why there is none, and notes the problem. The second value tells
// whether the upstream sets a sticky cookie for the path.
func (h *hostBuild) resolve(c *claim) (upstreamRef, bool, string) {
	ref := c.path.backend
	if ref.invalid != "" {
		return upstreamRef{}, false, ref.invalid
	}
	key := snapshot.Key{Namespace: c.in.src.Namespace, Name: ref.service}
	h.seenServices = append(h.seenServices, key)
	service := h.inputs.services[key]
	if service == nil {
		why := fmt.Sprintf("there is no Service %s", key)
		h.problems = append(h.problems, c.in.problem(c.path.backendField("service.name"), BackendNotFound,
			why+"; the path answers 503; create the Service or write the name of one that exists"))
		return upstreamRef{}, false, why
	}
	port, why := findPort(service, ref)
	if why != "" {
		h.problems = append(h.problems, c.in.problem(c.path.backendField("service.port"), PortNotFound,
			why+"; the path answers 503"))
		return upstreamRef{}, false, why
	}
	choice := h.choosePolicy(c.in, service)
	return upstreamRef{service: key, port: port, policy: choice.policy}, choice.cookie, ""
}

// profileRejected tells that nginx does not accept the profile of a route, or "".
func (h *hostBuild) profileRejected(c *claim, p model.Profile) string {
	if len(h.memory.rejected) == 0 {
		return ""
	}
	why, rejected := h.memory.rejected[h.options.ProfileName(p)]
	if !rejected {
		return ""
	}
	h.problems = append(h.problems, c.in.problem(c.path.field(), ConfigRejected, fmt.Sprintf(
		"nginx does not accept the settings of this path: %s; it answers 503; take back the last change of its annotations", why)))
	return "nginx does not accept the settings of the path"
}

// bodyClass is the smallest class that is not below a limit in bytes.
func bodyClass(maxBytes int64) model.BodyClass {
	const mib = 1 << 20
	switch {
	case maxBytes <= 0 || maxBytes > 256*mib:
		return model.BodyUnlimited
	case maxBytes > 16*mib:
		return model.Body256M
	case maxBytes > mib:
		return model.Body16M
	}
	return model.Body1M
}

// withoutSlash cuts slashes off the end: Kubernetes ignores them in a prefix.
func withoutSlash(p string) string {
	if cut := strings.TrimRight(p, "/"); cut != "" {
		return cut
	}
	return "/"
}

func typeName(p *path) string {
	if p.exact {
		return "Exact"
	}
	return "Prefix"
}

// sortedUnique gives a copy that holds each value once, and no spare memory.
func sortedUnique[T comparable](list []T, compare func(a, b T) int) []T {
	slices.SortFunc(list, compare)
	return slices.Clone(slices.Compact(list)) // comparable values that compare as equal are equal
}
