package lossguard

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"pgregory.net/rapid"

	"headgate/gateway/snapshot"
)

// cluster makes snapshots as sources do: what did not change keeps its pointer.
type cluster struct {
	ingresses map[snapshot.Key]*snapshot.Ingress
	classes   map[snapshot.Key]*snapshot.IngressClass
	services  map[snapshot.Key]*snapshot.Service
	slices    map[snapshot.Key]*snapshot.EndpointSlice
}

// newCluster has n Ingresses of one path, each with a Service and a slice of two endpoints.
func newCluster(n int) *cluster {
	c := &cluster{
		map[snapshot.Key]*snapshot.Ingress{}, map[snapshot.Key]*snapshot.IngressClass{},
		map[snapshot.Key]*snapshot.Service{}, map[snapshot.Key]*snapshot.EndpointSlice{},
	}
	c.classes[snapshot.Key{Name: "ours"}] = &snapshot.IngressClass{Meta: snapshot.Meta{Key: snapshot.Key{Name: "ours"}}}
	for i := range n {
		c.add(i)
	}
	return c
}

func key(i int) snapshot.Key { return snapshot.Key{Namespace: "n", Name: fmt.Sprintf("o%03d", i)} }

func (c *cluster) add(i int) {
	class := "ours"
	meta := snapshot.Meta{Key: key(i)}
	c.ingresses[key(i)] = &snapshot.Ingress{Meta: meta, Spec: networkingv1.IngressSpec{
		IngressClassName: &class,
		Rules: []networkingv1.IngressRule{{IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
			Paths: make([]networkingv1.HTTPIngressPath, 1),
		}}}},
	}}
	c.services[key(i)] = &snapshot.Service{Meta: meta}
	c.endpoints(i, 2)
}

func (c *cluster) endpoints(i, n int) {
	slice := &snapshot.EndpointSlice{Meta: snapshot.Meta{Key: key(i)}, Service: key(i)}
	for at := range n {
		slice.Endpoints = append(slice.Endpoints, snapshot.Endpoint{
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i), byte(at)})}, Ready: true, Serving: true,
		})
	}
	c.slices[key(i)] = slice
}

func (c *cluster) remove(from, to int) {
	for i := from; i < to; i++ {
		delete(c.ingresses, key(i))
		delete(c.services, key(i))
		delete(c.slices, key(i))
	}
}

func listed[T any](m map[snapshot.Key]*T) []*T {
	var out []*T
	for _, k := range slices.SortedFunc(maps.Keys(m), snapshot.Key.Compare) {
		out = append(out, m[k])
	}
	return out
}

func (c *cluster) snapshot() *snapshot.Snapshot {
	return &snapshot.Snapshot{
		Ingresses: listed(c.ingresses), IngressClasses: listed(c.classes), Services: listed(c.services), EndpointSlices: listed(c.slices),
	}
}

// scene is a filter over a cluster, with a clock and signs that the test sets.
type scene struct {
	t *testing.T
	*cluster
	filter *Filter
	now    time.Time
	signs  Signs
}

func newScene(t *testing.T, n int) *scene {
	t.Helper()
	s := &scene{t: t, cluster: newCluster(n), filter: NewFilter(Limits{}, Sizes{}), now: time.Unix(10_000, 0)}
	s.signs = Signs{Healthy: true, Listed: s.now}
	s.pass()
	s.after(time.Minute)
	s.serves(n, 2*n)
	return s
}

func (s *scene) pass() *snapshot.Snapshot { return s.filter.Pass(s.now, s.snapshot(), s.signs) }
func (s *scene) after(d time.Duration)    { s.now = s.now.Add(d) }
func (s *scene) trouble()                 { s.signs.Trouble, s.signs.What = s.now, "a watch broke off" }

func (s *scene) serves(routes, endpoints int) {
	s.t.Helper()
	out := s.pass()
	if out == nil {
		s.t.Fatalf("nothing is passed, want %d routes", routes)
	}
	got := new(counter).measure(out)
	if got.Routes != routes || got.Endpoints != endpoints {
		s.t.Errorf("serves %s, want %d routes and %d endpoints", got, routes, endpoints)
	}
	if !slices.IsSortedFunc(out.EndpointSlices, func(a, b *snapshot.EndpointSlice) int { return a.Compare(b.Key) }) {
		s.t.Error("not sorted")
	}
}

func TestLosses(t *testing.T) {
	for _, c := range []struct {
		name    string
		trouble time.Duration // before the loss
		never   bool          // no trouble
		from    int
		to      int
		held    bool
	}{
		{name: "all, while healthy", never: true, to: 40},
		{name: "all, long after trouble", trouble: troubleLasts, to: 40},
		{name: "all, right after trouble", trouble: troubleLasts - 1, to: 40, held: true},
		{name: "all, with the trouble", to: 40, held: true},
		{name: "half is not more than half", to: 20},
		{name: "more than half", to: 21, held: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t, 40)
			if !c.never {
				s.trouble()
			}
			s.after(c.trouble)
			s.remove(c.from, c.to)
			if left := 40 - c.to; c.held {
				s.serves(40, 80)
				if r := s.filter.Report(); r.Held() != (Sizes{Routes: c.to, Endpoints: 2 * c.to, Services: c.to}) || r.Now.Routes != left || r.Why != "a watch broke off" || !r.Until.Equal(s.now.Add(10*time.Minute)) {
					t.Errorf("report %+v", r)
				}
			} else {
				s.serves(left, 2*left)
				if s.filter.Holding() {
					t.Error("it says that something is held")
				}
			}
		})
	}
	t.Run("fewer than the minimum", func(t *testing.T) {
		s := newScene(t, 4) // eight endpoints
		s.trouble()
		s.remove(0, 4)
		s.serves(0, 0)
	})
	t.Run("the source cannot be read", func(t *testing.T) {
		s := newScene(t, 40)
		s.signs.Healthy = false
		s.remove(0, 40)
		s.serves(40, 80)
	})
	t.Run("bit by bit within the window", func(t *testing.T) {
		s := newScene(t, 40)
		s.trouble()
		for i := range 40 {
			s.remove(i, i+1)
			s.pass()
			s.after(100 * time.Millisecond)
		}
		s.serves(40, 80)
	})
	t.Run("bit by bit, slower than the window", func(t *testing.T) {
		s := newScene(t, 40)
		for i := range 40 {
			s.trouble()
			s.remove(i, i+1)
			s.pass()
			s.after(2 * time.Second)
		}
		// Within 5 s never more than six endpoints are lost.
		if got := len(s.pass().Ingresses); got != 0 {
			t.Errorf("%d are served", got)
		}
	})
	t.Run("the sign comes after the loss", func(t *testing.T) {
		s := newScene(t, 40)
		s.remove(0, 40)
		s.serves(0, 0)
		s.after(time.Second)
		s.trouble()
		s.serves(40, 80)
	})
	t.Run("slices that are emptied, and not removed", func(t *testing.T) {
		s := newScene(t, 40)
		s.trouble()
		for i := range 40 {
			s.endpoints(i, 0)
		}
		s.serves(40, 80)
	})
	t.Run("the class goes, and with it all routes", func(t *testing.T) {
		s := newScene(t, 40)
		s.trouble()
		clear(s.classes)
		s.serves(40, 80)
	})
	t.Run("services alone", func(t *testing.T) {
		s := newScene(t, 40)
		s.trouble()
		clear(s.services)
		if got := len(s.pass().Services); got != 40 {
			t.Errorf("%d services", got)
		}
	})
	t.Run("a rollout is no loss", func(t *testing.T) {
		s := newScene(t, 40)
		s.trouble()
		s.remove(0, 40)
		for i := 100; i < 140; i++ {
			s.add(i)
		}
		s.serves(40, 80)
		if s.filter.Holding() {
			t.Error("held")
		}
	})
}

func TestWhatIsNewIsServedWhileTheRestIsHeld(t *testing.T) {
	s := newScene(t, 40)
	s.trouble()
	s.remove(0, 30)
	s.serves(40, 80)
	s.add(50)
	s.endpoints(35, 5)
	s.serves(41, 85)
	s.add(3) // one comes back
	s.serves(41, 85)
	if got := s.filter.Report().Held().Routes; got != 28 {
		t.Errorf("%d held", got)
	}
	s.remove(36, 40) // while the trouble lasts, what follows is held, too
	s.serves(41, 85)
	s.after(time.Hour)
	s.signs.Listed = s.now.Add(-time.Minute)
	s.serves(8, 2*8+3)
}

// TestWhatWentLongAgoStaysAway: a hold brings back what went within its window, and nothing older, however quickly that
// had gone behind another change.
func TestWhatWentLongAgoStaysAway(t *testing.T) {
	for _, quick := range []time.Duration{time.Millisecond, 2 * time.Second} {
		s := newScene(t, 20)
		s.after(2 * time.Second) // so that it is remembered
		s.add(20)
		s.serves(21, 42)
		s.after(quick)
		s.remove(20, 21)
		s.serves(20, 40)
		s.after(time.Hour)
		s.trouble()
		s.remove(0, 15)
		s.serves(20, 40)
	}
}

func TestEndings(t *testing.T) {
	hold := func(t *testing.T, to int) *scene {
		s := newScene(t, 40)
		s.trouble()
		s.remove(0, to)
		s.serves(40, 80)
		return s
	}
	ended := func(t *testing.T, s *scene, want Ending) {
		t.Helper()
		if s.filter.Holding() || s.filter.LastEnding() != want {
			t.Errorf("holding %v, ended as %q, want %q", s.filter.Holding(), s.filter.LastEnding(), want)
		}
	}
	t.Run("they come back", func(t *testing.T) {
		s := hold(t, 40)
		for i := range 40 {
			s.add(i)
		}
		s.serves(40, 80)
		ended(t, s, CameBack)
	})
	t.Run("the time is over", func(t *testing.T) {
		s := hold(t, 40)
		for range 599 {
			s.after(time.Second)
			s.trouble() // all the time
			s.serves(40, 80)
		}
		s.after(time.Second)
		s.trouble()
		s.serves(0, 0)
		ended(t, s, TimeOver)
		s.after(time.Second)
		s.trouble()
		s.serves(0, 0) // and is not held again
	})
	t.Run("accepted", func(t *testing.T) {
		s := hold(t, 40)
		s.filter.Accept()
		s.trouble()
		s.serves(0, 0)
		ended(t, s, Accepted)
	})
	t.Run("confirmed by a complete reading in good order", func(t *testing.T) {
		s := hold(t, 30)
		s.after(troubleLasts + time.Second)
		s.serves(40, 80) // that it is quiet is no confirmation
		s.signs.Listed = s.now
		s.serves(10, 20)
		ended(t, s, Confirmed)
	})
	t.Run("a reading from before the loss confirms nothing", func(t *testing.T) {
		s := hold(t, 30)
		s.signs.Listed = s.now
		s.after(5 * time.Minute)
		s.serves(40, 80)
	})
	t.Run("a reading amid trouble confirms nothing", func(t *testing.T) {
		s := hold(t, 30)
		s.after(time.Minute)
		s.trouble()
		s.after(troubleLasts - time.Second)
		s.signs.Listed = s.now
		s.after(5 * time.Minute)
		s.serves(40, 80)
	})
	t.Run("that nothing is left is confirmed by no reading", func(t *testing.T) {
		s := hold(t, 40)
		s.after(5 * time.Minute)
		s.signs.Listed = s.now
		s.serves(40, 80)
		s.after(5 * time.Minute)
		s.serves(0, 0)
		ended(t, s, TimeOver)
	})
}

func TestStart(t *testing.T) {
	start := func(t *testing.T, left int) *scene {
		s := &scene{t: t, cluster: newCluster(left), now: time.Unix(10_000, 0)}
		s.filter = NewFilter(Limits{}, Sizes{Routes: 40, Endpoints: 80, Services: 40})
		s.signs = Signs{Healthy: true, Elsewhere: true, Listed: s.now}
		return s
	}
	withheld := func(t *testing.T, s *scene) {
		t.Helper()
		if out := s.pass(); out != nil || !s.filter.Report().Withheld {
			t.Fatalf("passed %v, %+v", out, s.filter.Report())
		}
	}
	t.Run("enough is left", func(t *testing.T) {
		start(t, 20).serves(20, 40)
	})
	t.Run("an empty cluster is not believed", func(t *testing.T) {
		s := start(t, 0)
		withheld(t, s)
		s.after(9 * time.Minute)
		s.signs.Listed = s.now.Add(-time.Minute)
		withheld(t, s)
		s.after(time.Minute)
		s.serves(0, 0)
	})
	t.Run("a small one until it is confirmed", func(t *testing.T) {
		s := start(t, 10)
		withheld(t, s)
		s.after(time.Minute)
		withheld(t, s)
		s.signs.Listed = s.now
		s.serves(10, 20)
	})
	t.Run("it fills up", func(t *testing.T) {
		s := start(t, 0)
		withheld(t, s)
		s.cluster = newCluster(30)
		s.serves(30, 60)
	})
	t.Run("accepted", func(t *testing.T) {
		s := start(t, 0)
		withheld(t, s)
		s.filter.Accept()
		s.serves(0, 0)
	})
	t.Run("the administrator's own files are believed", func(t *testing.T) {
		s := start(t, 1)
		s.signs.Elsewhere = false
		s.serves(1, 2)
	})
	t.Run("and his empty folder is not", func(t *testing.T) {
		s := start(t, 0)
		s.signs.Elsewhere = false
		s.trouble()
		withheld(t, s)
	})
	t.Run("nothing is remembered", func(t *testing.T) {
		s := start(t, 0)
		s.filter = NewFilter(Limits{}, Sizes{})
		s.serves(0, 0)
	})
}

// TestAnyHistory: whatever happens, the counts are those from scratch; what the source has is served in its newest form or in an older one
// that had more; nothing is served that was not there at most Hold ago; without trouble the output is the input.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := newCluster(30)
		f := NewFilter(Limits{Minimum: 5, Hold: time.Minute}, Sizes{})
		now := time.Unix(10_000, 0)
		signs := Signs{Healthy: true, Listed: now}
		lastSeen := map[*snapshot.Ingress]time.Time{}
		for range rapid.IntRange(1, 40).Draw(r, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 20_000).Draw(r, "ms")) * time.Millisecond)
			at := rapid.IntRange(0, 29).Draw(r, "at")
			switch rapid.IntRange(0, 7).Draw(r, "what") {
			case 0, 1:
				c.remove(at, min(30, at+rapid.IntRange(1, 30).Draw(r, "many")))
			case 2:
				c.add(at)
			case 3:
				if c.slices[key(at)] != nil {
					c.endpoints(at, rapid.IntRange(0, 4).Draw(r, "endpoints"))
				}
			case 4:
				signs.Trouble, signs.What = now, "x"
			case 5:
				signs.Healthy = !signs.Healthy
			case 6:
				signs.Listed = now
			case 7:
				f.Accept()
			}
			s := c.snapshot()
			for _, i := range s.Ingresses {
				lastSeen[i] = now
			}
			out := f.Pass(now, s, signs)
			if got, want := f.now, new(counter).measure(s); got != want {
				r.Fatalf("counted %s, from scratch %s", got, want)
			}
			if got, want := f.kept, new(counter).measure(out); got != want {
				r.Fatalf("counted %s of the output, from scratch %s", got, want)
			}
			served := map[snapshot.Key]*snapshot.EndpointSlice{}
			for _, o := range out.EndpointSlices {
				served[o.Key] = o
			}
			for _, o := range s.EndpointSlices {
				if got := served[o.Key]; got == nil || (got != o && endpoints(got) <= endpoints(o)) {
					r.Fatalf("%s is served as %v", o.Key, got)
				}
			}
			for _, i := range out.Ingresses {
				// A step is up to 20 s, and what went within the window before a hold is held with the rest.
				if gone := now.Sub(lastSeen[i]); gone > time.Minute+20*time.Second+f.limits.Window {
					r.Fatalf("%s is served %s after it was gone", i.Key, gone)
				}
			}
			if !f.Holding() && out != s {
				r.Fatal("nothing is held, and yet something else is served")
			}
			if again := f.Pass(now, s, signs); again != out {
				r.Fatal("the same once more gives something else")
			}
		}
	})
}
