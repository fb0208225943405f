// Command propagation is `make bench-propagation`: how long a change in a real API server takes until every
// worker of the proxy serves it, for a changed endpoint and for a new Ingress, at 3,000 and at 10,000 routes,
// and what it costs in reloads and errors. See docs/performance.md.
//
// The clock starts before the write is sent to the API server and stops when the last worker has answered a
// request by the new state, over a connection that is known to be that worker's. So the figure holds the API
// server's own work, too; how long its answer took is shown beside it.
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
	headgate, testcluster string
	events                int // of each kind at each size
	sizes                 []int
	seed                  uint64
}

func execute(ctx context.Context, out, errOut io.Writer) int {
	p := plan{events: 300, sizes: []int{3000, 10000}, seed: 1}
	if stage.Quick() {
		p.events = 40
	}
	flags := flag.NewFlagSet("bench-propagation", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.StringVar(&p.headgate, "headgate", "bin/headgate", "the `binary` to measure")
	flags.StringVar(&p.testcluster, "testcluster", "bin/testcluster", "the `binary` of the API server")
	flags.IntVar(&p.events, "events", p.events, "events of each kind at each size")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return 2
	}
	code, err := 0, error(nil)
	if stage.Isolated() {
		err = run(ctx, p, out)
	} else {
		code, err = stage.Isolate(ctx, stage.AllShared)
	}
	if err != nil {
		_, _ = fmt.Fprintln(errOut, "bench-propagation:", err) // nobody is left to tell
		return 1
	}
	return code
}

func run(ctx context.Context, p plan, out io.Writer) (err error) {
	for _, binary := range []*string{&p.headgate, &p.testcluster} {
		if *binary, err = filepath.Abs(*binary); err != nil {
			return fmt.Errorf("find a binary: %w", err)
		}
	}
	s, err := stage.New()
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := s.Close(); err == nil {
			err = closeErr
		}
	}()
	measured, err := measure(ctx, s, p)
	if err != nil {
		return err
	}
	return report(ctx, out, p, measured)
}
