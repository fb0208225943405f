package nginx_test

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"headgate/gateway/luastate"
	"headgate/gateway/model"
)

// TestWorkersKilledInPush: workers die while parts of pushes arrive. Whatever was acknowledged stays, a push that was cut
// is made anew, and each host always leads to its own peers.
func TestWorkersKilledInPush(t *testing.T) {
	p, _ := dpServe(t, dpSettings(), dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	b := dpNewBackend(t, "b")
	p.model.Upstreams = append(p.model.Upstreams, dpUpstream("d/b/80", b))
	for round := range 6 {
		p.model.Hosts = append(p.model.Hosts, dpHost(model.HostName(fmt.Sprintf("b%d.test", round)), dpRoute(model.PathPrefix, "/", "d/b/80")))
		var n atomic.Int64
		cut := p.pushWhile(int64(round), &n, func() {
			for _, pid := range p.workerPIDs() {
				p.killed = append(p.killed, pid)
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		})
		p.eventually("the proxy answers", func() error {
			_, err := p.call(http.MethodGet, "/v1/state", nil, nil)
			return err
		})
		if got := p.state().Revision; got != p.revision && got != p.revision-1 {
			t.Fatalf("revision %d after the push of %d was cut", got, p.revision)
		}
		if got := p.get("a.test", "/"); got.status != 200 || got.seen.Backend != "a" {
			t.Errorf("after part %d of %d: %d %+v", n.Load(), cut, got.status, got.seen)
		}
		p.push()
		for i := range round + 1 {
			if got := p.get(fmt.Sprintf("b%d.test", i), "/"); got.status != 200 || got.seen.Backend != "b" {
				t.Errorf("round %d: b%d.test: %d %+v", round, i, got.status, got.seen)
			}
		}
		if got := p.state().Revision; got != p.revision {
			t.Errorf("revision %d, want %d", got, p.revision)
		}
	}
}

// pushWhile sends the model in parts of one record and calls disturb when part number at is under way. Errors are what
// is expected. It gives how many parts there were.
func (p *dpProxy) pushWhile(at int64, sent *atomic.Int64, disturb func()) int {
	p.t.Helper()
	p.revision++
	parts := dpParts(p.records(p.revision), 1)
	var other sync.WaitGroup
	for i, part := range parts {
		sent.Store(int64(i))
		if int64(i) == at%int64(len(parts)) {
			other.Go(disturb)
		}
		_, err := p.callOnce(http.MethodPut, "/v1/state", dpHeaders(p.revision, "*", fmt.Sprintf("%d/%d", i+1, len(parts))), part)
		if err != nil {
			break
		}
	}
	other.Wait()
	return len(parts)
}

// TestFullPeersDict: what is remembered of peers fills its dict. What the proxy cannot do without stays in it: requests
// that an old worker serves are counted by the new ones, and peers still fail and are ejected.
func TestFullPeersDict(t *testing.T) {
	peer, bad := dpNewWirePeer(t, dpHolds), dpNewWirePeer(t, dpResets)
	u := model.Upstream{
		Peers: dpWirePeers(peer), Limits: model.Limits{Requests: 2}, Ejection: model.Ejection{Failures: 1, Base: dpDeadline},
	}
	p := dpServeUpstream(t, &u, nil)
	p.peers() // from here on its requests are counted
	// A peer that is new to an upstream with a slow start is remembered for so long.
	var crowd *model.Upstream
	free := func() float64 { return dpSeries(p.metrics()["headgate_proxy_dict_free_bytes"])["dict=peers"] }
	for round := 0; free() > 0; round++ {
		if round > 40 {
			t.Fatalf("%v bytes are free", free())
		}
		crowd = &model.Upstream{ID: "d/crowd/80", SlowStart: time.Hour} // another one: the encoder knows them by identity
		for i := range 10_000 {
			crowd.Peers = append(crowd.Peers, model.Peer{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(round), byte(i >> 8), byte(i)}), 80), Weight: 1})
		}
		p.model.Upstreams = []*model.Upstream{crowd, &u}
		p.push()
		p.must(http.MethodGet, "/v1/peers?upstream=d/crowd/80", nil, nil)
	}
	held := []<-chan dpEnd{p.start(dpGet())}
	p.waitHeld(peer, 1)
	// A failure is counted in the dict all the same, and what it forgets for that must be nothing of the above.
	both := u
	both.Peers = dpWirePeers(peer, bad)
	p.model.Upstreams = []*model.Upstream{crowd, &both}
	p.push()
	peer.is(dpAnswers)
	for range 8 {
		p.do(dpGet())
	}
	if n := bad.requests.Load(); n == 0 || n > int64(len(p.workerPIDs())) {
		t.Errorf("a peer that failed got %d requests", n)
	}
	p.model.Settings.HSTS.MaxAge += time.Second // another configuration, so that the generation tells
	p.reload()
	p.waitInFlight(1)
	peer.is(dpHolds)
	held = append(held, p.start(dpGet()))
	p.waitHeld(peer, 2)
	if got := p.do(dpGet()); got.status != 503 {
		t.Errorf("a third request beside one of an old worker: %d", got.status)
	}
	peer.release()
	dpWant(t, held, 200)
	p.waitInFlight(0)
}

// TestClockJumps: the clock of the day is put on by a day and back by two. Nothing ends early or late for it, and no
// counter goes backwards.
func TestClockJumps(t *testing.T) {
	clock := dpNewClock(t)
	peer := dpNewWirePeer(t, dpHolds)
	p := dpServeUpstream(t, &model.Upstream{Peers: dpWirePeers(peer), Limits: model.Limits{Requests: 3}}, nil)
	sum := 0.0
	for i, jump := range []time.Duration{24 * time.Hour, -48 * time.Hour, time.Hour} {
		held := p.start(dpGet())
		p.waitHeld(peer, 1)
		// A pusher begins and dies.
		p.revision++
		begun := p.must(http.MethodPut, "/v1/state", dpHeaders(p.revision, "*", "1/2"), dpEncode([]luastate.Record{{Op: luastate.OpBody, Key: strings.Repeat("0", 32), Value: []byte("{}")}}))
		if begun.status != http.StatusAccepted {
			t.Fatalf("%d %s", begun.status, begun.body)
		}
		clock.jump(t, jump)
		peer.release()
		dpWant(t, []<-chan dpEnd{held}, 200)
		p.waitInFlight(0)
		h := dpHeaders(p.revision, "*", "1/1")
		h["X-Headgate-Pusher"] = "other"
		p.eventually("another pusher gets in", func() error {
			if a := p.must(http.MethodPut, "/v1/state", h, dpEncode(p.records(p.revision))); a.status != http.StatusOK {
				return fmt.Errorf("%d %s", a.status, a.body)
			}
			return nil
		})
		p.counted(i + 1)
		times := p.metrics()["headgate_proxy_request_duration_seconds"].GetMetric()[0].GetHistogram()
		t.Log(jump, times.GetSampleSum())
		if got := times.GetSampleSum(); got < sum {
			t.Errorf("after a jump by %s all requests took %v s, before %v s", jump, got, sum)
		}
		sum = times.GetSampleSum()
	}
}

// TestClockJumpsWhilePeersAreOut: a worker that comes after a jump knows who is out, and no ejection lasts longer than it should.
func TestClockJumpsWhilePeersAreOut(t *testing.T) {
	clock := dpNewClock(t)
	good, bad := dpNewWirePeer(t, dpAnswers), dpNewWirePeer(t, dpResets)
	eject := model.Ejection{Failures: 1, Base: dpDeadline, Max: dpDeadline}
	p := dpServeUpstream(t, &model.Upstream{Peers: dpWirePeers(good, bad), Ejection: eject}, nil)
	for bad.requests.Load() == 0 {
		p.do(dpGet())
	}
	for _, jump := range []time.Duration{20 * time.Hour, -48 * time.Hour} {
		clock.jump(t, jump)
		old := p.workerPIDs()
		p.model.Settings.WorkerConnections++
		p.reload()
		p.settle(old)
		for range 8 {
			p.do(dpGet())
		}
		if n := bad.requests.Load(); n != 1 {
			t.Fatalf("after a jump by %s the peer that is out got %d requests", jump, n-1)
		}
		if s := p.peers(); s.ejected() != 1 {
			t.Errorf("after a jump by %s: %+v", jump, s)
		}
	}
	// The upstream begins anew, with another peer that falls.
	short := dpNewWirePeer(t, dpResets)
	p.setUpstream(&model.Upstream{Peers: dpWirePeers(good, short), Ejection: model.Ejection{Failures: 1, Base: 300 * time.Millisecond}})
	p.push()
	for short.requests.Load() == 0 {
		p.do(dpGet())
	}
	short.is(dpAnswers)
	clock.jump(t, -48*time.Hour)
	old := p.workerPIDs()
	p.model.Settings.WorkerConnections++
	p.reload()
	p.settle(old)
	p.eventually("the peer is back", func() error {
		if p.do(dpGet()); short.requests.Load() < 2 {
			return fmt.Errorf("%+v", p.peers())
		}
		return nil
	})
}

// TestClockJumpsKeepClients: clients stay with their peers when the clock of the day is put on or back.
func TestClockJumpsKeepClients(t *testing.T) {
	clock := dpNewClock(t)
	backends := afBackends(t, 5)
	settings := dpSettings()
	settings.UseForwardedHeaders = true
	settings.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	p := dpStart(t, settings)
	u := dpUpstream(afUpstream, backends[:2]...)
	u.ClientIP = time.Hour
	p.model.Upstreams = []*model.Upstream{u}
	p.model.Hosts = []*model.Host{dpHost("a.test", dpRoute(model.PathPrefix, "/", u.ID))}
	p.push()
	clients := afAddresses(60, "192.0.2.%d")
	afRound(p, clients)
	p.change(func(u *model.Upstream) { u.Peers = afPeers(backends) })
	for _, jump := range []time.Duration{20 * time.Hour, -48 * time.Hour, 2 * time.Hour} {
		clock.jump(t, jump)
		if _, moved := afRound(p, clients); moved != 0 {
			t.Errorf("a jump by %s moved %d of 60 clients", jump, moved)
		}
	}
}

// dpClock is the clock of the day as nginx sees it.
type dpClock struct{ file string }

// dpNewClock makes nginx, when it is started after this, read a clock that the test can put on or back: a library that is
// loaded before libc, for the clock of a machine belongs to everybody on it.
func dpNewClock(t *testing.T) dpClock {
	t.Helper()
	dir := t.TempDir()
	library := filepath.Join(dir, "clock.so")
	if out, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-O1", "-o", library, "testdata/clock.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("build a clock: %v\n%s", err, out)
	}
	c := dpClock{filepath.Join(dir, "offset")}
	if err := os.WriteFile(c.file, make([]byte, 8), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LD_PRELOAD", library)
	t.Setenv("HEADGATE_TEST_CLOCK", c.file)
	return c
}

// jump puts the clock on, or back.
func (c dpClock) jump(t *testing.T, by time.Duration) {
	t.Helper()
	f, err := os.OpenFile(c.file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [8]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		t.Fatal(err)
	}
	binary.NativeEndian.PutUint64(b[:], binary.NativeEndian.Uint64(b[:])+uint64(by/time.Second))
	if _, err := f.WriteAt(b[:], 0); err != nil {
		t.Fatal(err)
	}
}
