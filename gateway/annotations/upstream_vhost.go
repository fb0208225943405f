package annotations

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"headgate/gateway/model"
)

// PeerHost is the parsed upstream-vhost. Empty means that it is not set.
type PeerHost []PeerHostPart

// PeerHostPart is a literal, or what stands in its place for each route.
type PeerHostPart struct {
	Literal string
	Field   PeerHostField // "": Literal
}

// PeerHostField is a variable of ingress-nginx that is the same for every request of a route.
type PeerHostField string

// The fields of a route that upstream-vhost may name.
const (
	RouteNamespace PeerHostField = "namespace"
	RouteIngress   PeerHostField = "ingress_name"
	RouteService   PeerHostField = "service_name"
	RoutePort      PeerHostField = "service_port"
)

func peerHostFields() []PeerHostField {
	return []PeerHostField{RouteIngress, RouteNamespace, RouteService, RoutePort}
}

func upstreamVhost() Annotation {
	var names []string
	for _, f := range peerHostFields() {
		names = append(names, "$"+string(f))
	}
	return Annotation{
		Name: "upstream-vhost",
		Doc: "The Host that peers are asked for, in place of that of the request. X-Forwarded-Host stays what the client asked for. " +
			"$namespace and $ingress_name are those of the Ingress, $service_name and $service_port those of the Service of the path.",
		Values: "a host, with or without a port, of letters, digits, \".\", \"-\" and \"_\", in which " + strings.Join(names, ", ") +
			" may stand; at most 253 bytes",
		Default: "the Host of the request",
		Example: "$service_name.$namespace.svc",
		Risk:    Low,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			host, err := parsePeerHost(value)
			if err == nil {
				into.PeerHost = host
			}
			return err
		},
	}
}

// parsePeerHost splits a value and looks at what would come of it.
func parsePeerHost(value string) (PeerHost, error) {
	if value == "" {
		return nil, errors.New("the value is empty; write a host or remove the annotation")
	}
	var host PeerHost
	for rest := value; rest != ""; {
		literal, after, found := strings.Cut(rest, "$")
		if literal != "" {
			host = append(host, PeerHostPart{Literal: literal})
		}
		if !found {
			break
		}
		field, left, ok := cutPeerHostField(after)
		if !ok {
			return nil, fmt.Errorf("%s is no variable that may stand here; write a name, or one of $%s, $%s, $%s and $%s",
				shown("$"+after), RouteNamespace, RouteIngress, RouteService, RoutePort)
		}
		host = append(host, PeerHostPart{Field: field})
		rest = left
	}
	_, err := host.Of(func(f PeerHostField) string {
		if f == RoutePort {
			return "80"
		}
		return "name"
	})
	return host, err
}

// cutPeerHostField reads the name of a variable at the start of s: name or {name}.
func cutPeerHostField(s string) (field PeerHostField, rest string, ok bool) {
	name := s
	if braced, ok := strings.CutPrefix(s, "{"); ok {
		if name, rest, ok = strings.Cut(braced, "}"); !ok {
			return "", "", false
		}
	} else if i := strings.IndexFunc(s, notOfName); i >= 0 {
		name, rest = s[:i], s[i:]
	}
	field = PeerHostField(name)
	return field, rest, slices.Contains(peerHostFields(), field)
}

// Of gives the host of a route, whose fields value tells. The error says why it can be none.
func (h PeerHost) Of(value func(PeerHostField) string) (string, error) {
	var b strings.Builder
	for _, part := range h {
		if part.Field == "" {
			b.WriteString(part.Literal)
		} else {
			b.WriteString(value(part.Field))
		}
	}
	return model.ParsePeerHost(b.String())
}
