package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"headgate/bench/cluster"
	"headgate/bench/edge"
	"headgate/bench/stage"
	"headgate/sync/admin"
)

const (
	httpAddress    = "127.0.0.1:8000"
	httpsAddress   = "127.0.0.1:8443"
	metricsAddress = "127.0.0.1:9790"
	// settle is for the daemon to have read what was written to the API server.
	settle = 2 * time.Minute
	// clients ask at a time when every host is touched.
	clients = 16
	// Changes of endpoints that arrive while a worker is watched.
	changesPerSecond = 100
	stallTime        = 5 * time.Second
)

// figures are those of one size.
type figures struct {
	ingresses, routes, endpoints, certificates int

	firstLoad time.Duration // from the start of the daemon, with an empty state, until everything is served
	build     time.Duration // the longest of a restarted daemon: that of everything
	push      time.Duration // of everything, in the first load
	delta     time.Duration // CPU time of the daemon a changed Ingress
	cold      time.Duration // from the start of daemon and proxy, API server stopped, until the first answer

	daemon int64        // bytes that are resident
	worker stage.Memory // with every host and certificate touched
	stalls stalls
}

// stalls are what a worker saw while changes arrived.
type stalls struct {
	LateMs float64 `json:"maxLateMs"`
	CPUMs  float64 `json:"maxCpuMs"`
	Over20 int     `json:"over20"`
	Turns  int     `json:"turns"`
}

func measure(ctx context.Context, s *stage.Stage, p plan) ([]figures, error) {
	ctx, cancel := context.WithCancel(ctx)
	g, backends := errgroup.WithContext(ctx)
	defer func() { cancel(); _ = g.Wait() }() // they end with ctx and have nothing to say
	if err := cluster.ServeBackends(backends, g); err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	c, err := cluster.Start(ctx, s, cluster.Config{Binary: p.testcluster})
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	site := &bed{Cluster: c}
	var all []figures
	for i, n := range p.ingresses {
		if err := site.grow(ctx, n); err != nil {
			return nil, fmt.Errorf("fill the cluster: %w", err)
		}
		f, err := measureSize(ctx, s, p, site, fmt.Sprintf("edge%d", i))
		if err != nil {
			return nil, fmt.Errorf("at %d Ingresses: %w", n, err)
		}
		all = append(all, f)
	}
	return all, nil
}

// measureSize starts a gateway of its own for one size.
func measureSize(ctx context.Context, s *stage.Stage, p plan, site *bed, name string) (figures, error) {
	f := figures{ingresses: site.ingresses, routes: site.ingresses * cluster.PathsPerIngress}
	start := time.Now()
	g, err := edge.Start(ctx, s, edge.Config{
		Name: name, Binary: p.headgate, Kubeconfig: site.Kubeconfig, HTTP: httpAddress, HTTPS: httpsAddress,
		Metrics: metricsAddress, Workers: 1, KeepProxy: true, Within: settle,
	}, holds(f.routes))
	if err != nil {
		return f, err //nolint:wrapcheck // it says what it did
	}
	f.firstLoad = time.Since(start)
	if f.push, err = longest(ctx, "headgate_luapush_duration_seconds"); err != nil {
		return f, err
	}
	steps := []func(context.Context, *edge.Gateway, *bed, plan, *figures) error{
		touchAll, changeIngresses, watchStalls, memory, rebuild, coldStart,
	}
	for _, step := range steps {
		if err := step(ctx, g, site, p, &f); err != nil {
			return f, err
		}
	}
	return f, g.End(ctx) //nolint:wrapcheck // it says what it did
}

func holds(routes int) func(admin.Status) error {
	return func(s admin.Status) error {
		if s.Counts.Routes != routes || len(s.Problems) > 0 || s.Revision.Applied != s.Revision.Desired || s.LastKnownGood {
			return fmt.Errorf("%d of %d routes, %d problems, revision %d of %d", s.Counts.Routes, routes, len(s.Problems), s.Revision.Applied, s.Revision.Desired)
		}
		return nil
	}
}

// touchAll asks for every host and, by SNI, every certificate: the worker has decoded and parsed all then.
func touchAll(ctx context.Context, _ *edge.Gateway, site *bed, _ plan, f *figures) error {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		MaxIdleConnsPerHost: clients,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, httpAddress)
		},
	}}
	defer client.CloseIdleConnections()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(clients)
	for i := range site.ingresses {
		g.Go(func() error { return touch(ctx, client, host(i)+".test") })
		if hasCertificate(i) {
			f.certificates++
			g.Go(func() error { return handshake(ctx, host(i)+".test") })
		}
	}
	f.endpoints = site.ingresses / ingressesPerService * endpointsPerService
	return g.Wait() //nolint:wrapcheck // the two say what they did
}

func touch(ctx context.Context, client *http.Client, name string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://edge/", nil)
	if err != nil {
		return fmt.Errorf("make a request: %w", err)
	}
	req.Host = name
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", name, err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", name, res.Status)
	}
	return nil
}

func handshake(ctx context.Context, name string) error {
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, ServerName: name}} //nolint:gosec // the benchmark's own certificate
	conn, err := dialer.DialContext(ctx, "tcp", httpsAddress)
	if err != nil {
		return fmt.Errorf("handshake for %s: %w", name, err)
	}
	defer func() { _ = conn.Close() }()
	if state := conn.(*tls.Conn).ConnectionState(); state.PeerCertificates[0].VerifyHostname(name) != nil {
		return fmt.Errorf("the certificate for %s is for %v", name, state.PeerCertificates[0].DNSNames)
	}
	return nil
}

// changeIngresses measures what one changed Ingress costs the daemon. On a busy machine two of them may meet in one
// pass, so that passes are counted and not changes.
func changeIngresses(ctx context.Context, g *edge.Gateway, site *bed, p plan, f *figures) error {
	const pause = 100 * time.Millisecond // longer than any coalescing: each change is a pass of its own
	before, err := stage.ProcessCPU(g.PID())
	if err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	status, err := g.Status(ctx)
	if err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	for i := range p.changes {
		if err := change(ctx, site, i); err != nil {
			return err
		}
		if err := stage.Wait(ctx, pause); err != nil {
			return err //nolint:wrapcheck // Ctrl-C
		}
	}
	var passes uint64
	if err := g.Await(ctx, func(now admin.Status) error {
		passes = now.Pushes - status.Pushes
		if passes < uint64(max(1, p.changes/2)) {
			return fmt.Errorf("%d changes led to %d pushes", p.changes, passes)
		}
		return holds(f.routes)(now)
	}); err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	after, err := stage.ProcessCPU(g.PID())
	f.delta = (after - before) / time.Duration(passes) //nolint:gosec // as many as changes at most
	return err                                         //nolint:wrapcheck // it says what it did
}

// change renames the last path of an Ingress.
func change(ctx context.Context, site *bed, i int) error {
	ingresses := site.Client.NetworkingV1().Ingresses(cluster.Namespace)
	ingress, err := ingresses.Get(ctx, host(i), metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read ingress %s: %w", host(i), err)
	}
	paths := ingress.Spec.Rules[0].HTTP.Paths
	changed := &paths[len(paths)-1]
	changed.Path = "/" + time.Now().Format("150405.000000")
	prefix := networkingv1.PathTypePrefix
	changed.PathType = &prefix
	if _, err := ingresses.Update(ctx, ingress, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("change ingress %s: %w", host(i), err)
	}
	return nil
}

// watchStalls has the worker watch itself while endpoints change, and its hosts are asked for.
func watchStalls(ctx context.Context, g *edge.Gateway, site *bed, _ plan, f *figures) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes, ctx := errgroup.WithContext(ctx)
	end := time.Now().Add(stallTime)
	for n := range 4 { // one writer alone does not reach the pace
		changes.Go(func() error { return site.churn(ctx, n, end) })
	}
	err := g.Control(ctx, fmt.Sprintf("/v1/stalls?ms=%d", stallTime.Milliseconds()), &f.stalls)
	return errors.Join(err, changes.Wait())
}

func (s *bed) churn(ctx context.Context, n int, end time.Time) error {
	const writers = 4
	tick := time.NewTicker(time.Second * writers / changesPerSecond)
	defer tick.Stop()
	services := s.ingresses / ingressesPerService
	for turn := 1; time.Now().Before(end); turn++ {
		select {
		case <-ctx.Done():
			return ctx.Err() //nolint:wrapcheck // Ctrl-C
		case <-tick.C:
		}
		i := (turn*writers + n) % services
		if err := s.Point(ctx, fmt.Sprintf("s%d", i), peers(i, turn)...); err != nil {
			return err //nolint:wrapcheck // it says what it did
		}
	}
	return nil
}

func memory(ctx context.Context, g *edge.Gateway, _ *bed, _ plan, f *figures) error {
	status, err := g.Status(ctx)
	if err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	workers, err := stage.Children(status.Proxy.MasterPID)
	if err != nil || len(workers) != 1 {
		return fmt.Errorf("the workers are %v: %w", workers, err)
	}
	daemon, err := stage.MemoryOf(g.PID())
	if err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	f.daemon = daemon.Resident()
	f.worker, err = stage.MemoryOf(workers[0])
	return err //nolint:wrapcheck // it says what it did
}

// rebuild restarts the daemon: its first build is of everything.
func rebuild(ctx context.Context, g *edge.Gateway, _ *bed, _ plan, f *figures) error {
	if err := errors.Join(g.Kill(ctx, syscall.SIGTERM), g.Run(ctx)); err != nil {
		return err
	}
	if err := g.Await(ctx, holds(f.routes)); err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	var err error
	f.build, err = longest(ctx, "headgate_build_duration_seconds")
	return err
}

// coldStart is a host that boots while the API server does not answer.
func coldStart(ctx context.Context, g *edge.Gateway, site *bed, _ plan, f *figures) error {
	if err := g.KillAll(ctx); err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	if err := site.Stop(); err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	start := time.Now()
	if err := g.Run(ctx); err != nil {
		return errors.Join(err, site.Continue())
	}
	err := serves(ctx, host(0)+".test")
	f.cold = time.Since(start)
	return errors.Join(err, site.Continue())
}

// serves waits for the first answer.
func serves(ctx context.Context, name string) error {
	const timeout, every = 30 * time.Second, 5 * time.Millisecond
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, httpAddress)
		},
	}}
	end := time.Now().Add(timeout)
	for {
		err := touch(ctx, client, name)
		if err == nil || time.Now().After(end) {
			return err
		}
		if err := stage.Wait(ctx, every); err != nil {
			return err //nolint:wrapcheck // Ctrl-C
		}
	}
}
