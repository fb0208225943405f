package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"headgate/bench/figure"
	"headgate/bench/stage"
)

// result is the last line: the figures of the largest size.
type result struct {
	DaemonRSS float64 `json:"daemon_rss_mib"`
	Shared    float64 `json:"proxy_shared_mib"` // all that the worker shares with others
	Zones     float64 `json:"proxy_zones_mib"`  // of it
	Worker    float64 `json:"worker_rss_mib"`   // beyond that
	BuildMs   float64 `json:"build_ms"`
	DeltaMs   float64 `json:"delta_cpu_ms"`
	ColdMs    float64 `json:"cold_start_ms"`
	LoadMs    float64 `json:"first_load_ms"`
	PushMs    float64 `json:"push_ms"`
	StallMs   float64 `json:"stall_ms"`
}

func mib(bytes int64) float64 { return figure.Round(float64(bytes)/(1<<20), 1) }

func ms(d time.Duration) float64 { return figure.Round(figure.Milliseconds(d), 1) }

func of(f figures) result {
	return result{
		DaemonRSS: mib(f.daemon), Shared: mib(f.worker.Zones + f.worker.Common), Zones: mib(f.worker.Zones), Worker: mib(f.worker.Own),
		BuildMs: ms(f.build), DeltaMs: ms(f.delta),
		ColdMs: ms(f.cold), LoadMs: ms(f.firstLoad), PushMs: ms(f.push), StallMs: figure.Round(f.stalls.CPUMs, 1),
	}
}

func report(ctx context.Context, out io.Writer, p plan, all []figures) error {
	heading := figure.Heading{
		Command: stage.Command("bench-scale"), Machine: stage.Machine(),
		Versions: stage.Versions(ctx, []string{p.headgate, "version"}, []string{"nginx", "-v"}),
		Notes: []string{
			"a gateway with one worker at each size, over a real API server on the same cores; Ingresses of one host with five paths",
			"worker: pages that no other process has (what one more worker costs), once every host was asked for and every certificate was shown",
			"shared: what of the worker's resident memory others have, too: nginx's zones (alone in parentheses), libraries, and what all workers have from the master",
			"build: the first of a restarted daemon; change: CPU time of the daemon for one changed Ingress, its own and that of client-go",
			fmt.Sprintf("stall: most computing of the worker between two turns of its event loop (and how late one was) in %s with %d changed upstreams a second", stallTime, changesPerSecond),
			"cold start: daemon and proxy killed, API server stopped; from the start of the daemon to the first answer",
			"budgets at 50,000 routes: daemon 250 MiB, shared 64, worker 45, build 1,000 ms, change 20 ms, cold start 2,000 ms, stall 20 ms",
		},
	}
	if err := heading.Write(out); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	var table figure.Table
	table.Row("routes", "endpoints", "certificates", "daemon MiB", "shared MiB (zones)", "worker MiB", "first load ms", "push ms", "build ms", "change CPU ms", "cold start ms", "stall CPU (late) ms", "turns > 20 ms")
	var last result
	for _, f := range all {
		last = of(f)
		n := func(v float64) string { return fmt.Sprintf("%.1f", v) }
		table.Row(fmt.Sprint(f.routes), fmt.Sprint(f.endpoints), fmt.Sprint(f.certificates), n(last.DaemonRSS), fmt.Sprintf("%.1f (%.1f)", last.Shared, last.Zones), n(last.Worker),
			n(last.LoadMs), n(last.PushMs), n(last.BuildMs), n(last.DeltaMs), n(last.ColdMs), fmt.Sprintf("%.1f (%.1f)", f.stalls.CPUMs, f.stalls.LateMs), fmt.Sprint(f.stalls.Over20))
	}
	if err := table.Write(out); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	if _, err := io.WriteString(out, "\n"); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	return figure.Result(out, last) //nolint:wrapcheck // the writer's own words
}
