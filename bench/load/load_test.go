package load

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// A server that stalls once is charged for every request that was due meanwhile.
func TestLatencyCountsFromWhenARequestWasDue(t *testing.T) {
	const stall = 300 * time.Millisecond
	var asked atomic.Int64
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			time.AfterFunc(stall, func() { close(release) })
		}
		<-release
		if r.Host != "a.test" {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	heard := make(chan Answer, 1000)
	g := Start(t.Context(), Config{
		Address: server.Listener.Addr().String(), Rate: 200, Workers: 2,
		Host: func(n int64) string {
			if n == 50 {
				return "b.test"
			}
			return "a.test"
		},
		Heard: func(a Answer) { heard <- a },
	})
	for range 100 {
		<-heard
	}
	s := g.Stop()
	if s.Requests < 100 || s.Failed != 1 || s.First == "" {
		t.Fatalf("%d requests, %d failed, first %q; want 100 or more and one", s.Requests, s.Failed, s.First)
	}
	// Two workers sent two requests into the stall; some 60 were due in it.
	late := 0
	for _, l := range s.latencies {
		if l > stall/4 {
			late++
		}
	}
	if late < 20 {
		t.Errorf("%d of %d requests are late; want all that were due in the stall", late, len(s.latencies))
	}
	if s.Latency(1) < stall-20*time.Millisecond {
		t.Errorf("the longest latency is %s; want about %s", s.Latency(1), stall)
	}
}

func TestGapIsTheLongestTimeWithoutAGoodAnswer(t *testing.T) {
	at := time.Unix(0, 0)
	s := &Segment{came: []time.Time{at.Add(9), at, at.Add(2)}}
	s.Add(&Segment{came: []time.Time{at.Add(20)}, Requests: 1, Failed: 1, First: "x"})
	if s.Gap() != 11 || s.Requests != 1 || s.First != "x" {
		t.Errorf("gap %d, %d requests, first %q", s.Gap(), s.Requests, s.First)
	}
}
