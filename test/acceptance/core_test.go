package acceptance

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// core are the cases that every gateway of this suite must pass with its usual configuration, take-over from
// ingress-nginx on. They run one after the other against one gateway, each replacing the configuration of the
// one before: what an earlier case left behind would show.
func core() map[string]func(*testing.T, *gateway) {
	return map[string]func(*testing.T, *gateway){
		"P01 a prefix matches whole path elements":                 prefixElements,
		"P02 exact and prefix of one path stand side by side":      exactBesidePrefix,
		"P08 the longest prefix wins before any rewrite":           longestPrefix,
		"P11 of two equal rules the older serves":                  olderWins,
		"P12 of two rules of one age the later name serves":        tieByName,
		"P13 a wildcard host stands for one label":                 wildcardHost,
		"P14 an unknown host gets 404 and the default certificate": unknownHost,
		"P15 a rule without a host serves every unclaimed host":    noHost,
		"P16 a default backend serves the hosts of its Ingress":    defaultBackend,
		"W07 W09 W10 W12 redirects to https":                       redirects,
		"W13 HSTS on https":                                        hsts,
		"S09 no endpoints or no service is 503":                    noEndpoints,
		"S10 ExternalName":                                         externalName,
		"S12 endpoints come and go without a reload":               endpointsChange,
		"S13 named and headless ports":                             namedPorts,
		"H01 X-Forwarded headers of a stranger are not believed":   forwardedUntrusted,
		"H05 request ids":                                          requestID,
		"H06 a WebSocket outlives changes":                         webSocket,
		"T01 T02 T03 certificates by SNI":                          certificates,
		"T05 TLS 1.2 and later":                                    tlsVersions,
		"I01 class selection":                                      classes,
		"I04 a bad Ingress costs itself":                           isolation,
		"W01 rewrite with capture groups":                          rewrite,
		"P03 P05 P06 regular expressions":                          regex,
		"the path table of the Kubernetes documentation":           kubernetesPathTable,
		"the host table of the Kubernetes documentation":           kubernetesHostTable,
		"several slices, dual conditions":                          sliceSemantics,
		"a Secret that breaks keeps its last good certificate":     secretBreaks,
	}
}

func TestCore(t *testing.T) {
	g := start(t, "takeOverIngressNginx: true\nhsts: {enabled: true}\n")
	for name, run := range core() {
		t.Run(name, func(t *testing.T) {
			outer := g.t
			g.t = t
			defer func() { g.t = outer }()
			run(t, g)
		})
	}
}

func prefixElements(_ *testing.T, g *gateway) {
	for _, pathType := range []string{"Prefix", "ImplementationSpecific"} {
		g.apply(join(ingress("one", "h.test", "/aaa", pathType, "echo"), g.service("echo")))
		g.wants("http://h.test/aaa", "200 echo")
		g.wants("http://h.test/aaa/", "200 echo")
		g.wants("http://h.test/aaa/cccc", "200 echo")
		g.wants("http://h.test/aaacccc", "404")
		g.wants("http://h.test/", "404")
	}
}

func exactBesidePrefix(_ *testing.T, g *gateway) {
	g.apply(join(
		ingress("a1", "h.test", "/", "Exact", "a"), ingress("b1", "h.test", "/", "Prefix", "b"),
		ingress("a2", "h.test", "/foo", "Exact", "a"), ingress("b2", "h.test", "/foo", "Prefix", "b"),
		g.service("a"), g.service("b")))
	g.wants("http://h.test/", "200 a")
	g.wants("http://h.test/bar", "200 b")
	g.wants("http://h.test/foo", "200 a")
	g.wants("http://h.test/foo/bar", "200 b")
}

func longestPrefix(_ *testing.T, g *gateway) {
	g.apply(join(
		ingress("acme", "h.test", "/.well-known/acme/challenge", "Prefix", "a"),
		ingress("rest", "h.test", "/", "Prefix", "b", annotations("rewrite-target", "/new/backend")),
		g.service("a"), g.service("b")))
	if a := g.wants("http://h.test/.well-known/acme/challenge", "200 a"); a.echoed.URI != "/.well-known/acme/challenge" {
		g.t.Errorf("the challenge was rewritten to %q", a.echoed.URI)
	}
	if a := g.wants("http://h.test/other", "200 b"); a.echoed.URI != "/new/backend" {
		g.t.Errorf("the rest was asked for %q, want /new/backend", a.echoed.URI)
	}
}

func olderWins(_ *testing.T, g *gateway) {
	older := ingress("zz-older", "h.test", "/x", "Prefix", "a", created("2020-01-01T00:00:00Z"))
	younger := ingress("aa-younger", "h.test", "/x", "Prefix", "b", created("2021-01-01T00:00:00Z"), annotations("rewrite-target", "/hijacked"))
	g.apply(join(younger, older, g.service("a"), g.service("b")))
	if a := g.wants("http://h.test/x", "200 a"); a.echoed.URI != "/x" {
		g.t.Errorf("the younger Ingress's annotation took effect: %q", a.echoed.URI)
	}
	if told := g.problemsOf("aa-younger"); len(told) != 1 || told[0].reason != "PathConflict" || !strings.Contains(told[0].message, "default/zz-older") {
		g.t.Errorf("the younger Ingress is told %+v, want the name of the older", told)
	}
	g.apply(join(younger, g.service("a"), g.service("b")))
	g.wants("http://h.test/x", "200 b")
}

func tieByName(_ *testing.T, g *gateway) {
	at := created("2020-01-01T00:00:00Z")
	g.apply(join(ingress("a", "h.test", "/", "Prefix", "a", at), ingress("b", "h.test", "/", "Prefix", "b", at), g.service("a"), g.service("b")))
	g.wants("http://h.test/", "200 b")
}

func wildcardHost(_ *testing.T, g *gateway) {
	g.apply(join(ingress("wild", "*.foo.com", "/", "Prefix", "wild"), ingress("exact", "exact.foo.com", "/", "Prefix", "exact"), g.service("wild"), g.service("exact")))
	g.wants("http://a.foo.com/", "200 wild")
	g.wants("http://exact.foo.com/", "200 exact")
	g.wants("http://a.b.foo.com/", "404")
	g.wants("http://foo.com/", "404")
	g.wants("http://A.FOO.com/", "200 wild")
}

func unknownHost(_ *testing.T, g *gateway) {
	g.apply(join(ingress("one", "h.test", "/", "Prefix", "echo"), g.service("echo")))
	if a := g.wants("http://stranger.test/", "404"); !strings.Contains(a.body, "default backend - 404") {
		g.t.Errorf("body %q", a.body)
	}
	if a := g.wants("https://stranger.test/", "404"); a.leaf != "headgate default certificate" {
		g.t.Errorf("certificate of %q", a.leaf)
	}
}

func noHost(_ *testing.T, g *gateway) {
	g.apply(join(ingress("any", "", "/", "Prefix", "any"), ingress("one", "h.test", "/only", "Prefix", "one"), g.service("any"), g.service("one")))
	g.wants("http://whatever.test/x", "200 any")
	g.wants("http://h.test/only", "200 one")
	g.wants("http://h.test/else", "404")
}

func defaultBackend(_ *testing.T, g *gateway) {
	g.apply(join(
		ingress("one", "h.test", "/api", "Prefix", "api", "spec:defaultBackend: {service: {name: x, port: {number: 80}}}"),
		g.service("api"), g.service("x")))
	g.wants("http://h.test/api", "200 api")
	g.wants("http://h.test/other", "200 x")
	g.wants("http://stranger.test/", "404")
	g.apply(join(`
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: all}
spec: {ingressClassName: edge, defaultBackend: {service: {name: x, port: {name: web}}}}
`, g.service("x")))
	g.wants("http://stranger.test/any/path", "200 x")
}

func redirects(t *testing.T, g *gateway) {
	g.apply(join(
		ingress("tls", "tls.test", "/", "Prefix", "echo", tlsSection("cert", "tls.test")),
		ingress("no-redirect", "off.test", "/", "Prefix", "echo", tlsSection("cert", "off.test"), annotations("ssl-redirect", "false")),
		ingress("force", "force.test", "/", "Prefix", "echo", annotations("force-ssl-redirect", "true")),
		ingress("plain", "plain.test", "/", "Prefix", "echo"),
		g.service("echo"), tlsSecret(t, "cert", "cert", "tls.test", "off.test")))
	location := func(url, want string) {
		if a := g.wants(url, "308"); a.header.Get("Location") != want {
			t.Errorf("GET %s: Location %q, want %q", url, a.header.Get("Location"), want)
		}
	}
	location("http://tls.test/", "https://tls.test")
	location("http://tls.test/a/b?c=d", "https://tls.test/a/b?c=d")
	location("http://tls.test/a/", "https://tls.test/a")
	location("http://tls.test:80/b", "https://tls.test/b")
	location("http://force.test/", "https://force.test")
	location("http://force.test/x", "https://force.test/x")
	g.wants("https://tls.test/", "200 echo")
	g.wants("http://off.test/", "200 echo")
	g.wants("http://plain.test/", "200 echo")
	g.wants("http://force.test/.well-known/acme-challenge/x", "200 echo")
	g.wants("http://tls.test/.well-known/acme-challenge/x", "200 echo")
	// A stranger's word on the scheme opens nothing.
	g.wants("http://tls.test/", "308", "X-Forwarded-Proto: https")
}

func hsts(t *testing.T, g *gateway) {
	g.apply(join(ingress("tls", "tls.test", "/", "Prefix", "echo", tlsSection("cert", "tls.test"), annotations("ssl-redirect", "false")),
		g.service("echo"), tlsSecret(t, "cert", "cert", "tls.test")))
	a := g.wants("https://tls.test/", "200 echo")
	if got := a.header.Values("Strict-Transport-Security"); len(got) != 1 || got[0] != "max-age=31536000; includeSubDomains" {
		t.Errorf("Strict-Transport-Security: %q", got)
	}
	a = g.wants("http://tls.test/", "200 echo")
	if got := a.header.Values("Strict-Transport-Security"); len(got) == 1 && strings.Contains(got[0], "31536000") {
		t.Errorf("HSTS over plain http: %q", got)
	}
}

func noEndpoints(_ *testing.T, g *gateway) {
	g.apply(join(ingress("empty", "empty.test", "/", "Prefix", "empty"), ingress("missing", "missing.test", "/", "Prefix", "missing"), `
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {ports: [{name: web, port: 80}]}
`))
	g.wants("http://empty.test/", "503")
	g.wants("http://missing.test/", "503")
}

func externalName(t *testing.T, g *gateway) {
	service := func(target string) string {
		return g.expand(fmt.Sprintf(`
---
apiVersion: v1
kind: Service
metadata: {name: ext}
spec: {type: ExternalName, externalName: %s, ports: [{name: web, port: @port(ext)}]}
`, target))
	}
	backend := func(port string) string {
		return strings.ReplaceAll(ingress("ext-"+port[:4], port[:4]+".test", "/", "Prefix", "ext"), "{number: 80}", g.expand("{"+port+"}"))
	}
	rules := join(backend("name: web"), backend("number: @port(ext)"), ingress("gone", "gone.test", "/", "Prefix", "gone"), `
apiVersion: v1
kind: Service
metadata: {name: gone}
spec: {type: ExternalName, externalName: nowhere.example, ports: [{port: 80}]}
`)
	g.dns.records.Store(&map[string]string{"one.example.": "127.0.0.1"})
	serves := func(host string) {
		t.Helper()
		g.await(host+" through ExternalName", func() bool {
			a, err := g.try(request{url: "http://" + host + "/"})
			return err == nil && a.status == http.StatusOK && a.echoed.Name == "ext"
		})
	}
	g.apply(join(rules, service("one.example.")))
	serves("name.test")
	serves("numb.test")
	if a := g.ask(request{url: "http://gone.test/"}); a.status != http.StatusServiceUnavailable && a.status != http.StatusBadGateway {
		t.Errorf("an unresolvable name: %d, want 502 or 503", a.status)
	}
	// The new name is honoured, and the change from a name that does not resolve to one that does.
	g.apply(join(rules, service("later.example")))
	g.dns.records.Store(&map[string]string{"later.example.": "127.0.0.1"})
	serves("name.test")
}

func endpointsChange(t *testing.T, g *gateway) {
	rules := ingress("one", "h.test", "/", "Prefix", "svc")
	service := `
apiVersion: v1
kind: Service
metadata: {name: svc}
spec: {ports: [{name: web, port: 80}]}
`
	one := slice("s1", "svc", g.expand(endpoint("pod1", "")))
	two := slice("s2", "svc", g.expand(endpoint("pod2", "")))
	before := g.reloads()
	g.apply(join(rules, service, one))
	g.wants("http://h.test/", "200 pod1")
	g.apply(join(rules, service, one, two))
	seen := map[string]int{}
	for range 20 {
		seen[g.ask(request{url: "http://h.test/"}).echoed.Name]++
	}
	if seen["pod1"] == 0 || seen["pod2"] == 0 {
		t.Errorf("two endpoints were used %v", seen)
	}
	g.apply(join(rules, service))
	g.wants("http://h.test/", "503")
	g.apply(join(rules, service, two))
	g.wants("http://h.test/", "200 pod2")
	if after := g.reloads(); after != before {
		t.Errorf("endpoint changes caused %v reloads, want none", after-before)
	}
}

// reloads sums the daemon's counter of reloads over its reasons.
func (g *gateway) reloads() float64 {
	g.t.Helper()
	byReason, ok := g.status()["reloads"].(map[string]any)
	if !ok {
		g.t.Fatalf("status holds no counter of reloads by reason: %v", g.status())
	}
	sum := 0.0
	for _, n := range byReason {
		sum += n.(float64) //nolint:forcetypeassert // a JSON number
	}
	return sum
}

func namedPorts(_ *testing.T, g *gateway) {
	byName := strings.ReplaceAll(ingress("byname", "byname.test", "/", "Prefix", "echo"), "{number: 80}", "{name: web}")
	headless := ingress("headless", "headless.test", "/", "Prefix", "headless")
	g.apply(join(byName, headless, g.service("echo"), `
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, ports: [{name: web, port: 80, targetPort: anything}]}
`, slice("headless-1", "headless", g.expand(endpoint("headless", "")))))
	g.wants("http://byname.test/", "200 echo")
	g.wants("http://headless.test/", "200 headless")
}

func forwardedUntrusted(t *testing.T, g *gateway) {
	g.apply(join(ingress("one", "h.test", "/", "Prefix", "echo"), g.service("echo")))
	a := g.wants("http://h.test/", "200 echo", "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: myhost", "X-Forwarded-Proto: myproto", "X-Forwarded-Port: 1234", "Proxy: evil")
	_, port, _ := net.SplitHostPort(g.http)
	expectHeaders(t, a, map[string]string{
		"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "h.test", "X-Forwarded-Port": port, "X-Forwarded-Proto": "http",
		"X-Forwarded-Scheme": "http", "X-Scheme": "http", "X-Real-Ip": "127.0.0.1", "X-Original-Forwarded-For": "1.2.3.4", "X-Original-Forwarded-Host": "myhost",
		"Proxy": "",
	})
	if a.echoed.Host != "h.test" {
		t.Errorf("Host %q", a.echoed.Host)
	}
}

func expectHeaders(t *testing.T, a answer, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got := strings.Join(a.echoed.Header[name], " | "); got != value {
			t.Errorf("the backend saw %s: %q, want %q", name, got, value)
		}
	}
}

func TestForwardedTrusted(t *testing.T) {
	g := start(t, "useForwardedHeaders: true\ntrustedProxies: [127.0.0.0/8]\n")
	g.apply(join(ingress("one", "h.test", "/", "Prefix", "echo"), ingress("a", "a.com", "/", "Prefix", "echo"),
		ingress("tls", "tls.test", "/", "Prefix", "echo", tlsSection("", "tls.test")), g.service("echo")))
	a := g.wants("http://h.test/", "200 echo", "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: myhost", "X-Forwarded-Proto: https", "X-Forwarded-Port: 1234")
	expectHeaders(t, a, map[string]string{
		"X-Forwarded-For": "1.2.3.4", "X-Forwarded-Host": "myhost", "X-Forwarded-Port": "1234", "X-Forwarded-Proto": "https",
		"X-Real-Ip": "1.2.3.4",
	})
	a = g.wants("http://h.test/", "200 echo", "X-Forwarded-Host: a.com, b")
	expectHeaders(t, a, map[string]string{"X-Forwarded-Host": "a.com"})
	g.wants("http://tls.test/", "308")
	g.wants("http://tls.test/", "200 echo", "X-Forwarded-Proto: https")
}

func requestID(t *testing.T, g *gateway) {
	g.apply(join(ingress("one", "h.test", "/", "Prefix", "echo"), g.service("echo")))
	first := g.wants("http://h.test/", "200 echo").echoed.Header.Get("X-Request-Id")
	second := g.wants("http://h.test/", "200 echo").echoed.Header.Get("X-Request-Id")
	if len(first) != 32 || first == second {
		t.Errorf("generated request ids %q and %q, want 32 digits, never the same", first, second)
	}
	if kept := g.wants("http://h.test/", "200 echo", "X-Request-ID: mine-1").echoed.Header.Get("X-Request-Id"); kept != "mine-1" {
		t.Errorf("the client's request id became %q", kept)
	}
}

func webSocket(t *testing.T, g *gateway) {
	rules := join(ingress("one", "h.test", "/", "Prefix", "echo"), g.service("echo"))
	g.apply(rules)
	conn, err := net.Dial("tcp", g.http)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /ws HTTP/1.1\r\nHost: h.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the upgrade was answered %d", response.StatusCode)
	}
	for i := range 5 {
		g.apply(join(rules, ingress("other", fmt.Sprintf("other-%d.test", i), "/", "Prefix", "echo")))
		if _, err := fmt.Fprintf(conn, "line %d\n", i); err != nil {
			t.Fatal(err)
		}
		if line, err := reader.ReadString('\n'); err != nil || line != fmt.Sprintf("echo:line %d\n", i) {
			t.Fatalf("after change %d: %q, %v", i, line, err)
		}
	}
}

func certificates(t *testing.T, g *gateway) {
	rules := join(
		ingress("one", "one.test", "/", "Prefix", "echo", tlsSection("one", "one.test")),
		ingress("wild", "*.foo.com", "/", "Prefix", "echo", tlsSection("wild", "*.foo.com")),
		ingress("missing", "missing.test", "/", "Prefix", "echo", tlsSection("absent", "missing.test")),
		ingress("mismatch", "mismatch.test", "/", "Prefix", "echo", tlsSection("one", "mismatch.test")),
		ingress("plain", "plain.test", "/", "Prefix", "echo"),
		g.service("echo"), tlsSecret(t, "wild", "wild", "*.foo.com"))
	before := g.reloads()
	shows := func(host, want string) {
		t.Helper()
		if a := g.wants("https://"+host+"/", "200 echo"); a.leaf != want {
			t.Errorf("https://%s shows the certificate %q, want %q", host, a.leaf, want)
		}
	}
	g.apply(join(rules, tlsSecret(t, "one", "first", "one.test")))
	shows("one.test", "first")
	shows("a.foo.com", "wild")
	for _, host := range []string{"missing.test", "mismatch.test", "plain.test"} {
		shows(host, "headgate default certificate")
	}
	g.apply(join(rules, tlsSecret(t, "one", "second", "one.test")))
	shows("one.test", "second")
	g.apply(rules)
	shows("one.test", "headgate default certificate")
	if after := g.reloads(); after != before {
		t.Errorf("certificates caused %v reloads, want none", after-before)
	}
}

func secretBreaks(t *testing.T, g *gateway) {
	rules := join(ingress("one", "one.test", "/", "Prefix", "echo", tlsSection("one", "one.test")), g.service("echo"))
	g.apply(join(rules, tlsSecret(t, "one", "good", "one.test")))
	if a := g.wants("https://one.test/", "200 echo"); a.leaf != "good" {
		t.Fatalf("certificate %q", a.leaf)
	}
	g.apply(join(rules, `
apiVersion: v1
kind: Secret
metadata: {name: one}
type: kubernetes.io/tls
data: {tls.crt: Z2FyYmFnZQ==, tls.key: Z2FyYmFnZQ==}
`))
	if a := g.wants("https://one.test/", "200 echo"); a.leaf != "good" {
		t.Errorf("a broken update of the Secret left %q, want the last good certificate", a.leaf)
	}
	g.apply(rules)
	if a := g.wants("https://one.test/", "200 echo"); a.leaf != "headgate default certificate" {
		t.Errorf("a deleted Secret left %q", a.leaf)
	}
}

func tlsVersions(t *testing.T, g *gateway) {
	g.apply(join(ingress("one", "h.test", "/", "Prefix", "echo"), g.service("echo")))
	if _, err := g.try(request{url: "https://h.test/", maxTLS: tls.VersionTLS11}); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.1: %v, want a refusal of the protocol version", err)
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		if a := g.ask(request{url: "https://h.test/", maxTLS: version}); a.status != http.StatusOK {
			t.Errorf("TLS %x: %d", version, a.status)
		}
	}
}

func classes(_ *testing.T, g *gateway) {
	class := func(controller string) string {
		return "---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: theirs}\nspec: {controller: " + controller + "}\n"
	}
	none := strings.ReplaceAll(ingress("none", "none.test", "/", "Prefix", "echo"), "  ingressClassName: edge\n", "")
	rules := join(
		ingress("byclass", "byclass.test", "/", "Prefix", "echo", "spec:ingressClassName: theirs"),
		ingress("byannotation", "byannotation.test", "/", "Prefix", "echo", "annotations: {kubernetes.io/ingress.class: nginx}"),
		ingress("other", "other.test", "/", "Prefix", "echo", "annotations: {kubernetes.io/ingress.class: traefik}"),
		none, g.service("echo"))
	g.apply(join(rules, class("k8s.io/ingress-nginx")))
	g.wants("http://byclass.test/", "200 echo")
	g.wants("http://byannotation.test/", "200 echo")
	g.wants("http://none.test/", "404")
	g.wants("http://other.test/", "404")
	g.apply(join(rules, class("example.com/other")))
	g.wants("http://byclass.test/", "404")
	g.apply(join(rules, class("headgate.io/ingress")))
	g.wants("http://byclass.test/", "200 echo")
}

func TestClassless(t *testing.T) {
	g := start(t, "watchIngressWithoutClass: true\n")
	none := strings.ReplaceAll(ingress("none", "none.test", "/", "Prefix", "echo"), "  ingressClassName: edge\n", "")
	nginx := ingress("nginx", "nginx.test", "/", "Prefix", "echo", "annotations: {kubernetes.io/ingress.class: nginx}")
	g.apply(join(none, nginx, g.service("echo")))
	g.wants("http://none.test/", "200 echo")
	g.wants("http://nginx.test/", "404")
}

func isolation(_ *testing.T, g *gateway) {
	good := join(ingress("good", "good.test", "/", "Prefix", "echo"), g.service("echo"))
	g.apply(join(good,
		ingress("badvalue", "badvalue.test", "/", "Prefix", "echo", annotations("ssl-redirect", "perhaps")),
		ingress("badregex", "badregex.test", "/a(b", "ImplementationSpecific", "echo", annotations("use-regex", "true"))))
	g.wants("http://good.test/", "200 echo")
	g.wants("http://badvalue.test/", "503")
	g.wants("http://badregex.test/a(b", "503")
	for name, want := range map[string]problem{
		"badvalue": {field: "metadata.annotations[nginx.ingress.kubernetes.io/ssl-redirect]", reason: "InvalidAnnotation", message: `write "true" or "false"`},
		"badregex": {field: "spec.rules[0].http.paths[0].path", reason: "InvalidRegex", message: `/a(b`},
	} {
		if told := g.problemsOf(name); len(told) != 1 || told[0].field != want.field || told[0].reason != want.reason || !strings.Contains(told[0].message, want.message) {
			g.t.Errorf("%s is told %+v, want %+v", name, told, want)
		}
	}
	g.apply(join(good, ingress("was-good", "was.test", "/x", "ImplementationSpecific", "echo", annotations("use-regex", "true"))))
	g.wants("http://was.test/x", "200 echo")
	g.apply(join(good, ingress("was-good", "was.test", "/x(", "ImplementationSpecific", "echo", annotations("use-regex", "true"))))
	g.wants("http://was.test/x", "200 echo")
	g.wants("http://good.test/", "200 echo")
}

func rewrite(_ *testing.T, g *gateway) {
	g.apply(join(ingress("one", "h.test", "/something(/|$)(.*)", "ImplementationSpecific", "echo",
		annotations("use-regex", "true", "rewrite-target", "/$2")), g.service("echo")))
	for asked, want := range map[string]string{
		"/something/new?x=1": "/new?x=1", "/something": "/", "/something/": "/", "/SOMETHING/a%20b": "/a%20b",
	} {
		if a := g.wants("http://h.test"+asked, "200 echo"); a.echoed.URI != want {
			g.t.Errorf("%s was rewritten to %q, want %q", asked, a.echoed.URI, want)
		}
	}
	g.wants("http://h.test/somethingelse", "404")
}

func regex(_ *testing.T, g *gateway) {
	g.apply(join(
		ingress("ids", "ids.test", "/id/[0-9]+", "ImplementationSpecific", "echo", annotations("use-regex", "true")),
		ingress("foo", "foo.test", "/Foo", "ImplementationSpecific", "echo", annotations("use-regex", "true")),
		ingress("upper", "both.test", "/Upper", "Exact", "a"),
		ingress("lower", "both.test", "/b.*", "ImplementationSpecific", "b", annotations("use-regex", "true")),
		g.service("echo"), g.service("a"), g.service("b")))
	g.wants("http://ids.test/id/1", "200 echo")
	g.wants("http://ids.test/id/aaa", "404")
	g.wants("http://ids.test/id/123a", "200 echo")
	g.wants("http://foo.test/foo/x", "200 echo")
	g.wants("http://foo.test/FOO", "200 echo")
	g.wants("http://both.test/upper/anything", "200 a")
	g.wants("http://both.test/bcd", "200 b")
}

// kubernetesPathTable is the table of "Examples" under "Path types" of the Ingress page of the Kubernetes
// documentation, each line with the path that must serve it ("" for the default backend).
func kubernetesPathTable(_ *testing.T, g *gateway) {
	type line struct {
		pathType, paths, asked, served string
	}
	for i, l := range []line{
		{"Prefix", "/", "/any/path", "/"},
		{"Exact", "/foo", "/foo", "/foo"},
		{"Exact", "/foo", "/bar", ""},
		{"Exact", "/foo", "/foo/", ""},
		{"Exact", "/foo/", "/foo", ""},
		{"Prefix", "/foo", "/foo", "/foo"},
		{"Prefix", "/foo", "/foo/", "/foo"},
		{"Prefix", "/foo/", "/foo", "/foo/"},
		{"Prefix", "/foo/", "/foo/", "/foo/"},
		{"Prefix", "/aaa/bb", "/aaa/bbb", ""},
		{"Prefix", "/aaa/bbb", "/aaa/bbb", "/aaa/bbb"},
		{"Prefix", "/aaa/bbb/", "/aaa/bbb", "/aaa/bbb/"},
		{"Prefix", "/aaa/bbb", "/aaa/bbb/", "/aaa/bbb"},
		{"Prefix", "/aaa/bbb", "/aaa/bbb/ccc", "/aaa/bbb"},
		{"Prefix", "/aaa/bbb", "/aaa/bbbxyz", ""},
		{"Prefix", "/ /aaa", "/aaa/ccc", "/aaa"},
		{"Prefix", "/ /aaa /aaa/bbb", "/aaa/bbb", "/aaa/bbb"},
		{"Prefix", "/ /aaa /aaa/bbb", "/ccc", "/"},
		{"Prefix", "/aaa", "/ccc", ""},
		{"Exact+Prefix", "/foo /foo", "/foo", "/foo"},
	} {
		manifests := g.service("fallback")
		owner := map[string]string{"": "fallback"}
		for j, path := range strings.Fields(l.paths) {
			pathType, service := l.pathType, fmt.Sprintf("p%d", j)
			if l.pathType == "Exact+Prefix" {
				pathType = []string{"Prefix", "Exact"}[j]
			}
			owner[path] = service
			manifests = join(manifests, g.service(service), ingress(fmt.Sprintf("row-%d-%d", i, j), "h.test", path, pathType, service,
				"spec:defaultBackend: {service: {name: fallback, port: {number: 80}}}"))
		}
		g.apply(manifests)
		g.wants("http://h.test"+l.asked, "200 "+owner[l.served])
	}
}

func kubernetesHostTable(_ *testing.T, g *gateway) {
	g.apply(join(ingress("wild", "*.foo.com", "/", "Prefix", "echo"), g.service("echo")))
	g.wants("http://bar.foo.com/", "200 echo")
	g.wants("http://baz.bar.foo.com/", "404")
	g.wants("http://foo.com/", "404")
}

func sliceSemantics(_ *testing.T, g *gateway) {
	rules := join(ingress("one", "h.test", "/", "Prefix", "svc"), `
apiVersion: v1
kind: Service
metadata: {name: svc}
spec: {ports: [{name: web, port: 80}]}
`)
	unready := slice("s1", "svc", g.expand(endpoint("unready", "{ready: false}")))
	silent := slice("s2", "svc", g.expand(endpoint("silent", "")))
	leaving := slice("s3", "svc", g.expand(endpoint("leaving", "{ready: false, serving: true, terminating: true}")))
	g.apply(join(rules, unready, silent, leaving))
	for range 8 {
		g.wants("http://h.test/", "200 silent")
	}
	g.apply(join(rules, unready, leaving))
	g.wants("http://h.test/", "200 leaving")
	g.apply(join(rules, unready))
	g.wants("http://h.test/", "503")
}
