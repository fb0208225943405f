package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"headgate/gateway/build"
	"headgate/gateway/luastate"
	"headgate/gateway/plan"
	"headgate/gateway/snapshot"
)

// Moment is what the loop has applied and what it wanted last. All of it is the caller's.
type Moment struct {
	// Applied is what was seen of the proxy; its configuration has no text.
	Applied plan.Applied
	// State is what the last build wanted; none before the first. Its bodies hold secrets, and are never changed.
	State luastate.State
	// Problems are those of the last build.
	Problems []build.Problem
	// Resolutions are the addresses of external names.
	Resolutions []*snapshot.Resolution
	// Verdicts are those of the active health checks.
	Verdicts []snapshot.Verdict
}

// ErrBusy tells that the loop did not find the time to answer.
var ErrBusy = errors.New("the loop is busy with a pass, or does not run: ask again")

// Moment asks Run's goroutine, which answers between two passes. The error is ErrBusy when ctx ends before.
func (l *Loop) Moment(ctx context.Context) (Moment, error) {
	answer := make(chan Moment, 1) // so that the loop never waits for who asked
	select {
	case l.asked <- answer:
		return <-answer, nil
	case <-ctx.Done():
		return Moment{}, fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	}
}

func (l *Loop) moment() Moment {
	m := Moment{Applied: l.applied}
	// Who asks compares; the secrets are nobody's.
	m.Applied.State = luastate.State{}
	m.Applied.Config.Text, m.Applied.Config.Files, m.Applied.Config.Identities = nil, nil, nil
	m.Applied.Pointers, m.Applied.Bodies = maps.Clone(l.applied.Pointers), maps.Clone(l.applied.Bodies)
	if l.result != nil {
		m.State, m.Problems = l.encoder.Encode(l.result.Model), l.result.Problems
	}
	if l.cfg.Resolver != nil {
		m.Resolutions = l.cfg.Resolver.Resolutions()
	}
	if l.cfg.Checker != nil {
		m.Verdicts = l.cfg.Checker.Verdicts()
	}
	return m
}
