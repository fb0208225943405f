package chaos

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"headgate/test/cluster/harness"
)

// apiProxy stands between the daemon and the API server and plays a bad network and a busy server.
type apiProxy struct {
	server  *httptest.Server
	network *network
	busy    atomic.Bool  // answer 429
	refused atomic.Int64 // answers 429 that were given
	gone    atomic.Int64 // answers that told of a resourceVersion that is too old
}

func startAPIProxy(t *testing.T, c *harness.Cluster) *apiProxy {
	t.Helper()
	to, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(c.Config()) // who asks is told by the request
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	p := &apiProxy{network: &network{}}
	forward := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: p.look,
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		// As if the server itself were away: nobody is there to answer.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.busy.Load() {
			p.refused.Add(1)
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	p.server.EnableHTTP2 = true
	p.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	p.server.Listener = &gate{p.server.Listener, p.network}
	p.server.StartTLS()
	t.Cleanup(func() {
		p.network.flow()
		p.network.cut()
		p.server.Close()
	})
	return p
}

// look counts the answers that make a client list anew: status 410, or an event of that code within a watch.
func (p *apiProxy) look(res *http.Response) error {
	if res.StatusCode == http.StatusGone {
		p.gone.Add(1)
	}
	res.Body = &watched{res.Body, p}
	return nil
}

type watched struct {
	io.ReadCloser
	proxy *apiProxy
}

func (b *watched) Read(buffer []byte) (int, error) {
	n, err := b.ReadCloser.Read(buffer)
	if bytes.Contains(buffer[:n], []byte("too old resource version")) {
		b.proxy.gone.Add(1)
	}
	return n, err
}

// kubeconfig gives the text of one that goes through the proxy with the token.
func (p *apiProxy) kubeconfig(token string) string { return p.kubeconfigWith("token: " + token) }

// kubeconfigWith is kubeconfig with the user's fields.
func (p *apiProxy) kubeconfigWith(user string) string {
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	return fmt.Sprintf(`
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {%s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, p.server.URL, base64.StdEncoding.EncodeToString(authority), user)
}

// tokenIn takes the token out of a kubeconfig.
func tokenIn(t *testing.T, path string) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	return config.BearerToken
}

// kubeconfigPath is where the daemon looks.
func (w *world) kubeconfigPath() string {
	w.t.Helper()
	text, err := os.ReadFile(w.config())
	if err != nil {
		w.t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), `kubeconfig: "`)
	path, _, _ := strings.Cut(after, `"`)
	return path
}

// replaceKubeconfig puts another file in the place of the daemon's kubeconfig, as an administrator does.
func (w *world) replaceKubeconfig(text string) { w.replaceFile(w.kubeconfigPath(), text) }

func (w *world) replaceFile(path, text string) {
	w.t.Helper()
	next := filepath.Join(filepath.Dir(path), ".next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		w.t.Fatal(err)
	}
}

// network is the way between daemon and proxy.
type network struct {
	mu    sync.Mutex // guards what follows
	conns map[*conn]struct{}
	down  bool // new connections are closed at once
	mute  bool // new connections hang
}

// cut closes every connection, and new ones at once.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
	for c := range n.conns {
		c.close()
		_ = c.Conn.Close()
	}
}

// hang lets nothing pass any more, and tells nobody: neither the connections that are there nor new ones.
func (n *network) hang() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mute = true
	for c := range n.conns {
		c.hangs.Store(true)
	}
}

// flow lets new connections work. Those that hang stay dead.
func (n *network) flow() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down, n.mute = false, false
}

// gate is a listener whose connections go through a network.
type gate struct {
	net.Listener
	network *network
}

// Accept implements net.Listener.
func (g *gate) Accept() (net.Conn, error) {
	for {
		raw, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := g.network.add(raw); c != nil {
			return c, nil
		}
		_ = raw.Close()
	}
}

func (n *network) add(raw net.Conn) *conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &conn{Conn: raw, network: n, closed: ctx, close: cancel}
	c.hangs.Store(n.mute)
	if n.conns == nil {
		n.conns = map[*conn]struct{}{}
	}
	n.conns[c] = struct{}{}
	return c
}

// conn is a connection that may hang until it is closed.
type conn struct {
	net.Conn
	network *network
	hangs   atomic.Bool
	closed  context.Context //nolint:containedctx // it is the end of the connection, to wait for
	close   context.CancelFunc
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.hangs.Load() {
		<-c.closed.Done()
		return 0, net.ErrClosed
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	if c.hangs.Load() {
		<-c.closed.Done()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.close()
	c.network.mu.Lock()
	delete(c.network.conns, c)
	c.network.mu.Unlock()
	return c.Conn.Close()
}
