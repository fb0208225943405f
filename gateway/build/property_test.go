package build

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"pgregory.net/rapid"

	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// world is a small cluster that random edits change. Every edit makes new objects, as sources do.
type world struct {
	ingresses map[snapshot.Key]*snapshot.Ingress
	classes   map[snapshot.Key]*snapshot.IngressClass
	services  map[snapshot.Key]*snapshot.Service
	slices    map[snapshot.Key]*snapshot.EndpointSlice
	secrets   map[snapshot.Key]*snapshot.Secret
	answers   map[snapshot.Key]*snapshot.Resolution
	verdicts  []snapshot.Verdict
}

func newWorld() *world {
	return &world{
		map[snapshot.Key]*snapshot.Ingress{}, map[snapshot.Key]*snapshot.IngressClass{},
		map[snapshot.Key]*snapshot.Service{}, map[snapshot.Key]*snapshot.EndpointSlice{},
		map[snapshot.Key]*snapshot.Secret{}, map[snapshot.Key]*snapshot.Resolution{}, nil,
	}
}

func listed[T any](m map[snapshot.Key]*T) []*T {
	var out []*T
	for _, key := range slices.SortedFunc(maps.Keys(m), snapshot.Key.Compare) {
		out = append(out, m[key])
	}
	return out
}

func (w *world) snapshot() *snapshot.Snapshot {
	return &snapshot.Snapshot{
		Ingresses: listed(w.ingresses), IngressClasses: listed(w.classes), Services: listed(w.services),
		EndpointSlices: listed(w.slices), Secrets: listed(w.secrets), Resolutions: listed(w.answers),
		Verdicts: w.verdicts,
	}
}

func (m memory) clone() memory {
	return memory{
		lastGood: maps.Clone(m.lastGood), certificates: maps.Clone(m.certificates), verdicts: maps.Clone(m.verdicts),
		rejected: maps.Clone(m.rejected), peers: maps.Clone(m.peers), services: maps.Clone(m.services),
	}
}

func pick[T any](t *rapid.T, label string, from ...T) T {
	return rapid.SampledFrom(from).Draw(t, label)
}

var (
	someNamespaces = []string{"n", "m"}
	someHosts      = []string{"a.example", "b.example", "*.example", "", "bad_host"}
	somePaths      = []string{"/", "/x", "/x/", "/y.html", "/[0-9]+", "/(", "x"}
	someServices   = []string{"s", "t", "u"}
	someSecrets    = []string{"c", "d"}
)

// edit changes one object, or removes it.
func (w *world) edit(t *rapid.T, certificates []*snapshot.Secret) {
	namespace := pick(t, "namespace", someNamespaces...)
	remove := rapid.IntRange(0, 4).Draw(t, "remove") == 0
	switch pick(t, "kind", "ingress", "ingress", "ingress", "class", "service", "slice", "secret", "answer") {
	case "ingress":
		key := snapshot.Key{Namespace: namespace, Name: pick(t, "name", "i", "j", "k")}
		change(w.ingresses, key, remove, func() *snapshot.Ingress { return someIngress(t, key) })
	case "class":
		key := snapshot.Key{Name: pick(t, "name", "one", "two")}
		change(w.classes, key, remove, func() *snapshot.IngressClass {
			return &snapshot.IngressClass{
				Meta: snapshot.Meta{Key: key}, Controller: pick(t, "controller", "us", "them"),
				Default: rapid.Bool().Draw(t, "default"),
			}
		})
	case "service":
		key := snapshot.Key{Namespace: namespace, Name: pick(t, "name", someServices...)}
		change(w.services, key, remove, func() *snapshot.Service { return someService(t, key) })
	case "slice":
		key := snapshot.Key{Namespace: namespace, Name: pick(t, "name", "1", "2", "3")}
		change(w.slices, key, remove, func() *snapshot.EndpointSlice { return someSlice(t, key) })
	case "secret":
		key := snapshot.Key{Namespace: namespace, Name: pick(t, "name", someSecrets...)}
		change(w.secrets, key, remove, func() *snapshot.Secret {
			s := *pick(t, "certificate", certificates...)
			s.Key = key
			return &s
		})
	case "answer":
		key := snapshot.Key{Name: pick(t, "name", "up.example", "down.example")}
		change(w.answers, key, remove, func() *snapshot.Resolution {
			return &snapshot.Resolution{
				Name:      key.Name,
				Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(rapid.IntRange(1, 3).Draw(t, "address"))})},
				Err:       pick(t, "error", "", "no such host"),
			}
		})
	}
}

// judge says of some peers that are checked that they are down, in a new list as a checker's; some verdicts are older than that.
func (w *world) judge(t *rapid.T, checks []Check) {
	if rapid.IntRange(0, 2).Draw(t, "judge") == 0 {
		return
	}
	verdicts := slices.DeleteFunc(slices.Clone(w.verdicts), func(snapshot.Verdict) bool { return rapid.Bool().Draw(t, "forget") })
	for _, c := range checks {
		for _, p := range c.Peers {
			if rapid.IntRange(0, 2).Draw(t, "down") == 0 {
				verdicts = append(verdicts, snapshot.Verdict{Upstream: string(c.Upstream), Address: p.Address, Down: rapid.IntRange(0, 4).Draw(t, "verdict") > 0})
			}
		}
	}
	w.verdicts = verdicts
}

func change[T any](m map[snapshot.Key]*T, key snapshot.Key, remove bool, create func() *T) {
	if remove {
		delete(m, key)
		return
	}
	m[key] = create()
}

func someIngress(t *rapid.T, key snapshot.Key) *snapshot.Ingress {
	in := &snapshot.Ingress{
		Meta: snapshot.Meta{
			Key: key, UID: pick(t, "uid", "", "u-"+key.String(), "v-"+key.String()),
			Created: time.Unix(int64(rapid.IntRange(1, 3).Draw(t, "created")), 0),
		},
		Annotations: map[string]string{},
	}
	if class := pick(t, "class", "one", "one", "one", "two", "gone", ""); class != "" {
		in.Spec.IngressClassName = &class
	} else if rapid.Bool().Draw(t, "annotated") {
		in.Annotations["kubernetes.io/ingress.class"] = "us"
	}
	for _, a := range rapid.SliceOfN(rapid.SampledFrom([][2]string{
		{"use-regex", "true"}, {"use-regex", "false"}, {"rewrite-target", "/"}, {"rewrite-target", "/z$1"}, {"ssl-redirect", "false"},
		{"force-ssl-redirect", "true"}, {"ssl-redirect", "perhaps"}, {"unknown", "x"}, {"enable-cors", "true"},
		{"affinity", "cookie"}, {"load-balance", "ewma"}, {"load-balance", "round_robin"}, {"upstream-hash-by", "$host"}, {"service-upstream", "true"},
		{"proxy-read-timeout", "9"}, {"proxy-body-size", "20m"}, {"proxy-buffering", "on"}, {"backend-protocol", "HTTPS"},
		{"backend-protocol", "FCGI"}, {"fastcgi-index", "i.php"}, {"backend-protocol", "HTTPS"}, {"proxy-ssl-secret", "c"}, {"proxy-ssl-secret", "d"},
		{"proxy-ssl-secret", "n/c"}, {"proxy-ssl-verify", "on"},
	}), 0, 4).Draw(t, "annotations") { // one in thirty cannot be read
		in.Annotations["nginx.ingress.kubernetes.io/"+a[0]] = a[1]
	}
	for range rapid.IntRange(0, 3).Draw(t, "rules") {
		rule := networkingv1.IngressRule{Host: pick(t, "host", someHosts...)}
		rule.HTTP = &networkingv1.HTTPIngressRuleValue{}
		for range rapid.IntRange(0, 3).Draw(t, "paths") {
			kind := pick(t, "pathType", networkingv1.PathTypeExact, networkingv1.PathTypePrefix)
			rule.HTTP.Paths = append(rule.HTTP.Paths, networkingv1.HTTPIngressPath{
				Path: pick(t, "path", somePaths...), PathType: &kind, Backend: someBackend(t),
			})
		}
		in.Spec.Rules = append(in.Spec.Rules, rule)
	}
	if rapid.IntRange(0, 3).Draw(t, "defaultBackend") == 0 {
		b := someBackend(t)
		in.Spec.DefaultBackend = &b
	}
	for range rapid.IntRange(0, 2).Draw(t, "tls") {
		in.Spec.TLS = append(in.Spec.TLS, networkingv1.IngressTLS{
			Hosts:      rapid.SliceOfN(rapid.SampledFrom(someHosts[:3]), 0, 2).Draw(t, "tlsHosts"),
			SecretName: pick(t, "secret", append(someSecrets, "", "gone")...),
		})
	}
	return in
}

func someBackend(t *rapid.T) networkingv1.IngressBackend {
	if rapid.IntRange(0, 9).Draw(t, "broken") == 0 {
		return networkingv1.IngressBackend{}
	}
	return networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
		Name: pick(t, "service", someServices...),
		Port: networkingv1.ServiceBackendPort{Number: pick(t, "port", int32(80), 81)},
	}}
}

func someService(t *rapid.T, key snapshot.Key) *snapshot.Service {
	s := &snapshot.Service{
		Meta: snapshot.Meta{Key: key}, Type: pick(t, "type", snapshot.ServiceClusterIP, snapshot.ServiceClusterIP, snapshot.ServiceExternalName),
		Ports: []snapshot.ServicePort{{Name: pick(t, "portName", "", "web"), Number: 80, Protocol: "TCP"}},
	}
	for _, a := range rapid.SliceOfN(rapid.SampledFrom([][2]string{
		{"health-check", "tcp"}, {"health-check", "tcp"}, {"load-balance", "ewma"}, {"max-requests", "7"}, {"eject", "perhaps"}, {"unknown", "x"},
	}), 0, 2).Draw(t, "serviceAnnotations") {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations["headgate.io/"+a[0]] = a[1]
	}
	if pick(t, "clusterIP", true, false) {
		s.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.1")}
	}
	s.ClientIP = pick(t, "clientIP", 0, 0, 3*time.Hour)
	if s.Type == snapshot.ServiceExternalName {
		s.ExternalName = pick(t, "externalName", "up.example", "Down.Example.", "bad_name", "192.0.2.9", "127.0.0.1")
	}
	return s
}

func someSlice(t *rapid.T, key snapshot.Key) *snapshot.EndpointSlice {
	s := &snapshot.EndpointSlice{
		Meta:    snapshot.Meta{Key: key},
		Service: snapshot.Key{Namespace: key.Namespace, Name: pick(t, "service", someServices...)},
		Ports:   []snapshot.EndpointPort{{Name: pick(t, "portName", "", "web"), Number: 8080, Protocol: "TCP"}},
	}
	for range rapid.IntRange(0, 3).Draw(t, "endpoints") {
		s.Endpoints = append(s.Endpoints, snapshot.Endpoint{
			Addresses:   []netip.Addr{pick(t, "address", netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("127.0.0.1"))},
			Ready:       rapid.Bool().Draw(t, "ready"),
			Serving:     rapid.Bool().Draw(t, "serving"),
			Terminating: rapid.Bool().Draw(t, "terminating"),
		})
	}
	return s
}

// TestIncrementalEqualsFromScratch proves that what a Builder kept from earlier builds changes nothing: after
// every edit a new Builder with the same memory builds the same.
func TestIncrementalEqualsFromScratch(t *testing.T) {
	certificates := testCertificates()
	options := Options{
		IngressClass: "us", ControllerNames: []string{"us"}, SSLRedirect: true, DefaultMaxBodyBytes: 1 << 20,
		Settings: model.Settings{DefaultCertificate: "n/c"},
		ProfileName: func(p model.Profile) string {
			if p == (model.Profile{}) {
				return "p"
			}
			return ""
		},
	}
	check := func(t *rapid.T) {
		w := newWorld()
		w.classes[snapshot.Key{Name: "one"}] = &snapshot.IngressClass{Meta: snapshot.Meta{Key: snapshot.Key{Name: "one"}}, Controller: "us"}
		for range 30 {
			w.edit(t, certificates)
		}
		b := New(options)
		b.mostProfiles = pick(t, "mostProfiles", 1, 2, maxProfiles)
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			for range rapid.IntRange(0, 4).Draw(t, "edits") {
				w.edit(t, certificates)
			}
			now := testNow.Add(time.Duration(rapid.IntRange(-2, 2).Draw(t, "day")) * 24 * time.Hour)
			s := w.snapshot()
			scratch := New(options)
			scratch.memory, scratch.mostProfiles = b.memory.clone(), b.mostProfiles
			got, want := b.Build(s, now), scratch.Build(s, now)
			requireEqual(t, got, want)
			w.judge(t, got.Checks)
			switch rapid.IntRange(0, 5).Draw(t, "proxy") {
			case 0, 1, 2:
				verdicts := map[string]string{}
				for _, pattern := range got.UnknownRegexes {
					verdicts[pattern] = ""
					if pattern == "/(" {
						verdicts[pattern] = "missing )"
					}
				}
				b.LearnRegexes(verdicts)
			case 3:
				b.RejectProfile("p", "unknown directive")
			}
		}
	}
	// A forgotten mark showed after 30 to 480 worlds; rapid makes 100 a round.
	for range 6 {
		rapid.Check(t, check)
	}
}

func requireEqual(t *rapid.T, got, want *Result) {
	t.Helper()
	parts := func(r *Result) map[string]any {
		return map[string]any{
			"settings": r.Model.Settings, "hosts": slices.Concat(r.Model.Hosts), "upstreams": slices.Concat(r.Model.Upstreams),
			"certificates": slices.Concat(r.Model.Certificates), "problems": slices.Concat(r.Problems),
			"served": slices.Concat(r.Served), "names": slices.Concat(r.ExternalNames), "regexes": slices.Concat(r.UnknownRegexes),
			"checks": slices.Concat(r.Checks), "identities": slices.Concat(r.Model.Identities), "fastcgi": slices.Concat(r.Model.FastCGI),
			"peer secrets": slices.Concat(r.PeerSecrets), "profiles": slices.Concat(r.Model.Profiles),
		}
	}
	if want := routesProfiles(got.Model); !slices.Equal(got.Model.Profiles, want) {
		t.Fatalf("the model lists profiles %+v, its routes have %+v", got.Model.Profiles, want)
	}
	a, b := parts(got), parts(want)
	for name := range a {
		if !reflect.DeepEqual(a[name], b[name]) {
			t.Fatalf("%s differ:\nincremental  %s\nfrom scratch %s", name, spelled(a[name]), spelled(b[name]))
		}
	}
}

// routesProfiles are those of the routes but the default one, as Model.Profiles must have them.
func routesProfiles(m *model.Model) []model.Profile {
	used := map[string]model.Profile{}
	for _, h := range m.Hosts {
		for _, r := range h.Routes {
			if r.Profile != m.Settings.DefaultProfile {
				used[r.Profile.Name()] = r.Profile
			}
		}
	}
	var all []model.Profile
	for _, name := range slices.Sorted(maps.Keys(used)) {
		all = append(all, used[name])
	}
	return all
}

// spelled follows the pointers of a list.
func spelled(v any) string {
	list := reflect.ValueOf(v)
	if list.Kind() != reflect.Slice {
		return fmt.Sprintf("%+v", v)
	}
	text := ""
	for i := range list.Len() {
		text += fmt.Sprintf("\n  %+v", reflect.Indirect(list.Index(i)).Interface())
		if h, ok := list.Index(i).Interface().(*model.Host); ok {
			for _, r := range h.Routes {
				text += fmt.Sprintf("\n    %+v", *r)
			}
		}
	}
	return text
}
