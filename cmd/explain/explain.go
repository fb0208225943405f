// Package explain puts into words what becomes of a request: the proxy's own account (its router decides, over
// the sockets that it has for this), and what the daemon knows of the objects behind it. It decides nothing
// about requests itself. `headgate explain` prints it.
package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"headgate/cmd/assemble"
	"headgate/gateway/build"
	"headgate/gateway/model"
	"headgate/gateway/snapshot"
	"headgate/sync/admin"
	"headgate/sync/luapush"
)

// Outcome is what becomes of a request.
type Outcome string

// The outcomes.
const (
	Backend  Outcome = "backend"  // a peer answers
	Redirect Outcome = "redirect" // the gateway sends the client elsewhere
	Failure  Outcome = "error"    // the gateway answers with an error
)

// Reason is why a request gets an error.
type Reason string

// The reasons.
const (
	NoListener       Reason = "NoListener"       // nothing accepts such a connection
	Refused          Reason = "Refused"          // nginx takes it for no good request
	HostNotFound     Reason = "HostNotFound"     // no entry for the host
	HostUnusable     Reason = "HostUnusable"     // the proxy cannot read the entry
	PathNotFound     Reason = "PathNotFound"     // no rule of the host matches the path
	RegexFailed      Reason = "RegexFailed"      // a regular expression of the host gave up
	RouteUnavailable Reason = "RouteUnavailable" // the objects behind the route are broken
	BodyTooLarge     Reason = "BodyTooLarge"     // Content-Length is above the limit
	NoEndpoints      Reason = "NoEndpoints"      // the service has nobody to answer
	Unexplained      Reason = "Unexplained"      // none of these
)

// Explanation is what becomes of one request and why. Its JSON is what `headgate explain -o json` prints;
// fields are only ever added.
type Explanation struct {
	Request Request `json:"request"`
	Outcome Outcome `json:"outcome"`
	// Status is that of the gateway's own answer; 0 when a peer answers.
	Status int `json:"status,omitempty"`
	// Reason and Why say why it is an error; "" when it is none.
	Reason Reason `json:"reason,omitempty"`
	Why    string `json:"why,omitempty"`

	Listener string  `json:"listener,omitempty"` // "https 0.0.0.0:443 http2"
	Host     *Host   `json:"host,omitempty"`
	Match    *Match  `json:"match,omitempty"`
	Source   *Source `json:"source,omitempty"`
	// Location is where a redirect leads.
	Location string    `json:"location,omitempty"`
	Upstream *Upstream `json:"upstream,omitempty"`
	// Sent is the request as a peer gets it.
	Sent        *Sent        `json:"sent,omitempty"`
	Profile     *Profile     `json:"profile,omitempty"`
	Certificate *Certificate `json:"certificate,omitempty"`
	// Problems are those of the objects that the request meets, or that name its host.
	Problems []admin.Problem `json:"problems"`
	// Hints are further facts that may lead to the cause.
	Hints []string `json:"hints"`
	// Revision is that of the state which the proxy decided on.
	Revision uint64 `json:"revision,omitempty"`
}

// Request is what was asked.
type Request struct {
	Method string `json:"method"`
	URL    string `json:"url"`
	// Host is the name that the proxy read out of it; Path the path that it matched, decoded and normalised.
	Host   string   `json:"host,omitempty"`
	Path   string   `json:"path,omitempty"`
	Client string   `json:"client"`
	Header []string `json:"header,omitempty"`
}

// Host is the entry that serves the request's host: the name itself, "*." and its parent, or "" for any host.
type Host struct {
	Name string `json:"name"`
	TLS  bool   `json:"tls"`
}

// Match is the rule that the path meets.
type Match struct {
	Type string `json:"type"` // "exact", "prefix", "regex"
	Path string `json:"path"`
}

// Source is what the rule came from.
type Source struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Origin    string `json:"origin,omitempty"`
	Service   string `json:"service,omitempty"`
	Port      string `json:"port,omitempty"`
}

// Upstream is who answers.
type Upstream struct {
	ID        string         `json:"id"`
	Algorithm string         `json:"algorithm,omitempty"`
	Peers     []luapush.Peer `json:"peers"`
	// Among are all upstreams that share such requests by weight; this request happened to get ID.
	Among []string `json:"among,omitempty"`
}

// Sent is the request as a peer gets it.
type Sent struct {
	Method    string `json:"method"`
	URI       string `json:"uri"`
	Host      string `json:"host"`
	Rewritten bool   `json:"rewritten"`
}

// Profile is what nginx does natively for the route.
type Profile struct {
	Name         string `json:"name,omitempty"` // "" is the default one
	MaxBodyBytes int64  `json:"maxBodyBytes"`   // 0: no limit
	// Connect, Send, Read in milliseconds and Tries are the balancer's; all 0 are the defaults (5 s, 60 s, 60 s, 3).
	ConnectMs int `json:"connectMs,omitempty"`
	SendMs    int `json:"sendMs,omitempty"`
	ReadMs    int `json:"readMs,omitempty"`
	Tries     int `json:"tries,omitempty"`
}

// Certificate is what the TLS handshake showed.
type Certificate struct {
	// ID is the Secret ("namespace/name"), "default" for the generated one, "" when it is not known any more.
	ID       string    `json:"id"`
	Subject  string    `json:"subject"`
	Names    []string  `json:"names"`
	NotAfter time.Time `json:"notAfter"`
	// Fits tells whether it is made for the host of the URL; Expired that its time is over.
	Fits    bool `json:"fits"`
	Expired bool `json:"expired"`
}

// Proxy answers what only the proxy knows.
type Proxy interface {
	Explain(context.Context, luapush.Probe) (luapush.Sighting, error)
	Peers(ctx context.Context, upstream string) (json.RawMessage, error)
}

// Knowledge is what the daemon knows. The zero value knows nothing; then the proxy's account is all.
type Knowledge struct {
	Listeners []model.Listener
	// Settings hold the default profile.
	Settings model.Settings
	Result   *build.Result
	Snapshot *snapshot.Snapshot
	Now      time.Time
}

// Explain asks the proxy and puts the answer into words. The error wraps ErrQuestion or luapush.ErrProbe when
// q is no request, luapush.ErrUnreachable when the proxy does not answer.
func Explain(ctx context.Context, q Question, proxy Proxy, k Knowledge) (Explanation, error) {
	p, err := q.parse()
	if err != nil {
		return Explanation{}, err
	}
	e := &explainer{Knowledge: k, asked: p}
	e.Request = Request{Method: p.method, URL: q.URL, Client: p.client.String(), Header: q.Header}
	e.Problems, e.Hints = []admin.Problem{}, []string{}
	if k.Result == nil {
		e.hint("the daemon has not read its source yet: the proxy serves the last known good state")
	}
	l, ok := p.listener(k.Listeners)
	if !ok {
		e.nobodyListens()
		return e.Explanation, nil
	}
	e.Listener = listenerName(l)
	s, err := proxy.Explain(ctx, p.probe(l))
	if err != nil {
		return Explanation{}, err
	}
	e.seen = s
	if err := e.upstream(ctx, proxy); err != nil {
		return Explanation{}, err
	}
	e.certificate()
	e.route()
	e.outcome()
	e.problems()
	return e.Explanation, nil
}

type explainer struct {
	Explanation
	Knowledge
	asked parsed
	seen  luapush.Sighting
}

func listenerName(l model.Listener) string {
	name := string(l.Scheme) + " " + l.Address.String()
	if l.Scheme == model.HTTPS && l.HTTP2 {
		name += " http2"
	}
	return name
}

func (e *explainer) nobodyListens() {
	var all []string
	for _, l := range e.Listeners {
		all = append(all, listenerName(l))
	}
	e.Outcome, e.Reason = Failure, NoListener
	where := string(e.asked.scheme)
	if e.asked.port != 0 {
		where += fmt.Sprintf(" on port %d", e.asked.port)
	}
	e.Why = fmt.Sprintf("nothing listens for %s; the listeners are %s", where, strings.Join(all, ", "))
}

// upstream names who answers, with its peers as a worker has them.
func (e *explainer) upstream(ctx context.Context, proxy Proxy) error {
	r := e.seen.Router
	if r == nil || r.Upstream == nil {
		return nil
	}
	u := &Upstream{ID: r.Upstream.ID, Algorithm: r.Upstream.Algorithm, Peers: []luapush.Peer{}}
	if r.Route != nil && len(r.Route.Backends) > 1 {
		u.Among = r.Route.Backends
	}
	e.Upstream = u
	if r.Upstream.Count == 0 {
		return nil
	}
	raw, err := proxy.Peers(ctx, u.ID)
	if err != nil {
		return err
	}
	peers, err := luapush.ParsePeers(raw)
	u.Peers = append(u.Peers, peers...)
	return err
}

// route fills in what the router found on its way.
func (e *explainer) route() {
	r := e.seen.Router
	if r == nil {
		return
	}
	e.Revision, e.Request.Host, e.Request.Path = r.Revision, r.Name, r.Path
	if r.Host != nil {
		e.Host = &Host{Name: *r.Host}
		if h := e.modelHost(); h != nil {
			e.Host.TLS = h.TLS
		}
	}
	v := r.Route
	if v == nil {
		return
	}
	e.Match = &Match{Type: v.Type, Path: v.Path}
	if v.Type == string(model.PathPrefix) && v.Path == "" {
		e.Match.Path = "/"
	}
	e.Source = &Source{Kind: v.Source[0], Namespace: v.Source[1], Name: v.Source[2], Service: v.Source[3], Port: v.Source[4]}
	if i := e.ingress(snapshot.Key{Namespace: e.Source.Namespace, Name: e.Source.Name}); i != nil {
		e.Source.Origin = i.Origin
	}
	e.profile(v)
	if s := e.seen.Sent; s != nil {
		e.Sent = &Sent{Method: s.Method, URI: s.URI, Host: s.Host, Rewritten: v.Rewrites}
	}
}

func (e *explainer) profile(v *luapush.RouteView) {
	e.Profile = &Profile{Name: v.Profile, MaxBodyBytes: e.maxBody()}
	if v.Policy != "" {
		// The router's own form; what it cannot hold is not shown.
		_, _ = fmt.Sscanf(v.Policy, "%d,%d,%d,%d", &e.Profile.ConnectMs, &e.Profile.SendMs, &e.Profile.ReadMs, &e.Profile.Tries)
	}
}

// maxBody is the cap of the body: the router's, or that of the profile.
func (e *explainer) maxBody() int64 {
	v := e.seen.Router.Route
	switch r := e.modelRoute(); {
	case v.MaxBody > 0:
		return v.MaxBody
	case r != nil:
		return r.MaxBodyBytes
	}
	return e.Settings.DefaultProfile.BodyClass.Bytes()
}

func (e *explainer) modelHost() *model.Host {
	r := e.seen.Router
	if e.Result == nil || r == nil || r.Host == nil {
		return nil
	}
	return hostNamed(e.Result.Model.Hosts, *r.Host)
}

func hostNamed(hosts []*model.Host, name string) *model.Host {
	at, ok := slices.BinarySearchFunc(hosts, name, func(h *model.Host, n string) int { return strings.Compare(string(h.Name), n) })
	if !ok {
		return nil
	}
	return hosts[at]
}

// modelRoute is the route as the daemon has it, unless that has changed meanwhile.
func (e *explainer) modelRoute() *model.Route {
	h, r := e.modelHost(), e.seen.Router
	if h == nil || r.Route == nil || r.Route.Number < 1 || r.Route.Number > len(h.Routes) {
		return nil
	}
	route := h.Routes[r.Route.Number-1]
	s := route.Source
	if [5]string{s.Kind, s.Namespace, s.Name, s.Service, s.Port} != r.Route.Source {
		return nil
	}
	return route
}

func (e *explainer) ingress(key snapshot.Key) *snapshot.Ingress {
	if e.Snapshot == nil {
		return nil
	}
	at, ok := slices.BinarySearchFunc(e.Snapshot.Ingresses, key, func(i *snapshot.Ingress, k snapshot.Key) int { return i.Compare(k) })
	if !ok {
		return nil
	}
	return e.Snapshot.Ingresses[at]
}

// certificate tells what the handshake showed.
func (e *explainer) certificate() {
	leaf := e.seen.Certificate
	if leaf == nil {
		return
	}
	c := &Certificate{
		Subject: leaf.Subject.String(), Names: leaf.DNSNames, NotAfter: leaf.NotAfter,
		Fits: leaf.VerifyHostname(e.asked.name) == nil, Expired: e.Now.After(leaf.NotAfter),
	}
	for _, ip := range leaf.IPAddresses {
		c.Names = append(c.Names, ip.String())
	}
	if c.Names == nil {
		c.Names = []string{}
	}
	if leaf.Subject.CommonName == "headgate default certificate" {
		c.ID = "default"
	}
	if e.Result != nil {
		for _, known := range e.Result.Model.Certificates {
			if len(known.Chain) > 0 && string(known.Chain[0]) == string(leaf.Raw) {
				c.ID = string(known.ID)
				break
			}
		}
	}
	e.Certificate = c
	if !c.Fits {
		e.hint("clients that check it refuse the certificate: it is not made for %s", e.asked.name)
	}
	if c.Expired {
		e.hint("clients that check it refuse the certificate: it expired on %s", c.NotAfter.UTC().Format(time.DateOnly))
	}
}

func (e *explainer) hint(format string, args ...any) {
	e.Hints = append(e.Hints, fmt.Sprintf(format, args...))
}

// problems of the objects that the request meets, or that name its host where it met none.
func (e *explainer) problems() {
	if e.Result == nil {
		return
	}
	type object struct{ kind, namespace, name string }
	met := map[object]bool{}
	if s := e.Source; s != nil {
		met[object{s.Kind, s.Namespace, s.Name}] = true
		if s.Service != "" {
			met[object{"Service", s.Namespace, s.Service}] = true
			for _, slice := range e.slices(s) {
				met[object{"EndpointSlice", slice.Namespace, slice.Name}] = true
			}
		}
	}
	named := map[object]bool{} // by their host
	for _, i := range e.ingressesOfHost() {
		named[object{"Ingress", i.Namespace, i.Name}] = true
	}
	if c := e.Certificate; c != nil {
		ids := []string{c.ID}
		if h := hostNamed(e.Result.Model.Hosts, strings.ToLower(e.asked.name)); h != nil {
			ids = append(ids, string(h.Certificate)) // which may be why another one is shown
		}
		for _, id := range ids {
			namespace, name, _ := strings.Cut(id, "/")
			met[object{"Secret", namespace, name}] = true
		}
	}
	for _, p := range e.Result.Problems {
		o := object{p.Object.Kind, p.Object.Namespace, p.Object.Name}
		switch {
		case met[o]:
		case named[o] && (e.Source == nil || p.Reason == build.HostConflict || p.Reason == build.PathConflict):
			// It would have liked to serve this request.
		case e.Source == nil && p.Reason == build.UnreadableInput:
			// A file that cannot be read may hold anything, also what is missing here.
		default:
			continue
		}
		e.Problems = append(e.Problems, assemble.Problem(p))
	}
	// What is not served stands before what only might be better.
	slices.SortStableFunc(e.Problems, func(a, b admin.Problem) int {
		switch {
		case a.Warning == b.Warning:
			return 0
		case b.Warning:
			return -1
		}
		return 1
	})
}

func (e *explainer) slices(s *Source) []*snapshot.EndpointSlice {
	if e.Snapshot == nil {
		return nil
	}
	var found []*snapshot.EndpointSlice
	for _, slice := range e.Snapshot.EndpointSlices {
		if slice.Service == (snapshot.Key{Namespace: s.Namespace, Name: s.Service}) {
			found = append(found, slice)
		}
	}
	return found
}

// ingressesOfHost are those that name the host of the request, served or not.
func (e *explainer) ingressesOfHost() []*snapshot.Ingress {
	if e.Snapshot == nil {
		return nil
	}
	name := cmp.Or(e.Request.Host, strings.ToLower(e.asked.name))
	_, parent, _ := strings.Cut(name, ".")
	var found []*snapshot.Ingress
	for _, i := range e.Snapshot.Ingresses {
		for _, rule := range i.Spec.Rules {
			if host := strings.ToLower(rule.Host); host == name || host == "*."+parent {
				found = append(found, i)
				break
			}
		}
	}
	return found
}
