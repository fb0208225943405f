package model

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Profile is a combination of native nginx directives that Lua cannot set per request. Equal profiles
// are one named location; its name is a hash of this content. The zero value of a field means nginx's
// (or ingress-nginx's) default as documented beside it. It is small and comparable: each route holds one.
type Profile struct {
	Protocol          Protocol // "" means ProtocolHTTP
	HTTP10            bool     // proxy_http_version 1.0; default 1.1
	Buffering         bool     // proxy_buffering; default off, as ingress-nginx
	RequestUnbuffered bool     // proxy_request_buffering off; default on
	// RetryNonIdempotent is Retry.NonIdempotent of the routes of this profile: nginx has it as a
	// native condition only (proxy_next_upstream non_idempotent).
	RetryNonIdempotent bool
	BodyClass          BodyClass // cap of chunked bodies
	// BodyBuffer is client_body_buffer_size in KiB; 0 means 8.
	BodyBuffer uint16
	// PeerHost sends Route.PeerHost to peers in place of the Host of the request.
	PeerHost bool
	RetryOn  RetryOn // proxy_next_upstream; 0 means RetryError|RetryTimeout
	// BufferSize is proxy_buffer_size, and the size of each of Buffers, in KiB; 0 means 4.
	BufferSize uint16
	Buffers    uint16 // number of proxy_buffers, ≥ 2; 0 means 4
	// BusyBuffers is proxy_busy_buffers_size in KiB; 0 means nginx's twice BufferSize.
	BusyBuffers uint16
	// MaxTempFile is proxy_max_temp_file_size in MiB; 0 means 1024, -1 none at all.
	MaxTempFile int32
	// Identity is how peers are spoken to over TLS; "" means no verification, no name, no certificate.
	Identity IdentityID
	FastCGI  FastCGIID // "" means no parameters beside nginx's usual ones
}

// Protocol is what peers speak.
type Protocol string

// The protocols. GRPC is HTTP/2 in the clear (h2c), GRPCS HTTP/2 over TLS. TCP is for health checks only.
const (
	ProtocolHTTP    Protocol = "http"
	ProtocolHTTPS   Protocol = "https"
	ProtocolGRPC    Protocol = "grpc"
	ProtocolGRPCS   Protocol = "grpcs"
	ProtocolFastCGI Protocol = "fastcgi"
	ProtocolTCP     Protocol = "tcp"
)

// RetryOn is a set of conditions of proxy_next_upstream.
type RetryOn uint16

// The conditions. RetryNever is proxy_next_upstream off.
const (
	RetryError RetryOn = 1 << iota
	RetryTimeout
	RetryInvalidHeader
	Retry500
	Retry502
	Retry503
	Retry504
	Retry403
	Retry404
	Retry429
	RetryNever
)

// IdentityID is a hash of an Identity's content: 32 hex digits, the first 128 bits of a SHA-256: users choose the content.
type IdentityID string

// Identity is how the proxy shows itself to peers over TLS, and what it asks of them (proxy_ssl_*). Two
// identities never share a kept connection.
type Identity struct {
	ID IdentityID
	// Certificate and Key (PEM) are shown to the peer; empty shows none.
	Certificate []byte
	Key         Secret
	// CA (PEM) is what the peer's certificate is verified against when Verify is set.
	CA     []byte
	Verify bool
	Depth  uint8 // proxy_ssl_verify_depth; 0 means 1
	// Name is compared with the peer's certificate and, with ServerName, sent as SNI; "" means the name of the pool.
	Name       HostName
	ServerName bool
	// Protocols are of TLSv1, TLSv1.1, TLSv1.2, TLSv1.3; none means the last two.
	Protocols []string
	// Ciphers is an OpenSSL cipher list that passed ParseCiphers; "" means DEFAULT.
	Ciphers string
}

// FastCGIID is a hash of a FastCGI's content: 32 hex digits, the first 128 bits of a SHA-256: users choose the content.
type FastCGIID string

// FastCGI is the fastcgi_index and the parameters of a route. Names are of [A-Z0-9_]; values are data
// without "$", or one of nginx's variables from a fixed list.
type FastCGI struct {
	ID     FastCGIID
	Index  string
	Params []FastCGIParam // sorted by name
}

// FastCGIParam is one fastcgi_param.
type FastCGIParam struct {
	Name     string
	Variable string // of nginx, without "$"; "" means Value
	Value    string
}

// Name is the name of the profile's location in nginx.conf, without the "@" that starts it: a hash
// of the content, so that equal profiles share a name and a changed one never keeps it. It holds
// letters, digits and "_" only.
func (p Profile) Name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%#v", p))
	return "headgate_profile_" + hex.EncodeToString(sum[:16])
}

// Pool tells which keepalive pools (upstream{} of nginx.conf) the profile may use: "" is the common ones of HTTP in
// the clear; "_grpc" are 64, whose names begin as those of the common ones do ("07_grpc");
// "headgate_https_" and 32 hex digits is the one of an identity. Connections of another protocol or identity are never
// handed to one another: nginx compares the address only.
func (p Profile) Pool() string {
	switch {
	case p.Protocol == "" || p.Protocol == ProtocolHTTP:
		return ""
	case p.Protocol == ProtocolFastCGI:
		return "headgate_fastcgi" // whose connections are not kept
	case p.Identity != "":
		return "headgate_" + string(p.Protocol) + "_" + string(p.Identity)
	}
	return "_" + string(p.Protocol)
}

// BodyClass is the native cap for request bodies of unknown length: the smallest class that is not
// below Route.MaxBodyBytes.
type BodyClass string

// The body classes.
const (
	Body1M        BodyClass = ""
	Body16M       BodyClass = "16m"
	Body256M      BodyClass = "256m"
	BodyUnlimited BodyClass = "unlimited"
)

// Bytes is the cap that the class stands for; 0 means no limit.
func (c BodyClass) Bytes() int64 {
	switch c {
	case Body1M:
		return 1 << 20
	case Body16M:
		return 16 << 20
	case Body256M:
		return 256 << 20
	case BodyUnlimited:
	}
	return 0
}
