package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"headgate/bench/cluster"
	"headgate/bench/edge"
	"headgate/bench/load"
	"headgate/bench/stage"
	"headgate/sync/admin"
)

const (
	gatewayAddress = "127.0.0.1:8000"
	nginxAddress   = "127.0.0.1:8001"
	// The churning service has few or many of the first endpoints.
	few, many = 5, 7
	// servicePeers are the endpoints of each other service; it changes between two such sets.
	servicePeers = 4
	churning     = "churning"
	growEvery    = time.Second
	changeEvery  = 50 * time.Millisecond
	// rest lets go of what a stretch left behind.
	rest = 500 * time.Millisecond
)

// change is one of the two that a churning stretch consists of.
type change string

const (
	resize  change = "resize"   // the churning service gets few or many endpoints
	moveOne change = "move one" // one of the other services gets its other endpoints
)

// figures are what was measured.
type figures struct {
	headgate, nginx rival
	changes         int    // at headgate
	stale           int    // requests to an endpoint after the gateway acknowledged that it had gone
	staleFirst      string // the first of them
	reloads         uint64
	late            time.Duration // the most that a change or a write began after it was due
	spent           time.Duration // CPU time of the daemon in its churning stretches
}

// rival is one proxy. In its busy stretches the API server is written to at the pace of the churning ones, but nothing
// that the proxy watches: what they differ from the quiet ones by is the cost of the API server on the same cores.
type rival struct{ quiet, busy, churn load.Segment }

// bed is everything that runs.
type bed struct {
	plan    plan
	cluster *cluster.Cluster
	gateway *edge.Gateway
	nginx   *nginx
	random  *rand.Rand
	watch   *watch
	size    int    // endpoints of the churning service
	moved   []bool // which of its two sets each other service has
	changes int
	writes  int // that nobody watches
	late    time.Duration
}

func measure(ctx context.Context, s *stage.Stage, p plan) (figures, error) {
	ctx, cancel := context.WithCancel(ctx)
	g, backends := errgroup.WithContext(ctx)
	defer func() { cancel(); _ = g.Wait() }() // they end with ctx and have nothing to say
	if err := cluster.ServeBackends(backends, g); err != nil {
		return figures{}, err //nolint:wrapcheck // it says what it did
	}
	b, err := setUp(ctx, s, p)
	if err != nil {
		return figures{}, err
	}
	before, err := b.gateway.Status(ctx)
	if err != nil {
		return figures{}, err
	}
	f := figures{}
	for range p.rounds {
		if err := b.round(ctx, &f); err != nil {
			return figures{}, err
		}
	}
	after, err := b.gateway.Status(ctx)
	if err != nil {
		return figures{}, err
	}
	f.changes, f.reloads, f.late = b.changes, edge.Reloads(after)-edge.Reloads(before), b.late
	f.stale, f.staleFirst = b.watch.found()
	return f, nil
}

func setUp(ctx context.Context, s *stage.Stage, p plan) (*bed, error) {
	c, err := cluster.Start(ctx, s, cluster.Config{Binary: p.testcluster, Rank: stage.Elsewhere})
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	b := &bed{
		plan: p, cluster: c, size: many, moved: make([]bool, p.upstreams), watch: newWatch(many),
		random: rand.New(rand.NewPCG(p.seed, 0)), //nolint:gosec // which service changes
	}
	err = cluster.Each(ctx, p.upstreams, func(ctx context.Context, i int) error {
		if err := c.Service(ctx, name(i), b.peers(i)...); err != nil {
			return err //nolint:wrapcheck // it says what it made
		}
		return c.Create(ctx, cluster.Ingress(name(i), name(i), "/")) //nolint:wrapcheck // likewise
	})
	if err != nil {
		return nil, fmt.Errorf("fill the cluster: %w", err)
	}
	if err := c.Service(ctx, churning, churners(many)...); err != nil {
		return nil, err //nolint:wrapcheck // it says what it made
	}
	if err := c.Create(ctx, cluster.Ingress(churning, churning, "/")); err != nil {
		return nil, err //nolint:wrapcheck // it says what it made
	}
	if err := c.CreateUnwatched(ctx); err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	b.gateway, err = edge.Start(ctx, s, edge.Config{
		Name: "edge", Binary: p.headgate, Kubeconfig: c.Kubeconfig, HTTP: gatewayAddress, HTTPS: "127.0.0.1:8443", Workers: runtime.NumCPU(),
	}, func(status admin.Status) error {
		if status.Counts.Routes != p.upstreams+1 || len(status.Problems) > 0 {
			return fmt.Errorf("%d routes, %d problems", status.Counts.Routes, len(status.Problems))
		}
		return nil
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	b.nginx, err = startNginx(ctx, s, b)
	return b, err
}

func name(i int) string { return fmt.Sprintf("s%d", i) }

// churners are the first n endpoints, which only the churning service has.
func churners(n int) []string {
	var list []string
	for i := range n {
		list = append(list, cluster.Peer(i))
	}
	return list
}

// peers are the endpoints of another service: one of two sets.
func (b *bed) peers(i int) []string {
	from := 2500 + 2*servicePeers*i
	if b.moved[i] {
		from += servicePeers
	}
	var list []string
	for p := range servicePeers {
		list = append(list, cluster.Peer(from+p))
	}
	return list
}

// host is that of the n-th request: every other one goes to the churning service.
func (b *bed) host(n int64) string {
	if n%2 == 0 {
		return churning + ".test"
	}
	return name(int(n/2)%b.plan.upstreams) + ".test"
}

// round is one stretch of each kind; that they take turns lets noise of the machine meet all of them.
func (b *bed) round(ctx context.Context, f *figures) error {
	g := load.Start(ctx, load.Config{Address: gatewayAddress, Rate: b.plan.rate, Host: b.host, Heard: b.watch.heard})
	err := b.stretches(ctx, g, &f.headgate, func(ctx context.Context) error { return b.churnCluster(ctx, f) })
	if err == nil {
		err = b.busy(ctx, g, f)
	}
	g.Stop()
	if err != nil {
		return err
	}
	g = load.Start(ctx, load.Config{Address: nginxAddress, Rate: b.plan.rate, Host: b.host})
	err = b.stretches(ctx, g, &f.nginx, func(ctx context.Context) error { return b.churn(ctx, b.nginx.change) })
	g.Stop()
	return err
}

// churnCluster is the churning stretch of headgate.
func (b *bed) churnCluster(ctx context.Context, f *figures) error {
	before, err := stage.ProcessCPU(b.gateway.PID())
	if err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	if err := b.churn(ctx, b.changeCluster); err != nil {
		return err
	}
	after, err := stage.ProcessCPU(b.gateway.PID())
	f.spent += after - before
	return err //nolint:wrapcheck // it says what it did
}

func (b *bed) busy(ctx context.Context, g *load.Generator, f *figures) error {
	if err := stage.Wait(ctx, rest); err != nil {
		return err //nolint:wrapcheck // Ctrl-C
	}
	g.Cut()
	err := b.churn(ctx, b.writeUnwatched)
	f.headgate.busy.Add(g.Cut())
	return err
}

func (b *bed) stretches(ctx context.Context, g *load.Generator, into *rival, churn func(context.Context) error) error {
	if err := stage.Wait(ctx, rest); err != nil {
		return err //nolint:wrapcheck // Ctrl-C
	}
	g.Cut()
	if err := stage.Wait(ctx, b.plan.stretch); err != nil {
		return err //nolint:wrapcheck // Ctrl-C
	}
	into.quiet.Add(g.Cut())
	err := churn(ctx)
	into.churn.Add(g.Cut())
	return err
}

// churn makes changes at their pace for one stretch. It is an error when they do not keep it: slower changes would disturb less.
func (b *bed) churn(ctx context.Context, play func(context.Context, change) error) error {
	start := time.Now()
	for n := 0; ; n++ {
		due := start.Add(time.Duration(n) * changeEvery)
		if due.Sub(start) >= b.plan.stretch {
			return b.kept(n, time.Since(start))
		}
		if err := stage.Wait(ctx, time.Until(due)); err != nil {
			return err //nolint:wrapcheck // Ctrl-C
		}
		b.late = max(b.late, time.Since(due))
		what := moveOne
		if n%int(growEvery/changeEvery) == 0 {
			what = resize
		}
		if err := play(ctx, what); err != nil {
			return err
		}
	}
}

// kept tells whether so many changes were made in their time, or a tenth more.
func (b *bed) kept(changes int, took time.Duration) error {
	const tolerance = 10 // percent
	if took > b.plan.stretch*(100+tolerance)/100 {
		return fmt.Errorf("%d changes took %s and not %s: the machine is too busy for their pace, and slower ones would say less; run it at rest",
			changes, took.Round(time.Millisecond), b.plan.stretch)
	}
	return nil
}

// changeCluster changes one of the many services, or the churning one.
func (b *bed) changeCluster(ctx context.Context, what change) error {
	b.changes++
	if what == moveOne {
		i := b.random.IntN(b.plan.upstreams)
		b.moved[i] = !b.moved[i]
		return b.cluster.Point(ctx, name(i), b.peers(i)...) //nolint:wrapcheck // it says what it did
	}
	b.size = few + many - b.size
	now := churners(b.size)
	b.watch.back(now)
	if err := b.cluster.Point(ctx, churning, now...); err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	return b.acknowledged(ctx, now)
}

func (b *bed) writeUnwatched(ctx context.Context, _ change) error {
	b.writes++
	return b.cluster.WriteUnwatched(ctx, b.writes) //nolint:wrapcheck // it says what it did
}

// acknowledged waits until the proxy holds no other endpoints than these, and tells the watch.
func (b *bed) acknowledged(ctx context.Context, now []string) error {
	const every, timeout = 2 * time.Millisecond, 5 * time.Second
	end := time.Now().Add(timeout)
	for {
		held, err := b.gateway.Peers(ctx, fmt.Sprintf("%s/%s/80", cluster.Namespace, churning))
		if err == nil && len(held) == len(now) {
			b.watch.gone(now)
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the proxy holds %v and not %v after %s: %w", held, now, timeout, err)
		}
		if err := stage.Wait(ctx, every); err != nil {
			return err //nolint:wrapcheck // Ctrl-C
		}
	}
}
