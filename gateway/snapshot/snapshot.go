// Package snapshot holds trimmed, immutable copies of the Kubernetes objects that headgate reads.
// A source (sync/kubewatch, sync/manifests) makes a Snapshot; gateway/build turns it into the model.
// The package does no I/O and reads no clock. Nothing in a Snapshot is changed once it is made.
package snapshot

import (
	"net/netip"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
)

// Key names an object within its kind. Namespace is "" for cluster-scoped kinds.
type Key struct {
	Namespace, Name string
}

// String gives "namespace/name", or "name" when there is no namespace.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// Compare orders keys by namespace, then name; it fits slices.SortFunc.
func (k Key) Compare(o Key) int {
	switch {
	case k.Namespace < o.Namespace:
		return -1
	case k.Namespace > o.Namespace:
		return 1
	case k.Name < o.Name:
		return -1
	case k.Name > o.Name:
		return 1
	}
	return 0
}

// Snapshot is everything read at one moment. Each list is sorted by key and holds a key once.
// An object that did not change between two snapshots of one source keeps its pointer: consumers
// may memoise by pointer.
type Snapshot struct {
	Ingresses      []*Ingress
	IngressClasses []*IngressClass
	Services       []*Service
	EndpointSlices []*EndpointSlice
	Secrets        []*Secret
	// Resolutions answers the ExternalNames that the last build asked for, sorted by name.
	// A name that is missing has not been asked yet.
	Resolutions []*Resolution
	// Verdicts are those of the active health checks that the last build asked for, sorted by upstream and
	// address. A peer without one is taken for well.
	Verdicts []Verdict
	// Faults are inputs that could not be read as objects at all, such as a broken YAML file.
	Faults []Fault
}

// Meta is what we keep of an object's metadata.
type Meta struct {
	Key
	UID             string // "" for objects from manifests
	ResourceVersion string // opaque; "" for objects from manifests
	Generation      int64
	// Created is metadata.creationTimestamp; for a manifest without one, the first time the object
	// was seen (persisted by the source). It orders conflicting definitions: the oldest wins.
	Created time.Time
	// Origin says where a manifest object stands ("shop.yaml:12"); "" for the API.
	Origin string
}

// Ingress is a networking.k8s.io/v1 Ingress.
type Ingress struct {
	Meta
	Annotations map[string]string
	Spec        networkingv1.IngressSpec
	// Published is status.loadBalancer as read, for the status writer to compare.
	Published []networkingv1.IngressLoadBalancerIngress
}

// IngressClass is a networking.k8s.io/v1 IngressClass.
type IngressClass struct {
	Meta
	Controller string
	Default    bool // ingressclass.kubernetes.io/is-default-class: "true"
}

// ServiceType is spec.type of a Service.
type ServiceType string

// The service types; headless is ServiceClusterIP with no ClusterIPs.
const (
	ServiceClusterIP    ServiceType = "ClusterIP"
	ServiceNodePort     ServiceType = "NodePort"
	ServiceLoadBalancer ServiceType = "LoadBalancer"
	ServiceExternalName ServiceType = "ExternalName"
)

// Service is a core/v1 Service.
type Service struct {
	Meta
	Type         ServiceType
	ExternalName string       // set only for ServiceExternalName
	ClusterIPs   []netip.Addr // empty for a headless service
	Ports        []ServicePort
	// ClientIP is the timeout of spec.sessionAffinity: ClientIP; 0 for None.
	ClientIP time.Duration
	// Annotations are those under "headgate.io/": how the service is balanced and checked.
	Annotations map[string]string
}

// ServicePort is one entry of spec.ports. TargetName is set when targetPort is a name, otherwise
// TargetNumber holds it (0 means the same as Number).
type ServicePort struct {
	Name         string
	Number       uint16
	TargetNumber uint16
	TargetName   string
	Protocol     string // "TCP", "UDP", "SCTP"; a nil protocol was read as "TCP"
	NodePort     uint16
}

// EndpointSlice is a discovery.k8s.io/v1 EndpointSlice of address type IPv4 or IPv6
// (slices of type FQDN are left out by the source, with a Fault).
type EndpointSlice struct {
	Meta
	Service   Key // label kubernetes.io/service-name, in the slice's namespace
	Ports     []EndpointPort
	Endpoints []Endpoint
}

// EndpointPort is one entry of ports. Name matches the name of the service port ("" for unnamed).
type EndpointPort struct {
	Name     string
	Number   uint16
	Protocol string
}

// Endpoint is one entry of endpoints with its conditions resolved: a nil ready counts as true,
// a nil serving as ready, a nil terminating as false (KEP-1672).
type Endpoint struct {
	Addresses   []netip.Addr
	Ready       bool
	Serving     bool
	Terminating bool
	Node        string
	Zone        string
}

// Secret is a core/v1 Secret. Data is sensitive: it is never logged or printed.
type Secret struct {
	Meta
	Type string // "kubernetes.io/tls", "Opaque", …
	Data SecretData
}

// SecretData holds the bytes of a Secret; printing it in any way gives "[redacted]".
type SecretData map[string][]byte

// String implements fmt.Stringer.
func (SecretData) String() string { return "[redacted]" }

// GoString implements fmt.GoStringer.
func (SecretData) GoString() string { return "[redacted]" }

// MarshalJSON implements json.Marshaler.
func (SecretData) MarshalJSON() ([]byte, error) { return []byte(`"[redacted]"`), nil }

// Resolution is the answer for one ExternalName. Addresses is the last good answer, also when Err
// tells that the newest attempt failed; it is empty when there never was one.
type Resolution struct {
	Name      string
	Addresses []netip.Addr
	Err       string
}

// Verdict is what the active health check says of one peer of an upstream.
type Verdict struct {
	Upstream string // model.UpstreamID
	Address  netip.AddrPort
	Down     bool
}

// Fault is an input that is not an object, or not a good one: it costs itself only.
type Fault struct {
	Origin  string // "shop.yaml:12"
	Kind    string // as far as known
	Key     Key    // as far as known
	Message string // what is wrong and what to write instead
	Warning bool   // true: nothing is left out because of it, such as an old API version that was converted
}
