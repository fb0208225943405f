package luapush

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// Explainer asks the proxy what becomes of a request. Its requests run through nginx's own parser and
// the router that serves clients, on sockets where the peer is an echo. It is safe for concurrent use.
type Explainer struct {
	// HTTP and HTTPS are the paths of the two unix sockets; required.
	HTTP, HTTPS string
	// Timeout bounds a request; 0 means 5 s.
	Timeout time.Duration
}

// Probe is a request to be explained. Method, Target and Header are sent as they are, however odd.
type Probe struct {
	// TLS sends it over TLS; ServerName is the SNI, "" sends none.
	TLS        bool
	ServerName string
	// Client is who asks, Listener where the request comes in; both of one address family.
	Client, Listener netip.AddrPort
	Method, Target   string
	// Header are lines ("Name: value") in order, Host included.
	Header []string
}

// ErrProbe tells that a Probe cannot be written as one request.
var ErrProbe = errors.New("the request cannot be sent")

// Sighting is what became of a Probe.
type Sighting struct {
	// Status is that of the proxy's own answer. It means nothing when Sent is set: a peer would answer.
	Status int
	// Location is where the answer redirects to, if it does.
	Location string
	// Router is what the router looked up and found; nil when nginx refused the request before that.
	Router *RouterView
	// Sent is what a peer would get; nil when the proxy answers by itself.
	Sent *Sent
	// Certificate is the one that the handshake showed; nil without TLS.
	Certificate *x509.Certificate
}

// Sent is the head of the request to a peer.
type Sent struct {
	Method, URI, Host string
}

// RouterView is the router's account of one request.
type RouterView struct {
	Revision uint64 `json:"revision"`
	// Name is the host that nginx read out of the request.
	Name string `json:"name"`
	// Host is the host entry that serves Name ("" is the one for any host); nil when there is none.
	Host *string `json:"host"`
	// Broken tells that there is an entry, and the worker could not decode it.
	Broken bool `json:"broken"`
	// Path is the path that was matched: decoded and normalised.
	Path string `json:"path"`
	// Error is why a regular expression of the host could not be run on Path.
	Error    string        `json:"error"`
	Route    *RouteView    `json:"route"`
	Upstream *UpstreamView `json:"upstream"`
}

// RouteView is a route as the router has it.
type RouteView struct {
	// Type and Path are the rule: "exact", "prefix" or "regex".
	Type, Path string
	// Number counts the host's routes from 1.
	Number int
	// Source is kind, namespace, name, service and port.
	Source [5]string
	// Unavailable: the objects behind the route are broken.
	Unavailable bool
	// MaxBody is the cap of the body in bytes that the router checks; 0 leaves it to the profile.
	MaxBody int64
	// Policy is "connect,send,read,tries" in milliseconds; "" for the defaults.
	Policy string
	// Profile names the location; "" is the default one.
	Profile string
	// Redirects and Rewrites tell of filters.
	Redirects, Rewrites bool
	// Backends are the upstreams that share the requests.
	Backends []string
}

// UpstreamView is an upstream as the worker that answered has it.
type UpstreamView struct {
	ID        string `json:"id"`
	Known     bool   `json:"known"`
	Count     int    `json:"count"` // of peers
	Algorithm string `json:"algorithm"`
}

// Explain sends p and returns what became of it. The error is ErrUnreachable when no proxy with such
// sockets runs, ErrProbe when p holds what would make it two requests.
func (e Explainer) Explain(ctx context.Context, p Probe) (Sighting, error) {
	head, err := p.head()
	if err != nil {
		return Sighting{}, err
	}
	timeout := e.Timeout
	if timeout <= 0 {
		timeout = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	path := e.HTTP
	if p.TLS {
		path = e.HTTPS
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return Sighting{}, fmt.Errorf("explain: %w: %w", ErrUnreachable, err)
	}
	defer func() { _ = conn.Close() }() // what it had to say was read
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	s, err := p.exchange(ctx, conn, head)
	if err != nil {
		return Sighting{}, fmt.Errorf("explain over %s: %w", path, err)
	}
	return s, nil
}

func (p Probe) head() (string, error) {
	var b strings.Builder
	for i, line := range append([]string{p.Method + " " + p.Target + " HTTP/1.1"}, p.Header...) {
		if strings.ContainsAny(line, "\r\n") {
			return "", fmt.Errorf("%w: %q holds a line end", ErrProbe, line)
		}
		if i > 0 && line == "" {
			return "", fmt.Errorf("%w: header %d is empty", ErrProbe, i)
		}
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n")
	return b.String(), nil
}

func (p Probe) exchange(ctx context.Context, conn net.Conn, head string) (Sighting, error) {
	var s Sighting
	if _, err := io.WriteString(conn, p.proxyHeader()); err != nil {
		return s, err
	}
	if p.TLS {
		// The certificate is looked at, not trusted: it is the answer.
		secure := tls.Client(conn, &tls.Config{ServerName: p.ServerName, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // see above
		if err := secure.HandshakeContext(ctx); err != nil {
			return s, fmt.Errorf("TLS handshake: %w", err)
		}
		s.Certificate = secure.ConnectionState().PeerCertificates[0]
		conn = secure
	}
	if _, err := io.WriteString(conn, head); err != nil {
		return s, err
	}
	res, err := finalResponse(bufio.NewReader(conn), p.Method)
	if err != nil {
		return s, fmt.Errorf("read the answer: %w", err)
	}
	defer func() { _ = res.Body.Close() }() // its head says everything
	s.Status, s.Location = res.StatusCode, res.Header.Get("Location")
	return s, s.read(res.Header)
}

// finalResponse skips interim ones, such as 100 to a client that expects it (RFC 9110 section 15.2); 101 ends the
// exchange as far as HTTP goes.
func finalResponse(from *bufio.Reader, method string) (*http.Response, error) {
	for {
		res, err := http.ReadResponse(from, &http.Request{Method: method})
		if err != nil || res.StatusCode >= http.StatusOK || res.StatusCode == http.StatusSwitchingProtocols {
			return res, err
		}
	}
}

// proxyHeader is version 1 of the PROXY protocol.
func (p Probe) proxyHeader() string {
	client, listener := p.Client, p.Listener
	family := "TCP4"
	if client.Addr().Is6() || listener.Addr().Is6() {
		family = "TCP6"
	}
	return fmt.Sprintf("PROXY %s %s %s %d %d\r\n", family, inFamily(client.Addr(), family), inFamily(listener.Addr(), family),
		client.Port(), listener.Port())
}

func inFamily(a netip.Addr, family string) string {
	if family == "TCP6" && a.Is4() {
		return "::ffff:" + a.String()
	}
	return a.String()
}

func (s *Sighting) read(h http.Header) error {
	if text := h.Get("X-Headgate-Explain"); text != "" {
		s.Router = new(RouterView)
		if err := json.Unmarshal([]byte(text), s.Router); err != nil {
			return fmt.Errorf("decode the router's account: %w", err)
		}
	}
	text := h.Get("X-Headgate-Sent")
	if text == "" {
		return nil
	}
	var sent struct{ Request, Host string }
	if err := json.Unmarshal([]byte(text), &sent); err != nil {
		return fmt.Errorf("decode what the peer was sent: %w", err)
	}
	method, rest, _ := strings.Cut(sent.Request, " ")
	if end := strings.LastIndex(rest, " HTTP/"); end >= 0 {
		rest = rest[:end]
	}
	s.Sent = &Sent{Method: method, URI: rest, Host: sent.Host}
	return nil
}

// Peer is one address of an upstream.
type Peer struct {
	Address  string `json:"address"` // IP and port
	Weight   int    `json:"weight"`
	Draining bool   `json:"draining"`
}

// ParsePeers reads the answer of Client.Peers.
func ParsePeers(raw json.RawMessage) ([]Peer, error) {
	var answer struct{ Peers json.RawMessage }
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, fmt.Errorf("decode the peers: %w", err)
	}
	peers, err := lenientList[Peer](answer.Peers)
	if err != nil {
		return nil, fmt.Errorf("decode the peers: %w", err)
	}
	return peers, nil
}
