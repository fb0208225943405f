package script

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New[string, int]()
		s.Set("a", 1)
		ctx, cancel := context.WithCancel(t.Context())
		if got := s.Ask(ctx, "a") + 10*s.Ask(ctx, "unknown"); got != 1 {
			t.Errorf("answers %d", got)
		}
		s.Slow(time.Second)
		answered := make(chan int, 3)
		for range 2 {
			go func() { answered <- s.Ask(ctx, "a") }()
		}
		After(500 * time.Millisecond)
		if now, most := s.Running(); now != 2 || most != 2 {
			t.Errorf("%d run, at most %d did", now, most)
		}
		s.Set("a", 2) // what counts is what the table says at the end
		After(time.Second)
		if a, b := <-answered, <-answered; a != 2 || b != 2 {
			t.Errorf("slow answers %d, %d", a, b)
		}
		go func() { answered <- s.Ask(ctx, "a") }()
		synctest.Wait()
		before := time.Now()
		cancel()
		if <-answered; time.Since(before) != 0 {
			t.Error("the end of the context was waited for")
		}
		if now, most := s.Running(); now != 0 || most != 2 {
			t.Errorf("%d run, at most %d did", now, most)
		}
		want := []time.Duration{0, 0, 0, 1500 * time.Millisecond}
		if got := s.Times("a"); !slices.Equal(got, want) {
			t.Errorf("asked at %v, want %v", got, want)
		}
		if all := s.Asked(); len(all) != 2 || !slices.Equal(all["a"], want) || len(all["unknown"]) != 1 {
			t.Errorf("asked %v", all)
		}
	})
}

func TestWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		While(t, func(ctx context.Context) error {
			runs++
			<-ctx.Done()
			runs--
			return nil
		}, func() {
			synctest.Wait()
			if runs != 1 {
				t.Error("it does not run")
			}
		})
		if runs != 0 {
			t.Error("it still runs")
		}
	})
}
