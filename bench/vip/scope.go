package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
)

// scope is the testing.TB of the lab, which is written for tests: what would end a test ends the benchmark.
type scope struct {
	testing.TB                 // never called: all that the lab uses is below
	ctx        context.Context //nolint:containedctx // as testing.TB has it

	mu       sync.Mutex // guards cleanups
	cleanups []func()
}

// failure is what a scope is left with.
type failure struct{ text string }

// within runs f in a scope, and cleans up.
func within(ctx context.Context, f func(t testing.TB)) (err error) {
	s := &scope{ctx: ctx}
	defer func() {
		if r := recover(); r != nil {
			failed, ok := r.(failure)
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%s", failed.text)
		}
		s.clean()
	}()
	f(s)
	return nil
}

func (s *scope) clean() {
	for {
		s.mu.Lock()
		if len(s.cleanups) == 0 {
			s.mu.Unlock()
			return
		}
		last := s.cleanups[len(s.cleanups)-1]
		s.cleanups = s.cleanups[:len(s.cleanups)-1]
		s.mu.Unlock()
		last()
	}
}

// Helper implements testing.TB.
func (s *scope) Helper() {}

// Name implements testing.TB.
func (s *scope) Name() string { return "bench-vip" }

// Logf implements testing.TB: what led to a failure.
func (s *scope) Logf(format string, args ...any) { _, _ = fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Fatal implements testing.TB.
func (s *scope) Fatal(args ...any) { panic(failure{fmt.Sprint(args...)}) }

// Fatalf implements testing.TB.
func (s *scope) Fatalf(format string, args ...any) { panic(failure{fmt.Sprintf(format, args...)}) }

// Skip implements testing.TB: the benchmark cannot do without.
func (s *scope) Skip(args ...any) { s.Fatal(args...) }

// Cleanup implements testing.TB.
func (s *scope) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// Context implements testing.TB.
func (s *scope) Context() context.Context { return s.ctx }
