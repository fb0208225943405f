package kubestatus

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// leadership is who writes.
type leadership struct {
	mu       sync.Mutex // guards what follows
	mine     bool
	led      bool // the last term was ours, and was not lost
	identity string
}

func (l *leadership) state() (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.identity, l.mine
}

func (l *leadership) seen(identity string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.identity = identity
}

// begin is called from a goroutine of its own, perhaps after the term ended: then ctx has ended, too.
func (l *leadership) begin(ctx context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mine = ctx.Err() == nil
	l.led = l.led || l.mine
	return l.mine
}

// lose notes that a term ended though nobody asked for it.
func (l *leadership) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.led = false
}

// untilTheEnd is true when this process was leader when it was told to stop.
func (l *leadership) untilTheEnd() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.led
}

// end is true if there was a term to end.
func (l *leadership) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.mine
	l.mine = false
	return was
}

// elect stands for election until ctx ends: a lost term is followed by the next try.
func (w *Writer) elect(ctx context.Context) {
	for ctx.Err() == nil {
		elector, err := w.newElector()
		if err != nil {
			// New has made one with the same values.
			panic(fmt.Sprintf("leader election: %v", err))
		}
		elector.Run(ctx)
		if ctx.Err() == nil {
			w.leader.lose()
		}
	}
}

func (w *Writer) newElector() (*leaderelection.LeaderElector, error) {
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &lock{
			LeaseLock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: w.config.LeaseNamespace, Name: w.config.LeaseName},
				Client:     leases{w.config.Client},
				LockConfig: resourcelock.ResourceLockConfig{Identity: w.config.Identity},
			},
			tell: w.tellLease,
		},
		LeaseDuration:   w.config.LeaseDuration,
		RenewDeadline:   w.config.RenewDeadline,
		RetryPeriod:     w.config.RetryPeriod,
		ReleaseOnCancel: true,
		Name:            "headgate",
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				if w.leader.begin(ctx) {
					w.log.Info("this host writes status and Events")
					w.signal()
				}
			},
			OnStoppedLeading: func() {
				if w.leader.end() {
					w.log.Info("this host no longer writes status and Events")
				}
			},
			OnNewLeader: func(identity string) {
				w.leader.seen(identity)
				if identity != w.config.Identity {
					w.log.Info("another host writes status and Events", "host", identity)
				}
			},
		},
	})
}

// tellLease logs trouble with the Lease once, until it is over.
func (w *Writer) tellLease(l *lock, what string, err error) {
	text := ""
	if err != nil {
		text = what + " " + apierrorReason(err)
	}
	if text == l.told {
		return
	}
	l.told = text
	lease := w.config.LeaseNamespace + "/" + w.config.LeaseName
	switch {
	case err == nil:
		w.log.Info("the Lease can be used", "lease", lease)
	case apierrors.IsForbidden(err):
		w.log.Warn("the Lease cannot be used: nobody writes status and Events", "lease", lease, "err", err,
			"advice", fmt.Sprintf("add to a Role in namespace %s for headgate's ServiceAccount: {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]} and the same with resourceNames: [%s], verbs: [get, update]",
				w.config.LeaseNamespace, w.config.LeaseName))
	case apierrors.IsNotFound(err):
		w.log.Warn("the Lease cannot be used: nobody writes status and Events", "lease", lease, "err", err,
			"advice", "create the namespace "+w.config.LeaseNamespace)
	default:
		w.log.Warn("the Lease cannot be used: status and Events wait", "lease", lease, "err", err)
	}
}

func apierrorReason(err error) string {
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return string(reason)
	}
	return "unreachable"
}

// leases asks for the client anew each time: it may be replaced.
type leases struct {
	client func() kubernetes.Interface
}

// Leases implements coordinationv1client.LeasesGetter.
func (l leases) Leases(namespace string) coordinationv1client.LeaseInterface {
	return l.client().CoordinationV1().Leases(namespace)
}

// lock tells of what client-go's election would only log its own way.
type lock struct {
	*resourcelock.LeaseLock
	tell func(l *lock, what string, err error)
	told string
}

// Get implements resourcelock.Interface.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if !apierrors.IsNotFound(err) {
		l.note(ctx, "get", err)
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.LeaseLock.Create(ctx, record)
	l.note(ctx, "create", err)
	return err
}

// Update implements resourcelock.Interface.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.LeaseLock.Update(ctx, record)
	l.note(ctx, "update", err)
	return err
}

// note passes on what is trouble. That another host was faster is not.
func (l *lock) note(ctx context.Context, what string, err error) {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || ctx.Err() != nil {
		return
	}
	if err == nil && what == "get" && l.told != "" && l.told[:3] != "get" {
		return // a refused write is not over because the read works
	}
	l.tell(l, what, err)
}
