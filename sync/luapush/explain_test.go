package luapush

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// answerOnce listens on a socket, answers the first connection with text once the head of the request is read, and
// gives what it got.
func answerOnce(t *testing.T, text string) (socket string, got <-chan string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "explain.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 1) // so that the goroutine ends when nobody reads
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		var b strings.Builder
		lines := bufio.NewReader(conn)
		for !strings.HasSuffix(b.String(), "\r\n\r\n") {
			line, err := lines.ReadString('\n')
			b.WriteString(line)
			if err != nil {
				break
			}
		}
		heard <- b.String()
		if text == "" {
			_, _ = io.Copy(io.Discard, lines) // until the client gives up
			return
		}
		_, _ = io.WriteString(conn, text)
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return socket, heard
}

func probe() Probe {
	return Probe{
		Client: netip.MustParseAddrPort("192.0.2.1:50000"), Listener: netip.MustParseAddrPort("10.0.0.1:80"),
		Method: "GET", Target: "/a b", Header: []string{"Host: h", "Host: i"},
	}
}

func TestExplain(t *testing.T) {
	host := "h"
	route := &RouteView{
		Type: "exact", Path: "/e", Number: 3, Source: [5]string{"Ingress", "n", "i", "s", "80"}, MaxBody: 5, Policy: "1,2,3,4",
		Profile: "p", Redirects: true, Rewrites: true, Backends: []string{"u"}, Unavailable: true,
	}
	for _, c := range []struct {
		name, answer string
		want         Sighting
		err          string
	}{
		{"nothing to tell", "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", Sighting{Status: 400}, ""},
		{
			"redirect", "HTTP/1.1 308 x\r\nLocation: https://h/\r\nX-Headgate-Explain: {\"revision\":7,\"name\":\"h\",\"host\":\"h\",\"path\":\"\\/e\"}\r\n\r\n",
			Sighting{Status: 308, Location: "https://h/", Router: &RouterView{Revision: 7, Name: "h", Host: &host, Path: "/e"}}, "",
		},
		{
			"sent", `HTTP/1.1 200 OK` + "\r\n" + `X-Headgate-Explain: {"host":"h","upstream":{"id":"u","known":true,"count":2,"algorithm":"a"},"route":` +
				`{"type":"exact","path":"/e","number":3,"source":["Ingress","n","i","s","80"],"maxBody":5,"policy":"1,2,3,4","profile":"p",` +
				`"redirects":true,"rewrites":true,"backends":["u"],"unavailable":true}}` + "\r\n" +
				`X-Headgate-Sent: {"request":"PUT /a b HTTP/1.1","host":"h:1"}` + "\r\n\r\n",
			Sighting{
				Status: 200, Sent: &Sent{Method: "PUT", URI: "/a b", Host: "h:1"},
				Router: &RouterView{Host: &host, Route: route, Upstream: &UpstreamView{ID: "u", Known: true, Count: 2, Algorithm: "a"}},
			}, "",
		},
		{"no HTTP", "hello\r\n\r\n", Sighting{}, "read the answer"},
		{"bad account", "HTTP/1.1 200 OK\r\nX-Headgate-Explain: x\r\n\r\n", Sighting{}, "decode the router's account"},
		{"bad echo", "HTTP/1.1 200 OK\r\nX-Headgate-Sent: x\r\n\r\n", Sighting{}, "decode what the peer was sent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			socket, got := answerOnce(t, c.answer)
			s, err := Explainer{HTTP: socket}.Explain(t.Context(), probe())
			want := "PROXY TCP4 192.0.2.1 10.0.0.1 50000 80\r\nGET /a b HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n"
			if head := <-got; head != want {
				t.Errorf("sent %q, want %q", head, want)
			}
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, s); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestExplainErrors(t *testing.T) {
	_, err := Explainer{HTTP: filepath.Join(t.TempDir(), "absent.sock")}.Explain(t.Context(), probe())
	if !errors.Is(err, ErrUnreachable) {
		t.Errorf("no socket: %v", err)
	}
	for _, spoil := range []func(*Probe){
		func(p *Probe) { p.Target = "/\r\nX: y" },
		func(p *Probe) { p.Method = "GET\n" },
		func(p *Probe) { p.Header = []string{"A: b\rC: d"} },
		func(p *Probe) { p.Header = []string{"A: b", ""} },
	} {
		p := probe()
		spoil(&p)
		if _, err := (Explainer{}).Explain(t.Context(), p); !errors.Is(err, ErrProbe) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	socket, _ := answerOnce(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Explainer{HTTP: socket}).Explain(ctx, probe()); err == nil {
		t.Error("no error though nobody may wait")
	}
	socket, _ = answerOnce(t, "")
	if _, err := (Explainer{HTTP: socket, Timeout: 20 * time.Millisecond}).Explain(t.Context(), probe()); err == nil {
		t.Error("no error though nobody answers")
	}
}

func TestProxyHeader(t *testing.T) {
	for _, c := range []struct{ client, listener, want string }{
		{"192.0.2.1:1", "10.0.0.1:80", "PROXY TCP4 192.0.2.1 10.0.0.1 1 80\r\n"},
		{"[2001:db8::1]:1", "[::1]:443", "PROXY TCP6 2001:db8::1 ::1 1 443\r\n"},
		{"192.0.2.1:1", "[::1]:443", "PROXY TCP6 ::ffff:192.0.2.1 ::1 1 443\r\n"},
	} {
		p := Probe{Client: netip.MustParseAddrPort(c.client), Listener: netip.MustParseAddrPort(c.listener)}
		if got := p.proxyHeader(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestParsePeers(t *testing.T) {
	for _, c := range []struct {
		raw  string
		want []Peer
		bad  bool
	}{
		{`{"upstream":"u","peers":[{"address":"10.0.0.1:80","weight":2,"draining":true}]}`, []Peer{{"10.0.0.1:80", 2, true}}, false},
		{`{"peers":{}}`, nil, false},
		{`{"peers":7}`, nil, true},
		{`x`, nil, true},
	} {
		got, err := ParsePeers(json.RawMessage(c.raw))
		if (err != nil) != c.bad || cmp.Diff(c.want, got) != "" {
			t.Errorf("%s: %v, %v", c.raw, got, err)
		}
	}
}

func TestFinalResponse(t *testing.T) {
	for name, c := range map[string]struct {
		stream string
		want   int
	}{
		"interim ones are skipped": {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200},
		"a switch of protocols":    {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n", 101},
	} {
		res, err := finalResponse(bufio.NewReader(strings.NewReader(c.stream)), http.MethodGet)
		if err != nil || res.StatusCode != c.want {
			t.Errorf("%s: %v, %v", name, res, err)
			continue
		}
		_ = res.Body.Close()
	}
	if res, err := finalResponse(bufio.NewReader(strings.NewReader("HTTP/1.1 100 Continue\r\n\r\n")), http.MethodGet); err == nil {
		_ = res.Body.Close()
		t.Error("no final response: no error")
	}
}
