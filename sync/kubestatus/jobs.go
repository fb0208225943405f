package kubestatus

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// batch bounds what is done between two looks at the newest desired state.
	batch = 50
	// parallel is how many requests are under way.
	parallel = 4

	callTimeout  = 10 * time.Second
	firstRetry   = 250 * time.Millisecond
	longestRetry = 2 * time.Minute
)

// job is one write. Its name stays the same while it is the same wish, so that failures can be counted.
type job struct {
	name string
	do   func(context.Context) error
	// denied says what is missing in the role, should the API server refuse.
	denied string
}

// tries counts the failures of jobs.
type tries struct {
	mu      sync.Mutex // guards what follows; jobs run in parallel
	failed  map[string]failure
	written map[string]string // by UID: the resourceVersion that a status write was based on
	told    map[string]bool   // refusals that were logged
}

type failure struct {
	times int
	next  time.Time
}

func newTries() *tries {
	return &tries{failed: map[string]failure{}, written: map[string]string{}, told: map[string]bool{}}
}

// due gives the jobs whose time has come, at most a batch, and when to look again.
func (t *tries) due(jobs []job, now time.Time) ([]job, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var due []job
	var next time.Time
	for _, j := range jobs {
		at := t.failed[j.name].next
		if !at.After(now) {
			if len(due) < batch {
				due = append(due, j)
				continue
			}
			at = now
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return due, next
}

// forget drops the failures of what is not wanted any more.
func (t *tries) forget(jobs []job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.failed) == 0 {
		return
	}
	wanted := make(map[string]bool, len(jobs))
	for _, j := range jobs {
		wanted[j.name] = true
	}
	for name := range t.failed {
		if !wanted[name] {
			delete(t.failed, name)
		}
	}
}

// fail notes a failure and gives the time of the next try.
func (t *tries) fail(name string, now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.failed[name]
	f.times++
	f.next = now.Add(min(firstRetry<<min(f.times-1, 20), longestRetry))
	t.failed[name] = f
	return f.times
}

func (t *tries) succeed(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.failed, name)
}

// tellOnce is true for the first of equal texts.
func (t *tries) tellOnce(text string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told[text] {
		return false
	}
	t.told[text] = true
	return true
}

// run does jobs, some at a time, and returns when all are done. When this host stops being the leader, the rest is left.
func (w *Writer) run(ctx context.Context, jobs []job, t *tries) {
	queue := make(chan job)
	var workers sync.WaitGroup
	for range min(parallel, len(jobs)) {
		workers.Go(func() {
			for j := range queue {
				w.do(ctx, j, t)
			}
		})
	}
	for _, j := range jobs {
		if _, mine := w.leader.state(); !mine || ctx.Err() != nil {
			break
		}
		queue <- j
	}
	close(queue)
	workers.Wait()
	if len(jobs) > 0 {
		// Failures have set times since; look again.
		w.signal()
	}
}

func (w *Writer) do(ctx context.Context, j job, t *tries) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := j.do(ctx)
	switch {
	case err == nil:
		t.succeed(j.name)
	case errors.Is(err, context.Canceled):
	case apierrors.IsForbidden(err):
		t.fail(j.name, time.Now())
		if t.tellOnce(j.denied) {
			w.log.Warn("the API server refuses a write", "advice", j.denied, "err", err)
		}
	case apierrors.IsConflict(err):
		// Somebody else was faster; the snapshot will show it in a moment.
		t.fail(j.name, time.Now())
	default:
		if times := t.fail(j.name, time.Now()); times == 3 {
			w.log.Warn("a write to the cluster does not succeed: trying on", "what", j.name, "err", err)
		}
	}
}
