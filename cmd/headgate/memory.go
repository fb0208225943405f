package main

import (
	"context"
	"os"
	"runtime/debug"
)

// How much the heap may grow between two collections, in percent of what lives. GOGC says otherwise.
const (
	// whileLoading is for the first load, which leaves much behind: with 50,000 routes and as many endpoints the daemon
	// takes 50 MiB less at its peak than with whenLoaded, for a second of CPU.
	whileLoading = 25
	// whenLoaded is for a heap that changes little: a collection costs more than many changes.
	whenLoaded = 50
)

func growBy(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// settleMemory gives back what the first load took, once it is served. The collection takes its time: the loop goes on
// meanwhile.
func (d *daemon) settleMemory(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-d.loaded:
	}
	growBy(whenLoaded)
	debug.FreeOSMemory()
	return nil
}
