package nginx_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/gateway/model"
)

// dpQuick makes time-outs short, so that tests need not wait; tries is Retry.Tries.
func dpQuick(tries int) func(*model.Route) {
	return func(r *model.Route) {
		r.Timeouts = model.Timeouts{Connect: time.Second, Send: time.Second, Read: 100 * time.Millisecond}
		r.Retry.Tries = tries
	}
}

func dpUnbounded(peers ...model.Peer) *model.Upstream {
	return &model.Upstream{
		Peers: peers, Ejection: model.Ejection{Off: true}, Budget: model.RetryBudget{Unlimited: true},
	}
}

// TestRetries: what is tried again on another peer, and what must not be because it was sent already.
func TestRetries(t *testing.T) {
	resend := model.Profile{RetryNonIdempotent: true}
	for name, c := range map[string]struct {
		way     dpWays
		refuses bool // nobody listens
		method  string
		profile model.Profile
		status  int // of requests that reach the bad peer first
		again   bool
	}{
		"refused GET":                {refuses: true, method: "GET", status: 200, again: true},
		"refused POST":               {refuses: true, method: "POST", status: 200, again: true},
		"silent GET":                 {way: dpSilent, method: "GET", status: 200, again: true},
		"silent POST":                {way: dpSilent, method: "POST", status: 504},
		"reset GET":                  {way: dpResets, method: "GET", status: 200, again: true},
		"reset POST":                 {way: dpResets, method: "POST", status: 502},
		"reset POST, may be resent":  {way: dpResets, method: "POST", profile: resend, status: 200, again: true},
		"silent POST, may be resent": {way: dpSilent, method: "POST", profile: resend, status: 200, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good, bad := dpNewWirePeer(t, dpAnswers), dpNewWirePeer(t, c.way)
			peers := dpWirePeers(good, bad)
			if c.refuses {
				peers[1].Address = dpDead(t)
			}
			p := dpServeUpstream(t, dpUnbounded(peers...), func(r *model.Route) {
				dpQuick(3)(r)
				r.Profile = c.profile
			}, resend)
			statuses := map[int]int64{}
			for range 8 {
				r := dpRequest{host: "a.test", path: "/", method: c.method}
				if c.method == "POST" {
					r.body = strings.NewReader("body")
				}
				statuses[p.do(r).status]++
			}
			if c.again && statuses[200] != 8 || !c.again && (statuses[c.status] < 3 || statuses[200] < 3) {
				t.Errorf("answers by status: %v", statuses)
			}
			if got, want := good.requests.Load(), statuses[200]; got != want {
				t.Errorf("the good peer got %d requests for %d answers", got, want)
			}
			if got := bad.requests.Load(); !c.refuses && !c.again && got != 8-statuses[200] {
				t.Errorf("the bad peer got %d requests, %d of 8 were answered by the other", got, statuses[200])
			}
		})
	}
}

// TestBrokenOffAnswer: what began to reach the client is never sent by another peer.
func TestBrokenOffAnswer(t *testing.T) {
	good, bad := dpNewWirePeer(t, dpAnswers), dpNewWirePeer(t, dpBreaksOff)
	p := dpServeUpstream(t, dpUnbounded(dpWirePeers(good, bad)...), nil)
	broken := 0
	for range 8 {
		if _, err := p.try(t.Context(), dpGet()); err != nil {
			broken++
			if !strings.Contains(err.Error(), io.ErrUnexpectedEOF.Error()) {
				t.Errorf("%v", err)
			}
		}
	}
	if int64(broken) != bad.requests.Load() || good.requests.Load() != int64(8-broken) || broken < 3 {
		t.Errorf("%d of 8 answers broke off; the peers got %d and %d", broken, good.requests.Load(), bad.requests.Load())
	}
}

// TestRetryBudget: when all peers fail, retries stay within the budget, and the client gets the kind of
// error that there was.
func TestRetryBudget(t *testing.T) {
	for name, c := range map[string]struct {
		way    dpWays
		status int
		wave   int // requests at once
	}{
		"reset":  {dpResets, 502, 1},
		"resets": {dpResets, 502, 20},
		"silent": {dpSilent, 504, 20},
	} {
		t.Run(name, func(t *testing.T) {
			peers := []*dpWirePeer{dpNewWirePeer(t, c.way), dpNewWirePeer(t, c.way), dpNewWirePeer(t, c.way)}
			p := dpServeUpstream(t, &model.Upstream{Peers: dpWirePeers(peers...)}, dpQuick(3))
			const n = 300
			begun := time.Now()
			var others atomic.Int64
			for range n / c.wave {
				var wave sync.WaitGroup
				for range c.wave {
					wave.Go(func() {
						res, err := p.try(t.Context(), dpGet())
						switch {
						case err != nil || res.status != 502 && res.status != 504:
							t.Errorf("%d %v", res.status, err)
						case res.status != c.status:
							others.Add(1)
						}
					})
				}
				wave.Wait()
			}
			seconds := time.Since(begun).Seconds()
			var attempts int64
			for _, peer := range peers {
				attempts += peer.requests.Load()
			}
			// The seconds of the budget are those of the clock: the first and the last are begun.
			if most := n*1.2 + 3*(seconds+2); float64(attempts) > most {
				t.Errorf("%d attempts for %d requests in %.2f s, at most %.0f are allowed", attempts, n, seconds, most)
			}
			if attempts < n*1.1 {
				t.Errorf("%d attempts for %d requests: hardly any retries", attempts, n)
			}
			if others.Load() > 0 {
				t.Errorf("%d of %d requests got another error than %d", others.Load(), n, c.status)
			}
		})
	}
}

// TestRetryTotal: no retry begins after the total time.
func TestRetryTotal(t *testing.T) {
	for total, want := range map[time.Duration]int64{50 * time.Millisecond: 1, 150 * time.Millisecond: 2, 0: 3} {
		t.Run(total.String(), func(t *testing.T) {
			peers := []*dpWirePeer{dpNewWirePeer(t, dpSilent), dpNewWirePeer(t, dpSilent), dpNewWirePeer(t, dpSilent)}
			p := dpServeUpstream(t, dpUnbounded(dpWirePeers(peers...)...), func(r *model.Route) {
				dpQuick(3)(r)
				r.Retry.Total = total
			})
			if got := p.do(dpGet()).status; got != 504 {
				t.Errorf("%d, want 504", got)
			}
			var attempts int64
			for _, peer := range peers {
				attempts += peer.requests.Load()
				if n := peer.requests.Load(); n > 1 {
					t.Errorf("a peer was tried %d times", n)
				}
			}
			if attempts != want {
				t.Errorf("%d attempts, want %d", attempts, want)
			}
		})
	}
}

// TestKeptConnectionsThatPeersClose: nginx tries once more when a kept connection turns out to be closed; a
// single peer is then asked again.
func TestKeptConnectionsThatPeersClose(t *testing.T) {
	peer := dpNewWirePeer(t, dpAnswers)
	p := dpServeUpstream(t, &model.Upstream{Peers: dpWirePeers(peer)}, nil)
	for _, w := range p.workerPIDs() {
		p.only(w, func() {
			if got := p.do(dpGet()); got.status != 200 {
				t.Fatalf("%d", got.status)
			}
			peer.is(dpResetsOnce)
			if got := p.do(dpGet()); got.status != 200 {
				t.Errorf("after the peer closed a kept connection: %d", got.status)
			}
		})
	}
	if s := p.peers(); s.ejected() != 0 {
		t.Errorf("%+v", s)
	}
	if n := peer.requests.Load(); n != 6 {
		t.Errorf("the peer got %d requests, want 6: %s", n, fmt.Sprint(p.peers()))
	}
}
