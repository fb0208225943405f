package reconcile

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"headgate/gateway/build"
	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

type fakeChecker struct {
	changed chan struct{}
	mu      sync.Mutex
	wanted  []build.Check
	known   []snapshot.Verdict
}

func (c *fakeChecker) Changed() <-chan struct{} { return c.changed }

func (c *fakeChecker) Want(checks []build.Check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted = checks
}

func (c *fakeChecker) Verdicts() []snapshot.Verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known
}

// checkedBuilder asks for a check of each host, and makes another host of each verdict.
type checkedBuilder struct{ *fakeBuilder }

func (b checkedBuilder) Build(s *snapshot.Snapshot, now time.Time) *build.Result {
	r := b.fakeBuilder.Build(s, now)
	for _, h := range r.Model.Hosts {
		r.Checks = append(r.Checks, build.Check{Upstream: model.UpstreamID(h.Name)})
	}
	for _, v := range s.Verdicts {
		r.Model.Hosts = append(r.Model.Hosts, &model.Host{Name: model.HostName("z-down-" + v.Upstream)})
	}
	return r
}

// TestVerdictsReachTheProxy: what a build wants checked is checked, and a verdict is served without any change of the source.
func TestVerdictsReachTheProxy(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		c := &fakeChecker{changed: make(chan struct{}, 1)}
		w.cfg.Checker, w.cfg.Builder = c, checkedBuilder{w.builder}
		w.serve("a")
		c.mu.Lock()
		if len(c.wanted) != 1 || c.wanted[0].Upstream != "a" {
			t.Errorf("wanted %v", c.wanted)
		}
		c.known = []snapshot.Verdict{{Upstream: "a", Address: netip.MustParseAddrPort("10.0.0.1:80"), Down: true}}
		c.mu.Unlock()
		c.changed <- struct{}{}
		w.settle()
		w.want("a z-down-a", "push")
		m, err := w.loop.Moment(t.Context())
		if err != nil || len(m.Verdicts) != 1 {
			t.Errorf("told %v, %v", m.Verdicts, err)
		}
	})
}
