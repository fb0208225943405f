package statelog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"headgate/gateway/luastate"
)

// syncPeriod is the least time between two fsyncs, and between attempts to get a broken disk back.
const syncPeriod = time.Second

// Run makes what was appended durable and compacts the file, at most once a second, until ctx ends;
// then it syncs once more. It does nothing while nothing is appended. It returns nil.
func (l *Log) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			l.maintain()
			return nil
		case <-l.wake:
		}
		l.maintain()
		if !pause(ctx, syncPeriod) {
			l.maintain()
			return nil
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// maintain does what is due: a compaction, or an fsync.
func (l *Log) maintain() {
	switch due := l.due(); due {
	case dueCompaction:
		if err := l.compact(); err != nil {
			l.failed(err)
		}
	case dueSync:
		if err := l.sync(); err != nil {
			l.failed(err)
		}
	case dueNothing:
	}
}

type duty int

const (
	dueNothing duty = iota
	dueSync
	dueCompaction
)

func (l *Log) due() duty {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.detached && l.appended:
		return dueCompaction
	case l.detached:
		// Nothing was pushed by this process: the file on disk, whatever is wrong with it, may be
		// all that the proxy has, or another process writes it. Only something newer replaces it.
		return dueNothing
	case l.size > 2*l.live && l.size > l.cfg.CompactBytes:
		return dueCompaction
	case l.dirty:
		return dueSync
	}
	return dueNothing
}

// failed notes a failed fsync or compaction, and sees to it that Run tries again.
func (l *Log) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.detach(err)
}

func (l *Log) sync() error {
	l.mu.Lock()
	f := l.file
	l.dirty = false
	l.mu.Unlock()
	// Not under the lock: a push must not wait for the disk. Only Run replaces the file.
	if err := f.Sync(); err != nil {
		return fmt.Errorf("fsync the state log: %w", err)
	}
	return l.inPlace(f)
}

// inPlace makes sure that the proxy would find f: somebody may have removed or replaced the file.
func (l *Log) inPlace(f *os.File) error {
	ours, err := f.Stat()
	if err != nil {
		return fmt.Errorf("look at the state log: %w", err)
	}
	there, err := os.Stat(l.cfg.Path)
	if err != nil {
		return fmt.Errorf("look at the state log: %w", err)
	}
	if !os.SameFile(ours, there) {
		return fmt.Errorf("%s was replaced by another file", l.cfg.Path)
	}
	return nil
}

// compact writes the whole state as one push into a new file beside the log and puts that in its
// place. Pushes go on meanwhile: they are collected and added before the new file takes over.
func (l *Log) compact() error {
	s, err := l.freeze()
	if err != nil {
		return err
	}
	path := l.cfg.Path + ".new"
	f, places, size, err := l.writeWhole(path, s)
	if err != nil {
		l.mu.Lock()
		l.tail = nil
		l.mu.Unlock()
		return errors.Join(err, removeIfThere(path))
	}
	if err := l.takeOver(f, path, places, size); err != nil {
		return errors.Join(err, f.Close(), removeIfThere(path))
	}
	if err := syncFolder(l.cfg.Path); err != nil {
		return err
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// frozen is the state at the start of a compaction.
type frozen struct {
	revision uint64
	pointers map[string]string
	bodies   map[string]place
	file     *os.File
}

func (l *Log) freeze() (frozen, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.takeLock(); err != nil {
		return frozen{}, err
	}
	l.tail = &tail{places: make(map[string]int64)}
	return frozen{l.revision, maps.Clone(l.pointers), maps.Clone(l.bodies), l.file}, nil
}

// writeWhole writes s to a new file at path, synced. It returns where each body lies in it.
func (l *Log) writeWhole(path string, s frozen) (*os.File, map[string]int64, int64, error) {
	w := newWriter(magic, s.revision, int(liveBytes(s.pointers, s.bodies)), len(s.bodies))
	w.add(schemaRecord())
	for _, hash := range slices.Sorted(maps.Keys(s.bodies)) {
		data, err := s.bodies[hash].read(s.file)
		if err != nil {
			return nil, nil, 0, err
		}
		w.add(luastate.Record{Op: luastate.OpBody, Key: hash, Value: data})
	}
	for _, name := range slices.Sorted(maps.Keys(s.pointers)) {
		w.add(luastate.Record{Op: luastate.OpPointer, Key: name, Value: []byte(s.pointers[name])})
	}
	w.add(luastate.Record{Op: luastate.OpRevision, Value: strconv.AppendUint(nil, s.revision, 10)})
	e := w.finish()

	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("make the new state log: %w", err)
	}
	if err := l.own(f); err != nil {
		return nil, nil, 0, errors.Join(err, f.Close())
	}
	if _, err := f.Write(e.bytes); err != nil {
		return nil, nil, 0, errors.Join(fmt.Errorf("write the new state log: %w", err), f.Close())
	}
	if err := f.Sync(); err != nil {
		return nil, nil, 0, errors.Join(fmt.Errorf("fsync the new state log: %w", err), f.Close())
	}
	return f, e.places, int64(len(e.bytes)), nil
}

// takeOver adds the collected pushes to the new file and makes it the log.
func (l *Log) takeOver(f *os.File, path string, places map[string]int64, size int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tail
	l.tail = nil
	if len(t.bytes) > 0 {
		if _, err := f.WriteAt(t.bytes, size); err != nil {
			return fmt.Errorf("write the new state log: %w", err)
		}
	}
	if err := os.Rename(path, l.cfg.Path); err != nil {
		return fmt.Errorf("put the new state log in place: %w", err)
	}
	if l.file != nil {
		_ = l.file.Close() // replaced: whatever it says, nobody needs it
	}
	for hash, p := range l.bodies {
		at, ok := places[hash]
		if !ok {
			at = size + t.places[hash]
		}
		l.bodies[hash] = place{offset: at, size: p.size}
	}
	l.file, l.size, l.dirty = f, size+int64(len(t.bytes)), len(t.bytes) > 0
	l.live = liveBytes(l.pointers, l.bodies)
	if l.detached {
		l.cfg.Log.Info("state log written again", "revision", l.revision)
	}
	l.detached, l.err = false, nil
	if l.dirty {
		l.poke()
	}
	return nil
}

// add collects a push. A body that an earlier push brought keeps its place.
func (t *tail) add(e encoded) {
	for hash, at := range e.places {
		if _, there := t.places[hash]; !there {
			t.places[hash] = int64(len(t.bytes)) + at
		}
	}
	t.bytes = append(t.bytes, e.bytes...)
}
