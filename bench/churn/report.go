package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"headgate/bench/figure"
	"headgate/bench/load"
	"headgate/bench/stage"
)

// result is the last line. Ratios are those of the churning stretches to the quiet ones of the same proxy; Busy has
// those to the stretches in which the API server is as busy, and the proxy has nothing to follow.
type result struct {
	Errors    int     `json:"errors"`
	Stale     int     `json:"stale_after_ack"`
	P99Ratio  float64 `json:"p99_ratio"`
	P999Ratio float64 `json:"p999_ratio"`
	Busy      ratios  `json:"against_busy"`
	DaemonCPU float64 `json:"daemon_cpu_ms"` // a change
	Nginx     rivals  `json:"nginx"`
}

type ratios struct {
	P99  float64 `json:"p99_ratio"`
	P999 float64 `json:"p999_ratio"`
}

type rivals struct {
	Errors    int     `json:"errors"`
	P99Ratio  float64 `json:"p99_ratio"`
	P999Ratio float64 `json:"p999_ratio"`
}

func ratio(r *rival, q float64) float64 { return against(&r.quiet, &r.churn, q) }

// against is a quantile of the latency in one kind of stretches over that in another.
func against(calm, churn *load.Segment, q float64) float64 {
	base := calm.Latency(q)
	if base == 0 {
		return 0
	}
	return figure.Round(float64(churn.Latency(q))/float64(base), 2)
}

func report(ctx context.Context, out io.Writer, p plan, f figures) error {
	heading := figure.Heading{
		Command: stage.Command("bench-churn"), Machine: stage.Machine(),
		Versions: stage.Versions(ctx, []string{p.headgate, "version"}, []string{"nginx", "-v"}),
		Notes: []string{
			fmt.Sprintf("%d rounds; %.0f requests a second, half to a service that goes between %d and %d endpoints every second; of %d others one changes every %s", p.rounds, p.rate, few, many, p.upstreams, changeEvery),
			fmt.Sprintf("headgate: each change in a real API server, %d in all, %d reloads; nginx: its file is written and reloaded once a second", f.changes, f.reloads),
			"busy: as many writes of objects that headgate does not watch, so that the same cores have the same API server to serve",
			"the API server stands for another machine: it runs where nobody else wants the core; the daemon's share of a contested core is a tenth of the proxy's, as by their units",
			fmt.Sprintf("changes and writes began %s after they were due at most; a stretch that takes a tenth longer than it should is an error", f.late.Round(time.Millisecond)),
			"latency counts from when a request was due; budgets: 0 errors, 0 stale, p99 ≤ 1.2 and p99.9 ≤ 2 times the quiet stretches",
		},
	}
	if err := heading.Write(out); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	var table figure.Table
	table.Row("proxy", "stretch", "requests", "failed", "p50 ms", "p99", "p99.9", "max", "p99 ratio", "p99.9 ratio")
	for _, r := range []struct {
		name string
		*rival
	}{{"headgate", &f.headgate}, {"nginx reloaded", &f.nginx}} {
		table.Row(append(row(r.name, "quiet", &r.quiet), "–", "–")...)
		if r.busy.Requests > 0 {
			table.Row(append(row(r.name, "busy API server", &r.busy), fmt.Sprintf("%.2f", against(&r.quiet, &r.busy, 0.99)), fmt.Sprintf("%.2f", against(&r.quiet, &r.busy, 0.999)))...)
		}
		table.Row(append(row(r.name, "churn", &r.churn), fmt.Sprintf("%.2f", ratio(r.rival, 0.99)), fmt.Sprintf("%.2f", ratio(r.rival, 0.999)))...)
	}
	if err := table.Write(out); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	perChange := figure.Milliseconds(f.spent / time.Duration(max(1, f.changes)))
	said := fmt.Sprintf("\nCPU time of the daemon a change: %.1f ms\nrequests to an endpoint after the acknowledgement that it had gone: %d %s\n", perChange, f.stale, f.staleFirst)
	for name, r := range map[string]*rival{"headgate": &f.headgate, "nginx": &f.nginx} {
		if first := r.churn.First + r.quiet.First + r.busy.First; first != "" {
			said += fmt.Sprintf("%s, first failure: %s\n", name, first)
		}
	}
	if _, err := io.WriteString(out, said+"\n"); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	return figure.Result(out, result{ //nolint:wrapcheck // the writer's own words
		Errors: f.headgate.churn.Failed + f.headgate.quiet.Failed + f.headgate.busy.Failed, Stale: f.stale,
		P99Ratio: ratio(&f.headgate, 0.99), P999Ratio: ratio(&f.headgate, 0.999),
		Busy:      ratios{against(&f.headgate.busy, &f.headgate.churn, 0.99), against(&f.headgate.busy, &f.headgate.churn, 0.999)},
		DaemonCPU: perChange,
		Nginx:     rivals{f.nginx.churn.Failed + f.nginx.quiet.Failed, ratio(&f.nginx, 0.99), ratio(&f.nginx, 0.999)},
	})
}

func row(name, stretch string, s *load.Segment) []string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.2f", figure.Milliseconds(d)) }
	return []string{name, stretch, fmt.Sprint(s.Requests), fmt.Sprint(s.Failed), ms(s.Latency(0.5)), ms(s.Latency(0.99)), ms(s.Latency(0.999)), ms(s.Latency(1))}
}
