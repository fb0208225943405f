package reconcile

import (
	"strings"
	"testing"
	"time"
)

// What the proxy's unit starts with is what the daemon applied last, byte for byte.
func TestLastApplied(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		none, ok, err := LastApplied(w.cfg)
		if err != nil || ok {
			t.Errorf("before anything was applied: %v, %v", ok, err)
		}
		if strings.Contains(string(none.Text), "listen 0.0.0.0") || !strings.Contains(string(none.Text), "/run/h/c.sock") {
			t.Errorf("without listeners, with the control socket:\n%s", none.Text)
		}
		w.start()
		w.source.set("a", "tls-1", "big-16m")
		w.settle()
		last, ok, err := LastApplied(w.cfg)
		if err != nil || !ok {
			t.Fatalf("%v, %v", ok, err)
		}
		if last.Generation != w.nginx.generation {
			t.Errorf("generation %s, nginx runs %s", last.Generation, w.nginx.generation)
		}
		if len(last.Files) == 0 {
			t.Error("the certificates that it names are not among its files")
		}
	})
}

// The watchdog lives on this: the loop counts while it lives, and also with nothing to do.
func TestBeats(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.start()
		w.settle()
		before := w.loop.Beats()
		w.wait(2 * time.Second) // it looks at the proxy once a second
		if w.loop.Beats() == before {
			t.Error("a quiet loop counts no beats")
		}
		w.stop()
		ended := w.loop.Beats()
		w.wait(2 * time.Second)
		if w.loop.Beats() != ended {
			t.Error("a loop that has ended counts on")
		}
	})
}
