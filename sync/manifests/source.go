// Package manifests turns folders of YAML or JSON files into the same snapshot that a cluster would give, and keeps it
// equal to the folders while they are edited. It decides nothing and defaults only what the API server would. It is run
// by cmd; the loop reads Snapshot after Changed.
//
// # What is read
//
// Files directly in a folder (no subfolders) whose names end in .yaml, .yml or .json and do not begin with a dot, so that
// editors' temporary files stay out. A symbolic link is followed while its target lies inside the folder, as in a mounted
// ConfigMap; one that leads out of it is a Fault: who may write into the folder must not make headgate read, say,
// /etc/shadow and quote from it in a message. The folder itself may be a link.
//
// # What happens to bad input
//
// A mistake costs itself only and is told as a Fault with file, line and field. What was good before stays: a file that
// is not YAML keeps all its objects, an object with an unknown field or a missing one keeps its last good version, a
// folder that vanishes or cannot be read keeps everything (to remove objects, remove their files). Nothing of the kind is
// remembered over a restart.
package manifests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"headgate/gateway/snapshot"
	"headgate/sync/folderwatch"
)

// Limits of one source. What exceeds them is a Fault.
const (
	maxFileBytes   = 16 << 20
	maxObjectBytes = 3 << 20 // the API server's own limit of a request
	maxFiles       = 10_000  // in one folder

	defaultRescan = 30 * time.Second
	// quiet is how long a folder must rest before it is read: an editor's save is a handful of events, and the
	// moment between its unlink and its rename must not be taken for the removal of a file.
	quiet = 60 * time.Millisecond
	// patience bounds the wait for rest.
	patience = 500 * time.Millisecond
)

// Config says what to read.
type Config struct {
	// Folders are read in this order; of two definitions of one object, the first folder's counts. At least one.
	Folders []string
	// StateDir is where first-seen times are kept over restarts (firstSeenFile); "" keeps them in memory only.
	StateDir string
	// Rescan is the interval of looks at the folders without an event, for file systems that send none; 0 means 30 s.
	Rescan time.Duration
	// Logger gets what concerns the watching itself and the folders; Faults are part of the snapshot and not logged here.
	// nil discards.
	Logger *slog.Logger
}

// Source is the snapshot of the folders. Its methods may be called from any goroutine.
type Source struct {
	config  Config
	log     *slog.Logger
	changed chan struct{} // capacity 1: a signal, not a queue
	latest  atomic.Pointer[snapshot.Snapshot]
	health  atomic.Pointer[Health]

	// The rest belongs to the goroutine of Run.
	folders []*folder
	seen    *firstSeen
	unsaved bool // seen could not be saved
}

// New makes a Source; it reads nothing before Run. An error means a Config that cannot work.
func New(config Config) (*Source, error) {
	if len(config.Folders) == 0 {
		return nil, errors.New("no folder of manifests is named")
	}
	if config.Rescan <= 0 {
		config.Rescan = defaultRescan
	}
	s := &Source{config: config, log: config.Logger, changed: make(chan struct{}, 1)}
	s.health.Store(&Health{Healthy: true, Since: time.Now()})
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for _, path := range config.Folders {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return nil, fmt.Errorf("finding the folder %s: %w", path, err)
		}
		if slices.ContainsFunc(s.folders, func(f *folder) bool { return f.path == absolute }) {
			return nil, fmt.Errorf("the folder %s is named twice: name it once", path)
		}
		s.folders = append(s.folders, &folder{path: absolute, files: map[string]*file{}})
	}
	if len(s.folders) > 1 {
		for _, f := range s.folders {
			f.prefix = f.path
		}
	}
	return s, nil
}

// Read makes a snapshot of the folders once, without watching. An object without a creationTimestamp counts as created
// now, unless Config.StateDir knows better; nothing is written. An error means that a folder cannot be read.
func Read(config Config, now time.Time) (*snapshot.Snapshot, error) {
	s, err := New(config)
	if err != nil {
		return nil, err
	}
	s.seen, err = loadFirstSeen(config.StateDir)
	if err != nil {
		return nil, err
	}
	s.scan(now)
	for _, f := range s.folders {
		if f.fault != nil {
			return nil, errors.New(f.fault.Origin + ": " + f.fault.Message)
		}
	}
	return s.latest.Load(), nil
}

// Health tells whether all folders can be read. What is wrong within one is a Fault, and costs no health.
type Health struct {
	Healthy bool
	Since   time.Time // of the present Healthy
	// Reason names the folders that cannot be read, and what to do; "" when there is none. Their objects stay.
	Reason string
	// Troubled is when a folder was last not as one expects, and Trouble says how: it could not be read, was another one
	// than before (a mount that came or went), or was empty; or a file was. What is lost soon afterwards may not be gone.
	Troubled time.Time
	Trouble  string
	// Listed is when the last look at the folders began.
	Listed time.Time
}

// Health is what the last look at the folders found. Before the first look it is healthy.
func (s *Source) Health() Health { return *s.health.Load() }

// judge brings Health up to date and tells of each folder whose reason is new.
func (s *Source) judge(before []string, now time.Time) {
	var reasons []string
	for i, f := range s.folders {
		if f.reason != "" {
			reasons = append(reasons, f.reason)
		}
		switch f.reason {
		case before[i]:
		case "":
			s.log.Info("the folder of manifests can be read again", "folder", f.path)
		default:
			s.log.Warn("a folder of manifests cannot be read", "reason", f.reason)
		}
	}
	last := s.Health()
	next := Health{
		Healthy: len(reasons) == 0, Since: now, Reason: strings.Join(reasons, "; "),
		Troubled: last.Troubled, Trouble: last.Trouble, Listed: now,
	}
	if last.Healthy == next.Healthy {
		next.Since = last.Since
	}
	for _, f := range s.folders {
		if f.doubt != "" {
			next.Troubled, next.Trouble = now, f.doubt
		}
	}
	s.health.Store(&next)
}

// Changed gets a value after Snapshot began to return something else.
func (s *Source) Changed() <-chan struct{} { return s.changed }

// Snapshot is what the folders hold. It is complete once each folder was read; before that it must not be served.
// The result is never nil.
func (s *Source) Snapshot() (*snapshot.Snapshot, bool) {
	if latest := s.latest.Load(); latest != nil {
		return latest, true
	}
	return &snapshot.Snapshot{}, false
}

// Run watches until ctx ends, and returns nil then: nothing that it meets on disk ends it. It must run at most once.
func (s *Source) Run(ctx context.Context) error {
	s.seen = resumeFirstSeen(s.config.StateDir, s.log)
	w := folderwatch.Start(folderwatch.Config{Quiet: quiet, Patience: patience, Logger: s.log})
	defer w.Close()
	paths := make([]string, 0, len(s.folders))
	for _, f := range s.folders {
		paths = append(paths, f.path)
	}
	rescan := time.NewTicker(s.config.Rescan)
	defer rescan.Stop()
	for {
		// The watch is set before the look, so that a change in between sends an event.
		w.Follow(paths)
		s.scan(time.Now())
		s.saveSeen()
		select {
		case <-ctx.Done():
			return nil
		case <-rescan.C:
		case <-w.Changed():
			if !w.Settle(ctx) {
				return nil
			}
		}
	}
}

// saveSeen is tried again with each look; that it fails is told once.
func (s *Source) saveSeen() {
	err := s.seen.save()
	if err != nil && !s.unsaved {
		s.log.Error("first-seen times are not saved: after a restart, objects may count as new", "err", err)
	}
	s.unsaved = err != nil
}

// scan looks at all folders and publishes what is different.
func (s *Source) scan(now time.Time) {
	complete := true
	before := make([]string, len(s.folders))
	for i, f := range s.folders {
		before[i] = f.reason
		f.scan()
		complete = complete && f.read
	}
	s.judge(before, now)
	next := s.assemble(now)
	if !complete {
		return
	}
	if before := s.latest.Load(); before != nil && same(before, next) {
		return
	}
	s.latest.Store(next)
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// assemble joins the files into one snapshot: of two definitions, the first by folder and file name counts.
func (s *Source) assemble(now time.Time) *snapshot.Snapshot {
	next := &snapshot.Snapshot{}
	owners := map[identity]string{}
	var ignored kindCount
	for _, f := range s.folders {
		if f.fault != nil {
			next.Faults = append(next.Faults, *f.fault)
		}
		for _, one := range f.sorted() {
			next.Faults = append(next.Faults, one.faults...)
			ignored.add(one.ignored)
			for _, o := range one.objects {
				if owner, taken := owners[o.id]; taken {
					next.Faults = append(next.Faults, o.duplicateOf(owner))
					continue
				}
				owners[o.id] = o.meta().Origin
				if o.meta().Created.IsZero() {
					o.meta().Created = s.seen.time(o.id, now)
				}
				o.addTo(next)
			}
		}
	}
	s.seen.forget(now, func(id identity) bool { _, ok := owners[id]; return ok })
	if fault := ignored.fault(); fault != nil {
		next.Faults = append(next.Faults, *fault)
	}
	sortSnapshot(next)
	return next
}
