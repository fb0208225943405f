// Package load sends requests at a fixed rate and keeps what became of each. A request is due at its place in the
// schedule, whether or not the ones before it were answered, and its latency counts from there: a proxy that stalls
// is charged for all that had to wait (no coordinated omission).
package load

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"headgate/bench/figure"
)

// Config says what to send.
type Config struct {
	// Address is where every connection goes, "address:port".
	Address string
	// Rate is requests a second, > 0.
	Rate float64
	// Workers is how many requests can be under way at a time; 0 means 64. More are sent late, and charged.
	Workers int
	// Timeout of one request; 0 means 10 s.
	Timeout time.Duration
	// Host gives the host of the n-th request.
	Host func(n int64) string
	// Path begins with "/"; "" means "/".
	Path string
	// Good tells whether an answer is right; nil means status 200.
	Good func(Answer) bool
	// Heard gets each answer as it comes, from many goroutines; nil is fine.
	Heard func(Answer)
}

// Answer is what a client saw of one request.
type Answer struct {
	Host       string
	Sent, Came time.Time
	Status     int
	Body       string
	Err        error // no answer, or a broken one
}

// String tells what came, for messages.
func (a Answer) String() string {
	if a.Err != nil {
		return a.Err.Error()
	}
	return fmt.Sprintf("%s: %d %.80q", a.Host, a.Status, a.Body)
}

const (
	defaultWorkers = 64
	defaultTimeout = 10 * time.Second
	maxBody        = 4096
)

// Generator sends until it is stopped.
type Generator struct {
	config Config
	client *http.Client
	start  time.Time
	next   atomic.Int64

	cancel context.CancelFunc
	done   sync.WaitGroup

	mu  sync.Mutex // guards all below
	now *Segment
}

// Segment is a stretch of the schedule.
type Segment struct {
	Requests, Failed int
	// First is the first answer that was not good.
	First string
	// latencies of good answers, from when they were due, and when those came.
	latencies []time.Duration
	came      []time.Time
}

// Start begins to send. Stop must be called.
func Start(ctx context.Context, c Config) *Generator {
	if c.Workers == 0 {
		c.Workers = defaultWorkers
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Path == "" {
		c.Path = "/"
	}
	if c.Good == nil {
		c.Good = func(a Answer) bool { return a.Status == http.StatusOK }
	}
	ctx, cancel := context.WithCancel(ctx)
	g := &Generator{config: c, cancel: cancel, start: time.Now(), now: &Segment{}}
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, c.Address)
	}
	g.client = &http.Client{
		Timeout:       c.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		// One pool, whatever the host: as the clients of a real edge keep their connections, not the hosts'.
		Transport: hostInHeader{&http.Transport{DialContext: dial, MaxIdleConnsPerHost: c.Workers, MaxIdleConns: c.Workers, DisableCompression: true}},
	}
	for range c.Workers {
		g.done.Go(func() { g.work(ctx) })
	}
	return g
}

// hostInHeader sends every request to one address, with its own Host header.
type hostInHeader struct{ http.RoundTripper }

func (h hostInHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host, r.URL.Host = r.URL.Host, "edge"
	return h.RoundTripper.RoundTrip(r) //nolint:wrapcheck // the client does
}

func (g *Generator) work(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		n := g.next.Add(1) - 1
		due := g.start.Add(time.Duration(float64(n) / g.config.Rate * float64(time.Second)))
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		a := g.ask(ctx, g.config.Host(n))
		if ctx.Err() != nil {
			return
		}
		g.note(a, due)
		if g.config.Heard != nil {
			g.config.Heard(a)
		}
	}
}

func (g *Generator) ask(ctx context.Context, host string) Answer {
	a := Answer{Host: host, Sent: time.Now()}
	a.Status, a.Body, a.Err = g.get(ctx, "http://"+host+g.config.Path)
	a.Came = time.Now()
	return a
}

func (g *Generator) get(ctx context.Context, url string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", fmt.Errorf("make a request: %w", err)
	}
	res, err := g.client.Do(req)
	if err != nil {
		return 0, "", err //nolint:wrapcheck // the client's own words
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	return res.StatusCode, strings.TrimSpace(string(body)), err //nolint:wrapcheck // the client's own words
}

func (g *Generator) note(a Answer, due time.Time) {
	good := a.Err == nil && g.config.Good(a)
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.now
	s.Requests++
	if !good {
		s.Failed++
		if s.First == "" {
			s.First = a.String()
		}
		return
	}
	s.latencies = append(s.latencies, a.Came.Sub(due))
	s.came = append(s.came, a.Came)
}

// Cut ends a segment, begins the next, and gives the one that ended. An answer belongs to the segment in which it came.
func (g *Generator) Cut() *Segment {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.now
	g.now = &Segment{}
	return s
}

// Stop ends the sending, waits, and gives the last segment; what is under way then counts for nothing.
func (g *Generator) Stop() *Segment {
	g.cancel()
	g.done.Wait()
	g.client.CloseIdleConnections()
	return g.Cut()
}

// Add joins another segment to this one.
func (s *Segment) Add(o *Segment) {
	s.Requests += o.Requests
	s.Failed += o.Failed
	if s.First == "" {
		s.First = o.First
	}
	s.latencies = append(s.latencies, o.latencies...)
	s.came = append(s.came, o.came...)
}

// Latency is a percentile (q 0–1) of the good answers, from when they were due.
func (s *Segment) Latency(q float64) time.Duration { return figure.Percentile(s.latencies, q) }

// Gap is the longest time between two good answers that followed each other.
func (s *Segment) Gap() time.Duration {
	came := slices.SortedFunc(slices.Values(s.came), time.Time.Compare)
	var longest time.Duration
	for i := 1; i < len(came); i++ {
		longest = max(longest, came[i].Sub(came[i-1]))
	}
	return longest
}
