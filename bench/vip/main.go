// Command vip is `make bench-vip`: what clients notice when the owner of a VIP stops, dies, is cut off or hangs, beside
// keepalived in the same run. Hosts are network namespaces with the real binary and a real nginx (test/vip/lab); a client
// opens a new connection each 1 ms by IPv4 and each 2 ms by IPv6. See docs/performance.md.
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
	headgate   string
	repeats    int // of each event
	rivals     int // the same for keepalived
	events     string
	longPause  time.Duration // of the process that is stopped
	load       load
	flows      int // open connections of each family
	starts     int // of a cluster
	takeovers  int // of 1,000 addresses
	keepalived bool
}

func main() {
	p := plan{
		repeats: 7, rivals: 7, longPause: 10 * time.Second, load: load{lasts: time.Minute, hogs: hogs}, flows: 50, starts: 7, takeovers: 7, keepalived: true,
	}
	if stage.Quick() {
		p.repeats, p.rivals, p.longPause, p.load.lasts, p.starts, p.takeovers = 1, 1, 2500*time.Millisecond, 2*time.Second, 1, 1
	}
	os.Exit(stage.Program{ //nolint:forbidigo // main exits
		Name: "bench-vip", Division: stage.AllShared, Binaries: []stage.Binary{stage.Headgate(&p.headgate)},
		Flags: func(flags *flag.FlagSet) {
			flags.IntVar(&p.repeats, "repeats", p.repeats, "`times` that each event is played")
			flags.IntVar(&p.rivals, "rivals", p.rivals, "`times` for keepalived")
			flags.BoolVar(&p.keepalived, "keepalived", p.keepalived, "measure keepalived, too")
			flags.DurationVar(&p.load.lasts, "load", p.load.lasts, "`time` under load in which nothing may move")
			flags.IntVar(&p.load.hogs, "hogs", p.load.hogs, "`number` of processes that want all of the CPU meanwhile; 0: a soak")
			flags.IntVar(&p.load.quota, "quota", p.load.quota, "`percent` of one CPU that the first host gets meanwhile; 0: no limit")
			flags.StringVar(&p.events, "events", "", "`regular expression` of the events to play; empty: all")
		},
		Run: func(ctx context.Context, _ *stage.Stage, out io.Writer) error {
			f, err := measure(ctx, p)
			if err != nil {
				return err
			}
			return report(ctx, out, p, f)
		},
	}.Main())
}
