package buildtest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"headgate/gateway/snapshot"
)

// objects is a parsed in.yaml.
type objects struct{ snapshot.Snapshot }

// read parses the documents of an in.yaml. Besides Kubernetes objects it knows the kinds
// TestCertificate (a TLS Secret, see CertificateSpec), Resolution and Fault.
func read(text []byte) (*objects, error) {
	o := &objects{}
	for i, document := range bytes.Split(text, []byte("\n---\n")) {
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		if err := o.add(document); err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
	}
	o.Snapshot = *o.snapshot(nil)
	return o, nil
}

func (o *objects) add(document []byte) error {
	var head metav1.TypeMeta
	if err := yaml.Unmarshal(document, &head); err != nil {
		return err
	}
	switch head.Kind {
	case "Ingress":
		return decode(document, func(in *networkingv1.Ingress) { o.Ingresses = append(o.Ingresses, snapshot.FromIngress(in)) })
	case "IngressClass":
		return decode(document, func(in *networkingv1.IngressClass) {
			o.IngressClasses = append(o.IngressClasses, snapshot.FromIngressClass(in))
		})
	case "Service":
		return decode(document, func(in *corev1.Service) { o.Services = append(o.Services, snapshot.FromService(in)) })
	case "EndpointSlice":
		return decode(document, func(in *discoveryv1.EndpointSlice) {
			o.EndpointSlices = append(o.EndpointSlices, snapshot.FromEndpointSlice(in))
		})
	case "Secret":
		return decode(document, func(in *corev1.Secret) { o.Secrets = append(o.Secrets, snapshot.FromSecret(in)) })
	case "TestCertificate":
		return decode(document, func(in *CertificateSpec) { o.Secrets = append(o.Secrets, Certificate(*in)) })
	case "Resolution":
		return decode(document, func(in *struct {
			metav1.TypeMeta     `json:",inline"`
			snapshot.Resolution `json:",inline"`
		}) {
			o.Resolutions = append(o.Resolutions, &in.Resolution)
		})
	case "Fault":
		return decode(document, func(in *struct {
			metav1.TypeMeta `json:",inline"`
			Origin, Message string
			Warning         bool
		}) {
			o.Faults = append(o.Faults, snapshot.Fault{Origin: in.Origin, Message: in.Message, Warning: in.Warning})
		})
	}
	return fmt.Errorf("unknown kind %q", head.Kind)
}

func decode[T any](document []byte, add func(*T)) error {
	object := new(T)
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return err
	}
	add(object)
	return nil
}

// snapshot makes the lists of a Snapshot: sorted, or in a random order when shuffle is set.
func (o *objects) snapshot(shuffle *rand.Rand) *snapshot.Snapshot {
	return &snapshot.Snapshot{
		Ingresses:      arranged(o.Ingresses, shuffle, func(v *snapshot.Ingress) string { return v.String() }),
		IngressClasses: arranged(o.IngressClasses, shuffle, func(v *snapshot.IngressClass) string { return v.String() }),
		Services:       arranged(o.Services, shuffle, func(v *snapshot.Service) string { return v.String() }),
		EndpointSlices: arranged(o.shuffledSlices(shuffle), shuffle, func(v *snapshot.EndpointSlice) string { return v.String() }),
		Secrets:        arranged(o.Secrets, shuffle, func(v *snapshot.Secret) string { return v.String() }),
		Resolutions:    arranged(o.Resolutions, shuffle, func(v *snapshot.Resolution) string { return v.Name }),
		Faults:         o.Faults,
	}
}

// shuffledSlices also changes the order of the endpoints.
func (o *objects) shuffledSlices(shuffle *rand.Rand) []*snapshot.EndpointSlice {
	if shuffle == nil {
		return o.EndpointSlices
	}
	var out []*snapshot.EndpointSlice
	for _, slice := range o.EndpointSlices {
		c := *slice
		c.Endpoints = slices.Clone(slice.Endpoints)
		shuffle.Shuffle(len(c.Endpoints), func(i, j int) { c.Endpoints[i], c.Endpoints[j] = c.Endpoints[j], c.Endpoints[i] })
		out = append(out, &c)
	}
	return out
}

func arranged[T any](in []*T, shuffle *rand.Rand, key func(*T) string) []*T {
	out := slices.Clone(in)
	if shuffle != nil {
		shuffle.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		return out
	}
	// "/" sorts below every byte of a name but "-" and "."; a NUL keeps namespaces together.
	order := func(v *T) string { return strings.Replace(key(v), "/", "\x00", 1) }
	slices.SortFunc(out, func(a, b *T) int { return strings.Compare(order(a), order(b)) })
	return out
}
