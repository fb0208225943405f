// Package acceptance runs the product as its user does: the headgate binary with a real nginx of its own, a
// folder of manifests that changes, and requests from outside. Each case states what is configured, what is
// asked and what must come back.
package acceptance

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"headgate/test/product"
)

// binary is built once by TestMain.
var binary string

func TestMain(m *testing.M) { product.Main(m, &binary) }

// gateway is one running headgate with its proxy.
type gateway struct {
	owner       *testing.T // the test that started it
	t           *testing.T // the case that is running
	dir         string
	manifests   string
	http, https string // "127.0.0.1:port"
	cmd         *exec.Cmd
	log         *bytes.Buffer
	applied     atomic.Int64
	echoes      map[string]*echo
	dns         *nameServer
}

// start runs headgate with the usual configuration and extra top-level keys in YAML.
func start(t *testing.T, extra string) *gateway {
	t.Helper()
	product.LookAt(t)
	dir := t.TempDir()
	// nginx workers run as another user: they must be able to reach the runtime directory.
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g := &gateway{
		owner: t, t: t, dir: dir, manifests: filepath.Join(dir, "manifests"),
		http: product.FreeAddress(t), https: product.FreeAddress(t),
		log: &bytes.Buffer{}, echoes: map[string]*echo{}, dns: startNameServer(t),
	}
	if err := os.Mkdir(g.manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	conf := fmt.Sprintf(`
manifests: [%q]
listeners: {http: [%q], https: [%q]}
proxy: {mode: managed, stopWithDaemon: true, workerProcesses: 2}
upstreams: {allowLoopback: true}
dns: {servers: [%q]}
metrics: {listen: ""}
stateDir: %q
runtimeDir: %q
%s`, g.manifests, g.http, g.https, g.dns.address, filepath.Join(dir, "state"), filepath.Join(dir, "run"), extra)
	file := filepath.Join(dir, "headgate.yaml")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	g.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), binary, "run", "--config", file) // ends in the clean-up
	g.cmd.Stdout, g.cmd.Stderr = g.log, g.log
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.stop)
	return g
}

func (g *gateway) stop() {
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- g.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			g.t.Errorf("headgate did not stop cleanly: %v", err)
		}
	case <-time.After(20 * time.Second):
		_ = g.cmd.Process.Kill()
		g.t.Error("headgate did not stop within 20 s")
	}
	if errors := g.luaErrors(); errors != "" {
		g.t.Errorf("the proxy's error log holds errors:\n%s", errors)
	}
	if g.t.Failed() {
		g.t.Logf("headgate's log:\n%s", g.log)
	}
}

// luaErrors gives the lines of the proxy's error log that no request may cause.
func (g *gateway) luaErrors() string {
	var bad strings.Builder
	_ = filepath.WalkDir(g.dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.Contains(entry.Name(), "error") {
			return nil //nolint:nilerr // a file that vanishes with the proxy has nothing to say
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // a log that vanishes with the proxy has nothing to say
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "[alert]") || strings.Contains(line, "[emerg]") || strings.Contains(line, "lua entry thread aborted") {
				bad.WriteString(line)
			}
		}
		return nil
	})
	return bad.String()
}

// apply replaces the whole configuration with the given manifests and returns once it is served. Every
// change carries a marker host of its own: when the marker answers, the change is live.
func (g *gateway) apply(manifests string) {
	g.t.Helper()
	n := g.applied.Add(1)
	marker := fmt.Sprintf("marker-%d.invalid", n)
	text := join(g.expand(manifests), ingress("marker", marker, "/", "Prefix", "marker"), g.service("marker"))
	temp := filepath.Join(g.manifests, ".case.yaml.tmp")
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
	if err := os.Rename(temp, filepath.Join(g.manifests, "case.yaml")); err != nil {
		g.t.Fatal(err)
	}
	var last answer
	var err error
	g.await("marker "+marker, func() bool {
		last, err = g.try(request{url: "http://" + marker + "/"})
		return err == nil && last.echoed.Name == "marker"
	}, &last, &err)
}

// await polls until ok holds; the deadline is far beyond any time that a healthy gateway needs.
func (g *gateway) await(what string, ok func() bool, seen ...any) {
	g.t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			g.t.Fatalf("%s: not within 20 s; last seen: %+v; headgate status: %v\nheadgate's log:\n%s", what, seen, g.status(), g.log)
		case <-tick.C:
		}
	}
}

// request is one question to the gateway.
type request struct {
	url    string // http://host/path or https://host/path; the host never goes through DNS
	method string // "" is GET
	body   string
	header []string
	sni    string // "" is the URL's host
	maxTLS uint16
}

// answer is what came back; echoed is what the backend says that it was asked.
type answer struct {
	status int
	header http.Header
	body   string
	echoed echoed
	leaf   string // common name of the certificate that was shown
}

func (g *gateway) try(r request) (answer, error) {
	method := r.method
	if method == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(context.Background(), method, r.url, strings.NewReader(r.body))
	if err != nil {
		return answer{}, fmt.Errorf("make request %s: %w", r.url, err)
	}
	for _, h := range r.header {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
			continue
		}
		req.Header.Add(name, value)
	}
	sni := r.sni
	if sni == "" {
		sni = req.URL.Hostname()
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			to := g.http
			if req.URL.Scheme == "https" {
				to = g.https
			}
			return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, to)
		},
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, ServerName: sni, MinVersion: tls.VersionTLS10, MaxVersion: r.maxTLS}, //nolint:gosec // the certificate is looked at, not trusted
		DisableKeepAlives: true, ExpectContinueTimeout: 10 * time.Second,
	}
	client := &http.Client{
		Transport: transport, Timeout: 10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := client.Do(req)
	if err != nil {
		return answer{}, fmt.Errorf("%s %s: %w", method, r.url, err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, fmt.Errorf("read the answer of %s: %w", r.url, err)
	}
	a := answer{status: res.StatusCode, header: res.Header, body: string(body)}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		if err := json.Unmarshal(body, &a.echoed); err != nil {
			return answer{}, fmt.Errorf("decode the echo of %s: %w", r.url, err)
		}
	}
	if res.TLS != nil && len(res.TLS.PeerCertificates) > 0 {
		a.leaf = res.TLS.PeerCertificates[0].Subject.CommonName
	}
	return a, nil
}

func (g *gateway) ask(r request) answer {
	g.t.Helper()
	a, err := g.try(r)
	if err != nil {
		g.t.Fatal(err)
	}
	return a
}

// wants asks for a URL and compares "status", or "status backend" with what comes back.
func (g *gateway) wants(url, want string, header ...string) answer {
	g.t.Helper()
	a := g.ask(request{url: url, header: header})
	got := fmt.Sprint(a.status)
	if a.echoed.Name != "" {
		got += " " + a.echoed.Name
	}
	if got != want {
		g.t.Errorf("GET %s %q: got %q, want %q (body %q); problems %v", url, header, got, want, a.body, g.status()["problems"])
	}
	return a
}

// status gives the daemon's own account of itself.
func (g *gateway) status() map[string]any {
	g.t.Helper()
	out, err := exec.CommandContext(context.Background(), binary, "status", "-o", "json",
		"--config", filepath.Join(g.dir, "headgate.yaml")).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		g.t.Fatal(err)
	}
	status := map[string]any{}
	if err := json.Unmarshal(out, &status); err != nil {
		g.t.Fatalf("headgate status -o json: %v in %q", err, out)
	}
	return status
}

// nameServer answers A queries from a table that a test may change; everything else does not exist.
type nameServer struct {
	address string
	records atomic.Pointer[map[string]string]
}

func startNameServer(t *testing.T) *nameServer {
	t.Helper()
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &nameServer{address: packets.LocalAddr().String()}
	n.records.Store(&map[string]string{})
	server := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(n.answer)}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })
	return n
}

func (n *nameServer) answer(w dns.ResponseWriter, question *dns.Msg) {
	reply := new(dns.Msg).SetReply(question)
	address, known := (*n.records.Load())[question.Question[0].Name]
	switch {
	case !known:
		reply.Rcode = dns.RcodeNameError
	case question.Question[0].Qtype == dns.TypeA:
		reply.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: question.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1},
			A:   net.ParseIP(address),
		}}
	}
	_ = w.WriteMsg(reply)
}
