package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/gateway/luastate"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/plan"
	"headgate/gateway/snapshot"
	"headgate/sync/luapush"
	"headgate/sync/nginxproc"
)

func scenario(t *testing.T, f func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer func() {
			if w.stop != nil {
				w.stop()
			}
		}()
		f(t, w)
	})
}

// afterItsEnd asks a loop that does not run any more, for a second.
func afterItsEnd(t *testing.T, ask func(context.Context, *world)) {
	t.Helper()
	scenario(t, func(t *testing.T, w *world) {
		w.start()
		w.settle()
		w.stop()
		w.stop = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ask(ctx, w)
	})
}

func TestFirstStartThenPushesOnly(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.start()
		w.settle()
		w.want("") // half a cluster is never served: no proxy before the source is complete
		if s := w.loop.Status(); s.Synced || s.Ready {
			t.Errorf("status %+v", s)
		}
		w.follow("a", "reload", "push")
		w.follow("a b c*9", "push")
		w.follow("c*9", "push")
		w.follow("c*9") // a change that changes nothing
		s := w.loop.Status()
		if !s.Ready || s.Applied != 3 || s.Desired != 3 || s.Pushes != 3 || s.ReloadCount != 1 || s.Passes != 4 || s.Err != nil {
			t.Errorf("status %+v", s)
		}
		if d := cmp.Diff(map[plan.Reason]uint64{plan.FirstStart: 1}, s.Reloads); d != "" {
			t.Error(d)
		}
		last := w.passes[len(w.passes)-1]
		if len(w.passes) != 4 || last.Changed || last.Revision != 3 || last.Result == nil {
			t.Errorf("%d passes, last %+v", len(w.passes), last)
		}
		for hash := range w.nginx.dict.bodies {
			if !slices.Contains(slices.Collect(maps.Values(w.nginx.dict.pointers)), hash) {
				t.Errorf("body %s is left over", hash)
			}
		}
	})
}

func TestReloadsHaveTheirReason(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		w.follow("a big-16m", "reload", "push")
		w.follow("a big-16m-2", "push") // the same profile
		w.follow("a", "push")           // a profile that is no longer used is no reason
		w.follow("a big-16m", "push")   // and it is still there
		s := w.loop.Status()
		if d := cmp.Diff(map[plan.Reason]uint64{plan.FirstStart: 1, plan.NewProfile: 1}, s.Reloads); d != "" {
			t.Error(d)
		}
		if !slices.Equal(s.LastReload.Reasons, []plan.Reason{plan.NewProfile}) || s.LastReload.Err != nil {
			t.Errorf("last reload %+v", s.LastReload)
		}
	})
}

// The daemon restarts over a proxy that serves: nothing happens until there is something to do, and
// before its sources are complete nothing at all.
func TestDaemonRestarts(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a big-16m")
		w.stop()

		w.daemon("next")
		w.start()
		w.settle()
		w.want("a big-16m")
		if s := w.loop.Status(); s.Synced || s.Ready || !s.LastKnownGood {
			t.Errorf("status %+v", s)
		}
		w.follow("a big-16m")
		if s := w.loop.Status(); !s.Ready || s.LastKnownGood || s.Applied != 1 {
			t.Errorf("status %+v", s)
		}
		w.follow("a b big-16m", "push")
		if got := w.loop.Status().Applied; got != 2 {
			t.Errorf("revision %d", got)
		}
	})
}

// The host boots while the cluster is away: the state log alone makes a serving proxy, with the
// profiles that its routes need.
func TestBootFromTheStateLog(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a big-16m")
		w.stop()
		w.change(func(n *fakeNginx) { n.running, n.onDisk = false, "" }) // /run is empty after a boot

		w.daemon("next")
		w.start()
		w.settle()
		w.want("a big-16m", "reload")
		if s := w.loop.Status(); !s.LastKnownGood || s.Ready {
			t.Errorf("status %+v", s)
		}
		w.follow("a big-16m") // profile, listeners and settings are there already
	})
}

func TestProxyDies(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		w.nginx.kill()
		w.settle()
		w.want("a") // resumed with the file on disk, loaded from the log: nothing to push
		if s := w.loop.Status(); !s.Ready || s.Err != nil || s.Failures != 0 {
			t.Errorf("status %+v", s)
		}

		// Without its log it comes back empty.
		w.change(func(n *fakeNginx) { n.logPath = "/nowhere" })
		w.nginx.kill()
		w.settle()
		w.want("a", "push")
	})
}

func TestStateLogLost(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.start()
		w.source.set("a", "cert-1")
		w.settle()
		w.stop()
		if err := os.Remove(w.nginx.logPath); err != nil {
			t.Fatal(err)
		}
		w.daemon("next")
		w.serve("a cert-1")
		if w.log.Revision() != 1 {
			t.Errorf("the log was not made whole: revision %d", w.log.Revision())
		}
		w.nginx.kill()
		w.settle()
		w.want("a cert-1")
	})
}

// A Secret whose newest version is broken: the certificate stays, also when the proxy lost its dict
// and only the log has it.
func TestKeep(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("cert-1")
		before := w.nginx.dict.pointers["cert/ns/keep-1"]
		if before == "" {
			t.Fatal("no certificate")
		}
		w.source.set("keep-1", "keep-2")
		w.settle()
		if got := w.nginx.dict.pointers["cert/ns/keep-1"]; got != before {
			t.Errorf("certificate %q, was %q", got, before)
		}
		if _, ok := w.nginx.dict.pointers["cert/ns/keep-2"]; ok {
			t.Error("a certificate that never was is there")
		}
		w.change(func(n *fakeNginx) { n.logPath = "/nowhere" }) // the proxy cannot read the log, the daemon can
		w.nginx.kill()
		w.settle()
		if got := w.nginx.dict.pointers["cert/ns/keep-1"]; got != before {
			t.Errorf("after the loss of the dict: certificate %q, was %q", got, before)
		}
	})
}

func TestRegexes(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.start()
		w.source.set("regex-a", "regex(b")
		w.settle()
		// The proxy is started first, then asked, and what does not compile costs itself only.
		w.want("regex(b regex-a", "reload", "push")
		if d := cmp.Diff(map[string]string{"regex-a": "", "regex(b": "missing )"}, w.builder.verdicts); d != "" {
			t.Error(d)
		}
		var up, down *model.Route
		for _, h := range w.loop.Status().Result.Model.Hosts {
			if h.Name == "regex-a" {
				up = h.Routes[0]
			} else {
				down = h.Routes[0]
			}
		}
		if up.Unavailable != "" || down.Unavailable != "missing )" {
			t.Errorf("%q, %q", up.Unavailable, down.Unavailable)
		}
	})
}

// nginx -t does not accept two of the profiles: they are found and left out, everybody else is
// served, and the builder knows why.
func TestRejectedProfiles(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		bad16, badBuffered := nginxconf.ProfileName(special(model.Body16M, false)), nginxconf.ProfileName(special("", true))
		w.change(func(n *fakeNginx) {
			n.refuse = map[string]string{"@" + bad16: "invalid size", "@" + badBuffered: "no buffering today"}
		})
		w.serve("a big-16m big-256m buffered")
		if d := cmp.Diff(map[string]string{bad16: "invalid size", badBuffered: "no buffering today"}, w.builder.refusals()); d != "" {
			t.Error(d)
		}
		w.healthy()
	})
}

// nginx accepts no configuration at all: the last good one stays, and pushes that need no reload go on.
func TestNothingAccepted(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		w.change(func(n *fakeNginx) { n.refuse = map[string]string{"http {": "bind() failed"} })
		w.follow("b big-16m", "push", "push") // the second one when it is clear that nothing can be left out
		if len(w.builder.refusals()) != 0 {
			t.Errorf("rejected %v", w.builder.refusals())
		}
		var refused *nginxproc.ConfError
		if s := w.loop.Status(); !errors.As(s.Err, &refused) || s.Ready || s.LastReload.Err == nil {
			t.Errorf("status %+v", s)
		}
		w.change(func(n *fakeNginx) { n.refuse = nil })
		w.wait(time.Minute)
		w.want("b big-16m", "reload")
		w.healthy()
	})
}

// A configuration that passes nginx -t and does not come up is not tried every time somebody asks.
func TestReloadDoesNotComeUp(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		w.change(func(n *fakeNginx) { n.broken = "@" + nginxconf.ProfileName(special(model.Body16M, false)) })
		w.follow("a big-16m", "failed reload", "push")
		for i := range 20 {
			w.source.set("a", "big-16m", fmt.Sprint("n", i))
			w.wait(30 * time.Millisecond)
		}
		got := 0
		for _, e := range w.nginx.events {
			if e == "failed reload" {
				got++
			}
		}
		if got > 1 {
			t.Errorf("%d tries within a second", got)
		}
		w.change(func(n *fakeNginx) { n.events, n.broken = nil, "" })
		w.wait(10 * time.Second)
		w.want("a big-16m n19", "reload")
	})
}

func TestMemory(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		// Computed: too large for the dict, so it grows before the push.
		w.follow("a b*900000", "reload", "push")
		s := w.loop.Status()
		if d := cmp.Diff(map[plan.Reason]uint64{plan.FirstStart: 1, plan.Resize: 1}, s.Reloads); d != "" {
			t.Error(d)
		}
		if w.nginx.capacity != 2<<20 {
			t.Errorf("%d bytes", w.nginx.capacity)
		}
		// Observed: the proxy says that it is full, whatever was computed. The log has the push, and
		// the larger dict is loaded from it.
		w.change(func(n *fakeNginx) { n.noMemory = true })
		w.follow("a*1 b*900000", "reload")
		if s := w.loop.Status(); w.nginx.capacity != 4<<20 || s.Err != nil || s.Applied != 3 {
			t.Errorf("%d bytes, status %+v", w.nginx.capacity, s)
		}
		// Where that does not help, growth ends where the size cannot be the reason any more.
		w.change(func(n *fakeNginx) { n.logPath = "/nowhere" })
		w.source.set("a*2", "b*900000")
		w.wait(10 * time.Minute)
		s = w.loop.Status()
		if s.Reloads[plan.Resize] > 6 || w.nginx.capacity > 32<<20 || !errors.Is(s.Err, luapush.ErrMemory) {
			t.Errorf("%d bytes, status %+v", w.nginx.capacity, s)
		}
		w.change(func(n *fakeNginx) { n.noMemory = false })
		w.wait(11 * time.Second)
		w.healthy()
	})
}

func TestTooLargeObjectCostsItself(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.start()
		w.source.set("a", fmt.Sprintf("b*%d", luastate.MaxValueBytes))
		w.settle()
		w.want("a", "reload", "push")
		if s := w.loop.Status(); !slices.Equal(s.TooLarge, []string{"host/b"}) {
			t.Errorf("too large: %v", s.TooLarge)
		}
	})
}

func TestLuaUpgrade(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		w.stop()
		w.daemon("next")
		w.cfg.Layout.LuaDir, w.cfg.Layout.LuaBuild = "/run/h/lua/build2", "build2"
		w.serve("a b")
		if s := w.loop.Status(); s.Reloads[plan.LuaVersion] != 1 || s.ReloadCount != 1 {
			t.Errorf("reloads %v", s.Reloads)
		}
	})
}

// Around a reload, workers of the load before answer for a moment, with the Lua files of before.
func TestLateAnswersAfterReload(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		w.stop()
		w.daemon("next")
		w.cfg.Layout.LuaDir, w.cfg.Layout.LuaBuild = "/run/h/lua/build2", "build2"
		w.start()
		w.change(func(n *fakeNginx) { n.before, n.late = luapush.State{}, 10 })
		w.source.set("a", "b", "regex-a")
		w.wait(time.Second)
		w.want("a b regex-a", "reload", "push")
		if s := w.loop.Status(); s.ReloadCount != 1 || s.Reloads[plan.LuaVersion] != 1 || s.Failures != 0 || s.Err != nil || !s.Ready {
			t.Errorf("status %+v", s)
		}
	})
}

// What needs a profile that is new is pushed when the workers that lack it take no more connections; what needs a reload for
// another reason does not wait, and nobody waits for ever.
func TestWorkersOfTheLoadBefore(t *testing.T) {
	for _, c := range []struct {
		hosts   string
		answers int           // that tell of a worker that stays
		wait    time.Duration // what is waited for it
	}{
		{"a big-16m", 20, 200 * time.Millisecond},
		{"a tls-1", 20, 200 * time.Millisecond},
		{"a big-16m", 1000000, leaveTimeout},
		{"a cert-x*2000000", 1000000, 0}, // a larger dict
	} {
		scenario(t, func(t *testing.T, w *world) {
			w.serve("a")
			w.change(func(n *fakeNginx) { n.staying = c.answers })
			changed := time.Now()
			w.source.set(strings.Fields(c.hosts)...)
			w.wait(3 * time.Second)
			if n := len(w.nginx.pushes); n != 2 {
				t.Fatalf("%s: %d pushes", c.hosts, n)
			}
			if took := w.nginx.pushes[1].Sub(changed); took < c.wait-settlePeriod || took > c.wait+100*time.Millisecond {
				t.Errorf("%s: pushed after %v, want %v", c.hosts, took, c.wait)
			}
			w.healthy()
		})
	}
}

// The sockets of a proxy that somebody else keeps were removed: no reload helps, and the word for it
// is said until somebody restarts it.
func TestSocketGone(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.change(func(n *fakeNginx) { n.external = true })
		w.start()
		w.source.set("a")
		w.settle()
		w.change(func(n *fakeNginx) {
			n.capacity = 1 << 20
			n.boot(n.onDisk)
		})
		w.wait(15 * time.Second)
		w.want("a", "push")
		w.change(func(n *fakeNginx) { n.deaf, n.gone = true, true })
		w.wait(1100 * time.Millisecond)
		if s := w.loop.Status(); s.Ready || !errors.Is(s.Err, nginxproc.ErrSocketGone) || !errors.Is(s.ProxyErr, nginxproc.ErrSocketGone) || strings.Contains(s.Err.Error(), "does not answer") {
			t.Errorf("status %+v", s)
		}
		w.source.set("a", "b")
		w.wait(time.Minute)
		w.want("a")
		w.change(func(n *fakeNginx) {
			n.deaf, n.gone = false, false
			n.boot(n.onDisk)
		})
		w.wait(11 * time.Second)
		w.want("a b", "push")
		w.healthy()
	})
}

// A proxy that does not answer is not ready, from the moment on when that is seen.
func TestNotReadyWhileUnreachable(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		w.change(func(n *fakeNginx) { n.deaf, n.broken = true, "http" })
		w.wait(1100 * time.Millisecond)
		if s := w.loop.Status(); s.Ready || s.ProxyErr == nil {
			t.Errorf("status %+v", s)
		}
		w.change(func(n *fakeNginx) { n.deaf, n.broken = false, "" })
		w.wait(11 * time.Second)
		w.healthy()
	})
}

// What the dict has grown to stays while its proxy lives; a new one is as large as configured, unless
// its state needs more.
func TestMemoryAtColdStart(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a b*900000")
		w.follow("a", "push")
		restart := func(want int64) {
			t.Helper()
			w.daemon("next")
			w.start()
			w.settle()
			w.nginx.events = nil
			if got := w.nginx.capacity; got != want {
				t.Errorf("%d bytes, want %d", got, want)
			}
		}
		w.stop()
		restart(2 << 20) // it lives
		w.follow("a")
		w.stop()
		w.change(func(n *fakeNginx) { n.running = false })
		restart(1 << 20)
		w.follow("a")
		w.follow("a b*900000", "reload", "push")
		w.stop()
		w.change(func(n *fakeNginx) { n.running = false })
		restart(2 << 20) // the log says that it is needed
	})
}

func TestLostAcknowledgement(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		w.change(func(n *fakeNginx) { n.loseAcks = 1 })
		w.source.set("a", "b")
		w.wait(time.Second)
		w.want("a b", "push") // seen to be there: not pushed again
		if s := w.loop.Status(); s.Applied != 2 || s.Err != nil || s.Failures != 1 || s.Rival != "" {
			t.Errorf("status %+v", s)
		}
	})
}

func TestExternalProxyComesLater(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.change(func(n *fakeNginx) { n.external = true })
		w.start()
		w.source.set("a")
		w.settle()
		w.want("")
		if s := w.loop.Status(); !errors.Is(s.Err, nginxproc.ErrNotRunning) || s.ProxyErr == nil {
			t.Errorf("status %+v", s)
		}
		w.change(func(n *fakeNginx) {
			n.capacity = 1 << 20
			n.boot(n.onDisk)
		})
		w.wait(15 * time.Second)
		w.want("a", "push") // it was started with the file that lay ready
		w.healthy()
	})
}

// Two daemons on one proxy: the one that finds the other's push steps back and says so; nobody fights.
func TestTwoDaemons(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		other := session{w.nginx, "other"}
		push := func() {
			s, err := other.State(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			d := plan.Delta{Delete: []string{"host/a"}}
			if _, err := other.Push(t.Context(), luapush.Push{Base: s.Revision, Revision: s.Revision + 1, Records: d.Records(s.Revision + 1)}); err != nil {
				t.Fatal(err)
			}
		}
		push()
		w.change(func(n *fakeNginx) { n.events = nil })
		w.wait(1100 * time.Millisecond) // the next look
		if got := w.loop.Status().Rival; got != "other" {
			t.Errorf("rival %q", got)
		}
		w.want("")
		w.source.set("a", "b")
		w.settle()
		w.want("") // not even for a change
		w.wait(2 * time.Second)
		w.want("a b", "push") // the other one was quiet for the truce
		if got := w.loop.Status(); got.Rival != "" || got.Err != nil {
			t.Errorf("rival %q, %v", got.Rival, got.Err)
		}
		// One that goes on is left alone for longer and longer.
		count := 0
		for range 600 {
			push()
			w.change(func(n *fakeNginx) { n.events = nil })
			w.wait(3 * time.Second)
			count += len(w.nginx.events)
		}
		if count > 8 {
			t.Errorf("%d pushes in half an hour against a living rival", count)
		}
	})
}

func TestBusy(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		w.change(func(n *fakeNginx) { n.busy = "other" })
		w.source.set("b")
		w.settle()
		if s := w.loop.Status(); s.Rival != "other" || !errors.Is(s.Err, luapush.ErrBusy) {
			t.Errorf("status %+v", s)
		}
		// However long it took, its lock's end is noticed within a second.
		w.wait(10 * time.Second)
		w.change(func(n *fakeNginx) { n.busy = "" })
		w.wait(1100 * time.Millisecond)
		w.want("b", "push")
	})
}

// The first change at once, a burst as few passes: 20 ms of quiet, at most 100 ms behind.
func TestDebounce(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		w.change(func(n *fakeNginx) { n.pushes = nil })
		start := time.Now()
		for i := range 60 {
			w.source.set("a", fmt.Sprint("n", i))
			w.wait(7 * time.Millisecond)
		}
		w.settle()
		var at []string
		for _, p := range w.nginx.pushes {
			at = append(at, p.Sub(start).String())
		}
		// At 0 the first change; the second comes 7 ms later and waits its 100 ms; and so on.
		want := []string{"0s", "107ms", "212ms", "317ms", "422ms"}
		if d := cmp.Diff(want, at); d != "" {
			t.Error(d)
		}
		w.change(func(n *fakeNginx) { n.pushes = nil })
		start = time.Now()
		w.source.set("a", "x")
		w.wait(time.Millisecond)
		w.source.set("a", "y")
		w.settle()
		if len(w.nginx.pushes) != 2 || w.nginx.pushes[0] != start || w.nginx.pushes[1].Sub(start) != 21*time.Millisecond {
			t.Errorf("pushes %v after %v", w.nginx.pushes, start)
		}
	})
}

func TestBackOff(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		w.change(func(n *fakeNginx) { n.deaf = true })
		w.wait(time.Minute)
		s := w.loop.Status()
		if s.Failures < 5 || s.Failures > 20 {
			t.Errorf("%d failures in a minute", s.Failures)
		}
		w.change(func(n *fakeNginx) { n.deaf = false })
		w.wait(11 * time.Second)
		w.healthy()
	})
}

type fakeResolver struct {
	changed chan struct{}
	mu      sync.Mutex
	wanted  []string
	known   []*snapshot.Resolution
}

func (r *fakeResolver) Changed() <-chan struct{} { return r.changed }

func (r *fakeResolver) Want(names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted = names
}

func (r *fakeResolver) Resolutions() []*snapshot.Resolution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known
}

// The first pass waits for names that nobody asked yet: without their answers it would take away
// what the proxy has. Not for ever.
func TestFirstPassWaitsForNames(t *testing.T) {
	for name, answer := range map[string]bool{"answered": true, "never answered": false} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *world) {
				r := &fakeResolver{changed: make(chan struct{}, 1)}
				w.cfg.Resolver, w.builder.names = r, []string{"db.example"}
				w.start()
				w.source.set("a")
				w.wait(time.Second)
				w.want("")
				r.mu.Lock()
				if !slices.Equal(r.wanted, w.builder.names) {
					t.Errorf("wanted %v", r.wanted)
				}
				if answer {
					r.known = []*snapshot.Resolution{{Name: "db.example", Err: "no such name"}}
				}
				r.mu.Unlock()
				if answer {
					r.changed <- struct{}{}
					w.settle()
				} else {
					w.wait(resolvePatience)
				}
				w.want("a", "reload", "push")
			})
		})
	}
}

// No secret in what the daemon remembers or logs.
func TestMemoryFileHoldsNoSecret(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.start()
		w.source.set("cert-1", "big-16m")
		w.settle()
		b, err := os.ReadFile(w.cfg.MemoryFile)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "chain") || strings.Contains(string(b), "cert-1") {
			t.Errorf("%s", b)
		}
		if m, err := readMemory(w.cfg.MemoryFile); err != nil || m.Generation != w.nginx.generation || len(m.ProfileList) != 1 {
			t.Errorf("%+v, %v", m, err)
		}
		if err := os.WriteFile(w.cfg.MemoryFile, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readMemory(w.cfg.MemoryFile); err == nil || !strings.Contains(err.Error(), w.cfg.MemoryFile) {
			t.Error(err)
		}
	})
}

func TestDebouncer(t *testing.T) {
	t0 := time.Unix(1000, 0)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	d := debouncer{window: 20 * time.Millisecond, maxDelay: 100 * time.Millisecond}
	if !d.due().IsZero() {
		t.Error("due without a change")
	}
	d.change(at(0))
	if d.due() != at(0) {
		t.Error("the first change is not at once")
	}
	d.passed(at(3))
	d.change(at(5))
	if d.due() != at(25) {
		t.Errorf("due %v", d.due().Sub(t0))
	}
	for ms := 10; ms <= 200; ms += 5 {
		d.change(at(ms))
	}
	if d.due() != at(105) {
		t.Errorf("due %v, at most 100 ms behind", d.due().Sub(t0))
	}
	d.passed(at(106))
	d.change(at(126))
	if d.due() != at(126) {
		t.Error("a change after the window is not at once")
	}
}
