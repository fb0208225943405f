package chaos

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// target is what the load asks for, and what must come back.
type target struct {
	url  string // http://host/ or https://host/
	want string // the whole body
}

// load asks all the time, over fresh and over kept connections, and keeps book of every failure.
type load struct {
	t      *testing.T
	end    context.CancelFunc
	asking sync.WaitGroup

	mu       sync.Mutex // guards what follows
	requests int
	failures []failure
	kills    []interval // of parts that requests pass through
	outages  []interval // times in which nothing listened
}

type interval struct {
	from, to time.Time
}

func (i interval) touches(from, to time.Time) bool { return !to.Before(i.from) && !from.After(i.to) }

// failure is one request that did not get its answer.
type failure struct {
	interval
	url string
	err error
}

// pace is the time between two requests of one asker: together they make some hundred requests a second, which leaves
// the machine to what is tested.
const pace = 8 * time.Millisecond

// startLoad begins to ask. The test must call stop.
func startLoad(t *testing.T, httpAddress, httpsAddress string, targets ...target) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{t: t, end: cancel}
	t.Cleanup(func() {
		cancel()
		l.asking.Wait()
	})
	for i := range 4 {
		client := newClient(httpAddress, httpsAddress)
		client.Transport.(*http.Transport).DisableKeepAlives = i%2 == 0
		l.asking.Go(func() { l.ask(ctx, client, targets) })
	}
	return l
}

// newClient goes to the gateway whatever the host in the URL is.
func newClient(httpAddress, httpsAddress string) *http.Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return &http.Client{
		Timeout:       15 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				to := httpAddress
				if strings.HasSuffix(address, ":443") {
					to = httpsAddress
				}
				return dialer.DialContext(ctx, network, to)
			},
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the names are made up
		},
	}
}

func (l *load) ask(ctx context.Context, client *http.Client, targets []target) {
	defer client.CloseIdleConnections()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		to := targets[i%len(targets)]
		from := time.Now()
		err := get(client, to.url, to.want)
		l.note(failure{interval{from, time.Now()}, to.url, err})
	}
}

// get fails unless the answer is 200 with that body.
func get(client *http.Client, url, want string) error {
	res, err := client.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK || string(body) != want {
		return fmt.Errorf("got %d %q, want 200 %q", res.StatusCode, strings.TrimSpace(string(body)), want)
	}
	return nil
}

func (l *load) note(f failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	if f.err != nil {
		l.failures = append(l.failures, f)
	}
}

// kill runs f, which kills something that requests pass through. What is under way between its begin and its end may fail.
func (l *load) kill(f func()) {
	from := time.Now()
	f()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kills = append(l.kills, interval{from, time.Now()})
}

// outage runs f, at whose begin nothing listens any more and at whose end something does again. Until then nobody can
// be connected.
func (l *load) outage(f func()) {
	from := time.Now()
	f()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outages = append(l.outages, interval{from, time.Now()})
}

// awaitRequests returns once n more requests were answered.
func (l *load) awaitRequests(n int) {
	l.t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.requests
	}
	until := count() + n
	harnessEventually(l.t, patience, func() error {
		if now := count(); now < until {
			return fmt.Errorf("%d of %d requests", now, until)
		}
		return nil
	})
}

// stop ends the load and fails the test for each request that had no reason to fail.
func (l *load) stop() {
	l.t.Helper()
	l.awaitRequests(40) // the load goes on a moment after the last event
	l.end()
	l.asking.Wait()
	excused, outage := 0, 0
	for _, f := range l.failures {
		switch {
		case under(l.kills, f):
			excused++
		case under(l.outages, f) && refused(f.err):
			outage++
		default:
			l.t.Errorf("%s failed without a part of its way being killed, after %v: %v", f.url, f.to.Sub(f.from), f.err)
		}
	}
	var down time.Duration
	for _, o := range l.outages {
		down += o.to.Sub(o.from)
	}
	l.t.Logf("%d requests, %d failed in flight in what was killed, %d while nothing listened (%v)",
		l.requests, excused, outage, down.Round(time.Millisecond))
}

// under tells whether a request was on its way within one of the intervals.
func under(list []interval, f failure) bool {
	for _, i := range list {
		if i.touches(f.from, f.to) {
			return true
		}
	}
	return false
}

// refused: the connection was not accepted by anybody. A reset says the same: before a cold start nginx -t binds the
// ports and listens for some milliseconds, and what was queued there is reset when it ends.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}
