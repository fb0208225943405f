package kubewatch

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// probeLimit tells a probe from an informer's list.
const probeLimit = 1

// version makes a function that asks for the resourceVersion that the API server is at (KEP-5504: they can be compared).
func version[L interface{ GetResourceVersion() string }](
	list func(context.Context, metav1.ListOptions) (L, error), selector string,
) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		// Without a resourceVersion the answer is the newest state, not that of a cache.
		all, err := list(ctx, metav1.ListOptions{Limit: probeLimit, FieldSelector: selector})
		if err != nil {
			return "", err
		}
		return all.GetResourceVersion(), nil
	}
}

// renewal says why a session has to give way to a new one.
type renewal int

const (
	// reconnect: informers that have failed for a while try again up to 30 s later only, and a watch that went silent is
	// given up after longer than that. A new session has read everything in a moment.
	reconnect renewal = iota
	// rewind: besides, versions mean something else than they did.
	rewind
	// relist: somebody wants to be sure.
	relist
)

// lookBack is called when the API server answers again after something broke off, outage if that was long enough to be
// told. An API server whose etcd was restored to an older state takes up the watches as if nothing had happened, and sends
// no event before its resourceVersion has passed the one that the watch had seen (seen with 1.36). False: it could not be
// found out, ask again.
func (s *session) lookBack(ctx context.Context, outage bool) bool { //nolint:revive // an observed fact, not a switch
	for _, l := range s.lists {
		seen := l.version()
		if !cache.IsDone(l.done) || seen == "" {
			continue
		}
		now, err := l.ask(ctx)
		if apierrors.IsForbidden(err) {
			continue // the informer does without lists, too
		}
		if err != nil {
			return false
		}
		if order, err := resourceversion.CompareResourceVersion(now, seen); err == nil && order < 0 {
			s.log.Warn("the API server went back to an older state: reading it anew", "list", l.name, "seen", seen, "now", now)
			s.ask(rewind)
			return true
		}
	}
	if outage {
		s.ask(reconnect)
	}
	return true
}

func (s *session) ask(why renewal) {
	select {
	case s.renew <- why:
	default:
	}
}

func (l list) ask(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	return l.now(ctx)
}
