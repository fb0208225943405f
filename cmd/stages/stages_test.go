package stages

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
)

// Each stage goes on until the one before has ended as a whole, whether it was told to or failed.
func TestOrder(t *testing.T) {
	failure := errors.New("failed")
	for _, c := range []struct {
		name string
		fail error
	}{{"told to stop", nil}, {"one fails", failure}} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			g, first := errgroup.WithContext(ctx)
			second, endSecond := context.WithCancel(context.WithoutCancel(ctx))
			defer endSecond()
			var mu sync.Mutex // guards ended
			var ended []string
			slow := make(chan struct{})
			part := func(name string, wait <-chan struct{}) func(context.Context) error {
				return func(ctx context.Context) error {
					<-ctx.Done()
					if wait != nil {
						<-wait
					}
					mu.Lock()
					defer mu.Unlock()
					ended = append(ended, name)
					return nil
				}
			}
			begin := make(chan struct{})
			Go(first, g, endSecond, part("quick", nil), part("slow", slow), func(ctx context.Context) error {
				select {
				case <-begin:
					return c.fail
				case <-ctx.Done():
					return nil
				}
			})
			Go(second, g, func() {}, part("last", nil))
			if c.fail == nil {
				cancel()
			} else {
				close(begin)
			}
			<-first.Done()
			if second.Err() != nil {
				t.Error("the second stage was stopped before the first had ended")
			}
			close(slow)
			if err := g.Wait(); !errors.Is(err, c.fail) {
				t.Errorf("%v, want %v", err, c.fail)
			}
			if len(ended) != 3 || slices.Index(ended, "last") != 2 {
				t.Errorf("ended in the order %q", ended)
			}
		})
	}
}
