package build

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"headgate/gateway/annotations"
	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// Defaults are what the configuration says for upstreams and routes whose objects say nothing else. The zero value
// is what ingress-nginx does by default, with the policies that the zero values of the model mean.
type Defaults struct {
	// Algorithm is "" for round robin. ConsistentHash is none that could be a default.
	Algorithm model.Algorithm
	Ejection  model.Ejection
	Budget    model.RetryBudget
	// ServiceUpstream sends requests to the addresses of Services instead of their endpoints.
	ServiceUpstream bool
	// Timeouts are 5 s, 60 s and 60 s where they are zero.
	Timeouts model.Timeouts
	// Retry.Tries is 3 where it is zero. Retry.NonIdempotent follows Settings.DefaultProfile.RetryNonIdempotent.
	Retry model.Retry
}

// What ingress-nginx does by default (proxy-connect-timeout, proxy-send-timeout, proxy-read-timeout,
// proxy-next-upstream-tries).
const (
	connectTimeout  = 5 * time.Second
	transferTimeout = 60 * time.Second
	triesPerRequest = 3
)

// complete fills in what is zero.
func (d Defaults) complete(p model.Profile) Defaults {
	for _, t := range []struct {
		value *time.Duration
		unset time.Duration
	}{{&d.Timeouts.Connect, connectTimeout}, {&d.Timeouts.Send, transferTimeout}, {&d.Timeouts.Read, transferTimeout}} {
		if *t.value <= 0 {
			*t.value = t.unset
		}
	}
	if d.Retry.Tries <= 0 {
		d.Retry.Tries = triesPerRequest
	}
	d.Retry.NonIdempotent = p.RetryNonIdempotent
	if d.Algorithm == "" {
		d.Algorithm = model.RoundRobin
	}
	return d
}

// policy is how one upstream is balanced and watched, and where its peers come from.
type policy struct {
	upstream model.Upstream // without ID and Peers
	// service takes the address of the Service for the only peer.
	service bool
}

// policyOf joins what the configuration, the Service and the Ingress say; the later wins. service may be nil, and so
// may over.
func (b *Builder) policyOf(service *snapshot.Service, over *annotations.Balancing) policy {
	d := &b.options.Defaults
	p := policy{
		upstream: model.Upstream{Algorithm: d.Algorithm, Ejection: d.Ejection, Budget: d.Budget},
		service:  d.ServiceUpstream,
	}
	if service != nil {
		p.upstream.ClientIP = service.ClientIP
		p.lay(b.servicePolicies[service.Key])
	}
	p.lay(over)
	if c := p.upstream.Cookie; c != nil && c.Persistent && service != nil {
		c.Key = cookieKey(&service.Meta)
	}
	return p
}

// cookieKey is what every host that reads the same cluster knows, and no client: made of the UID of the Service.
// A manifest without one has only its name to give.
func cookieKey(m *snapshot.Meta) string {
	secret := m.UID
	if secret == "" {
		secret = m.String()
	}
	sum := sha256.Sum256([]byte("headgate sticky cookie " + secret))
	return hex.EncodeToString(sum[:16])
}

// lay lays what annotations say over a policy.
func (p *policy) lay(a *annotations.Balancing) {
	if a == nil {
		return
	}
	u := &p.upstream
	if a.Algorithm != "" {
		u.Algorithm = a.Algorithm
	}
	if len(a.Hash) > 0 {
		u.Algorithm, u.Hash, u.Subset = model.ConsistentHash, a.Hash, a.Subset()
		u.ClientIP = 0 // a client that is bound by its address would never be hashed
	}
	if a.Affinity {
		cookie := a.Cookie
		u.Cookie = &cookie
	}
	if a.ServiceUpstream != nil {
		p.service = *a.ServiceUpstream
	}
	if a.Limits != (model.Limits{}) {
		u.Limits = usefulLimits(a.Limits)
	}
	if a.RetryBudget != (model.RetryBudget{}) {
		u.Budget = a.RetryBudget
	}
	if a.SlowStart > 0 {
		u.SlowStart = a.SlowStart
	}
	if a.Check != nil && a.Check.Protocol != "" {
		check := *a.Check
		if check.Protocol == model.ProtocolTCP {
			check.Path, check.Host, check.Statuses = "", "", nil
		}
		u.Check = &check
	}
	u.Ejection = layEjection(u.Ejection, a)
}

// usefulLimits leaves out a queue that nobody could stand in.
func usefulLimits(l model.Limits) model.Limits {
	if l.PeerRequests == 0 {
		l.Queue = 0
	}
	if l.Queue == 0 {
		l.QueueTimeout = 0
	}
	return l
}

// defaultEjectMax is what a zero model.Ejection.Max means.
const defaultEjectMax = 300 * time.Second

func layEjection(e model.Ejection, a *annotations.Balancing) model.Ejection {
	if a.Eject != nil {
		e.Off = !*a.Eject
	}
	if a.EjectFailures > 0 {
		e.Failures = a.EjectFailures
	}
	if len(a.EjectStatuses) > 0 {
		e.Statuses = a.EjectStatuses
	}
	if a.EjectTime > 0 {
		e.Base = a.EjectTime
	}
	if a.EjectMaxTime > 0 {
		e.Max = a.EjectMaxTime
	}
	// Either may come from another place than the other: what the annotation says holds.
	if most := cmp.Or(e.Max, defaultEjectMax); e.Base > most {
		if a.EjectTime > 0 {
			e.Max = e.Base
		} else {
			e.Base = most
		}
	}
	if e.Off {
		return model.Ejection{Off: true}
	}
	return e
}

// policyName tells the policies of one service apart: "", or a hash of what the Ingress says where that changes
// anything. What configuration and Service say is not part of it: the upstream keeps its name, and the proxy the
// state of its peers, when that changes.
func policyName(over *annotations.Balancing) string {
	text, err := json.Marshal(over)
	if err != nil {
		panic("build: a policy cannot be written: " + err.Error()) // every field of it can
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:4])
}

// choice is what the paths of one Ingress to one service have in common.
type choice struct {
	policy string // name, or ""
	cookie bool   // a sticky cookie whose path is that of the rule
}

type choiceKey struct {
	in      *ingress
	service snapshot.Key
}

// choosePolicy finds out whether the Ingress changes how the service is balanced.
func (h *hostBuild) choosePolicy(in *ingress, service *snapshot.Service) choice {
	if in.values.Balancing == nil {
		return choice{}
	}
	key := choiceKey{in, service.Key}
	c, known := h.choices[key]
	if known {
		return c
	}
	own := h.policyOf(service, in.values.Balancing)
	if !reflect.DeepEqual(own, h.policyOf(service, nil)) {
		c.policy = in.policy
		if h.overlays == nil {
			h.overlays = map[string]*annotations.Balancing{}
		}
		h.overlays[in.policy] = in.values.Balancing
	}
	c.cookie = own.upstream.Cookie != nil && own.upstream.Cookie.Path == ""
	if h.choices == nil {
		h.choices = map[choiceKey]choice{}
	}
	h.choices[key] = c
	return c
}

// servicePolicy are the last good annotations of a Service.
type servicePolicy struct {
	kept   *KeptService
	values *annotations.Balancing
	of     *snapshot.Service // nil: remembered
}

// readService reads annotations of a Service; readable is false when one of them is broken.
func (b *Builder) readService(in map[string]string) (values *annotations.Balancing, readable bool, faults []annotations.Fault) {
	all, faults := b.serviceReader.Read(in)
	broken := slices.ContainsFunc(faults, func(f annotations.Fault) bool { return f.Kind == annotations.Invalid })
	return all.Balancing, !broken, faults
}

// takeServicePolicy reads the annotations of a Service that is new, changed or, when it is nil, gone.
func (b *Builder) takeServicePolicy(key snapshot.Key, service *snapshot.Service) {
	if service == nil || len(service.Annotations) == 0 {
		delete(b.servicePolicies, key)
		delete(b.memory.services, key)
		b.notes.set("service", key.String(), nil)
		return
	}
	values, readable, faults := b.readService(service.Annotations)
	last := b.memory.services[key]
	switch {
	case readable:
		last = &servicePolicy{&KeptService{key, service.UID, service.Annotations}, values, service}
		b.memory.services[key] = last
	case !last.standsFor(service.UID):
		delete(b.memory.services, key)
		last = nil
	}
	meanwhile := "; until then the Service is balanced as if it had no annotations of ours"
	b.servicePolicies[key] = nil
	if last != nil {
		b.servicePolicies[key] = last.values
		meanwhile = "; until then its last good annotations hold"
	}
	var problems []Problem
	for _, f := range faults {
		p := Problem{
			Object: objectOf("Service", &service.Meta), Field: annotationField(f.Name), Message: f.Message, Warning: true,
			Reason: reasonOf(f.Kind),
		}
		if f.Kind == annotations.Invalid {
			p.Warning, p.Message = false, p.Message+meanwhile
		}
		problems = append(problems, p)
	}
	b.notes.set("service", key.String(), problems)
}

func annotationField(name string) string { return fmt.Sprintf("metadata.annotations[%s]", name) }

// reasonOf gives the reason of a fault.
func reasonOf(k annotations.FaultKind) Reason {
	switch k {
	case annotations.Invalid:
		return InvalidAnnotation
	case annotations.Unsupported:
		return Unsupported
	case annotations.Idle:
		return UnusedAnnotation
	case annotations.Unknown:
	}
	return UnknownAnnotation
}
