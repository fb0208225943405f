package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"headgate/bench/stage"
)

// scenario is a comparison; both sides serve the same hosts from the same peers.
type scenario struct {
	key  string // in RESULT; "" for the control
	what string // for people
	site site
	base func(context.Context, *stage.Stage, side) (worker, error)
	// candidate is what is measured against base.
	candidate func(context.Context, *stage.Stage, side) (worker, error)
	load      func(context.Context, *stage.Stage, side, time.Duration) (load, error)
}

// side is one half of a scenario.
type side struct {
	name    string // of its files
	address string // "127.0.0.1:port"
	site    site
	plan    plan
}

func (a side) scheme() string {
	if a.site.tls != nil {
		return "https"
	}
	return "http"
}

// worker gives the process that does the work. It is asked before and after each load: a worker that was
// replaced meanwhile spoils the sample.
type worker func(context.Context) (int, error)

// match is a scenario that runs.
type match struct {
	scenario
	sides   [2]side // base, candidate
	workers [2]worker
	stage   *stage.Stage
	core    int
	samples []sample
}

// sample is one pair.
type sample struct{ base, candidate cost }

// cost is what one side's requests (or handshakes) cost.
type cost struct {
	load
	cpu time.Duration // a request
}

// load is what the clients saw.
type load struct {
	requests int
	p50, p99 time.Duration
}

func (s sample) ratio() float64 { return float64(s.candidate.cpu) / float64(s.base.cpu) }

// errStarved is of a pair in which a side was not served at all: other work had the cores.
var errStarved = errors.New("no request was served")

// pair loads both sides at the same time; one that says nothing is repeated, for a while.
func (m *match) pair(ctx context.Context, d time.Duration) (sample, error) {
	const tries = 5
	for n := 1; ; n++ {
		s, err := m.once(ctx, d)
		if n == tries || !errors.Is(err, errStarved) {
			return s, err
		}
	}
}

func (m *match) once(ctx context.Context, d time.Duration) (sample, error) {
	var costs [2]cost
	g, ctx := errgroup.WithContext(ctx)
	for i := range m.sides {
		g.Go(func() (err error) {
			costs[i], err = m.measure(ctx, i, d)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", m.what, m.sides[i].name, err)
			}
			return nil
		})
	}
	err := g.Wait()
	return sample{costs[0], costs[1]}, err
}

func (m *match) measure(ctx context.Context, i int, d time.Duration) (cost, error) {
	pid, err := m.workers[i](ctx)
	if err != nil {
		return cost{}, err
	}
	if err := stage.Pin(pid, m.core); err != nil {
		return cost{}, err
	}
	before, err := stage.CPU(pid)
	if err != nil {
		return cost{}, err
	}
	l, err := m.load(ctx, m.stage, m.sides[i], d)
	if err != nil {
		return cost{}, err
	}
	after, err := stage.CPU(pid)
	if err != nil {
		return cost{}, err
	}
	switch same, err := m.workers[i](ctx); {
	case err != nil:
		return cost{}, err
	case same != pid:
		return cost{}, fmt.Errorf("worker %d was replaced by %d while it was measured", pid, same)
	case l.requests == 0:
		return cost{}, errStarved
	}
	return cost{l, (after - before) / time.Duration(l.requests)}, nil
}
