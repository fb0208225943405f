package build

import (
	"fmt"

	"headgate/gateway/annotations"
	"headgate/gateway/model"
)

// upstreamVhost is the name of the annotation that names the Host for peers.
const upstreamVhost = "upstream-vhost"

// namePeerHost sets the Host that the peers of a route are asked for, or says why that cannot be.
func (h *hostBuild) namePeerHost(c *claim, r *model.Route) string {
	if len(c.in.values.PeerHost) == 0 {
		return ""
	}
	host, err := c.in.values.PeerHost.Of(func(f annotations.PeerHostField) string {
		switch f {
		case annotations.RouteNamespace:
			return r.Source.Namespace
		case annotations.RouteIngress:
			return r.Source.Name
		case annotations.RouteService:
			return r.Source.Service
		case annotations.RoutePort:
		}
		return r.Source.Port
	})
	if err != nil {
		name := h.reader.Prefix() + upstreamVhost
		h.problems = append(h.problems, c.in.problem(annotationField(name), InvalidAnnotation, fmt.Sprintf(
			"annotation %s: for %s it gives what is %v; until then the path answers 503", name, c.path.field(), err)))
		return "the Host for its peers is none"
	}
	r.PeerHost, r.Profile.PeerHost = host, true
	return ""
}
