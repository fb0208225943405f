// Package lossguard stands between a source and the build, and doubts what is too bad to be true: when a source suddenly
// loses most of its endpoints or routes while its connection is troubled, the old ones are served on, and that is told
// loudly. They are let go when they come back, when a complete reading in good order confirms the loss, when the
// administrator accepts it, or after ten minutes at the latest: addresses of pods are given to other pods. That nothing at all is
// left is confirmed by no reading. A loss while all is well is passed on at once.
//
// It also knows how old the last good reading of the source is. It decides nothing else, and cmd runs it; the loop reads
// Snapshot after Changed, as it would the source's own.
package lossguard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"headgate/gateway/snapshot"
)

// Source is what is guarded.
type Source interface {
	Changed() <-chan struct{}
	Snapshot() (s *snapshot.Snapshot, complete bool)
}

// Config says what to guard. Everything without a note is required.
type Config struct {
	Source Source
	// Signs tells how the source is; it is called often.
	Signs func() Signs
	// Relist asks the source to be read as a whole once more; nil: it does so by itself from time to time.
	Relist func()
	Limits Limits
	// MaxAge is how old the last good reading may be before that is told as something out of order; 0: any age.
	MaxAge time.Duration
	// File remembers over a restart how much was served, so that a start during an outage cannot lose it; "" does not.
	File string
	// Identity names the source: what was remembered of another one counts for nothing.
	Identity string
	// Logger may be nil.
	Logger *slog.Logger
}

const (
	// lookPeriod is the time between two looks without a change: for trouble that is seen after the loss, and for what ends.
	lookPeriod = time.Second
	// relistPeriod is the time between two requests for another reading.
	relistPeriod = time.Minute
	// savePeriod bounds how often the file is written.
	savePeriod = 10 * time.Second
	// stampPeriod is how old the time in the file may get while nothing else changes.
	stampPeriod = 10 * time.Minute
	// growthPeriod bounds how often it is told that a held loss grows.
	growthPeriod = 10 * time.Second
	fileMode     = 0o640
)

// Guard is a Source of what another one has, without absurd losses. Its methods may be called from any goroutine.
type Guard struct {
	config  Config
	log     *slog.Logger
	changed chan struct{} // capacity 1: a signal, not a queue

	mu       sync.Mutex // guards what follows
	filter   *Filter
	current  time.Time // when what the source told was last known to be the newest
	seen     bool      // the source was complete
	tooOld   bool      // told
	holds    uint64
	relisted time.Time
	given    *snapshot.Snapshot // what Snapshot returned last
	told     Sizes              // how much is held, as the log has it
	toldAt   time.Time

	// These belong to Run.
	saved    record
	savedAt  time.Time
	unsaveds bool // that it could not be saved was told
}

// record is the content of the file.
type record struct {
	Source string    `json:"source"`
	Seen   time.Time `json:"seen"`
	Sizes  Sizes     `json:"sizes"`
}

// New makes a guard; it starts nothing. A file that cannot be used is told, and nothing is remembered.
func New(config Config) *Guard {
	g := &Guard{config: config, log: config.Logger, changed: make(chan struct{}, 1), current: time.Now()}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if g.saved, err = read(config.File); err != nil {
		g.log.Warn("what was served before is not remembered: a loss during the restart would not be seen", "err", err)
	}
	if g.saved.Source != config.Identity {
		g.saved = record{}
	} else if !g.saved.Seen.IsZero() && g.saved.Seen.Before(g.current) {
		g.current = g.saved.Seen
	}
	g.filter = NewFilter(config.Limits, g.saved.Sizes)
	return g
}

func read(file string) (record, error) {
	if file == "" {
		return record{}, nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, fmt.Errorf("read %s: %w", file, err)
	}
	return r, nil
}

// Changed gets a value after Snapshot began to return something else.
func (g *Guard) Changed() <-chan struct{} { return g.changed }

// Snapshot is what is to be served. It is not complete while the source is not, or while its first snapshot is withheld.
func (g *Guard) Snapshot() (*snapshot.Snapshot, bool) {
	out, complete := g.pass(time.Now())
	g.mu.Lock()
	g.given = out
	g.mu.Unlock()
	if out == nil {
		return &snapshot.Snapshot{}, false
	}
	return out, complete
}

// pass judges the newest snapshot and tells what is new about it.
func (g *Guard) pass(now time.Time) (*snapshot.Snapshot, bool) {
	s, complete := g.config.Source.Snapshot()
	signs := g.config.Signs()
	g.mu.Lock()
	defer g.mu.Unlock()
	if complete && signs.Healthy {
		g.renewed(now)
	}
	g.age(now)
	if !complete {
		return nil, false
	}
	before := g.filter.Report()
	out := g.filter.Pass(now, s, signs)
	g.tell(now, before, g.filter.Report())
	return out, out != nil
}

// tell logs what began, what grew and what ended.
func (g *Guard) tell(now time.Time, before, after Report) {
	switch {
	case before.Since.IsZero() && !after.Since.IsZero():
		g.holds++
		g.told, g.toldAt = after.Held(), now
		g.log.Warn("an absurd loss is not passed on: the old objects are served",
			"had", after.Before.String(), "has", after.Now.String(), "why", after.Why, "until", after.Until,
			"advice", "headgate accept lets them go at once")
	case !before.Since.IsZero() && after.Since.IsZero():
		g.log.Info("nothing is held against the source any more", "why", string(g.filter.LastEnding()), "serves", after.Now.String())
	case after.Held().minus(g.told) != (Sizes{}) && now.Sub(g.toldAt) >= growthPeriod:
		g.told, g.toldAt = after.Held(), now
		g.log.Warn("the loss that is not passed on has grown", "had", after.Before.String(), "has", after.Now.String(), "until", after.Until)
	}
}

// renewed notes that the source is known to be current.
func (g *Guard) renewed(now time.Time) { g.current, g.seen = now, true }

// age tells when the source has not been known to be current for too long.
func (g *Guard) age(now time.Time) {
	if g.config.MaxAge <= 0 {
		return
	}
	switch old := now.Sub(g.current) > g.config.MaxAge; {
	case old && !g.tooOld:
		g.tooOld = true
		g.log.Error("what is served is older than allowed: it is served on", "age", now.Sub(g.current).Round(time.Second), "maxAge", g.config.MaxAge)
	case !old && g.tooOld:
		g.tooOld = false
		g.log.Info("what is served is current again")
	}
}

// Accept lets everything go that is held, and gives what that was; a zero Report when there was nothing.
func (g *Guard) Accept() Report {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.filter.Report()
	if before.Since.IsZero() {
		return Report{}
	}
	g.filter.Accept()
	g.tell(time.Now(), before, g.filter.Report())
	signal(g.changed)
	return before
}

// SetLimits replaces Limits and MaxAge of Config.
func (g *Guard) SetLimits(limits Limits, maxAge time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.config.Limits, g.config.MaxAge = limits, maxAge
	g.filter.SetLimits(limits)
	if maxAge <= 0 {
		g.tooOld = false
	}
	signal(g.changed)
}

// Condition is what a Guard tells of itself.
type Condition struct {
	Report
	// Age is how old the last good reading of the source is; 0 while it is current.
	Age time.Duration
	// MaxAge is that of Config, and TooOld tells that Age exceeds it.
	MaxAge time.Duration
	TooOld bool
	// Holds counts how often something was held since the start.
	Holds uint64
}

// Condition tells how the guard is.
func (g *Guard) Condition() Condition {
	healthy := g.config.Signs().Healthy
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	c := Condition{Report: g.filter.Report(), MaxAge: g.config.MaxAge, TooOld: g.tooOld, Holds: g.holds}
	if !healthy || !g.seen {
		c.Age = max(0, now.Sub(g.current))
	}
	if !c.Since.IsZero() {
		c.Age = max(c.Age, now.Sub(c.Since))
	}
	return c
}

// Run looks after what time brings until ctx ends, and returns nil then.
func (g *Guard) Run(ctx context.Context) error {
	look := time.NewTicker(lookPeriod)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			g.save()
			return nil
		case <-g.config.Source.Changed():
			signal(g.changed)
		case now := <-look.C:
			if out, _ := g.pass(now); out != g.lastGiven() {
				signal(g.changed)
			}
			g.askAgain(now)
			if now.Sub(g.savedAt) >= savePeriod && g.worthSaving() {
				g.save()
			}
		}
	}
}

// askAgain has the source read as a whole once more, when that could confirm a loss.
func (g *Guard) askAgain(now time.Time) {
	if g.config.Relist == nil || !g.config.Signs().calm(now) {
		return
	}
	g.mu.Lock()
	due := g.filter.Holding() && now.Sub(g.relisted) >= relistPeriod
	if due {
		g.relisted = now
	}
	g.mu.Unlock()
	if due {
		g.config.Relist()
	}
}

func (g *Guard) lastGiven() *snapshot.Snapshot {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.given
}

// record gives what is to be remembered; ok is false while this process has served nothing.
func (g *Guard) record() (r record, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	sizes, ok := g.filter.Passed()
	return record{Source: g.config.Identity, Seen: g.current, Sizes: sizes}, ok
}

// worthSaving tells whether the file says something else.
func (g *Guard) worthSaving() bool {
	next, ok := g.record()
	return ok && (next.Sizes != g.saved.Sizes || next.Source != g.saved.Source || next.Seen.Sub(g.saved.Seen) >= stampPeriod)
}

// save writes what is served into the file.
func (g *Guard) save() {
	next, ok := g.record()
	if g.config.File == "" || !ok {
		return
	}
	g.savedAt = time.Now()
	text, err := json.Marshal(next)
	if err == nil {
		err = renameio.WriteFile(g.config.File, append(text, '\n'), fileMode)
	}
	if err != nil {
		if !g.unsaveds {
			g.unsaveds = true
			g.log.Warn("what is served is not remembered over a restart", "err", err)
		}
		return
	}
	g.saved, g.unsaveds = next, false
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
