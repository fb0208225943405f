package hostile

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"headgate/gateway/build"
	"headgate/gateway/luastate"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/snapshot"
)

// objects are what an API server would hand over, without its validation.
type objects struct {
	Ingresses []networkingv1.Ingress
	Classes   []networkingv1.IngressClass
	Services  []corev1.Service
	Slices    []discoveryv1.EndpointSlice
	Secrets   []corev1.Secret
}

// snapshot makes the trimmed copies, a key once and sorted, as a source does.
func (o *objects) snapshot() *snapshot.Snapshot {
	s := &snapshot.Snapshot{}
	seen := map[string]bool{}
	fresh := func(kind string, m snapshot.Meta) bool {
		if strings.Contains(m.Namespace, "/") || strings.Contains(m.Name, "/") {
			return false // an object of such a name has no URL
		}
		id := kind + " " + m.String()
		defer func() { seen[id] = true }()
		return !seen[id]
	}
	for i := range o.Ingresses {
		if in := snapshot.FromIngress(&o.Ingresses[i]); fresh("i", in.Meta) {
			s.Ingresses = insert(s.Ingresses, in, func(x *snapshot.Ingress) snapshot.Key { return x.Key })
		}
	}
	for i := range o.Classes {
		if in := snapshot.FromIngressClass(&o.Classes[i]); fresh("c", in.Meta) {
			s.IngressClasses = insert(s.IngressClasses, in, func(x *snapshot.IngressClass) snapshot.Key { return x.Key })
		}
	}
	for i := range o.Services {
		if in := snapshot.FromService(&o.Services[i]); fresh("s", in.Meta) {
			s.Services = insert(s.Services, in, func(x *snapshot.Service) snapshot.Key { return x.Key })
		}
	}
	for i := range o.Slices {
		if in := snapshot.FromEndpointSlice(&o.Slices[i]); in != nil && fresh("e", in.Meta) {
			s.EndpointSlices = insert(s.EndpointSlices, in, func(x *snapshot.EndpointSlice) snapshot.Key { return x.Key })
		}
	}
	for i := range o.Secrets {
		if in := snapshot.FromSecret(&o.Secrets[i]); fresh("k", in.Meta) {
			s.Secrets = insert(s.Secrets, in, func(x *snapshot.Secret) snapshot.Key { return x.Key })
		}
	}
	return s
}

func insert[T any](list []T, one T, key func(T) snapshot.Key) []T {
	at := len(list)
	for at > 0 && key(list[at-1]).Compare(key(one)) > 0 {
		at--
	}
	list = append(list, one)
	copy(list[at+1:], list[at:])
	list[at] = one
	return list
}

func options() build.Options {
	s := settings()
	return build.Options{
		IngressClass: "headgate", ControllerNames: []string{"headgate.io/ingress"}, WatchWithoutClass: true, SSLRedirect: true,
		Settings: s, DefaultMaxBodyBytes: 1 << 20, ProfileName: nginxconf.ProfileName,
	}
}

// FuzzObjects: objects that no API server has validated become a model whose host names are host names, whose
// peers are allowed and whose configuration is the one without objects; each problem says something.
func FuzzObjects(f *testing.F) {
	f.Add([]byte(`{"Ingresses":[{"metadata":{"name":"a","annotations":{"nginx.ingress.kubernetes.io/rewrite-target":"/$1; }","nginx.ingress.kubernetes.io/use-regex":"true"}},"spec":{"tls":[{"hosts":["*.evil.test"],"secretName":"s"}],"rules":[{"host":"a.evil.test","http":{"paths":[{"path":"/(a","pathType":"Prefix","backend":{"service":{"name":"s","port":{"number":80}}}}]}}]}}],"Services":[{"metadata":{"name":"s"},"spec":{"ports":[{"port":80}]}}],"Slices":[{"metadata":{"name":"s","labels":{"kubernetes.io/service-name":"s"}},"addressType":"IPv4","ports":[{"name":"","port":80}],"endpoints":[{"addresses":["10.0.0.1"]}]}],"Secrets":[{"metadata":{"name":"s"},"type":"kubernetes.io/tls","data":{"tls.crt":"LS0t","tls.key":"LS0t"}}]}`))
	f.Add([]byte(`{"Ingresses":[{"spec":{"rules":[{"host":"; } server {"},{"host":"","http":{"paths":[{"path":""},{"path":"no"},{"path":"/\u0000","backend":{"resource":{"kind":"x"}}}]}}],"defaultBackend":{"service":{"name":"","port":{"number":-1}}}}}]}`))
	f.Add([]byte(`{"Ingresses":[{"metadata":{"name":"../../evil"},"spec":{"ingressClassName":"\";","defaultBackend":{}}}],"Classes":[{"metadata":{"name":"\";"},"spec":{"controller":"headgate.io/ingress"}}]}`))
	f.Add([]byte(`{"Services":[{"spec":{"type":"ExternalName","externalName":"a;b{}$x","ports":[{"port":70000,"targetPort":-1}]}}],"Slices":[{"addressType":"IPv6","ports":[{"port":-1},{}],"endpoints":[{"addresses":["::1%lo","::ffff:10.0.0.1",""]},{}]}]}`))
	l, _ := layout(f, f.TempDir())
	empty := render(f, build.New(options()).Build(&snapshot.Snapshot{}, time.Unix(0, 0)).Model, l)
	f.Fuzz(func(t *testing.T, text []byte) {
		var o objects
		if json.Unmarshal(text, &o) != nil {
			return
		}
		s := o.snapshot()
		b := build.New(options())
		result := b.Build(s, time.Unix(1e9, 0))
		verdicts := map[string]string{}
		for i, pattern := range result.UnknownRegexes {
			verdicts[pattern] = []string{"", "is bad"}[i%2]
		}
		b.LearnRegexes(verdicts)
		result = b.Build(s, time.Unix(1e9, 0))
		checkModel(t, result.Model)
		for _, p := range result.Problems {
			if p.Message == "" || p.Reason == "" || p.Object.Kind == "" {
				t.Errorf("a problem that says nothing: %+v", p)
			}
		}
		if render(t, result.Model, l) != empty {
			t.Error("the objects change the configuration")
		}
		state := luastate.NewEncoder().Encode(result.Model)
		for _, one := range state.Objects {
			if strings.ContainsAny(one.Pointer, " \n") {
				t.Errorf("pointer %q cannot be listed", one.Pointer)
			}
			if !one.Keep && !json.Valid(one.Body) {
				t.Errorf("the body of %q is not JSON", one.Pointer)
			}
		}
	})
}

func render(tb testing.TB, m *model.Model, l nginxconf.Layout) string {
	tb.Helper()
	c, err := nginxconf.Render(m, l)
	if err != nil {
		tb.Fatal(err)
	}
	return string(c.Text)
}

func checkModel(t *testing.T, m *model.Model) {
	t.Helper()
	upstreams := map[model.UpstreamID]bool{}
	for _, u := range m.Upstreams {
		upstreams[u.ID] = true
		for _, p := range u.Peers {
			if a := p.Address.Addr(); !p.Address.IsValid() || p.Address.Port() == 0 || p.Weight == 0 || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() {
				t.Errorf("upstream %q has peer %v", u.ID, p)
			}
		}
	}
	for _, h := range m.Hosts {
		if name, err := model.ParseHostName(string(h.Name)); err != nil || name != h.Name {
			t.Errorf("host %q: %v", h.Name, err)
		}
		for _, r := range h.Routes {
			if path := r.Match.Path.Value; path == "" || path[0] != '/' && r.Match.Path.Type != model.PathRegex {
				t.Errorf("host %q has path %q", h.Name, path)
			}
			for _, back := range r.Backends {
				if !upstreams[back.Upstream] {
					t.Errorf("host %q refers to upstream %q, which is not there", h.Name, back.Upstream)
				}
			}
		}
	}
}
