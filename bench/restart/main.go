// Command restart is `make bench-restart`: what clients notice when parts of a gateway end or change at a steady
// load: the proxy killed with -9 (master and workers, the master alone, a worker alone), the daemon restarted and
// killed, and a reload for a profile that nginx.conf does not hold yet. See docs/performance.md.
package main

import (
	"flag"
	"os"
	"time"

	"headgate/bench/stage"
)

// plan is how much is measured.
type plan struct {
	headgate string
	rate     float64 // requests a second
	repeats  int     // of each event
	// around is the time that is looked at from the event on.
	around time.Duration
}

func main() {
	p := plan{rate: 1000, repeats: 7, around: 3 * time.Second}
	if stage.Quick() {
		p.repeats, p.around = 2, 2*time.Second
	}
	os.Exit(stage.Program{ //nolint:forbidigo // main exits
		Name: "bench-restart", Division: stage.AllShared, Binaries: []stage.Binary{stage.Headgate(&p.headgate)},
		Flags: func(flags *flag.FlagSet) {
			flags.Float64Var(&p.rate, "rate", p.rate, "requests a second")
			flags.IntVar(&p.repeats, "repeats", p.repeats, "`times` that each event is played")
		},
		Run: stage.Told(&p, measure, report),
	}.Main())
}
