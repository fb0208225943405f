package manifests

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"headgate/gateway/snapshot"
)

// kind is one kind that is read. read gives a pointer to a snapshot type, or what is wrong.
type kind struct {
	name       string
	namespaced bool
	old        string // for an old API version: what to write instead
	read       func(raw []byte) (any, []finding)
}

// kindOf gives nil for a kind that is none of ours, and a message for one that was meant to be.
func kindOf(apiVersion, name string) (*kind, string) {
	switch apiVersion + " " + name {
	case "networking.k8s.io/v1 Ingress":
		return &kind{name: "Ingress", namespaced: true, read: readIngress}, ""
	case "networking.k8s.io/v1 IngressClass":
		return &kind{name: "IngressClass", read: readIngressClass}, ""
	case "v1 Service":
		return &kind{name: "Service", namespaced: true, read: readService}, ""
	case "v1 Secret":
		return &kind{name: "Secret", namespaced: true, read: readSecret}, ""
	case "discovery.k8s.io/v1 EndpointSlice":
		return &kind{name: "EndpointSlice", namespaced: true, read: readEndpointSlice}, ""
	case "networking.k8s.io/v1beta1 Ingress", "extensions/v1beta1 Ingress":
		return &kind{name: "Ingress", namespaced: true, old: "networking.k8s.io/v1", read: readIngressV1beta1}, ""
	case "networking.k8s.io/v1beta1 IngressClass":
		return &kind{name: "IngressClass", old: "networking.k8s.io/v1", read: readIngressClassV1beta1}, ""
	}
	return nil, misspelt(apiVersion, name)
}

// misspelt says what to write where a kind is nearly one of ours. Kinds of other API groups may share our names.
func misspelt(apiVersion, name string) string {
	group, _, grouped := strings.Cut(apiVersion, "/")
	if grouped && !slices.Contains([]string{"networking.k8s.io", "discovery.k8s.io", "extensions", "core", "networking", "discovery"}, group) {
		return ""
	}
	for known, version := range map[string]string{
		"Ingress": "networking.k8s.io/v1", "IngressClass": "networking.k8s.io/v1", "EndpointSlice": "discovery.k8s.io/v1",
		"Service": "v1", "Secret": "v1",
	} {
		if strings.EqualFold(name, known) {
			return fmt.Sprintf("there is no kind %s in apiVersion %s: write apiVersion: %s and kind: %s", name, apiVersion, version, known)
		}
	}
	return ""
}

func checkName(h header, k *kind) []finding {
	var findings []finding
	switch name := h.Metadata.Name; {
	case name == "":
		findings = append(findings, finding{"metadata.name", "is missing: give the object a name"})
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		findings = append(findings, finding{"metadata.name", fmt.Sprintf("%q is not a name: write lower-case letters, digits, '-' and '.', at most 253", name)})
	}
	switch namespace := h.Metadata.Namespace; {
	case namespace == "":
	case !k.namespaced:
		findings = append(findings, finding{"metadata.namespace", "an object of this kind has no namespace: remove it"})
	case len(validation.IsDNS1123Label(namespace)) > 0:
		findings = append(findings, finding{"metadata.namespace", fmt.Sprintf("%q is not a namespace: write lower-case letters, digits and '-', at most 63", namespace)})
	}
	return findings
}

func readIngress(raw []byte) (any, []finding) {
	var in networkingv1.Ingress
	if findings := strict(raw, &in); len(findings) > 0 {
		return nil, findings
	}
	return snapshot.FromIngress(&in), checkIngress(&in)
}

// checkIngress refuses what the API server refuses and gateway/build could not make sense of. Hosts are build's.
func checkIngress(in *networkingv1.Ingress) []finding {
	var findings []finding
	if in.Spec.DefaultBackend != nil {
		findings = append(findings, checkBackend("spec.defaultBackend", in.Spec.DefaultBackend)...)
	}
	for i, rule := range in.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for j := range rule.HTTP.Paths {
			path := &rule.HTTP.Paths[j]
			field := fmt.Sprintf("spec.rules[%d].http.paths[%d]", i, j)
			findings = append(findings, checkPath(field, path)...)
			findings = append(findings, checkBackend(field+".backend", &path.Backend)...)
		}
	}
	return findings
}

func checkPath(field string, path *networkingv1.HTTPIngressPath) []finding {
	if path.PathType == nil {
		return []finding{{field + ".pathType", "is missing: write pathType: Prefix (or Exact, or ImplementationSpecific)"}}
	}
	switch *path.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		if !strings.HasPrefix(path.Path, "/") {
			return []finding{{field + ".path", fmt.Sprintf("%q does not begin with a slash: write %q", path.Path, "/"+path.Path)}}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if path.Path != "" && !strings.HasPrefix(path.Path, "/") {
			return []finding{{field + ".path", fmt.Sprintf("%q does not begin with a slash: write %q", path.Path, "/"+path.Path)}}
		}
	default:
		return []finding{{field + ".pathType", fmt.Sprintf("%q is not a path type: write Prefix, Exact or ImplementationSpecific", *path.PathType)}}
	}
	return nil
}

const noService = "names no service: write service: {name: …, port: {number: …}}"

func checkBackend(field string, backend *networkingv1.IngressBackend) []finding {
	service := backend.Service
	switch {
	case service == nil && backend.Resource == nil:
		return []finding{{field, noService}}
	case service == nil:
		return nil
	case backend.Resource != nil:
		return []finding{{field, "names both a service and a resource: remove one"}}
	case service.Name == "":
		return []finding{{field + ".service.name", "is missing: write the name of the Service"}}
	case service.Port.Name == "" && service.Port.Number == 0:
		return []finding{{field + ".service.port", "is missing: write port: {number: …} or port: {name: …}"}}
	case service.Port.Name != "" && service.Port.Number != 0:
		return []finding{{field + ".service.port", "has both a name and a number: remove one"}}
	case service.Port.Name == "" && !isPort(service.Port.Number):
		return []finding{{field + ".service.port.number", fmt.Sprintf("%d is not a port: write 1 to 65535", service.Port.Number)}}
	}
	return nil
}

func isPort(n int32) bool { return n >= 1 && n <= 65535 }

func readIngressClass(raw []byte) (any, []finding) {
	var in networkingv1.IngressClass
	if findings := strict(raw, &in); len(findings) > 0 {
		return nil, findings
	}
	return snapshot.FromIngressClass(&in), checkController(in.Spec.Controller)
}

func checkController(controller string) []finding {
	if controller == "" {
		return []finding{{"spec.controller", "is missing: write controller: headgate.io/ingress"}}
	}
	return nil
}

// readService defaults what the API server would: the protocol is TCP, the target port is the port.
func readService(raw []byte) (any, []finding) {
	var in corev1.Service
	if findings := strict(raw, &in); len(findings) > 0 {
		return nil, findings
	}
	var findings []finding
	switch in.Spec.Type {
	case "", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		if len(in.Spec.Ports) == 0 && in.Spec.ClusterIP != corev1.ClusterIPNone {
			findings = append(findings, finding{"spec.ports", "is missing: write at least one port"})
		}
	case corev1.ServiceTypeExternalName:
		if in.Spec.ExternalName == "" {
			findings = append(findings, finding{"spec.externalName", "is missing: write the DNS name that the Service stands for"})
		}
	default:
		findings = append(findings, finding{"spec.type", fmt.Sprintf("%q is not a type: write ClusterIP, NodePort, LoadBalancer or ExternalName", in.Spec.Type)})
	}
	return snapshot.FromService(&in), append(findings, checkServicePorts(in.Spec.Ports)...)
}

func checkServicePorts(ports []corev1.ServicePort) []finding {
	var findings []finding
	names := map[string]bool{}
	for i := range ports {
		port := &ports[i]
		field := fmt.Sprintf("spec.ports[%d]", i)
		if !isPort(port.Port) {
			findings = append(findings, finding{field + ".port", fmt.Sprintf("%d is not a port: write 1 to 65535", port.Port)})
		}
		if n := port.TargetPort.IntVal; n < 0 || n > 65535 {
			findings = append(findings, finding{field + ".targetPort", fmt.Sprintf("%d is not a port: write 1 to 65535, or the name of a container port", n)})
		}
		switch {
		case len(ports) > 1 && port.Name == "":
			findings = append(findings, finding{field + ".name", "is missing: with more than one port, each needs a name"})
		case names[port.Name]:
			findings = append(findings, finding{field + ".name", fmt.Sprintf("%q is taken by another port: write another name", port.Name)})
		}
		names[port.Name] = true
		findings = append(findings, checkProtocol(field+".protocol", port.Protocol)...)
	}
	return findings
}

func checkProtocol(field string, protocol corev1.Protocol) []finding {
	switch protocol {
	case "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return nil
	}
	return []finding{{field, fmt.Sprintf("%q is not a protocol: write TCP, UDP or SCTP", protocol)}}
}

// readSecret merges stringData and makes the type Opaque where none is given, as the API server would.
func readSecret(raw []byte) (any, []finding) {
	var in corev1.Secret
	if findings := strict(raw, &in); len(findings) > 0 {
		return nil, findings
	}
	if in.Type == "" {
		in.Type = corev1.SecretTypeOpaque
	}
	return snapshot.FromSecret(&in), nil
}

func readEndpointSlice(raw []byte) (any, []finding) {
	var in discoveryv1.EndpointSlice
	if findings := strict(raw, &in); len(findings) > 0 {
		return nil, findings
	}
	var findings []finding
	switch in.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	case discoveryv1.AddressTypeFQDN:
		return nil, []finding{{"addressType", "slices of type FQDN have no addresses and are not served: write a Service of type ExternalName"}}
	default:
		return nil, []finding{{"addressType", fmt.Sprintf("%q is not an address type: write IPv4 or IPv6", in.AddressType)}}
	}
	if in.Labels[discoveryv1.LabelServiceName] == "" {
		findings = append(findings, finding{"metadata.labels", "says no Service: write the label " + discoveryv1.LabelServiceName + ": NAME"})
	}
	for i, port := range in.Ports {
		field := fmt.Sprintf("ports[%d]", i)
		if port.Port != nil && !isPort(*port.Port) {
			findings = append(findings, finding{field + ".port", fmt.Sprintf("%d is not a port: write 1 to 65535", *port.Port)})
		}
		if port.Protocol != nil {
			findings = append(findings, checkProtocol(field+".protocol", *port.Protocol)...)
		}
	}
	for i, endpoint := range in.Endpoints {
		findings = append(findings, checkAddresses(i, endpoint.Addresses, in.AddressType)...)
	}
	return snapshot.FromEndpointSlice(&in), findings
}

func checkAddresses(endpoint int, addresses []string, family discoveryv1.AddressType) []finding {
	field := fmt.Sprintf("endpoints[%d].addresses", endpoint)
	if len(addresses) == 0 {
		return []finding{{field, "is missing: write at least one address"}}
	}
	for i, text := range addresses {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Is4() != (family == discoveryv1.AddressTypeIPv4) || address.Zone() != "" {
			return []finding{{fmt.Sprintf("%s[%d]", field, i), fmt.Sprintf("%q is not an %s address: write one, or correct addressType", text, family)}}
		}
	}
	return nil
}

// kindCount counts the objects of kinds that are none of ours.
type kindCount map[string]int

func (c *kindCount) add(other kindCount) {
	if *c == nil {
		*c = kindCount{}
	}
	for name, n := range other {
		(*c)[name] += n
	}
}

// fault is the one notice for all of them, or nil.
func (c kindCount) fault() *snapshot.Fault {
	if len(c) == 0 {
		return nil
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(c)) {
		list = append(list, fmt.Sprintf("%s (%d)", name, c[name]))
	}
	return &snapshot.Fault{Origin: "manifests", Warning: true,
		Message: "objects of these kinds are not read: " + strings.Join(list, ", ") +
			"; headgate reads Ingress, IngressClass, Service, EndpointSlice and Secret"}
}
