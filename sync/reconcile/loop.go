// Package reconcile is the one loop: a change marks the state dirty, a pass takes the newest snapshot,
// has it built, plans the way from what the proxy was seen to have to what it should have, and goes
// that way: a reload when there must be one, then the state log, then the push. It owns all applied
// state and the revision counter. What to serve is decided in gateway/, how to move it in the other
// rooms of sync/; this one knows the order, when to wait, when to try again and what to tell.
package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"headgate/gateway/build"
	"headgate/gateway/luastate"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/plan"
	"headgate/gateway/snapshot"
	"headgate/sync/luapush"
	"headgate/sync/nginxproc"
)

// Source gives the newest snapshot. complete is false until everything was read once: nothing is
// applied before.
type Source interface {
	Changed() <-chan struct{}
	Snapshot() (s *snapshot.Snapshot, complete bool)
}

// Resolver keeps ExternalNames resolved.
type Resolver interface {
	Changed() <-chan struct{}
	Want(names []string)
	Resolutions() []*snapshot.Resolution
}

// Checker runs active health checks; *health.Checker does.
type Checker interface {
	Changed() <-chan struct{}
	Want(checks []build.Check)
	Verdicts() []snapshot.Verdict
}

// Secrets reads Secrets that a source does not read by itself, as soon as they are named; *kubewatch.Source does. They stand in
// its snapshots.
type Secrets interface {
	// Want gives true once all is known of them that can be; the source's Changed tells when that may be.
	Want([]snapshot.Key) bool
}

// Builder turns snapshots into models; *build.Builder does.
type Builder interface {
	Build(*snapshot.Snapshot, time.Time) *build.Result
	LearnRegexes(map[string]string)
	RejectProfile(name, why string)
}

// Proxy runs nginx; *nginxproc.Proxy does.
type Proxy interface {
	Changed() <-chan struct{}
	// Adopt takes over a proxy that runs already, Resume also starts one where that is ours to do.
	Adopt(context.Context) (running bool)
	Resume(context.Context) (running bool, err error)
	Apply(context.Context, nginxproc.Conf) error
	Test(ctx context.Context, c nginxproc.Conf) error
	// HandOver goes along with an upgrade of nginx's binary; true: another master has just taken over.
	HandOver(context.Context) (bool, error)
}

// Control is the proxy's control socket; *luapush.Client is.
type Control interface {
	Pusher() string
	State(context.Context) (luapush.State, error)
	Keys(context.Context) (luapush.Keys, error)
	Push(context.Context, luapush.Push) (uint64, error)
	CheckRegexes(context.Context, []string) (map[string]string, error)
}

// StateLog keeps the pushed state on disk; *statelog.Log does.
type StateLog interface {
	Append(revision uint64, records []luastate.Record) error
	Revision() uint64
	Held() (pointers map[string]string, bodies map[string]int)
	Body(hash string) ([]byte, error)
	Condition() error
}

// Config is what the loop works with. Everything without a note is required.
type Config struct {
	Source   Source
	Resolver Resolver // nil: ExternalNames stay unresolved
	Checker  Checker  // nil: all peers are taken for well
	Secrets  Secrets  // nil: the source has them all
	Builder  Builder
	Proxy    Proxy
	Control  Control
	StateLog StateLog

	// Layout is how nginx.conf is rendered; its KeepProfiles are set by the loop.
	Layout nginxconf.Layout
	// Settings and Listeners serve a start from the state log, before any build.
	Settings  model.Settings
	Listeners []model.Listener
	// MemoryFile remembers over a restart of the daemon which configuration was applied; its folder
	// exists.
	MemoryFile string

	// Window is how long the loop waits for further changes after one that follows closely on a
	// pass; 0 means 20 ms. MaxDelay bounds how long a change waits; 0 means 100 ms.
	Window, MaxDelay time.Duration
	// ObservePeriod is the time between two looks at the proxy; 0 means 1 s.
	ObservePeriod time.Duration
	// Applied is called after each pass that went all the way, on the loop's goroutine: it must not
	// block, and it may use the Builder. May be nil.
	Applied func(Pass)
	// Log may be nil.
	Log *slog.Logger
}

// Pass is a pass that went all the way.
type Pass struct {
	Result *build.Result
	// Revision is the one that the proxy committed.
	Revision uint64
	// Changed tells that this pass pushed or reloaded.
	Changed bool
	Started time.Time
	Took    time.Duration
}

// The times of a Config that has none.
const (
	defaultWindow   = 20 * time.Millisecond
	defaultMaxDelay = 100 * time.Millisecond
)

// The times that no configuration changes.
const (
	// resolvePatience is how long the first pass waits for ExternalNames to be asked for the first
	// time: without their answers it would take the peers away that the proxy still has.
	resolvePatience = 5 * time.Second
	// rebuildPeriod is for what changes with time alone: certificates expire.
	rebuildPeriod = time.Hour
	// secretPatience is how long a pass waits for Secrets that are named for the first time: without them it would tell that
	// they do not exist, and answer 503 where they are needed.
	secretPatience = 2 * time.Second
	// callTimeout bounds a call to the control socket, which has its own deadline for each request.
	callTimeout = time.Minute
)

// Loop is the reconciler. Run owns it; Status may be called from anywhere.
type Loop struct {
	cfg     Config
	log     *slog.Logger
	encoder *luastate.Encoder
	status  atomic.Pointer[Status]
	asked   chan chan Moment // unbuffered: who asks is answered, or knows that it was not heard
	beats   atomic.Uint64
	changes chan request // unbuffered, for the same reason

	// All below belongs to Run's goroutine.
	now      Status // what status will show next
	applied  plan.Applied
	stale    bool            // applied must be observed before the next plan
	served   []model.Profile // profiles that the last pushed state uses; nil before the first push
	parts    parts           // what served names
	revision uint64          // the last one that was used
	logged   bool            // the log holds what the proxy holds
	result   *build.Result
	memory   memory
	rejected map[string]bool
	failed   failedLoad
	search   *search // under way; nil else
	// cleared are profiles that a search found nothing in, until nginx runs them.
	cleared  map[string]bool
	why      error     // why the proxy cannot answer, as far as that is known; nil once it does
	waiting  time.Time // since when the first pass waits for ExternalNames
	asking   asking    // for Secrets
	debounce debouncer
	retry    backOff
	rival    rivalry
}

// New makes a loop; it starts nothing.
func New(cfg Config) *Loop {
	defaultTo(&cfg.Window, defaultWindow)
	defaultTo(&cfg.MaxDelay, defaultMaxDelay)
	defaultTo(&cfg.ObservePeriod, time.Second)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	l := &Loop{
		cfg: cfg, log: cfg.Log, encoder: luastate.NewEncoder(), stale: true,
		asked:    make(chan chan Moment),
		changes:  make(chan request),
		rejected: make(map[string]bool),
		cleared:  make(map[string]bool),
		debounce: debouncer{window: cfg.Window, maxDelay: cfg.MaxDelay},
	}
	l.now.Reloads = make(map[plan.Reason]uint64)
	l.publish()
	return l
}

func defaultTo(d *time.Duration, otherwise time.Duration) {
	if *d <= 0 {
		*d = otherwise
	}
}

// Run reconciles until ctx ends; then it returns nil. What fails is told by Status and the log, and
// is tried again.
func (l *Loop) Run(ctx context.Context) error {
	defer l.endSearch()
	l.begin(ctx)
	l.debounce.change(time.Now())

	observe := time.NewTicker(l.cfg.ObservePeriod)
	defer observe.Stop()
	rebuild := time.NewTicker(rebuildPeriod)
	defer rebuild.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		l.beats.Add(1)
		timer.Reset(time.Until(l.due()))
		select {
		case <-ctx.Done():
			return nil
		case <-l.cfg.Source.Changed():
			l.debounce.change(time.Now())
		case <-l.resolved():
			l.debounce.change(time.Now())
		case <-l.judged():
			l.debounce.change(time.Now())
		case f := <-l.searched():
			l.conclude(f)
		case <-rebuild.C:
			l.debounce.change(time.Now())
		case <-l.cfg.Proxy.Changed():
			l.observe(ctx)
		case <-observe.C:
			l.observe(ctx)
		case <-timer.C:
			l.attempt(ctx)
		case answer := <-l.asked:
			answer <- l.moment()
		case r := <-l.changes:
			r.answer <- l.reconfigure(ctx, r.change)
		}
		l.publish()
	}
}

// Beats counts up while Run's goroutine is alive: at least once in Config.ObservePeriod, and between the steps of a
// pass. The longest step takes little more than a minute: a call to the control socket has that time, nginx -t half of it. It may be
// called from any goroutine.
func (l *Loop) Beats() uint64 { return l.beats.Load() }

func (l *Loop) resolved() <-chan struct{} {
	if l.cfg.Resolver == nil {
		return nil
	}
	return l.cfg.Resolver.Changed()
}

func (l *Loop) judged() <-chan struct{} {
	if l.cfg.Checker == nil {
		return nil
	}
	return l.cfg.Checker.Changed()
}

// due is when the next pass is: for a change, or for another try.
func (l *Loop) due() time.Time {
	const never = 24 * time.Hour
	t := time.Now().Add(never)
	for _, d := range []time.Time{l.debounce.due(), l.retry.due()} {
		if !d.IsZero() && d.Before(t) {
			t = d
		}
	}
	// Where another daemon pushes to the same proxy, nothing is due before the truce ends.
	if until := l.rival.until(); t.Before(until) {
		t = until
	}
	return t
}

// attempt runs a pass, unless it is not due yet (a timer may fire early after a change of plans).
func (l *Loop) attempt(ctx context.Context) {
	now := time.Now()
	if now.Before(l.due()) {
		return
	}
	_ = l.run(ctx, now) // told by Status and the log
}

// run runs a pass that begins now, and says when the next one is.
func (l *Loop) run(ctx context.Context, now time.Time) error {
	l.debounce.passed(now)
	l.retry.clear()
	err := l.pass(ctx)
	l.debounce.passed(time.Now())
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		l.retry.reset()
		if l.now.Err != nil {
			l.log.Info("recovered", "revision", l.applied.Revision)
		}
		l.now.Err = nil
		return nil
	}
	l.now.Failures++
	l.stale = true
	if errors.Is(err, errRival) {
		// It was told when it was met, and how long to hold back is the truce's business.
		l.retry.soon(time.Now(), time.Until(l.rival.until()))
		l.now.Err = err
		return err
	}
	wait := l.retry.fail(time.Now())
	repeated := l.now.Err != nil && l.now.Err.Error() == err.Error()
	if !repeated {
		l.log.Error("pass failed", "err", err, "retryIn", wait)
	}
	l.now.Err = err
	return err
}
