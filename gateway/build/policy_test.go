package build

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"

	"headgate/gateway/annotations"
	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// oneService is a small cluster: a service, and an Ingress of each set of annotations with a path of its name.
func oneService(service map[string]string, ingresses map[string]map[string]string) *snapshot.Snapshot {
	class := "us"
	s := &snapshot.Snapshot{
		IngressClasses: []*snapshot.IngressClass{{Meta: snapshot.Meta{Key: snapshot.Key{Name: class}}, Controller: "us"}},
		Services: []*snapshot.Service{{
			Meta: snapshot.Meta{Key: snapshot.Key{Namespace: "n", Name: "s"}}, Type: snapshot.ServiceClusterIP,
			Ports: []snapshot.ServicePort{{Number: 80, Protocol: "TCP"}}, Annotations: service,
		}},
	}
	for name, values := range ingresses {
		prefix := networkingv1.PathTypePrefix
		in := &snapshot.Ingress{Meta: snapshot.Meta{Key: snapshot.Key{Namespace: "n", Name: name}}, Annotations: map[string]string{}}
		in.Spec.IngressClassName = &class
		in.Spec.Rules = []networkingv1.IngressRule{{Host: "h.example"}}
		in.Spec.Rules[0].HTTP = &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
			Path: "/" + name, PathType: &prefix, Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
				Name: "s", Port: networkingv1.ServiceBackendPort{Number: 80},
			}},
		}}}
		for k, v := range values {
			in.Annotations["nginx.ingress.kubernetes.io/"+k] = v
		}
		s.Ingresses = append(s.Ingresses, in)
	}
	return s
}

// routeOf finds the route of an Ingress of oneService, and its upstream.
func routeOf(t *testing.T, m *model.Model, name string) (*model.Route, *model.Upstream) {
	t.Helper()
	for _, r := range m.Hosts[0].Routes {
		if r.Source.Name != name || len(r.Backends) == 0 {
			continue
		}
		for _, u := range m.Upstreams {
			if u.ID == r.Backends[0].Upstream {
				return r, u
			}
		}
	}
	t.Fatalf("Ingress %s has no route with an upstream", name)
	return nil, nil
}

func TestDefaultsOfTheConfiguration(t *testing.T) {
	o := Options{
		ControllerNames: []string{"us"},
		Defaults: Defaults{
			Algorithm: model.EWMA, Budget: model.RetryBudget{Percent: 5}, Ejection: model.Ejection{Failures: 9, Base: time.Minute},
			Timeouts: model.Timeouts{Read: time.Hour}, Retry: model.Retry{Tries: 7, Total: time.Second},
		},
		Settings: model.Settings{DefaultProfile: model.Profile{RetryOn: model.RetryError, RetryNonIdempotent: true}},
	}
	m := New(o).Build(oneService(map[string]string{"headgate.io/eject-max-time": "30s"}, map[string]map[string]string{
		"usual": nil, "own": {"load-balance": "round_robin", "proxy-next-upstream": "timeout", "proxy-next-upstream-timeout": "0", "proxy-connect-timeout": "1"},
	}), testNow).Model

	r, u := routeOf(t, m, "usual")
	wantUpstream := model.Upstream{
		ID: "n/s/80", Algorithm: model.EWMA, Budget: o.Defaults.Budget, Peers: []model.Peer{},
		Ejection: model.Ejection{Failures: 9, Base: 30 * time.Second, Max: 30 * time.Second}, // eject-max-time is below the configured start
	}
	if diff := cmp.Diff(wantUpstream, *u); diff != "" {
		t.Errorf("upstream (-want +got):\n%s", diff)
	}
	want := model.Route{
		Timeouts: model.Timeouts{Connect: 5 * time.Second, Send: time.Minute, Read: time.Hour},
		Retry:    model.Retry{Tries: 7, Total: time.Second, NonIdempotent: true}, Profile: m.Settings.DefaultProfile,
	}
	if r.Timeouts != want.Timeouts || r.Retry != want.Retry || r.Profile != want.Profile {
		t.Errorf("route %+v, want %+v", r, want)
	}

	r, u = routeOf(t, m, "own")
	if u.Algorithm != model.RoundRobin || !strings.HasPrefix(string(u.ID), "n/s/80#") {
		t.Errorf("upstream %+v", u)
	}
	if r.Timeouts.Connect != time.Second || r.Retry != (model.Retry{Tries: 7}) || r.Profile.RetryOn != model.RetryTimeout || r.Profile.RetryNonIdempotent {
		t.Errorf("route %+v", r)
	}
}

// TestEjectTimes: the first time that a peer is out and the longest may come from different places; what the Service says holds.
func TestEjectTimes(t *testing.T) {
	const configured, most = 5 * time.Second, 300 * time.Second
	for name, c := range map[string]struct {
		service   map[string]string
		base, max time.Duration
	}{
		"nothing said":                      {nil, configured, most},
		"a longest below the configured":    {map[string]string{"headgate.io/eject-max-time": "2s"}, 2 * time.Second, 2 * time.Second},
		"a first time above the configured": {map[string]string{"headgate.io/eject-time": "10m"}, 10 * time.Minute, 10 * time.Minute},
		"both":                              {map[string]string{"headgate.io/eject-time": "1s", "headgate.io/eject-max-time": "1s"}, time.Second, time.Second},
	} {
		o := Options{ControllerNames: []string{"us"}, Defaults: Defaults{Ejection: model.Ejection{Base: configured, Max: most}}}
		_, u := routeOf(t, New(o).Build(oneService(c.service, map[string]map[string]string{"one": nil}), testNow).Model, "one")
		if u.Ejection.Base != c.base || u.Ejection.Max != c.max {
			t.Errorf("%s: %s, at most %s; want %s, at most %s", name, u.Ejection.Base, u.Ejection.Max, c.base, c.max)
		}
	}
}

// TestUpstreamKeepsItsName: the state of peers in the proxy hangs on the name of their upstream, which must not change
// when Service or configuration say something else; two Ingresses that say the same share one.
func TestUpstreamKeepsItsName(t *testing.T) {
	ingresses := map[string]map[string]string{
		"usual": nil, "one": {"affinity": "cookie"}, "two": {"affinity": "cookie", "proxy-read-timeout": "9"}, "three": {"affinity": "cookie", "session-cookie-name": "x"},
	}
	names := func(service map[string]string, d Defaults) []model.UpstreamID {
		m := New(Options{ControllerNames: []string{"us"}, Defaults: d}).Build(oneService(service, ingresses), testNow).Model
		var ids []model.UpstreamID
		for _, name := range []string{"usual", "one", "two", "three"} {
			_, u := routeOf(t, m, name)
			ids = append(ids, u.ID)
		}
		return ids
	}
	first := names(nil, Defaults{})
	if first[0] != "n/s/80" || first[1] != first[2] || first[1] == first[3] || first[1] == first[0] {
		t.Errorf("names %q", first)
	}
	for _, other := range [][]model.UpstreamID{
		names(map[string]string{"headgate.io/load-balance": "p2c"}, Defaults{}), names(nil, Defaults{Algorithm: model.Random}),
	} {
		if !slices.Equal(first, other) {
			t.Errorf("names %q, and %q when the policy below changes", first, other)
		}
	}
}

// TestServicePrefix: sources keep the annotations that are read here.
func TestServicePrefix(t *testing.T) {
	if snapshot.ServicePrefix != annotations.ServicePrefix+"/" {
		t.Errorf("sources keep %q, annotations are read under %q", snapshot.ServicePrefix, annotations.ServicePrefix+"/")
	}
}

// TestIdentityID: every field counts, the private key too, which prints as nothing.
func TestIdentityID(t *testing.T) {
	seen := map[model.IdentityID]string{}
	for name, i := range map[string]model.Identity{
		"nothing": {}, "certificate": {Certificate: []byte("x")}, "key": {Key: model.Secret("x")}, "other key": {Key: model.Secret("y")},
		"ca": {CA: []byte("x")}, "verify": {Verify: true}, "depth": {Depth: 2}, "name": {Name: "x"}, "server name": {ServerName: true},
		"protocols": {Protocols: []string{"TLSv1.3"}}, "ciphers": {Ciphers: "x"},
	} {
		id := identityID(&i)
		if other, taken := seen[id]; taken || len(id) != 32 {
			t.Errorf("%s has the ID %q, and so has %q", name, id, other)
		}
		seen[id] = name
	}
}

// TestPolicyNameHoldsEveryField: a field that JSON leaves out would let two policies share an upstream.
func TestPolicyNameHoldsEveryField(t *testing.T) {
	on := true
	full := annotations.Balancing{
		Algorithm: "x", Hash: []model.HashPart{{}}, HashSubset: true, HashSubsetSize: 1, Affinity: true, Cookie: model.Cookie{Name: "x"},
		ServiceUpstream: &on, Limits: model.Limits{Queue: 1}, Eject: &on, EjectFailures: 1, EjectStatuses: []uint16{500}, EjectTime: 1,
		EjectMaxTime: 1, RetryBudget: model.RetryBudget{Percent: 1}, SlowStart: 1, Check: &model.HealthCheck{},
	}
	text, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	if got, want := len(fields), 16; got != want {
		t.Errorf("%d fields in %s, want %d: a new field needs a value here", got, text, want)
	}
}
