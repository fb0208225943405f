// Package folderwatch turns what inotify(7) tells of folders and files into one signal: something may have changed, look
// again. It follows a path as the kernel does, so that it sees what is edited, renamed over, removed and made again, and a
// symbolic link anywhere on the way that comes to point elsewhere: that is how Kubernetes swaps a mounted ConfigMap, and a
// deployment its "current" release. It reads no content and decides nothing.
//
// It may miss things (a file system without events, a mount, no more watches to be had): whoever uses it looks at the paths
// from time to time anyway.
package folderwatch

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Config says how to watch. The zero value works, and settles at once.
type Config struct {
	// Quiet is how long the paths must rest until Settle is content, and Patience bounds its wait. Both may be 0.
	Quiet, Patience time.Duration
	// Logger is told once of each folder that cannot be watched; nil discards.
	Logger *slog.Logger
}

// Watch signals changes. Changed may be called by any goroutine, all else by one at a time.
type Watch struct {
	config  Config
	log     *slog.Logger
	watcher *fsnotify.Watcher // nil when there are no events here
	signal  chan struct{}     // capacity 1: a signal, not a queue
	stop    chan struct{}
	ended   chan struct{}
	sought  atomic.Pointer[trail] // what the paths lead through; replaced by Follow, read by listen

	watched map[string]os.FileInfo // by folder: what was there when the watch was set
	told    map[string]bool        // folders whose trouble was logged
}

// Start makes a Watch that follows nothing yet. Close ends it.
func Start(config Config) *Watch {
	w := newWatch(config)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		w.log.Warn("no file events: changes are seen by the slow rescan only", "err", err)
		close(w.ended)
		return w
	}
	w.watcher = watcher
	go w.listen()
	return w
}

func newWatch(config Config) *Watch {
	w := &Watch{
		config: config, log: config.Logger,
		signal: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{}),
		watched: map[string]os.FileInfo{}, told: map[string]bool{},
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	w.sought.Store(newTrail(nil))
	return w
}

// Changed gets a value when something in a followed folder, a followed file or the way to one may have changed.
func (w *Watch) Changed() <-chan struct{} { return w.signal }

// Follow makes the watched paths these: absolute ones, of folders (with what lies directly in them) or of single files, which
// need not exist. It is to be called before each look at them, as the way may have become another one. It is true when a
// watch was added: then a look that was taken before may be an old one.
func (w *Watch) Follow(paths []string) bool {
	if w.watcher == nil {
		return false
	}
	added := false
	// Something may appear between the look at the way and the watch, which then tells nothing: so it is looked at again
	// until there was nothing to add.
	for range 10 {
		sought := newTrail(paths)
		w.sought.Store(sought)
		if !w.watch(sought) {
			break
		}
		added = true
	}
	return added
}

// watch is true when a watch was added.
func (w *Watch) watch(sought *trail) bool {
	wanted := map[string]os.FileInfo{}
	for folder := range sought.folders {
		if info, err := os.Stat(folder); err == nil {
			wanted[folder] = info
		}
	}
	alive := w.watcher.WatchList()
	for folder, info := range w.watched {
		if want, ok := wanted[folder]; !ok || !os.SameFile(want, info) || !slices.Contains(alive, folder) {
			// The kernel may have removed it already.
			_ = w.watcher.Remove(folder)
			delete(w.watched, folder)
		}
	}
	added := false
	for folder, info := range wanted {
		if w.watched[folder] == nil {
			added = w.add(folder, info) || added
		}
	}
	return added
}

func (w *Watch) add(folder string, info os.FileInfo) bool {
	err := w.watcher.Add(folder)
	if err == nil {
		w.watched[folder] = info
		delete(w.told, folder)
		return true
	}
	if !w.told[folder] {
		w.told[folder] = true
		w.log.Warn("a folder sends no events: its changes are seen by the slow rescan only", "folder", folder, "err", err)
	}
	return false
}

// listen turns events into signals until Close.
func (w *Watch) listen() {
	defer close(w.ended)
	for {
		select {
		case <-w.stop:
			return
		case event, ok := <-w.watcher.Events:
			if !ok {
				return
			}
			if !w.sought.Load().concerns(event.Name) {
				continue
			}
		case err, ok := <-w.watcher.Errors:
			if !ok {
				return
			}
			// The queue was full (fsnotify.ErrEventOverflow) or could not be read: anything may have happened.
			w.log.Debug("file events were lost", "err", err)
		}
		select {
		case w.signal <- struct{}{}:
		default:
		}
	}
}

// Settle waits, after a signal, until there was none for Config.Quiet, but no longer than Config.Patience: an editor's save is
// a handful of events. It is false when ctx ended.
func (w *Watch) Settle(ctx context.Context) bool {
	rest := time.NewTimer(w.config.Quiet)
	defer rest.Stop()
	limit := time.NewTimer(w.config.Patience)
	defer limit.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-rest.C:
			return true
		case <-limit.C:
			return true
		case <-w.signal:
			rest.Reset(w.config.Quiet)
		}
	}
}

// Close ends the watch; there are no more signals.
func (w *Watch) Close() {
	close(w.stop)
	if w.watcher != nil {
		_ = w.watcher.Close()
	}
	<-w.ended
}
