package main

import (
	"context"
	"fmt"
	"time"

	headload "headgate/bench/load"
	"headgate/bench/stage"
)

// fixedRate is far below what a core serves, so that latency is the proxy's and not the queue's.
const fixedRate = 1500

// latency compares the two sides of a match at a fixed rate, counted from when a request was due.
type latency struct {
	match           *match
	base, candidate *headload.Segment
}

// atFixedRate loads both sides of the match of a scenario at the same time, each at the same rate; nil when that scenario
// is not among them.
func atFixedRate(ctx context.Context, matches []*match, key string, d time.Duration) (*latency, error) {
	for _, m := range matches {
		if m.key != key {
			continue
		}
		var generators [2]*headload.Generator
		for i, a := range m.sides {
			generators[i] = headload.Start(ctx, headload.Config{
				Address: a.address, Rate: fixedRate, Host: func(n int64) string { return a.site.host(int(n % int64(a.site.hosts))) },
			})
		}
		err := stage.Wait(ctx, d)
		l := &latency{match: m, base: generators[0].Stop(), candidate: generators[1].Stop()}
		if err != nil {
			return nil, err //nolint:wrapcheck // Ctrl-C
		}
		for _, s := range []*headload.Segment{l.base, l.candidate} {
			if s.Failed > 0 {
				return nil, fmt.Errorf("%d of %d requests failed: %s", s.Failed, s.Requests, s.First)
			}
		}
		return l, nil
	}
	return nil, nil //nolint:nilnil // documented
}

// at gives a percentile of both sides and their ratio.
func (l *latency) at(q float64) (base, candidate time.Duration, ratio float64) {
	base, candidate = l.base.Latency(q), l.candidate.Latency(q)
	if base > 0 {
		ratio = float64(candidate) / float64(base)
	}
	return base, candidate, ratio
}
