package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// How much the heap may grow between two collections, in percent of what lives. GOGC says otherwise.
const (
	// whileLoading is for the first load, which leaves much behind: with 50,000 routes and as many endpoints the daemon
	// takes 50 MiB less at its peak than with whenLoaded, for a second of CPU.
	whileLoading = 25
	// whenLoaded is for a heap that changes little: a collection costs more than many changes.
	whenLoaded = 50
)

const (
	// spareBytes is what the heap of a small site may grow by, whatever lives: with 1,000 routes and 20 changes a second
	// it would be collected every 0.4 s, for a fifth of all CPU time, on all cores at once.
	spareBytes = 32 << 20
	// smallestHeap is what Go's own limits are for (4 MiB at 100 percent): below, the percentage says nothing.
	smallestHeap = 4 << 20
	// growthPeriod is short against the time in which a site grows: a burst meets the percentage of a smaller one.
	growthPeriod = time.Second
)

func growBy(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// growth is the percentage for a loaded daemon in whose heap so many bytes lived at the last collection.
func growth(live uint64) int {
	return max(whenLoaded, int(100*spareBytes/max(live, smallestHeap))) //nolint:gosec // 800 at most
}

// settleMemory gives back what the first load took, once it is served, and has the heap grow by what suits its size from then
// on. The collection takes its time: the loop goes on meanwhile.
func (d *daemon) settleMemory(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-d.loaded:
	}
	growBy(whenLoaded)
	debug.FreeOSMemory()
	tick := time.NewTicker(growthPeriod)
	defer tick.Stop()
	for percent := whenLoaded; ; {
		if now := growth(liveBytes()); differs(now, percent) {
			percent = now
			growBy(percent)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// differs tells whether it is worth to stop the world for another percentage.
func differs(now, before int) bool {
	const enough = 10 // percent of the one before
	return 100*max(now-before, before-now) > enough*before
}

// liveBytes is what the last collection left in the heap.
func liveBytes() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
