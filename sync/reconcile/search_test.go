package reconcile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/plan"
	"headgate/sync/nginxproc"
)

// body is what the proxy holds under a pointer.
func (w *world) body(pointer string) string {
	w.nginx.mu.Lock()
	defer w.nginx.mu.Unlock()
	return w.nginx.dict.bodies[w.nginx.dict.pointers[pointer]]
}

// searching is a world that serves a and b, when b asks for a profile that nginx refuses and for another Service, and c
// comes with a good one. Each run of nginx -t takes a second.
func searching(w *world) (refused string) {
	w.builder.upstreams = map[string]string{"a": "one", "b": "two"}
	w.serve("a*1 b*1")
	bad := special(model.Body16M, false)
	refused = nginxconf.ProfileName(bad)
	w.change(func(n *fakeNginx) { n.slow, n.refuse = time.Second, map[string]string{"@" + refused: "invalid size"} })
	w.builder.profiles = map[string]model.Profile{"b": bad, "c": special("", true)}
	w.builder.upstreams = map[string]string{"a": "one", "b": "other", "c": "one"}
	return refused
}

// While nginx -t is run to find who is at fault, endpoints change at once. Hosts that need what nginx.conf lacks stay as they
// were, with all that they refer to.
func TestPushesGoOnWhileProfilesAreSearched(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		bad := searching(w)
		before := w.body("host/b")
		w.follow("a*2 b*1", "push")
		for n := 3; n < 6; n++ {
			w.source.set(fmt.Sprint("a*", n), "b*1", fmt.Sprint("c*", n))
			w.settle()
			w.want("a b", "push")
			if got := w.body("upstream/ns/one/80"); !strings.Contains(got, fmt.Sprintf("10.0.0.%d:80", n)) {
				t.Errorf("peers of a: %s", got)
			}
			w.healthy()
		}
		if got := w.body("host/b"); got != before || !strings.Contains(w.body("upstream/ns/two/80"), "10.0.0.1:80") {
			t.Errorf("b is %s, was %s; its peers: %s", got, before, w.body("upstream/ns/two/80"))
		}
		if len(w.builder.refusals()) != 0 {
			t.Errorf("rejected before the end: %v", w.builder.refusals())
		}
		w.wait(10 * time.Second)
		// The search ends with a verdict on b; c's profile came later and is good.
		w.want("a b c", "reload", "push")
		if d := cmp.Diff(map[string]string{bad: "invalid size"}, w.builder.refusals()); d != "" {
			t.Error(d)
		}
		if err := w.loop.Status().LastReload.Err; err != nil {
			t.Errorf("the last reload: %v", err)
		}
		if w.body("upstream/ns/two/80") != "" || w.body("host/b") == before {
			t.Error("the former version of b is still there")
		}
		w.healthy()
	})
}

// Twenty objects at once: each is found, and none holds the others up.
func TestManyProfilesAreRefused(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		refuse, names := map[string]string{}, []string{"a"}
		for i := range 20 {
			id := fakeIdentity("tls-" + strings.Repeat("4", i))
			refuse[`/`+string(id.ID)+`.pem"`] = "no cipher match"
			names = append(names, "tls-"+strings.Repeat("4", i))
		}
		w.change(func(n *fakeNginx) { n.slow, n.refuse = time.Second, refuse })
		w.source.set(names...)
		w.settle()
		w.want("a")
		w.follow("a b", "push")
		names = append(names, "b")
		w.source.set(names...)
		w.wait(time.Minute)
		slices.Sort(names)
		w.want(strings.Join(names, " "), "push")
		if len(w.builder.refusals()) != 20 {
			t.Errorf("rejected %v", w.builder.refusals())
		}
		w.healthy()
	})
}

// What needs a reload for another reason gets it at once, without the new profiles.
func TestReloadsGoOnWhileProfilesAreSearched(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		searching(w)
		w.follow("a*2 b*1", "push")
		w.builder.settings.WorkerConnections++
		w.follow("a*3 b*1", "reload", "push")
		w.healthy()
		if got := w.loop.Status().LastReload.Reasons; !slices.Equal(got, []plan.Reason{plan.GlobalSetting}) {
			t.Errorf("reasons %v", got)
		}
		w.wait(10 * time.Second)
		w.want("a b", "push")
		w.healthy()
	})
}

// A daemon that is upgraded knows nothing of what was rejected: its Lua files are loaded, and pushes go on, before that is
// found again.
func TestLuaUpgradeWithARefusedProfile(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		bad := searching(w)
		w.follow("a*2 b*1", "push")
		w.wait(10 * time.Second)
		w.want("a b", "push")
		w.stop()

		profiles, upstreams := w.builder.profiles, w.builder.upstreams
		w.daemon("next")
		w.builder.profiles, w.builder.upstreams = profiles, upstreams
		w.cfg.Layout.LuaDir, w.cfg.Layout.LuaBuild = "/run/h/lua/build2", "build2"
		w.start()
		w.follow("a*3 b*1", "reload", "push")
		if len(w.builder.refusals()) != 0 || w.nginx.luaBuild != "build2" {
			t.Errorf("build %s, rejected %v", w.nginx.luaBuild, w.builder.refusals())
		}
		w.wait(10 * time.Second)
		if _, ok := w.builder.refusals()[bad]; !ok {
			t.Errorf("rejected %v", w.builder.refusals())
		}
		w.healthy()
	})
}

// The proxy is gone and comes back while nginx -t is run; then the daemon ends.
func TestProxyDiesWhileProfilesAreSearched(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		bad := searching(w)
		w.follow("a*2 b*1", "push")
		w.nginx.kill()
		w.follow("a*3 b*1", "push")
		w.wait(10 * time.Second)
		w.want("a b", "push")
		if _, ok := w.builder.refusals()[bad]; !ok {
			t.Errorf("rejected %v", w.builder.refusals())
		}
		w.builder.profiles["b"] = special(model.Body256M, false)
		w.change(func(n *fakeNginx) { n.refuse["256m"] = "invalid size" })
		w.follow("a*4 b*1", "push")
		w.stop() // returns though a search is under way; no goroutine stays
	})
}

// Where nobody is at fault alone nothing is left out, and nginx -t is not run over and over.
func TestNoProfileIsAtFault(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a big-16m")
		w.change(func(n *fakeNginx) {
			n.pair = []string{"@" + nginxconf.ProfileName(special(model.Body16M, false)), "@" + nginxconf.ProfileName(special("", true))}
		})
		w.source.set("a", "big-16m", "buffered")
		w.wait(500 * time.Millisecond)
		var refused *nginxproc.ConfError
		if s := w.loop.Status(); !errors.As(s.Err, &refused) || s.Ready || len(w.builder.refusals()) != 0 {
			t.Errorf("status %+v, rejected %v", s, w.builder.refusals())
		}
		tests := w.nginx.tests
		w.wait(400 * time.Millisecond)
		if w.nginx.tests != tests {
			t.Errorf("%d more runs of nginx -t", w.nginx.tests-tests)
		}
		w.change(func(n *fakeNginx) { n.pair = nil })
		w.wait(10 * time.Second)
		w.healthy()
	})
}

// A bad profile comes before the one before it is found, again and again: nobody else waits for an end of that.
func TestBadProfilesKeepComing(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		const n = 40
		w.builder.profiles = map[string]model.Profile{"good": special(model.Body256M, false)}
		refuse := map[string]string{}
		for i := range n {
			bad := model.Profile{BufferSize: uint16(8 + i)}
			w.builder.profiles[fmt.Sprintf("n%02d", i)] = bad
			refuse["@"+nginxconf.ProfileName(bad)] = "invalid size"
		}
		w.serve("a")
		w.change(func(n *fakeNginx) { n.slow, n.refuse = time.Second, refuse })
		names := []string{"a", "good"}
		for i := range n {
			names = append(names, fmt.Sprintf("n%02d", i))
			w.source.set(names...)
			w.wait(500 * time.Millisecond)
			if served := strings.Contains(w.hosts(), "good"); i > n/2 && !served {
				t.Fatalf("after %d: the proxy serves %q", i, w.hosts())
			}
		}
		w.wait(2 * time.Minute)
		if len(w.builder.refusals()) != n || !strings.HasPrefix(w.hosts(), "a good n00 n01") {
			t.Errorf("%d rejected, the proxy serves %q", len(w.builder.refusals()), w.hosts())
		}
		w.healthy()
	})
}
