package health

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"headgate/gateway/model"
)

// What stands for the zero values of model.HealthCheck.
const (
	defaultPath     = "/"
	defaultInterval = 10 * time.Second
	defaultTimeout  = time.Second
	defaultRise     = 2
	defaultFall     = 3
	wellFrom        = 200
	wellTo          = 399
)

// policy is a model.HealthCheck made ready to be used. Equal checks share one.
type policy struct {
	model.HealthCheck
	text string // of the check: equal for equal checks
	head string // of the request up to the value of Host
	tls  *tls.Config
}

// errPolicy tells that a check cannot be made into a request.
var errPolicy = errors.New("the health check cannot be run")

// newPolicy fills the defaults in. Path and host are looked at once more before they become part of a request.
func newPolicy(c model.HealthCheck) (*policy, error) {
	c.Path = cmp.Or(c.Path, defaultPath)
	c.Interval = cmp.Or(max(c.Interval, 0), defaultInterval)
	c.Timeout = min(cmp.Or(max(c.Timeout, 0), defaultTimeout), c.Interval)
	c.Rise, c.Fall = cmp.Or(c.Rise, defaultRise), cmp.Or(c.Fall, defaultFall)
	if len(c.Statuses) == 0 {
		c.Statuses = []model.StatusRange{{From: wellFrom, To: wellTo}}
	}
	p := &policy{HealthCheck: c, text: fmt.Sprintf("%#v", c)}
	switch c.Protocol {
	case model.ProtocolTCP:
		return p, nil
	case model.ProtocolHTTP, model.ProtocolHTTPS:
	default:
		return nil, fmt.Errorf("%w: protocol %q is none of http, https, tcp", errPolicy, c.Protocol)
	}
	if !strings.HasPrefix(c.Path, "/") || !visible(c.Path) {
		return nil, fmt.Errorf("%w: path %q must begin with \"/\" and hold visible ASCII only", errPolicy, c.Path)
	}
	if !visible(c.Host) {
		return nil, fmt.Errorf("%w: host %q must hold visible ASCII only", errPolicy, c.Host)
	}
	p.head = "GET " + c.Path + " HTTP/1.1\r\nUser-Agent: headgate-health\r\nAccept: */*\r\nConnection: close\r\nHost: "
	if c.Protocol == model.ProtocolHTTPS {
		p.tls = p.unverified()
	}
	return p, nil
}

// unverified is for peers whose names nobody vouches for: the check asks whether they work, not who they are, and sends
// nothing that is secret. One key share of X25519 costs a third of the hybrid one that Go offers by default.
func (p *policy) unverified() *tls.Config {
	c := &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, //nolint:gosec // see above
		CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384},
	}
	name := p.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err != nil { // RFC 6066 section 3: no addresses in SNI
		c.ServerName = name
	}
	return c
}

func visible(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// request is what an HTTP check sends to address.
func (p *policy) request(address netip.AddrPort) string {
	host := p.Host
	if host == "" {
		host = address.String()
	}
	return p.head + host + "\r\n\r\n"
}

// well judges a status.
func (p *policy) well(status int) error {
	for _, r := range p.Statuses {
		if int(r.From) <= status && status <= int(r.To) {
			return nil
		}
	}
	return fmt.Errorf("status %d, expected %s", status, p.expected())
}

func (p *policy) expected() string {
	ranges := make([]string, len(p.Statuses))
	for i, r := range p.Statuses {
		ranges[i] = fmt.Sprint(r.From)
		if r.To != r.From {
			ranges[i] += fmt.Sprintf("-%d", r.To)
		}
	}
	return strings.Join(ranges, ", ")
}
