package lossguard

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"headgate/gateway/snapshot"
)

// fakeSource is a source that the test edits.
type fakeSource struct {
	changed chan struct{}

	mu       sync.Mutex
	snap     *snapshot.Snapshot
	complete bool
	signs    Signs
	relists  int
}

func (s *fakeSource) Changed() <-chan struct{} { return s.changed }

func (s *fakeSource) Snapshot() (*snapshot.Snapshot, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snap, s.complete
}

func (s *fakeSource) Signs() Signs {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signs
}

// Relist reads everything anew, which works.
func (s *fakeSource) Relist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relists++
	s.signs.Listed = time.Now()
}

func (s *fakeSource) edit(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	signal(s.changed)
	synctest.Wait()
}

// inBubble runs a guard over a source of 40 routes on a fake clock.
func inBubble(t *testing.T, config Config, test func(g *Guard, s *fakeSource, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(40)
		s := &fakeSource{changed: make(chan struct{}, 1), snap: c.snapshot(), complete: true}
		s.signs = Signs{Healthy: true, Listed: time.Now()}
		config.Source, config.Signs, config.Relist = s, s.Signs, s.Relist
		g := New(config)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- g.Run(ctx) }()
		test(g, s, c)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func routes(t *testing.T, g *Guard) int {
	t.Helper()
	s, complete := g.Snapshot()
	if !complete {
		return -1
	}
	return len(s.Ingresses)
}

func told(g *Guard) bool {
	select {
	case <-g.Changed():
		return true
	default:
		return false
	}
}

func after(d time.Duration) {
	time.Sleep(d) // in a bubble: no time at all
	synctest.Wait()
}

func TestGuardAsksAgainAndLetsGo(t *testing.T) {
	var logged bytes.Buffer
	inBubble(t, Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))}, func(g *Guard, s *fakeSource, c *cluster) {
		if got := routes(t, g); got != 40 {
			t.Fatalf("%d routes", got)
		}
		after(time.Hour)
		c.remove(0, 30)
		s.edit(func() { s.snap, s.signs.Trouble, s.signs.What = c.snapshot(), time.Now(), "a watch broke off" })
		if !told(g) || routes(t, g) != 40 {
			t.Errorf("%d routes", routes(t, g))
		}
		if got := g.Condition(); got.Held().Routes != 30 || got.Holds != 1 || got.Age != 0 {
			t.Errorf("condition %+v", got)
		}
		after(20 * time.Second)
		if s.relists != 0 {
			t.Error("it asks again before it is calm")
		}
		if got := g.Condition().Age; got < 20*time.Second || got > 21*time.Second {
			t.Errorf("age %s", got)
		}
		after(15 * time.Second)
		if s.relists != 1 || !told(g) || routes(t, g) != 10 {
			t.Errorf("%d readings, %d routes", s.relists, routes(t, g))
		}
		after(time.Hour)
		if s.relists != 1 || told(g) {
			t.Error("it asks although nothing is held")
		}
	})
	for _, want := range []string{
		`level=WARN msg="an absurd loss is not passed on: the old objects are served" had="40 routes, 80 endpoints, 40 services" has="10 routes, 20 endpoints, 10 services" why="a watch broke off"`,
		`level=INFO msg="nothing is held against the source any more" why="a complete reading of the source, in good order, confirms that they are gone"`,
	} {
		if strings.Count(logged.String(), want) != 1 {
			t.Errorf("want once %s in\n%s", want, logged.String())
		}
	}
}

func TestGuardSeesTroubleAfterTheLoss(t *testing.T) {
	inBubble(t, Config{}, func(g *Guard, s *fakeSource, c *cluster) {
		routes(t, g)
		after(time.Hour)
		c.remove(0, 40)
		s.edit(func() { s.snap = c.snapshot() })
		if got := routes(t, g); got != 0 {
			t.Fatalf("a loss in good order is held: %d", got)
		}
		told(g)
		s.mu.Lock()
		s.signs.Healthy = false
		s.mu.Unlock()
		after(2 * time.Second)
		if !told(g) || routes(t, g) != 40 {
			t.Errorf("%d routes", routes(t, g))
		}
	})
}

func TestGuardAccepts(t *testing.T) {
	inBubble(t, Config{}, func(g *Guard, s *fakeSource, c *cluster) {
		routes(t, g)
		if got := g.Accept(); !got.Since.IsZero() {
			t.Errorf("accepted %+v", got)
		}
		c.remove(0, 40)
		s.edit(func() { s.snap, s.signs.Healthy = c.snapshot(), false })
		if got := routes(t, g); got != 40 {
			t.Fatalf("%d routes", got)
		}
		told(g)
		if got := g.Accept(); got.Before.Routes != 40 || got.Now.Routes != 0 {
			t.Errorf("accepted %+v", got)
		}
		if !told(g) || routes(t, g) != 0 || !g.Condition().Since.IsZero() {
			t.Errorf("%d routes, %+v", routes(t, g), g.Condition())
		}
	})
}

func TestGuardRemembersOverARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lossguard.json")
	run := func(identity string, test func(g *Guard, s *fakeSource, c *cluster)) {
		inBubble(t, Config{File: file, Identity: identity}, test)
	}
	run("a", func(g *Guard, _ *fakeSource, _ *cluster) { routes(t, g) })
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), `"sizes":{"routes":40,"endpoints":80,"services":40,"secrets":0}`) {
		t.Fatalf("%s, %v", text, err)
	}
	emptied := func(s *fakeSource) {
		s.edit(func() {
			s.snap, s.complete = &snapshot.Snapshot{}, true
			s.signs.Trouble, s.signs.What = time.Now(), "the start"
		})
	}
	run("b", func(g *Guard, s *fakeSource, _ *cluster) { // another source: nothing is known of it
		emptied(s)
		if got := routes(t, g); got != 0 {
			t.Errorf("%d routes", got)
		}
	})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	run("a", func(g *Guard, s *fakeSource, _ *cluster) {
		emptied(s)
		if got := routes(t, g); got != -1 {
			t.Fatalf("an empty answer at the start is believed: %d routes", got)
		}
		if got := g.Condition(); !got.Withheld || got.Held().Routes != 40 {
			t.Errorf("condition %+v", got)
		}
		after(5 * time.Minute)
		if got := routes(t, g); got != -1 {
			t.Fatalf("%d routes", got)
		}
		after(6 * time.Minute)
		if got := routes(t, g); got != 0 {
			t.Errorf("%d routes", got)
		}
	})
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	run("a", func(g *Guard, s *fakeSource, _ *cluster) { // damaged: told, and nothing is known
		emptied(s)
		if got := routes(t, g); got != 0 {
			t.Errorf("%d routes", got)
		}
	})
}

func TestAge(t *testing.T) {
	var logged bytes.Buffer
	inBubble(t, Config{MaxAge: time.Hour, Logger: slog.New(slog.NewTextHandler(&logged, nil))}, func(g *Guard, s *fakeSource, _ *cluster) {
		routes(t, g)
		after(2 * time.Hour)
		if got := g.Condition(); got.Age != 0 || got.TooOld {
			t.Errorf("healthy: %+v", got)
		}
		s.edit(func() { s.signs.Healthy = false })
		after(30 * time.Minute)
		if got := g.Condition(); got.Age.Round(time.Minute) != 30*time.Minute || got.TooOld {
			t.Errorf("after 30 minutes: %+v", got)
		}
		after(31 * time.Minute)
		if got := g.Condition(); !got.TooOld || got.MaxAge != time.Hour {
			t.Errorf("after an hour: %+v", got)
		}
		if got := routes(t, g); got != 40 {
			t.Errorf("what is too old is served on, got %d routes", got)
		}
		s.edit(func() { s.signs.Healthy = true })
		after(2 * time.Second)
		if got := g.Condition(); got.Age != 0 || got.TooOld {
			t.Errorf("healthy again: %+v", got)
		}
	})
	for _, want := range []string{`level=ERROR msg="what is served is older than allowed: it is served on"`, `level=INFO msg="what is served is current again"`} {
		if strings.Count(logged.String(), want) != 1 {
			t.Errorf("want once %s in\n%s", want, logged.String())
		}
	}
}

func TestNothingIsCompleteBeforeTheSourceIs(t *testing.T) {
	inBubble(t, Config{}, func(g *Guard, s *fakeSource, _ *cluster) {
		s.edit(func() { s.complete = false })
		if got := routes(t, g); got != -1 {
			t.Errorf("%d routes", got)
		}
	})
}

// TestGuardTakesOtherLimits: a loss that was believed is held by stricter limits, and what is held goes when it may be held no
// longer.
func TestGuardTakesOtherLimits(t *testing.T) {
	inBubble(t, Config{Limits: Limits{Minimum: 1000}}, func(g *Guard, s *fakeSource, c *cluster) {
		before := routes(t, g)
		c.remove(0, 10)
		s.edit(func() { s.snap, s.signs.Healthy = c.snapshot(), false })
		if got := routes(t, g); got != before-10 {
			t.Fatalf("%d routes of %d: a loss below the minimum", got, before)
		}
		told(g)
		g.SetLimits(Limits{Minimum: 5, Share: 1, Hold: time.Minute}, time.Hour)
		if !told(g) || g.Condition().MaxAge != time.Hour {
			t.Errorf("nobody is told, or %+v", g.Condition())
		}
		c.remove(10, 20)
		s.edit(func() { s.snap = c.snapshot() })
		if got := routes(t, g); got <= before-20 {
			t.Errorf("%d routes of %d: the loss is believed", got, before)
		}
	})
}
