// Command cpu is `make bench-cpu`: what a request costs the proxy's worker in CPU time, and how long it takes,
// through headgate and, side by side, through plain nginx that does the same work with server blocks. See
// docs/performance.md.
//
// A pair is two workers on one core under load at the same time, so that both meet the same noise; the figure is
// the ratio of their CPU times per request. Load, backend and daemons have the other cores. All scenarios take
// turns, pair by pair, and one compares the base with a copy of itself: what it is off 1 is noise.
package main

import (
	"context"
	"flag"
	"io"
	"os"
	"time"

	"headgate/bench/stage"
)

// plan is how much is measured.
type plan struct {
	binary string
	only   string // key of one scenario, "" for all
	pairs  int
	// connections of one side. Few leave the clients and the backend asleep between two requests, and each write
	// of the worker then pays for waking a process on another core: a cost of this arrangement that falls on the
	// slower side more often, not a cost of the proxy.
	connections int
	pair        time.Duration // whole seconds
	warm        time.Duration // whole seconds, before the first pair
	fixed       time.Duration // at a fixed rate, after the pairs
}

func main() {
	p := plan{connections: 64, pairs: 21, pair: 3 * time.Second, warm: 3 * time.Second, fixed: 30 * time.Second}
	if stage.Quick() {
		p.pairs, p.pair, p.warm, p.fixed = 2, time.Second, time.Second, 2*time.Second
	}
	os.Exit(stage.Program{ //nolint:forbidigo // main exits
		Name: "bench-cpu", Division: stage.LastCoreApart, Binaries: []stage.Binary{stage.Headgate(&p.binary)},
		Flags: func(flags *flag.FlagSet) {
			flags.StringVar(&p.only, "only", "", "run one scenario, by its `key` in RESULT")
			flags.IntVar(&p.pairs, "pairs", p.pairs, "pairs of each scenario")
			flags.IntVar(&p.connections, "connections", p.connections, "connections of one side")
		},
		Run: func(ctx context.Context, s *stage.Stage, out io.Writer) error {
			if err := startBackend(ctx, s); err != nil {
				return err
			}
			matches, err := setUp(ctx, s, p)
			if err != nil {
				return err
			}
			if err := play(ctx, p, matches); err != nil {
				return err
			}
			l, err := atFixedRate(ctx, matches, "metrics_1", p.fixed)
			if err != nil {
				return err
			}
			return report(ctx, out, p, matches, l)
		},
	}.Main())
}

// play runs the pairs: all scenarios take turns, so that a slow drift of the machine meets each of them.
func play(ctx context.Context, p plan, matches []*match) error {
	for _, m := range matches {
		warm := p.warm
		if m.site.hosts > 1000 {
			// Each host is to have been asked for: the first request decodes it.
			warm *= 3
		}
		if _, err := m.pair(ctx, warm); err != nil {
			return err
		}
	}
	for range p.pairs {
		for _, m := range matches {
			sample, err := m.pair(ctx, p.pair)
			if err != nil {
				return err
			}
			m.samples = append(m.samples, sample)
		}
	}
	return nil
}
