// Package stages stops the parts of a process in order: what others work with outlives them.
package stages

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Go runs functions on g, each until ctx ends, and calls next when all of them have ended: next ends the context of the
// stage that is to stop then. An error of one of them ends the context of g.
func Go(ctx context.Context, g *errgroup.Group, next func(), runs ...func(context.Context) error) {
	var left sync.WaitGroup
	left.Add(len(runs))
	for _, run := range runs {
		g.Go(func() error {
			defer left.Done()
			return run(ctx)
		})
	}
	g.Go(func() error {
		left.Wait()
		next()
		return nil
	})
}
