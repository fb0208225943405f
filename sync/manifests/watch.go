package manifests

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watch gives a signal when something in or about the folders may have changed. It may miss things (a file system without
// events, a full queue): the rescan finds them.
type watch struct {
	log     *slog.Logger
	folders []*folder
	watcher *fsnotify.Watcher
	signal  chan struct{} // capacity 1: a signal, not a queue
	ended   chan struct{}
	stop    chan struct{}

	watched map[string]os.FileInfo // by path: what was there when the watch was set
	told    map[string]bool        // paths whose trouble was logged
}

func newWatch(folders []*folder, log *slog.Logger) *watch {
	w := &watch{log: log, folders: folders, signal: make(chan struct{}, 1), ended: make(chan struct{}), stop: make(chan struct{}),
		watched: map[string]os.FileInfo{}, told: map[string]bool{}}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("no file events: changes are seen by the slow rescan only", "err", err)
		close(w.ended)
		return w
	}
	w.watcher = watcher
	relevant := w.relevance()
	go func() {
		defer close(w.ended)
		w.listen(relevant)
	}()
	return w
}

// relevance tells events in a folder, or about the path that leads to it, from those about its neighbours: a
// parent such as /tmp is a busy place.
func (w *watch) relevance() func(name string) bool {
	inside := map[string]bool{}
	leading := map[string]bool{}
	for _, f := range w.folders {
		inside[f.path] = true
		for p := f.path; p != filepath.Dir(p); p = filepath.Dir(p) {
			leading[p] = true
		}
	}
	return func(name string) bool { return inside[filepath.Dir(name)] || leading[name] }
}

func (w *watch) listen(relevant func(string) bool) {
	for {
		select {
		case <-w.stop:
			return
		case event, ok := <-w.watcher.Events:
			if !ok {
				return
			}
			if !relevant(event.Name) {
				continue
			}
		case err, ok := <-w.watcher.Errors:
			if !ok {
				return
			}
			w.log.Debug("file events were lost", "err", err)
		}
		select {
		case w.signal <- struct{}{}:
		default:
		}
	}
}

// set makes sure that each folder is watched, and the nearest folder above it that exists: so it is seen
// when it appears, is replaced, or is a link that comes to point elsewhere.
//
// A folder may appear between a look at it and the watch on its parent, which then tells nothing: so it looks again
// until there was nothing to add.
func (w *watch) set() {
	if w.watcher == nil {
		return
	}
	for range 10 {
		if !w.setOnce() {
			return
		}
	}
}

// setOnce is true when a watch was added.
func (w *watch) setOnce() bool {
	wanted := map[string]os.FileInfo{}
	for _, f := range w.folders {
		if info, err := os.Stat(f.path); err == nil {
			wanted[f.path] = info
		}
		for p := filepath.Dir(f.path); ; p = filepath.Dir(p) {
			if info, err := os.Stat(p); err == nil {
				wanted[p] = info
				break
			}
			if p == filepath.Dir(p) {
				break
			}
		}
	}
	alive := w.watcher.WatchList()
	for path, info := range w.watched {
		if want, ok := wanted[path]; !ok || !os.SameFile(want, info) || !slices.Contains(alive, path) {
			// The kernel may have removed it already.
			_ = w.watcher.Remove(path)
			delete(w.watched, path)
		}
	}
	added := false
	for path, info := range wanted {
		if w.watched[path] == nil {
			added = w.add(path, info) || added
		}
	}
	return added
}

func (w *watch) add(path string, info os.FileInfo) bool {
	err := w.watcher.Add(path)
	if err == nil {
		w.watched[path] = info
		delete(w.told, path)
		return true
	}
	if !w.told[path] {
		w.told[path] = true
		w.log.Warn("a folder sends no events: its changes are seen by the slow rescan only", "folder", path, "err", err)
	}
	return false
}

func (w *watch) events() <-chan struct{} { return w.signal }

// settle waits until the folders have been quiet for a moment. It is false when ctx ended.
func (w *watch) settle(ctx context.Context) bool {
	rest := time.NewTimer(quiet)
	defer rest.Stop()
	limit := time.NewTimer(patience)
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
			rest.Reset(quiet)
		}
	}
}

func (w *watch) close() {
	close(w.stop)
	if w.watcher != nil {
		_ = w.watcher.Close()
	}
	<-w.ended
}
