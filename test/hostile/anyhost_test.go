package hostile

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// A host that nobody claims is served by the catch-all, and there any name goes: what a client writes into Host
// comes back in a Location, reaches a backend, is looked up.
func anyHosts() []string {
	return []string{
		"a;b", "a,b", "a(b)", "{a}", `"a"`, "'a'", `a\b`, "$host", "${http_x}", "a=b&c", "<a>", "a|b", "a`b`", "%61", "%0d%0aX:y", "a@b", "a:b@c",
		"*", "*.test", ".", ".a", "-", "_", "a_b", "[::1]", "[::1]:8", "[x]", "1.2.3.4:99", "ä.test", "\xff\xfe", strings.Repeat("x", 3000),
		strings.Repeat("x.", 1500), "stranger.test:443", "stranger.test:", "stranger.test:x", "STRANGER.test.",
	}
}

func TestAnyHost(t *testing.T) {
	t.Parallel()
	g := start(t, "")
	g.write("any.yaml", class+
		ingress("any", "", prefix("/", "any"), prefix("/safe", "safe"))+
		ingress("force", "*.force.test", prefix("/", "safe"), annotated("force-ssl-redirect", "true"))+
		g.service("any")+g.service("safe")+
		ingress("sentinel", "sentinel.test", prefix("/", "sentinel"))+g.service("sentinel"))
	g.settle()
	for _, h := range anyHosts() {
		t.Run("served/"+cut(h, 20), func(t *testing.T) {
			g.check(t, probe{raw: get("/x", "Host: "+h, "Connection: close"), wants: []string{"200 any → any /x", "400 → "}})
		})
	}
	t.Run("the backend sees one plain Host", func(t *testing.T) {
		for _, raw := range []string{"GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.0\r\nHost:\r\n\r\n", get("/", "Host: a.test:1:2", "Connection: close")} {
			a, err := g.exchange(raw, "GET")
			if err != nil || a.status == 400 {
				continue
			}
			if host := a.seen.header("Host"); len(host) != 1 || strings.Count(host[0], ":") > 1 || host[0] == "" {
				t.Errorf("%q reached the backend with Host %q", raw, host)
			}
		}
	})
	g.stillWell(t, "x.test", "200 any")
}

// A redirect to https must never be talked out of, whatever the client calls the host: no request reaches the
// backend, and the Location leads to the host that was asked.
func TestForcedRedirect(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]string{
		"untrusted": "", "trusting": "useForwardedHeaders: true\ntrustedProxies: [127.0.0.0/8]\n",
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, config)
			g.write("any.yaml", class+
				ingress("any", "", prefix("/", "any"), annotated("force-ssl-redirect", "true"))+g.service("any"))
			g.settle()
			trusting := config != ""
			for _, h := range anyHosts() {
				t.Run(cut(h, 20), func(t *testing.T) { redirectsOf(t, g, h, trusting) })
			}
		})
	}
}

func redirectsOf(t *testing.T, g *gateway, host string, trusting bool) {
	t.Helper()
	for _, more := range []string{"X: y", "X-Forwarded-Host: " + host, "X-Forwarded-Host: evil.test, " + host,
		"X-Forwarded-Proto: HTTP", "X-Forwarded-Proto: ftp", "X-Forwarded-Proto: http, https"} {
		if strings.HasPrefix(more, "X-Forwarded-Proto") && trusting {
			continue // a proxy that is trusted may say so
		}
		for _, target := range []string{"/x", "//evil.test/x", "/\\evil.test", "/?a=//evil.test", "/@evil.test"} {
			redirected(t, g, get(target, "Host: "+host, "Connection: close", more))
		}
	}
}

// redirected sends a request that must be redirected to the host that it asked, or refused.
func redirected(t *testing.T, g *gateway, raw string) {
	t.Helper()
	a, err := g.exchange(raw, "GET")
	if err != nil {
		return // refused without a word
	}
	switch a.status {
	case 400:
	case 308:
		to, err := url.Parse(a.header.Get("Location"))
		if err != nil || to.Scheme != "https" || to.Host == "" || to.User != nil {
			t.Fatalf("%q: Location %q: %v", cut(raw, 200), a.header.Get("Location"), err)
		}
		asked := strings.Contains(strings.ToLower(raw), "host: "+strings.ToLower(to.Hostname())) || to.Hostname() == "::1" || strings.Contains(raw, ", ")
		if !asked {
			t.Fatalf("%q: led to %q", cut(raw, 200), to.Host)
		}
	default:
		t.Fatalf("%q: got %s", cut(raw, 200), a)
	}
	if list := g.backend("any").requests(); len(list) > 0 {
		t.Errorf("%q reached the backend: %q", cut(raw, 200), cut(fmt.Sprint(list[0].Head), 200))
	}
}
