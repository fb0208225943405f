package build

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// tuned is an Ingress of a year whose annotations are name, value, name, value…; its path is its name.
func tuned(namespace, name string, year int, annotations ...string) *snapshot.Ingress {
	class, prefix := "us", networkingv1.PathTypePrefix
	in := &snapshot.Ingress{
		Meta: snapshot.Meta{Key: snapshot.Key{Namespace: namespace, Name: name}, Created: time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)}, Annotations: map[string]string{},
	}
	for i := 0; i < len(annotations); i += 2 {
		in.Annotations["nginx.ingress.kubernetes.io/"+annotations[i]] = annotations[i+1]
	}
	in.Spec.IngressClassName = &class
	in.Spec.Rules = []networkingv1.IngressRule{{Host: name + ".example"}}
	in.Spec.Rules[0].HTTP = &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
		Path: "/", PathType: &prefix, Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
			Name: "s", Port: networkingv1.ServiceBackendPort{Number: 80},
		}},
	}}}
	return in
}

// tunedWorld is a cluster of Ingresses, and a Service s in their namespaces.
func tunedWorld(ingresses ...*snapshot.Ingress) *snapshot.Snapshot {
	s := &snapshot.Snapshot{IngressClasses: []*snapshot.IngressClass{{Meta: snapshot.Meta{Key: snapshot.Key{Name: "us"}}, Controller: "us"}}}
	for _, namespace := range []string{"m", "n"} {
		s.Services = append(s.Services, &snapshot.Service{
			Meta: snapshot.Meta{Key: snapshot.Key{Namespace: namespace, Name: "s"}}, Type: snapshot.ServiceClusterIP,
			Ports: []snapshot.ServicePort{{Number: 80, Protocol: "TCP"}},
		})
	}
	s.Ingresses = ingresses
	slices.SortFunc(s.Ingresses, func(a, b *snapshot.Ingress) int { return a.Compare(b.Key) })
	return s
}

// servedAndTold tells which Ingresses' paths have a backend, and which were told that their namespace asks for too much.
func servedAndTold(r *Result) (served, told string) {
	var s, p []string
	for _, h := range r.Model.Hosts {
		for _, route := range h.Routes {
			if len(route.Backends) > 0 {
				s = append(s, route.Source.Name)
			}
		}
	}
	for _, problem := range r.Problems {
		if problem.Reason == TooManySettings && strings.Contains(problem.Message, "of namespace "+problem.Object.Namespace+" ") {
			p = append(p, problem.Object.Name)
		}
	}
	return strings.Join(s, " "), strings.Join(p, " ")
}

// TestProfilesOfANamespaceAreLimited: the oldest Ingresses get what they ask for, other namespaces notice nothing, and who
// lost gets it when there is room again.
func TestProfilesOfANamespaceAreLimited(t *testing.T) {
	const size = "proxy-buffer-size"
	a, b, c := tuned("n", "a", 2020, size, "8k"), tuned("n", "b", 2021, size, "16k"), tuned("n", "c", 2022, size, "32k")
	same, other := tuned("n", "d", 2023, size, "8k"), tuned("m", "e", 2023, size, "32k")
	free, usual := tuned("n", "f", 2023, "proxy-body-size", "8m"), tuned("n", "g", 2023, "proxy-read-timeout", "9", size, "4k")
	old := tuned("n", "z", 2010, size, "64k")
	builder := New(Options{ControllerNames: []string{"us"}, DefaultMaxBodyBytes: 1 << 20})
	builder.mostProfiles = 2
	for _, step := range []struct {
		what         string
		ingresses    []*snapshot.Ingress
		served, told string
	}{
		{"as many as there may be", []*snapshot.Ingress{a, b, same, other, free, usual}, "a b d e f g", ""},
		{"one more", []*snapshot.Ingress{a, b, c, same, other, free, usual}, "a b d e f g", "c"},
		{"an older one comes", []*snapshot.Ingress{a, b, c, same, old, other}, "a d e z", "b c"},
		{"it has gone", []*snapshot.Ingress{a, b, c, same, other}, "a b d e", "c"},
		{"there is room", []*snapshot.Ingress{b, c, other}, "b c e", ""},
	} {
		r := builder.Build(tunedWorld(step.ingresses...), testNow)
		if served, told := servedAndTold(r); served != step.served || told != step.told {
			t.Errorf("%s: served %q and told %q, want %q and %q", step.what, served, told, step.served, step.told)
		}
	}
}

// TestIdentitiesOfANamespaceAreLimited: one Ingress may ask for as many TLS identities as it names Services. What is not served
// is not in the model either.
func TestIdentitiesOfANamespaceAreLimited(t *testing.T) {
	in := tuned("n", "a", 2020, "backend-protocol", "HTTPS", "proxy-ssl-secret", "peers", "proxy-ssl-server-name", "on")
	s := tunedWorld(in)
	for i := range 4 {
		name := fmt.Sprintf("s%d", i)
		service := *s.Services[1]
		service.Name = name
		s.Services = append(s.Services, &service)
		path := in.Spec.Rules[0].HTTP.Paths[0]
		path.Path = "/" + name
		path.Backend.Service = &networkingv1.IngressServiceBackend{Name: name, Port: networkingv1.ServiceBackendPort{Number: 80}}
		in.Spec.Rules[0].HTTP.Paths = append(in.Spec.Rules[0].HTTP.Paths, path)
	}
	secret := *testCertificates()[0]
	secret.Key = snapshot.Key{Namespace: "n", Name: "peers"}
	s.Secrets = []*snapshot.Secret{&secret}
	builder := New(Options{ControllerNames: []string{"us"}})
	builder.mostProfiles = 3
	r := builder.Build(s, testNow)
	served, told := servedAndTold(r)
	if len(strings.Fields(served)) != 3 || len(strings.Fields(told)) != 2 || len(r.Model.Identities) != 3 || len(r.Model.Profiles) != 3 {
		t.Errorf("served %q, told %q, %d identities, %d profiles, want three of each; problems %v", served, told, len(r.Model.Identities), len(r.Model.Profiles), r.Problems)
	}
}

// TestManyProfilesCostLittle: an attack with valid values must not make the builds slow either.
func TestManyProfilesCostLittle(t *testing.T) {
	var all []*snapshot.Ingress
	for i := range 3000 {
		all = append(all, tuned("n", fmt.Sprintf("i%04d", i), 2020+i%3, "proxy-buffer-size", fmt.Sprintf("%dk", 5+i%1000), "proxy-buffers-number", fmt.Sprint(2+i/1000)))
	}
	good := tuned("m", "good", 2026, "proxy-buffering", "on")
	builder := New(Options{ControllerNames: []string{"us"}})
	r := builder.Build(tunedWorld(append(all, good)...), testNow)
	served, told := servedAndTold(r)
	if n, m := len(strings.Fields(served)), len(strings.Fields(told)); n != maxProfiles+1 || m != len(all)-maxProfiles || !strings.Contains(served, "good") {
		t.Errorf("%d served, %d told", n, m)
	}
	if n := len(r.Model.Profiles); n != maxProfiles+1 {
		t.Errorf("%d profiles", n)
	}
	if slices.Contains(r.Model.Profiles, model.Profile{}) {
		t.Error("the default profile is counted")
	}
}
