// Package explain holds headgate explain to its word: what it says of a request is what the gateway does with
// the same bytes.
package explain

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"headgate/cmd/explain"
	"headgate/sync/admin"
	"headgate/test/product"
)

// binary is built once by TestMain.
var binary string

func TestMain(m *testing.M) { product.Main(m, &binary) }

// patience bounds every wait. It is long: the machine may be busy.
const patience = 30 * time.Second

// gateway is one running headgate with its proxy.
type gateway struct {
	*product.Gateway
	http, https string // "127.0.0.1:port"
}

// start runs headgate over the manifests, with extra top-level keys in YAML, and returns once it is ready.
func start(t *testing.T, manifests, extra string) *gateway {
	t.Helper()
	p := product.NewGateway(t, extra)
	if err := os.WriteFile(filepath.Join(p.Manifests, "site.yaml"), []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Start(binary)
	g := &gateway{p, p.HTTP, p.HTTPS}
	g.awaitReady(t)
	return g
}

func (g *gateway) awaitReady(t *testing.T) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if s, err := admin.Ask(t.Context(), g.RuntimeDir); err == nil && s.Ready {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("not ready within %s; its log:\n%s", patience, g.Log)
		case <-tick.C:
		}
	}
}

// request is a request for the gateway and for explain alike.
type request struct {
	tls    bool
	sni    string
	method string
	target string
	header []string // Host among them
	body   string   // what is sent of it
}

// String shows the request as it is sent.
func (r request) String() string {
	return fmt.Sprintf("tls=%t sni=%q %s %q %q", r.tls, r.sni, r.method, r.target, r.header)
}

// answer is what came back, from the gateway or from its backend.
type answer struct {
	status   int
	location string
	backend  *received // nil: the gateway answered by itself
	subject  string    // of the certificate
}

// String shows everything.
func (a answer) String() string {
	text := fmt.Sprintf("%d location=%q certificate=%q", a.status, a.location, a.subject)
	if a.backend != nil {
		text += fmt.Sprintf(" backend=%+v", *a.backend)
	}
	return text
}

// send gives the gateway the bytes of r on a connection of their own.
func (g *gateway) send(ctx context.Context, r request) (answer, error) {
	var a answer
	address := g.http
	if r.tls {
		address = g.https
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return a, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if r.tls {
		secure := tls.Client(conn, &tls.Config{ServerName: r.sni, InsecureSkipVerify: true}) //nolint:gosec // the certificate is looked at, not trusted
		if err := secure.HandshakeContext(ctx); err != nil {
			return a, err
		}
		a.subject = secure.ConnectionState().PeerCertificates[0].Subject.String()
		conn = secure
	}
	raw := r.method + " " + r.target + " HTTP/1.1\r\n" + strings.Join(append(r.header, "Connection: close"), "\r\n") + "\r\n\r\n"
	if _, err := io.WriteString(conn, raw); err != nil {
		return a, err
	}
	go func() { _, _ = io.WriteString(conn, r.body) }() // a body that is refused may be cut off
	answers := bufio.NewReader(conn)
	res, err := http.ReadResponse(answers, &http.Request{Method: r.method})
	for err == nil && res.StatusCode == http.StatusContinue {
		res, err = http.ReadResponse(answers, &http.Request{Method: r.method})
	}
	if err != nil {
		return a, err
	}
	defer func() { _ = res.Body.Close() }()
	a.status, a.location = res.StatusCode, res.Header.Get("Location")
	if text := res.Header.Get("X-Received"); text != "" {
		a.backend = new(received)
		return a, json.Unmarshal([]byte(text), a.backend)
	}
	return a, nil
}

// explain asks the daemon about r.
func (g *gateway) explain(ctx context.Context, r request) (explain.Explanation, error) {
	scheme, address := "http", g.http
	if r.tls {
		scheme, address = "https", g.https
	}
	_, port, _ := net.SplitHostPort(address)
	var e explain.Explanation
	question, err := json.Marshal(explain.Question{
		URL: scheme + "://" + r.sni + ":" + port, Method: r.method, Target: r.target, Client: "127.0.0.1",
		Header: append(r.header, "Connection: close"),
	})
	if err != nil {
		return e, err
	}
	body, err := admin.AskExplain(ctx, g.RuntimeDir, question)
	if err != nil {
		return e, err
	}
	return e, json.Unmarshal(body, &e)
}

// received is what a backend got.
type received struct{ Name, Method, URI, Host string }

// startBackend answers every request with what it got, byte by byte: net/http would refuse some of it.
func startBackend(t *testing.T, name string) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go answerWithHead(conn, name)
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	number, _ := strconv.Atoi(port)
	return number
}

func answerWithHead(conn net.Conn, name string) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err != nil {
		return
	}
	got := received{Name: name}
	got.Method, got.URI, _ = strings.Cut(strings.TrimRight(line, "\r\n"), " ")
	got.URI = strings.TrimSuffix(got.URI, " HTTP/1.1")
	length := int64(0)
	for {
		line, err := in.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		if err != nil || line == "" {
			break
		}
		field, value, _ := strings.Cut(line, ": ")
		switch strings.ToLower(field) {
		case "host":
			got.Host = value
		case "content-length":
			length, _ = strconv.ParseInt(value, 10, 64)
		}
	}
	_, _ = io.CopyN(io.Discard, in, length)
	text, _ := json.Marshal(got)
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nX-Received: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", text)
}
