// Command scale is `make bench-scale`: what a large site costs: memory of daemon and proxy, the time of a full build,
// of the first load and of a cold start without an API server, the CPU time of one changed Ingress, and how long a worker
// is kept from its event loop while 100 changes a second arrive; from 1,000 to 50,000 routes. See docs/performance.md.
package main

import (
	"context"
	"flag"
	"io"
	"os"

	"headgate/bench/stage"
)

// plan is how much is measured.
type plan struct {
	headgate, testcluster string
	ingresses             []int // sizes, rising; each Ingress has five paths
	changes               int
	only                  int // Ingresses of the one size that is measured; 0 for all
}

func main() {
	p := plan{ingresses: []int{200, 2000, 6000, 10000}, changes: 50}
	// To fill the API server takes most of the time: the budgets are those of the largest size, which a quick run does
	// not reach.
	if stage.Quick() {
		p.ingresses, p.changes = []int{500}, 10
	}
	os.Exit(stage.Program{ //nolint:forbidigo // main exits
		Name: "bench-scale", Division: stage.AllShared,
		Binaries: []stage.Binary{stage.Headgate(&p.headgate), stage.Testcluster(&p.testcluster)},
		Flags: func(flags *flag.FlagSet) {
			flags.IntVar(&p.changes, "changes", p.changes, "`Ingresses` that are changed, one at a time, at each size")
			flags.IntVar(&p.only, "ingresses", 0, "measure one size, of so many `Ingresses`")
		},
		Run: func(ctx context.Context, s *stage.Stage, out io.Writer) error {
			if p.only > 0 {
				p.ingresses = []int{p.only}
			}
			f, err := measure(ctx, s, p)
			if err != nil {
				return err
			}
			return report(ctx, out, p, f)
		},
	}.Main())
}
