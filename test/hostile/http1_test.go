package hostile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// site is what the requests of these tests meet: two hosts with paths of each kind, one for the sentinel, one
// that redirects, and nobody for any other name.
func site(t *testing.T, g *gateway) {
	t.Helper()
	g.write("site.yaml", class+
		ingress("one", "one.test", prefix("/", "one"), prefix("/admin", "admin"), exact("/exact", "exact"), prefix("/a/b", "deep"))+
		ingress("two", "two.test", prefix("/only", "two"))+
		ingress("wild", "*.wild.test", prefix("/", "wild"))+
		ingress("regex", "regex.test", free("/api/v[0-9]+(/|$)(.*)", "regex"), annotated("use-regex", "true", "rewrite-target", "/new/$2"))+
		ingress("query", "query.test", free("/q/(.*)", "regex"), annotated("use-regex", "true", "rewrite-target", "/find?what=$1"))+
		ingress("tls", "tls.test", prefix("/", "tls"), withTLS("cert", "tls.test"))+
		ingress("sentinel", "sentinel.test", prefix("/", "sentinel"))+
		g.service("one")+g.service("admin")+g.service("exact")+g.service("deep")+g.service("two")+g.service("wild")+
		g.service("regex")+g.service("tls")+g.service("sentinel")+tlsSecret(t, "cert", "tls.test"))
	g.settle()
}

// probe is a hostile request, byte by byte, and all that may come of it.
type probe struct {
	name string
	raw  string
	// wants are the outcomes that are right, each "answer, answer … → request, request …": what the client
	// got, and what the backends saw ("backend target"). "closed" stands for an end without an answer.
	wants []string
	// answers is how many answers are read; 0 is one.
	answers int
	// waits says that the gateway rightly waits for more; then nothing may have come through.
	waits  bool
	method string // for the reader of the answer; "" is GET
}

func get(target string, headers ...string) string {
	return "GET " + target + " HTTP/1.1\r\n" + strings.Join(headers, "\r\n") + "\r\n\r\n"
}

const sentinel = "GET /sentinel HTTP/1.1\r\nHost: sentinel.test\r\nConnection: close\r\n\r\n"

// outcome sends the probe and, while the connection lives on, a request behind it: were the gateway and the
// client of two minds about where the probe ended, that one would get another answer than its own.
func (g *gateway) outcome(t *testing.T, p probe) string {
	t.Helper()
	for _, b := range g.backends {
		b.requests()
	}
	conn, err := net.DialTimeout("tcp", g.http, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	limit := 10 * time.Second
	if p.waits {
		limit = 200 * time.Millisecond
	}
	_ = conn.SetDeadline(time.Now().Add(limit))
	go func() { _, _ = io.WriteString(conn, p.raw) }()

	r := bufio.NewReader(conn)
	var got []string
	open := true
	for range max(1, p.answers) {
		a, err := readAnswer(r, p.method)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			got, open = append(got, "waits"), false
		case err != nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)):
			got, open = append(got, "closed"), false
		case err != nil && strings.Contains(err.Error(), "malformed"):
			got, open = append(got, "no answer of HTTP/1"), false
		case err != nil:
			got, open = append(got, err.Error()), false
		default:
			got, open = append(got, a.String()), !a.last
			for name := range a.header {
				if strings.HasPrefix(name, "X-Headgate") {
					t.Errorf("the answer tells of the inside: %s", name)
				}
			}
		}
		if !open {
			break
		}
	}
	if open {
		if _, err := io.WriteString(conn, sentinel); err != nil {
			got = append(got, "sentinel not sent: "+err.Error())
		}
		a, err := readAnswer(r, "GET")
		if err != nil || a.String() != "200 sentinel" {
			got = append(got, fmt.Sprintf("sentinel got %s %v", a, err))
		}
		if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
			got = append(got, fmt.Sprintf("and then %q %v", cut(string(rest), 200), err))
		}
	}
	return strings.Join(got, ", ") + " → " + strings.Join(g.reached(open), ", ")
}

// reached lists what the backends saw, but for the sentinel of a connection that lived.
func (g *gateway) reached(sentinelSent bool) []string {
	var list []string
	for _, name := range []string{"one", "admin", "exact", "deep", "two", "wild", "regex", "tls", "any", "sentinel"} {
		if g.backends[name] == nil {
			continue
		}
		for _, s := range g.backends[name].requests() {
			if name == "sentinel" && sentinelSent && s.target() == "/sentinel" {
				sentinelSent = false
				continue
			}
			list = append(list, name+" "+shown(s.target()))
		}
	}
	return list
}

// shown is a request target as outcomes have it.
func shown(target string) string { return cut(target, 60) }

func smuggling() []probe {
	const head = "POST /x HTTP/1.1\r\nHost: one.test\r\n"
	const inner = "GET /admin HTTP/1.1\r\nHost: one.test\r\n\r\n"
	body := func(s string) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(s), s) }
	const chunkedInner = "0\r\n\r\n" + inner
	refused := []string{"400 → ", "501 → ", "closed → "}
	return []probe{
		{name: "a request in the body", raw: head + body(inner), wants: []string{"200 one → one /x"}, method: "POST"},
		{name: "a request in the body of an unknown host", raw: "POST / HTTP/1.1\r\nHost: nobody.test\r\n" + body(inner), wants: []string{"404 → "}, method: "POST"},
		{name: "a request in the body of an unknown path", raw: "POST /else HTTP/1.1\r\nHost: two.test\r\n" + body(inner), wants: []string{"404 → "}, method: "POST"},
		{name: "a request in the body of a redirect", raw: "POST / HTTP/1.1\r\nHost: tls.test\r\n" + body(inner), wants: []string{"308 → "}, method: "POST"},
		{name: "a request in the chunked body of an unknown host", raw: "POST / HTTP/1.1\r\nHost: nobody.test\r\nTransfer-Encoding: chunked\r\n\r\n" +
			fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(inner), inner), wants: []string{"404 → "}, method: "POST"},
		{name: "a large body for an unknown host", raw: "POST / HTTP/1.1\r\nHost: nobody.test\r\n" + body(strings.Repeat(inner, 5000)), wants: []string{"404 → ", "closed → "}, method: "POST"},
		{name: "a body that is too large", raw: head + "Content-Length: 9999999999\r\n\r\n" + inner, wants: []string{"413 → "}, method: "POST"},
		{name: "a body that is too large for a number", raw: head + "Content-Length: 99999999999999999999\r\n\r\n" + inner, wants: refused, method: "POST"},
		{name: "CL and TE", raw: head + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%s", len(chunkedInner), chunkedInner), wants: refused, method: "POST"},
		{name: "TE and CL", raw: head + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + chunkedInner, wants: refused, method: "POST"},
		{name: "two equal CLs", raw: head + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", wants: refused, method: "POST"},
		{name: "two CLs", raw: head + "Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + inner, wants: refused, method: "POST"},
		{name: "a list of CLs", raw: head + "Content-Length: 0, 44\r\n\r\n" + inner, wants: refused, method: "POST"},
		{name: "CL with a sign", raw: head + "Content-Length: +0\r\n\r\n" + inner, wants: refused, method: "POST"},
		{name: "CL below zero", raw: head + "Content-Length: -1\r\n\r\n" + inner, wants: refused, method: "POST"},
		{name: "CL in hex", raw: head + "Content-Length: 0x2c\r\n\r\n" + inner, wants: refused, method: "POST"},
		{name: "CL empty", raw: head + "Content-Length:\r\n\r\n" + inner, wants: append(refused, "200 one, 200 admin → one /x, admin /admin"), method: "POST"},
		{name: "TE chunked, identity", raw: head + "Transfer-Encoding: chunked, identity\r\n\r\n" + chunkedInner, wants: refused, method: "POST"},
		{name: "TE identity", raw: head + "Transfer-Encoding: identity\r\n\r\n" + inner, wants: refused, method: "POST"},
		{name: "TE xchunked", raw: head + "Transfer-Encoding: xchunked\r\n\r\n" + chunkedInner, wants: refused, method: "POST"},
		{name: "TE quoted", raw: head + "Transfer-Encoding: \"chunked\"\r\n\r\n" + chunkedInner, wants: refused, method: "POST"},
		{name: "TE twice", raw: head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + chunkedInner, wants: refused, method: "POST"},
		{name: "TE twice, the other way", raw: head + "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n" + chunkedInner, wants: refused, method: "POST"},
		{name: "TE with a space before the colon", raw: head + "Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n" + chunkedInner, wants: refused, method: "POST"},
		{name: "TE behind a tab", raw: head + "Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n", wants: append(refused, "200 one → one /x"), method: "POST"},
		{name: "TE with a vertical tab", raw: head + "Transfer-Encoding: \x0bchunked\r\n\r\n" + chunkedInner, wants: refused, method: "POST"},
		{name: "TE folded", raw: head + "Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n\r\n" + chunkedInner, wants: refused, method: "POST"},
		{name: "TE behind a bare LF", raw: head + "X: y\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunkedInner, wants: refused, method: "POST"},
		{name: "TE behind a bare CR", raw: head + "X: y\rTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", wants: append(refused, "200 one → one /x"), method: "POST"},
		{name: "TE in HTTP/1.0", raw: "POST /x HTTP/1.0\r\nHost: one.test\r\nTransfer-Encoding: chunked\r\n\r\n" + chunkedInner, wants: refused, method: "POST"},
		{name: "TE in another case", raw: head + "transfer-ENCODING: CHUNKED\r\n\r\n0\r\n\r\n", wants: append(refused, "200 one → one /x"), method: "POST"},
		{name: "TE with an underscore", raw: head + "Transfer_Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", wants: []string{"200 one → one /x"}, method: "POST"},
		{name: "chunk with extensions", raw: head + "Transfer-Encoding: chunked\r\n\r\n3;a=\"\r\n\"\r\nabc\r\n0\r\n\r\n", wants: append(refused, "200 one → one /x"), method: "POST"},
		{name: "chunk of a huge size", raw: head + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n", wants: append(refused, "413 → "), method: "POST"},
		{name: "chunk below zero", raw: head + "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n0\r\n\r\n", wants: refused, method: "POST"},
		{name: "chunk size in 0x", raw: head + "Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n", wants: refused, method: "POST"},
		{name: "chunk without its end", raw: head + "Transfer-Encoding: chunked\r\n\r\n3\r\nabcGET /admin", wants: refused, method: "POST"},
		{name: "chunks that never end", raw: head + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", waits: true, wants: []string{"waits → "}, method: "POST"},
		{name: "a trailer that sets the host", raw: head + "Transfer-Encoding: chunked\r\n\r\n0\r\nHost: two.test\r\n\r\n", wants: []string{"200 one → one /x", "400 → "}, method: "POST"},
		{name: "GET with a body", raw: "GET /x HTTP/1.1\r\nHost: one.test\r\n" + body(inner), wants: []string{"200 one → one /x"}},
		{name: "a body that is too short", raw: head + "Content-Length: 10\r\n\r\nabc", waits: true, wants: []string{"waits → "}, method: "POST"},
		{name: "two requests at once", raw: get("/1", "Host: one.test") + get("/2", "Host: one.test"), answers: 2, wants: []string{"200 one, 200 one → one /1, one /2"}},
		{name: "a hundred requests at once", raw: strings.Repeat(get("/1", "Host: nobody.test"), 100), answers: 100,
			wants: []string{strings.Repeat("404, ", 99) + "404 → "}},
		{name: "an empty line in front", raw: "\r\n" + get("/x", "Host: one.test"), wants: []string{"200 one → one /x", "400 → "}},
		{name: "expect", raw: head + "Expect: 100-continue\r\n" + body("abc"), wants: []string{"200 one → one /x"}, method: "POST"},
		{name: "expect of an unknown host", raw: "POST / HTTP/1.1\r\nHost: nobody.test\r\nExpect: 100-continue\r\n" + body(inner), wants: []string{"404 → "}, method: "POST"},
		{name: "expect something else", raw: head + "Expect: 200-maybe\r\n" + body("abc"), wants: []string{"200 one → one /x", "417 → "}, method: "POST"},
	}
}

func hosts() []probe {
	last := "Connection: close"
	refused := []string{"400 → ", "closed → "}
	return []probe{
		{name: "no Host", raw: get("/", last), wants: refused},
		{name: "empty Host", raw: get("/", "Host:", last), wants: append(refused, "404 → ")},
		{name: "no Host in HTTP/1.0", raw: "GET / HTTP/1.0\r\n\r\n", wants: []string{"404 → "}},
		{name: "Host twice, equal", raw: get("/", "Host: one.test", "Host: one.test", last), wants: append(refused, "200 one → one /")},
		{name: "Host twice", raw: get("/only", "Host: two.test", "Host: one.test", last), wants: append(refused, "200 two → two /only")},
		{name: "Host in other letters", raw: get("/only", "hOsT: TWO.test", last), wants: []string{"200 two → two /only"}},
		{name: "Host with a dot at the end", raw: get("/only", "Host: two.test.", last), wants: []string{"200 two → two /only"}},
		{name: "Host with two dots at the end", raw: get("/only", "Host: two.test..", last), wants: append(refused, "404 → ")},
		{name: "Host with a port", raw: get("/only", "Host: two.test:80", last), wants: []string{"200 two → two /only"}},
		{name: "Host with two ports", raw: get("/only", "Host: two.test:80:90", last), wants: append(refused, "200 two → two /only")},
		{name: "Host with a port of letters", raw: get("/only", "Host: two.test:x@one.test", last), wants: append(refused, "200 two → two /only")},
		{name: "Host with a user", raw: get("/only", "Host: one.test@two.test", last), wants: append(refused, "404 → ")},
		{name: "Host with a path", raw: get("/only", "Host: two.test/admin", last), wants: refused},
		{name: "Host with a backslash", raw: get("/only", `Host: two.test\admin`, last), wants: append(refused, "404 → ")},
		{name: "Host with a space", raw: get("/only", "Host: two.test one.test", last), wants: refused},
		{name: "Host with a tab", raw: get("/only", "Host: two.test\tone.test", last), wants: refused},
		{name: "Host with a NUL", raw: get("/only", "Host: two.test\x00.one.test", last), wants: refused},
		{name: "Host with a comma", raw: get("/only", "Host: two.test,one.test", last), wants: append(refused, "404 → ")},
		{name: "Host is a wildcard", raw: get("/", "Host: *.wild.test", last), wants: append(refused, "404 → ")},
		{name: "Host below a wildcard with an empty label", raw: get("/", "Host: .wild.test", last), wants: append(refused, "404 → ")},
		{name: "Host below a wildcard, two labels", raw: get("/", "Host: a.b.wild.test", last), wants: []string{"404 → "}},
		{name: "Host is the wildcard's own key", raw: get("/", "Host: host/*.wild.test", last), wants: refused},
		{name: "Host is a pattern of Lua", raw: get("/", "Host: %a+.test", last), wants: append(refused, "404 → ")},
		{name: "Host is an nginx variable", raw: get("/", "Host: $http_x", "X: one.test", last), wants: append(refused, "404 → ")},
		{name: "Host is an address", raw: get("/", "Host: 127.0.0.1", last), wants: []string{"404 → "}},
		{name: "Host is an IPv6 address", raw: get("/", "Host: [::1]:80", last), wants: []string{"404 → "}},
		{name: "Host is half an IPv6 address", raw: get("/", "Host: [::1", last), wants: append(refused, "404 → ")},
		{name: "Host is bytes", raw: get("/", "Host: \xff\xfe\x80.test", last), wants: append(refused, "404 → ")},
		{name: "Host is long", raw: get("/", "Host: "+strings.Repeat("a", 4000)+".test", last), wants: []string{"404 → "}},
		{name: "Host is many labels", raw: get("/", "Host: "+strings.Repeat("a.", 2000)+"test", last), wants: []string{"404 → "}},
		{name: "Host folded", raw: "GET /only HTTP/1.1\r\nHost:\r\n two.test\r\nConnection: close\r\n\r\n", wants: refused},
		{name: "Host with a space before the colon", raw: get("/only", "Host : two.test", last), wants: refused},
		{name: "Host with a space in front", raw: "GET /only HTTP/1.1\r\n Host: two.test\r\nConnection: close\r\n\r\n", wants: refused},
		{name: "X-Forwarded-Host of a stranger", raw: get("/only", "Host: two.test", "X-Forwarded-Host: one.test", last), wants: []string{"200 two → two /only"}},
		{name: "X-Original-URL of a stranger", raw: get("/", "Host: one.test", "X-Original-URL: /admin", "X-Rewrite-URL: /admin", last), wants: []string{"200 one → one /"}},
		{name: "absolute form", raw: get("http://two.test/only", "Host: two.test", last), wants: []string{"200 two → two /only"}},
		{name: "absolute form against Host", raw: get("http://two.test/only", "Host: one.test", last), wants: append(refused, "200 two → two /only")},
		{name: "absolute form without Host", raw: get("http://two.test/only", last), wants: append(refused, "200 two → two /only")},
		{name: "absolute form with another port", raw: get("http://two.test:99/only", "Host: two.test", last), wants: []string{"200 two → two /only"}},
		{name: "absolute form with a user", raw: get("http://one.test@two.test/only", "Host: two.test", last), wants: append(refused, "404 → ")},
		{name: "absolute form of https", raw: get("https://tls.test/x", "Host: tls.test", last), wants: []string{"308 → "}},
		{name: "absolute form of a file", raw: get("file:///etc/passwd", "Host: one.test", last), wants: refused},
		{name: "absolute form without a path", raw: get("http://one.test", "Host: one.test", last), wants: []string{"200 one → one /"}},
		{name: "absolute form with a query alone", raw: get("http://one.test?a=/admin", "Host: one.test", last), wants: []string{"200 one → one /?a=/admin"}},
		{name: "authority form", raw: get("one.test:80", "Host: one.test", last), wants: refused},
		{name: "asterisk form", raw: "OPTIONS * HTTP/1.1\r\nHost: one.test\r\nConnection: close\r\n\r\n", wants: refused, method: "OPTIONS"},
		{name: "CONNECT", raw: "CONNECT one.test:80 HTTP/1.1\r\nHost: one.test\r\n\r\n", wants: append(refused, "405 → "), method: "CONNECT"},
		{name: "CONNECT of a path", raw: "CONNECT /admin HTTP/1.1\r\nHost: one.test\r\n\r\n", wants: append(refused, "405 → "), method: "CONNECT"},
		{name: "TRACE", raw: "TRACE / HTTP/1.1\r\nHost: one.test\r\nCookie: secret\r\n\r\n", wants: append(refused, "405 → "), method: "TRACE"},
		{name: "a method in lower case", raw: "get / HTTP/1.1\r\nHost: one.test\r\n\r\n", wants: refused},
		{name: "a method of its own", raw: "PROPFIND-X / HTTP/1.1\r\nHost: one.test\r\nConnection: close\r\n\r\n", wants: append(refused, "200 one → one /")},
		{name: "no method", raw: " / HTTP/1.1\r\nHost: one.test\r\n\r\n", wants: refused},
		{name: "HTTP/0.9", raw: "GET /\r\n", wants: []string{"no answer of HTTP/1 → ", "400 → ", "closed → "}},
		{name: "HTTP/2.0 in text", raw: "GET / HTTP/2.0\r\nHost: one.test\r\n\r\n", wants: append(refused, "505 → ")},
		{name: "HTTP/1.2", raw: "GET / HTTP/1.2\r\nHost: one.test\r\nConnection: close\r\n\r\n", wants: append(refused, "200 one → one /", "505 → ")},
		{name: "no version number", raw: "GET / HTTP/\r\nHost: one.test\r\n\r\n", wants: refused},
		{name: "HTTP/2 preface", raw: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", wants: refused},
		{name: "a TLS handshake", raw: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", wants: refused},
		{name: "bytes", raw: "\x00\xff\x80\x01\r\n\r\n", wants: refused},
	}
}

func targets() []probe {
	one := func(name, target string, wants ...string) probe {
		return probe{name: name, raw: get(target, "Host: one.test", "Connection: close"), wants: wants}
	}
	refused := []string{"400 → ", "closed → "}
	return []probe{
		one("two slashes", "//admin", "200 admin → admin //admin"),
		one("slashes inside", "/a//b", "200 deep → deep /a//b"),
		one("dots", "/x/../admin", "200 admin → admin /x/../admin"),
		one("encoded dots", "/x/%2e%2e/admin", "200 admin → admin /x/%2e%2e/admin"),
		one("half-encoded dots", "/x/.%2E/admin", "200 admin → admin /x/.%2E/admin"),
		one("dots encoded twice", "/x/%252e%252e/admin", "200 one → one /x/%252e%252e/admin"),
		one("dots above the root", "/../../admin", refused...),
		one("encoded dots above the root", "/%2e%2e/admin", refused...),
		one("dots at the end", "/admin/..", "200 one → one /admin/.."),
		one("dot elements", "/./admin/.", "200 admin → admin /./admin/."),
		one("encoded slash", "/a%2fb", "200 deep → deep /a%2fb"),
		one("encoded slash in front", "/%2fadmin", "200 admin → admin /%2fadmin"),
		one("encoded letters", "/%61dmin", "200 admin → admin /%61dmin"),
		one("other letters", "/ADMIN", "200 one → one /ADMIN"),
		one("a suffix of an element", "/adminx", "200 one → one /adminx"),
		one("semicolon", "/admin;x=y", "200 one → one /admin;x=y"),
		one("semicolon and dots", "/x/..;/admin", "200 one → one /x/..;/admin"),
		one("backslash", `/x\..\admin`, `200 one → one /x\..\admin`),
		one("encoded backslash", "/x%5c..%5cadmin", "200 one → one /x%5c..%5cadmin"),
		one("encoded question mark", "/admin%3fx", "200 one → one /admin%3fx"),
		one("encoded hash", "/admin%23x", "200 one → one /admin%23x"),
		one("hash", "/admin#x", "200 admin → admin /admin", "200 admin → admin /admin#x", "400 → "),
		one("exact with a slash", "/exact/", "200 one → one /exact/"),
		one("exact with two slashes", "//exact", "200 exact → exact //exact"),
		one("exact with a query", "/exact?/admin", "200 exact → exact /exact?/admin"),
		one("encoded NUL", "/admin%00", refused...),
		one("NUL", "/admin\x00", refused...),
		one("a bad escape", "/admin%zz", refused...),
		one("half an escape", "/admin%2", refused...),
		one("an encoded line end", "/x%0d%0aHost:%20two.test%0d%0a", "200 one → one /x%0d%0aHost:%20two.test%0d%0a"),
		one("a space", "/x /admin", refused...),
		one("a tab", "/x\t/admin", refused...),
		one("control bytes", "/x\x01\x7f", refused...),
		one("bytes above ASCII", "/\xff\xfe/\xc0\xae\xc0\xae/admin", "200 one → one /\xff\xfe/\xc0\xae\xc0\xae/admin"),
		one("overlong dots", "/x/%c0%ae%c0%ae/admin", "200 one → one /x/%c0%ae%c0%ae/admin"),
		one("an nginx variable", "/$host/${uri}", "200 one → one /$host/${uri}"),
		one("code of Lua", "/%5D%5D..os.execute()", "200 one → one /%5D%5D..os.execute()"),
		one("a named location", "/@headgate_profile_000000000000", "200 one → one /@headgate_profile_000000000000"),
		one("a long path", "/"+strings.Repeat("a", 7000), "200 one → one "+shown("/"+strings.Repeat("a", 7000))),
		one("a longer path", "/"+strings.Repeat("a", 9000), "414 → ", "closed → "),
		one("many elements", strings.Repeat("/a", 3500), "200 one → one "+shown(strings.Repeat("/a", 3500))),
		one("many dots", "/"+strings.Repeat("a/../", 1500)+"admin", "200 admin → admin "+shown("/"+strings.Repeat("a/../", 1500)+"admin")),
		// "." of a regular expression matches no line end, here as in nginx's own rewrite.
		{name: "a regex and a line end", raw: get("/api/v1/a%0d%0ab", "Host: regex.test", "Connection: close"), wants: []string{"200 regex → regex /new/a%0D"}},
		{name: "a regex and a carriage return", raw: get("/api/v1/a%0db%00", "Host: regex.test", "Connection: close"), wants: []string{"400 → "}},
		{name: "a regex and dots", raw: get("/api/v1/../../admin", "Host: regex.test", "Connection: close"), wants: []string{"404 → ", "400 → "}},
		{name: "a regex and encoded dots", raw: get("/api/v1/x/%252e%252e/y", "Host: regex.test", "Connection: close"), wants: []string{"200 regex → regex /new/x/%252e%252e/y"}},
		{name: "a regex and a question mark", raw: get("/api/v1/a%3fb=c?d=e", "Host: regex.test", "Connection: close"), wants: []string{"200 regex → regex /new/a%3Fb=c?d=e"}},
		{name: "a regex and bytes", raw: get("/api/v1/%ff%fe", "Host: regex.test", "Connection: close"), wants: []string{"200 regex → regex /new/%FF%FE"}},
		{name: "a capture in a query", raw: get("/q/a%26b%3dc%20d%0dX:y", "Host: query.test", "Connection: close"), wants: []string{"200 regex → regex /find?what=a%26b%3Dc%20d%0DX%3Ay"}},
		{name: "a capture of a slash in a query", raw: get("/q/%2523?x=y#z", "Host: query.test", "Connection: close"),
			wants: []string{"200 regex → regex /find?what=%2523&x=y", "200 regex → regex /find?what=%2523&x=y#z", "400 → "}},
	}
}

func headers() []probe {
	one := func(name string, wants []string, headers ...string) probe {
		return probe{name: name, raw: get("/", append([]string{"Host: one.test", "Connection: close"}, headers...)...), wants: wants}
	}
	fine := []string{"200 one → one /"}
	refused := []string{"400 → ", "closed → "}
	tooLarge := []string{"400 → ", "431 → ", "494 → ", "closed → "}
	return []probe{
		one("a header of 7 KiB", fine, "X: "+strings.Repeat("x", 7<<10)),
		one("a header of 64 KiB", tooLarge, "X: "+strings.Repeat("x", 64<<10)),
		one("a header name of 64 KiB", tooLarge, strings.Repeat("x", 64<<10)+": x"),
		one("a thousand headers", append(tooLarge, fine...), strings.Split(strings.Repeat("X: y\x00", 1000), "\x00")[:1000]...),
		one("ten thousand headers", tooLarge, strings.Split(strings.Repeat("X: y\x00", 10000), "\x00")[:10000]...),
		one("a NUL in a value", refused, "X: a\x00b"),
		one("a NUL in a name", refused, "X\x00: a"),
		one("no name", append(refused, fine...), ": a"),
		one("no colon", append(refused, fine...), "Xyz"),
		one("bytes in a value", fine, "X: \xff\xfe"),
		one("a connection that lists the host", fine, "Connection: close, Host, X-Forwarded-For"),
		one("a bad Connection", fine, "Connection: \xff"),
		one("Proxy", fine, "Proxy: http://evil.test"),
		one("a range", fine, "Range: bytes="+strings.Repeat("0-,", 1000)),
		one("many X-Forwarded-For", fine, "X-Forwarded-For: "+strings.Repeat("1.2.3.4, ", 500), "X-Forwarded-For: not an address"),
		one("a long X-Request-ID", fine, "X-Request-ID: "+strings.Repeat("x", 4000)),
		one("a policy of ours", fine, "X-Headgate-Policy: 1,1,1,1", "Headgate-Upstream: default/admin/80"),
		one("an explanation", fine, "X-Headgate-Explain: 1", "X-Headgate-Sent: 1"),
		{name: "a PROXY header", raw: "PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n" + get("/", "Host: one.test"), wants: refused},
		{name: "a PROXY header in bytes", raw: "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + strings.Repeat("\x7f", 12) + get("/", "Host: one.test"), wants: refused},
		one("Accept-Encoding and TE", fine, "TE: trailers, deflate", "Trailer: Host"),
	}
}

func upgrades() []probe {
	up := func(name, protocol, connection string, wants []string, more ...string) probe {
		lines := append([]string{"Host: one.test", "Connection: " + connection, "Upgrade: " + protocol}, more...)
		return probe{name: name, raw: get("/ws", lines...), wants: wants}
	}
	plain := []string{"200 one → one /ws"}
	return []probe{
		// The tunnel of a client that speaks HTTP/2 to the backend would pass by the router.
		up("h2c", "h2c", "Upgrade, HTTP2-Settings", plain, "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
		up("h2c in other letters", "H2C", "Upgrade", plain),
		up("h2c in a list", "websocket, h2c", "Upgrade", plain),
		up("h2c and another line", "h2c", "Upgrade", plain, "Upgrade: websocket"),
		up("h2c behind a space", "foo,  h2c ", "Upgrade", plain),
	}
}

func TestHTTP1(t *testing.T) {
	t.Parallel()
	g := start(t, "")
	site(t, g)
	defer g.stillWell(t, "one.test", "200 one")
	for group, probes := range map[string][]probe{
		"smuggling": smuggling(), "hosts": hosts(), "targets": targets(), "headers": headers(), "upgrades": upgrades(),
	} {
		for _, p := range probes {
			t.Run(group+"/"+p.name, func(t *testing.T) { g.check(t, p) })
		}
	}
}

// stillWell tells whether the site is served as before and no worker had to be started anew or complains.
func (g *gateway) stillWell(t *testing.T, host, want string) {
	t.Helper()
	g.wants(host, "/", want)
	s := g.status()
	if s.Proxy.Restarts != 0 || s.Error != "" || s.Failures != 0 {
		t.Errorf("after it all: %+v", s)
	}
	for _, w := range s.Proxy.Workers {
		if len(w.Errors) > 0 {
			t.Errorf("worker %d complains: %q", w.PID, w.Errors)
		}
	}
}

func (g *gateway) check(t *testing.T, p probe) {
	t.Helper()
	got := g.outcome(t, p)
	for _, want := range p.wants {
		if got == want {
			return
		}
	}
	t.Errorf("%q\ngot  %s\nwant one of %q", cut(p.raw, 400), cut(got, 1000), p.wants)
}
