package hostile

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Clients that send a header or a body byte by byte, or never read, hold a connection each and nobody up. How
// long they may is nginx's business: the timeouts stand in nginx.conf.
func TestSlowClients(t *testing.T) {
	g := start(t, "")
	site(t, g)
	defer g.stillWell(t, "one.test", "200 one")
	const each = 200
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	open := func(address, raw string) {
		conn, err := net.DialTimeout("tcp", address, patience)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		if _, err := io.WriteString(conn, raw); err != nil {
			t.Fatal(err)
		}
	}
	for range each {
		open(g.http, "GET / HTTP/1.1\r\nHost: one.test\r\nX:")
		open(g.http, "POST / HTTP/1.1\r\nHost: one.test\r\nContent-Length: 1000\r\n\r\nx")
		open(g.http, "POST / HTTP/1.1\r\nHost: nobody.test\r\nContent-Length: 1000\r\n\r\nx")
		open(g.https, "\x16\x03\x01")
		open(g.http, "")
	}
	for range 50 {
		began := time.Now()
		g.wants("one.test", "/", "200 one")
		if took := time.Since(began); took > 5*time.Second {
			t.Fatalf("a request took %s beside %d slow clients", took, len(conns))
		}
	}
	for _, c := range conns {
		_, _ = io.WriteString(c, "y")
	}
	g.wants("two.test", "/only", "200 two")
	timeouts(t, g)
}

// timeouts looks for the directives that end slow clients.
func timeouts(t *testing.T, g *gateway) {
	t.Helper()
	conf, err := os.ReadFile(filepath.Join(g.dir, "run", "nginx.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, directive := range []string{"client_header_timeout", "client_body_timeout", "keepalive_timeout"} {
		m := regexp.MustCompile(`(?m)^\s*` + directive + ` (\d+)s;`).FindSubmatch(conf)
		if m == nil {
			t.Errorf("nginx.conf has no %s", directive)
			continue
		}
		if n, err := strconv.Atoi(string(m[1])); err != nil || n < 1 || n > 75 {
			t.Errorf("%s is %s s", directive, m[1])
		}
	}
}

func TestWebSockets(t *testing.T) {
	g := start(t, "")
	site(t, g)
	defer g.stillWell(t, "one.test", "200 one")
	const key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
	for _, c := range []struct {
		name, raw string
		tunnel    bool // the backend gets the rest of the connection
		want      string
	}{
		{name: "plain", raw: "GET /ws HTTP/1.1\r\nHost: one.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + key + "\r\n", tunnel: true},
		{name: "SPDY, as kubectl exec", raw: "POST /ws HTTP/1.1\r\nHost: one.test\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n", tunnel: true},
		{name: "a request right behind", raw: "GET /ws HTTP/1.1\r\nHost: one.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + key + "\r\n" + get("/admin", "Host: one.test"), tunnel: true},
		{name: "in other letters", raw: "GET /ws HTTP/1.1\r\nHost: one.test\r\nconnection: keep-alive, UPGRADE\r\nupgrade: WebSocket\r\n" + key + "\r\n", tunnel: true},
		{name: "for nobody", raw: "GET /ws HTTP/1.1\r\nHost: nobody.test\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n" + key + "\r\n", want: "404"},
		{name: "for a path of nobody", raw: "GET /ws HTTP/1.1\r\nHost: two.test\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n" + key + "\r\n", want: "404"},
		{name: "a redirect", raw: "GET /ws HTTP/1.1\r\nHost: tls.test\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n" + key + "\r\n", want: "308"},
		{name: "a NUL in the protocol", raw: "GET /ws HTTP/1.1\r\nHost: one.test\r\nConnection: Upgrade\r\nUpgrade: web\x00socket\r\n" + key + "\r\n", want: "400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := net.DialTimeout("tcp", g.http, patience)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(patience))
			if _, err := io.WriteString(conn, c.raw); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(conn)
			a, err := readAnswer(r, "GET")
			if err != nil {
				t.Fatal(err)
			}
			if !c.tunnel {
				if a.String() != c.want {
					t.Errorf("got %s, want %s", a, c.want)
				}
				return
			}
			if a.status != 101 {
				t.Fatalf("got %s, want 101", a)
			}
			// What stood behind the request belongs to the tunnel, letter by letter.
			_, early, _ := strings.Cut(c.raw, "\r\n\r\n")
			if _, err := io.WriteString(conn, "hello\n"); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(early + "hello\n") {
				got, err := r.ReadString('\n')
				if want := "one:" + strings.TrimRight(line, "\r\n") + "\n"; err != nil || got != want {
					t.Fatalf("through the tunnel came %q, %v, want %q", got, err, want)
				}
			}
			if list := g.reached(false); fmt.Sprint(list) != "[one /ws]" {
				t.Errorf("the backends saw %q", list)
			}
		})
	}
}
