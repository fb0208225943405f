package hostile

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// manyPeers answers on all addresses of loopback: 500 on those whose last byte ends in 0, 200 on the others.
type manyPeers struct {
	port string

	mu        sync.Mutex // guards the rest
	now, most int        // requests
	gate      chan struct{}
}

func startManyPeers(t *testing.T) *manyPeers {
	t.Helper()
	listener, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &manyPeers{gate: make(chan struct{})}
	_, m.port, _ = net.SplitHostPort(listener.Addr().String())
	server := &http.Server{Handler: m, ReadHeaderTimeout: patience}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return m
}

func (m *manyPeers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	m.now++
	m.most = max(m.most, m.now)
	gate := m.gate
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.now--
	}()
	if gate != nil {
		select {
		case <-gate:
		case <-r.Context().Done():
		}
	}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && ill(local.IP) {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// open lets the requests go that wait, and tells how many waited at most.
func (m *manyPeers) open() (most int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.gate)
	m.gate = nil
	return m.most
}

func ill(ip net.IP) bool { return ip.To4()[3]%10 == 0 }

// addresses are n of them, of which every tenth is ill.
func (m *manyPeers) addresses(from, n int) []string {
	var list []string
	for i := from; i < from+n; i++ {
		list = append(list, fmt.Sprintf("127.2.%d.%d:%s", i/250, 1+i%250, m.port))
	}
	return list
}

// cpu is the time that the daemon has computed so far.
func (g *gateway) cpu() time.Duration {
	g.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", g.cmd.Process.Pid))
	if err != nil {
		g.t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		g.t.Fatal(err1, err2)
	}
	const ticks = 100 // USER_HZ
	return time.Duration(user+system) * time.Second / ticks
}

// files counts the open files of the daemon.
func (g *gateway) files() int {
	g.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.cmd.Process.Pid))
	if err != nil {
		g.t.Fatal(err)
	}
	return len(entries)
}

// TestThousandsOfChecks: 2,000 peers are checked, never more of them at once than the pool has room for; those that are ill
// get no request; it costs the daemon little; and when they go, nothing of them stays.
func TestThousandsOfChecks(t *testing.T) {
	const many, slots, mostEach = 2000, 64, 2 * time.Millisecond
	g := start(t, fmt.Sprintf("healthChecks: {concurrency: %d}\n", slots))
	goodSite(g)
	g.settle()
	files, goroutines := g.files(), g.goroutines()
	peers := startManyPeers(t)
	write := func(interval string) {
		half := service("many", peers.addresses(many/2, many/2)...)
		g.write("many.yaml", ingress("many", "many.test", prefix("/", "many"))+
			serviceWith("many", []string{"health-check: http", "health-check-interval: " + interval, "health-check-timeout: " + interval},
				peers.addresses(0, many/2)...)+
			strings.Replace(half[strings.LastIndex(half, "---\n"):], "many-1", "many-2", 1))
	}

	// No peer answers: the pool fills up, and the others wait.
	write("1m")
	g.await("the pool is full and checks are late", func() bool {
		h := g.status().Health
		return h.Running == slots && h.LateMs > 0
	})
	if most := peers.open(); most > slots {
		t.Errorf("%d checks at once, the pool has %d slots", most, slots)
	}

	write("2s")
	g.await("each peer has its verdict", func() bool {
		h := g.status().Health
		return h.Up == many-many/10 && h.Down == many/10 && h.Unknown == 0
	})
	g.await("the proxy has all verdicts", func() bool {
		g.get("many.test", "/") // it tells of upstreams that are used
		told, err := g.scrape()
		return err == nil && told.sum("headgate_proxy_upstream_peers", `upstream="default/many/80"`, `state="down"`) == many/10
	})
	for range 50 {
		g.wants("many.test", "/", "200")
	}
	checks := func() int64 { h := g.status().Health; return h.Succeeded + h.Failed }
	from, began, used := checks(), time.Now(), g.cpu()
	g.await("each peer is checked again", func() bool { return checks() >= from+2*many })
	n := checks() - from
	each := (g.cpu() - used) / time.Duration(n)
	t.Logf("%d checks in %s: %s of CPU each", n, time.Since(began).Round(time.Millisecond), each)
	if each > mostEach {
		t.Errorf("a check costs %s of CPU, want at most %s", each, mostEach)
	}

	g.remove("many.yaml")
	g.settle()
	g.await("nobody is checked any more", func() bool {
		h := g.status().Health
		return h.Up+h.Down+h.Unknown+h.Running == 0
	})
	const slack = 8 // of the commands that ask
	g.await("goroutines and files of the checks are gone", func() bool {
		return g.goroutines() <= goroutines+slack && g.files() <= files+slack
	})
	g.stillWell(t, "good.test", "200 good")
}

// flapper is a peer that dies and comes back.
type flapper struct {
	t       *testing.T
	address string
	got     *counterOf
	server  *http.Server
}

// counterOf counts what several peers got together.
type counterOf struct {
	mu       sync.Mutex // guards the rest
	requests int
}

func (c *counterOf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.requests++
	c.mu.Unlock()
	select { // so that some are in flight whenever a peer dies
	case <-time.After(3 * time.Millisecond):
	case <-r.Context().Done():
	}
	_, _ = fmt.Fprintln(w, "ok")
}

func (c *counterOf) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests
}

// live starts to listen.
func (f *flapper) live() {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp4", f.address)
	if err != nil {
		f.t.Errorf("the peer does not come back: %v", err)
		return
	}
	f.address = listener.Addr().String()
	f.server = &http.Server{Handler: f.got, ReadHeaderTimeout: patience}
	go func(s *http.Server) { _ = s.Serve(listener) }(f.server)
}

// die closes the listener and all connections, whatever is on its way.
func (f *flapper) die() { _ = f.server.Close() }
