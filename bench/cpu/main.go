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
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"headgate/bench/stage"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM) //nolint:forbidigo // main makes the one
	code := execute(ctx, os.Stdout, os.Stderr)
	stop()
	os.Exit(code) //nolint:forbidigo // main exits
}

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
}

func execute(ctx context.Context, out, errOut io.Writer) int {
	p := plan{connections: 64, pairs: 21, pair: 3 * time.Second, warm: 3 * time.Second}
	if stage.Quick() {
		p.pairs, p.pair, p.warm = 3, time.Second, time.Second
	}
	flags := flag.NewFlagSet("bench-cpu", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.StringVar(&p.binary, "headgate", "bin/headgate", "the `binary` to measure")
	flags.StringVar(&p.only, "only", "", "run one scenario, by its `key` in RESULT")
	flags.IntVar(&p.pairs, "pairs", p.pairs, "pairs of each scenario")
	flags.IntVar(&p.connections, "connections", p.connections, "connections of one side")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return 2
	}
	code, err := 0, error(nil)
	if stage.Isolated() {
		err = run(ctx, p, out)
	} else {
		code, err = stage.Isolate(ctx, stage.LastCoreApart)
	}
	if err != nil {
		_, _ = fmt.Fprintln(errOut, "bench-cpu:", err) // nobody is left to tell
		return 1
	}
	return code
}

func run(ctx context.Context, p plan, out io.Writer) (err error) {
	s, err := stage.New()
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := s.Close(); err == nil {
			err = closeErr
		}
	}()
	if p.binary, err = filepath.Abs(p.binary); err != nil {
		return fmt.Errorf("find headgate: %w", err)
	}
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
	return report(ctx, out, p, matches)
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
