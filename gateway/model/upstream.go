package model

import (
	"net/netip"
	"time"
)

// UpstreamID names an upstream: "namespace/service/port", followed by "#" and a hash of its policy where
// that is not the default one: two Ingresses may balance the same Service in different ways.
type UpstreamID string

// Upstream is a set of peers that serve the same thing, and how requests are shared among them. The zero
// value of each policy means the default that its type documents.
type Upstream struct {
	ID        UpstreamID
	Algorithm Algorithm
	// Hash is what ConsistentHash hashes: the parts are joined. Empty parts of all kinds: the peer is chosen at random.
	Hash []HashPart
	// Subset, when > 0, makes ConsistentHash choose a group of that many peers and then one of them at random.
	Subset int
	// Cookie binds clients to peers by a cookie; nil does not. It goes before Algorithm.
	Cookie *Cookie
	// ClientIP binds clients to peers by their address until they were idle for so long (Service
	// sessionAffinity: ClientIP, timeoutSeconds); 0 does not. Cookie goes before it.
	ClientIP  time.Duration
	Limits    Limits
	Ejection  Ejection
	Budget    RetryBudget
	SlowStart time.Duration // a new or returned peer gets its full share after so long; 0: at once
	Check     *HealthCheck  // active health checks, run by the daemon; nil: none
	Peers     []Peer        // sorted by address; empty: 503
}

// SeesEnds tells whether the proxy must see the end of each request to balance this upstream.
func (u *Upstream) SeesEnds() bool {
	return u.Algorithm == LeastConnections || u.Algorithm == PowerOfTwo || u.Algorithm == EWMA ||
		u.Limits != (Limits{}) || !u.Ejection.Off
}

// Algorithm is how a peer is picked.
type Algorithm string

// The algorithms. The zero value means RoundRobin.
const (
	RoundRobin       Algorithm = "round_robin" // smooth weighted round robin
	LeastConnections Algorithm = "least_conn"  // fewest requests in flight over weight
	PowerOfTwo       Algorithm = "p2c"         // the less loaded of two random ones
	EWMA             Algorithm = "ewma"        // the faster of two random ones, by decayed response time (10 s)
	Random           Algorithm = "random"      // weighted random
	ConsistentHash   Algorithm = "chash"       // by Upstream.Hash
)

// HashPart is a piece of what is hashed: a literal, or a value of the request.
type HashPart struct {
	Kind HashKind
	Name string // of the variable (without "$"), header (lower case), cookie or argument; or the literal itself
}

// HashKind says where the value of a HashPart comes from.
type HashKind string

// The kinds. HashVariable names one of a fixed list of nginx's variables.
const (
	HashLiteral  HashKind = "literal"
	HashVariable HashKind = "variable"
	HashHeader   HashKind = "header"
	HashCookie   HashKind = "cookie"
	HashArgument HashKind = "argument"
)

// Cookie is a sticky cookie, as ingress-nginx has it.
type Cookie struct {
	Name string // a token (RFC 6265 section 4.1.1); "" means INGRESSCOOKIE
	// Persistent never moves a session while its peer is there; otherwise (balanced) the cookie holds a
	// random key of a consistent hash, and new peers take their share of the sessions.
	Persistent bool
	// Key keys the hash that names a peer in a persistent cookie, which so tells nobody its address. Every
	// host must have the same; "" means the ID of the upstream, which can be guessed.
	Key    string
	Path   string // "" means Route.CookiePath
	Domain string // "" leaves it out
	// Expires and MaxAge are whole seconds; 0 leaves the attribute out.
	Expires, MaxAge time.Duration
	SameSite        SameSite
	// ConditionalSameSiteNone leaves SameSite=None out for clients that misread it.
	ConditionalSameSiteNone bool
	// Secure is nil for "when the request came over https".
	Secure *bool
	// ChangeOnFailure binds the session to the peer that answered when its own failed.
	ChangeOnFailure bool
}

// SameSite is the attribute of a cookie; "" leaves it out.
type SameSite string

// The values of SameSite.
const (
	SameSiteNone   SameSite = "None"
	SameSiteLax    SameSite = "Lax"
	SameSiteStrict SameSite = "Strict"
)

// Limits bound what is in flight; 0 is no bound.
type Limits struct {
	// PeerRequests bounds the requests in flight to one peer, over all workers of this proxy.
	PeerRequests uint32
	// Queue is how many requests may wait, in each worker, for a peer below its bound; 0 answers 503 at once.
	Queue uint32
	// QueueTimeout is how long one waits; 0 means 1 s.
	QueueTimeout time.Duration
	// Requests bounds the requests in flight to the whole upstream (circuit breaker): those above get 503.
	Requests uint32
}

// Ejection is passive health: a peer that fails again and again gets no requests for a while. Never more
// than half of the peers of an upstream are out: beyond that all are used (panic).
type Ejection struct {
	// Off turns it off.
	Off bool
	// Failures is how many in a row eject a peer; 0 means 3. Connect errors and time-outs count, and answers of Statuses.
	Failures uint16
	// Base is the first back-off, doubled with each ejection, up to Max, with jitter; 0 means 5 s and 300 s.
	Base, Max time.Duration
	// Statuses (400–599, sorted) of answers that count as failures; none by default.
	Statuses []uint16
}

// RetryBudget bounds retries to a share of the requests, so that they cannot multiply an overload.
type RetryBudget struct {
	Percent uint8 // 1–100; 0 means 20
	// MinPerSecond retries are always allowed; 0 means 3.
	MinPerSecond uint16
	// Unlimited turns the budget off.
	Unlimited bool
}

// HealthCheck asks each peer of an upstream whether it is well. Zero values mean the defaults in brackets.
type HealthCheck struct {
	Protocol Protocol      // ProtocolHTTP, ProtocolHTTPS (not verified) or ProtocolTCP
	Path     string        // of HTTP ["/"]
	Host     string        // Host header of HTTP [the address]
	Interval time.Duration // 1 s to 1 h [10 s]
	Timeout  time.Duration // 50 ms to Interval [1 s]
	Rise     uint8         // successes that bring a peer back [2]
	Fall     uint8         // failures that take it out [3]
	Statuses []StatusRange // of HTTP that are well [200–399]
}

// StatusRange is a range of HTTP statuses, both ends included.
type StatusRange struct{ From, To uint16 }

// Peer is one address of an upstream.
type Peer struct {
	Address netip.AddrPort
	Weight  uint16 // ≥ 1
	// Draining is an endpoint that is serving and terminating: it keeps sticky sessions and is used
	// for new requests only when no other peer is left.
	Draining bool
	// Down is the verdict of the active health check: no requests while another peer is up.
	Down bool
}
