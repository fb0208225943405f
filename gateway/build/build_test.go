package build_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"

	"headgate/gateway/build"
	"headgate/gateway/build/buildtest"
	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// cluster makes hosts of five paths each, a service with five endpoints a host.
func cluster(hosts int) *snapshot.Snapshot {
	s := &snapshot.Snapshot{}
	for i := range hosts {
		key := snapshot.Key{Namespace: fmt.Sprintf("ns-%03d", i/100), Name: fmt.Sprintf("app-%05d", i)}
		s.Ingresses = append(s.Ingresses, appIngress(key, i, "/path/%d"))
		s.Services = append(s.Services, &snapshot.Service{
			Meta: snapshot.Meta{Key: key}, Type: snapshot.ServiceClusterIP,
			Ports: []snapshot.ServicePort{{Name: "http", Number: 80, Protocol: "TCP"}},
		})
		s.EndpointSlices = append(s.EndpointSlices, appSlice(key, i, 5))
	}
	return s
}

func appIngress(key snapshot.Key, i int, path string) *snapshot.Ingress {
	prefix := networkingv1.PathTypePrefix
	rule := networkingv1.IngressRule{Host: fmt.Sprintf("app-%05d.example", i)}
	rule.HTTP = &networkingv1.HTTPIngressRuleValue{}
	for p := range 5 {
		rule.HTTP.Paths = append(rule.HTTP.Paths, networkingv1.HTTPIngressPath{
			Path: fmt.Sprintf(path, p), PathType: &prefix,
			Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
				Name: key.Name, Port: networkingv1.ServiceBackendPort{Number: 80},
			}},
		})
	}
	return &snapshot.Ingress{
		Meta:        snapshot.Meta{Key: key, UID: "u-" + key.String(), Created: time.Unix(int64(i%977), 0)},
		Annotations: map[string]string{"kubernetes.io/ingress.class": "headgate"},
		Spec:        networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{rule}},
	}
}

func appSlice(key snapshot.Key, i, endpoints int) *snapshot.EndpointSlice {
	s := &snapshot.EndpointSlice{
		Meta: snapshot.Meta{Key: snapshot.Key{Namespace: key.Namespace, Name: key.Name + "-1"}}, Service: key,
		Ports: []snapshot.EndpointPort{{Name: "http", Number: 8080, Protocol: "TCP"}},
	}
	for e := range endpoints {
		s.Endpoints = append(s.Endpoints, snapshot.Endpoint{
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(e + 1)})}, Ready: true, Serving: true,
		})
	}
	return s
}

// changed replaces the n-th object of a list in a copy of the list.
func changed[T any](list []*T, n int, by *T) []*T {
	list = slices.Clone(list)
	list[n] = by
	return list
}

func TestRouteDefaults(t *testing.T) {
	r := build.New(buildtest.Defaults()).Build(cluster(1), buildtest.Now())
	want := &model.Route{
		Match:        model.Match{Path: model.PathMatch{Type: model.PathPrefix, Value: "/path/0"}},
		Backends:     []model.Backend{{Upstream: "ns-000/app-00000/80", Weight: 1}},
		Timeouts:     model.Timeouts{Connect: 5 * time.Second, Send: time.Minute, Read: time.Minute},
		Retry:        model.Retry{Tries: 3},
		MaxBodyBytes: 1 << 20,
		Source:       model.Source{Kind: "Ingress", Namespace: "ns-000", Name: "app-00000", Service: "app-00000", Port: "80"},
	}
	if diff := cmp.Diff(want, r.Model.Hosts[0].Routes[0]); diff != "" {
		t.Errorf("route (-want +got):\n%s", diff)
	}
	if got := r.Model.Upstreams[0]; got.Algorithm != model.RoundRobin || got.Peers[0].Weight != 1 {
		t.Errorf("upstream %+v", got)
	}
}

// TestPointersStay proves what encoders rely on: an object that did not change keeps its pointer, and one
// that did gets a new one.
func TestPointersStay(t *testing.T) {
	b := build.New(buildtest.Defaults())
	s := cluster(20)
	first := b.Build(s, buildtest.Now())

	key := s.Ingresses[7].Key
	touched := *s
	touched.EndpointSlices = changed(s.EndpointSlices, 7, appSlice(key, 7, 2))
	// Equal content at another address, as after a resync.
	touched.Ingresses = changed(s.Ingresses, 3, appIngress(s.Ingresses[3].Key, 3, "/path/%d"))
	touched.Services = changed(s.Services, 4, &snapshot.Service{Meta: s.Services[4].Meta, Type: s.Services[4].Type, Ports: s.Services[4].Ports})
	second := b.Build(&touched, buildtest.Now())

	if !slices.Equal(first.Model.Hosts, second.Model.Hosts) {
		t.Error("a host got a new pointer although none changed")
	}
	for i, u := range second.Model.Upstreams {
		if same := u == first.Model.Upstreams[i]; same == (i == 7) {
			t.Errorf("upstream %s: pointer stays: %v", u.ID, same)
		}
	}
	if len(first.Model.Upstreams[7].Peers) != 5 || len(second.Model.Upstreams[7].Peers) != 2 {
		t.Error("an earlier model was changed, or the new one was not")
	}

	again := touched
	again.Ingresses = changed(touched.Ingresses, 5, appIngress(key, 5, "/new/%d"))
	again.Ingresses[5].Key = s.Ingresses[5].Key
	third := b.Build(&again, buildtest.Now())
	for i, h := range third.Model.Hosts {
		if same := h == second.Model.Hosts[i]; same == (i == 5) {
			t.Errorf("host %s: pointer stays: %v", h.Name, same)
		}
	}
}

func TestRejectProfile(t *testing.T) {
	o := buildtest.Defaults()
	o.ProfileName = func(p model.Profile) string { return string(p.BodyClass) }
	o.DefaultMaxBodyBytes = 2 << 20
	b := build.New(o)
	s := cluster(1)
	b.Build(s, buildtest.Now())
	b.RejectProfile("", "the default is never rejected")
	b.RejectProfile("16m", `unknown directive "x"`)
	r := b.Build(s, buildtest.Now())
	for _, route := range r.Model.Hosts[0].Routes {
		if route.Unavailable == "" || len(route.Backends) > 0 {
			t.Errorf("route %s is served with a rejected profile", route.Match.Path.Value)
		}
	}
	if len(r.Problems) != 5 || r.Problems[0].Reason != build.ConfigRejected || !strings.Contains(r.Problems[0].Message, `unknown directive "x"`) {
		t.Errorf("problems %v", r.Problems)
	}
	if len(r.Model.Upstreams) != 0 {
		t.Errorf("upstreams that nobody uses: %v", r.Model.Upstreams)
	}
}

// TestLastGoodOverRestart proves that a daemon which restarts while an Ingress is broken goes on serving its last
// good version.
func TestLastGoodOverRestart(t *testing.T) {
	s := cluster(3)
	b := build.New(buildtest.Defaults())
	b.Build(s, buildtest.Now())
	if kept := b.LastGood(); !kept.Equal(build.Kept{}) {
		t.Errorf("last good versions although none is broken: %v", kept)
	}
	broken := appIngress(s.Ingresses[1].Key, 1, "/new/%d")
	broken.Annotations["nginx.ingress.kubernetes.io/use-regex"] = "perhaps"
	next := *s
	next.Ingresses = changed(s.Ingresses, 1, broken)
	before := b.Build(&next, buildtest.Now())
	kept := b.LastGood()
	if !kept.Equal(build.Kept{Ingresses: s.Ingresses[1:2]}) {
		t.Fatalf("last good versions %v", kept)
	}

	restarted := build.New(buildtest.Defaults())
	restarted.Remember(kept)
	after := restarted.Build(&next, buildtest.Now())
	if diff := cmp.Diff(string(buildtest.Dump(before)), string(buildtest.Dump(after))); diff != "" {
		t.Errorf("the model changed over a restart (-before +after):\n%s", diff)
	}
	if got := after.Model.Hosts[1].Routes[0].Match.Path.Value; got != "/path/0" {
		t.Errorf("served path %q, want that of the last good version", got)
	}
}

// TestPeersOverRestart: a Secret for TLS to peers and a Service whose new versions are broken, or that cannot be read yet, are
// served after a restart as before, also where a regular expression must be checked first, and not for a namesake.
func TestPeersOverRestart(t *testing.T) {
	read := func(step string) *snapshot.Snapshot {
		t.Helper()
		s, err := buildtest.Snapshot([]byte(fmt.Sprintf(`kind: Ingress
metadata: {namespace: ns, name: i, annotations: {kubernetes.io/ingress.class: headgate, nginx.ingress.kubernetes.io/backend-protocol: HTTPS,
  nginx.ingress.kubernetes.io/proxy-ssl-secret: ns/peers, nginx.ingress.kubernetes.io/use-regex: "true"}}
spec: {rules: [{host: a.example, http: {paths: [{path: "/[a-z]+", pathType: ImplementationSpecific, backend: {service: {name: s, port: {number: 443}}}}]}}]}
---
%s`, step)))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	service := func(uid, algorithm string) string {
		return fmt.Sprintf("kind: Service\nmetadata: {namespace: ns, name: s, uid: %s, annotations: {headgate.io/load-balance: %s}}\nspec: {ports: [{port: 443}]}\n---\n", uid, algorithm)
	}
	const certificate = "kind: TestCertificate\nmetadata: {namespace: ns, name: peers}\ndnsNames: [peer.example]\n"
	const garbage = "kind: Secret\ntype: Opaque\nmetadata: {namespace: ns, name: peers}\ndata: {tls.crt: Z2FyYmFnZQ==}\n"
	run := func(b *build.Builder, s *snapshot.Snapshot) *build.Result {
		t.Helper()
		r := b.Build(s, buildtest.Now())
		verdicts := map[string]string{}
		for _, pattern := range r.UnknownRegexes {
			verdicts[pattern] = ""
		}
		b.LearnRegexes(verdicts)
		return b.Build(s, buildtest.Now())
	}
	b := build.New(buildtest.Defaults())
	good := run(b, read(service("u1", "p2c")+certificate))
	if len(good.Model.Identities) != 1 || good.Model.Upstreams[0].Algorithm != model.PowerOfTwo {
		t.Fatalf("identities %v, upstream %+v", good.Model.Identities, good.Model.Upstreams[0])
	}
	if kept := b.LastGood(); len(kept.Services) != 0 || len(kept.PeerSecrets) != 1 {
		t.Errorf("kept while all is well: %+v", kept)
	}
	broken := read(service("u1", "best") + garbage)
	before := run(b, broken)
	kept := b.LastGood()
	if again := b.LastGood(); !again.Equal(kept) {
		t.Error("what did not change is another one")
	}
	for name, s := range map[string]*snapshot.Snapshot{"broken": broken, "missing": read(service("u1", "best"))} {
		restarted := build.New(buildtest.Defaults())
		restarted.Remember(kept)
		after := run(restarted, s)
		if diff := cmp.Diff(before.Model, after.Model); diff != "" {
			t.Errorf("%s: the model changed over a restart (-before +after):\n%s", name, diff)
		}
		if got := restarted.LastGood(); len(got.Services) != 1 || len(got.PeerSecrets) != 1 {
			t.Errorf("%s: kept after the restart: %+v", name, got)
		}
	}
	restarted := build.New(buildtest.Defaults())
	restarted.Remember(kept)
	if r := run(restarted, read(service("u2", "best")+certificate)); r.Model.Upstreams[0].Algorithm == model.PowerOfTwo {
		t.Error("another Service of the name inherits the annotations of its predecessor")
	}
	if r := run(restarted, &snapshot.Snapshot{}); len(restarted.LastGood().PeerSecrets) != 0 || len(r.PeerSecrets) != 0 {
		t.Errorf("a Secret that nobody names is kept: %v", r.PeerSecrets)
	}
}

// TestCertificateTime proves that warnings come and go with the clock alone.
func TestCertificateTime(t *testing.T) {
	s, err := buildtest.Snapshot([]byte(`kind: Ingress
metadata: {namespace: ns, name: i, annotations: {kubernetes.io/ingress.class: headgate}}
spec: {tls: [{hosts: [a.example], secretName: c}], rules: [{host: a.example}]}
---
kind: TestCertificate
metadata: {namespace: ns, name: c}
dnsNames: [a.example]
notBefore: "2026-03-01T00:00:00Z"
notAfter: "2026-05-01T00:00:00Z"
`))
	if err != nil {
		t.Fatal(err)
	}
	b := build.New(buildtest.Defaults())
	var certificate *model.Certificate
	for _, step := range []struct {
		now  string
		want build.Reason
	}{
		{"2026-03-01T00:00:00Z", ""},
		{"2026-05-01T00:00:00Z", ""},
		{"2026-05-01T00:00:01Z", build.CertificateExpired},
		{"2027-01-01T00:00:00Z", build.CertificateExpired},
		{"2026-04-01T00:00:00Z", ""},
		{"2026-02-28T23:59:59Z", build.CertificateNotYetValid},
		{"2026-03-01T00:00:00Z", ""},
	} {
		now, err := time.Parse(time.RFC3339, step.now)
		if err != nil {
			t.Fatal(err)
		}
		r := b.Build(s, now)
		var got build.Reason
		if len(r.Problems) > 0 {
			got = r.Problems[0].Reason
		}
		if got != step.want || len(r.Problems) > 1 {
			t.Errorf("at %s: problems %v, want reason %q", step.now, r.Problems, step.want)
		}
		if certificate != nil && r.Model.Certificates[0] != certificate {
			t.Errorf("at %s: the certificate got a new pointer", step.now)
		}
		certificate = r.Model.Certificates[0]
	}
}

func TestListenersAreSorted(t *testing.T) {
	o := buildtest.Defaults()
	for _, a := range []string{"[::]:80", "0.0.0.0:443", "0.0.0.0:80"} {
		o.Listeners = append(o.Listeners, model.Listener{Address: netip.MustParseAddrPort(a)})
	}
	r := build.New(o).Build(&snapshot.Snapshot{}, buildtest.Now())
	var got []string
	for _, l := range r.Model.Listeners {
		got = append(got, l.Address.String())
	}
	if want := []string{"0.0.0.0:80", "0.0.0.0:443", "[::]:80"}; !slices.Equal(got, want) {
		t.Errorf("listeners %v, want %v", got, want)
	}
}

// TestManyVerdicts proves that verdicts on regexes nobody writes any more do not pile up for ever.
func TestManyVerdicts(t *testing.T) {
	s, err := buildtest.Snapshot([]byte(`kind: Ingress
metadata: {namespace: ns, name: i, annotations: {kubernetes.io/ingress.class: headgate, nginx.ingress.kubernetes.io/use-regex: "true"}}
spec: {rules: [{host: a.example, http: {paths: [{path: "/[a]", backend: {service: {name: s, port: {number: 80}}}}]}}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	b := build.New(buildtest.Defaults())
	verdicts := map[string]string{"/[a]": ""}
	for i := range 20_000 {
		verdicts[fmt.Sprintf("/[%d]", i)] = ""
	}
	b.LearnRegexes(verdicts)
	if r := b.Build(s, buildtest.Now()); len(r.UnknownRegexes) != 0 {
		t.Errorf("a verdict in use was swept: %v", r.UnknownRegexes)
	}
	next := appIngress(snapshot.Key{Namespace: "ns", Name: "j"}, 1, "/[%d]")
	next.Annotations["nginx.ingress.kubernetes.io/use-regex"] = "true"
	more := &snapshot.Snapshot{Ingresses: append(slices.Clone(s.Ingresses), next)}
	if r := b.Build(more, buildtest.Now()); len(r.UnknownRegexes) != 5 {
		t.Errorf("unknown regexes %v, want the five whose verdicts were idle", r.UnknownRegexes)
	}
}

// BenchmarkFull builds 10,000 Ingresses of five paths with 50,000 endpoints from nothing (budget: 1 s).
func BenchmarkFull(b *testing.B) {
	s := cluster(10_000)
	for b.Loop() {
		build.New(buildtest.Defaults()).Build(s, buildtest.Now())
	}
}

// BenchmarkOneEndpoint changes one EndpointSlice of 10,000 (budget with all that follows: 20 ms).
func BenchmarkOneEndpoint(b *testing.B) {
	s := cluster(10_000)
	builder := build.New(buildtest.Defaults())
	builder.Build(s, buildtest.Now())
	for n := 0; b.Loop(); n++ {
		next := *s
		next.EndpointSlices = changed(s.EndpointSlices, 5_000, appSlice(s.Services[5_000].Key, 5_000, 4+n%2))
		builder.Build(&next, buildtest.Now())
	}
}

// BenchmarkOneIngress changes one Ingress of 10,000 (budget with all that follows: 20 ms).
func BenchmarkOneIngress(b *testing.B) {
	s := cluster(10_000)
	builder := build.New(buildtest.Defaults())
	builder.Build(s, buildtest.Now())
	for n := 0; b.Loop(); n++ {
		next := *s
		next.Ingresses = changed(s.Ingresses, 5_000, appIngress(s.Ingresses[5_000].Key, 5_000, []string{"/a/%d", "/b/%d"}[n%2]))
		builder.Build(&next, buildtest.Now())
	}
}
