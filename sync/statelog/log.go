// Package statelog keeps the state that was pushed to the proxy on disk, in the checksummed log that
// nginx itself loads when its shared dict is empty (docs/design/0001-seams.md). It turns pushes into
// batches and, after a restart, the file back into the state that the proxy may hold. It decides
// nothing about the state; it never guesses at a file that it does not understand, and a disk that is
// full or read-only costs durability, not traffic: the state goes on in memory and the file is
// written whole once that works again. sync/reconcile appends; cmd runs Run.
package statelog

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"sync"

	"headgate/gateway/luastate"
)

// Config says where the log lies.
type Config struct {
	// Path is the log file; its folder must exist. The file is 0640.
	Path string
	// GID owns the file, so that the proxy can read it; 0 leaves the process's own group.
	GID int
	// Log gets what an administrator should know; nil discards it.
	Log *slog.Logger
	// CompactBytes is the size below which the file is never compacted; 0 means 1 MiB.
	CompactBytes int64
}

// ErrLocked tells that another process writes this log.
var ErrLocked = errors.New("another process holds the state log")

// errDetached is the state after a failed write: the file no longer follows the memory.
var errDetached = errors.New("the state log is not being written")

// Log is an open state log. All methods are safe for concurrent use.
type Log struct {
	cfg  Config
	wake chan struct{} // capacity 1: one pending request to sync stands for all

	mu       sync.Mutex // guards everything below
	lock     *os.File   // flock of this process; nil while another one has it
	file     *os.File   // nil while there is none
	size     int64      // of the whole pushes in file
	live     int64      // bytes that a compacted log would have, about
	pointers map[string]string
	bodies   map[string]place
	revision uint64
	appended bool  // Append was called in this process
	detached bool  // the file does not hold what memory holds: it must be rewritten whole
	dirty    bool  // something was written and not yet fsynced
	err      error // why the last attempt to write failed; nil when all is well
	failures uint64
	tail     *tail // pushes that came while a compaction runs; nil while none does
}

// place says where a body lies: in the file, or in memory when the file could not be written.
type place struct {
	offset int64
	size   int
	memory []byte // nil when the file has it
}

// tail collects encoded pushes and the places of their bodies, relative to its start.
type tail struct {
	bytes  []byte
	places map[string]int64
}

// Recovery tells what Open found.
type Recovery struct {
	// Revision of the last whole push; 0 for a fresh log.
	Revision uint64
	// CutBytes is the length of the tail that was no whole push and was cut off.
	CutBytes int64
	// Refused says why a file was not understood; it was moved to RefusedPath and a fresh log begun.
	Refused     error
	RefusedPath string
}

// Open reads the log at cfg.Path and takes it over for writing. It always gives a usable Log: where
// the file cannot be opened or written, Condition tells why, and Run keeps trying. The caller calls
// Close when Run has ended.
func Open(cfg Config) (*Log, Recovery) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.CompactBytes <= 0 {
		cfg.CompactBytes = 1 << 20
	}
	l := &Log{
		cfg:      cfg,
		wake:     make(chan struct{}, 1),
		pointers: make(map[string]string),
		bodies:   make(map[string]place),
	}
	rec, err := l.recover()
	if err != nil {
		l.detach(err)
	}
	return l, rec
}

// recover fills l from the file. An error leaves l usable, detached from the file.
func (l *Log) recover() (Recovery, error) {
	lockErr := l.takeLock()
	f, err := openLog(l.cfg.Path)
	if errors.Is(err, os.ErrNotExist) {
		if lockErr != nil {
			return Recovery{}, lockErr
		}
		return Recovery{}, l.begin()
	}
	if err != nil {
		return Recovery{}, errors.Join(err, lockErr)
	}
	c, err := read(f)
	var foreign *ForeignError
	switch {
	case errors.As(err, &foreign):
		_ = f.Close() // only read from
		if lockErr != nil {
			return Recovery{Refused: foreign}, lockErr
		}
		return l.refuse(foreign)
	case err != nil:
		_ = f.Close() // only read from
		return Recovery{}, fmt.Errorf("read the state log %s: %w", l.cfg.Path, err)
	}
	l.file, l.size = f, c.end
	l.pointers, l.bodies, l.revision = c.pointers, c.bodies, c.revision
	l.live = liveBytes(l.pointers, l.bodies)
	rec := Recovery{Revision: c.revision, CutBytes: c.total - c.end}
	if lockErr != nil {
		return rec, lockErr
	}
	return rec, l.cut(c)
}

// refuse moves a foreign file aside and begins a fresh one.
func (l *Log) refuse(foreign *ForeignError) (Recovery, error) {
	rec := Recovery{Refused: foreign, RefusedPath: l.cfg.Path + ".refused"}
	if err := os.Rename(l.cfg.Path, rec.RefusedPath); err != nil {
		rec.RefusedPath = ""
		return rec, fmt.Errorf("move the refused state log aside: %w", err)
	}
	l.cfg.Log.Warn("state log refused and moved aside", "err", foreign, "path", rec.RefusedPath)
	return rec, l.begin()
}

// cut removes what follows the last whole push.
func (l *Log) cut(c contents) error {
	if err := l.own(l.file); err != nil {
		return err
	}
	if c.total == c.end && c.end > 0 {
		return nil
	}
	if c.total > c.end {
		l.cfg.Log.Warn("state log had a broken tail", "cutBytes", c.total-c.end, "revision", c.revision)
	}
	if c.end == 0 { // not even the magic was whole
		if err := l.file.Truncate(0); err != nil {
			return fmt.Errorf("cut the state log: %w", err)
		}
		if _, err := l.file.WriteAt([]byte(magic), 0); err != nil {
			return fmt.Errorf("begin the state log: %w", err)
		}
		l.size = int64(len(magic))
	} else if err := l.file.Truncate(c.end); err != nil {
		return fmt.Errorf("cut the broken tail of the state log: %w", err)
	}
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("fsync the state log: %w", err)
	}
	return nil
}

// begin makes an empty log.
func (l *Log) begin() error {
	f, err := os.OpenFile(l.cfg.Path, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return fmt.Errorf("make the state log: %w", err)
	}
	if err := l.own(f); err != nil {
		return errors.Join(err, f.Close())
	}
	if _, err := f.Write([]byte(magic)); err != nil {
		return errors.Join(fmt.Errorf("begin the state log: %w", err), f.Close())
	}
	l.file, l.size, l.dirty = f, int64(len(magic)), true
	l.poke()
	return nil
}

// Append adds one push in one write. records hold exactly the push's changes, R with revision among
// them. The state in memory follows in any case; an error means that the file does not follow for
// now (see Condition), so the caller reports it and goes on.
func (l *Log) Append(revision uint64, records []luastate.Record) error {
	e := encode(revision, records)
	l.mu.Lock()
	defer l.mu.Unlock()
	at, err := l.write(e.bytes)
	l.appended = true
	l.apply(revision, records, e, at)
	if l.tail != nil {
		l.tail.add(e)
	}
	l.poke()
	return err
}

// write appends b and returns its offset, or -1 when the file does not take it.
func (l *Log) write(b []byte) (int64, error) {
	if l.detached {
		return -1, fmt.Errorf("%w: %w", errDetached, l.err)
	}
	at := l.size
	if _, err := l.file.WriteAt(b, at); err != nil {
		// A half push at the end would hide every later one from the loader.
		err = errors.Join(fmt.Errorf("append to the state log: %w", err), l.file.Truncate(at))
		l.detach(err)
		return -1, err
	}
	l.size += int64(len(b))
	l.dirty = true
	return at, nil
}

// detach notes that the file no longer follows.
func (l *Log) detach(err error) {
	if !l.detached {
		l.cfg.Log.Error("state log not written: a proxy restart now would load an older state", "err", err)
	}
	l.detached, l.err = true, err
	l.failures++
	l.poke()
}

func (l *Log) apply(revision uint64, records []luastate.Record, e encoded, at int64) {
	for _, r := range records {
		switch r.Op {
		case luastate.OpBody:
			if _, there := l.bodies[r.Key]; there {
				continue
			}
			p := place{offset: at + e.places[r.Key], size: len(r.Value)}
			if at < 0 {
				p.memory = append([]byte{}, r.Value...)
			}
			l.bodies[r.Key] = p
			l.live += bodyBytes(r.Key, p.size)
		case luastate.OpPointer:
			if _, there := l.pointers[r.Key]; !there {
				l.live += pointerBytes(r.Key)
			}
			l.pointers[r.Key] = string(r.Value)
		case luastate.OpDelete:
			if _, there := l.pointers[r.Key]; there {
				l.live -= pointerBytes(r.Key)
			}
			delete(l.pointers, r.Key)
		case luastate.OpDrop:
			if p, there := l.bodies[r.Key]; there {
				l.live -= bodyBytes(r.Key, p.size)
			}
			delete(l.bodies, r.Key)
		case luastate.OpRevision: // of the push as a whole, below
		}
	}
	l.revision = revision
}

func (l *Log) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Revision of the newest push; 0 when there is none.
func (l *Log) Revision() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.revision
}

// Held gives a copy of what the log holds: pointers with the hashes of their bodies, and the length
// of each body in bytes.
func (l *Log) Held() (pointers map[string]string, bodies map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bodies = make(map[string]int, len(l.bodies))
	for hash, p := range l.bodies {
		bodies[hash] = p.size
	}
	return maps.Clone(l.pointers), bodies
}

// Body reads the body with the given hash. The error is os.ErrNotExist when the log has none.
func (l *Log) Body(hash string) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.bodies[hash]
	if !ok {
		return nil, fmt.Errorf("body %s in the state log: %w", hash, os.ErrNotExist)
	}
	return p.read(l.file)
}

func (p place) read(f io.ReaderAt) ([]byte, error) {
	if p.memory != nil {
		return p.memory, nil
	}
	b := make([]byte, p.size)
	if _, err := f.ReadAt(b, p.offset); err != nil {
		return nil, fmt.Errorf("read %d bytes at %d of the state log: %w", p.size, p.offset, err)
	}
	return b, nil
}

// Condition is nil while every push reaches the file; otherwise it tells why none does.
func (l *Log) Condition() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Stat tells how large the log is and how it went.
type Stat struct {
	// Revision of the newest push, in memory.
	Revision uint64
	// SizeBytes of the file, as far as it holds whole pushes.
	SizeBytes int64
	// Failures counts attempts to write that failed, since Open.
	Failures uint64
}

// Stat gives the present figures.
func (l *Log) Stat() Stat {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stat{Revision: l.revision, SizeBytes: l.size, Failures: l.failures}
}

// Close ends the use of the file. Run must have returned.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, f := range []*os.File{l.file, l.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	l.file, l.lock = nil, nil
	l.detached, l.err = true, os.ErrClosed
	return errors.Join(errs...)
}
