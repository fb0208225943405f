package explain

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"

	"headgate/gateway/build"
	"headgate/gateway/model"
	"headgate/gateway/snapshot"
	"headgate/sync/luapush"
)

var update = flag.Bool("update", false, "rewrite the expected texts")

// fakeProxy answers every probe with the same sighting, and remembers the probe.
type fakeProxy struct {
	seen  luapush.Sighting
	peers string
	err   error
	probe luapush.Probe
}

// Explain implements Proxy.
func (f *fakeProxy) Explain(_ context.Context, p luapush.Probe) (luapush.Sighting, error) {
	f.probe = p
	return f.seen, f.err
}

// Peers implements Proxy.
func (f *fakeProxy) Peers(context.Context, string) (json.RawMessage, error) {
	return json.RawMessage(f.peers), nil
}

func noon() time.Time { return time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC) }

func listeners() []model.Listener {
	return []model.Listener{
		{Address: netip.MustParseAddrPort("0.0.0.0:80"), Scheme: model.HTTP},
		{Address: netip.MustParseAddrPort("[::]:80"), Scheme: model.HTTP},
		{Address: netip.MustParseAddrPort("10.1.1.1:8443"), Scheme: model.HTTPS, HTTP2: true},
		{Address: netip.MustParseAddrPort("0.0.0.0:443"), Scheme: model.HTTPS, HTTP2: true},
	}
}

// knowledge is of one host with a good, a broken and an empty route, and of Ingresses that are not served.
func knowledge() Knowledge {
	source := func(service string) model.Source {
		return model.Source{Kind: "Ingress", Namespace: "shop", Name: "web", Service: service, Port: "80"}
	}
	path := func(p string) model.Match {
		return model.Match{Path: model.PathMatch{Type: model.PathPrefix, Value: p}}
	}
	rule := func(host string) networkingv1.IngressRule { return networkingv1.IngressRule{Host: host} }
	class := "nginx"
	meta := func(namespace, name, origin string) snapshot.Meta {
		return snapshot.Meta{Key: snapshot.Key{Namespace: namespace, Name: name}, Origin: origin}
	}
	problem := func(kind, name string, reason build.Reason, warning bool) build.Problem {
		return build.Problem{
			Object: build.Object{Kind: kind, Namespace: "shop", Name: name}, Reason: reason, Message: "mend " + name, Warning: warning,
		}
	}
	return Knowledge{
		Listeners: listeners(), Now: noon(),
		Result: &build.Result{
			Model: &model.Model{
				Hosts: []*model.Host{
					{Name: "*.wild.test"},
					{Name: "shop.test", TLS: true, Certificate: "shop/tls", Routes: []*model.Route{
						{Match: path("/cart"), Source: source("cart"), MaxBodyBytes: 5 << 20},
						{Match: path("/broken"), Source: source("nobody"), Unavailable: "there is no Service shop/nobody"},
						{Match: path("/empty"), Source: source("empty"), MaxBodyBytes: 1 << 20},
					}},
				},
				Certificates: []*model.Certificate{{ID: "shop/kept", Keep: true}, {ID: "shop/tls", Chain: [][]byte{[]byte("leaf")}}},
			},
			Problems: []build.Problem{
				problem("EndpointSlice", "empty-1", build.AddressRefused, false),
				problem("File", "", build.UnreadableInput, false),
				problem("Ingress", "late", build.PathConflict, true),
				problem("Ingress", "late", build.Unsupported, true),
				problem("Ingress", "web", build.UnknownAnnotation, true),
				problem("Ingress", "web", build.BackendNotFound, false),
				problem("Secret", "tls", build.CertificateExpired, true),
				problem("Service", "other", build.PortNotFound, false),
			},
			Served: []snapshot.Key{{Namespace: "shop", Name: "late"}, {Namespace: "shop", Name: "web"}},
		},
		Snapshot: &snapshot.Snapshot{
			Ingresses: []*snapshot.Ingress{
				{Meta: meta("shop", "foreign", ""), Spec: networkingv1.IngressSpec{IngressClassName: &class, Rules: []networkingv1.IngressRule{rule("foreign.test")}}},
				{Meta: meta("shop", "late", ""), Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{rule("shop.test")}}},
				{Meta: meta("shop", "plain", ""), Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{rule("*.foreign.test")}}},
				{Meta: meta("shop", "web", "web.yaml:1"), Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{rule("shop.test")}}},
			},
			EndpointSlices: []*snapshot.EndpointSlice{{
				Meta: meta("shop", "empty-1", ""), Service: snapshot.Key{Namespace: "shop", Name: "empty"},
				Endpoints: []snapshot.Endpoint{{Ready: true}, {}},
			}},
		},
	}
}

func routed(host string, route *luapush.RouteView, upstream *luapush.UpstreamView) *luapush.RouterView {
	return &luapush.RouterView{Revision: 41, Name: host, Host: &host, Path: "/cart", Route: route, Upstream: upstream}
}

func cart() *luapush.RouteView {
	return &luapush.RouteView{
		Type: "prefix", Path: "/cart", Number: 1, Source: [5]string{"Ingress", "shop", "web", "cart", "80"},
		Backends: []string{"shop/cart/80"}, Policy: "1000,60000,60000,2", Profile: "headgate_profile_x", MaxBody: 5 << 20,
	}
}

func leaf(after time.Time, names ...string) *x509.Certificate {
	return &x509.Certificate{Raw: []byte("leaf"), Subject: pkix.Name{CommonName: "shop"}, DNSNames: names, NotAfter: after}
}

type textCase struct {
	name   string
	q      Question
	seen   luapush.Sighting
	peers  string
	bare   bool // the daemon knows nothing yet
	expect Outcome
}

func textCases() []textCase {
	up := func(n int) *luapush.UpstreamView {
		return &luapush.UpstreamView{ID: "shop/cart/80", Known: true, Count: n, Algorithm: "round_robin"}
	}
	url := func(u string) Question { return Question{URL: u} }
	any1 := ""
	weighted := cart()
	weighted.Backends = []string{"shop/cart/80", "shop/new/80"}
	rewrites := cart()
	rewrites.Rewrites, rewrites.Policy, rewrites.Profile, rewrites.MaxBody = true, "", "", 0
	broken := *cart()
	broken.Number, broken.Unavailable, broken.Source[3] = 2, true, "nobody"
	empty := *cart()
	empty.Number, empty.Source[3], empty.MaxBody = 3, "empty", 0
	sent := &luapush.Sent{Method: "GET", URI: "/cart?a=b", Host: "shop.test"}
	return []textCase{
		{
			name: "backend", q: url("https://shop.test/cart?a=b"), expect: Backend,
			seen:  luapush.Sighting{Status: 200, Router: routed("shop.test", cart(), up(2)), Sent: sent, Certificate: leaf(noon().Add(time.Hour), "shop.test")},
			peers: `{"peers":[{"address":"10.0.0.1:80","weight":1},{"address":"10.0.0.2:80","weight":3,"draining":true}]}`,
		},
		{
			name: "weighted", q: url("http://shop.test/cart"), expect: Backend, peers: `{"peers":{}}`,
			seen: luapush.Sighting{Status: 200, Router: routed("shop.test", weighted, up(1)), Sent: sent},
		},
		{
			name: "rewritten", q: url("http://shop.test/cart"), expect: Backend, peers: manyPeers(), bare: true,
			seen: luapush.Sighting{Status: 200, Router: routed("", rewrites, up(12)), Sent: sent},
		},
		{
			name: "redirect", q: url("http://shop.test/cart"), expect: Redirect,
			seen: luapush.Sighting{Status: 308, Location: "https://shop.test/cart", Router: routed("shop.test", cart(), nil)},
		},
		{
			name: "certificate", q: url("https://other.test/cart"), expect: Failure,
			seen: luapush.Sighting{Status: 404, Router: &luapush.RouterView{Name: "other.test"}, Certificate: leaf(noon().Add(-time.Hour), "shop.test")},
		},
		{name: "no-listener", q: url("http://shop.test:81/"), expect: Failure},
		{name: "refused", q: url("http://shop.test/%zz"), seen: luapush.Sighting{Status: 400}, expect: Failure},
		{name: "method", q: Question{URL: "http://shop.test/", Method: "TRACE"}, seen: luapush.Sighting{Status: 405}, expect: Failure},
		{
			name: "no-host", q: url("http://foreign.test/"), expect: Failure,
			seen: luapush.Sighting{Status: 404, Router: &luapush.RouterView{Name: "foreign.test"}},
		},
		{
			name: "deep-wildcard", q: url("http://a.b.wild.test/"), expect: Failure,
			seen: luapush.Sighting{Status: 404, Router: &luapush.RouterView{Name: "a.b.wild.test"}},
		},
		{
			name: "host-unusable", q: url("http://shop.test/"), expect: Failure,
			seen: luapush.Sighting{Status: 503, Router: &luapush.RouterView{Name: "shop.test", Broken: true}},
		},
		{
			name: "no-path", q: url("http://shop.test/cart"), expect: Failure,
			seen: luapush.Sighting{Status: 404, Router: routed("shop.test", nil, nil)},
		},
		{
			name: "no-path-any-host", q: url("http://shop.test/cart"), expect: Failure,
			seen: luapush.Sighting{Status: 404, Router: &luapush.RouterView{Name: "shop.test", Host: &any1, Path: "/cart"}},
		},
		{
			name: "regex", q: url("http://shop.test/cart"), expect: Failure,
			seen: luapush.Sighting{Status: 503, Router: &luapush.RouterView{Name: "shop.test", Host: &any1, Path: "/", Error: "pcre_exec() failed: -8"}},
		},
		{
			name: "broken", q: url("http://shop.test/broken"), expect: Failure,
			seen: luapush.Sighting{Status: 503, Router: routed("shop.test", &broken, nil)},
		},
		{
			name: "too-large", q: Question{URL: "http://shop.test/cart", Method: "PUT", Header: []string{"Content-Length: 99999999"}}, expect: Failure,
			seen: luapush.Sighting{Status: 413, Router: routed("shop.test", cart(), nil)},
		},
		{
			name: "no-endpoints", q: url("http://shop.test/empty"), expect: Failure,
			seen: luapush.Sighting{Status: 503, Router: routed("shop.test", &empty, up(0))},
		},
		{
			name: "unexplained", q: url("http://shop.test/cart"), expect: Failure, peers: `{"peers":{}}`,
			seen: luapush.Sighting{Status: 502, Router: routed("shop.test", cart(), up(1))},
		},
		{
			name: "control-bytes", q: url("http://shop.test/\x1b[31m"), expect: Failure,
			seen: luapush.Sighting{Status: 404, Router: &luapush.RouterView{Name: "shop.test\n"}},
		},
	}
}

func manyPeers() string {
	var list []string
	for i := range 12 {
		list = append(list, fmt.Sprintf(`{"address":"10.0.0.%d:80","weight":1}`, i))
	}
	return `{"peers":[` + strings.Join(list, ",") + `]}`
}

func TestText(t *testing.T) {
	for _, c := range textCases() {
		t.Run(c.name, func(t *testing.T) {
			k := knowledge()
			if c.bare {
				k = Knowledge{Listeners: listeners(), Now: noon()}
			}
			e, err := Explain(t.Context(), c.q, &fakeProxy{seen: c.seen, peers: c.peers}, k)
			if err != nil {
				t.Fatal(err)
			}
			if e.Outcome != c.expect || (e.Reason != "") != (c.expect == Failure) {
				t.Errorf("outcome %s (%s), want %s", e.Outcome, e.Reason, c.expect)
			}
			var out strings.Builder
			if err := e.WriteText(&out); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", c.name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Errorf("-want +got (rewrite with -update):\n%s", diff)
			}
		})
	}
}

// TestSurvivesJSON: what crosses the admin socket says the same afterwards.
func TestSurvivesJSON(t *testing.T) {
	for _, c := range textCases() {
		e, err := Explain(t.Context(), c.q, &fakeProxy{seen: c.seen, peers: c.peers}, knowledge())
		if err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var back Explanation
		if err := json.Unmarshal(body, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e, back); diff != "" {
			t.Errorf("%s (-before +after):\n%s", c.name, diff)
		}
		for _, list := range []string{`"problems":null`, `"hints":null`, `"peers":null`, `"names":null`} {
			if strings.Contains(string(body), list) {
				t.Errorf("%s: %s in %s", c.name, list, body)
			}
		}
	}
}

func TestProbe(t *testing.T) {
	for _, c := range []struct {
		name string
		q    Question
		want luapush.Probe
	}{
		{"plain", Question{URL: "http://shop.test"}, luapush.Probe{
			Client: netip.MustParseAddrPort("192.0.2.1:50000"), Listener: netip.MustParseAddrPort("192.0.2.1:80"),
			Method: "GET", Target: "/", Header: []string{"Host: shop.test"},
		}},
		{"tls, with port and fragment", Question{URL: "HTTPS://Shop.test:8443/a%2Fb?c#d", Method: "PUT", Client: "10.0.0.9"}, luapush.Probe{
			TLS: true, ServerName: "Shop.test", Client: netip.MustParseAddrPort("10.0.0.9:50000"), Listener: netip.MustParseAddrPort("10.1.1.1:8443"),
			Method: "PUT", Target: "/a%2Fb?c", Header: []string{"Host: Shop.test:8443"},
		}},
		{"default port is left out", Question{URL: "https://shop.test:443?x", Header: []string{"A: b"}}, luapush.Probe{
			TLS: true, ServerName: "shop.test", Client: netip.MustParseAddrPort("192.0.2.1:50000"), Listener: netip.MustParseAddrPort("192.0.2.1:443"),
			Method: "GET", Target: "/?x", Header: []string{"Host: shop.test", "A: b"},
		}},
		{"an address has no SNI", Question{URL: "https://[2001:db8::7]/", Client: "2001:db8::9", Header: []string{"host: a", "HOST: b"}}, luapush.Probe{
			TLS: true, Client: netip.MustParseAddrPort("[2001:db8::9]:50000"), Listener: netip.MustParseAddrPort("[2001:db8::1]:443"),
			Method: "GET", Target: "/", Header: []string{"host: a", "HOST: b"},
		}},
		{"another target", Question{URL: "http://shop.test/x", Target: "*"}, luapush.Probe{
			Client: netip.MustParseAddrPort("192.0.2.1:50000"), Listener: netip.MustParseAddrPort("192.0.2.1:80"),
			Method: "GET", Target: "*", Header: []string{"Host: shop.test"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			proxy := &fakeProxy{seen: luapush.Sighting{Status: 400}}
			if _, err := Explain(t.Context(), c.q, proxy, Knowledge{Listeners: listeners()}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, proxy.probe, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestQuestionsThatAreNone(t *testing.T) {
	for _, c := range []struct {
		q    Question
		want string
	}{
		{Question{URL: "shop.test/cart"}, "write a URL such as"},
		{Question{URL: "ftp://shop.test/"}, "write a URL such as"},
		{Question{URL: "http:///cart"}, "has no host"},
		{Question{URL: "http://:80/cart"}, "has no host"},
		{Question{URL: "http://a:b@shop.test/"}, "credentials"},
		{Question{URL: "http://shop.test:0/"}, "port from 1 to 65535"},
		{Question{URL: "http://shop.test:70000/"}, "port from 1 to 65535"},
		{Question{URL: "http://shop.test:http/"}, "port from 1 to 65535"},
		{Question{URL: "http://shop.test/", Header: []string{"x"}}, "write 'Name: value'"},
		{Question{URL: "http://shop.test/", Header: []string{"x: y\r\nz: a"}}, "line end"},
		{Question{URL: "http://shop.test/a\nb"}, "line end"},
		{Question{URL: "http://shop.test\n/"}, "line end"},
		{Question{URL: "http://shop.test/", Method: "GET\r"}, "line end"},
		{Question{URL: "http://shop.test/", Client: "shop.test"}, "IP address"},
		{Question{URL: "http://shop.test/", Client: "fe80::1%eth0"}, "IP address"},
	} {
		err := c.q.Check()
		if !errors.Is(err, ErrQuestion) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.q, err, c.want)
		}
	}
}

func TestProxyThatDoesNotAnswer(t *testing.T) {
	_, err := Explain(t.Context(), Question{URL: "http://shop.test/"}, &fakeProxy{err: luapush.ErrUnreachable}, knowledge())
	if !errors.Is(err, luapush.ErrUnreachable) {
		t.Error(err)
	}
}

// FuzzQuestion: whatever is asked, what is sent stays one request.
func FuzzQuestion(f *testing.F) {
	for _, s := range []string{"http://shop.test/cart?a=b", "https://[::1]:443/", "http://a/%zz\r\nHost: b", "http://é.test", "https://a:65535#x"} {
		f.Add(s, "GET", "A: b")
	}
	f.Add("http://a/", "GET / HTTP/1.1\r\n", "A: b\n\nGET /")
	f.Fuzz(func(t *testing.T, url, method, header string) {
		q := Question{URL: url, Method: method, Header: []string{header}}
		p, err := q.parse()
		if err != nil {
			if !errors.Is(err, ErrQuestion) {
				t.Errorf("%q: %v", url, err)
			}
			return
		}
		l, ok := p.listener(listeners())
		if !ok {
			return
		}
		probe := p.probe(l)
		for _, line := range slices.Concat([]string{probe.Method, probe.Target}, probe.Header) {
			if strings.ContainsAny(line, "\r\n") {
				t.Errorf("%q of %q holds a line end", line, url)
			}
		}
		if probe.Client.Addr().Is4() != probe.Listener.Addr().Is4() {
			t.Errorf("%s asks %s", probe.Client, probe.Listener)
		}
	})
}
