package manifests

import (
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"headgate/gateway/snapshot"
)

// readIngressV1beta1 reads networking.k8s.io/v1beta1 and extensions/v1beta1, which have the same fields. The last
// API server to convert them was 1.21; the rules here are its rules.
func readIngressV1beta1(raw []byte) (any, []finding) {
	var in networkingv1beta1.Ingress
	if findings := strict(raw, &in); len(findings) > 0 {
		return nil, findings
	}
	out := &networkingv1.Ingress{ObjectMeta: in.ObjectMeta}
	out.Spec.IngressClassName = in.Spec.IngressClassName
	if in.Spec.Backend != nil {
		backend := backendFromV1beta1(in.Spec.Backend)
		out.Spec.DefaultBackend = &backend
	}
	for _, t := range in.Spec.TLS {
		out.Spec.TLS = append(out.Spec.TLS, networkingv1.IngressTLS{Hosts: t.Hosts, SecretName: t.SecretName})
	}
	for _, rule := range in.Spec.Rules {
		converted := networkingv1.IngressRule{Host: rule.Host}
		if rule.HTTP != nil {
			converted.HTTP = &networkingv1.HTTPIngressRuleValue{}
			for i := range rule.HTTP.Paths {
				converted.HTTP.Paths = append(converted.HTTP.Paths, pathFromV1beta1(&rule.HTTP.Paths[i]))
			}
		}
		out.Spec.Rules = append(out.Spec.Rules, converted)
	}
	return snapshot.FromIngress(out), inV1beta1(checkIngress(out))
}

// pathFromV1beta1 fills in the path type, which was optional.
func pathFromV1beta1(in *networkingv1beta1.HTTPIngressPath) networkingv1.HTTPIngressPath {
	pathType := networkingv1.PathTypeImplementationSpecific
	if in.PathType != nil {
		pathType = networkingv1.PathType(*in.PathType)
	}
	return networkingv1.HTTPIngressPath{Path: in.Path, PathType: &pathType, Backend: backendFromV1beta1(&in.Backend)}
}

func backendFromV1beta1(in *networkingv1beta1.IngressBackend) networkingv1.IngressBackend {
	if in.ServiceName == "" && in.ServicePort == (intstr.IntOrString{}) {
		return networkingv1.IngressBackend{Resource: in.Resource}
	}
	service := &networkingv1.IngressServiceBackend{Name: in.ServiceName}
	if in.ServicePort.Type == intstr.String {
		service.Port.Name = in.ServicePort.StrVal
	} else {
		service.Port.Number = in.ServicePort.IntVal
	}
	return networkingv1.IngressBackend{Service: service, Resource: in.Resource}
}

// inV1beta1 gives findings the names that fields had in v1beta1.
func inV1beta1(findings []finding) []finding {
	for i := range findings {
		f := &findings[i]
		if head, ok := strings.CutSuffix(f.field, ".service.name"); ok {
			f.field = head + ".serviceName"
		}
		if head, _, ok := strings.Cut(f.field, ".service.port"); ok {
			f.field, f.text = head+".servicePort", "write the number (1 to 65535) or the name of a port of the Service"
		}
		if rest, ok := strings.CutPrefix(f.field, "spec.defaultBackend"); ok {
			f.field = "spec.backend" + rest
		}
		if f.text == noService {
			f.text = "names no service: write serviceName and servicePort"
		}
	}
	return findings
}

func readIngressClassV1beta1(raw []byte) (any, []finding) {
	var in networkingv1beta1.IngressClass
	if findings := strict(raw, &in); len(findings) > 0 {
		return nil, findings
	}
	out := &networkingv1.IngressClass{ObjectMeta: in.ObjectMeta}
	out.Spec.Controller = in.Spec.Controller
	return snapshot.FromIngressClass(out), checkController(in.Spec.Controller)
}
