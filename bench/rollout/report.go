package main

import (
	"context"
	"fmt"
	"io"

	"headgate/bench/figure"
	"headgate/bench/stage"
)

// result is the last line.
type result struct {
	Requests   int     `json:"requests"`
	Errors     int     `json:"errors"`
	PerMillion float64 `json:"errors_per_million"`
}

func report(ctx context.Context, out io.Writer, p plan, f figures) error {
	heading := figure.Heading{
		Command: stage.Command("bench-rollout"), Machine: stage.Machine(),
		Versions: stage.Versions(ctx, []string{p.headgate, "version"}, []string{"nginx", "-v"}),
		Notes: []string{
			fmt.Sprintf("%.0f GET a second while a Deployment of %d pods is rolled out again and again; no preStop hook: a pod refuses connections as soon as it gets SIGTERM", p.rate, p.replicas),
			"budget: one error in 1,000,000 requests",
		},
	}
	if err := heading.Write(out); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	r := result{Requests: f.Requests, Errors: f.Failed, PerMillion: figure.Round(float64(f.Failed)/float64(f.Requests)*1e6, 2)}
	var table figure.Table
	table.Row("rollouts", "requests", "errors", "errors per million", "reloads", "p50 ms", "p99", "p99.9", "max")
	n := func(q float64) string { return fmt.Sprintf("%.2f", figure.Milliseconds(f.Latency(q))) }
	table.Row(fmt.Sprint(f.rollouts), fmt.Sprint(r.Requests), fmt.Sprint(r.Errors), fmt.Sprint(r.PerMillion), fmt.Sprint(f.reloads), n(0.5), n(0.99), n(0.999), n(1))
	if err := table.Write(out); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	said := "\n"
	if f.First != "" {
		said = "\nfirst error: " + f.First + "\n\n"
	}
	if _, err := io.WriteString(out, said); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	return figure.Result(out, r) //nolint:wrapcheck // the writer's own words
}
