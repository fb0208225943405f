package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/cmd/loglevel"
	"headgate/sync/admin"
	"headgate/sync/reconcile"
)

// Compare implements admin.Reloader.
func (d *daemon) Compare() (admin.Reconfiguration, error) {
	next, err := d.load()
	if err != nil {
		return admin.Reconfiguration{}, err
	}
	return d.reconfiguration(next), nil
}

// reconfiguration sorts the keys that differ from those in force.
func (d *daemon) reconfiguration(next config.Config) admin.Reconfiguration {
	r := admin.Reconfiguration{File: d.file}
	for _, k := range d.inForce.Load().config.Changes(next) {
		switch k.Change {
		case config.ByReload:
			r.Reload = append(r.Reload, k.Name)
		case config.ByRestart:
			r.Restart = append(r.Restart, k.Name)
		case config.ByVIPRestart:
			r.RestartVIP = append(r.RestartVIP, k.Name)
		}
	}
	return r
}

// Reload implements admin.Reloader. The loop goes first: it is the only one that can refuse.
func (d *daemon) Reload(ctx context.Context) (admin.Reconfiguration, error) {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	next, err := d.load()
	if err != nil {
		d.log.Warn("the configuration is not reloaded", "err", err)
		return admin.Reconfiguration{}, err
	}
	r := d.reconfiguration(next)
	f := d.compose(d.inForce.Load().config.Reloaded(next))
	err = d.loop.Reconfigure(ctx, func(c *reconcile.Config) {
		old, ours := c.Builder.(*loopBuilder)
		if !ours {
			panic("the loop has a builder that nobody here gave it")
		}
		d.configure(c, f, old.renew(f.options))
	})
	switch {
	case errors.Is(err, reconcile.ErrPending):
		r.Pending = err.Error()
	case err != nil:
		d.log.Warn("the configuration is not reloaded", "err", err)
		return admin.Reconfiguration{}, fmt.Errorf("%s: %w", strings.Join(r.Reload, ", "), err)
	}
	d.takeEffect(f)
	d.keepAccepted()
	r.Done = true
	d.log.Info("configuration reloaded", "keys", r.Reload, "restart", r.Restart, "restartVip", r.RestartVIP)
	return r, nil
}

// takeEffect brings f to all others than the loop, which has taken it.
func (d *daemon) takeEffect(f *inForce) {
	d.inForce.Store(f)
	d.guard.SetLimits(assemble.LossGuard(f.config), time.Duration(f.config.LossGuard.MaxAge))
	if err := d.source.publish(f.config.Publish); err != nil { // config has parsed the addresses
		d.log.Error("publish.addresses are not changed", "err", err)
	}
	d.level.Set(loglevel.Of(f.config.Log.Level))
}
