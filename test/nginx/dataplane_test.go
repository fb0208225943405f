// Package nginx_test runs the data plane in a real nginx on loopback: rendered configuration, Lua
// files, pushed state.
package nginx_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"headgate/gateway/model"
)

// dpServe starts a proxy with one backend "d/a/80" and the hosts.
func dpServe(t *testing.T, settings model.Settings, hosts ...*model.Host) (*dpProxy, *dpBackend) {
	t.Helper()
	a := dpNewBackend(t, "a")
	p := dpStart(t, settings)
	p.model.Upstreams = []*model.Upstream{dpUpstream("d/a/80", a)}
	p.model.Hosts = hosts
	p.push()
	return p, a
}

// TestPathMatching is the path match table of the Kubernetes documentation (concepts, Ingress,
// "Examples"): each row is a host with its paths, a request, and the path that must win ("" for none).
func TestPathMatching(t *testing.T) {
	exact, prefix := model.PathExact, model.PathPrefix
	type match struct {
		kind model.PathType
		path string
	}
	rows := []struct {
		paths   []match // in matching order, as build sorts them
		request string
		want    string
	}{
		{[]match{{prefix, "/"}}, "/any/path", "/"},
		{[]match{{exact, "/foo"}}, "/foo", "/foo"},
		{[]match{{exact, "/foo"}}, "/bar", ""},
		{[]match{{exact, "/foo"}}, "/foo/", ""},
		{[]match{{exact, "/foo/"}}, "/foo", ""},
		{[]match{{prefix, "/foo"}}, "/foo", "/foo"},
		{[]match{{prefix, "/foo"}}, "/foo/", "/foo"},
		{[]match{{prefix, "/foo/"}}, "/foo", "/foo/"},
		{[]match{{prefix, "/foo/"}}, "/foo/", "/foo/"},
		{[]match{{prefix, "/aaa/bb"}}, "/aaa/bbb", ""},
		{[]match{{prefix, "/aaa/bbb"}}, "/aaa/bbb", "/aaa/bbb"},
		{[]match{{prefix, "/aaa/bbb/"}}, "/aaa/bbb", "/aaa/bbb/"},
		{[]match{{prefix, "/aaa/bbb"}}, "/aaa/bbb/", "/aaa/bbb"},
		{[]match{{prefix, "/aaa/bbb"}}, "/aaa/bbb/ccc", "/aaa/bbb"},
		{[]match{{prefix, "/aaa/bbb"}}, "/aaa/bbbxyz", ""},
		{[]match{{prefix, "/aaa"}, {prefix, "/"}}, "/aaa/ccc", "/aaa"},
		{[]match{{prefix, "/aaa/bbb"}, {prefix, "/aaa"}, {prefix, "/"}}, "/aaa/bbb", "/aaa/bbb"},
		{[]match{{prefix, "/aaa"}, {prefix, "/"}}, "/ccc", "/"},
		{[]match{{prefix, "/aaa"}}, "/ccc", ""},
		{[]match{{exact, "/foo"}, {prefix, "/foo"}}, "/foo", "/foo"},
		{[]match{{prefix, "/aaa"}}, "/aaacccc", ""},
		{[]match{{prefix, "/aaa"}}, "/AAA", ""},
	}
	p := dpStart(t, dpSettings())
	backends := map[string]*dpBackend{}
	for i, row := range rows {
		h := &model.Host{Name: model.HostName(fmt.Sprintf("row%d.test", i))}
		for _, m := range row.paths {
			if backends[m.path] == nil {
				backends[m.path] = dpNewBackend(t, m.path)
				p.model.Upstreams = append(p.model.Upstreams, dpUpstream(model.UpstreamID("d"+m.path), backends[m.path]))
			}
			h.Routes = append(h.Routes, dpRoute(m.kind, m.path, model.UpstreamID("d"+m.path)))
		}
		p.model.Hosts = append(p.model.Hosts, h)
	}
	p.push()
	for i, row := range rows {
		got := p.get(fmt.Sprintf("row%d.test", i), row.request)
		switch {
		case row.want == "" && (got.status != 404 || got.body != "default backend - 404"):
			t.Errorf("%v %s: %d %q, want 404", row.paths, row.request, got.status, got.body)
		case row.want != "" && (got.seen == nil || got.seen.Backend != row.want):
			t.Errorf("%v %s: %d %q, want %s", row.paths, row.request, got.status, got.body, row.want)
		}
	}
}

func TestHosts(t *testing.T) {
	p, _ := dpServe(t, dpSettings(),
		dpHost("a.foo.test", dpRoute(model.PathPrefix, "/exact", "d/a/80")),
		dpHost("*.foo.test", dpRoute(model.PathPrefix, "/", "d/a/80")),
	)
	for _, c := range []struct {
		host, path string
		want       int
	}{
		{"a.foo.test", "/exact", 200},
		{"a.foo.test", "/", 404}, // an exact host that knows no such path does not fall back
		{"b.foo.test", "/", 200},
		{"B.FOO.test.", "/", 200},
		{"b.foo.test:8080", "/", 200},
		{"a.b.foo.test", "/", 404},
		{"foo.test", "/", 404},
		{".foo.test", "/", 404},
		{"*.foo.test", "/", 404},
		{"x.test", "/", 404},
		{strings.Repeat("a", 300) + ".test", "/", 404},
	} {
		if got := p.get(c.host, c.path); got.status != c.want {
			t.Errorf("Host %s %s: %d, want %d", c.host, c.path, got.status, c.want)
		}
	}
	p.model.Hosts = append(p.model.Hosts, dpHost("", dpRoute(model.PathPrefix, "/", "d/a/80")))
	p.push()
	for _, host := range []string{"x.test", "a.b.foo.test", strings.Repeat("a", 300) + ".test"} {
		if got := p.get(host, "/"); got.status != 200 {
			t.Errorf("any host: Host %s: %d", host, got.status)
		}
	}
}

func TestRegexHost(t *testing.T) {
	rewrite := model.RewritePath{Parts: []model.RewritePart{{Literal: "/new/"}, {Group: 2}}}
	query := model.RewritePath{Parts: []model.RewritePart{{Literal: "/q?was="}, {Group: 1}}}
	bare := model.RewritePath{Parts: []model.RewritePart{{Group: 1}}}
	h := dpHost("re.test",
		dpRoute(model.PathRegex, "/something(/|$)(.*)", "d/a/80", rewrite),
		dpRoute(model.PathRegex, "/query/([^/]*)", "d/a/80", query),
		dpRoute(model.PathRegex, "/bare/(.*)", "d/a/80", bare),
		dpRoute(model.PathRegex, "/plain[0-9]+", "d/a/80"),
		dpRoute(model.PathRegex, "/(a+)+$", "d/a/80"),
	)
	h.Regex = true
	p, _ := dpServe(t, dpSettings(), h)
	for _, c := range []struct{ path, want string }{
		{"/something", "/new/"},
		{"/something/x/y?q=1", "/new/x/y?q=1"},
		{"/SomeThing/x", "/new/x"},
		{"/something/a%20b%3Fc%25", "/new/a%20b%3Fc%25"},
		{"/something/%C3%A9", "/new/%C3%A9"},
		{"/something/$1$host;'x", "/new/$1$host;'x"},
		{"/query/v%26w?x=1", "/q?was=v%26w&x=1"},
		{"/query/", "/q?was="},
		{"/bare/up", "/up"},
		{"/plain42/a//b%2Fc", "/plain42/a//b%2Fc"},
	} {
		got := p.get("re.test", c.path)
		if got.seen == nil || got.seen.URI != c.want {
			t.Errorf("%s: %d %s, want URI %s", c.path, got.status, got.body, c.want)
		}
	}
	for path, want := range map[string]int{
		"/x/something/y":                    404, // anchored at the start
		"/plain":                            404,
		"/" + strings.Repeat("a", 40) + "!": 503, // the match limit ends it
	} {
		if got := p.get("re.test", path); got.status != want {
			t.Errorf("%s: %d, want %d", path, got.status, want)
		}
	}
}

// TestURIs: routing looks at the normalised path, the peer gets what the client sent.
func TestURIs(t *testing.T) {
	p, _ := dpServe(t, dpSettings(), dpHost("a.test", dpRoute(model.PathPrefix, "/a/b", "d/a/80")))
	for _, c := range []struct {
		path string
		want int
	}{
		{"/a/b", 200}, {"//a//b", 200}, {"/a%2Fb", 200}, {"/a/./b/../b", 200}, {"/%61/b?x=%2F%00", 200},
		{"/a/b/%E4%BD%A0", 200}, {"/a/b/..", 404}, {"/A/b", 404}, {"/a/b%00", 400},
	} {
		got := p.get("a.test", c.path)
		if got.status != c.want {
			t.Errorf("%s: %d, want %d", c.path, got.status, c.want)
		}
		if got.seen != nil && got.seen.URI != c.path {
			t.Errorf("%s: the peer saw %s", c.path, got.seen.URI)
		}
	}
}

// TestOddRequests: whatever arrives is answered, never by a 500 and never by an error in Lua.
func TestOddRequests(t *testing.T) {
	p, a := dpServe(t, dpSettings(),
		dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")),
		dpHost("b.test", dpRoute(model.PathPrefix, "/b", "d/a/80")))
	closing := "\r\nConnection: close\r\n\r\n"
	for _, c := range []struct {
		name, request, want string
	}{
		{"absolute form wins over Host", "GET http://a.test/x HTTP/1.1\r\nHost: b.test" + closing, `"Host":"a.test"`},
		{"absolute form with a port", "GET http://a.test:81/x HTTP/1.1\r\nHost: a.test:81" + closing, `"Host":"a.test:81"`},
		{"absolute form without a path", "GET http://a.test HTTP/1.1\r\nHost: a.test" + closing, `"URI":"/"`},
		{"HTTP/1.0 without Host", "GET / HTTP/1.0\r\n\r\n", " 404 "},
		{"HTTP/1.0 with an absolute form", "GET http://a.test/ HTTP/1.0\r\n\r\n", `"Host":"a.test"`},
		{"HTTP/1.1 without Host", "GET / HTTP/1.1" + closing, " 400 "},
		{"two Hosts", "GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test" + closing, " 400 "},
		{"Host with a slash", "GET / HTTP/1.1\r\nHost: a.test/../b" + closing, " 400 "},
		{"Host with quotes", "GET / HTTP/1.1\r\nHost: \"a\"$host;" + closing, " 404 "},
		{"Host of an address", "GET / HTTP/1.1\r\nHost: [::1]:80" + closing, " 404 "},
		{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: a.test" + closing, " 400 "},
		{"CONNECT", "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test" + closing, " 40"},
		{"unknown method", "BREW / HTTP/1.1\r\nHost: a.test" + closing, `"Method":"BREW"`},
		{"HEAD", "HEAD / HTTP/1.1\r\nHost: x.test" + closing, " 404 "},
		{"garbage", "\x16\x03\x01\x02\x00\r\n\r\n", "400"},
		{"space in the target", "GET /a b HTTP/1.1\r\nHost: a.test" + closing, " 400 "},
		{"a body that is not awaited", "POST / HTTP/1.1\r\nHost: x.test\r\nContent-Length: 36\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a.test" +
			"GET /next HTTP/1.1\r\nHost: a.test" + closing, `"URI":"/next"`},
	} {
		got := p.raw(c.request)
		if !strings.Contains(got, c.want) || strings.Contains(got, " 500 ") {
			t.Errorf("%s: got %q, want %q in it", c.name, got, c.want)
		}
		if strings.Contains(got, "/smuggled") {
			t.Errorf("%s: the body became a request: %q", c.name, got)
		}
	}
	if a.requests.Load() == 0 {
		t.Error("no request reached the backend")
	}
}

func TestRedirects(t *testing.T) {
	redirect := model.RedirectHTTPS{Status: 308}
	keep := model.RedirectHTTPS{Status: 308, KeepTrailingSlash: true}
	hosts := []*model.Host{
		dpHost("tls.test", dpRoute(model.PathPrefix, "/", "d/a/80", redirect)),
		dpHost("slash.test", dpRoute(model.PathPrefix, "/", "d/a/80", keep)),
		dpHost("plain.test", dpRoute(model.PathPrefix, "/", "d/a/80")),
	}
	p, _ := dpServe(t, dpSettings(), hosts...)
	for _, c := range []struct{ host, path, location string }{
		{"tls.test", "/", "https://tls.test"},
		{"tls.test:8080", "/x/?q=/", "https://tls.test/x/?q=/"},
		{"TLS.test", "//evil/", "https://TLS.test//evil"},
		{"slash.test", "/x/", "https://slash.test/x/"},
		{"tls.test", "/.well-known/acme-challenge/t", ""},
		{"plain.test", "/", ""},
	} {
		got := p.get(c.host, c.path)
		if got.header.Get("Location") != c.location || (c.location != "") != (got.status == 308) {
			t.Errorf("%s%s: %d to %q, want %q", c.host, c.path, got.status, got.header.Get("Location"), c.location)
		}
	}
	if got := p.do(dpRequest{host: "tls.test", path: "/", tls: true}); got.status != 200 {
		t.Errorf("https is redirected too: %d", got.status)
	}
	p.model.Settings.RedirectPort = 8443
	p.push()
	if got := p.get("tls.test", "/x").header.Get("Location"); got != "https://tls.test:8443/x" {
		t.Errorf("with a port: %q", got)
	}
}

func TestHSTSOnEveryHTTPSAnswer(t *testing.T) {
	p, _ := dpServe(t, dpSettings(), dpHost("a.test", dpRoute(model.PathPrefix, "/a", "d/a/80")))
	const want = "max-age=31536000; includeSubDomains"
	for _, path := range []string{"/a", "/unknown", "/a%00"} {
		got := p.do(dpRequest{host: "a.test", path: path, tls: true}).header.Values("Strict-Transport-Security")
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q", path, got)
		}
	}
	if got := p.get("a.test", "/unknown").header.Values("Strict-Transport-Security"); len(got) != 0 {
		t.Errorf("over http: %q", got)
	}
}

func TestRequestHeaders(t *testing.T) {
	sent := map[string]string{
		"X-Forwarded-For": "1.2.3.4", "X-Forwarded-Host": "a.com, b", "X-Forwarded-Proto": "myproto",
		"X-Forwarded-Port": "1234", "X-Real-IP": "6.6.6.6", "X-Scheme": "x", "X-Forwarded-Scheme": "x", "Proxy": "evil",
	}
	host := dpHost("h.test", dpRoute(model.PathPrefix, "/", "d/a/80", model.RedirectHTTPS{Status: 308}))
	plain := dpHost("p.test", dpRoute(model.PathPrefix, "/", "d/a/80"))
	trust := dpSettings()
	trust.UseForwardedHeaders = true
	trust.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	stranger := trust
	stranger.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}

	untrusted := func(port uint16) map[string]string {
		return map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1", "X-Forwarded-Host": "p.test",
			"X-Forwarded-Port": fmt.Sprint(port), "X-Forwarded-Proto": "http", "X-Forwarded-Scheme": "http", "X-Scheme": "http",
			"X-Original-Forwarded-For": "1.2.3.4", "X-Original-Forwarded-Host": "a.com, b", "Proxy": "",
		}
	}
	check := func(t *testing.T, got dpResponse, wantHost string, want map[string]string) {
		t.Helper()
		if got.seen == nil {
			t.Fatalf("%d %s", got.status, got.body)
		}
		if got.seen.Host != wantHost {
			t.Errorf("Host %q, want %q", got.seen.Host, wantHost)
		}
		for name, value := range want {
			if have := got.seen.Header.Get(name); have != value {
				t.Errorf("%s: %q, want %q", name, have, value)
			}
		}
	}
	for name, settings := range map[string]model.Settings{"off": dpSettings(), "not trusted": stranger} {
		t.Run(name, func(t *testing.T) {
			p, _ := dpServe(t, settings, host, plain)
			check(t, p.do(dpRequest{host: "p.test", path: "/", header: sent}), "p.test", untrusted(p.http.Port()))
			// A stranger's X-Forwarded-Proto does not switch the redirect off.
			h := map[string]string{"X-Forwarded-Proto": "https"}
			if got := p.do(dpRequest{host: "h.test", path: "/", header: h}); got.status != 308 {
				t.Errorf("redirect: %d", got.status)
			}
		})
	}
	t.Run("trusted", func(t *testing.T) {
		p, _ := dpServe(t, trust, host, plain)
		check(t, p.do(dpRequest{host: "p.test", path: "/", header: sent}), "a.com", map[string]string{
			"X-Forwarded-For": "1.2.3.4", "X-Real-Ip": "1.2.3.4", "X-Forwarded-Host": "a.com", "X-Forwarded-Port": "1234",
			"X-Forwarded-Proto": "myproto", "X-Forwarded-Scheme": "myproto", "X-Scheme": "myproto",
			"X-Original-Forwarded-For": "1.2.3.4", "X-Original-Forwarded-Host": "a.com, b", "Proxy": "",
		})
		check(t, p.get("p.test", "/"), "p.test", map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "p.test", "X-Forwarded-Proto": "http",
			"X-Forwarded-Port": fmt.Sprint(p.http.Port()), "X-Original-Forwarded-For": "",
		})
		h := map[string]string{"X-Forwarded-Proto": "https"}
		if got := p.do(dpRequest{host: "h.test", path: "/", header: h}); got.status != 200 {
			t.Errorf("a trusted proxy says https: %d", got.status)
		}
		h = map[string]string{"X-Forwarded-Host": "first.test:81, second", "X-Forwarded-Proto": "http"}
		got := p.do(dpRequest{host: "h.test", path: "/x", header: h, tls: true})
		if got.status != 308 || got.header.Get("Location") != "https://first.test/x" {
			t.Errorf("a trusted proxy says http: %d to %q", got.status, got.header.Get("Location"))
		}
	})
	t.Run("request id", func(t *testing.T) {
		p, _ := dpServe(t, dpSettings(), plain)
		digits := regexp.MustCompile(`^[0-9a-f]{32}$`)
		seen := map[string]bool{}
		for range 500 {
			id := p.get("p.test", "/").seen.Header.Get("X-Request-Id")
			if !digits.MatchString(id) || seen[id] {
				t.Fatalf("generated: %q, made before: %t", id, seen[id])
			}
			seen[id] = true
		}
		got := p.do(dpRequest{host: "p.test", path: "/", header: map[string]string{"X-Request-ID": "mine"}})
		if id := got.seen.Header.Get("X-Request-Id"); id != "mine" {
			t.Errorf("kept: %q", id)
		}
	})
}

func TestBodyLimits(t *testing.T) {
	big := dpRoute(model.PathPrefix, "/big", "d/a/80")
	big.MaxBodyBytes, big.Profile.BodyClass = 2<<20, model.Body16M
	small := dpRoute(model.PathPrefix, "/small", "d/a/80")
	small.MaxBodyBytes = 1000
	open := dpRoute(model.PathPrefix, "/open", "d/a/80")
	open.MaxBodyBytes, open.Profile.BodyClass = 0, model.BodyUnlimited
	routes := []*model.Route{big, small, open, dpRoute(model.PathPrefix, "/", "d/a/80")}
	p := dpStart(t, dpSettings(), big.Profile, open.Profile)
	p.model.Upstreams = []*model.Upstream{dpUpstream("d/a/80", dpNewBackend(t, "a"))}
	p.model.Hosts = []*model.Host{dpHost("a.test", routes...)}
	p.push()
	for _, c := range []struct {
		path    string
		size    int
		chunked bool
		want    int
	}{
		{"/", 1 << 20, false, 200},
		{"/", 1<<20 + 1, false, 413},
		{"/", 1 << 20, true, 200},
		{"/", 3 << 20, true, 413},
		{"/small", 1000, false, 200},
		{"/small", 1001, false, 413},
		{"/big/a%2Fb//c", 2 << 20, false, 200},
		{"/big", 2<<20 + 1, false, 413},
		{"/big", 10 << 20, true, 200}, // a length that nobody told is capped by the class
		{"/big", 17 << 20, true, 413},
		{"/open", 20 << 20, false, 200},
		{"/open", 20 << 20, true, 200},
	} {
		for _, over := range []struct{ tls, http2 bool }{{}, {true, false}, {true, true}} {
			var body io.Reader = bytes.NewReader(make([]byte, c.size))
			if c.chunked {
				body = io.MultiReader(body) // hides the length
			}
			got := p.do(dpRequest{method: http.MethodPost, host: "a.test", path: c.path, body: body, tls: over.tls, http2: over.http2})
			if got.status != c.want {
				t.Errorf("%+v over %+v: %d, want %d", c, over, got.status, c.want)
			}
			if got.seen != nil && (got.seen.BodyBytes != int64(c.size) || got.seen.URI != c.path) {
				t.Errorf("%+v over %+v: the peer saw %s with %d bytes", c, over, got.seen.URI, got.seen.BodyBytes)
			}
			if over.http2 && got.proto != "HTTP/2.0" {
				t.Errorf("%+v: %s", c, got.proto)
			}
		}
	}
}

func TestUnavailable(t *testing.T) {
	broken := dpRoute(model.PathPrefix, "/broken", "d/a/80")
	broken.Unavailable = "its Secret is missing"
	p, _ := dpServe(t, dpSettings(), dpHost("a.test", broken,
		dpRoute(model.PathPrefix, "/missing", "d/missing/80"), dpRoute(model.PathPrefix, "/none", "d/none/80")))
	p.model.Upstreams = append(p.model.Upstreams, dpUpstream("d/none/80"))
	p.push()
	for _, path := range []string{"/broken", "/missing", "/none"} {
		if got := p.get("a.test", path); got.status != 503 || strings.Contains(got.body, "Secret") {
			t.Errorf("%s: %d %q", path, got.status, got.body)
		}
	}
}

func TestCertificatesBySNI(t *testing.T) {
	settings := dpSettings()
	settings.WorkerProcesses = 1 // a worker keeps what it has parsed itself
	p := dpStart(t, settings)
	tlsHost := func(name model.HostName, id model.CertificateID) *model.Host {
		return &model.Host{Name: name, TLS: true, Certificate: id}
	}
	p.model.Certificates = []*model.Certificate{
		dpCertificate(t, "d/exact", "exact"), dpCertificate(t, "d/wild", "wild"), dpCertificate(t, "d/fallback", "fallback"),
	}
	p.model.Hosts = []*model.Host{
		tlsHost("a.foo.test", "d/exact"), tlsHost("*.foo.test", "d/wild"), tlsHost("gone.test", "d/gone"), tlsHost("own.test", ""),
	}
	p.push()
	check := func(cases map[string]string) {
		t.Helper()
		for sni, want := range cases {
			got := p.do(dpRequest{host: "x.test", path: "/", tls: true, sni: sni})
			if got.peer.Subject.CommonName != want {
				t.Errorf("SNI %q: %s, want %s", sni, got.peer.Subject.CommonName, want)
			}
		}
	}
	check(map[string]string{
		"a.foo.test": "exact", "A.FOO.test": "exact", "b.foo.test": "wild", "a.b.foo.test": "default.invalid",
		"foo.test": "default.invalid", "gone.test": "default.invalid", "own.test": "default.invalid", "unknown.test": "default.invalid",
		"127.0.0.1": "default.invalid", // an address is never sent as SNI
	})
	p.model.Settings.DefaultCertificate = "d/fallback"
	renewed := dpCertificate(t, "d/exact", "renewed")
	p.model.Certificates[0] = renewed
	p.push()
	check(map[string]string{
		"a.foo.test": "renewed", "b.foo.test": "wild", "unknown.test": "fallback", "gone.test": "fallback", "127.0.0.1": "fallback",
	})
	// A certificate that is kept stays; one that does not parse leaves the one before it.
	p.model.Certificates[0] = &model.Certificate{ID: "d/exact", Keep: true}
	p.model.Certificates[1] = &model.Certificate{ID: "d/wild", Chain: [][]byte{[]byte("no DER")}, Key: model.Secret("none")}
	p.push()
	check(map[string]string{"a.foo.test": "renewed", "b.foo.test": "wild"})
	p.eventually("the certificate that cannot be parsed is reported", func() error {
		for _, w := range p.state().Workers {
			for _, e := range w.Errors {
				if strings.HasPrefix(e, "cert/d/wild: ") {
					return nil
				}
			}
		}
		return fmt.Errorf("%+v", p.state().Workers)
	})
}

func TestTLSVersions(t *testing.T) {
	p := dpStart(t, dpSettings())
	for version, want := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		conn, err := tls.Dial("tcp", p.https.String(), &tls.Config{ //nolint:gosec // the test is about versions
			InsecureSkipVerify: true, MinVersion: version, MaxVersion: version,
		})
		if (err == nil) != want {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// TestWebSocketOutlivesPushes: a tunnel goes on while routes and peers change around it.
func TestWebSocketOutlivesPushes(t *testing.T) {
	p, _ := dpServe(t, dpSettings(), dpHost("ws.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	conn, err := net.Dial("tcp", p.http.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(dpDeadline))
	_, err = io.WriteString(conn, "GET /chat HTTP/1.1\r\nHost: ws.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", res, err)
	}
	echo := func(line string) {
		t.Helper()
		if _, err := fmt.Fprintln(conn, line); err != nil {
			t.Fatal(err)
		}
		if got, err := r.ReadString('\n'); err != nil || got != line+"\n" {
			t.Fatalf("%q, %v; want %q", got, err, line)
		}
	}
	echo("before")
	p.model.Hosts = append(p.model.Hosts, dpHost("more.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	p.push()
	echo("after a new host")
	p.model.Upstreams = []*model.Upstream{dpUpstream("d/a/80", dpNewBackend(t, "other"))}
	p.push()
	echo("after its peer left")
	p.reload()
	echo("after a reload")
}

// TestAccessLogHoldsNoQueries: tokens and codes travel in queries; the log must not keep them.
func TestAccessLogHoldsNoQueries(t *testing.T) {
	a := dpNewBackend(t, "a")
	p := dpStart(t, dpSettings())
	p.model.Upstreams = []*model.Upstream{dpUpstream("d/a/80", a)}
	p.model.Hosts = []*model.Host{dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80"))}
	p.layout.AccessLog = p.dir + "/access.log"
	old := p.workerPIDs()
	p.reload()
	p.settle(old)
	p.push()
	p.do(dpRequest{host: "a.test", path: "/login?token=s3cret", header: map[string]string{
		"Referer": "https://x.test/page?code=s3cret", "Authorization": "Bearer s3cret", "Cookie": "id=s3cret", "X-Request-ID": "id7",
	}})
	want := regexp.MustCompile(`^127\.0\.0\.1 - - \[[^]]+\] "GET /login HTTP/1\.1" 200 \d+ "https://x\.test/page" "Go-http-client/1\.1" \d+ [\d.]+ \[d/a/80\] \[\] ` +
		regexp.QuoteMeta(a.address.String()) + ` \d+ [\d.]+ 200 id7\n$`)
	p.eventually("the request is logged", func() error {
		b, err := os.ReadFile(p.layout.AccessLog)
		if err == nil && (!want.Match(b) || bytes.Contains(b, []byte("s3cret"))) {
			err = fmt.Errorf("%q", b)
		}
		return err
	})
}
