package nginx_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"

	"headgate/gateway/model"
)

// dpSeen is what a backend saw of a request.
type dpSeen struct {
	Backend, Method, URI, Host string
	Header                     http.Header
	BodyBytes                  int64
}

// dpBackend answers with what it saw. It counts requests, and echoes lines after an upgrade.
type dpBackend struct {
	name     string
	address  netip.AddrPort
	requests atomic.Int64
	server   *httptest.Server
}

func dpNewBackend(t *testing.T, name string) *dpBackend {
	t.Helper()
	b := &dpBackend{name: name}
	b.server = httptest.NewServer(b)
	t.Cleanup(b.server.Close)
	b.address = netip.MustParseAddrPort(b.server.Listener.Addr().String())
	return b
}

func (b *dpBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.requests.Add(1)
	if r.Header.Get("Upgrade") == "websocket" {
		b.upgrade(w)
		return
	}
	n, _ := io.Copy(io.Discard, r.Body)
	w.Header().Set("X-Echo", "1")
	w.Header().Set("Strict-Transport-Security", "max-age=1")
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(dpSeen{
		Backend: b.name, Method: r.Method, URI: r.RequestURI, Host: r.Host, Header: r.Header, BodyBytes: n,
	})
}

func (b *dpBackend) upgrade(w http.ResponseWriter) {
	conn, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
	lines := bufio.NewScanner(rw)
	for lines.Scan() {
		if _, err := fmt.Fprintln(conn, lines.Text()); err != nil {
			return
		}
	}
}

// upstream is an upstream of backends.
func dpUpstream(id model.UpstreamID, backends ...*dpBackend) *model.Upstream {
	u := &model.Upstream{ID: id, Algorithm: model.RoundRobin}
	for _, b := range backends {
		u.Peers = append(u.Peers, model.Peer{Address: b.address, Weight: 1})
	}
	return u
}

func dpRoute(kind model.PathType, path string, upstream model.UpstreamID, filters ...model.Filter) *model.Route {
	return &model.Route{
		Match:    model.Match{Path: model.PathMatch{Type: kind, Value: path}},
		Backends: []model.Backend{{Upstream: upstream, Weight: 1}}, MaxBodyBytes: 1 << 20,
		Filters: filters, Retry: model.Retry{Tries: 3},
	}
}

func dpHost(name model.HostName, routes ...*model.Route) *model.Host {
	return &model.Host{Name: name, Routes: routes}
}
