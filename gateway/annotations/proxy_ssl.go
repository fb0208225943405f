package annotations

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"headgate/gateway/model"
)

const (
	maxSecretNameBytes = 253
	maxVerifyDepth     = 100
)

// withoutSecret follows ingress-nginx, where proxy-ssl-secret turns on all the others.
func withoutSecret(v *Values) string {
	if v.PeerTLS.Secret == "" {
		return "there is no proxy-ssl-secret, and as in ingress-nginx all of proxy-ssl-… counts only with it; name a Secret with ca.crt or tls.crt and tls.key"
	}
	return withoutTLS(v)
}

func withoutTLS(v *Values) string {
	if v.Proxying == nil || (v.Proxying.Protocol != model.ProtocolHTTPS && v.Proxying.Protocol != model.ProtocolGRPCS) {
		return `peers are not spoken to over TLS; write backend-protocol: "HTTPS" or "GRPCS"`
	}
	return ""
}

func proxySSLSecret() Annotation {
	return Annotation{
		Name: "proxy-ssl-secret",
		Doc: "Secret of the namespace of the Ingress with what the proxy shows to and asks of peers over TLS: a client certificate (tls.crt, " +
			"tls.key), the authorities that peers' certificates are verified against (ca.crt), or both. Without it the other " +
			"proxy-ssl-… annotations do nothing, as in ingress-nginx. While the Secret is missing or broken its last good version is " +
			"used; where there is none, the paths answer 503.",
		Values:  "namespace/name or name of a Secret, of type kubernetes.io/tls or Opaque (as kubectl create secret generic makes it); at most 500 of the latter are read",
		Default: "no client certificate, no verification",
		Example: "shop/peers",
		Risk:    Medium,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			namespace, name, found := strings.Cut(value, "/")
			if !found {
				namespace, name = "", value
			}
			if !objectName(name) || (found && !objectName(namespace)) {
				return fmt.Errorf("%s names no Secret; write namespace/name", shown(value))
			}
			into.peerTLS().SecretNamespace, into.peerTLS().Secret = namespace, name
			return nil
		},
		idle: withoutTLS,
	}
}

// objectName tells whether s may name an object (RFC 1123 subdomain).
func objectName(s string) bool {
	if s == "" || len(s) > maxSecretNameBytes {
		return false
	}
	for i := range len(s) {
		c := s[i]
		plain := (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')
		if !plain && (i == 0 || i == len(s)-1 || (c != '-' && c != '.')) {
			return false
		}
	}
	return true
}

func proxySSLVerify() Annotation {
	return Annotation{
		Name: "proxy-ssl-verify",
		Doc: "Verifies the certificate of peers against ca.crt of proxy-ssl-secret, and the name in it against proxy-ssl-name. A peer that " +
			"fails is answered for with 502.",
		Values:  onOffValues,
		Default: "off",
		Example: "on",
		Risk:    Low,
		Scope:   Paths,
		parse:   onOff(func(v *Values, on bool) { v.peerTLS().Verify = on }),
		idle:    withoutSecret,
	}
}

func proxySSLVerifyDepth() Annotation {
	return Annotation{
		Name:    "proxy-ssl-verify-depth",
		Doc:     "How many authorities may stand between the certificate of a peer and one in ca.crt, with proxy-ssl-verify.",
		Values:  numberValues(1, maxVerifyDepth),
		Default: "1",
		Example: "2",
		Risk:    Low,
		Scope:   Paths,
		parse: inNumbers(1, maxVerifyDepth, func(v *Values, n int) {
			v.peerTLS().Depth = uint8(n) //nolint:gosec // at most 100
		}),
		idle: withoutSecret,
	}
}

func proxySSLName() Annotation {
	return Annotation{
		Name:    "proxy-ssl-name",
		Doc:     "The name that the certificate of peers must hold (proxy-ssl-verify) and that is sent to them (proxy-ssl-server-name).",
		Values:  "a DNS name",
		Default: "service.namespace.svc of the Service of the path",
		Example: "pay.shop.svc",
		Risk:    High,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			name, err := parseSingleName(value)
			if err == nil {
				into.peerTLS().Name = name
			}
			return err
		},
		idle: withoutSecret,
	}
}

func proxySSLServerName() Annotation {
	return Annotation{
		Name:    "proxy-ssl-server-name",
		Doc:     "Sends proxy-ssl-name to peers as the server name of TLS (SNI).",
		Values:  onOffValues,
		Default: "off",
		Example: "on",
		Risk:    Low,
		Scope:   Paths,
		parse:   onOff(func(v *Values, on bool) { v.peerTLS().ServerName = on }),
		idle:    withoutSecret,
	}
}

func tlsVersions() []string { return []string{"TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"} }

func proxySSLProtocols() Annotation {
	return Annotation{
		Name: "proxy-ssl-protocols",
		Doc: "Versions of TLS that are spoken with peers. TLSv1 and TLSv1.1 also need ciphers that the system's OpenSSL would refuse: " +
			"proxy-ssl-ciphers with @SECLEVEL=0.",
		Values:  "a list with spaces of " + strings.Join(tlsVersions(), ", "),
		Default: "TLSv1.2 TLSv1.3",
		Example: "TLSv1.3",
		Risk:    Low,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			versions, err := parseTLSVersions(value)
			if err == nil {
				into.peerTLS().Protocols = versions
			}
			return err
		},
		idle: withoutSecret,
	}
}

// parseTLSVersions gives the versions in rising order, each once.
func parseTLSVersions(value string) ([]string, error) {
	words := strings.Fields(value)
	for _, w := range words {
		if !slices.Contains(tlsVersions(), w) {
			return nil, fmt.Errorf("%s is no version; write some of %s", shown(w), strings.Join(tlsVersions(), ", "))
		}
	}
	if len(words) == 0 {
		return nil, errors.New("the value is empty; write versions such as \"TLSv1.2 TLSv1.3\"")
	}
	return slices.DeleteFunc(tlsVersions(), func(v string) bool { return !slices.Contains(words, v) }), nil
}

func proxySSLCiphers() Annotation {
	return Annotation{
		Name:    "proxy-ssl-ciphers",
		Doc:     "Ciphers that are offered to peers up to TLS 1.2, in OpenSSL's notation.",
		Values:  "a cipher list of OpenSSL: names with \":\" between them",
		Default: "DEFAULT",
		Example: "ECDHE+AESGCM:ECDHE+CHACHA20",
		Risk:    Medium,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			list, err := model.ParseCiphers(value)
			if err == nil {
				into.peerTLS().Ciphers = list
			}
			return err
		},
		idle: withoutSecret,
	}
}
