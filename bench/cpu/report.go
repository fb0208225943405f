package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"headgate/bench/figure"
	"headgate/bench/stage"
)

// result is the last line; a scenario that was not run, or that cannot be yet, is null.
type result struct {
	Static1      *figure.Spread `json:"static_1"`
	Static1000   *figure.Spread `json:"static_1000"`
	Static10000  *figure.Spread `json:"static_10000"`
	HAProxy1     *figure.Spread `json:"haproxy_1"`
	Metrics1     *figure.Spread `json:"metrics_1"`
	Upstreams250 *figure.Spread `json:"upstreams_250"`
	TLSHandshake *figure.Spread `json:"tls_handshake"`
	TLSKeepalive *figure.Spread `json:"tls_keepalive"`
	HTTP2        *figure.Spread `json:"http2"`
	Latency      *latencyRatios `json:"latency_1"`
}

// latencyRatios are those of headgate to static nginx at a fixed rate.
type latencyRatios struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
}

// budgets are DESIGN's upper limits of the median.
func budgets() map[string]float64 {
	return map[string]float64{
		"static_1": 1.15, "metrics_1": 1.20, "static_1000": 0.96, "static_10000": 1.00, "upstreams_250": 1.00,
		"tls_handshake": 1 / 0.94, // ≥ 0.94 of the handshakes a core
	}
}

func report(ctx context.Context, out io.Writer, p plan, matches []*match, l *latency) error {
	heading := figure.Heading{
		Command: stage.Command("bench-cpu"), Machine: stage.Machine(),
		Versions: stage.Versions(ctx, []string{p.binary, "version"}, []string{"nginx", "-v"}, []string{"haproxy", "-v"}),
		Notes:    notes(p),
	}
	var table figure.Table
	table.Row("what", "ratio min", "median", "max", "budget", "static µs", "its µs", "static p50/p99 ms", "its p50/p99 ms")
	r := result{}
	fields := map[string]**figure.Spread{
		"static_1": &r.Static1, "static_1000": &r.Static1000, "static_10000": &r.Static10000, "haproxy_1": &r.HAProxy1, "metrics_1": &r.Metrics1,
		"upstreams_250": &r.Upstreams250, "tls_handshake": &r.TLSHandshake, "tls_keepalive": &r.TLSKeepalive, "http2": &r.HTTP2,
	}
	for _, m := range matches {
		spread := ratios(m.samples).Rounded(3)
		if field := fields[m.key]; field != nil {
			*field = &spread
		}
		table.Row(row(m, spread)...)
	}
	if err := heading.Write(out); err != nil {
		return err
	}
	if err := table.Write(out); err != nil {
		return err
	}
	if l != nil {
		r.Latency = &latencyRatios{}
		if err := reportLatency(out, l, r.Latency); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	return figure.Result(out, r)
}

// reportLatency prints the percentiles of both sides at a fixed rate.
func reportLatency(out io.Writer, l *latency, into *latencyRatios) error {
	var table figure.Table
	table.Row(fmt.Sprintf("latency at %d requests a second on each side, from when a request was due", fixedRate), "static ms", "its ms", "ratio")
	for _, p := range []struct {
		name string
		q    float64
		into *float64
	}{{"p50", 0.5, &into.P50}, {"p99", 0.99, &into.P99}, {"p99.9", 0.999, &into.P999}} {
		base, candidate, ratio := l.at(p.q)
		*p.into = figure.Round(ratio, 2)
		table.Row(l.match.what+", "+p.name, fmt.Sprint(figure.Milliseconds(base)), fmt.Sprint(figure.Milliseconds(candidate)), fmt.Sprint(*p.into))
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err //nolint:wrapcheck // the writer's own words
	}
	return table.Write(out)
}

func notes(p plan) []string {
	measured, others, err := stage.Cores()
	if err != nil {
		return []string{err.Error()}
	}
	return []string{
		fmt.Sprintf("ratio: CPU time of the worker a request, of the pair that ran at the same time on core %d; load, backend and daemons on cores %v", measured, others),
		fmt.Sprintf("%d pairs of %s, all scenarios in turn; %d connections a side, 1 KiB answers, the same request headers at the backend, access log off", p.pairs, p.pair, p.connections),
		"latency is that of a closed loop at full load, both sides on one core; TLS: full handshakes, ECDSA P-256, TLS 1.3, nothing else",
	}
}

func ratios(samples []sample) figure.Spread {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = s.ratio()
	}
	return figure.SpreadOf(values)
}

func row(m *match, spread figure.Spread) []string {
	budget := "–"
	if limit, ok := budgets()[m.key]; ok {
		budget = fmt.Sprintf("%.3f", limit)
		if spread.Median > limit {
			budget += " MISSED"
		}
	}
	cells := []string{m.what, ratio(spread.Min), ratio(spread.Median), ratio(spread.Max), budget}
	base := func(f func(cost) time.Duration) time.Duration {
		return median(m.samples, func(s sample) time.Duration { return f(s.base) })
	}
	candidate := func(f func(cost) time.Duration) time.Duration {
		return median(m.samples, func(s sample) time.Duration { return f(s.candidate) })
	}
	cpu := func(c cost) time.Duration { return c.cpu }
	p50 := func(c cost) time.Duration { return c.p50 }
	p99 := func(c cost) time.Duration { return c.p99 }
	return append(cells,
		fmt.Sprintf("%.2f", base(cpu).Seconds()*1e6), fmt.Sprintf("%.2f", candidate(cpu).Seconds()*1e6),
		fmt.Sprintf("%.2f / %.2f", figure.Milliseconds(base(p50)), figure.Milliseconds(base(p99))),
		fmt.Sprintf("%.2f / %.2f", figure.Milliseconds(candidate(p50)), figure.Milliseconds(candidate(p99))))
}

func ratio(r float64) string { return fmt.Sprintf("%.3f", r) }

func median(samples []sample, f func(sample) time.Duration) time.Duration {
	values := make([]time.Duration, len(samples))
	for i, s := range samples {
		values[i] = f(s)
	}
	return figure.Percentile(values, 0.5)
}
