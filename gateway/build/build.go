// Package build turns a snapshot of Kubernetes objects into the model that headgate serves, and a list
// of problems. It never fails as a whole: a bad object costs itself. It does no I/O, reads no clock and
// logs nothing; the one reconcile loop runs it.
//
// What did not change from one build to the next is not computed again: inputs are compared by pointer,
// and only the hosts, upstreams and certificates that a changed input reaches are built anew.
package build

import (
	"net/netip"
	"slices"
	"time"

	"headgate/gateway/annotations"
	"headgate/gateway/model"
	"headgate/gateway/reach"
	"headgate/gateway/snapshot"
)

// Problem tells the author of an object what is wrong with it. It becomes an Event, a line of
// "headgate status" and a metric.
type Problem struct {
	Object Object
	// Field is the place within the object, such as "spec.rules[0].http.paths[1].path", or "" for the
	// object as a whole.
	Field  string
	Reason Reason
	// Message says what is wrong, what is served meanwhile and what to write instead. It holds no
	// secret and no time that passes: equal inputs give equal messages.
	Message string
	// Warning is true when the object is served all the same.
	Warning bool
}

// Object names the object that a Problem is about.
type Object struct {
	Kind      string // "Ingress", "Service", "EndpointSlice", "Secret", …
	Namespace string
	Name      string
	UID       string // "" for objects from manifests, and for objects that do not exist
	Origin    string // "shop.yaml:12" for objects from manifests
}

// Options are what the administrator's configuration says about the translation.
type Options struct {
	// IngressClass is the value of the annotation kubernetes.io/ingress.class that means us.
	// The zero value matches no annotation.
	IngressClass string
	// ControllerNames are the values of an IngressClass's spec.controller that mean us. The zero value
	// matches none.
	ControllerNames []string
	// TakeOver also serves what belongs to ingress-nginx: controller "k8s.io/ingress-nginx" and the
	// annotation value "nginx".
	TakeOver bool
	// WatchWithoutClass also serves Ingresses that name no class at all.
	WatchWithoutClass bool
	// AnnotationPrefix stands before "/" in the names of our annotations; "" means
	// annotations.DefaultPrefix.
	AnnotationPrefix string
	// SSLRedirect is the default of the annotation ssl-redirect.
	SSLRedirect bool
	// AllowLoopback accepts loopback addresses as upstream addresses.
	AllowLoopback bool
	// Deny refuses more networks as upstream addresses; Allow makes exceptions (see reach.Config).
	Deny, Allow []netip.Prefix
	// OwnAddresses of this host and APIServers are refused as upstream addresses.
	OwnAddresses, APIServers []netip.Addr
	// Settings stand in the model as they are, but for DefaultCertificate, which becomes "" when there is no
	// such Secret, and DefaultProfile.BodyClass, which follows DefaultMaxBodyBytes.
	Settings model.Settings
	// Listeners stand in the model, sorted.
	Listeners []model.Listener
	// DefaultMaxBodyBytes caps request bodies; 0 means no limit.
	DefaultMaxBodyBytes int64
	// Defaults hold where neither Ingress nor Service says anything.
	Defaults Defaults
	// ProfileName is nginxconf.ProfileName; RejectProfile needs it to know a profile by its name.
	ProfileName func(model.Profile) string
}

// Result is one build.
type Result struct {
	Model *model.Model
	// Problems are sorted and hold nothing twice.
	Problems []Problem
	// Served are the Ingresses of our class, sorted: their status is ours.
	Served []snapshot.Key
	// ExternalNames are to be resolved, sorted; the answers belong into Snapshot.Resolutions.
	ExternalNames []string
	// Checks are the active health checks to be run, sorted by upstream; the answers belong into Snapshot.Verdicts.
	Checks []Check
	// PeerSecrets are the Secrets that Ingresses name for TLS to their peers, sorted. A source that does not read all Secrets
	// reads these.
	PeerSecrets []snapshot.Key
	// UnknownRegexes are to be checked by the proxy, sorted; until LearnRegexes their routes are held back:
	// the last good version of the Ingress is served, else 503.
	UnknownRegexes []string
}

// Builder builds models and remembers what must outlive a build: results of unchanged inputs, last good
// versions, the proxy's verdicts. It is not safe for concurrent use.
type Builder struct {
	options Options
	reader  *annotations.Reader // of Ingresses
	// serviceReader reads the annotations of Services.
	serviceReader *annotations.Reader
	refuse        *reach.List
	profile       model.Profile // of routes that ask for nothing else
	mostProfiles  int           // maxProfiles; tests have less

	// memory is all that a build takes from earlier ones. The rest could be computed again from the snapshot.
	memory memory
	inputs inputs
	outputs
}

// memory is the history that a build depends on.
type memory struct {
	lastGood     map[string]*ingress           // by identity of the Ingress
	certificates map[snapshot.Key]*certificate // by Secret: the newest that was good
	verdicts     map[string]string             // by regex: "" or the proxy's error
	rejected     map[string]string             // by profile name: why
	peers        map[snapshot.Key]*peerSecret  // by Secret: the newest that was good
	// services are the last good annotations by Service.
	services map[snapshot.Key]*servicePolicy
}

func newMemory() memory {
	return memory{
		lastGood:     map[string]*ingress{},
		certificates: map[snapshot.Key]*certificate{},
		verdicts:     map[string]string{},
		rejected:     map[string]string{},
		peers:        map[snapshot.Key]*peerSecret{},
		services:     map[snapshot.Key]*servicePolicy{},
	}
}

// New makes a Builder.
func New(o Options) *Builder {
	b := &Builder{
		options:       o,
		reader:        annotations.NewReader(o.AnnotationPrefix),
		serviceReader: annotations.NewServiceReader(),
		refuse: reach.New(reach.Config{
			AllowLoopback: o.AllowLoopback, Deny: o.Deny, Allow: o.Allow, Own: o.OwnAddresses, APIServers: o.APIServers,
		}),
		memory:       newMemory(),
		mostProfiles: maxProfiles,
	}
	b.options.Listeners = sortedListeners(o.Listeners)
	b.profile = o.Settings.DefaultProfile
	b.profile.BodyClass = bodyClass(o.DefaultMaxBodyBytes)
	b.options.Defaults = o.Defaults.complete(b.profile)
	b.inputs = newInputs()
	b.outputs = newOutputs()
	return b
}

// Build translates a snapshot. now decides only whether a certificate is in its time.
func (b *Builder) Build(s *snapshot.Snapshot, now time.Time) *Result {
	b.takeIn(s)
	b.settle()
	b.buildHosts()
	b.limitProfiles()
	b.buildUpstreams()
	b.checkCertificates(now)
	b.forget()
	r := b.result(s)
	if len(r.UnknownRegexes) == 0 { // else an Ingress is held back that may name a Secret
		b.forgetPeers()
	}
	return r
}

// LearnRegexes takes the proxy's verdict on patterns of Result.UnknownRegexes: "" for one that compiles,
// else the error text. The next Build uses it.
func (b *Builder) LearnRegexes(verdicts map[string]string) {
	changed := map[string]bool{}
	for pattern, verdict := range verdicts {
		if old, known := b.memory.verdicts[pattern]; !known || old != verdict {
			b.memory.verdicts[pattern] = verdict
			changed[pattern] = true
		}
	}
	isChanged := func(pattern string) bool { return changed[pattern] }
	for e := range b.inputs.withPatterns {
		if slices.ContainsFunc(e.parsed.patterns, isChanged) ||
			(e.served != nil && slices.ContainsFunc(e.served.patterns, isChanged)) {
			b.inputs.unsettled[e] = struct{}{}
		}
	}
}

// RejectProfile makes every route of the profile answer 503, with a Problem of reason ConfigRejected, from
// the next Build on: nginx -t did not accept it. why says what nginx said. The default profile, "", is
// never rejected: nothing could be served without it. Without Options.ProfileName nothing is.
func (b *Builder) RejectProfile(profileName, why string) {
	if profileName == "" || b.options.ProfileName == nil {
		return
	}
	b.memory.rejected[profileName] = why
	for name := range b.inputs.byHost {
		b.inputs.dirtyHosts[name] = struct{}{}
	}
}

// identity tells an Ingress from its successor of the same name, where there are UIDs.
func identity(in *snapshot.Ingress) string {
	if in.UID != "" {
		return in.UID
	}
	return in.String()
}

func sortedListeners(in []model.Listener) []model.Listener {
	out := slices.Clone(in)
	slices.SortFunc(out, func(a, b model.Listener) int { return a.Address.Compare(b.Address) })
	return out
}
