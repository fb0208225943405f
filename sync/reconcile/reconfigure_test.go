package reconcile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"headgate/gateway/build"
	"headgate/sync/nginxproc"
)

// other makes a builder with other connections, which stand in nginx.conf.
func (w *world) other(connections int) func(*Config) {
	return func(c *Config) {
		next := *w.builder
		next.settings.WorkerConnections = connections
		c.Builder, c.Settings = &next, next.settings
	}
}

// TestReconfigure: a changed configuration is in force when the call returns, with one reload where nginx must know of it and none
// where it need not.
func TestReconfigure(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		if err := w.loop.Reconfigure(t.Context(), w.other(1024)); err != nil {
			t.Fatal(err)
		}
		w.want("a", "reload")
		if !strings.Contains(string(w.loop.applied.Config.Text), "worker_connections 1024") {
			t.Error("nginx.conf is as before")
		}
		passes := 0
		err := w.loop.Reconfigure(t.Context(), func(c *Config) {
			c.Window, c.MaxDelay = 50*time.Millisecond, 80*time.Millisecond
			c.Applied = func(Pass) { passes++ }
		})
		if err != nil || passes != 1 {
			t.Errorf("%v after %d passes", err, passes)
		}
		w.want("a")
		w.follow("a b", "push")
		if passes != 2 || w.loop.debounce.window != 50*time.Millisecond || w.loop.debounce.maxDelay != 80*time.Millisecond {
			t.Errorf("%d passes, %+v", passes, w.loop.debounce)
		}
	})
}

// TestReconfigureRefused: what nginx does not take, or does not come up with, is taken back whole; so is what cannot be rendered.
func TestReconfigureRefused(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		before := string(w.loop.applied.Config.Text)

		w.change(func(n *fakeNginx) { n.refuse = map[string]string{"worker_connections 1024": "not today"} })
		err := w.loop.Reconfigure(t.Context(), w.other(1024))
		if conf := (*nginxproc.ConfError)(nil); !errors.As(err, &conf) || !strings.Contains(err.Error(), "not today") {
			t.Errorf("%v", err)
		}
		w.change(func(n *fakeNginx) { n.refuse, n.broken = nil, "worker_connections 2048" })
		err = w.loop.Reconfigure(t.Context(), w.other(2048))
		if load := (*nginxproc.ReloadError)(nil); !errors.As(err, &load) {
			t.Errorf("%v", err)
		}
		if err := w.loop.Reconfigure(t.Context(), func(c *Config) { c.Layout.PIDFile = "no;where" }); err == nil || errors.Is(err, ErrPending) {
			t.Errorf("%v", err)
		}
		w.change(func(n *fakeNginx) { n.events, n.broken = nil, "" })
		w.follow("a b", "push")
		if err := w.loop.Status().Err; err != nil || string(w.loop.applied.Config.Text) != before {
			t.Errorf("%v, and the configuration in force changed: %v", err, string(w.loop.applied.Config.Text) != before)
		}
	})
}

// TestReconfigurePending: with a proxy that is away the change is in force in the loop, and reaches the proxy when that is back.
func TestReconfigurePending(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.nginx.external = true
		w.start()
		w.source.set("a")
		w.settle()
		if err := w.loop.Reconfigure(t.Context(), w.other(1024)); !errors.Is(err, ErrPending) {
			t.Fatalf("%v", err)
		}
		if c := w.loop.cfg.Settings.WorkerConnections; c != 1024 {
			t.Errorf("%d connections in force", c)
		}
	})
}

// TestReconfigureBeforeTheSource: nothing is applied, and the first pass goes by the change.
func TestReconfigureBeforeTheSource(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.start()
		w.settle()
		if err := w.loop.Reconfigure(t.Context(), w.other(1024)); err != nil {
			t.Fatal(err)
		}
		w.source.set("a")
		w.settle()
		if !strings.Contains(string(w.loop.applied.Config.Text), "worker_connections 1024") {
			t.Error("the first configuration is not the changed one")
		}
	})
}

func TestReconfigureOfALoopThatDoesNotRun(t *testing.T) {
	afterItsEnd(t, func(ctx context.Context, w *world) {
		called := false
		err := w.loop.Reconfigure(ctx, func(*Config) { called = true })
		if !errors.Is(err, ErrBusy) || called {
			t.Errorf("%v, called %v", err, called)
		}
	})
}

var _ Builder = (*build.Builder)(nil) // what Renew makes can be handed in
