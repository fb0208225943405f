package reconcile

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headgate/gateway/luastate"
)

// TestMoment: what is told is what the proxy has, and belongs to whoever asked.
func TestMoment(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a b")
		m, err := w.loop.Moment(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(w.nginx.dict.pointers, m.Applied.Pointers); d != "" {
			t.Errorf("pointers (-proxy +told):\n%s", d)
		}
		if !m.Applied.Known || m.Applied.Revision != 1 || m.Applied.Config.Text != nil || m.Applied.Config.Generation == "" {
			t.Errorf("applied %+v", m.Applied)
		}
		told := map[string]string{}
		for _, o := range m.State.Objects {
			told[o.Pointer] = luastate.Hash(o.Body)
		}
		if d := cmp.Diff(m.Applied.Pointers, told); d != "" {
			t.Errorf("objects (-pointers +bodies):\n%s", d)
		}
		maps.DeleteFunc(m.Applied.Pointers, func(string, string) bool { return true })
		w.follow("a b c", "push")
	})
}

func TestMomentOfALoopThatDoesNotRun(t *testing.T) {
	afterItsEnd(t, func(ctx context.Context, w *world) {
		if _, err := w.loop.Moment(ctx); !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}
