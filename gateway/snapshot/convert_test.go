package snapshot_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"headgate/gateway/snapshot"
)

func read[T any](t *testing.T, text string) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatal(err)
	}
	return object
}

func TestFromIngress(t *testing.T) {
	src := read[networkingv1.Ingress](t, `
metadata:
  namespace: ns
  name: i
  uid: u
  resourceVersion: "7"
  generation: 3
  creationTimestamp: "2026-01-02T03:04:05Z"
  annotations: {a: b, kubectl.kubernetes.io/last-applied-configuration: "{}"}
spec:
  ingressClassName: c
  defaultBackend: {service: {name: d, port: {name: web}}}
  tls: [{hosts: [h], secretName: s}]
  rules:
  - host: h
    http:
      paths:
      - {path: /a, pathType: Exact, backend: {service: {name: s, port: {number: 80}}}}
      - {path: /b, pathType: Exact, backend: {resource: {kind: K, name: r}}}
      - {path: /c, backend: {service: {name: s, port: {number: 80}}}}
  - host: bare
status: {loadBalancer: {ingress: [{ip: 192.0.2.1, ports: [{port: 80, protocol: TCP}]}]}}
`)
	got := snapshot.FromIngress(src)
	want := &snapshot.Ingress{
		Meta: snapshot.Meta{
			Key: snapshot.Key{Namespace: "ns", Name: "i"}, UID: "u", ResourceVersion: "7", Generation: 3,
			Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		},
		Annotations: map[string]string{"a": "b"},
		Spec:        src.Spec,
		Published:   src.Status.LoadBalancer.Ingress,
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(time.Time.Equal)); diff != "" {
		t.Errorf("Ingress (-want +got):\n%s", diff)
	}
	// Nothing of the source may be shared that somebody could still change.
	src.Spec.Rules[0].HTTP.Paths[0].Path = "/changed"
	src.Spec.TLS[0].Hosts[0] = "changed"
	src.Spec.Rules[0].HTTP.Paths[1].Backend.Resource.Name = "changed"
	*src.Spec.Rules[0].HTTP.Paths[0].PathType = "changed"
	src.Annotations["a"] = "changed"
	src.Status.LoadBalancer.Ingress[0].Ports[0].Port = 1
	if text := fmt.Sprintf("%+v %+v", got, got.Spec.Rules[0].HTTP.Paths[1].Backend.Resource) +
		string(*got.Spec.Rules[0].HTTP.Paths[0].PathType); strings.Contains(text, "changed") || got.Published[0].Ports[0].Port != 80 {
		t.Errorf("the copy shares memory with its source: %s", text)
	}
}

func TestFromIngressClass(t *testing.T) {
	got := snapshot.FromIngressClass(read[networkingv1.IngressClass](t, `
metadata: {name: c, annotations: {ingressclass.kubernetes.io/is-default-class: "true"}}
spec: {controller: headgate.io/ingress}
`))
	want := &snapshot.IngressClass{Meta: snapshot.Meta{Key: snapshot.Key{Name: "c"}}, Controller: "headgate.io/ingress", Default: true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("IngressClass (-want +got):\n%s", diff)
	}
}

func TestFromService(t *testing.T) {
	for text, want := range map[string]*snapshot.Service{
		`{metadata: {name: s}, spec: {clusterIPs: [10.0.0.1, "fd00::1"], ports: [{name: web, port: 80, targetPort: http}, {port: 53, targetPort: 5353, protocol: UDP, nodePort: 30053}]}}`: {
			Type: snapshot.ServiceClusterIP, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
			Ports: []snapshot.ServicePort{
				{Name: "web", Number: 80, TargetName: "http", Protocol: "TCP"},
				{Number: 53, TargetNumber: 5353, Protocol: "UDP", NodePort: 30053},
			},
		},
		`{metadata: {name: s}, spec: {clusterIP: 10.0.0.2, type: NodePort, externalName: ignored}}`: {
			Type: snapshot.ServiceNodePort, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.2")},
		},
		`{metadata: {name: s}, spec: {clusterIP: None, clusterIPs: [None], type: ClusterIP}}`: {Type: snapshot.ServiceClusterIP},
		`{metadata: {name: s}, spec: {type: LoadBalancer, ports: [{port: 70000}, {port: -1}]}}`: {
			Type: snapshot.ServiceLoadBalancer, Ports: []snapshot.ServicePort{{Protocol: "TCP"}, {Protocol: "TCP"}},
		},
		`{metadata: {name: s}, spec: {type: ExternalName, externalName: up.example.}}`: {
			Type: snapshot.ServiceExternalName, ExternalName: "up.example.",
		},
		`{metadata: {name: s, annotations: {headgate.io/load-balance: p2c, headgate.io.evil/x: "1", other: x}}, spec: {sessionAffinity: None}}`: {
			Type: snapshot.ServiceClusterIP, Annotations: map[string]string{"headgate.io/load-balance": "p2c"},
		},
		`{metadata: {name: s}, spec: {sessionAffinity: ClientIP}}`: {Type: snapshot.ServiceClusterIP, ClientIP: 3 * time.Hour},
		`{metadata: {name: s}, spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}}}`: {
			Type: snapshot.ServiceClusterIP, ClientIP: time.Minute,
		},
		`{metadata: {name: s}, spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}}}`: {
			Type: snapshot.ServiceClusterIP, ClientIP: 3 * time.Hour,
		},
	} {
		want.Key = snapshot.Key{Name: "s"}
		got := snapshot.FromService(read[corev1.Service](t, text))
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestFromEndpointSlice(t *testing.T) {
	got := snapshot.FromEndpointSlice(read[discoveryv1.EndpointSlice](t, `
metadata: {namespace: ns, name: s-1, labels: {kubernetes.io/service-name: s}}
addressType: IPv4
ports: [{name: web, port: 8080, protocol: TCP}, {}]
endpoints:
- {addresses: [10.0.0.1, nonsense], nodeName: node, zone: z}
- {addresses: [10.0.0.2], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.0.0.3], conditions: {ready: false}}
- {addresses: [10.0.0.4], conditions: {serving: false}}
`))
	want := &snapshot.EndpointSlice{
		Meta:    snapshot.Meta{Key: snapshot.Key{Namespace: "ns", Name: "s-1"}},
		Service: snapshot.Key{Namespace: "ns", Name: "s"},
		Ports:   []snapshot.EndpointPort{{Name: "web", Number: 8080, Protocol: "TCP"}, {Protocol: "TCP"}},
		Endpoints: []snapshot.Endpoint{
			{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ready: true, Serving: true, Node: "node", Zone: "z"},
			{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Serving: true, Terminating: true},
			{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.3")}},
			{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.4")}, Ready: true},
		},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("EndpointSlice (-want +got):\n%s", diff)
	}
	if got := snapshot.FromEndpointSlice(&discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeFQDN}); got != nil {
		t.Errorf("a slice of names gave %+v", got)
	}
}

func TestFromSecret(t *testing.T) {
	src := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": []byte("old"), "tls.key": []byte("hunter2")}, StringData: map[string]string{"tls.crt": "new"},
	}
	got := snapshot.FromSecret(src)
	if got.Type != "kubernetes.io/tls" || string(got.Data["tls.crt"]) != "new" || string(got.Data["tls.key"]) != "hunter2" {
		t.Error("type or data are wrong")
	}
	if string(src.Data["tls.crt"]) != "old" {
		t.Error("the source was changed")
	}
	if text := fmt.Sprintf("%v %+v %#v %s", got, got, got.Data, got.Data); strings.Contains(text, "hunter2") {
		t.Errorf("a Secret was printed: %s", text)
	}
}

// TestInterning proves that what repeats is held once: decoders make a copy each time.
func TestInterning(t *testing.T) {
	node := func() *snapshot.EndpointSlice {
		name := strings.Clone("node-1")
		return snapshot.FromEndpointSlice(&discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{NodeName: &name}}})
	}
	a, b := node(), node()
	if unsafe.StringData(a.Endpoints[0].Node) != unsafe.StringData(b.Endpoints[0].Node) {
		t.Error("two endpoints hold two copies of the name of their node")
	}
}
