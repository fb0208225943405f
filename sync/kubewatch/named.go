package kubewatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"headgate/gateway/snapshot"
)

// maxNamed bounds the Secrets that are read one by one: each is a watch of its own, which anybody who may write an Ingress can
// ask for.
const maxNamed = 500

// namedPatience is how long a session that is otherwise complete waits for them.
const namedPatience = 5 * time.Second

// peerKeys are what is kept of a Secret that is read by its name; whatever else it holds is none of our business.
func peerKeys() []string { return []string{"ca.crt", "tls.crt", "tls.key"} }

// Want says which Secrets are named besides those of type kubernetes.io/tls, such as those of proxy-ssl-secret, which people
// make with `kubectl create secret generic`. Of them those of type Opaque are read, one by one and as long as they are wanted: at most 500,
// the first ones by name. It replaces the former set and gives true once each of them was read or is known not to be there;
// Changed gets a value when that becomes true.
func (s *Source) Want(secrets []snapshot.Key) bool {
	s.mu.Lock()
	s.wanted = slices.Clone(secrets)
	s.mu.Unlock()
	current, known := s.current.Load(), false
	for _, one := range s.sessions() {
		// One that is being tried reads them before it takes over.
		if done := one.named.want(secrets); one == current {
			known = done
		}
	}
	return known
}

// named are the Secrets of one session that are read by their names.
type named struct {
	client  kubernetes.Interface
	log     *slog.Logger
	tables  *tables
	memo    *memo
	changed func()
	failed  cache.WatchErrorHandlerWithContext

	mu      sync.Mutex      // guards what follows
	run     context.Context //nolint:containedctx // that of the session, from the end of its lists to its own; nil before and after
	wanted  []snapshot.Key
	watches map[snapshot.Key]*namedWatch
	running sync.WaitGroup
	leftOut int // when that was looked at last
}

// namedWatch is one informer.
type namedWatch struct {
	informer cache.SharedIndexInformer
	read     cache.DoneChecker
	cancel   context.CancelFunc
}

// begin is called once the lists are complete: what they hold needs no watch of its own. It returns when all was read that is
// wanted by then, or after namedPatience.
func (n *named) begin(ctx context.Context) {
	n.mu.Lock()
	n.run = ctx
	n.follow() //nolint:contextcheck // it takes n.run, as later calls do
	reads := make([]cache.DoneChecker, 0, len(n.watches))
	for _, w := range n.watches {
		reads = append(reads, w.read)
	}
	n.mu.Unlock()
	patience := time.NewTimer(namedPatience)
	defer patience.Stop()
	for _, read := range reads {
		select {
		case <-read.Done():
		case <-patience.C:
			n.log.Warn("some named Secrets are not read yet")
			return
		case <-ctx.Done():
			return
		}
	}
}

// stop returns when all have ended; ctx of begin has.
func (n *named) stop() {
	n.mu.Lock()
	n.run = nil
	n.mu.Unlock()
	n.running.Wait()
}

// want makes secrets the set that is read by name, but for those that the lists of their namespaces hold. It gives true once
// everything that can be known of them is.
func (n *named) want(secrets []snapshot.Key) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wanted = secrets
	return n.follow()
}

// follow begins and ends watches as wanted has it. n.mu is held.
func (n *named) follow() bool {
	if n.run == nil {
		return false
	}
	watched, left := n.toWatch()
	n.tell(left)
	for key, w := range n.watches {
		if _, stays := watched[key]; !stays {
			w.cancel()
			delete(n.watches, key)
			n.tables.remove(identity{namedKind, key})
		}
	}
	known := true
	for key := range watched {
		w := n.watches[key]
		if w == nil {
			w = n.watch(key)
			n.watches[key] = w
		}
		known = known && cache.IsDone(w.read)
	}
	return known
}

// toWatch leaves out what the lists hold, and what is too much.
func (n *named) toWatch() (watched map[snapshot.Key]struct{}, left int) {
	watched = make(map[snapshot.Key]struct{})
	for _, key := range n.wanted {
		switch {
		case n.tables.has(identity{secretKind, key}):
		case len(watched) == maxNamed:
			left++
		default:
			watched[key] = struct{}{}
		}
	}
	return watched, left
}

// tell says once that some are left out.
func (n *named) tell(left int) {
	if left > 0 && n.leftOut == 0 {
		n.log.Warn("too many Secrets of type Opaque are named: some are not read; give them type kubernetes.io/tls", "left", left, "most", maxNamed)
	}
	n.leftOut = left
}

// watch runs an informer on one Secret of type Opaque, until it is wanted no more or the session ends. n.mu is held.
func (n *named) watch(key snapshot.Key) *namedWatch {
	selector := fields.AndSelectors(
		fields.OneTermEqualSelector("metadata.name", key.Name), fields.OneTermEqualSelector("type", string(corev1.SecretTypeOpaque)))
	f := informers.NewSharedInformerFactoryWithOptions(n.client, 0,
		informers.WithNamespace(key.Namespace), selecting(selector), informers.WithTransform(n.memo.transformNamed))
	w := &namedWatch{informer: f.Core().V1().Secrets().Informer()}
	h := &namedHandler{handler{kind: namedKind, tables: n.tables, memo: n.memo, changed: n.changed}, n, w}
	// Both refuse an informer that runs or has ended only; this one is new.
	registration, err := w.informer.AddEventHandler(h)
	if err := errors.Join(err, w.informer.SetWatchErrorHandlerWithContext(n.failed)); err != nil {
		panic(fmt.Sprintf("kubewatch: a new informer on Secret %s: %v", key, err))
	}
	w.read = registration.HasSyncedChecker()
	ctx, cancel := context.WithCancel(n.run)
	w.cancel = cancel
	n.running.Go(func() { w.informer.RunWithContext(ctx) })
	n.running.Go(func() {
		select {
		case <-ctx.Done():
		case <-w.read.Done():
			n.changed() // it may be that there is none
		}
	})
	return w
}

// namedHandler brings the events of one Secret into the tables, as long as it is wanted: an informer that was ended may be
// telling of it still.
type namedHandler struct {
	handler
	named *named
	watch *namedWatch
}

func (h *namedHandler) wanted(in any) bool {
	o, ok := in.(*held)
	if !ok {
		return true // only the key of what is gone, which is removed either way
	}
	return h.named.watches[o.id.key] == h.watch
}

// OnAdd implements cache.ResourceEventHandler.
func (h *namedHandler) OnAdd(in any, first bool) {
	h.named.mu.Lock()
	defer h.named.mu.Unlock()
	if h.wanted(in) {
		h.handler.OnAdd(in, first)
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (h *namedHandler) OnUpdate(before, in any) {
	h.named.mu.Lock()
	defer h.named.mu.Unlock()
	if h.wanted(in) {
		h.handler.OnUpdate(before, in)
	}
}

// OnDelete implements cache.ResourceEventHandler.
func (h *namedHandler) OnDelete(in any) {
	h.named.mu.Lock()
	defer h.named.mu.Unlock()
	object := in
	if unknown, ok := in.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if h.wanted(object) {
		h.handler.OnDelete(in)
	}
}
