// Package acceptance runs the product as its user does: the headgate binary with a real nginx of its own, a
// folder of manifests that changes, and requests from outside. Each case states what is configured, what is
// asked and what must come back.
package acceptance

import (
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
	log         *product.Log
	applied     atomic.Int64
	echoes      map[string]*echo
	dns         *nameServer
}

// start runs headgate with the usual configuration and extra top-level keys in YAML.
func start(t *testing.T, extra string) *gateway {
	t.Helper()
	names := startNameServer(t)
	p := product.NewGateway(t, fmt.Sprintf("dns: {servers: [%q]}\n%s", names.address, extra))
	p.Start(binary)
	g := &gateway{
		owner: t, t: t, dir: p.Dir, manifests: p.Manifests, http: p.HTTP, https: p.HTTPS,
		log: p.Log, echoes: map[string]*echo{}, dns: names,
	}
	g.apply("") // a case may begin with a look at the status
	return g
}

// errorLog gives all that the proxy has told so far.
func (g *gateway) errorLog() string { return product.ErrorLogs(g.dir) }

// apply replaces the whole configuration with the given manifests and returns once it is served. Every
// change carries a marker host of its own: when the marker answers, the change is live.
func (g *gateway) apply(manifests string) {
	g.t.Helper()
	n := g.applied.Add(1)
	marker := fmt.Sprintf("marker-%d.invalid", n)
	text := join(g.expand(manifests), ingress("marker", marker, "/", "Prefix", "marker", annotations("service-upstream", "false")), g.service("marker"))
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

// settled waits until no worker from before the last reload takes requests: for a tenth of a second some do, and the profiles
// that the reload was for are not theirs.
func (g *gateway) settled() {
	g.t.Helper()
	const workers = 2 // product.NewGateway configures so many
	proxy, _ := g.status()["proxy"].(map[string]any)
	master, _ := proxy["masterPid"].(float64)
	g.await("the workers of the last reload alone take requests", func() bool {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", int(master)))
		if err != nil {
			g.t.Fatal(err)
		}
		taking := 0
		for _, pid := range strings.Fields(string(children)) {
			title, err := os.ReadFile("/proc/" + pid + "/cmdline")
			if err == nil && strings.HasPrefix(string(title), "nginx: worker process") && !strings.Contains(string(title), "shutting down") {
				taking++
			}
		}
		return taking == workers
	})
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
