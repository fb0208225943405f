package hostile

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

// pace is the time between two requests of one asker: all of them together make some hundred a second, which leaves the
// machine to what is tested.
const pace = 8 * time.Millisecond

// load asks for a path of a host all the time, over fresh and over kept connections. None of its requests may fail.
type load struct {
	t      *testing.T
	end    context.CancelFunc
	asking sync.WaitGroup
	began  time.Time

	mu       sync.Mutex // guards the rest
	requests int
	failures []string
}

// load begins to ask. The test must call stop.
func (g *gateway) load(host string) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{t: g.t, end: cancel, began: time.Now()}
	g.t.Cleanup(func() {
		cancel()
		l.asking.Wait()
	})
	for i := range 4 {
		l.asking.Go(func() { l.ask(ctx, g.client(i%2 == 0), "http://"+host+"/") })
	}
	return l
}

// client goes to the gateway whatever the host in the URL is.
func (g *gateway) client(fresh bool) *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: fresh,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", g.http)
		},
	}}
}

func (l *load) ask(ctx context.Context, client *http.Client, url string) {
	defer client.CloseIdleConnections()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		err := ok(client, url)
		l.mu.Lock()
		l.requests++
		if err != nil {
			l.failures = append(l.failures, fmt.Sprintf("after %s: %v", time.Since(began).Round(time.Millisecond), err))
		}
		l.mu.Unlock()
	}
}

// ok fails unless the answer is 200 and whole.
func ok(client *http.Client, url string) error {
	res, err := client.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	return nil
}

// answered is how many requests were made.
func (l *load) answered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests
}

// await returns once n more requests were answered.
func (l *load) await(g *gateway, n int) {
	l.t.Helper()
	until := l.answered() + n
	g.await(fmt.Sprintf("%d more requests are answered", n), func() bool { return l.answered() >= until })
}

// stop ends the load, fails the test if a request failed, and tells how many there were and in what time.
func (l *load) stop() (int, time.Duration) {
	l.t.Helper()
	took := time.Since(l.began)
	l.end()
	l.asking.Wait()
	if n := len(l.failures); n > 0 {
		l.t.Errorf("%d of %d requests failed, first: %q", n, l.requests, l.failures[:min(n, 10)])
	}
	l.t.Logf("%d requests within %s", l.requests, took.Round(time.Millisecond))
	return l.requests, took
}
