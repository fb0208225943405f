package nginx_test

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"headgate/gateway/model"
)

// waitInFlight waits until the proxy tells that so many requests are in flight to the peers.
func (p *dpProxy) waitInFlight(n int) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("%d requests in flight", n), func() error {
		if s := p.peers(); s.inFlight() != n {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// waitHeld waits until the peer holds so many requests.
func (p *dpProxy) waitHeld(peer *dpWirePeer, n int64) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("%d requests at the peer", n), func() error {
		if got := peer.inFlight.Load(); got != n {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
}

func dpWant(t *testing.T, ends []<-chan dpEnd, status int) {
	t.Helper()
	for _, e := range ends {
		if got := <-e; got.err != nil || got.status != status {
			t.Errorf("%d %v, want %d", got.status, got.err, status)
		}
	}
}

// TestPeerLimit: no peer has more in flight than its bound, counted over both workers; what has no room
// gets 503 at once.
func TestPeerLimit(t *testing.T) {
	peers := []*dpWirePeer{dpNewWirePeer(t, dpHolds), dpNewWirePeer(t, dpHolds)}
	p := dpServeUpstream(t, &model.Upstream{Peers: dpWirePeers(peers...), Limits: model.Limits{PeerRequests: 2}}, nil)
	var held []<-chan dpEnd
	for i, w := range append(p.workerPIDs(), p.workerPIDs()...) {
		p.only(w, func() {
			held = append(held, p.start(dpGet()))
			p.eventually("the request is at a peer", func() error {
				if n := peers[0].inFlight.Load() + peers[1].inFlight.Load(); n != int64(i+1) {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
		})
	}
	for _, w := range p.workerPIDs() {
		p.only(w, func() {
			got := p.do(dpGet())
			if after, err := strconv.Atoi(got.header.Get("Retry-After")); got.status != 503 || err != nil || after < 1 {
				t.Errorf("the fifth request: %d, Retry-After %q", got.status, got.header.Get("Retry-After"))
			}
		})
	}
	p.waitInFlight(4)
	peers[0].release()
	peers[1].release()
	dpWant(t, held, 200)
	p.waitInFlight(0)
	for i, peer := range peers {
		peer.is(dpAnswers)
		if n := peer.most.Load(); n != 2 {
			t.Errorf("peer %d had %d requests at once", i, n)
		}
	}
	if got := p.do(dpGet()); got.status != 200 {
		t.Errorf("after all ended: %d", got.status)
	}
}

// TestPeerLimitUnderLoad: a race of many requests never exceeds the bound, and the queue serves them all.
func TestPeerLimitUnderLoad(t *testing.T) {
	peer := dpNewWirePeer(t, dpAnswers)
	p := dpServeUpstream(t, &model.Upstream{
		Peers:  dpWirePeers(peer),
		Limits: model.Limits{PeerRequests: 2, Queue: 1000, QueueTimeout: dpDeadline},
	}, nil)
	var ends []<-chan dpEnd
	for range 200 {
		ends = append(ends, p.start(dpGet()))
	}
	dpWant(t, ends, 200)
	if n := peer.most.Load(); n > 2 {
		t.Errorf("the peer had %d requests at once", n)
	}
	p.waitInFlight(0)
}

// TestQueue: requests wait for room; those that find the queue full, or wait too long, get 503.
func TestQueue(t *testing.T) {
	peer := dpNewWirePeer(t, dpHolds)
	u := model.Upstream{
		Peers: dpWirePeers(peer), Limits: model.Limits{PeerRequests: 1, Queue: 2, QueueTimeout: dpDeadline},
	}
	p := dpServeUpstream(t, &u, nil)
	w := p.workerPIDs()[0]
	p.only(w, func() {
		ends := []<-chan dpEnd{p.start(dpGet())}
		p.waitHeld(peer, 1)
		ends = append(ends, p.start(dpGet()), p.start(dpGet()))
		p.eventually("two wait", func() error {
			if s := p.peers(); s.Queued != 2 {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		if got := p.do(dpGet()); got.status != 503 || got.header.Get("Retry-After") == "" {
			t.Errorf("the queue is full: %d, Retry-After %q", got.status, got.header.Get("Retry-After"))
		}
		for i := range int64(3) {
			p.waitHeld(peer, 1)
			p.eventually("the next request is at the peer", func() error {
				if n := peer.requests.Load(); n != i+1 {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
			peer.release()
		}
		dpWant(t, ends, 200)
		if n := peer.most.Load(); n != 1 {
			t.Errorf("the peer had %d requests at once", n)
		}
	})

	short := u
	short.Limits.QueueTimeout = 1500 * time.Millisecond
	p.setUpstream(&short)
	end := p.start(dpGet())
	p.waitHeld(peer, 1)
	begun := time.Now()
	got := p.do(dpGet())
	if waited := time.Since(begun); got.status != 503 || got.header.Get("Retry-After") != "2" || waited < 1500*time.Millisecond {
		t.Errorf("%d, Retry-After %q after %s", got.status, got.header.Get("Retry-After"), waited)
	}
	peer.release()
	dpWant(t, []<-chan dpEnd{end}, 200)
}

// TestCircuitBreaker: the upstream as a whole has no more in flight than its bound.
func TestCircuitBreaker(t *testing.T) {
	peer := dpNewWirePeer(t, dpHolds)
	p := dpServeUpstream(t, &model.Upstream{Peers: dpWirePeers(peer), Limits: model.Limits{Requests: 2}}, nil)
	var held []<-chan dpEnd
	for i, w := range p.workerPIDs() {
		p.only(w, func() {
			held = append(held, p.start(dpGet()))
			p.waitHeld(peer, int64(i+1))
		})
	}
	for _, w := range p.workerPIDs() {
		p.only(w, func() {
			if got := p.do(dpGet()); got.status != 503 || got.header.Get("Retry-After") == "" {
				t.Errorf("the third request: %d", got.status)
			}
		})
	}
	peer.release()
	dpWant(t, held, 200)
	peer.is(dpAnswers)
	p.waitInFlight(0)
	if got := p.do(dpGet()); got.status != 200 {
		t.Errorf("after the others ended: %d", got.status)
	}
	// The bound is gone by a push, and no request is refused any more.
	p.setUpstream(&model.Upstream{Peers: dpWirePeers(peer)})
	peer.is(dpHolds)
	held = nil
	for range 3 {
		held = append(held, p.start(dpGet()))
	}
	p.waitHeld(peer, 3)
	peer.release()
	dpWant(t, held, 200)
}

// TestKilledWorkerLeaksNothing: requests that die with their worker are not counted for ever.
func TestKilledWorkerLeaksNothing(t *testing.T) {
	peer := dpNewWirePeer(t, dpHolds)
	p := dpServeUpstream(t, &model.Upstream{
		Peers: dpWirePeers(peer), Limits: model.Limits{PeerRequests: 3, Requests: 3},
	}, nil)
	workers := p.workerPIDs()
	var doomed []<-chan dpEnd
	p.only(workers[0], func() {
		doomed = append(doomed, p.start(dpGet()), p.start(dpGet()))
		p.waitHeld(peer, 2)
	})
	var held []<-chan dpEnd
	p.only(workers[1], func() {
		held = append(held, p.start(dpGet()))
		p.waitHeld(peer, 3)
	})
	p.waitInFlight(3)
	if got := p.do(dpGet()); got.status != 503 {
		t.Fatalf("a fourth request: %d", got.status)
	}
	p.killed = append(p.killed, workers[0])
	if err := syscall.Kill(workers[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, d := range doomed {
		if got := <-d; got.err == nil {
			t.Errorf("a request outlived its worker: %d", got.status)
		}
	}
	p.waitInFlight(1)
	peer.is(dpAnswers)
	for range 6 {
		if got := p.do(dpGet()); got.status != 200 {
			t.Errorf("after the death of a worker: %d", got.status)
		}
	}
	peer.release()
	dpWant(t, held, 200)
	p.waitInFlight(0)
}

// TestQueueOutlivesAWorker: a worker is killed with requests at the peer and in its queue. Its places are given to those who
// wait in the other worker, nobody waits for ever, and the bound holds afterwards, for the worker that comes in its place, too.
func TestQueueOutlivesAWorker(t *testing.T) {
	peer := dpNewWirePeer(t, dpHolds)
	p := dpServeUpstream(t, &model.Upstream{
		Peers: dpWirePeers(peer), Limits: model.Limits{PeerRequests: 2, Queue: 100, QueueTimeout: dpDeadline},
	}, nil)
	workers := p.workerPIDs()
	queued := func(n int) {
		t.Helper()
		p.eventually(fmt.Sprintf("%d wait", n), func() error {
			if s := p.peers(); s.Queued != n {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
	}
	start := func(n int) (ends []<-chan dpEnd) {
		for range n {
			ends = append(ends, p.start(dpGet()))
		}
		return ends
	}
	var doomed, waiting []<-chan dpEnd
	p.only(workers[0], func() {
		doomed = start(2)
		p.waitHeld(peer, 2)
		doomed = append(doomed, start(2)...)
		queued(2)
	})
	p.only(workers[1], func() {
		waiting = start(3)
		queued(5)
	})
	p.killed = append(p.killed, workers[0])
	if err := syscall.Kill(workers[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, d := range doomed {
		if got := <-d; got.err == nil {
			t.Errorf("a request outlived its worker: %d", got.status)
		}
	}
	// The peer has not seen yet that two of its clients are gone.
	p.waitHeld(peer, 4)
	p.waitInFlight(2)
	queued(1)
	peer.is(dpAnswers)
	peer.release()
	dpWant(t, waiting, 200)
	p.waitInFlight(0)
	queued(0)

	peer.is(dpHolds)
	p.waitHeld(peer, 0)
	peer.most.Store(0)
	p.eventually("another worker came", func() error {
		if now := p.workerPIDs(); len(now) != 2 {
			return fmt.Errorf("workers %v", now)
		}
		return nil
	})
	ends := start(6)
	p.waitHeld(peer, 2)
	queued(4)
	peer.is(dpAnswers)
	peer.release()
	dpWant(t, ends, 200)
	if n := peer.most.Load(); n > 2 {
		t.Errorf("the peer had %d requests at once", n)
	}
	p.waitInFlight(0)
}

// TestReloadKeepsCounting: requests that an old worker still serves count for the new ones, until they end;
// an ejection outlives the reload, too.
func TestReloadKeepsCounting(t *testing.T) {
	peer, bad := dpNewWirePeer(t, dpHolds), dpNewWirePeer(t, dpResets)
	u := model.Upstream{
		Peers: dpWirePeers(peer), Limits: model.Limits{Requests: 2}, Ejection: model.Ejection{Failures: 1, Base: dpDeadline},
	}
	p := dpServeUpstream(t, &u, nil)
	held := []<-chan dpEnd{p.start(dpGet())}
	p.waitHeld(peer, 1)
	p.model.Settings.HSTS.MaxAge += time.Second // another configuration, so that the generation tells
	p.reload()
	p.waitInFlight(1)
	held = append(held, p.start(dpGet()))
	p.waitHeld(peer, 2)
	if got := p.do(dpGet()); got.status != 503 {
		t.Errorf("a third request beside one of an old worker: %d", got.status)
	}
	peer.release()
	dpWant(t, held, 200)
	p.waitInFlight(0)
	peer.is(dpAnswers)

	both := u
	both.Peers = dpWirePeers(peer, bad)
	p.setUpstream(&both)
	for bad.requests.Load() == 0 {
		p.do(dpGet())
	}
	p.model.Settings.HSTS.MaxAge += time.Second
	p.reload()
	for range 8 {
		p.do(dpGet())
	}
	if n := bad.requests.Load(); n != 1 {
		t.Errorf("after a reload an ejected peer got %d requests", n-1)
	}
}
