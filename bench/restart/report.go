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

// damage is of all repetitions of an event: the sum of the failed requests, and the longest gap.
type damage struct {
	Failed int     `json:"failed"`
	GapMs  float64 `json:"gap_ms"`
}

func report(ctx context.Context, out io.Writer, p plan, all []*outcome) error {
	heading := figure.Heading{
		Command: stage.Command("bench-restart"), Machine: stage.Machine(),
		Versions: stage.Versions(ctx, []string{p.headgate, "version"}, []string{"nginx", "-v"}),
		Notes: []string{
			fmt.Sprintf("%.0f requests a second over kept connections to %d hosts; each event %d times; looked at from 0.2 s before it until %s after the gateway is whole again", p.rate, hosts, p.repeats, p.around),
			"failed: what an HTTP client tells its caller (it repeats a GET whose kept connection was closed before any answer); gap: the longest time without a good answer",
			"latency counts from when a request was due",
		},
	}
	if err := heading.Write(out); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	var table figure.Table
	table.Row("event", "requests", "failed", "gap ms min", "median", "max", "p99 ms", "max ms", "first failure")
	result := map[string]damage{}
	for _, o := range all {
		sum := &load.Segment{}
		var gaps []float64
		for _, s := range o.segments {
			gaps = append(gaps, figure.Milliseconds(s.Gap()))
			sum.Add(s)
		}
		spread := figure.SpreadOf(gaps).Rounded(1)
		if o.key != "" {
			result[o.key] = damage{sum.Failed, spread.Max}
		}
		number := func(v float64) string { return fmt.Sprintf("%.1f", v) }
		ms := func(d time.Duration) string { return number(figure.Milliseconds(d)) }
		table.Row(o.what, fmt.Sprint(sum.Requests), fmt.Sprint(sum.Failed), number(spread.Min), number(spread.Median), number(spread.Max),
			ms(sum.Latency(0.99)), ms(sum.Latency(1)), sum.First)
	}
	if err := table.Write(out); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	if _, err := io.WriteString(out, "\n"); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	return figure.Result(out, result) //nolint:wrapcheck // the writer's own words
}
