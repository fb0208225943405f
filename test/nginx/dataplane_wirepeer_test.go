package nginx_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"headgate/gateway/model"
)

// dpWays are the ways in which a dpWirePeer treats a request.
type dpWays int32

const (
	dpAnswers    dpWays = iota // with status
	dpHolds                    // answers after release
	dpSilent                   // takes the request and says nothing
	dpResets                   // resets the connection before an answer
	dpResetsOnce               // likewise, and answers from then on
	dpBreaksOff                // resets it in the middle of one
)

// dpWirePeer is a peer that misbehaves at the level of its connections.
type dpWirePeer struct {
	address        netip.AddrPort
	way            atomic.Int32
	status         atomic.Int32
	requests       atomic.Int64
	inFlight, most atomic.Int64
	done           chan struct{} // closed at the end of the test

	mu   sync.Mutex // guards gate
	gate chan struct{}
}

func dpNewWirePeer(t *testing.T, way dpWays) *dpWirePeer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &dpWirePeer{address: netip.MustParseAddrPort(l.Addr().String()), done: make(chan struct{}), gate: make(chan struct{})}
	p.way.Store(int32(way))
	p.status.Store(http.StatusOK)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		close(p.done)
		_ = l.Close()
		all.Wait()
	})
	return p
}

func (p *dpWirePeer) serve(conn net.Conn) {
	defer conn.Close()
	served := make(chan struct{})
	defer close(served)
	go func() {
		select {
		case <-p.done: // ends the wait for a next request
			_ = conn.Close()
		case <-served:
		}
	}()
	r := bufio.NewReader(conn)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		if !p.treat(conn) {
			return
		}
	}
}

// treat deals with one request and tells whether the connection goes on.
func (p *dpWirePeer) treat(conn net.Conn) bool {
	// Before it is counted: whoever sees the count may release it.
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	p.requests.Add(1)
	now := p.inFlight.Add(1)
	defer p.inFlight.Add(-1)
	for most := p.most.Load(); now > most && !p.most.CompareAndSwap(most, now); most = p.most.Load() {
	}
	switch dpWays(p.way.Load()) {
	case dpAnswers:
	case dpHolds:
		select {
		case <-gate:
		case <-p.done:
			return false
		}
	case dpSilent:
		<-p.done
		return false
	case dpResets, dpResetsOnce:
		p.way.CompareAndSwap(int32(dpResetsOnce), int32(dpAnswers))
		_ = conn.(*net.TCPConn).SetLinger(0)
		return false
	case dpBreaksOff:
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf of an ans")
		_ = conn.(*net.TCPConn).CloseWrite()
		return false
	}
	_, err := fmt.Fprintf(conn, "HTTP/1.1 %d Status\r\nContent-Length: 3\r\nX-Peer: %s\r\n\r\nok\n", p.status.Load(), p.address)
	return err == nil
}

// release lets go of all requests that are held, and of none that come later.
func (p *dpWirePeer) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.gate)
	p.gate = make(chan struct{})
}

// is sets the way in which the next requests are treated.
func (p *dpWirePeer) is(way dpWays) { p.way.Store(int32(way)) }

const dpUpstreamID model.UpstreamID = "d/u/80"

// dpServeUpstream starts a proxy that sends all of a.test to u over a route that change may change. Profiles
// are those that the route uses.
func dpServeUpstream(t *testing.T, u *model.Upstream, change func(*model.Route), profiles ...model.Profile) *dpProxy {
	t.Helper()
	settings := dpSettings()
	settings.RequestMetrics = true // so that requests are seen to end, from the start
	p := dpStart(t, settings, profiles...)
	route := dpRoute(model.PathPrefix, "/", dpUpstreamID)
	if change != nil {
		change(route)
	}
	p.model.Hosts = []*model.Host{dpHost("a.test", route)}
	p.setUpstream(u)
	return p
}

// setUpstream pushes another u.
func (p *dpProxy) setUpstream(u *model.Upstream) {
	p.t.Helper()
	u.ID = dpUpstreamID
	p.model.Upstreams = []*model.Upstream{u}
	p.push()
}

func dpWirePeers(peers ...*dpWirePeer) []model.Peer {
	var list []model.Peer
	for _, p := range peers {
		list = append(list, model.Peer{Address: p.address, Weight: 1})
	}
	return list
}

// dpPeers is what the proxy tells of an upstream.
type dpPeers struct {
	Panic  bool
	Queued int
	Peers  []struct {
		Address                                          string
		EjectedMs, Ejections, Failures, InFlight, Weight int
		Down, Draining                                   bool
		Share                                            float64
	}
}

func (p *dpProxy) peers() dpPeers { return p.peersOf(string(dpUpstreamID)) }

func (p *dpProxy) peersOf(id string) dpPeers {
	p.t.Helper()
	a := p.must(http.MethodGet, "/v1/peers?upstream="+id, nil, nil)
	var s dpPeers
	if err := json.Unmarshal(a.body, &s); err != nil {
		p.t.Fatalf("GET /v1/peers: %v\n%s", err, a.body)
	}
	return s
}

// ejected counts the peers that are out.
func (s dpPeers) ejected() int {
	n := 0
	for _, p := range s.Peers {
		if p.EjectedMs > 0 {
			n++
		}
	}
	return n
}

func (s dpPeers) inFlight() int {
	n := 0
	for _, p := range s.Peers {
		n += p.InFlight
	}
	return n
}

// only runs do while all workers but one are stopped, so that this one serves.
func (p *dpProxy) only(worker int, do func()) {
	p.t.Helper()
	for _, pid := range p.workerPIDs() {
		if pid == worker {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			p.t.Fatal(err)
		}
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
		// Until it has stopped, the kernel may wake it for a connection, and nobody else.
		p.eventually("the worker has stopped", func() error {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err == nil && !bytes.Contains(stat, []byte(") T ")) {
				err = fmt.Errorf("%s", stat)
			}
			return err
		})
	}
	do()
}

// dpEnd is the end of a request that was made aside.
type dpEnd struct {
	dpResponse
	err error
}

// start makes a request aside.
func (p *dpProxy) start(r dpRequest) <-chan dpEnd {
	done := make(chan dpEnd, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), dpDeadline)
		defer cancel()
		res, err := p.try(ctx, r)
		done <- dpEnd{res, err}
	}()
	return done
}
