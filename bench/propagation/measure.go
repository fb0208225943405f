package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"headgate/bench/cluster"
	"headgate/bench/edge"
	"headgate/bench/stage"
	"headgate/sync/admin"
)

const (
	address = "127.0.0.1:8000"
	// Between two events the gateway comes to rest: its window for coalescing is over, and passes that follow
	// from the last event, too. The length varies so that events fall on no rhythm of anybody's.
	shortestGap, longestGap = 50 * time.Millisecond, 110 * time.Millisecond
	// settleTimeout is for the daemon to have read what was written to the API server.
	settleTimeout = 60 * time.Second
	steadyEvery   = 5 * time.Millisecond
)

// figures are what one size gave.
type figures struct {
	routes            int
	endpoint, ingress series
	reloads           uint64
	requests, failed  int64 // of the steady traffic
	first             error // the first thing that went wrong, to be told
}

// series are the times of one kind of event; those that went wrong are counted instead.
type series struct {
	served []time.Duration // until the last worker serves it
	api    []time.Duration // until the API server has answered the write
	errors int
}

func (f figures) errors() int { return f.endpoint.errors + f.ingress.errors + int(f.failed) }

// bed is everything that runs.
type bed struct {
	plan    plan
	cluster *bedOfRoutes
	gateway *edge.Gateway
	probes  []*probe
	random  *rand.Rand
	at      string // peer of the probed service
	names   int    // of Ingresses made so far
}

func measure(ctx context.Context, s *stage.Stage, p plan) ([]figures, error) {
	ctx, cancel := context.WithCancel(ctx)
	g, backends := errgroup.WithContext(ctx)
	defer func() { cancel(); _ = g.Wait() }() // they end with ctx and have nothing to say
	if err := cluster.ServeBackends(backends, g); err != nil {
		return nil, err
	}
	b, err := setUp(ctx, s, p)
	if err != nil {
		return nil, err
	}
	defer func() { _ = closeAll(b.probes) }()
	var all []figures
	for _, routes := range p.sizes {
		f, err := b.size(ctx, routes)
		if err != nil {
			return nil, fmt.Errorf("at %d routes: %w", routes, err)
		}
		all = append(all, f)
	}
	return all, nil
}

func setUp(ctx context.Context, s *stage.Stage, p plan) (*bed, error) {
	c, err := startCluster(ctx, s, p.testcluster)
	if err != nil {
		return nil, err
	}
	if err := c.grow(ctx, p.sizes[0]); err != nil {
		return nil, err
	}
	workers := runtime.NumCPU()
	g, err := edge.Start(ctx, s, edge.Config{
		Name: "edge", Binary: p.headgate, Kubeconfig: c.Kubeconfig, HTTP: address, HTTPS: "127.0.0.1:8443", Workers: workers,
	}, holds(p.sizes[0]))
	if err != nil {
		return nil, err
	}
	pids, err := workersOf(ctx, g.Workers, workers)
	if err != nil {
		return nil, err
	}
	probes, err := connect(ctx, address, pids)
	if err != nil {
		return nil, err
	}
	return &bed{plan: p, cluster: c, gateway: g, probes: probes, at: c.peerA, random: rand.New(rand.NewPCG(p.seed, 0))}, nil //nolint:gosec // lengths of gaps
}

// holds is satisfied when exactly that many routes are served without a problem.
func holds(routes int) func(admin.Status) error {
	return func(s admin.Status) error {
		if s.Counts.Routes != routes || len(s.Problems) > 0 || s.Revision.Applied != s.Revision.Desired {
			return fmt.Errorf("%d of %d routes, %d problems, revision %d of %d", s.Counts.Routes, routes, len(s.Problems), s.Revision.Applied, s.Revision.Desired)
		}
		return nil
	}
}

// size grows to that many routes and measures there.
func (b *bed) size(ctx context.Context, routes int) (figures, error) {
	if err := b.cluster.grow(ctx, routes); err != nil {
		return figures{}, err
	}
	if err := b.settle(ctx, routes); err != nil {
		return figures{}, err
	}
	before, err := b.gateway.Status(ctx)
	if err != nil {
		return figures{}, err
	}
	f := figures{routes: routes}
	stop := b.steadyTraffic(ctx, &f)
	f.endpoint, err = b.events(ctx, &f, b.endpoint)
	if err == nil {
		f.ingress, err = b.events(ctx, &f, b.ingress)
	}
	stop()
	if err != nil {
		return figures{}, err
	}
	after, err := b.gateway.Status(ctx)
	if err != nil {
		return figures{}, err
	}
	f.reloads = edge.Reloads(after) - edge.Reloads(before)
	return f, b.clear(ctx)
}

func (b *bed) settle(ctx context.Context, routes int) error {
	end := time.Now().Add(settleTimeout)
	for {
		status, err := b.gateway.Status(ctx)
		if err == nil {
			err = holds(routes)(status)
		}
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the gateway does not come to rest: %w", err)
		}
		if err := stage.Wait(ctx, stage.Poll); err != nil {
			return err
		}
	}
}

// events plays one kind of event, one after the other.
func (b *bed) events(ctx context.Context, f *figures, play func(context.Context) (event, error)) (series, error) {
	s := series{}
	for range b.plan.events {
		if err := stage.Wait(ctx, shortestGap+time.Duration(b.random.Int64N(int64(longestGap-shortestGap)))); err != nil {
			return s, err
		}
		if err := renew(ctx, address, b.probes); err != nil {
			return s, err
		}
		e, err := play(ctx)
		switch {
		case ctx.Err() != nil:
			return s, ctx.Err() //nolint:wrapcheck // Ctrl-C
		case e.write != nil:
			return s, e.write
		case err != nil:
			s.errors++
			if f.first == nil {
				f.first = err
			}
			if err := b.reconnect(ctx); err != nil {
				return s, err
			}
		default:
			s.served = append(s.served, e.served)
			s.api = append(s.api, e.api)
		}
	}
	return s, nil
}

// reconnect starts over with fresh connections, perhaps to other workers, once all is quiet again.
func (b *bed) reconnect(ctx context.Context) error {
	workers, err := workersOf(ctx, b.gateway.Workers, len(b.probes))
	if err != nil {
		return err
	}
	_ = closeAll(b.probes) // one of them may be gone
	b.probes, err = connect(ctx, address, workers)
	return err
}

// event is one change and what became of it.
type event struct {
	served, api time.Duration
	write       error // the API server refused it: nothing can be said of the gateway
}

// endpoint moves the probed service to its other peer.
func (b *bed) endpoint(ctx context.Context) (event, error) {
	from, to := b.cluster.peerA, b.cluster.peerB
	if b.at == to {
		from, to = to, from
	}
	b.at = to
	return b.change(ctx, "h0.test",
		func(ctx context.Context) error { return b.cluster.Point(ctx, probed, to) },
		func(a answer) bool { return a == answer{http.StatusOK, from} },
		func(a answer) bool { return a == answer{http.StatusOK, to} })
}

// ingress adds a host.
func (b *bed) ingress(ctx context.Context) (event, error) {
	name := fmt.Sprintf("new-%d", b.names)
	b.names++
	return b.change(ctx, name+".test",
		func(ctx context.Context) error { return b.cluster.Create(ctx, cluster.Ingress(name, probed, "/")) },
		func(a answer) bool { return a.status == http.StatusNotFound },
		func(a answer) bool { return a == answer{http.StatusOK, b.at} })
}

// change writes to the API server while every worker is asked.
func (b *bed) change(ctx context.Context, host string, write func(context.Context) error, old, want func(answer) bool) (event, error) {
	e := event{}
	served := make([]time.Time, len(b.probes))
	errs := make([]error, len(b.probes)+1)
	start := time.Now()
	var g errgroup.Group
	for i, p := range b.probes {
		g.Go(func() error {
			served[i], errs[i] = p.await(ctx, host, old, want)
			return nil
		})
	}
	e.write = write(ctx)
	e.api = time.Since(start)
	_ = g.Wait() // the errors are in errs
	e.served = slices.MaxFunc(served, time.Time.Compare).Sub(start)
	return e, errors.Join(errs...)
}

// clear takes the new Ingresses away.
func (b *bed) clear(ctx context.Context) error {
	names := b.names
	b.names = 0
	return cluster.Each(ctx, names, func(ctx context.Context, i int) error { //nolint:wrapcheck // Remove did
		return b.cluster.Remove(ctx, fmt.Sprintf("new-%d", i))
	})
}

// steadyTraffic asks for a host that is always served, until stop is called; every answer but 200 is a failure.
func (b *bed) steadyTraffic(ctx context.Context, f *figures) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var requests, failed atomic.Int64
	var first atomic.Pointer[error]
	client := &http.Client{Timeout: probeTimeout, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for stage.Wait(ctx, steadyEvery) == nil {
			err := get(ctx, client, "http://h0.test/api/x")
			if ctx.Err() != nil {
				return
			}
			requests.Add(1)
			if err != nil {
				failed.Add(1)
				first.CompareAndSwap(nil, &err)
			}
		}
	}()
	return func() {
		cancel()
		<-done
		client.CloseIdleConnections()
		f.requests, f.failed = requests.Load(), failed.Load()
		if err := first.Load(); err != nil && f.first == nil {
			f.first = *err
		}
	}
}

func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("make a request: %w", err)
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("steady traffic: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return fmt.Errorf("steady traffic: %d %q: %w", res.StatusCode, body, err)
	}
	return nil
}
