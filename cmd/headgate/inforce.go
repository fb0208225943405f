package main

import (
	"time"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/gateway/build"
	"headgate/gateway/nginxconf"
	"headgate/sync/kubestatus"
	"headgate/sync/reconcile"
)

// inForce is a configuration and what the loop builds and renders by it. It is never changed once it is made.
type inForce struct {
	config  config.Config
	options build.Options
	layout  nginxconf.Layout
}

// compose translates a configuration, and tells what is odd about it.
func (d *daemon) compose(c config.Config) *inForce {
	machine := d.machine
	machine.OpenFiles = assemble.OpenFiles(c)
	f := &inForce{config: c, options: assemble.Build(c), layout: assemble.Layout(c, d.paths, machine)}
	f.layout.Private = d.private
	if c.UseForwardedHeaders && len(c.TrustedProxies) == 0 {
		d.log.Warn("useForwardedHeaders is on and trustedProxies is empty: nobody's X-Forwarded-* headers are believed")
	}
	return f
}

// configure has the loop work with f and its builder.
func (d *daemon) configure(c *reconcile.Config, f *inForce, builder *loopBuilder) {
	c.Builder, c.Layout, c.Settings, c.Listeners = builder, f.layout, f.options.Settings, f.options.Listeners
	c.Window, c.MaxDelay = time.Duration(f.config.Reconcile.Window), time.Duration(f.config.Reconcile.MaxDelay)
	c.Applied = func(p reconcile.Pass) {
		select {
		case d.loaded <- struct{}{}:
		default:
		}
		d.problems.Observe(p.Result.Problems)
		d.lastGood.Keep(builder.LastGood())
		d.explain.built.Store(builder.built)
		d.source.tell(kubestatus.Desired{Snapshot: builder.built, Served: p.Result.Served, Problems: p.Result.Problems})
	}
}
