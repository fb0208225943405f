package acceptance

import (
	"fmt"
	"strings"
	"testing"
)

// problem is one of the daemon's own account.
type problem struct{ name, field, reason, message string }

// problemsOf gives what is told of one Ingress.
func (g *gateway) problemsOf(ingress string) []problem {
	g.t.Helper()
	var list []problem
	all, _ := g.status()["problems"].([]any)
	for _, one := range all {
		fields, _ := one.(map[string]any)
		text := func(key string) string { s, _ := fields[key].(string); return s }
		if text("name") == ingress {
			list = append(list, problem{text("name"), text("field"), text("reason"), text("message")})
		}
	}
	return list
}

// TestRowsNotServedYet runs the rows whose annotations are not served: each is told on its Ingress, with what becomes of it, and
// nothing is open that was closed. A row that gets served leaves this list for a case of its own.
func TestRowsNotServedYet(t *testing.T) {
	g := start(t, "")
	rows := map[string]struct {
		pairs  []string // annotations; each of them is told
		answer string
		word   string // of what is told
	}{
		"W02 app-root":               {[]string{"app-root", "/foo"}, "200 echo", "served without it"},
		"W03 permanent-redirect":     {[]string{"permanent-redirect", "http://redirect.example.com"}, "200 echo", "served without it"},
		"W05 temporal-redirect":      {[]string{"temporal-redirect", "http://t.example.com"}, "200 echo", "served without it"},
		"W06 www":                    {[]string{"from-to-www-redirect", "true"}, "200 echo", "served without it"},
		"W14 x-forwarded-prefix":     {[]string{"x-forwarded-prefix", "/test/value"}, "200 echo", "served without it"},
		"W16 custom-headers":         {[]string{"custom-headers", "default/cm"}, "200 echo", "served without it"},
		"W17 relative-redirects":     {[]string{"relative-redirects", "true"}, "200 echo", "served without it"},
		"A01 A03 basic-auth":         {[]string{"auth-type", "basic", "auth-secret", "x", "auth-realm", "x"}, "503", ""},
		"A05 A07 A11 ext-auth":       {[]string{"auth-url", "http://auth.example.com/"}, "503", "answer 503"},
		"A06 ext-auth-headers":       {[]string{"auth-url", "http://a.example.com", "auth-response-headers", "User, Foo"}, "503", ""},
		"A10 global-auth":            {[]string{"enable-global-auth", "false"}, "200 echo", "served without it"},
		"A12 auth-tls":               {[]string{"auth-tls-secret", "default/ca"}, "503", "answer 503"},
		"A16 denylist-source-range":  {[]string{"denylist-source-range", "18.1.0.0/16"}, "503", "answer 503"},
		"A16 whitelist-source-range": {[]string{"whitelist-source-range", "18.0.0.0/8"}, "503", "answer 503"},
		"A16 allowlist-source-range": {[]string{"allowlist-source-range", "18.0.0.0/8"}, "503", "answer 503"},
		"C01 C02 cors":               {[]string{"enable-cors", "true"}, "200 echo", "served without it"},
		"K01 K02 K05 K06 canary":     {[]string{"canary", "true"}, "404", "left out"},
		"no canary":                  {[]string{"canary", "false"}, "200 echo", "served without it"},
		"E01 custom-errors":          {[]string{"custom-http-errors", "404,500"}, "200 echo", "served without it"},
		"E02 default-backend":        {[]string{"default-backend", "echo"}, "200 echo", "served without it"},
		"E06 limit-connections":      {[]string{"limit-connections", "8"}, "200 echo", "served without it"},
		"I05 snippets-off":           {[]string{"server-snippet", "return 418;", "configuration-snippet", "return 418;"}, "200 echo", "served without it"},
	}
	manifests := g.service("echo")
	names := map[string]string{}
	for row, c := range rows {
		names[row] = fmt.Sprintf("row-%d", len(names))
		manifests = join(manifests, ingress(names[row], names[row]+".test", "/", "Prefix", "echo", annotations(c.pairs...)))
	}
	g.apply(manifests)
	for row, c := range rows {
		t.Run(row, func(t *testing.T) {
			outer := g.t
			g.t = t
			defer func() { g.t = outer }()
			g.wants("http://"+names[row]+".test/", c.answer)
			told := g.problemsOf(names[row])
			for i := 0; i < len(c.pairs); i += 2 {
				field := "metadata.annotations[nginx.ingress.kubernetes.io/" + c.pairs[i] + "]"
				found := false
				for _, p := range told {
					found = found || (p.field == field && p.reason == "Unsupported" && strings.Contains(p.message, c.word))
				}
				if !found {
					t.Errorf("nothing is told of %s with %q: %+v", field, c.word, told)
				}
			}
		})
	}
}
