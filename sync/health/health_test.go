package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"headgate/gateway/build"
	"headgate/gateway/model"
	"headgate/gateway/snapshot"
	"headgate/sync/script"
)

// peersInPlay answers checks.
type peersInPlay struct {
	*script.Script[netip.AddrPort, error]
}

func newPeersInPlay() peersInPlay { return peersInPlay{script.New[netip.AddrPort, error]()} }

func (s peersInPlay) set(address string, err error) { s.Set(netip.MustParseAddrPort(address), err) }

func (s peersInPlay) times(address string) []time.Duration {
	return s.Times(netip.MustParseAddrPort(address))
}

func (s peersInPlay) check(ctx context.Context, address netip.AddrPort, _ *policy) error {
	return s.Ask(ctx, address)
}

// inBubble runs a checker over peers in play, on a fake clock.
func inBubble(t *testing.T, config Config, test func(c *Checker, s peersInPlay)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newPeersInPlay()
		c := New(config)
		c.ask = s.check
		script.While(t, c.Run, func() { test(c, s) })
	})
}

func check(id string, c model.HealthCheck, peers ...string) build.Check {
	one := build.Check{Upstream: model.UpstreamID(id), Check: c}
	for _, p := range peers {
		one.Peers = append(one.Peers, model.Peer{Address: netip.MustParseAddrPort(p), Weight: 1})
	}
	return one
}

func tcp() model.HealthCheck {
	return model.HealthCheck{Protocol: model.ProtocolTCP, Interval: 10 * time.Second, Rise: 2, Fall: 3}
}

func downs(c *Checker) string {
	var list []string
	for _, v := range c.Verdicts() {
		list = append(list, v.Upstream+" "+v.Address.String())
	}
	return strings.Join(list, ", ")
}

func requireDowns(t *testing.T, c *Checker, want string) {
	t.Helper()
	if got := downs(c); got != want {
		t.Errorf("down: %q, want %q", got, want)
	}
}

func changedNow(c *Checker) bool {
	select {
	case <-c.Changed():
		return true
	default:
		return false
	}
}

var errIll = errors.New("status 503, expected 200-399")

func TestFallAndRise(t *testing.T) {
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	inBubble(t, Config{Logger: log}, func(c *Checker, s peersInPlay) {
		s.set("10.0.0.1:80", errIll)
		c.Want([]build.Check{check("n/s/80", tcp(), "10.0.0.1:80", "10.0.0.2:80")})
		script.After(time.Minute)
		requireDowns(t, c, "n/s/80 10.0.0.1:80")
		if !changedNow(c) {
			t.Error("a verdict changed, and nobody was told")
		}
		// The first check within 10 s, the second within 10 s more, the third about 10 s later: no earlier than the third.
		if times := s.times("10.0.0.1:80"); len(times) < 5 || len(times) > 8 {
			t.Errorf("asked at %v", times)
		}
		before := len(s.times("10.0.0.1:80"))
		s.set("10.0.0.1:80", nil)
		for len(s.times("10.0.0.1:80")) < before+1 {
			script.After(pulse)
		}
		script.After(2 * pulse)
		requireDowns(t, c, "n/s/80 10.0.0.1:80")
		for len(s.times("10.0.0.1:80")) < before+2 {
			script.After(pulse)
		}
		script.After(2 * pulse)
		requireDowns(t, c, "")
		if !changedNow(c) {
			t.Error("a verdict changed, and nobody was told")
		}
		if got := c.Stats(); got.Up != 2 || got.Down != 0 || got.WentDown != 1 || got.CameUp != 1 || got.Failed == 0 || got.Succeeded == 0 {
			t.Errorf("stats %+v", got)
		}
	})
	for _, want := range []string{
		`level=INFO msg="peer is down: its health check fails" upstream=n/s/80 peer=10.0.0.1:80 reason="status 503, expected 200-399" failures=3`,
		`level=INFO msg="peer is up again" upstream=n/s/80 peer=10.0.0.1:80 successes=2`,
	} {
		if strings.Count(logged.String(), want) != 1 {
			t.Errorf("want once %q in\n%s", want, logged.String())
		}
	}
}

func TestAStreakThatBreaksCountsAnew(t *testing.T) {
	for _, c := range []struct {
		answers string // "." well, "x" ill
		want    state
	}{
		{"", unknown}, {".", up}, {"x", unknown}, {"xx", unknown}, {"xxx", down},
		{"xx.xx", up}, {"xx.xxx", down}, {"xxx.", down}, {"xxx..", up}, {"xxx.x.", down}, {"xxx.x..", up}, {"xxx..xx", up},
	} {
		p := &probe{policy: &policy{HealthCheck: tcp()}}
		var changes int
		for _, a := range c.answers {
			var failure error
			if a == 'x' {
				failure = errIll
			}
			if p.count(failure) {
				changes++
			}
		}
		if p.state != c.want {
			t.Errorf("%q: state %d, want %d after %d changes", c.answers, p.state, c.want, changes)
		}
	}
}

func TestWhatStaysKeepsItsState(t *testing.T) {
	inBubble(t, Config{}, func(c *Checker, s peersInPlay) {
		s.set("10.0.0.1:80", errIll)
		c.Want([]build.Check{check("n/s/80", tcp(), "10.0.0.1:80")})
		script.After(time.Minute)
		requireDowns(t, c, "n/s/80 10.0.0.1:80")
		before := s.times("10.0.0.1:80")

		c.Want([]build.Check{check("n/s/80", tcp(), "10.0.0.1:80", "10.0.0.3:80"), check("n/t/80", tcp(), "10.0.0.4:80")})
		script.After(11 * time.Second)
		requireDowns(t, c, "n/s/80 10.0.0.1:80")
		if got := s.times("10.0.0.1:80"); len(got) != len(before)+1 {
			t.Errorf("asked %d times in an interval", len(got)-len(before))
		}
		slower := tcp()
		slower.Interval = 20 * time.Second
		c.Want([]build.Check{check("n/s/80", slower, "10.0.0.1:80", "10.0.0.3:80")})
		script.After(time.Second)
		requireDowns(t, c, "n/s/80 10.0.0.1:80") // another check of the same upstream: the verdict stays until it has found out

		c.Want(nil)
		script.After(time.Second)
		requireDowns(t, c, "")
		asked := len(s.times("10.0.0.3:80"))
		script.After(time.Hour)
		if got := len(s.times("10.0.0.3:80")); got != asked {
			t.Error("nobody wants checks, and yet they are made")
		}
		if got := c.Stats(); got.Up+got.Down+got.Unknown != 0 {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestEqualChecksOfAPeerAreOne(t *testing.T) {
	inBubble(t, Config{}, func(c *Checker, s peersInPlay) {
		s.set("10.0.0.1:80", errIll)
		c.Want([]build.Check{check("n/s/80", tcp(), "10.0.0.1:80"), check("n/s/80#1", tcp(), "10.0.0.1:80")})
		script.After(time.Minute)
		requireDowns(t, c, "n/s/80 10.0.0.1:80, n/s/80#1 10.0.0.1:80")
		if got := len(s.times("10.0.0.1:80")); got > 8 {
			t.Errorf("asked %d times in a minute", got)
		}
		c.Want([]build.Check{check("n/s/80#1", tcp(), "10.0.0.1:80")})
		script.After(time.Second)
		requireDowns(t, c, "n/s/80#1 10.0.0.1:80")
	})
}

// TestVariantsOfAServiceShareProbes: an Ingress that wants its Service balanced in another way makes an upstream of its own of the
// same peers. Each is asked once as long as the check is the same, and the verdict counts for both.
func TestVariantsOfAServiceShareProbes(t *testing.T) {
	inBubble(t, Config{}, func(c *Checker, s peersInPlay) {
		const address = "10.0.0.1:80"
		usual, variant := check("n/s/80", tcp(), address), check("n/s/80#0a1b2c3d", tcp(), address)
		s.set(address, errIll)
		c.Want([]build.Check{usual, variant})
		script.After(10 * time.Minute)
		requireDowns(t, c, "n/s/80 "+address+", n/s/80#0a1b2c3d "+address)
		// 60 checks of one probe, a few more or less for their jitter.
		if n := len(s.times(address)); n < 55 || n > 66 {
			t.Errorf("asked %d times in 10 min, want about 60", n)
		}
		if got := c.Stats(); got.Down != 1 {
			t.Errorf("%d peers down, want 1", got.Down)
		}
		// One goes, and the other keeps what is known.
		c.Want([]build.Check{variant})
		script.After(time.Second)
		requireDowns(t, c, "n/s/80#0a1b2c3d "+address)
		// Another check is another question.
		other := tcp()
		other.Interval = 5 * time.Second
		before := len(s.times(address))
		c.Want([]build.Check{check("n/s/80", other, address), variant})
		script.After(10 * time.Minute)
		if n := len(s.times(address)) - before; n < 165 || n > 195 {
			t.Errorf("asked %d times in 10 min, want about 180", n)
		}
	})
}

// TestEvenSpread: the checks of many peers that came at once fall evenly over the interval, each peer at its own pace.
func TestEvenSpread(t *testing.T) {
	const peers, minutes = 1000, 5
	inBubble(t, Config{}, func(c *Checker, s peersInPlay) {
		one := check("n/s/80", tcp())
		for i := range peers {
			one.Peers = append(one.Peers, model.Peer{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80), Weight: 1})
		}
		c.Want([]build.Check{one})
		script.After(minutes * time.Minute)
		bySecond := map[int]int{}
		for _, times := range s.Asked() {
			for i, at := range times {
				bySecond[int(at/time.Second)]++
				if i > 0 {
					if gap := at - times[i-1]; gap < 9*time.Second || gap > 11*time.Second {
						t.Fatalf("asked again after %s", gap)
					}
				}
			}
		}
		for second := range minutes*60 - 1 {
			if got := bySecond[second]; got < 50 || got > 170 { // 100 ± 5 σ, and a pulse
				t.Errorf("second %d: %d checks", second, got)
			}
		}
	})
}

func TestNeverMoreThanConcurrency(t *testing.T) {
	inBubble(t, Config{Concurrency: 3}, func(c *Checker, s peersInPlay) {
		s.Slow(3 * time.Second)
		fast := tcp()
		fast.Interval = time.Second
		c.Want([]build.Check{check("n/s/80", fast, "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80", "10.0.0.5:80", "10.0.0.6:80")})
		script.After(time.Minute)
		if _, most := s.Running(); most != 3 {
			t.Errorf("%d checks at once", most)
		}
		for a, times := range s.Asked() {
			if len(times) < 8 { // the longest overdue goes first: nobody starves
				t.Errorf("%s was asked %d times", a, len(times))
			}
		}
		if got := c.Stats(); got.Running != 3 || got.Late == 0 {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestShutdownWaitsForNoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPeersInPlay()
		s.Slow(time.Hour)
		c := New(Config{})
		c.ask = s.check
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		c.Want([]build.Check{check("n/s/80", tcp(), "10.0.0.1:80")})
		script.After(time.Minute)
		if now, _ := s.Running(); now != 1 {
			t.Fatalf("%d checks run", now)
		}
		before := time.Now()
		cancel()
		if err := <-ended; err != nil || time.Since(before) != 0 {
			t.Errorf("Run ended with %v after %s", err, time.Since(before))
		}
	})
}

func TestMeansThatLackSayNothing(t *testing.T) {
	var logged bytes.Buffer
	inBubble(t, Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))}, func(c *Checker, s peersInPlay) {
		s.set("10.0.0.1:80", fmt.Errorf("%w: too many open files", errNoMeans))
		c.Want([]build.Check{check("n/s/80", tcp(), "10.0.0.1:80")})
		script.After(time.Hour)
		requireDowns(t, c, "")
		if got := c.Stats(); got.Void < 100 || got.Failed != 0 || got.Unknown != 1 {
			t.Errorf("stats %+v", got)
		}
	})
	if n := strings.Count(logged.String(), "level=WARN"); n != 1 {
		t.Errorf("told %d times:\n%s", n, logged.String())
	}
}

func TestAWholeClusterIsNotToldLineByLine(t *testing.T) {
	var logged bytes.Buffer
	inBubble(t, Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))}, func(c *Checker, s peersInPlay) {
		one := check("n/s/80", tcp())
		for i := range 1000 {
			a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
			one.Peers = append(one.Peers, model.Peer{Address: a, Weight: 1})
			s.set(a.String(), errIll)
		}
		c.Want([]build.Check{one})
		script.After(3 * time.Minute)
		if got := len(c.Verdicts()); got != 1000 {
			t.Errorf("%d are down", got)
		}
	})
	if n := strings.Count(logged.String(), "peer is down"); n < linesPerWindow || n > 2*linesPerWindow {
		t.Errorf("%d lines", n)
	}
	if !strings.Contains(logged.String(), "more peers changed than are told one by one") {
		t.Error("the rest is not told")
	}
}

func TestStalls(t *testing.T) {
	at := func(d time.Duration) time.Time { return time.Unix(100, 0).Add(d) }
	var s stalls
	for _, d := range []time.Duration{0, pulse, 2 * pulse, 2*pulse + time.Millisecond, 4 * pulse} {
		if s.look(at(d)) != 0 {
			t.Errorf("nothing stalled at %s", d)
		}
	}
	before := s.total
	if got, want := s.look(at(4*pulse+time.Second)), time.Second-pulse; got != want {
		t.Errorf("missed %s, want %s", got, want)
	}
	if !s.voids(before, time.Second) || !s.voids(before, 3*time.Second) || s.voids(before, 5*time.Second) || s.voids(s.total, time.Second) {
		t.Error("a check is void when a quarter of its time-out was missed")
	}
	s.pause()
	if s.look(at(time.Hour)) != 0 {
		t.Error("a pause is no stall")
	}
}

// TestVerdictsFollowAnyHistory: after any sequence of wishes and answers, the verdicts are about wanted peers alone, sorted,
// and the numbers add up.
func TestVerdictsFollowAnyHistory(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		inBubble(t, Config{Concurrency: 4}, func(c *Checker, s peersInPlay) {
			addresses := []string{"10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"}
			for range rapid.IntRange(1, 12).Draw(r, "steps") {
				for _, a := range addresses {
					s.set(a, rapid.SampledFrom([]error{nil, errIll}).Draw(r, a))
				}
				var wanted []build.Check
				targets := map[string]bool{}
				probes := map[string]bool{}
				for _, id := range []string{"a", "b", "c"} {
					if !rapid.Bool().Draw(r, id) {
						continue
					}
					how := tcp()
					how.Interval = rapid.SampledFrom([]time.Duration{time.Second, 5 * time.Second}).Draw(r, "interval")
					var peers []string
					for _, a := range addresses {
						if rapid.Bool().Draw(r, "peer") {
							peers = append(peers, a)
							targets[id+" "+a], probes[a+how.Interval.String()] = true, true
						}
					}
					wanted = append(wanted, check(id, how, peers...))
				}
				c.Want(wanted)
				script.After(time.Duration(rapid.IntRange(1, 40_000).Draw(r, "ms")) * time.Millisecond)
				verdicts := c.Verdicts()
				for _, v := range verdicts {
					if !v.Down || !targets[v.Upstream+" "+v.Address.String()] {
						r.Fatalf("a verdict on what nobody wants: %+v", v)
					}
				}
				if !slices.IsSortedFunc(verdicts, func(a, b snapshot.Verdict) int {
					return strings.Compare(a.Upstream+a.Address.String(), b.Upstream+b.Address.String())
				}) {
					r.Fatalf("not sorted: %v", verdicts)
				}
				if got := c.Stats(); got.Up+got.Down+got.Unknown != len(probes) {
					r.Fatalf("%+v for %d probes", got, len(probes))
				}
			}
		})
	})
}
