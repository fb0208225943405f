package nginx_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
)

// dpLogged is a proxy with an access log, and a route that leaves its requests out of it.
func dpLogged(t *testing.T, format nginxconf.AccessLogFormat) (*dpProxy, *dpBackend) {
	t.Helper()
	a := dpNewBackend(t, "a")
	p := dpStart(t, dpSettings())
	p.layout.AccessLog, p.layout.AccessLogFormat = p.dir+"/access.log", format
	quiet := dpRoute(model.PathPrefix, "/quiet", "d/a/80")
	quiet.NoAccessLog = true
	redirected := dpRoute(model.PathPrefix, "/quiet-redirect", "d/a/80", model.RedirectHTTPS{Status: 308})
	redirected.NoAccessLog = true
	p.model.Upstreams = []*model.Upstream{dpUpstream("d/a/80", a)}
	p.model.Hosts = []*model.Host{dpHost("a.test", quiet, redirected, dpRoute(model.PathPrefix, "/", "d/a/80"))}
	p.load()
	return p, a
}

// logged waits for so many lines.
func (p *dpProxy) logged(n int) []string {
	p.t.Helper()
	var lines []string
	p.eventually(fmt.Sprintf("%d requests are logged", n), func() error {
		b, err := os.ReadFile(p.layout.AccessLog)
		if err != nil {
			return err
		}
		lines = strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
		if len(lines) != n || len(b) == 0 {
			return fmt.Errorf("%d bytes, %q", len(b), lines)
		}
		return nil
	})
	return lines
}

// dpSecrets are where secrets travel.
func dpSecrets(path string) dpRequest {
	return dpRequest{host: "a.test", path: path + "?token=s3cret", header: map[string]string{
		"Referer": "https://x.test/page?code=s3cret", "Authorization": "Bearer s3cret", "Cookie": "id=s3cret", "X-Request-ID": "id7",
		"User-Agent": "agent \"\\\u00e9",
	}}
}

// TestJSONAccessLog: each line is one object, whatever clients send, with numbers as numbers and no secret.
func TestJSONAccessLog(t *testing.T) {
	p, a := dpLogged(t, nginxconf.AccessLogJSON)
	p.do(dpSecrets("/login"))
	p.raw("GET /\"\\\x01é?s3cret HTTP/1.1\r\nHost: a.test\r\nUser-Agent: \xff\x00\x1f\"\r\nConnection: close\r\n\r\n")
	p.raw("GET /old?s3cret\r\n") // HTTP/0.9
	p.do(dpRequest{host: "nobody.test", path: "/", tls: true, http2: true})
	for _, line := range p.logged(4) {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Errorf("%v: %q", err, line)
			continue
		}
		for _, number := range []string{"status", "requestBytes", "sentBytes", "bodyBytes", "seconds"} {
			if _, ok := object[number].(float64); !ok {
				t.Errorf("%s is %v: %s", number, object[number], line)
			}
		}
		if strings.Contains(line, "s3cret") {
			t.Errorf("a secret is logged: %s", line)
		}
		if object["requestID"] != "id7" {
			continue
		}
		for name, want := range map[string]any{
			"method": "GET", "host": "a.test", "path": "/login", "status": 200.0, "protocol": "HTTP/1.1", "scheme": "http", "tls": "",
			"referer": "https://x.test/page", "upstream": "d/a/80", "upstreamAddress": a.address.String(), "upstreamStatus": "200",
			"remoteAddress": "127.0.0.1", "userAgent": "agent \"\\\u00e9",
		} {
			if object[name] != want {
				t.Errorf("%s is %q, want %q", name, object[name], want)
			}
		}
	}
}

// TestNoAccessLog: the switch of a route counts for each of its requests, and for no other.
func TestNoAccessLog(t *testing.T) {
	for _, format := range []nginxconf.AccessLogFormat{nginxconf.AccessLogCombined, nginxconf.AccessLogJSON} {
		p, _ := dpLogged(t, format)
		for range 3 {
			p.get("a.test", "/quiet")
			p.get("a.test", "/quiet-redirect")
		}
		p.get("a.test", "/loud")
		p.get("nobody.test", "/")
		for _, line := range p.logged(2) {
			if strings.Contains(line, "quiet") {
				t.Errorf("%q: %s", format, line)
			}
		}
	}
}

// TestAccessLogIsOpenedAnew: after a rotation and SIGUSR1, lines go into the new file.
func TestAccessLogIsOpenedAnew(t *testing.T) {
	p, _ := dpLogged(t, nginxconf.AccessLogCombined)
	p.get("a.test", "/before")
	p.logged(1)
	if err := os.Rename(p.layout.AccessLog, p.layout.AccessLog+".1"); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	p.eventually("the new file is used", func() error {
		p.get("a.test", "/after")
		b, err := os.ReadFile(p.layout.AccessLog)
		if err == nil && !bytes.Contains(b, []byte("/after")) {
			err = fmt.Errorf("%q", b)
		}
		return err
	})
}
