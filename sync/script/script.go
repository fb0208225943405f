// Package script plays the world in the tests of rooms that ask it many things at once, each again and again: what is
// answered is a table that the test edits, and when each thing was asked is remembered. It is for a fake clock
// (testing/synctest), and for tests alone.
package script

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Script answers questions of a kind K with an A; what is not in the table with the zero one. Its methods may be called by
// any goroutine.
type Script[K comparable, A any] struct {
	start time.Time

	mu      sync.Mutex // guards what follows
	answers map[K]A
	asked   map[K][]time.Duration
	took    time.Duration
	running int
	most    int
}

// New makes an empty one, whose time begins now.
func New[K comparable, A any]() *Script[K, A] {
	return &Script[K, A]{start: time.Now(), answers: map[K]A{}, asked: map[K][]time.Duration{}}
}

// Set makes the answer to key another one.
func (s *Script[K, A]) Set(key K, a A) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[key] = a
}

// Slow makes each answer take so long; 0, as at first: no time.
func (s *Script[K, A]) Slow(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = took
}

// Ask is what the room calls. The answer comes at once when ctx ends.
func (s *Script[K, A]) Ask(ctx context.Context, key K) A {
	took := s.begin(key)
	if took > 0 {
		timer := time.NewTimer(took)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	return s.answers[key]
}

func (s *Script[K, A]) begin(key K) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[key] = append(s.asked[key], time.Since(s.start))
	s.running++
	s.most = max(s.most, s.running)
	return s.took
}

// Times is when key was asked, since New.
func (s *Script[K, A]) Times(key K) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked[key])
}

// Asked is Times of all that was asked.
func (s *Script[K, A]) Asked() map[K][]time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.asked)
	for key, times := range all {
		all[key] = slices.Clone(times)
	}
	return all
}

// Running is how many answers are under way, and the most that were at one time.
func (s *Script[K, A]) Running() (now, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running, s.most
}

// While runs run, which must end with ctx and return nil, as long as test takes. It is for a bubble.
func While(t *testing.T, run func(ctx context.Context) error, test func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1) // so that run ends although the test has failed
	go func() { ended <- run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	test()
}

// After lets so much time of a bubble pass, and what is due in it be done.
func After(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
