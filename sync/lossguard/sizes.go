package lossguard

import (
	"fmt"
	"slices"
	"strings"

	"headgate/gateway/snapshot"
)

// Sizes are what a snapshot serves, as far as its loss would be felt.
type Sizes struct {
	// Routes are paths of Ingresses whose class exists, default backends included.
	Routes int `json:"routes"`
	// Endpoints are addresses that are ready, or that still serve while they end.
	Endpoints int `json:"endpoints"`
	Services  int `json:"services"`
	Secrets   int `json:"secrets"`
}

// String names what there is, for people.
func (s Sizes) String() string {
	var parts []string
	for _, p := range []struct {
		n    int
		name string
	}{{s.Routes, "routes"}, {s.Endpoints, "endpoints"}, {s.Services, "services"}, {s.Secrets, "secrets"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.name))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func (s Sizes) each(o Sizes, visit func(a, b int) bool) bool {
	return visit(s.Routes, o.Routes) || visit(s.Endpoints, o.Endpoints) || visit(s.Services, o.Services) || visit(s.Secrets, o.Secrets)
}

// most gives the larger one of each.
func (s Sizes) most(o Sizes) Sizes {
	return Sizes{max(s.Routes, o.Routes), max(s.Endpoints, o.Endpoints), max(s.Services, o.Services), max(s.Secrets, o.Secrets)}
}

// minus gives how much more s has of each than o.
func (s Sizes) minus(o Sizes) Sizes {
	return Sizes{max(0, s.Routes-o.Routes), max(0, s.Endpoints-o.Endpoints), max(0, s.Services-o.Services), max(0, s.Secrets-o.Secrets)}
}

// emptied tells whether nothing is left of something that traffic needs.
func (s Sizes) emptied(now Sizes) bool {
	return (s.Routes > 0 && now.Routes == 0) || (s.Endpoints > 0 && now.Endpoints == 0)
}

// measure counts a snapshot; what did not change since last is not counted again.
func (c *counter) measure(s *snapshot.Snapshot) Sizes {
	if !slices.Equal(c.last.IngressClasses, s.IngressClasses) {
		c.classes = map[string]struct{}{}
		for _, class := range s.IngressClasses {
			c.classes[class.Name] = struct{}{}
		}
		c.sizes.Routes, c.last.Ingresses = 0, nil
	}
	eachChange(c.last.Ingresses, s.Ingresses, ingressKey, func(_ snapshot.Key, old, next *snapshot.Ingress) {
		c.sizes.Routes += c.routes(next) - c.routes(old)
	})
	eachChange(c.last.EndpointSlices, s.EndpointSlices, sliceKey, func(_ snapshot.Key, old, next *snapshot.EndpointSlice) {
		c.sizes.Endpoints += endpoints(next) - endpoints(old)
	})
	c.sizes.Services, c.sizes.Secrets = len(s.Services), len(s.Secrets)
	c.last = *s
	return c.sizes
}

// counter is the memory of measure.
type counter struct {
	last    snapshot.Snapshot
	classes map[string]struct{}
	sizes   Sizes
}

func (c *counter) routes(in *snapshot.Ingress) int {
	if in == nil {
		return 0
	}
	if name := in.Spec.IngressClassName; name != nil {
		if _, known := c.classes[*name]; !known {
			return 0
		}
	}
	return paths(in)
}

func paths(in *snapshot.Ingress) int {
	n := 0
	if in.Spec.DefaultBackend != nil {
		n++
	}
	for i := range in.Spec.Rules {
		if http := in.Spec.Rules[i].HTTP; http != nil {
			n += len(http.Paths)
		}
	}
	return n
}

func endpoints(slice *snapshot.EndpointSlice) int {
	if slice == nil {
		return 0
	}
	n := 0
	for i := range slice.Endpoints {
		if e := &slice.Endpoints[i]; e.Ready || (e.Serving && e.Terminating) {
			n += len(e.Addresses)
		}
	}
	return n
}

func ingressKey(o *snapshot.Ingress) snapshot.Key     { return o.Key }
func classKey(o *snapshot.IngressClass) snapshot.Key  { return o.Key }
func serviceKey(o *snapshot.Service) snapshot.Key     { return o.Key }
func sliceKey(o *snapshot.EndpointSlice) snapshot.Key { return o.Key }
func secretKey(o *snapshot.Secret) snapshot.Key       { return o.Key }

// eachChange calls back for every key whose object is not the same pointer in both lists, which are sorted by key.
func eachChange[T any](old, next []*T, key func(*T) snapshot.Key, change func(key snapshot.Key, old, next *T)) {
	if len(old) == len(next) && (len(old) == 0 || &old[0] == &next[0]) {
		return
	}
	for len(old) > 0 || len(next) > 0 {
		order := 0
		switch {
		case len(old) == 0:
			order = 1
		case len(next) == 0:
			order = -1
		case old[0] != next[0]:
			order = key(old[0]).Compare(key(next[0]))
		}
		switch {
		case order < 0:
			change(key(old[0]), old[0], nil)
			old = old[1:]
		case order > 0:
			change(key(next[0]), nil, next[0])
			next = next[1:]
		default:
			if old[0] != next[0] {
				change(key(next[0]), old[0], next[0])
			}
			old, next = old[1:], next[1:]
		}
	}
}
