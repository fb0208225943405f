package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"headgate/bench/cluster"
	"headgate/bench/figure"
	"headgate/bench/stage"
)

// percentiles are milliseconds.
type percentiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// result is the last line: the figures of the largest size; reloads and errors are those of all sizes.
type result struct {
	Routes   int         `json:"routes"`
	Endpoint percentiles `json:"endpoint_ms"`
	Ingress  percentiles `json:"ingress_ms"`
	Reloads  uint64      `json:"reloads"`
	Errors   int         `json:"errors"`
}

func of(times []time.Duration) percentiles {
	return percentiles{figure.Milliseconds(figure.Percentile(times, 0.5)), figure.Milliseconds(figure.Percentile(times, 0.99))}
}

// budget is DESIGN's upper limit, in milliseconds, at the size that it is stated for.
type budget struct {
	routes   int
	p50, p99 float64
}

func report(ctx context.Context, out io.Writer, p plan, all []figures) error {
	heading := figure.Heading{
		Command: stage.Command("bench-propagation"), Machine: stage.Machine(), Versions: stage.Versions(ctx, []string{p.headgate, "version"}, []string{"nginx", "-v"}),
		Notes: []string{
			"from before the write to a real kube-apiserver (with etcd, on this machine) until the last worker served it, asked every ms",
			fmt.Sprintf("%d events of each kind, one at a time; Ingresses of one host with %d paths, %d services with %d endpoints", p.events, cluster.PathsPerIngress, services, servicePeers),
			"errors: events that were not served or answered wrongly, and failures of steady requests beside them",
		},
	}
	if err := heading.Write(out); err != nil {
		return err
	}
	var table figure.Table
	table.Row("routes", "event", "min ms", "p50", "p99", "max", "budget p50/p99", "API answer p50", "events", "errors")
	r := result{}
	for _, f := range all {
		table.Row(row(f.routes, "endpoint change", f.endpoint, budget{10000, 20, 100})...)
		table.Row(row(f.routes, "new Ingress", f.ingress, budget{3000, 30, 100})...)
		r.Routes, r.Endpoint, r.Ingress = f.routes, of(f.endpoint.served), of(f.ingress.served)
		r.Reloads += f.reloads
		r.Errors += f.errors()
	}
	if err := table.Write(out); err != nil {
		return err
	}
	for _, f := range all {
		line := fmt.Sprintf("\n%d routes: %d reloads, %d steady requests of which %d failed", f.routes, f.reloads, f.requests, f.failed)
		if f.first != nil {
			line += fmt.Sprintf("; first error: %v", f.first)
		}
		if _, err := io.WriteString(out, line); err != nil {
			return err //nolint:wrapcheck // the writer's own words
		}
	}
	if _, err := io.WriteString(out, "\n\n"); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	return figure.Result(out, r)
}

func row(routes int, kind string, s series, b budget) []string {
	limit := "–"
	p := of(s.served)
	if routes == b.routes {
		limit = fmt.Sprintf("%.0f / %.0f", b.p50, b.p99)
		if p.P50 > b.p50 || p.P99 > b.p99 {
			limit += " MISSED"
		}
	}
	number := func(ms float64) string { return fmt.Sprintf("%.1f", ms) }
	return []string{
		fmt.Sprint(routes), kind, number(figure.Milliseconds(figure.Percentile(s.served, 0))), number(p.P50), number(p.P99),
		number(figure.Milliseconds(figure.Percentile(s.served, 1))), limit, number(of(s.api).P50), fmt.Sprint(len(s.served) + s.errors), fmt.Sprint(s.errors),
	}
}
