package annotations

import (
	"errors"
	"strings"

	"headgate/gateway/model"
)

// protocolOf gives the protocol of a value of backend-protocol, or "".
func protocolOf(value string) model.Protocol {
	switch value {
	case "HTTP":
		return model.ProtocolHTTP
	case "HTTPS":
		return model.ProtocolHTTPS
	case "GRPC":
		return model.ProtocolGRPC
	case "GRPCS":
		return model.ProtocolGRPCS
	case "FCGI":
		return model.ProtocolFastCGI
	}
	return ""
}

func backendProtocol() Annotation {
	words := []string{"HTTP", "HTTPS", "GRPC", "GRPCS", "FCGI"}
	parse := inWordsOfAnyCase(words, func(v *Values, word string) { v.proxying().Protocol = protocolOf(word) })
	return Annotation{
		Name: "backend-protocol",
		Doc: "What peers speak. GRPC is HTTP/2 in the clear, HTTPS and GRPCS are TLS (see proxy-ssl-secret), FCGI is FastCGI. " +
			"AUTO_HTTP of ingress-nginx, the scheme of the request, is not served.",
		Values:  wordValues(words),
		Default: "HTTP",
		Example: "HTTPS",
		Risk:    Low,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			if strings.EqualFold(value, "AUTO_HTTP") {
				return errors.New(`"AUTO_HTTP" is not served: one port of a pod speaks either TLS or not; write "HTTP" or "HTTPS"`)
			}
			return parse(value, into)
		},
	}
}
