package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"headgate/bench/cluster"
	"headgate/bench/edge"
	"headgate/bench/load"
	"headgate/bench/stage"
	"headgate/sync/admin"
)

const (
	address = "127.0.0.1:8000"
	hosts   = 100
	peers   = 4
)

// outcome is what clients noticed of one event.
type outcome struct {
	key, what string
	segments  []*load.Segment
}

// bed is everything that runs.
type bed struct {
	plan    plan
	gateway *edge.Gateway
	folder  string
	routes  int
}

// event is one kind of disturbance.
type event struct {
	key, what string
	play      func(context.Context) error
}

func (b *bed) events() []event {
	return []event{
		{"", "nothing (for comparison)", func(context.Context) error { return nil }},
		{"proxy_kill", "kill -9 of nginx's master and workers", b.killProxy},
		{"master_kill", "kill -9 of nginx's master alone", b.killMaster},
		{"worker_kill", "kill -9 of one worker", b.killWorker},
		{"daemon_restart", "restart of the daemon", func(ctx context.Context) error { return b.restart(ctx, syscall.SIGTERM) }},
		{"daemon_kill", "kill -9 of the daemon, and its restart", func(ctx context.Context) error { return b.restart(ctx, syscall.SIGKILL) }},
		{"reload", "reload for a new profile", b.reload},
	}
}

func measure(ctx context.Context, s *stage.Stage, p plan) ([]*outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	g, backends := errgroup.WithContext(ctx)
	defer func() { cancel(); _ = g.Wait() }() // they end with ctx and have nothing to say
	if err := cluster.ServeBackends(backends, g); err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	b, err := setUp(ctx, s, p)
	if err != nil {
		return nil, err
	}
	generator := load.Start(ctx, load.Config{
		Address: address, Rate: p.rate, Host: func(n int64) string { return fmt.Sprintf("h%d.test", n%hosts) },
	})
	defer generator.Stop()
	var all []*outcome
	for _, e := range b.events() {
		o := &outcome{key: e.key, what: e.what}
		all = append(all, o)
		for range p.repeats {
			segment, err := b.once(ctx, generator, e)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", e.what, err)
			}
			o.segments = append(o.segments, segment)
		}
	}
	return all, nil
}

func setUp(ctx context.Context, s *stage.Stage, p plan) (*bed, error) {
	folder, err := s.Folder("manifests")
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	b := &bed{plan: p, folder: folder, routes: hosts}
	if err := b.write("site.yaml", site()); err != nil {
		return nil, err
	}
	b.gateway, err = edge.Start(ctx, s, edge.Config{
		Name: "edge", Binary: p.headgate, Manifests: folder, HTTP: address, HTTPS: "127.0.0.1:8443",
		Workers: runtime.NumCPU(), KeepProxy: true,
	}, b.complete)
	return b, err //nolint:wrapcheck // it says what it did
}

func (b *bed) complete(status admin.Status) error {
	if status.Counts.Routes != b.routes || len(status.Problems) > 0 || status.Revision.Applied != status.Revision.Desired {
		return fmt.Errorf("%d of %d routes, problems: %v", status.Counts.Routes, b.routes, status.Problems)
	}
	return nil
}

// write puts a file into the folder as an editor or a deployment does: complete, by a rename.
func (b *bed) write(name, text string) error {
	temp := filepath.Join(b.folder, "."+name)
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write a manifest: %w", err)
	}
	if err := os.Rename(temp, filepath.Join(b.folder, name)); err != nil {
		return fmt.Errorf("write a manifest: %w", err)
	}
	return nil
}

// once plays an event, and gives what came from the moment before it on.
func (b *bed) once(ctx context.Context, g *load.Generator, e event) (*load.Segment, error) {
	const before = 200 * time.Millisecond
	g.Cut()
	if err := stage.Wait(ctx, before); err != nil {
		return nil, err //nolint:wrapcheck // Ctrl-C
	}
	if err := e.play(ctx); err != nil {
		return nil, err
	}
	if err := b.gateway.Await(ctx, b.complete); err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	if err := stage.Wait(ctx, b.plan.around); err != nil {
		return nil, err //nolint:wrapcheck // Ctrl-C
	}
	return g.Cut(), nil
}

// processes gives nginx's master and workers.
func (b *bed) processes(ctx context.Context) (int, []int, error) {
	status, err := b.gateway.Status(ctx)
	if err != nil {
		return 0, nil, err //nolint:wrapcheck // it says what it did
	}
	if status.Proxy.MasterPID == 0 {
		return 0, nil, errors.New("the daemon names no master")
	}
	workers, err := stage.Children(status.Proxy.MasterPID)
	return status.Proxy.MasterPID, workers, err //nolint:wrapcheck // it says what it did
}

func (b *bed) killProxy(ctx context.Context) error {
	master, workers, err := b.processes(ctx)
	if err != nil {
		return err
	}
	return errors.Join(kill(append([]int{master}, workers...)...), b.replaced(ctx, master))
}

func (b *bed) killMaster(ctx context.Context) error {
	master, _, err := b.processes(ctx)
	if err != nil {
		return err
	}
	return errors.Join(kill(master), b.replaced(ctx, master))
}

func (b *bed) killWorker(ctx context.Context) error {
	_, workers, err := b.processes(ctx)
	if err != nil {
		return err
	}
	return kill(workers[0])
}

func kill(pids ...int) error {
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill %d: %w", pid, err)
		}
	}
	return nil
}

// replaced waits until the daemon names another master: until then its status is of the old one.
func (b *bed) replaced(ctx context.Context, master int) error {
	err := b.gateway.Await(ctx, func(status admin.Status) error {
		if now := status.Proxy.MasterPID; now == 0 || now == master {
			return fmt.Errorf("the master is %d", now)
		}
		return nil
	})
	return err //nolint:wrapcheck // it says what it did
}

func (b *bed) restart(ctx context.Context, sig syscall.Signal) error {
	return errors.Join(b.gateway.Kill(ctx, sig), b.gateway.Run(ctx))
}

// reload adds an Ingress whose profile nginx.conf does not hold.
func (b *bed) reload(ctx context.Context) error {
	before, err := b.gateway.Status(ctx)
	if err != nil {
		return err //nolint:wrapcheck // it says what it did
	}
	n := b.routes - hosts
	b.routes++
	if err := b.write(fmt.Sprintf("more-%d.yaml", n), newProfile(n)); err != nil {
		return err
	}
	return b.gateway.Await(ctx, func(status admin.Status) error { //nolint:wrapcheck // it says what it did
		if edge.Reloads(status) == edge.Reloads(before) {
			return errors.New("nginx was not reloaded")
		}
		return b.complete(status)
	})
}
