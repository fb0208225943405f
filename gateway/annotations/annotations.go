// Package annotations reads the annotations of an Ingress, and our own ones of a Service, into typed values.
// Each annotation, or family of them, has a file of its own with parsers, limits, documentation and examples;
// All and OfService are the only lists. The names and meanings of All are those of ingress-nginx. No string
// leaves this package unparsed.
//
// It is pure: gateway/build runs it, the reference page is made from the lists.
package annotations

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"headgate/gateway/model"
)

// DefaultPrefix stands before "/" in the names of ingress-nginx's annotations.
const DefaultPrefix = "nginx.ingress.kubernetes.io"

// ServicePrefix stands before "/" in the names of the annotations of a Service. It is not configurable.
const ServicePrefix = "headgate.io"

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

// The scopes: the paths of the annotated Ingress, the whole host, whoever its other paths belong to, or every
// request to the annotated Service.
const (
	Paths   Scope = "paths"
	Host    Scope = "host"
	Service Scope = "service"
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
	// clash tells that the value cannot go with those of the other annotations; it is asked when all could be
	// parsed. The annotation is then as invalid as one that does not parse. May be nil.
	clash func(*Values) error
	// idle tells why the annotation does nothing beside the others, or gives "". May be nil.
	idle func(*Values) string
}

// Parse reads value into its field of into. The error says what to write instead; into is then unchanged.
func (a Annotation) Parse(value string, into *Values) error { return a.parse(value, into) }

// All lists every annotation of an Ingress that headgate serves, sorted by name.
func All() []Annotation {
	return []Annotation{
		affinity(),
		affinityMode(),
		backendProtocol(),
		clientBodyBufferSize(),
		enableAccessLog(),
		fastCGIIndex(),
		forceSSLRedirect(),
		loadBalance(),
		preserveTrailingSlash(),
		proxyBodySize(),
		proxyBufferSize(),
		proxyBuffering(),
		proxyBuffersNumber(),
		proxyBusyBuffersSize(),
		proxyConnectTimeout(),
		proxyHTTPVersion(),
		proxyMaxTempFileSize(),
		proxyNextUpstream(),
		proxyNextUpstreamTimeout(),
		proxyNextUpstreamTries(),
		proxyReadTimeout(),
		proxyRequestBuffering(),
		proxySendTimeout(),
		proxySSLCiphers(),
		proxySSLName(),
		proxySSLProtocols(),
		proxySSLSecret(),
		proxySSLServerName(),
		proxySSLVerify(),
		proxySSLVerifyDepth(),
		rewriteTarget(),
		serviceUpstream(),
		sessionCookieChangeOnFailure(),
		sessionCookieConditionalSameSiteNone(),
		sessionCookieDomain(),
		sessionCookieExpires(),
		sessionCookieMaxAge(),
		sessionCookieName(),
		sessionCookiePath(),
		sessionCookieSameSite(),
		sessionCookieSecure(),
		sslRedirect(),
		upstreamHashBy(),
		upstreamHashBySubset(),
		upstreamHashBySubsetSize(),
		upstreamVhost(),
		useRegex(),
	}
}

// OfService lists every annotation of a Service, sorted by name.
func OfService() []Annotation {
	return []Annotation{
		eject(),
		ejectFailures(),
		ejectMaxTime(),
		ejectStatuses(),
		ejectTime(),
		healthCheck(),
		healthCheckFall(),
		healthCheckHost(),
		healthCheckInterval(),
		healthCheckPath(),
		healthCheckRise(),
		healthCheckStatus(),
		healthCheckTimeout(),
		serviceLoadBalance(),
		maxRequests(),
		maxRequestsPerPeer(),
		queue(),
		queueTimeout(),
		retryBudget(),
		slowStart(),
	}
}

// Values are the parsed annotations of one object. The zero value means that none is set.
type Values struct {
	// RewriteTarget is empty when it is not set.
	RewriteTarget RewriteTarget
	UseRegex      bool
	// SSLRedirect is nil when it is not set: the configuration decides.
	SSLRedirect           *bool
	ForceSSLRedirect      bool
	PreserveTrailingSlash bool
	NoAccessLog           bool
	// PeerHost is empty when it is not set.
	PeerHost PeerHost
	// FastCGIIndex is "" when it is not set.
	FastCGIIndex string
	// Each of these is nil when none of its annotations is set: most objects have none, and 10,000 are kept.
	Proxying  *Proxying
	Balancing *Balancing
	PeerTLS   *PeerTLS
}

// Proxying is how one request is sent to a peer. The zero value of a field, or nil, means that it is not set.
type Proxying struct {
	Protocol            model.Protocol
	Connect, Send, Read time.Duration
	RetryOn             model.RetryOn
	NonIdempotent       bool // said together with RetryOn
	Tries               int  // UnlimitedTries for "0"
	RetryTotal          *time.Duration
	Buffering           *bool
	RequestBuffering    *bool
	HTTP10              *bool
	BufferSize          uint16 // KiB
	Buffers             uint16
	BusyBuffers         uint16 // KiB
	MaxTempFile         int32  // MiB; -1 for none at all
	MaxBody             *int64 // bytes; 0 for no limit
	BodyBuffer          uint16 // KiB
}

// Balancing is how requests are shared among the peers of a service, and how these are watched. The zero value of
// a field, or nil, means that it is not set. An Ingress sets the first block, a Service all but Hash and Cookie.
type Balancing struct {
	Algorithm       model.Algorithm  `json:",omitzero"`
	Hash            []model.HashPart `json:",omitzero"`
	HashSubset      bool             `json:",omitzero"`
	HashSubsetSize  int              `json:",omitzero"`
	Affinity        bool             `json:",omitzero"`
	Cookie          model.Cookie     `json:",omitzero"`
	ServiceUpstream *bool            `json:",omitzero"`

	Limits        model.Limits       `json:",omitzero"`
	Eject         *bool              `json:",omitzero"`
	EjectFailures uint16             `json:",omitzero"`
	EjectStatuses []uint16           `json:",omitzero"`
	EjectTime     time.Duration      `json:",omitzero"`
	EjectMaxTime  time.Duration      `json:",omitzero"`
	RetryBudget   model.RetryBudget  `json:",omitzero"`
	SlowStart     time.Duration      `json:",omitzero"`
	Check         *model.HealthCheck `json:",omitzero"`
}

// PeerTLS is how the proxy speaks TLS to peers. It counts only with a Secret, as in ingress-nginx.
type PeerTLS struct {
	SecretNamespace string // "" for the namespace of the Ingress
	Secret          string
	Verify          bool
	Depth           uint8          // 0: not set
	Name            model.HostName // "": not set
	ServerName      bool
	Protocols       []string
	Ciphers         string // passed model.ParseCiphers; "": not set
}

func (v *Values) proxying() *Proxying {
	if v.Proxying == nil {
		v.Proxying = &Proxying{}
	}
	return v.Proxying
}

func (v *Values) balancing() *Balancing {
	if v.Balancing == nil {
		v.Balancing = &Balancing{}
	}
	return v.Balancing
}

func (v *Values) peerTLS() *PeerTLS {
	if v.PeerTLS == nil {
		v.PeerTLS = &PeerTLS{}
	}
	return v.PeerTLS
}

// FaultKind says what is wrong with an annotation.
type FaultKind string

// The kinds of faults. Only Invalid keeps the new version of the object from being served.
const (
	Invalid     FaultKind = "invalid"     // the value does not parse, or cannot go with the others
	Unsupported FaultKind = "unsupported" // ingress-nginx knows it, headgate does not serve it yet
	Unknown     FaultKind = "unknown"     // nobody knows the name
	Idle        FaultKind = "idle"        // it does nothing beside the others
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

// Reader reads the annotations of one kind of object under one prefix.
type Reader struct {
	prefix  string // with "/"
	known   map[string]Annotation
	later   map[string]later
	without string // what becomes of an annotation that nobody knows
	// elsewhere are annotations of ours that belong on another object, with their prefix.
	elsewhere map[string]struct{}
}

// NewReader makes a Reader of All; "" means DefaultPrefix. It is safe for concurrent use.
func NewReader(prefix string) *Reader {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	r := newReader(prefix, All())
	r.without = "the Ingress is served without it"
	for _, k := range notYet() {
		r.later[k.name] = k
	}
	for _, a := range OfService() {
		r.elsewhere[ServicePrefix+"/"+a.Name] = struct{}{}
	}
	return r
}

// NewServiceReader makes a Reader of OfService. It is safe for concurrent use.
func NewServiceReader() *Reader {
	r := newReader(ServicePrefix, OfService())
	r.without = "the Service is served without it"
	return r
}

func newReader(prefix string, list []Annotation) *Reader {
	r := &Reader{prefix: prefix + "/", known: map[string]Annotation{}, later: map[string]later{}, elsewhere: map[string]struct{}{}}
	for _, a := range list {
		r.known[a.Name] = a
	}
	return r
}

// Prefix is what the names begin with, "/" included.
func (r *Reader) Prefix() string { return r.prefix }

// Read reads the annotations under the prefix, and no others; of those that belong on another object it tells. Faults are
// sorted by name. Values that come with a fault of kind Invalid are those that could be read; they need not go together.
func (r *Reader) Read(in map[string]string) (Values, []Fault) {
	var values Values
	var faults []Fault
	readable := true
	for full, value := range in {
		name, ours := strings.CutPrefix(full, r.prefix)
		if !ours {
			if _, misplaced := r.elsewhere[full]; misplaced {
				faults = append(faults, Fault{Name: full, Kind: Idle, Message: fmt.Sprintf(
					"annotation %s does nothing on an Ingress; write it on the Service of the paths", full)})
			}
			continue
		}
		if a, ok := r.known[name]; !ok {
			faults = append(faults, r.explain(full, name, value))
		} else if err := a.Parse(value, &values); err != nil {
			faults = append(faults, a.invalid(full, err))
			readable = false
		}
	}
	if readable {
		faults = append(faults, r.compare(in, &values)...)
	}
	slices.SortFunc(faults, func(a, b Fault) int { return strings.Compare(a.Name, b.Name) })
	return values, faults
}

// compare looks at each annotation beside the others, which all could be parsed.
func (r *Reader) compare(in map[string]string, values *Values) []Fault {
	var faults []Fault
	for full := range in {
		a, ok := r.known[strings.TrimPrefix(full, r.prefix)]
		if !ok || !strings.HasPrefix(full, r.prefix) {
			continue
		}
		if a.clash != nil {
			if err := a.clash(values); err != nil {
				faults = append(faults, a.invalid(full, err))
				continue
			}
		}
		if a.idle != nil {
			if why := a.idle(values); why != "" {
				faults = append(faults, Fault{Name: full, Kind: Idle, Message: fmt.Sprintf("annotation %s does nothing: %s", full, why)})
			}
		}
	}
	return faults
}

func (a Annotation) invalid(full string, err error) Fault {
	return Fault{Name: full, Kind: Invalid, Message: fmt.Sprintf("annotation %s: %v; for example %q", full, err, a.Example)}
}

func (r *Reader) explain(full, name, value string) Fault {
	if l, ok := r.later[name]; ok {
		return l.unsupported(full, value)
	}
	message := fmt.Sprintf("annotation %q is unknown; %s", full, r.without)
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
