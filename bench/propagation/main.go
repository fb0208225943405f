// Command propagation is `make bench-propagation`: how long a change in a real API server takes until every
// worker of the proxy serves it, for a changed endpoint and for a new Ingress, at 3,000 and at 10,000 routes,
// and what it costs in reloads and errors. See docs/performance.md.
//
// The clock starts before the write is sent to the API server and stops when the last worker has answered a
// request by the new state, over a connection that is known to be that worker's. So the figure holds the API
// server's own work, too; how long its answer took is shown beside it.
package main

import (
	"flag"
	"os"

	"headgate/bench/stage"
)

// plan is how much is measured.
type plan struct {
	headgate, testcluster string
	events                int // of each kind at each size
	sizes                 []int
	seed                  uint64
}

func main() {
	p := plan{events: 300, sizes: []int{3000, 10000}, seed: 1}
	if stage.Quick() {
		p.events = 40
	}
	os.Exit(stage.Program{ //nolint:forbidigo // main exits
		Name: "bench-propagation", Division: stage.AllShared,
		Binaries: []stage.Binary{stage.Headgate(&p.headgate), stage.Testcluster(&p.testcluster)},
		Flags: func(flags *flag.FlagSet) {
			flags.IntVar(&p.events, "events", p.events, "events of each kind at each size")
		},
		Run: stage.Told(&p, measure, report),
	}.Main())
}
