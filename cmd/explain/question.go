package explain

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"headgate/gateway/model"
	"headgate/sync/luapush"
)

// Question is a request that somebody would like explained.
type Question struct {
	// URL is http:// or https://, a host with an optional port, and the rest, which is sent as it stands.
	URL string `json:"url"`
	// Method is "GET" when it is "".
	Method string `json:"method,omitempty"`
	// Header are lines "Name: value". A Host among them takes the place of the URL's; the SNI stays the URL's.
	Header []string `json:"header,omitempty"`
	// Client is the address that asks; "" is one that nobody has (RFC 5737). It matters where trustedProxies
	// are believed.
	Client string `json:"client,omitempty"`
	// Target takes the place of the URL's path and query, for request targets that no URL has; "" does not.
	Target string `json:"target,omitempty"`
}

// ErrQuestion is what every error about a Question itself wraps.
var ErrQuestion = errors.New("the request cannot be explained")

func wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrQuestion, fmt.Sprintf(format, args...))
}

// nobody gives an address that is for documentation only (RFC 5737, RFC 3849).
func nobody(like netip.Addr) netip.Addr {
	if like.Is6() {
		return netip.MustParseAddr("2001:db8::1")
	}
	return netip.MustParseAddr("192.0.2.1")
}

// Check tells what is wrong with q without asking anybody.
func (q Question) Check() error {
	_, err := q.parse()
	return err
}

// parsed is a Question taken apart.
type parsed struct {
	scheme  model.Scheme
	name    string // the URL's host without its port and brackets
	host    string // what stands in the Host header
	port    uint16 // 0: the URL names none
	target  string
	method  string
	header  []string
	client  netip.Addr
	address bool // name is an address
}

func (q Question) parse() (parsed, error) {
	scheme, rest, found := strings.Cut(q.URL, "://")
	p := parsed{scheme: model.Scheme(strings.ToLower(scheme)), method: q.Method}
	if !found || p.scheme != model.HTTP && p.scheme != model.HTTPS {
		return p, wrong("%q: write a URL such as https://shop.example.com/cart", q.URL)
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	if err := p.authority(rest[:end]); err != nil {
		return p, err
	}
	p.target, _, _ = strings.Cut(rest[end:], "#") // a client keeps the fragment to itself
	if !strings.HasPrefix(p.target, "/") {
		p.target = "/" + p.target
	}
	if q.Target != "" {
		p.target = q.Target
	}
	if p.method == "" {
		p.method = "GET"
	}
	if err := p.headers(q.Header); err != nil {
		return p, err
	}
	return p, p.from(q.Client)
}

func (p *parsed) authority(text string) error {
	if strings.Contains(text, "@") {
		return wrong("%q holds credentials: leave them out", text)
	}
	p.host, p.name = text, text
	if at := strings.LastIndexByte(text, ':'); at >= 0 && !strings.HasSuffix(text, "]") {
		port, err := strconv.ParseUint(text[at+1:], 10, 16)
		if err != nil || port == 0 {
			return wrong("%q: write a port from 1 to 65535", text)
		}
		p.name, p.port = text[:at], uint16(port)
		if p.port == defaultPort(p.scheme) {
			p.host = p.name // as clients do
		}
	}
	if p.name == "" {
		return wrong("the URL has no host")
	}
	p.name = strings.TrimSuffix(strings.TrimPrefix(p.name, "["), "]")
	_, err := netip.ParseAddr(p.name)
	p.address = err == nil
	return nil
}

func defaultPort(s model.Scheme) uint16 {
	if s == model.HTTPS {
		return 443
	}
	return 80
}

func (p *parsed) headers(lines []string) error {
	named := false
	for _, line := range lines {
		name, _, found := strings.Cut(line, ":")
		if !found {
			return wrong("header %q: write 'Name: value'", line)
		}
		named = named || strings.EqualFold(name, "Host")
		p.header = append(p.header, line)
	}
	if !named {
		p.header = slices.Insert(p.header, 0, "Host: "+p.host)
	}
	for _, text := range append([]string{p.method, p.target}, p.header...) {
		if strings.ContainsAny(text, "\r\n") {
			return wrong("%q holds a line end", text)
		}
	}
	return nil
}

func (p *parsed) from(client string) error {
	if client == "" {
		p.client = nobody(netip.Addr{})
		return nil
	}
	a, err := netip.ParseAddr(client)
	if err != nil || a.Zone() != "" {
		return wrong("client %q: write an IP address", client)
	}
	p.client = a.Unmap()
	return nil
}

// listener finds where the request comes in. Without a port in the URL that is the default one, or the first
// of the scheme. ok is false when nothing listens there.
func (p parsed) listener(all []model.Listener) (l model.Listener, ok bool) {
	var found []model.Listener
	for _, l := range all {
		if l.Scheme == p.scheme && (p.port == 0 || l.Address.Port() == p.port) {
			found = append(found, l)
		}
	}
	if len(found) == 0 {
		return model.Listener{}, false
	}
	rank := func(l model.Listener) int {
		r := 0
		if l.Address.Port() != defaultPort(p.scheme) {
			r += 2
		}
		if l.Address.Addr().Is4() != p.client.Is4() {
			r++
		}
		return r
	}
	return slices.MinFunc(found, func(a, b model.Listener) int { return rank(a) - rank(b) }), true
}

// probe is what is sent to the proxy.
func (p parsed) probe(l model.Listener) luapush.Probe {
	const anyPort = 50000 // of the client: nothing depends on it
	probe := luapush.Probe{
		TLS: p.scheme == model.HTTPS, Client: netip.AddrPortFrom(p.client, anyPort), Listener: l.Address,
		Method: p.method, Target: p.target, Header: p.header,
	}
	if probe.TLS && !p.address {
		probe.ServerName = p.name
	}
	if local := l.Address.Addr(); local.IsUnspecified() || local.Is4() != p.client.Is4() {
		// Which address of the host it is nobody can know.
		probe.Listener = netip.AddrPortFrom(nobody(p.client), l.Address.Port())
	}
	return probe
}
