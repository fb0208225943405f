package election

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestOwner(t *testing.T) {
	ready := func(host Host, priority uint8) Candidate {
		return Candidate{Host: host, Priority: priority, Ready: true, Settled: true}
	}
	draining := func(c Candidate) Candidate { c.Draining = true; return c }
	fresh := func(c Candidate) Candidate { c.Settled = false; return c }
	unready := func(c Candidate) Candidate { c.Ready = false; return c }
	for name, c := range map[string]struct {
		noPreempt  bool
		candidates []Candidate
		current    Host
		want       Host
	}{
		"nobody":                         {want: ""},
		"nobody is ready":                {candidates: []Candidate{unready(ready("a", 1)), unready(ready("b", 2))}, current: "a", want: ""},
		"the highest priority":           {candidates: []Candidate{ready("a", 100), ready("b", 150), ready("c", 120)}, want: "b"},
		"0 is the default":               {candidates: []Candidate{ready("a", 0), ready("b", 101), ready("c", 99)}, want: "b"},
		"0 beats 99":                     {candidates: []Candidate{ready("a", 0), ready("c", 99)}, want: "a"},
		"unready does not count":         {candidates: []Candidate{ready("a", 100), unready(ready("b", 150))}, want: "a"},
		"preempt":                        {candidates: []Candidate{ready("a", 100), ready("b", 150)}, current: "a", want: "b"},
		"preempt waits until settled":    {candidates: []Candidate{ready("a", 100), fresh(ready("b", 150))}, current: "a", want: "a"},
		"the next settled one":           {candidates: []Candidate{ready("a", 100), fresh(ready("b", 150)), ready("c", 120)}, current: "a", want: "c"},
		"a free VIP waits for nobody":    {candidates: []Candidate{ready("a", 100), fresh(ready("b", 150))}, want: "b"},
		"nopreempt":                      {noPreempt: true, candidates: []Candidate{ready("a", 100), ready("b", 150)}, current: "a", want: "a"},
		"nopreempt, owner unready":       {noPreempt: true, candidates: []Candidate{unready(ready("a", 100)), ready("b", 50)}, current: "a", want: "b"},
		"nopreempt, owner gone":          {noPreempt: true, candidates: []Candidate{ready("b", 50)}, current: "a", want: "b"},
		"draining gives away":            {candidates: []Candidate{draining(ready("a", 200)), ready("b", 1)}, current: "a", want: "b"},
		"draining waits for no settling": {noPreempt: true, candidates: []Candidate{draining(ready("a", 200)), fresh(ready("b", 1))}, current: "a", want: "b"},
		"draining keeps what none takes": {candidates: []Candidate{draining(ready("a", 200)), unready(ready("b", 1))}, current: "a", want: "a"},
		"all drain: no moves":            {noPreempt: true, candidates: []Candidate{draining(ready("a", 1)), draining(ready("b", 9))}, current: "a", want: "a"},
		"draining as the last resort":    {candidates: []Candidate{draining(ready("a", 200))}, current: "b", want: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Owner(Policy{VIP: "v", NoPreempt: c.noPreempt}, c.candidates, c.current); got != c.want {
				t.Errorf("owner %q, want %q", got, c.want)
			}
		})
	}
}

// candidates draws up to 6 hosts with unique names.
func candidates(t *rapid.T) []Candidate {
	n := rapid.IntRange(0, 6).Draw(t, "hosts")
	list := make([]Candidate, n)
	for i := range list {
		list[i] = Candidate{
			Host: Host(fmt.Sprintf("host%d", i)), Priority: rapid.SampledFrom([]uint8{0, 1, 100, 150, 254}).Draw(t, "priority"),
			Ready: rapid.Bool().Draw(t, "ready"), Draining: rapid.Bool().Draw(t, "draining"), Settled: rapid.Bool().Draw(t, "settled"),
		}
	}
	return list
}

// Equal views give one owner, in whatever order they were put together, and it is one that can serve.
func TestEqualViewsGiveOneOwner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := candidates(t)
		p := Policy{VIP: rapid.StringN(0, 8, -1).Draw(t, "vip"), NoPreempt: rapid.Bool().Draw(t, "nopreempt")}
		current := rapid.SampledFrom([]Host{"", "host0", "host1", "gone"}).Draw(t, "current")
		owner := Owner(p, list, current)
		if got := Owner(p, rapid.Permutation(list).Draw(t, "order"), current); got != owner {
			t.Fatalf("%q in one order, %q in another", owner, got)
		}
		can := slices.ContainsFunc(list, func(c Candidate) bool { return c.Ready })
		at := slices.IndexFunc(list, func(c Candidate) bool { return c.Host == owner })
		if can != (owner != "") || at >= 0 && !list[at].Ready {
			t.Fatalf("owner %q of %+v", owner, list)
		}
		if again := Owner(p, list, owner); again != owner && !p.NoPreempt && current == "" {
			// Only a candidate that was taken for free and did not settle may differ, and never for long.
			if list[at].Settled {
				t.Fatalf("%q, and once it owns the VIP %q", owner, again)
			}
		}
	})
}

// A host that leaves moves only the VIPs that it owned; one that joins takes only for itself.
func TestMinimalMovement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := candidates(t)
		for i := range list {
			list[i].Ready, list[i].Settled, list[i].Draining = true, true, false
		}
		if len(list) < 2 {
			return
		}
		gone := list[rapid.IntRange(0, len(list)-1).Draw(t, "gone")].Host
		left := slices.DeleteFunc(slices.Clone(list), func(c Candidate) bool { return c.Host == gone })
		for i := range 50 {
			p := Policy{VIP: fmt.Sprintf("192.0.2.%d", i)}
			with, without := Owner(p, list, ""), Owner(p, left, "")
			if with != gone && with != without {
				t.Fatalf("%s moved from %s to %s although %s left", p.VIP, with, without, gone)
			}
			if back := Owner(p, list, without); back != with {
				t.Fatalf("%s is at %s after %s came back, was at %s", p.VIP, back, gone, with)
			}
		}
	})
}

// Several VIPs spread over equals.
func TestSpread(t *testing.T) {
	for hosts := 2; hosts <= 5; hosts++ {
		var list []Candidate
		for i := range hosts {
			list = append(list, Candidate{Host: Host(fmt.Sprintf("edge-%d", i+1)), Ready: true})
		}
		count := map[Host]int{}
		const vips = 1000
		for i := range vips {
			count[Owner(Policy{VIP: fmt.Sprintf("192.0.%d.%d", i/250, i%250)}, list, "")]++
		}
		for host, n := range count {
			if fair := vips / hosts; n < fair*3/4 || n > fair*5/4 {
				t.Errorf("%s of %d hosts owns %d of %d VIPs", host, hosts, n, vips)
			}
		}
		if len(count) != hosts {
			t.Errorf("%d of %d hosts own VIPs", len(count), hosts)
		}
	}
}

func TestBetterIsATotalOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := candidates(t)
		for _, a := range list {
			for _, b := range list {
				if (a.Host != b.Host) != (Better("v", a, b) != Better("v", b, a)) {
					t.Fatalf("%+v and %+v: %t, %t", a, b, Better("v", a, b), Better("v", b, a))
				}
			}
		}
	})
}
