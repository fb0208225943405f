package externalname

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"headgate/gateway/snapshot"
	"headgate/sync/script"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// names answers lookups.
type names = script.Script[string, answer]

func found(ttl time.Duration, addresses ...string) family {
	f := family{ttl: ttl}
	for _, a := range addresses {
		f.addresses = append(f.addresses, netip.MustParseAddr(a))
	}
	return f
}

func failed(text string) answer {
	return answer{family{err: errors.New(text)}, family{err: errors.New(text)}}
}

// inBubble runs a resolver over a script on a fake clock.
func inBubble(t *testing.T, config Config, test func(r *Resolver, s *names)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := script.New[string, answer]()
		r := New(config)
		r.lookup = s.Ask
		script.While(t, r.Run, func() { test(r, s) })
	})
}

func changes(r *Resolver) bool {
	select {
	case <-r.Changed():
		return true
	default:
		return false
	}
}

func text(resolutions []*snapshot.Resolution) []string {
	var lines []string
	for _, r := range resolutions {
		line := r.Name
		for _, a := range r.Addresses {
			line += " " + a.String()
		}
		if r.Err != "" {
			line += " err=" + r.Err
		}
		lines = append(lines, line)
	}
	return lines
}

func expect(t *testing.T, r *Resolver, want ...string) {
	t.Helper()
	if got := text(r.Resolutions()); !slices.Equal(got, want) {
		t.Errorf("resolutions:\n got %q\nwant %q", got, want)
	}
}

func TestTTLIsHonouredAndClamped(t *testing.T) {
	inBubble(t, Config{}, func(r *Resolver, s *names) {
		s.Set("short.", answer{v4: found(0, "10.0.0.1")})
		s.Set("seven.", answer{v4: found(7*time.Second, "10.0.0.2"), v6: found(9*time.Second, "fd00::2")})
		s.Set("long.", answer{v4: found(time.Hour, "10.0.0.3")})
		r.Want([]string{"short.", "seven.", "long.", "seven."})
		script.After(601 * time.Second)
		if got := s.Times("short."); got[1] != time.Second || got[2] != 2*time.Second {
			t.Errorf("a TTL of 0 must be asked every second, was %v", got[:3])
		}
		if got := s.Times("seven."); got[1] != 7*time.Second || got[2] != 14*time.Second {
			t.Errorf("the lower TTL of both families counts, was %v", got[:3])
		}
		if got, want := s.Times("long."), []time.Duration{0, 5 * time.Minute, 10 * time.Minute}; !slices.Equal(got, want) {
			t.Errorf("a long TTL must be clamped to 5 min, was %v", got)
		}
		expect(t, r, "long. 10.0.0.3", "seven. 10.0.0.2 fd00::2", "short. 10.0.0.1")
	})
}

func TestChangedOnlyWhenTheSortedSetChanges(t *testing.T) {
	inBubble(t, Config{}, func(r *Resolver, s *names) {
		s.Set("a", answer{v4: found(time.Second, "10.0.0.2", "10.0.0.1")})
		r.Want([]string{"a"})
		script.After(0)
		if !changes(r) {
			t.Fatal("the first answer is a change")
		}
		before := r.Resolutions()[0]
		s.Set("a", answer{v4: found(time.Second, "10.0.0.1", "10.0.0.2", "10.0.0.1")})
		script.After(3 * time.Second)
		if changes(r) {
			t.Error("another order is no change")
		}
		if r.Resolutions()[0] != before {
			t.Error("an answer that did not change must keep its pointer")
		}
		s.Set("a", answer{v4: found(time.Second, "10.0.0.3")})
		script.After(time.Second)
		if !changes(r) {
			t.Error("another address is a change")
		}
		expect(t, r, "a 10.0.0.3")
	})
}

func TestFailureKeepsTheLastGoodAnswerAndBacksOff(t *testing.T) {
	inBubble(t, Config{}, func(r *Resolver, s *names) {
		s.Set("a", answer{v4: found(time.Second, "10.0.0.1"), v6: found(time.Second, "fd00::1")})
		r.Want([]string{"a"})
		script.After(0)
		changes(r)
		s.Set("a", failed("asking 10.0.0.53:53: no answer in time"))
		script.After(200 * time.Second)
		want := []time.Duration{0, 1, 2, 4, 8, 16, 32, 64, 124, 184}
		for i := range want {
			want[i] *= time.Second
		}
		if got := s.Times("a"); !slices.Equal(got, want) {
			t.Errorf("asked at %v, want %v", got, want)
		}
		if !changes(r) {
			t.Error("that a name stopped resolving is a change: the Service gets a Problem")
		}
		expect(t, r, "a 10.0.0.1 fd00::1 err=asking 10.0.0.53:53: no answer in time")
		s.Set("a", answer{v4: found(time.Second, "10.0.0.1"), v6: found(time.Second, "fd00::1")})
		script.After(time.Minute)
		expect(t, r, "a 10.0.0.1 fd00::1")
		s.Set("a", failed("again"))
		script.After(1500 * time.Millisecond)
		n := len(s.Times("a"))
		script.After(time.Second)
		if got := len(s.Times("a")); got != n+1 {
			t.Errorf("after a success the back-off must start anew: %d questions in a second", got-n)
		}
	})
}

func TestFamiliesFailOnTheirOwn(t *testing.T) {
	inBubble(t, Config{}, func(r *Resolver, s *names) {
		s.Set("a", answer{v4: found(time.Second, "10.0.0.1"), v6: found(time.Second, "fd00::1")})
		r.Want([]string{"a"})
		script.After(0)
		s.Set("a", answer{v4: found(time.Second, "10.0.0.2"), v6: family{err: errNoSuchName}})
		script.After(time.Second)
		expect(t, r, "a 10.0.0.2 fd00::1")
		s.Set("a", answer{v4: found(time.Second, "10.0.0.2"), v6: family{}})
		script.After(time.Second)
		expect(t, r, "a 10.0.0.2")
		s.Set("a", answer{})
		script.After(time.Second)
		expect(t, r, "a 10.0.0.2 err="+errNoAddresses.Error())
	})
}

func TestWantDropsAndAdds(t *testing.T) {
	inBubble(t, Config{}, func(r *Resolver, s *names) {
		for _, name := range []string{"a", "b", "c"} {
			s.Set(name, answer{v4: found(10*time.Second, "10.0.0.1")})
		}
		r.Want([]string{"b", "a"})
		script.After(0)
		expect(t, r, "a 10.0.0.1", "b 10.0.0.1")
		r.Want([]string{"c", "b"})
		script.After(time.Second)
		expect(t, r, "b 10.0.0.1", "c 10.0.0.1")
		if got := len(s.Times("b")); got != 1 {
			t.Errorf("a name that stays wanted must not be asked before its TTL is over, asked %d times", got)
		}
		r.Want(nil)
		script.After(time.Minute)
		expect(t, r)
		if got := len(s.Times("a")); got != 1 {
			t.Errorf("a dropped name was asked %d times", got)
		}
	})
}

func TestANameDroppedWhileItIsAskedStaysAway(t *testing.T) {
	inBubble(t, Config{}, func(r *Resolver, s *names) {
		s.Slow(2 * time.Second)
		s.Set("a", answer{v4: found(time.Second, "10.0.0.1")})
		r.Want([]string{"a"})
		script.After(time.Second)
		r.Want([]string{})
		script.After(5 * time.Second)
		expect(t, r)
	})
}

func TestConcurrencyIsBounded(t *testing.T) {
	inBubble(t, Config{Concurrency: 3}, func(r *Resolver, s *names) {
		s.Slow(time.Second)
		var names []string
		for c := 'a'; c < 'a'+10; c++ {
			names = append(names, string(c))
			s.Set(string(c), answer{v4: found(time.Hour, "10.0.0.1")})
		}
		r.Want(names)
		script.After(4 * time.Second)
		if _, most := s.Running(); most != 3 {
			t.Errorf("%d lookups at once, want 3", most)
		}
		if got := len(r.Resolutions()); got != 10 {
			t.Errorf("%d of 10 names answered after 4 s", got)
		}
	})
}

func TestWantBeforeRunAndRunEndsWithLookupsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := script.New[string, answer]()
		s.Slow(time.Hour)
		r := New(Config{})
		r.lookup = s.Ask
		r.Want([]string{"a", "b"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if got := len(s.Times("a")); got != 1 {
			t.Errorf("asked %d times", got)
		}
	})
}

func TestAnswersAreCapped(t *testing.T) {
	var many []netip.Addr
	address := netip.MustParseAddr("10.0.0.0")
	for range 1000 {
		many = append(many, address)
		address = address.Next()
	}
	slices.Reverse(many)
	if got := merge(many, nil); len(got) != maxAddresses || got[0].String() != "10.0.0.0" {
		t.Errorf("merged to %d from %v", len(got), got[0])
	}
}

func TestParseServer(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"10.0.0.53", "10.0.0.53:53"},
		{"10.0.0.53:5353", "10.0.0.53:5353"},
		{"fd00::53", "[fd00::53]:53"},
		{"[fd00::53]", "[fd00::53]:53"},
		{"[fd00::53]:54", "[fd00::53]:54"},
		{"fe80::1%eth0", "[fe80::1%eth0]:53"},
		{"dns.example.org", ""},
		{"10.0.0.53:0", ""},
		{"10.0.0.53:70000", ""},
		{"", ""},
	} {
		got, err := ParseServer(c.in)
		switch {
		case c.want == "" && err == nil:
			t.Errorf("%q: got %v, want an error", c.in, got)
		case c.want != "" && (err != nil || got.String() != c.want):
			t.Errorf("%q: got %v, %v, want %s", c.in, got, err, c.want)
		}
	}
}
