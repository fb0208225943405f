package nginx_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"headgate/gateway/model"
)

// dpGet is the request of these tests.
func dpGet() dpRequest { return dpRequest{host: "a.test", path: "/"} }

// TestEjectionIsShared: one worker sees a peer fail, and the other, which has not, leaves it alone at once.
func TestEjectionIsShared(t *testing.T) {
	good, bad := dpNewWirePeer(t, dpAnswers), dpNewWirePeer(t, dpAnswers)
	p := dpServeUpstream(t, &model.Upstream{Peers: dpWirePeers(good, bad)}, nil)
	workers := p.workerPIDs()
	for _, w := range workers { // both know the upstream, and that all is well
		p.only(w, func() {
			p.do(dpGet())
			p.do(dpGet())
		})
	}
	if n := bad.requests.Swap(0); n != 2 {
		t.Fatalf("the bad peer got %d requests while it was good", n)
	}
	bad.is(dpResets)
	p.only(workers[0], func() {
		for range 20 {
			if got := p.do(dpGet()); got.status != 200 {
				t.Fatalf("%d", got.status)
			}
		}
	})
	if n := bad.requests.Load(); n != 3 {
		t.Fatalf("the bad peer got %d requests, want 3", n)
	}
	p.only(workers[1], func() {
		for range 20 {
			if got := p.do(dpGet()); got.status != 200 {
				t.Fatalf("%d", got.status)
			}
		}
	})
	if n := bad.requests.Load(); n != 3 {
		t.Errorf("the other worker sent it %d more", n-3)
	}
	if s := p.peers(); s.ejected() != 1 || s.Panic {
		t.Errorf("%+v", s)
	}
	line := fmt.Sprintf("peer %s of %s failed 3 times in a row: ejected for ", bad.address, dpUpstreamID)
	if n := strings.Count(p.errorLog(), line); n != 1 {
		t.Errorf("%q stands %d times in the log", line, n)
	}
}

// TestEjectedPeerReturns: after its time it gets requests again, and the log says so, once.
func TestEjectedPeerReturns(t *testing.T) {
	good, bad := dpNewWirePeer(t, dpAnswers), dpNewWirePeer(t, dpResets)
	p := dpServeUpstream(t, &model.Upstream{
		Peers: dpWirePeers(good, bad), Ejection: model.Ejection{Failures: 1, Base: 300 * time.Millisecond},
	}, nil)
	for bad.requests.Load() == 0 {
		p.do(dpGet())
	}
	bad.is(dpAnswers)
	line := fmt.Sprintf("peer %s of %s is back after its ejection", bad.address, dpUpstreamID)
	// No request wakes it: the workers look by themselves.
	p.eventually("the log tells of the return", func() error {
		if !strings.Contains(p.errorLog(), line) {
			return fmt.Errorf("%+v", p.peers())
		}
		return nil
	})
	before := bad.requests.Load()
	for range 4 {
		p.do(dpGet())
	}
	if bad.requests.Load() == before {
		t.Error("it gets no requests")
	}
	if n := strings.Count(p.errorLog(), line); n != 1 {
		t.Errorf("the log tells it %d times", n)
	}
}

// TestStatusesEject: answers are failures only by chosen statuses, and reach the client all the same.
func TestStatusesEject(t *testing.T) {
	good, bad := dpNewWirePeer(t, dpAnswers), dpNewWirePeer(t, dpAnswers)
	bad.status.Store(503)
	u := model.Upstream{Peers: dpWirePeers(good, bad)}
	p := dpServeUpstream(t, &u, nil)
	count := func() (bad503 int) {
		for range 12 {
			if p.do(dpGet()).status == 503 {
				bad503++
			}
		}
		return bad503
	}
	if n := count(); n < 5 {
		t.Errorf("%d of 12 requests got the peer's 503", n)
	}
	if n := p.peers().ejected(); n != 0 {
		t.Errorf("%d peers were ejected by a status that nobody chose", n)
	}
	chosen := u
	chosen.Ejection = model.Ejection{Failures: 2, Statuses: []uint16{503}}
	p.setUpstream(&chosen)
	if n := count(); n != 2 {
		t.Errorf("%d requests got 503 before the peer was ejected, want 2", n)
	}
}

// TestPanic: never more than half of the peers are out; when more fail, all are used.
func TestPanic(t *testing.T) {
	peers := []*dpWirePeer{dpNewWirePeer(t, dpAnswers), dpNewWirePeer(t, dpAnswers), dpNewWirePeer(t, dpAnswers)}
	p := dpServeUpstream(t, &model.Upstream{
		Peers: dpWirePeers(peers...), Ejection: model.Ejection{Failures: 1, Base: time.Minute, Statuses: []uint16{500}},
	}, nil)
	peers[0].status.Store(500)
	peers[1].status.Store(500)
	for range 12 {
		p.do(dpGet())
	}
	if s := p.peers(); s.ejected() != 2 || !s.Panic {
		t.Fatalf("%+v", s)
	}
	var before []int64
	for _, peer := range peers {
		before = append(before, peer.requests.Load())
	}
	for range 12 {
		p.do(dpGet())
	}
	for i, peer := range peers {
		if peer.requests.Load() == before[i] {
			t.Errorf("peer %d gets no requests in panic", i)
		}
	}
}

// TestDownPeers: peers that a check found ill get nothing while another one is up.
func TestDownPeers(t *testing.T) {
	up, down := dpNewWirePeer(t, dpAnswers), dpNewWirePeer(t, dpAnswers)
	u := model.Upstream{Peers: dpWirePeers(up, down)}
	u.Peers[1].Down = true
	p := dpServeUpstream(t, &u, nil)
	for range 8 {
		p.do(dpGet())
	}
	if n := down.requests.Load(); n != 0 {
		t.Errorf("a peer that is down got %d requests", n)
	}
	all := model.Upstream{Peers: dpWirePeers(up, down)}
	all.Peers[0].Down, all.Peers[1].Down = true, true
	p.setUpstream(&all)
	for range 8 {
		if got := p.do(dpGet()); got.status != 200 {
			t.Errorf("all are down: %d", got.status)
		}
	}
	if down.requests.Load() == 0 || up.requests.Load() == 8 {
		t.Error("not all are used when all are down")
	}
}

// TestSlowStart: a new peer gets a small share, and its full one in the end.
func TestSlowStart(t *testing.T) {
	old, young := dpNewWirePeer(t, dpAnswers), dpNewWirePeer(t, dpAnswers)
	u := model.Upstream{Peers: dpWirePeers(old), SlowStart: 10 * time.Minute}
	p := dpServeUpstream(t, &u, nil)
	workers := p.workerPIDs()
	for _, w := range workers {
		p.only(w, func() { p.do(dpGet()) })
	}
	both := u
	both.Peers = dpWirePeers(old, young)
	p.setUpstream(&both)
	const n = 300
	for range n {
		p.do(dpGet())
	}
	// A tenth of what the old one gets: 27, and 100 is 14 standard deviations away.
	if got := young.requests.Load(); got == 0 || got > 100 {
		t.Errorf("the new peer got %d of %d requests", got, n)
	}
	third := dpNewWirePeer(t, dpAnswers)
	quick := u
	quick.SlowStart, quick.Peers = 200*time.Millisecond, dpWirePeers(old, third)
	p.setUpstream(&quick)
	p.eventually("its full share", func() error {
		p.do(dpGet())
		for _, peer := range p.peers().Peers {
			if peer.Share != 1 {
				return fmt.Errorf("%+v", peer)
			}
		}
		return nil
	})
	before := third.requests.Load()
	for range 20 {
		p.do(dpGet())
	}
	if got := third.requests.Load() - before; got < 8 {
		t.Errorf("after its slow start it gets %d of 20 requests", got)
	}
}
