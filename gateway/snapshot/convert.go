package snapshot

import (
	"maps"
	"net/netip"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The conversions below make the trimmed copies. They keep nothing of their argument that could
// change later, except the bytes of a Secret, which Kubernetes clients never change in place.
// What repeats over many objects (namespaces, service names, nodes, zones, annotation names) is
// interned: at 50,000 endpoints the decoder's own copies would cost several megabytes.

// lastApplied repeats the whole object in an annotation; nobody here reads it.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// ServicePrefix stands before the names of the annotations of a Service that are kept.
const ServicePrefix = "headgate.io/"

// defaultClientIP is what the API server writes where sessionAffinityConfig names no timeout
// (core/v1 ClientIPConfig).
const defaultClientIP = 10800 * time.Second

// FromIngress makes the trimmed copy of an Ingress.
func FromIngress(in *networkingv1.Ingress) *Ingress {
	return &Ingress{
		Meta:        fromMeta(&in.ObjectMeta),
		Annotations: copyAnnotations(in.Annotations),
		Spec:        copyIngressSpec(&in.Spec),
		Published:   copyPublished(in.Status.LoadBalancer.Ingress),
	}
}

// FromIngressClass makes the trimmed copy of an IngressClass.
func FromIngressClass(in *networkingv1.IngressClass) *IngressClass {
	return &IngressClass{
		Meta:       fromMeta(&in.ObjectMeta),
		Controller: in.Spec.Controller,
		Default:    in.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true",
	}
}

// FromService makes the trimmed copy of a Service. Cluster addresses that do not parse, such as
// "None" of a headless service, are left out.
func FromService(in *corev1.Service) *Service {
	out := &Service{
		Meta:        fromMeta(&in.ObjectMeta),
		Type:        fromServiceType(in.Spec.Type),
		ClusterIPs:  parseAddresses(in.Spec.ClusterIPs),
		ClientIP:    fromSessionAffinity(&in.Spec),
		Annotations: serviceAnnotations(in.Annotations),
	}
	if len(out.ClusterIPs) == 0 {
		out.ClusterIPs = parseAddresses([]string{in.Spec.ClusterIP})
	}
	if out.Type == ServiceExternalName {
		out.ExternalName = in.Spec.ExternalName
	}
	for i := range in.Spec.Ports {
		out.Ports = append(out.Ports, fromServicePort(&in.Spec.Ports[i]))
	}
	return out
}

// FromEndpointSlice makes the trimmed copy of an EndpointSlice. It gives nil for a slice of address
// type FQDN, which has no addresses to send a request to. Addresses that do not parse are left out.
func FromEndpointSlice(in *discoveryv1.EndpointSlice) *EndpointSlice {
	if in.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	out := &EndpointSlice{Meta: fromMeta(&in.ObjectMeta)}
	out.Service = Key{Namespace: out.Namespace, Name: intern(in.Labels[discoveryv1.LabelServiceName])}
	for i := range in.Ports {
		p := &in.Ports[i]
		out.Ports = append(out.Ports, EndpointPort{
			Name:     intern(value(p.Name)),
			Number:   portNumber(value(p.Port)),
			Protocol: fromProtocol(value(p.Protocol)),
		})
	}
	if len(in.Endpoints) > 0 {
		out.Endpoints = make([]Endpoint, len(in.Endpoints))
	}
	for i := range in.Endpoints {
		out.Endpoints[i] = fromEndpoint(&in.Endpoints[i])
	}
	return out
}

// FromSecret makes the trimmed copy of a Secret. stringData, which only manifests have, wins over data
// as it does in the API server.
func FromSecret(in *corev1.Secret) *Secret {
	out := &Secret{Meta: fromMeta(&in.ObjectMeta), Type: intern(string(in.Type)), Data: SecretData(in.Data)}
	if len(in.StringData) > 0 {
		out.Data = maps.Clone(out.Data)
		if out.Data == nil {
			out.Data = SecretData{}
		}
		for k, v := range in.StringData {
			out.Data[k] = []byte(v)
		}
	}
	return out
}

func fromMeta(in *metav1.ObjectMeta) Meta {
	return Meta{
		Key:             Key{Namespace: intern(in.Namespace), Name: intern(in.Name)},
		UID:             string(in.UID),
		ResourceVersion: in.ResourceVersion,
		Generation:      in.Generation,
		Created:         in.CreationTimestamp.Time,
	}
}

func copyAnnotations(in map[string]string) map[string]string {
	if len(in) == 0 {
		return nil
	}
	out := make(map[string]string, len(in))
	for k, v := range in {
		if k != lastApplied {
			out[intern(k)] = v
		}
	}
	return out
}

func copyIngressSpec(in *networkingv1.IngressSpec) networkingv1.IngressSpec {
	out := networkingv1.IngressSpec{DefaultBackend: copyBackend(in.DefaultBackend)}
	if in.IngressClassName != nil {
		name := intern(*in.IngressClassName)
		out.IngressClassName = &name
	}
	for i := range in.TLS {
		section := in.TLS[i].DeepCopy()
		out.TLS = append(out.TLS, *section)
	}
	if len(in.Rules) > 0 {
		out.Rules = make([]networkingv1.IngressRule, len(in.Rules))
	}
	types := map[networkingv1.PathType]*networkingv1.PathType{}
	for i := range in.Rules {
		out.Rules[i].Host = in.Rules[i].Host
		if http := in.Rules[i].HTTP; http != nil {
			out.Rules[i].HTTP = copyPaths(http, types)
		}
	}
	return out
}

// copyPaths lets all paths of one Ingress share one pointer a path type.
func copyPaths(
	in *networkingv1.HTTPIngressRuleValue, types map[networkingv1.PathType]*networkingv1.PathType,
) *networkingv1.HTTPIngressRuleValue {
	out := &networkingv1.HTTPIngressRuleValue{Paths: make([]networkingv1.HTTPIngressPath, len(in.Paths))}
	for i := range in.Paths {
		p := &in.Paths[i]
		out.Paths[i].Path = p.Path
		out.Paths[i].Backend = *copyBackend(&p.Backend)
		if p.PathType == nil {
			continue
		}
		if types[*p.PathType] == nil {
			shared := networkingv1.PathType(intern(string(*p.PathType)))
			types[shared] = &shared
		}
		out.Paths[i].PathType = types[*p.PathType]
	}
	return out
}

func copyBackend(in *networkingv1.IngressBackend) *networkingv1.IngressBackend {
	if in == nil {
		return nil
	}
	out := &networkingv1.IngressBackend{Resource: in.Resource.DeepCopy()}
	if s := in.Service; s != nil {
		out.Service = &networkingv1.IngressServiceBackend{
			Name: intern(s.Name),
			Port: networkingv1.ServiceBackendPort{Name: intern(s.Port.Name), Number: s.Port.Number},
		}
	}
	return out
}

func copyPublished(in []networkingv1.IngressLoadBalancerIngress) []networkingv1.IngressLoadBalancerIngress {
	if len(in) == 0 {
		return nil
	}
	out := make([]networkingv1.IngressLoadBalancerIngress, len(in))
	for i := range in {
		in[i].DeepCopyInto(&out[i])
	}
	return out
}

func fromServiceType(t corev1.ServiceType) ServiceType {
	switch t {
	case corev1.ServiceTypeNodePort:
		return ServiceNodePort
	case corev1.ServiceTypeLoadBalancer:
		return ServiceLoadBalancer
	case corev1.ServiceTypeExternalName:
		return ServiceExternalName
	case corev1.ServiceTypeClusterIP:
		return ServiceClusterIP
	default: // "" in manifests; the API server writes ClusterIP
		return ServiceClusterIP
	}
}

// fromSessionAffinity gives 0 for None, and the default for a timeout out of range, which the API server refuses.
func fromSessionAffinity(in *corev1.ServiceSpec) time.Duration {
	if in.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	const day = 86400
	if c := in.SessionAffinityConfig; c != nil && c.ClientIP != nil {
		if s := value(c.ClientIP.TimeoutSeconds); s > 0 && s <= day {
			return time.Duration(s) * time.Second
		}
	}
	return defaultClientIP
}

// serviceAnnotations keeps those under ServicePrefix.
func serviceAnnotations(in map[string]string) map[string]string {
	var out map[string]string
	for k, v := range in {
		if strings.HasPrefix(k, ServicePrefix) {
			if out == nil {
				out = map[string]string{}
			}
			out[intern(k)] = v
		}
	}
	return out
}

func fromServicePort(in *corev1.ServicePort) ServicePort {
	return ServicePort{
		Name:         intern(in.Name),
		Number:       portNumber(in.Port),
		TargetNumber: portNumber(in.TargetPort.IntVal),
		TargetName:   intern(in.TargetPort.StrVal),
		Protocol:     fromProtocol(in.Protocol),
		NodePort:     portNumber(in.NodePort),
	}
}

func fromEndpoint(in *discoveryv1.Endpoint) Endpoint {
	out := Endpoint{
		Addresses: parseAddresses(in.Addresses),
		Ready:     in.Conditions.Ready == nil || *in.Conditions.Ready,
		Node:      intern(value(in.NodeName)),
		Zone:      intern(value(in.Zone)),
	}
	out.Serving = out.Ready
	if in.Conditions.Serving != nil {
		out.Serving = *in.Conditions.Serving
	}
	out.Terminating = value(in.Conditions.Terminating)
	return out
}

func fromProtocol(p corev1.Protocol) string {
	switch p {
	case "", corev1.ProtocolTCP:
		return "TCP"
	case corev1.ProtocolUDP:
		return "UDP"
	case corev1.ProtocolSCTP:
		return "SCTP"
	}
	return intern(string(p))
}

func parseAddresses(in []string) []netip.Addr {
	var out []netip.Addr
	for _, s := range in {
		if a, err := netip.ParseAddr(s); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// portNumber gives 0, which no port has, for a number out of range.
func portNumber(n int32) uint16 {
	if n < 0 || n > 65535 {
		return 0
	}
	return uint16(n)
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// intern gives one shared copy of s. Copies that nobody holds any more are collected.
func intern(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}
