// Command churn is `make bench-churn`: what clients notice while endpoints come and go. One service grows and
// shrinks between 5 and 7 endpoints every second, and one of 1,000 others changes 20 times a second, in a real API
// server; beside it, stretches without any change, and nginx that is reloaded for each change of its own file at the
// same pace. See docs/performance.md.
package main

import (
	"flag"
	"os"
	"time"

	"headgate/bench/stage"
)

// plan is how much is measured.
type plan struct {
	headgate, testcluster string
	rate                  float64 // requests a second
	upstreams             int     // beside the one that grows and shrinks
	rounds                int     // of a quiet and a churning stretch, at headgate and at nginx
	stretch               time.Duration
	seed                  uint64
}

func main() {
	p := plan{rate: 800, upstreams: 1000, rounds: 6, stretch: 10 * time.Second, seed: 1}
	if stage.Quick() {
		p.rounds, p.stretch = 2, 2*time.Second
	}
	os.Exit(stage.Program{ //nolint:forbidigo // main exits
		Name: "bench-churn", Division: stage.AllShared,
		Binaries: []stage.Binary{stage.Headgate(&p.headgate), stage.Testcluster(&p.testcluster)},
		Flags: func(flags *flag.FlagSet) {
			flags.Float64Var(&p.rate, "rate", p.rate, "requests a second")
			flags.IntVar(&p.rounds, "rounds", p.rounds, "`rounds` of a quiet and a churning stretch")
		},
		Run: stage.Told(&p, measure, report),
	}.Main())
}
