package folderwatch

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// disk is a folder for a test, in which everything is named by its path below it.
type disk struct {
	t    *testing.T
	base string
}

func newDisk(t *testing.T) disk {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return disk{t, base}
}

func (d disk) path(name string) string { return filepath.Join(d.base, name) }

func (d disk) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d disk) mkdir(name string) { d.t.Helper(); d.must(os.MkdirAll(d.path(name), 0o700)) }

// write makes the folders above a file, too.
func (d disk) write(name, content string) {
	d.t.Helper()
	d.mkdir(filepath.Dir(name))
	d.must(os.WriteFile(d.path(name), []byte(content), 0o600))
}

func (d disk) rename(from, to string) { d.t.Helper(); d.must(os.Rename(d.path(from), d.path(to))) }
func (d disk) remove(name string)     { d.t.Helper(); d.must(os.RemoveAll(d.path(name))) }

// point makes a link, or makes it another one, in one step.
func (d disk) point(link, target string) {
	d.t.Helper()
	d.must(os.Symlink(target, d.path(link+".new")))
	d.rename(link+".new", link)
}

func (d disk) exchange(one, other string) {
	d.t.Helper()
	d.must(unix.Renameat2(unix.AT_FDCWD, d.path(one), unix.AT_FDCWD, d.path(other), unix.RENAME_EXCHANGE))
}

// expectSignal waits for one.
func expectSignal(t *testing.T, w *Watch, what string) {
	t.Helper()
	select {
	case <-w.Changed():
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: no signal", what)
	}
}

// step is one change that must be told.
type step struct {
	name string
	do   func(d disk)
}

// Each step is made when the signals of the one before have ended, and must give one of its own.
func TestEachChangeIsTold(t *testing.T) {
	for _, c := range []struct {
		name   string
		follow []string
		given  func(d disk)
		steps  []step
	}{
		{
			name: "files of a folder", follow: []string{"conf"}, given: func(d disk) { d.mkdir("conf") },
			steps: []step{
				{"a file appears", func(d disk) { d.write("conf/a", "1") }},
				{"it is written", func(d disk) { d.write("conf/a", "2") }},
				{"another is renamed over it", func(d disk) { d.write("elsewhere", "3"); d.rename("elsewhere", "conf/a") }},
				{"it becomes a backup", func(d disk) { d.rename("conf/a", "conf/a~") }},
				{"it is made anew", func(d disk) { d.write("conf/a", "4") }},
				{"it may be read by others", func(d disk) { d.must(os.Chmod(d.path("conf/a"), 0o644)) }},
				{"it goes", func(d disk) { d.remove("conf/a") }},
			},
		},
		{
			name: "a single file", follow: []string{"conf/a"}, given: func(d disk) { d.write("conf/a", "1") },
			steps: []step{
				{"it is written", func(d disk) { d.write("conf/a", "2") }},
				{"a tool writes a temporary file beside it and renames", func(d disk) { d.write("conf/.ansible_tmp1", "3"); d.rename("conf/.ansible_tmp1", "conf/a") }},
				{"and once more", func(d disk) { d.write("conf/.ansible_tmp2", "4"); d.rename("conf/.ansible_tmp2", "conf/a") }},
				{"it goes", func(d disk) { d.remove("conf/a") }},
				{"it comes back", func(d disk) { d.write("conf/a", "5") }},
				{"its folder is renamed away", func(d disk) { d.rename("conf", "old") }},
				{"another one comes", func(d disk) { d.write("conf/a", "6") }},
				{"and is written", func(d disk) { d.write("conf/a", "7") }},
			},
		},
		{
			name: "a folder that comes and goes", follow: []string{"a/b/conf"}, given: func(disk) {},
			steps: []step{
				{"it appears with the folders above it", func(d disk) { d.mkdir("a/b/conf") }},
				{"a file appears", func(d disk) { d.write("a/b/conf/f", "1") }},
				{"it is removed", func(d disk) { d.remove("a/b/conf") }},
				{"it is made again", func(d disk) { d.mkdir("a/b/conf") }},
				{"a file appears", func(d disk) { d.write("a/b/conf/f", "2") }},
				{"everything is removed", func(d disk) { d.remove("a") }},
				{"a part of the way appears", func(d disk) { d.mkdir("a") }},
				{"and the rest", func(d disk) { d.write("a/b/conf/f", "3") }},
				{"the file is written", func(d disk) { d.write("a/b/conf/f", "4") }},
			},
		},
		{
			name: "a folder that is replaced", follow: []string{"conf"}, given: func(d disk) { d.write("conf/f", "1"); d.write("next/f", "2") },
			steps: []step{
				{"it is exchanged", func(d disk) { d.exchange("conf", "next") }},
				{"the new one is written", func(d disk) { d.write("conf/f", "3") }},
				{"it is renamed away", func(d disk) { d.rename("conf", "old") }},
				{"and the other one takes its name", func(d disk) { d.rename("next", "conf") }},
				{"and is written", func(d disk) { d.write("conf/f", "4") }},
			},
		},
		{
			name: "a folder that somebody has open", follow: []string{"conf"},
			given: func(d disk) {
				d.mkdir("conf")
				open, err := os.Open(d.path("conf"))
				d.must(err)
				d.t.Cleanup(func() { _ = open.Close() })
			},
			steps: []step{
				{"it is removed", func(d disk) { d.remove("conf") }},
				{"it is made again", func(d disk) { d.mkdir("conf") }},
				{"a file appears", func(d disk) { d.write("conf/f", "1") }},
			},
		},
		{
			name: "a mounted ConfigMap, as a folder", follow: []string{"mount"},
			given: func(d disk) { mounted(d, "..2026_1"); d.must(os.Symlink("..data/file", d.path("mount/file"))) },
			steps: []step{
				{"the next version", func(d disk) { mounted(d, "..2026_2"); d.remove("mount/..2026_1") }},
				{"and one more", func(d disk) { mounted(d, "..2026_3"); d.remove("mount/..2026_2") }},
			},
		},
		{
			name: "a mounted Secret, as a file", follow: []string{"mount/file"},
			given: func(d disk) { mounted(d, "..2026_1"); d.must(os.Symlink("..data/file", d.path("mount/file"))) },
			steps: []step{
				{"the next version", func(d disk) { mounted(d, "..2026_2"); d.remove("mount/..2026_1") }},
				{"and one more", func(d disk) { mounted(d, "..2026_3"); d.remove("mount/..2026_2") }},
				{"its content is written in place", func(d disk) { d.write("mount/..2026_3/file", "x") }},
			},
		},
		{
			name: "a folder that is a link", follow: []string{"current"},
			given: func(d disk) { d.mkdir("one"); d.mkdir("two"); d.point("current", "one") },
			steps: []step{
				{"it points elsewhere", func(d disk) { d.point("current", "two") }},
				{"a file appears there", func(d disk) { d.write("two/f", "1") }},
				{"it points back, by its full path", func(d disk) { d.point("current", d.path("one")) }},
				{"a file appears there", func(d disk) { d.write("one/f", "1") }},
			},
		},
		{
			name: "a folder in the current release", follow: []string{"srv/current/conf"},
			given: func(d disk) {
				d.write("srv/releases/1/conf/f", "1")
				d.write("srv/releases/2/conf/f", "2")
				d.point("srv/current", "releases/1")
			},
			steps: []step{
				{"the next release", func(d disk) { d.point("srv/current", "releases/2") }},
				{"it is edited", func(d disk) { d.write("srv/releases/2/conf/f", "3") }},
				{"the link is removed", func(d disk) { d.remove("srv/current") }},
				{"and made again", func(d disk) { d.point("srv/current", "releases/1") }},
				{"the release is edited", func(d disk) { d.write("srv/releases/1/conf/f", "4") }},
			},
		},
		{
			name: "links to links, up and down", follow: []string{"etc/kube/config"},
			given: func(d disk) {
				d.mkdir("etc/kube")
				d.write("var/keys/a/config", "1")
				d.write("var/keys/b/config", "2")
				d.point("var/live", "../var/./keys/a")
				d.point("etc/kube/config", "../../var/live/config")
			},
			steps: []step{
				{"the last link points elsewhere", func(d disk) { d.point("var/live", "keys/b") }},
				{"the file is replaced", func(d disk) {
					d.write("var/keys/b/config.new", "3")
					d.rename("var/keys/b/config.new", "var/keys/b/config")
				}},
				{"the first link becomes a file", func(d disk) { d.write("new", "4"); d.rename("new", "etc/kube/config") }},
				{"the file is written", func(d disk) { d.write("etc/kube/config", "5") }},
			},
		},
		{
			name: "a link to nothing, and one to itself", follow: []string{"conf"}, given: func(d disk) { d.point("conf", "later/conf") },
			steps: []step{
				{"what it points to appears", func(d disk) { d.mkdir("later/conf") }},
				{"a file appears", func(d disk) { d.write("later/conf/f", "1") }},
				{"it points to itself", func(d disk) { d.point("conf", "conf") }},
				{"it is a folder", func(d disk) { d.remove("conf"); d.mkdir("conf") }},
				{"a file appears", func(d disk) { d.write("conf/f", "1") }},
			},
		},
		{
			name: "a file where a folder should be", follow: []string{"a/conf"}, given: func(d disk) { d.write("a", "") },
			steps: []step{
				{"it becomes one", func(d disk) { d.remove("a"); d.mkdir("a/conf") }},
				{"a file appears", func(d disk) { d.write("a/conf/f", "1") }},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDisk(t)
			c.given(d)
			paths := make([]string, len(c.follow))
			for i, name := range c.follow {
				paths[i] = d.path(name)
			}
			w := Start(Config{Quiet: 20 * time.Millisecond, Patience: time.Second})
			defer w.Close()
			w.Follow(paths)
			for _, s := range c.steps {
				s.do(d)
				expectSignal(t, w, s.name)
				if !w.Settle(t.Context()) {
					t.Fatal("the context has ended")
				}
				w.Follow(paths)
			}
		})
	}
}

// mounted makes the next version of a volume, as the kubelet does (its AtomicWriter): a folder of a new name, and a
// link that comes to point to it in one step.
func mounted(d disk, version string) {
	d.t.Helper()
	d.write("mount/"+version+"/file", version)
	d.must(os.Symlink(version, d.path("mount/..data_tmp")))
	d.rename("mount/..data_tmp", "mount/..data")
}

// What is not followed any more is not watched any more.
func TestFollowLetsGo(t *testing.T) {
	d := newDisk(t)
	d.write("a/f", "1")
	d.write("b/f", "1")
	w := Start(Config{})
	defer w.Close()
	if !w.Follow([]string{d.path("a/f"), d.path("b")}) {
		t.Error("watches were added")
	}
	if w.Follow([]string{d.path("a/f"), d.path("b")}) {
		t.Error("nothing was added")
	}
	w.Follow([]string{d.path("b/f")})
	want := []string{d.base, d.path("b")}
	if got := slices.Sorted(slices.Values(w.watcher.WatchList())); !slices.Equal(got, want) {
		t.Errorf("watched %q, want %q", got, want)
	}
	w.Follow(nil)
	if got := w.watcher.WatchList(); len(got) > 0 {
		t.Errorf("watched %q, want nothing", got)
	}
}

func TestATrailHoldsWhatMatters(t *testing.T) {
	d := newDisk(t)
	d.write("etc/f", "1")
	d.write("srv/releases/1/conf/f", "1")
	d.point("srv/current", "releases/1")
	d.point("loop", "loop")
	for _, c := range []struct {
		follow                  string
		folders, names, notable []string
	}{
		{"etc/f", []string{"", "etc"}, []string{"etc", "etc/f"}, nil},
		{"etc", []string{"", "etc"}, []string{"etc"}, []string{"etc/anything"}},
		{"none/at/all", []string{"", ".."}, []string{"", "none"}, nil},
		{
			"srv/current/conf", []string{"", "srv", "srv/releases/1", "srv/releases/1/conf"},
			[]string{"srv", "srv/current", "srv/releases/1/conf"}, []string{"srv/releases/1/conf/anything"},
		},
		{"loop", []string{"", ".."}, []string{"", "loop"}, nil},
	} {
		got := newTrail([]string{d.path(c.follow)})
		for what, pair := range map[string][2][]string{"folders": {keys(got.folders), c.folders}, "names": {keys(got.names), c.names}} {
			want := make([]string, len(pair[1]))
			for i, name := range pair[1] {
				want[i] = d.path(name)
			}
			slices.Sort(want)
			if !slices.Equal(pair[0], want) {
				t.Errorf("%s: %s %q, want %q", c.follow, what, pair[0], want)
			}
		}
		for _, name := range c.notable {
			if !got.concerns(d.path(name)) {
				t.Errorf("%s: %s does not count", c.follow, name)
			}
		}
		if got.concerns(d.path("neighbour")) || got.concerns("") {
			t.Errorf("%s: a neighbour counts", c.follow)
		}
	}
	if got := keys(newTrail([]string{"/"}).folders); !slices.Equal(got, []string{"/"}) {
		t.Errorf("/: folders %q", got)
	}
}

func keys(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }

// The kernel's queue is filled with events that do not matter, so that the one that does is lost.
func TestALostEventIsASignal(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	room, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if room > 1<<18 {
		t.Skipf("a queue of %d events takes too long to fill", room)
	}
	d := newDisk(t)
	d.mkdir("conf")
	w := newWatch(Config{})
	// Nobody reads the events until the queue is full: what fsnotify holds meanwhile is one buffer.
	if w.watcher, err = fsnotify.NewWatcher(); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.Follow([]string{d.path("conf")})
	const buffered = 64 << 10 / unix.SizeofInotifyEvent
	for i := range (room+buffered)/2 + 1 {
		// Two events each, of different names: equal ones in a row would become one.
		neighbour := d.path("neighbour" + strconv.Itoa(i))
		d.must(os.Mkdir(neighbour, 0o700))
		d.must(os.Remove(neighbour))
	}
	d.write("conf/f", "1")
	go w.listen()
	expectSignal(t, w, "a full queue")
}

func TestAFolderThatCannotBeWatchedIsToldOnce(t *testing.T) {
	d := newDisk(t)
	var log bytes.Buffer
	w := Start(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err := w.watcher.Close(); err != nil { // from now on each watch is refused
		t.Fatal(err)
	}
	for range 3 {
		w.Follow([]string{d.path("conf")})
	}
	w.Close()
	if n := strings.Count(log.String(), fmt.Sprintf("folder=%s ", d.base)); n != 1 {
		t.Errorf("told %d times:\n%s", n, log.String())
	}
}

func TestWithoutEventsItIsQuiet(t *testing.T) {
	w := newWatch(Config{})
	close(w.ended) // as Start leaves it when the kernel gives no inotify
	if w.Follow([]string{t.TempDir()}) {
		t.Error("nothing can be watched")
	}
	w.Close()
}

func TestSettle(t *testing.T) {
	config := Config{Quiet: 60 * time.Millisecond, Patience: 500 * time.Millisecond}
	for _, c := range []struct {
		name    string
		signals int           // one each 50 ms
		cancel  time.Duration // 0: never
		want    time.Duration
		settled bool
	}{
		{name: "nothing more comes", want: 60 * time.Millisecond, settled: true},
		{name: "three more", signals: 3, want: 210 * time.Millisecond, settled: true},
		{name: "it never ends", signals: 100, want: 500 * time.Millisecond, settled: true},
		{name: "the daemon ends", signals: 100, cancel: 120 * time.Millisecond, want: 120 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatch(config)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				go func() {
					for range c.signals {
						select {
						case <-time.After(50 * time.Millisecond):
							select {
							case w.signal <- struct{}{}:
							default:
							}
						case <-ctx.Done():
							return
						}
					}
				}()
				began := time.Now()
				settled := w.Settle(ctx)
				if took := time.Since(began); settled != c.settled || took != c.want {
					t.Errorf("settled %t after %s, want %t after %s", settled, took, c.settled, c.want)
				}
			})
		})
	}
}
