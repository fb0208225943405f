package main

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"headgate/cmd/assemble"
	"headgate/gateway/build"
	"headgate/gateway/snapshot"
	"headgate/sync/luapush"
)

// loopBuilder is the loop's Builder. Before each build it looks up which addresses are the host's own and the
// API server's, tells the metrics how long the build took, and remembers what was built from for the status
// writer. It belongs to the loop's goroutine.
type loopBuilder struct {
	*build.Builder
	apiServers func() []netip.Addr
	observe    func(time.Duration)
	log        *slog.Logger
	built      *snapshot.Snapshot
}

// renew makes one that builds by other options and remembers the same.
func (b *loopBuilder) renew(o build.Options) *loopBuilder {
	next := *b
	next.Builder = b.Renew(o)
	return &next
}

// Build implements the loop's Builder.
func (b *loopBuilder) Build(s *snapshot.Snapshot, now time.Time) *build.Result {
	if own, err := assemble.OwnAddresses(); err != nil {
		b.log.Warn("addresses of this host not read: those known before are refused as upstreams", "err", err)
	} else {
		b.RefuseAddresses(own, b.apiServers())
	}
	b.built = s
	start := time.Now()
	defer func() { b.observe(time.Since(start)) }()
	return b.Builder.Build(s, now)
}

// timedControl tells the metrics how long each acknowledged push took.
type timedControl struct {
	*luapush.Client
	observe func(time.Duration)
}

// Push implements the loop's Control.
func (t timedControl) Push(ctx context.Context, p luapush.Push) (uint64, error) {
	start := time.Now()
	revision, err := t.Client.Push(ctx, p)
	if err == nil {
		t.observe(time.Since(start))
	}
	return revision, err
}
