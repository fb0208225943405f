package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"headgate/gateway/snapshot"
)

// firstSeenFile lies in Config.StateDir. It holds names and times, nothing secret.
const firstSeenFile = "manifests-first-seen.json"

// grace is how long an object may be away without becoming a new one, so that moving it from one file to another,
// in two steps, does not cost its age.
const grace = time.Minute

// firstSeen remembers when each object without a creationTimestamp was first seen.
type firstSeen struct {
	path    string // "" keeps nothing on disk
	entries map[identity]seenEntry
	dirty   bool
}

type seenEntry struct {
	seen time.Time
	gone time.Time // zero while the object is there
}

// storedSeen is the format of the file.
type storedSeen struct {
	Version int           `json:"version"` // 1
	Objects []storedEntry `json:"objects"`
}

type storedEntry struct {
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	Seen      time.Time `json:"seen"`
}

// resumeFirstSeen is loadFirstSeen for who serves: a file that cannot be used is set aside and told, and every object
// counts as new. Which of two that conflict is the older may then turn over; to serve nothing would be worse.
func resumeFirstSeen(stateDir string, log *slog.Logger) *firstSeen {
	f, err := loadFirstSeen(stateDir)
	if err == nil {
		return f
	}
	f = &firstSeen{path: filepath.Join(stateDir, firstSeenFile), entries: map[identity]seenEntry{}}
	aside := f.path + ".refused"
	if asideErr := os.Rename(f.path, aside); asideErr != nil {
		aside, err = "", errors.Join(err, asideErr)
	}
	log.Warn("first-seen times are lost: every object counts as new, and of two that conflict another one may win", "err", err, "setAside", aside)
	return f
}

func loadFirstSeen(stateDir string) (*firstSeen, error) {
	f := &firstSeen{entries: map[identity]seenEntry{}}
	if stateDir == "" {
		return f, nil
	}
	f.path = filepath.Join(stateDir, firstSeenFile)
	raw, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading first-seen times: %w", err)
	}
	var stored storedSeen
	if err := json.Unmarshal(raw, &stored); err != nil {
		return nil, fmt.Errorf("reading first-seen times from %s: %w", f.path, err)
	}
	if stored.Version != 1 {
		return nil, fmt.Errorf("reading first-seen times from %s: version %d is none that this headgate writes", f.path, stored.Version)
	}
	for _, e := range stored.Objects {
		f.entries[identity{e.Kind, snapshot.Key{Namespace: e.Namespace, Name: e.Name}}] = seenEntry{seen: e.Seen}
	}
	return f, nil
}

// time gives the first time an object was seen, in whole seconds as the API server's creationTimestamp.
func (f *firstSeen) time(id identity, now time.Time) time.Time {
	entry, ok := f.entries[id]
	if !ok {
		entry.seen = now.UTC().Truncate(time.Second)
		f.dirty = true
	}
	entry.gone = time.Time{}
	f.entries[id] = entry
	return entry.seen
}

// forget drops what has been away for longer than grace. Objects that keep their time in another way
// (creationTimestamp) have no entry.
func (f *firstSeen) forget(now time.Time, present func(identity) bool) {
	for id, entry := range f.entries {
		switch {
		case present(id):
			if !entry.gone.IsZero() {
				entry.gone = time.Time{}
				f.entries[id] = entry
			}
		case entry.gone.IsZero():
			entry.gone = now
			f.entries[id] = entry
		case now.Sub(entry.gone) > grace:
			delete(f.entries, id)
			f.dirty = true
		}
	}
}

// save writes the times if they changed.
func (f *firstSeen) save() error {
	if f.path == "" || !f.dirty {
		return nil
	}
	stored := storedSeen{Version: 1}
	for _, id := range slices.SortedFunc(maps.Keys(f.entries), compareIdentity) {
		stored.Objects = append(stored.Objects, storedEntry{id.kind, id.key.Namespace, id.key.Name, f.entries[id].seen})
	}
	raw, err := json.MarshalIndent(stored, "", " ")
	if err != nil {
		return fmt.Errorf("encoding first-seen times: %w", err)
	}
	if err := renameio.WriteFile(f.path, append(raw, '\n'), 0o640, renameio.WithStaticPermissions(0o640), renameio.WithTempDir(filepath.Dir(f.path))); err != nil {
		return fmt.Errorf("writing first-seen times: %w", err)
	}
	f.dirty = false
	return nil
}

func compareIdentity(a, b identity) int {
	if a.kind != b.kind {
		if a.kind < b.kind {
			return -1
		}
		return 1
	}
	return a.key.Compare(b.key)
}
