package hostile

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestFlappingPeers: of five peers four die and come back all the time, each in a rhythm of its own, with requests in flight.
// While one of them lives no request fails; who fails is ejected and returns, both are counted; and retries stay within the
// budget, for a storm of them would make it worse.
func TestFlappingPeers(t *testing.T) {
	const flapping, deaths, seed = 4, 60, 1
	g := start(t, "")
	got := &counterOf{}
	steady := &flapper{t: t, address: "127.3.0.1:0", got: got}
	steady.live()
	_, port, _ := net.SplitHostPort(steady.address)
	peers, addresses := []*flapper{steady}, []string{steady.address}
	for i := range flapping {
		f := &flapper{t: t, address: net.JoinHostPort(fmt.Sprintf("127.3.0.%d", i+2), port), got: got}
		f.live()
		peers, addresses = append(peers, f), append(addresses, f.address)
	}
	g.write("site.yaml", class+ingress("flapping", "flapping.test", prefix("/", "flapping"))+
		serviceWith("flapping", []string{"eject-failures: 2", "eject-time: 200ms", "eject-max-time: 1s"}, addresses...))
	g.settle()
	l := g.load("flapping.test")
	l.await(g, 50)

	ctx, stop := context.WithCancel(t.Context())
	var flaps sync.WaitGroup
	var died atomic.Int64
	for i, f := range peers[1:] {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		flaps.Go(func() {
			defer f.die()
			for alive := true; ; alive = !alive {
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Duration(100+random.IntN(400)) * time.Millisecond):
				}
				if alive {
					f.die()
					died.Add(1)
				} else {
					f.live()
				}
			}
		})
	}
	told := func(family string) float64 {
		s, err := g.scrape()
		if err != nil {
			t.Fatal(err)
		}
		return s.sum("headgate_proxy_"+family, `upstream="default/flapping/80"`)
	}
	g.await("peers died, were ejected and returned", func() bool {
		return died.Load() >= deaths && told("ejections_total") >= 3 && told("returns_total") >= 3
	})
	stop()
	flaps.Wait()
	requests, took := l.stop()
	steady.die()

	// A connection that was refused is no load: what counts against the budget reached a peer.
	attempts := got.total()
	// 20 % and three a second; the first and the last second are begun.
	most := float64(requests)*1.2 + 3*(took.Seconds()+2)
	retries, denied := told("retries_total"), told("retries_denied_total")
	t.Logf("%d deaths, %d attempts; told: %v retries, %v denied, %v ejections, %v returns", died.Load(), attempts, retries, denied,
		told("ejections_total"), told("returns_total"))
	if float64(attempts) > most {
		t.Errorf("%d requests were %d attempts, the budget allows %.0f", requests, attempts, most)
	}
	if retries == 0 || told("returns_total") > told("ejections_total") {
		t.Errorf("%v retries, %v returns of %v ejections", retries, told("returns_total"), told("ejections_total"))
	}
}
