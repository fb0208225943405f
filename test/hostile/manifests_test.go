package hostile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"
)

// path is one path of an Ingress.
type path struct {
	kind, value, service string
}

func prefix(value, service string) path { return path{"Prefix", value, service} }
func exact(value, service string) path  { return path{"Exact", value, service} }
func free(value, service string) path   { return path{"ImplementationSpecific", value, service} }

// more is a piece of an Ingress besides its rule: annotations, or lines of its spec.
type more struct {
	annotations [][2]string
	spec        string
}

func annotated(pairs ...string) more {
	var m more
	for i := 0; i+1 < len(pairs); i += 2 {
		m.annotations = append(m.annotations, [2]string{pairs[i], pairs[i+1]})
	}
	return m
}

func withTLS(secret string, hosts ...string) more {
	var quoted []string
	for _, h := range hosts {
		quoted = append(quoted, quote(h))
	}
	return more{spec: fmt.Sprintf("  tls: [{hosts: [%s], secretName: %s}]\n", strings.Join(quoted, ", "), quote(secret))}
}

// ingress is an Ingress without a class with one rule; parts are paths and more. host "" leaves it out.
func ingress(name, host string, parts ...any) string {
	var b strings.Builder
	fmt.Fprintf(&b, "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: %s\n", quote(name))
	var paths strings.Builder
	spec := ""
	annotations := ""
	for _, part := range parts {
		switch part := part.(type) {
		case path:
			fmt.Fprintf(&paths, "      - {path: %s, pathType: %s, backend: {service: {name: %s, port: {number: 80}}}}\n",
				quote(part.value), part.kind, quote(part.service))
		case more:
			for _, a := range part.annotations {
				key := a[0]
				if !strings.Contains(key, "/") {
					key = "nginx.ingress.kubernetes.io/" + key
				}
				annotations += fmt.Sprintf("    %s: %s\n", quote(key), quote(a[1]))
			}
			spec += part.spec
		}
	}
	if annotations != "" {
		b.WriteString("  annotations:\n" + annotations)
	}
	b.WriteString("spec:\n" + spec)
	if !strings.Contains(spec, "ingressClassName") {
		b.WriteString("  ingressClassName: edge\n")
	}
	if host != "" {
		fmt.Fprintf(&b, "  rules:\n  - host: %s\n    http:\n      paths:\n%s", quote(host), paths.String())
	} else {
		fmt.Fprintf(&b, "  rules:\n  - http:\n      paths:\n%s", paths.String())
	}
	return b.String()
}

const class = `---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: edge}
spec: {controller: headgate.io/ingress}
`

// quote writes any text as a double-quoted scalar of YAML; bytes that are no UTF-8 cannot stand in YAML.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r > 0x7e:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// service is a Service with one EndpointSlice at the backend of that name.
func (g *gateway) service(name string) string {
	return service(name, g.backend(name).address)
}

func service(name string, addresses ...string) string { return serviceWith(name, nil, addresses...) }

// serviceWith is a Service with annotations, each "name: value", under our own prefix.
func serviceWith(name string, annotations []string, addresses ...string) string {
	var endpoints []string
	port := "80"
	for _, a := range addresses {
		host, p, _ := net.SplitHostPort(a)
		port = p
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [%q]}", host))
	}
	var ours []string
	for _, a := range annotations {
		key, value, _ := strings.Cut(a, ": ")
		ours = append(ours, quote("headgate.io/"+key)+": "+quote(value))
	}
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: %[1]s, annotations: {%[4]s}}
spec: {clusterIP: 10.96.0.10, ports: [{name: web, port: 80, targetPort: http}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: web, port: %[2]s, protocol: TCP}]
endpoints: [%[3]s]
`, name, port, strings.Join(endpoints, ", "), strings.Join(ours, ", "))
}

// tlsPair is a fresh self-signed certificate and its key, both PEM.
func tlsPair(t *testing.T, names ...string) (chain, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// tlsSecret is a Secret of type kubernetes.io/tls.
func tlsSecret(t *testing.T, name string, names ...string) string {
	t.Helper()
	chain, key := tlsPair(t, names...)
	return secret(name, chain, key)
}

func secret(name string, chain, key []byte) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ntype: kubernetes.io/tls\ndata: {tls.crt: %s, tls.key: %s}\n",
		quote(name), base64.StdEncoding.EncodeToString(chain), base64.StdEncoding.EncodeToString(key))
}
