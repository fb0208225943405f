package kubewatch

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// listed is the cache.DoneChecker of a list that is complete.
type listed struct{}

func (listed) Name() string { return "list" }

func (listed) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func TestLookBack(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", nil)
	const nothing = renewal(-1)
	for _, c := range []struct {
		name      string
		seen, now string
		err       error
		outage    bool
		found     bool
		want      renewal
	}{
		{"a moment's break", "10", "12", nil, false, true, nothing},
		{"nothing new", "10", "10", nil, false, true, nothing},
		{"an outage", "10", "12", nil, true, true, reconnect},
		{"an older state", "10", "9", nil, false, true, rewind},
		{"compared as numbers", "9", "10", nil, false, true, nothing},
		{"an older state after an outage", "1000", "999", nil, true, true, rewind},
		{"versions that cannot be compared", "x", "y", nil, false, true, nothing},
		{"nothing seen yet", "", "9", nil, true, true, reconnect},
		{"no right to list", "10", "", forbidden, true, true, reconnect},
		{"no answer", "10", "", errors.New("no answer"), true, false, nothing},
	} {
		s := &session{log: slog.New(slog.DiscardHandler), renew: make(chan renewal, 1), lists: []list{{
			name: "list", done: listed{},
			version: func() string { return c.seen },
			now:     func(context.Context) (string, error) { return c.now, c.err },
		}}}
		if found := s.lookBack(t.Context(), c.outage); found != c.found {
			t.Errorf("%s: found out: %v", c.name, found)
		}
		got := nothing
		select {
		case got = <-s.renew:
		default:
		}
		if got != c.want {
			t.Errorf("%s: renewal %d, want %d", c.name, got, c.want)
		}
	}
}
