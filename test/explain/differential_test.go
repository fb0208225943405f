package explain

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"headgate/cmd/explain"
)

// site is a configuration with every kind of rule, host and fault. Names of services are those of backends.
func site(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, name := range []string{"root", "one", "two", "three", "any", "wild"} {
		fmt.Fprintf(&b, `
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: "", port: %[2]d}]
endpoints: [{addresses: [127.0.0.1]}]
`, name, startBackend(t, name))
	}
	b.WriteString(`
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {ports: [{port: 80}]}
`)
	for _, i := range []struct{ name, annotations, tls, host, paths string }{
		{"plain", "", "", "plain.test", "Prefix / root, Exact /exact one, Prefix /one one, Prefix /one/two two, Prefix /sla/sh/ three, Prefix /empty empty, Prefix /missing nobody"},
		{"narrow", "", "", "narrow.test", "Exact /only one, Prefix /a b two"},
		{"odd", "", "", "odd.test", "Exact /%41 one, Prefix /é two, Exact /a%20b three, Prefix /;x one, Exact /.. two, Prefix /$uri three"},
		{"secure", "", "secure.test", "secure.test", "Prefix / root, Prefix /sub/ one, Exact /.well-known/acme-challenge/x two"},
		{"forced", `force-ssl-redirect: "true"`, "", "forced.test", "Prefix / two"},
		{"kept", `ssl-redirect: "false"`, "kept.test", "kept.test", "Prefix / three"},
		{"regex", `use-regex: "true"`, "", "regex.test", `ImplementationSpecific /v[0-9]+/x one, ImplementationSpecific /(a+)+$ two, ImplementationSpecific /.*\.php three`},
		{"rewrite", `rewrite-target: /new/$2?from=$1&x`, "", "rewrite.test", `ImplementationSpecific /(old)/(.*) one, ImplementationSpecific /(.*) two`},
		{"fixed", `rewrite-target: "/fixed path"`, "", "fixed.test", "Prefix /any one"},
		{"wild", "", "", "*.wild.test", "Prefix / wild"},
	} {
		b.WriteString(ingressYAML(i.name, i.annotations, i.tls, i.host, i.paths))
	}
	return b.String()
}

func ingressYAML(name, annotations, tls, host, paths string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: %s\n  annotations:\n    kubernetes.io/ingress.class: headgate\n", name)
	if annotations != "" {
		fmt.Fprintf(&b, "    nginx.ingress.kubernetes.io/%s\n", annotations)
	}
	b.WriteString("spec:\n")
	if tls != "" {
		fmt.Fprintf(&b, "  tls: [{hosts: [%q]}]\n", tls)
	}
	fmt.Fprintf(&b, "  rules:\n  - host: %q\n    http:\n      paths:\n", host)
	for p := range strings.SplitSeq(paths, ", ") {
		kind, rest, _ := strings.Cut(p, " ")
		at := strings.LastIndexByte(rest, ' ')
		fmt.Fprintf(&b, "      - {path: %q, pathType: %s, backend: {service: {name: %s, port: {number: 80}}}}\n", rest[:at], kind, rest[at+1:])
	}
	return b.String()
}

const catchAll = `
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: any, annotations: {kubernetes.io/ingress.class: headgate}}
spec:
  rules:
  - http:
      paths: [{path: /any, pathType: Prefix, backend: {service: {name: any, port: {number: 80}}}}]
`

var (
	hosts = []string{
		"plain.test", "narrow.test", "odd.test", "secure.test", "forced.test", "kept.test", "regex.test",
		"rewrite.test", "fixed.test", "a.wild.test", "a.b.wild.test", "wild.test", "nobody.test",
	}
	segments = []string{
		"exact", "one", "two", "sla", "sh", "empty", "missing", "only", "v1", "x", "v12", "b.php", "old", "new", "any", "sub", ".well-known",
		"acme-challenge",
	}
	oddSegments = []string{
		"a%20b", "%41", "A", "é", "%C3%A9", ";x", "..", ".", "%2e%2e", "%2E", "%2f", "%2F..", "", "$uri", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!",
		"B.PHP", "%3f", "%23", "\\", "\"", "<x>", "|", "{}", "%25", "%252e%252e", "~", "+", "a=b",
	}
	badSegments = []string{"a b", "%00", "%", "%zz"}
	queries     = []string{"", "?", "?a=b", "??", "?a=%zz", "?/../x", "#frag", "?x#y", "?é", "?a=b&c;d"}
	oddHeaders  = []string{
		"X-Forwarded-Proto: https", "X-Forwarded-Proto: http", "X-Forwarded-Proto: odd", "X-Forwarded-Host: other.test",
		"X-Forwarded-Host: a b", "X-Forwarded-Host: one.test, two.test", "X-Forwarded-For: 1.2.3.4", "Host: second.test",
		"X-Headgate-Explain: {}", "X-Headgate-Sent: {}", "Upgrade: websocket", "X_Under: score", "Bad Header: x", ": empty",
		"Expect: 100-continue",
		"Cookie: " + strings.Repeat("c", 9000),
	}
)

// seldom draws from odd once in n times, else from usual.
func seldom(rt *rapid.T, what string, n int, usual, odd []string) string {
	if rapid.IntRange(1, n).Draw(rt, what+" is odd") == n {
		usual = odd
	}
	return rapid.SampledFrom(usual).Draw(rt, what)
}

func requests(rt *rapid.T, overTLS bool) request {
	host := rapid.SampledFrom(hosts).Draw(rt, "host")
	r := request{
		tls: overTLS, sni: host,
		method: seldom(rt, "method", 10, []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"},
			[]string{"TRACE", "CONNECT", "get", "G@T"}),
		target: target(rt, host),
	}
	r.header = append(r.header, "Host: "+spelling(rt, host))
	length := seldom(rt, "length", 6, []string{""}, []string{"0", "5", "2000000", "300000000", "x"})
	if length != "" {
		r.header = append(r.header, "Content-Length: "+length)
	}
	if n, err := strconv.Atoi(length); err == nil && n <= 2_000_000 {
		r.body = strings.Repeat("b", n)
	}
	if odd := seldom(rt, "header", 3, []string{""}, oddHeaders); odd != "" {
		r.header = append(r.header, odd)
	}
	return r
}

func target(rt *rapid.T, host string) string {
	path := "/"
	for i := range rapid.IntRange(0, 4).Draw(rt, "segments") {
		if i > 0 {
			path += "/"
		}
		path += seldom(rt, "segment", 3, segments, append(oddSegments, seldom(rt, "bad segment", 4, oddSegments, badSegments)))
	}
	path += seldom(rt, "query", 20, queries, []string{"?a b"})
	switch rapid.IntRange(0, 19).Draw(rt, "form") {
	case 0:
		return "http://" + host + path
	case 1:
		return "https://plain.test" + path
	case 2:
		return "*"
	case 3:
		return strings.TrimPrefix(path, "/") + "x"
	case 4:
		return "HTTP://PLAIN.test:99" + path
	}
	return path
}

func spelling(rt *rapid.T, host string) string {
	switch rapid.IntRange(0, 15).Draw(rt, "spelling") {
	case 0:
		return strings.ToUpper(host)
	case 1:
		return host + "."
	case 2:
		return host + ":8080"
	case 3:
		return rapid.SampledFrom([]string{"", "127.0.0.1", "[::1]:80", "a b", "a/b", "a..b", "-", "*.wild.test", ".wild.test", "é.test", "x@plain.test",
			"plain.test:", "plain.test:x", strings.Repeat("a", 300), "plain.test\t"}).Draw(rt, "odd host")
	}
	return host
}

// TestExplainSaysWhatHappens sends each request twice: to the gateway, and to explain.
func TestExplainSaysWhatHappens(t *testing.T) {
	met := map[string]int{}
	for _, c := range []struct{ name, more, extra string }{
		{"plain", "", ""},
		{"trusted", catchAll, "useForwardedHeaders: true\ntrustedProxies: [127.0.0.0/8]\nmaxBodySize: 20MiB\n"},
		{"untrusted", "", "useForwardedHeaders: true\ntrustedProxies: [10.0.0.0/8]\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := start(t, site(t)+c.more, c.extra)
			for _, overTLS := range []bool{false, true} {
				t.Run(fmt.Sprintf("tls=%t", overTLS), func(t *testing.T) {
					rapid.Check(t, func(rt *rapid.T) {
						for range 2 { // a hundred times
							met[g.compare(rt, t.Context(), requests(rt, overTLS))]++
						}
					})
				})
			}
		})
	}
	t.Logf("outcomes: %v", met)
	for _, kind := range []string{
		"backend", "rewritten", "redirect", "Refused", "HostNotFound", "PathNotFound", "RouteUnavailable", "NoEndpoints", "BodyTooLarge",
	} {
		if met[kind] == 0 {
			t.Errorf("no request was made whose outcome is %s: the generator tests less than it should", kind)
		}
	}
}

// tester is *testing.T or *rapid.T.
type tester interface {
	Fatalf(format string, args ...any)
}

// compare fails where explain and the gateway differ, and names the kind of outcome.
func (g *gateway) compare(t tester, ctx context.Context, r request) string { //nolint:revive // context-as-argument: as helpers of tests have it
	happens, err := g.send(ctx, r)
	if err != nil {
		t.Fatalf("%s: the gateway: %v", r, err)
	}
	e, err := g.explain(ctx, r)
	if err != nil {
		t.Fatalf("%s: explain: %v", r, err)
	}
	said := answer{status: e.Status, location: e.Location}
	if e.Certificate != nil {
		said.subject = e.Certificate.Subject
	}
	if e.Outcome == explain.Backend {
		said.status = 200
		name := strings.Split(e.Upstream.ID, "/")[1]
		said.backend = &received{Name: name, Method: e.Sent.Method, URI: e.Sent.URI, Host: e.Sent.Host}
	}
	if said.String() != happens.String() {
		t.Fatalf("%s:\nexplain says %s\nand it is    %s\n%+v", r, said, happens, e)
	}
	if e.Outcome == explain.Failure && e.Reason == explain.Unexplained {
		t.Fatalf("%s: no reason for %d", r, e.Status)
	}
	switch {
	case e.Outcome == explain.Failure:
		return string(e.Reason)
	case e.Sent != nil && e.Sent.Rewritten:
		return "rewritten"
	}
	return string(e.Outcome)
}
