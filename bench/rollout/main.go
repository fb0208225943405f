// Command rollout is `make bench-rollout`: real rollouts of a Deployment in a real API server, one after the other,
// under load and without preStop hooks: pods stop to listen the moment that they are told to end, before anybody could
// know. See docs/performance.md.
package main

import (
	"flag"
	"os"

	"headgate/bench/stage"
)

// plan is how much is measured.
type plan struct {
	headgate, testcluster string
	rate                  float64 // requests a second
	requests              int     // at least so many are sent; the last rollout is finished
	replicas              int32
}

func main() {
	if os.Getenv(podVariable) != "" {
		os.Exit(pod()) //nolint:forbidigo // main exits
	}
	p := plan{rate: 3000, requests: 1_000_000, replicas: 6}
	if stage.Quick() {
		p.requests = 60_000
	}
	os.Exit(stage.Program{ //nolint:forbidigo // main exits
		Name: "bench-rollout", Division: stage.AllShared,
		Binaries: []stage.Binary{stage.Headgate(&p.headgate), stage.Testcluster(&p.testcluster)},
		Flags: func(flags *flag.FlagSet) {
			flags.Float64Var(&p.rate, "rate", p.rate, "requests a second")
			flags.IntVar(&p.requests, "requests", p.requests, "`requests` that are sent at least")
		},
		Run: stage.Told(&p, measure, report),
	}.Main())
}
