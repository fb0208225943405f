package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"headgate/bench/figure"
	"headgate/bench/stage"
	"headgate/test/vip/lab"
)

// noticed is one event in the result: of both families the worse one, each time.
type noticed struct {
	Failed int     `json:"failed"`
	Min    float64 `json:"min_ms"`
	Median float64 `json:"median_ms"`
	Max    float64 `json:"max_ms"`
}

func (o *outcome) result() noticed {
	var worst []float64
	n := noticed{}
	for i := range o.four {
		worst = append(worst, figure.Milliseconds(max(o.four[i].Outage, o.six[i].Outage)))
		n.Failed += o.four[i].Failed + o.six[i].Failed
	}
	s := figure.SpreadOf(worst).Rounded(1)
	n.Min, n.Median, n.Max = s.Min, s.Median, s.Max
	return n
}

func outages(list []lab.Damage) string {
	var values []float64
	for _, d := range list {
		values = append(values, figure.Milliseconds(d.Outage))
	}
	return spread(values)
}

func spread(values []float64) string {
	s := figure.SpreadOf(values)
	return fmt.Sprintf("%.0f/%.0f/%.0f", s.Min, s.Median, s.Max)
}

func report(ctx context.Context, out io.Writer, p plan, f *figures) error {
	heading := figure.Heading{
		Command: stage.Command("bench-vip"), Machine: stage.Machine(),
		Versions: stage.Versions(ctx, []string{p.headgate, "version"}, []string{"nginx", "-v"}, []string{"/usr/sbin/keepalived", "-v"}),
		Notes: []string{
			fmt.Sprintf("each event %d times (keepalived %d); a new connection each 1 ms by IPv4 and 2 ms by IPv6, 300 ms for each", p.repeats, p.rivals),
			"outage: from the first failure to the first success after the last one, min/median/max in ms; dual: the longest time in which both hosts had the address",
			fmt.Sprintf("keepalived: advert_int 1, a script each second; its outages are looked at for %s and then count as they are", limit),
			"kill_daemon: both hosts have the address of a keepalived that was killed until it is started again, here after 4 s",
		},
	}
	if err := heading.Write(out); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	var table figure.Table
	table.Row("event", "by", "failed", "IPv4 ms", "IPv6 ms", "dual ms", "not over")
	result := map[string]any{}
	theirs := map[string]noticed{}
	for _, s := range []*side{f.ours, f.theirs} {
		if s == nil {
			continue
		}
		for _, o := range s.outcomes {
			n := o.result()
			switch {
			case o.key == nothing:
			case s == f.ours:
				result[o.key] = n
			default:
				theirs[o.key] = n
			}
			table.Row(o.key, s.name, fmt.Sprint(n.Failed), outages(o.four), outages(o.six), spread(milliseconds(o.dual)), fmt.Sprint(o.unfinished))
		}
	}
	if err := table.Write(out); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	result["keepalived"] = theirs
	result["takeover_1000_ms"] = figure.SpreadOf(f.takeovers).Rounded(1)
	result["cluster_start_ms"] = figure.SpreadOf(f.starts).Rounded(1)
	result["flows_survived"] = share(f.ours)
	result["false_failovers"] = f.moved
	if _, err := fmt.Fprintf(out, `
open connections that survived planned_stop   headgate %s, keepalived %s
1,000 addresses taken over and announced      %s ms
3 hosts started at once, first owner          %s ms; moves after that: %d
under %d CPU hogs for %s                       moves: %d; verdicts against living hosts: %d

`, counted(f.ours), counted(f.theirs), spread(f.takeovers), spread(f.starts), f.flaps, p.load.hogs, p.load.lasts, f.moved, f.silent); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	return figure.Result(out, result) //nolint:wrapcheck // the writer's own words
}

func milliseconds(list []time.Duration) []float64 {
	var values []float64
	for _, d := range list {
		values = append(values, figure.Milliseconds(d))
	}
	return values
}

func share(s *side) float64 {
	if s == nil || s.survived.open == 0 {
		return 0
	}
	return figure.Round(float64(s.survived.alive)/float64(s.survived.open), 3)
}

func counted(s *side) string {
	if s == nil {
		return "not measured"
	}
	return fmt.Sprintf("%d of %d", s.survived.alive, s.survived.open)
}
