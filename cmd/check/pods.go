package check

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The sample: slices that are read at most, and pods that are tried, one a node as long as there are nodes.
const (
	sampleSlices = 500
	samplePods   = 8
)

// pod is an endpoint that should accept connections.
type pod struct {
	at      netip.AddrPort
	node    string
	service string // namespace/name
}

// pods tries whether this host reaches pods: TCP connections to some ready endpoints, on as many nodes as possible.
func (r *run) pods(ctx context.Context, client kubernetes.Interface) {
	r.area = "pods"
	namespaces := r.Config.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	var all []pod
	for _, n := range namespaces {
		asking, cancel := context.WithTimeout(ctx, apiTimeout)
		list, err := client.DiscoveryV1().EndpointSlices(n).List(asking, metav1.ListOptions{Limit: sampleSlices})
		cancel()
		if err != nil {
			r.warn(r.grant(), "no pods are tried: their addresses cannot be read: %v", err)
			return
		}
		for i := range list.Items {
			all = append(all, ready(&list.Items[i])...)
		}
	}
	r.tryPods(ctx, sample(all))
}

// ready are the endpoints of a slice that a connection can be tried to.
func ready(s *discoveryv1.EndpointSlice) []pod {
	port := slices.IndexFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
		return p.Port != nil && *p.Port > 0 && *p.Port < 1<<16 && (p.Protocol == nil || *p.Protocol == "TCP")
	})
	if port < 0 {
		return nil
	}
	number := uint16(*s.Ports[port].Port) //nolint:gosec // see above
	var list []pod
	for _, e := range s.Endpoints {
		if e.Conditions.Ready != nil && !*e.Conditions.Ready || len(e.Addresses) == 0 {
			continue
		}
		a, err := netip.ParseAddr(e.Addresses[0])
		if err != nil || !a.IsGlobalUnicast() {
			continue
		}
		p := pod{at: netip.AddrPortFrom(a.Unmap(), number), service: s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}
		if e.NodeName != nil {
			p.node = *e.NodeName
		}
		list = append(list, p)
	}
	return list
}

// sample chooses few: first one of each node, then others.
func sample(all []pod) []pod {
	var first, rest []pod
	nodes := map[string]bool{}
	for _, p := range all {
		if nodes[p.node] {
			rest = append(rest, p)
			continue
		}
		nodes[p.node] = true
		first = append(first, p)
	}
	chosen := append(first, rest...)
	return chosen[:min(len(chosen), samplePods)]
}

func (r *run) tryPods(ctx context.Context, pods []pod) {
	if len(pods) == 0 {
		r.ok("there is no ready pod to try")
		return
	}
	errs := make([]error, len(pods))
	var tried sync.WaitGroup
	for i, p := range pods {
		tried.Go(func() { errs[i] = reach(ctx, p.at) })
	}
	tried.Wait()
	var reached, lost []string
	for i, p := range pods {
		if errs[i] == nil {
			reached = append(reached, p.at.String())
			continue
		}
		lost = append(lost, fmt.Sprintf("%s of %s on node %s (%v)", p.at, p.service, p.node, errs[i]))
	}
	const fix = "route the pods' network to the nodes (ip route add PODCIDR via NODE), and let the firewall of the nodes pass connections of this host"
	switch {
	case len(reached) == 0:
		r.fail(fix, "no pod is reached from this host: %s", strings.Join(lost, "; "))
	case len(lost) > 0:
		r.warn(fix+"; or see whether the pods are well", "%d of %d pods are not reached: %s", len(lost), len(pods), strings.Join(lost, "; "))
	default:
		r.ok("all of %d pods on as many nodes as there are were reached: %s", len(pods), strings.Join(reached, ", "))
	}
}
