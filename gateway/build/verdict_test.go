package build

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// checkedCluster has a Service with a health check, and three pods of which the last one drains.
func checkedCluster() *snapshot.Snapshot {
	class, kind := "c", networkingv1.PathTypePrefix
	backend := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "s", Port: networkingv1.ServiceBackendPort{Number: 80}}}
	return &snapshot.Snapshot{
		IngressClasses: []*snapshot.IngressClass{{Meta: snapshot.Meta{Key: snapshot.Key{Name: "c"}}, Controller: "us"}},
		Ingresses: []*snapshot.Ingress{{
			Meta: snapshot.Meta{Key: snapshot.Key{Namespace: "n", Name: "i"}},
			Spec: networkingv1.IngressSpec{IngressClassName: &class, Rules: []networkingv1.IngressRule{{
				Host: "a.example", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
					Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &kind, Backend: backend}},
				}},
			}}},
		}},
		Services: []*snapshot.Service{{
			Meta: snapshot.Meta{Key: snapshot.Key{Namespace: "n", Name: "s"}}, Type: snapshot.ServiceClusterIP,
			Ports:       []snapshot.ServicePort{{Number: 80, Protocol: "TCP"}},
			Annotations: map[string]string{"headgate.io/health-check": "tcp"},
		}},
		EndpointSlices: []*snapshot.EndpointSlice{{
			Meta:    snapshot.Meta{Key: snapshot.Key{Namespace: "n", Name: "s-1"}},
			Service: snapshot.Key{Namespace: "n", Name: "s"},
			Ports:   []snapshot.EndpointPort{{Number: 8080, Protocol: "TCP"}},
			Endpoints: []snapshot.Endpoint{
				{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ready: true, Serving: true},
				{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Ready: true, Serving: true},
				{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.3")}, Serving: true, Terminating: true},
			},
		}},
	}
}

func TestVerdicts(t *testing.T) {
	b := New(Options{ControllerNames: []string{"us"}})
	s := checkedCluster()
	first := b.Build(s, testNow)
	if len(first.Checks) != 1 || len(first.Checks[0].Peers) != 3 || first.Checks[0].Check.Protocol != model.ProtocolTCP {
		t.Fatalf("checks %+v", first.Checks)
	}
	id := string(first.Checks[0].Upstream)
	for _, c := range []struct {
		name     string
		verdicts []snapshot.Verdict
		down     string
		told     bool
	}{
		{"one", verdictsOn(id, "10.0.0.2"), "10.0.0.2:8080", false},
		{"none is well again", []snapshot.Verdict{{Upstream: id, Address: netip.MustParseAddrPort("10.0.0.2:8080")}}, "", false},
		{"the draining one", verdictsOn(id, "10.0.0.3"), "10.0.0.3:8080", false},
		{"all that get new requests", verdictsOn(id, "10.0.0.2", "10.0.0.1"), "10.0.0.1:8080 10.0.0.2:8080", true},
		{"one that is gone, and another upstream's", append(verdictsOn(id, "10.0.0.9"), verdictsOn("n/t/80", "10.0.0.1")...), "", false},
		{"nothing", nil, "", false},
	} {
		before := b.Build(s, testNow).Model.Upstreams[0]
		next := *s
		next.Verdicts = c.verdicts
		result := b.Build(&next, testNow)
		u := result.Model.Upstreams[0]
		var down []string
		for _, p := range u.Peers {
			if p.Down {
				down = append(down, p.Address.String())
			}
		}
		if got := strings.Join(down, " "); got != c.down {
			t.Errorf("%s: down %q, want %q", c.name, got, c.down)
		}
		told := slices.ContainsFunc(result.Problems, func(p Problem) bool {
			return p.Reason == AllPeersDown && p.Warning && p.Object.Kind == "Service" && p.Object.Name == "s"
		})
		if told != c.told {
			t.Errorf("%s: problems %+v", c.name, result.Problems)
		}
		if c.down == "" && u != before {
			t.Errorf("%s: what did not change was built anew", c.name)
		}
	}
	unchecked := *s
	plain := *s.Services[0]
	plain.Annotations = nil
	unchecked.Services, unchecked.Verdicts = []*snapshot.Service{&plain}, verdictsOn(id, "10.0.0.1")
	result := b.Build(&unchecked, testNow)
	if len(result.Checks) != 0 || slices.ContainsFunc(result.Model.Upstreams[0].Peers, func(p model.Peer) bool { return p.Down }) {
		t.Errorf("a verdict outlives its check: %+v", result.Model.Upstreams[0])
	}
}

func verdictsOn(upstream string, addresses ...string) []snapshot.Verdict {
	var list []snapshot.Verdict
	for _, a := range addresses {
		list = append(list, snapshot.Verdict{Upstream: upstream, Address: netip.AddrPortFrom(netip.MustParseAddr(a), 8080), Down: true})
	}
	return list
}
