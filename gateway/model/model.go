// Package model is what headgate serves, in words that belong neither to Kubernetes nor to nginx:
// listeners, hosts, routes, filters, upstreams, peers, certificates, profiles. It is shaped like the
// Gateway API, so that Ingress and Gateway API both translate into it. It holds data only.
//
// A Model is immutable once built. Lists are sorted by their name or ID. A *Host, *Upstream or
// *Certificate that did not change from one build to the next keeps its pointer, so that encoders
// may memoise by pointer.
package model

import (
	"net/netip"
	"slices"
	"time"
)

// Model is one complete, servable configuration.
type Model struct {
	Settings     Settings
	Listeners    []Listener
	Hosts        []*Host
	Upstreams    []*Upstream
	Certificates []*Certificate
	// Identities are how the proxy shows itself to, and verifies, upstreams over TLS; profiles name them.
	Identities []*Identity
	// FastCGI are the parameter sets that profiles of protocol FastCGI name.
	FastCGI []*FastCGI
	// Profiles are those of the routes but Settings.DefaultProfile, each once, sorted by name. nil: nobody has counted
	// them; the routes tell.
	Profiles []Profile
}

// Settings hold for the whole proxy. They come from the administrator's configuration.
type Settings struct {
	// WorkerProcesses is the number of nginx workers; 0 means one a core ("auto").
	WorkerProcesses int
	// WorkerConnections is nginx's worker_connections.
	WorkerConnections int
	// StateMemoryBytes is the size of the shared dict for pushed state.
	StateMemoryBytes int64
	// TrustedProxies are the networks whose X-Forwarded-* headers are believed; empty trusts nobody.
	TrustedProxies []netip.Prefix
	// UseForwardedHeaders turns on belief in X-Forwarded-* of TrustedProxies.
	UseForwardedHeaders bool
	HSTS                HSTS
	// RedirectPort is written into redirects to https; 443 is left out of the Location.
	RedirectPort uint16
	// NoTLSRedirectPrefixes are path prefixes that are never redirected to https
	// (ingress-nginx: no-tls-redirect-locations).
	NoTLSRedirectPrefixes []string
	// DefaultCertificate serves names that have none of their own; "" means the generated one.
	DefaultCertificate CertificateID
	// DefaultProfile is the profile of routes that ask for nothing else; it is inlined.
	DefaultProfile Profile
	// RequestMetrics counts requests in the data plane, for which each one enters one more phase (log_by_lua).
	RequestMetrics bool
	// StrictAnswers refuses what a peer answers below 200 without being asked for it, and what is no HTTP: nginx passes both on
	// without framing. Each answer enters one more phase for it (header_filter_by_lua).
	StrictAnswers bool
}

// LogPhase tells whether the proxy must see the end of each request: to count it, or because an
// upstream's balancing or health needs it. nginx.conf depends on it, so it changes rarely.
func (m *Model) LogPhase() bool {
	return m.Settings.RequestMetrics || slices.ContainsFunc(m.Upstreams, (*Upstream).SeesEnds)
}

// HSTS is the Strict-Transport-Security header of https answers (RFC 6797).
type HSTS struct {
	Enabled           bool
	MaxAge            time.Duration // whole seconds
	IncludeSubdomains bool
	Preload           bool
}

// Scheme is "http" or "https".
type Scheme string

// The two schemes.
const (
	HTTP  Scheme = "http"
	HTTPS Scheme = "https"
)

// Listener is one address that the proxy accepts on.
type Listener struct {
	Address netip.AddrPort // the unspecified address of a family means all of its addresses
	Scheme  Scheme
	HTTP2   bool // only for HTTPS
}

// HostName is a lower-case DNS name, "*." and a DNS name (one label), or "" for any host that
// nobody else claims. ParseHostName is the only way to make one.
type HostName string

// Host is everything served for one host name.
type Host struct {
	Name HostName
	// TLS is true where TLS is configured for the host (spec.tls names it).
	TLS bool
	// Certificate serves the host's SNI; "" means the default certificate.
	Certificate CertificateID
	// Regex is true when the paths of the host are matched as regular expressions, as ingress-nginx
	// does once one of its Ingresses asks for it: every Match.Path is then of type PathRegex.
	Regex bool
	// Routes are in matching order: the first that matches wins. Exact before longer prefix before
	// shorter; regexes in ingress-nginx's order (longer pattern first).
	Routes []*Route
}

// PathType says how PathMatch.Value is compared with the normalised request path.
type PathType string

// The path types. Prefix compares whole path elements: /a matches /a, /a/ and /a/b, not /ab.
// Regex is a PCRE, anchored at the start, case-insensitive.
const (
	PathExact  PathType = "exact"
	PathPrefix PathType = "prefix"
	PathRegex  PathType = "regex"
)

// PathMatch is a condition on the path. Any byte may stand in Value: it is data, never syntax of nginx.
type PathMatch struct {
	Type  PathType
	Value string
}

// Match is the condition of a route. More conditions (method, headers, query) join with Gateway API.
type Match struct {
	Path PathMatch
}

// Route sends the requests that match to its backends, through its filters, in a profile.
type Route struct {
	Match   Match
	Filters []Filter
	// Backends share the requests by weight. Empty means Unavailable: 503.
	Backends []Backend
	// Unavailable answers 503 without a look at Backends: the object behind it is broken and has no
	// last good version. The text is for people (explain, status), never for the client.
	Unavailable string
	Timeouts    Timeouts
	Retry       Retry
	// MaxBodyBytes caps the request body (413 above); 0 means no limit.
	MaxBodyBytes int64
	Profile      Profile
	// CookiePath is the Path of a sticky cookie whose upstream names none (the path of the rule); "" means "/".
	CookiePath string
	// PeerHost is the Host that peers are asked for, with Profile.PeerHost; it passed ParsePeerHost.
	PeerHost string
	// NoAccessLog leaves the requests of the route out of the access log.
	NoAccessLog bool
	Source      Source
}

// Source is what a route came from, for metrics, logs and explain.
type Source struct {
	Kind      string // "Ingress"
	Namespace string
	Name      string
	Service   string
	Port      string
}

// Backend is a weighted reference to an upstream.
type Backend struct {
	Upstream UpstreamID
	Weight   uint32 // 0 gets nothing
}

// Timeouts towards the peer; zero means nginx's meaning of the default (5 s, 60 s, 60 s are filled in by build).
type Timeouts struct {
	Connect, Send, Read time.Duration
}

// Retry follows proxy_next_upstream; its conditions stand in the profile (RetryOn).
type Retry struct {
	Tries int // attempts in all, ≥ 1
	// Total bounds the time in which further attempts begin (proxy_next_upstream_timeout); 0 is no bound.
	Total time.Duration
	// NonIdempotent allows a retry of POST, LOCK and PATCH after something was sent.
	NonIdempotent bool
}

// Filter changes or answers a request before it reaches a backend. The set is closed.
type Filter interface{ filter() }

// RedirectHTTPS answers a request of scheme http with a redirect to https on the same host and URI.
type RedirectHTTPS struct {
	Status int // 308
	// KeepTrailingSlash is ingress-nginx's preserve-trailing-slash.
	KeepTrailingSlash bool
}

// RewritePath replaces the path (and, when Target holds a "?", starts the query) before proxying.
// Parts are joined; a part is a literal or, when Group > 0, the capture group of the route's regex.
type RewritePath struct {
	Parts []RewritePart
}

// RewritePart is a literal (Group 0) or a capture group 1–9.
type RewritePart struct {
	Literal string
	Group   int
}

func (RedirectHTTPS) filter() {}
func (RewritePath) filter()   {}

// CertificateID names a certificate: "namespace/secret".
type CertificateID string

// Certificate is a chain and its key, checked to fit together.
type Certificate struct {
	ID       CertificateID
	Chain    [][]byte // DER, leaf first
	Key      Secret   // PKCS#8 DER
	NotAfter time.Time
	// Keep stands for a Secret whose newest version is broken: the certificate that is being served
	// under this ID stays; where there is none, the default certificate is served. Chain and Key are empty.
	Keep bool
}

// Secret is a sensitive value; printing it in any way gives "[redacted]".
type Secret []byte

// String implements fmt.Stringer.
func (Secret) String() string { return "[redacted]" }

// GoString implements fmt.GoStringer.
func (Secret) GoString() string { return "[redacted]" }

// MarshalJSON implements json.Marshaler.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"[redacted]"`), nil }
