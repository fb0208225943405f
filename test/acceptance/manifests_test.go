package acceptance

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// echoed is what a backend was asked.
type echoed struct {
	Name   string      `json:"name"`
	Method string      `json:"method"`
	URI    string      `json:"uri"`
	Host   string      `json:"host"`
	Header http.Header `json:"header"`
}

// echo is a backend that tells who it is and what it was asked; it also speaks a WebSocket-like upgrade,
// after which it sends back each line.
type echo struct {
	name    string
	address string
}

func startEcho(t *testing.T, name string) *echo {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{name: name, address: listener.Addr().String()}
	server := &http.Server{Handler: e, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return e
}

func (e *echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "" {
		e.tunnel(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Strict-Transport-Security", "max-age=1")
	_ = json.NewEncoder(w).Encode(echoed{Name: e.name, Method: r.Method, URI: r.RequestURI, Host: r.Host, Header: r.Header})
}

func (e *echo) tunnel(w http.ResponseWriter, r *http.Request) {
	conn, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\nConnection: Upgrade\r\n\r\n")
	lines := bufio.NewScanner(rw)
	for lines.Scan() {
		if _, err := fmt.Fprintf(conn, "%s:%s\n", e.name, lines.Text()); err != nil {
			return
		}
	}
}

// expand replaces "echo NAME" placeholders: @address(NAME) and @port(NAME), starting backends as they are named.
func (g *gateway) expand(manifests string) string {
	return regexp.MustCompile(`@(address|port)\(([A-Za-z0-9-]+)\)`).ReplaceAllStringFunc(manifests, func(m string) string {
		kind, name, _ := strings.Cut(strings.TrimSuffix(m[1:], ")"), "(")
		host, port, _ := net.SplitHostPort(g.echo(name).address)
		if kind == "address" {
			return host
		}
		return port
	})
}

func (g *gateway) echo(name string) *echo {
	if g.echoes[name] == nil {
		g.echoes[name] = startEcho(g.owner, name)
	}
	return g.echoes[name]
}

// service is a Service NAME:80 with one EndpointSlice at the echo of that name.
func (g *gateway) service(name string) string {
	return g.expand(fmt.Sprintf(`
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {clusterIP: 10.96.0.10, ports: [{name: web, port: 80, targetPort: http}]}
%[2]s`, name, slice(name+"-1", name, endpoint(name, ""))))
}

// slice is an EndpointSlice of a Service; every endpoint brings its own ports in this suite's one-backend slices.
func slice(name, service, endpoint string) string {
	return fmt.Sprintf(`
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
%s`, name, service, endpoint)
}

// endpoint is the rest of a slice with one endpoint at the echo of that name; conditions is a YAML flow mapping or "".
func endpoint(backend, conditions string) string {
	if conditions == "" {
		conditions = "{}"
	}
	return fmt.Sprintf("ports: [{name: web, port: @port(%[1]s), protocol: TCP}]\nendpoints: [{addresses: [\"@address(%[1]s)\"], conditions: %[2]s}]\n", backend, conditions)
}

// ingress is an Ingress with one rule; host "" leaves it out.
func ingress(name, host, path, pathType, service string, more ...string) string {
	rule := "http"
	if host != "" {
		rule = "host: " + fmt.Sprintf("%q", host) + "\n    http"
	}
	metadata, spec := "", ""
	for _, m := range more {
		if strings.HasPrefix(m, "spec:") {
			spec += "  " + strings.TrimPrefix(m, "spec:") + "\n"
			continue
		}
		metadata += "  " + m + "\n"
	}
	if !strings.Contains(spec, "ingressClassName") && !strings.Contains(metadata, "ingress.class") {
		spec += "  ingressClassName: edge\n"
	}
	return fmt.Sprintf(`---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: %s
%sspec:
%s  rules:
  - %s:
      paths: [{path: %q, pathType: %s, backend: {service: {name: %s, port: {number: 80}}}}]
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: edge}
spec: {controller: headgate.io/ingress}
`, name, metadata, spec, rule, path, pathType, service)
}

// join puts manifests together; the class that each ingress() brings along is kept once.
func join(manifests ...string) string {
	seen := map[string]bool{}
	var all []string
	for _, m := range manifests {
		for doc := range strings.SplitSeq("\n"+m, "\n---\n") {
			if doc = strings.TrimSpace(doc); doc != "" && !seen[doc] {
				seen[doc] = true
				all = append(all, doc)
			}
		}
	}
	return strings.Join(all, "\n---\n") + "\n"
}

func annotations(pairs ...string) string {
	var b strings.Builder
	b.WriteString("annotations: {")
	for i := 0; i+1 < len(pairs); i += 2 {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "nginx.ingress.kubernetes.io/%s: %q", pairs[i], pairs[i+1])
	}
	return b.String() + "}"
}

func created(at string) string { return "creationTimestamp: " + at }

func tlsSection(secret string, hosts ...string) string {
	if secret != "" {
		secret = ", secretName: " + secret
	}
	return "spec:tls: [{hosts: [\"" + strings.Join(hosts, "\", \"") + "\"]" + secret + "}]"
}

// tlsSecret is a Secret of type kubernetes.io/tls with a fresh self-signed certificate.
func tlsSecret(t *testing.T, name, commonName string, hosts ...string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: commonName}, DNSNames: hosts,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, b []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return fmt.Sprintf(`
---
apiVersion: v1
kind: Secret
metadata: {name: %s}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}
`, name, encode("CERTIFICATE", der), encode("PRIVATE KEY", pkcs8))
}
