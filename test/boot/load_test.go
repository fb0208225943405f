package boot

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// load asks all the time, half of it over fresh connections, and keeps book of every failure.
type load struct {
	end    context.CancelFunc
	asking sync.WaitGroup

	mu       sync.Mutex // guards what follows
	requests int
	fresh    int // failures of requests that opened a connection of their own
	failures []string
	worst    time.Duration
}

// pace is the time between two requests of one asker; together they make 200 a second.
const pace = 20 * time.Millisecond

const askers = 4

// hostName is the one that the Ingress of the tests serves.
const hostName = "shop.example.com"

// startLoad begins to ask address on port 80.
func startLoad(t *testing.T, address string) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{end: cancel}
	t.Cleanup(cancel)
	for i := range askers {
		client := newClient(address)
		client.Transport.(*http.Transport).DisableKeepAlives = i%2 == 0
		l.asking.Go(func() { l.ask(ctx, client, i%2 == 0) })
	}
	return l
}

func newClient(address string) *http.Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, net.JoinHostPort(address, "80"))
		},
	}}
}

func (l *load) ask(ctx context.Context, client *http.Client, fresh bool) {
	defer client.CloseIdleConnections()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		from := time.Now()
		err := get(client)
		l.note(from, err)
		if fresh && err != nil {
			l.noteFresh()
		}
	}
}

func (l *load) noteFresh() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fresh++
}

// get is answered with 200 and the backend's word, or it failed.
func get(client *http.Client) error {
	response, err := client.Get("http://" + hostName + "/")
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // only read from
	word, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || string(word) != backendWord {
		return fmt.Errorf("got %d %q", response.StatusCode, word)
	}
	return nil
}

func (l *load) note(from time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	l.worst = max(l.worst, time.Since(from))
	if err != nil {
		l.failures = append(l.failures, fmt.Sprintf("%s: %v", from.Format("15:04:05.000"), err))
	}
}

// stop ends the load and tells how many requests failed; what happened says during what.
func (l *load) stop(t *testing.T, happened string) (failed int) {
	t.Helper()
	l.end()
	l.asking.Wait()
	t.Logf("%s: %d of %d requests failed, the slowest took %s", happened, len(l.failures), l.requests, l.worst.Round(time.Millisecond))
	for i, f := range l.failures {
		if i == 5 {
			break
		}
		t.Log(f)
	}
	if l.requests < askers {
		t.Errorf("%s: %d requests are no load", happened, l.requests)
	}
	return len(l.failures)
}

// during runs f under load and demands that no request fails. The load goes on for a while, so that what comes late counts.
func during(t *testing.T, address, what string, f func()) {
	t.Helper()
	l := startLoad(t, address)
	l.await(t, askers)
	f()
	l.await(t, l.count()+afterwards)
	if failed := l.stop(t, what); failed > 0 {
		t.Errorf("%s: %d requests failed", what, failed)
	}
}

// afterwards is how many requests follow what is tested: one second's.
const afterwards = 200

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests
}

func (l *load) await(t *testing.T, n int) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for l.count() < n {
		select {
		case <-deadline:
			t.Fatalf("%d requests in 30 s, want %d", l.count(), n)
		case <-tick.C:
		}
	}
}
