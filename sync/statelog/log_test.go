package statelog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/gateway/luastate"
)

func body(hash, data string) luastate.Record {
	return luastate.Record{Op: luastate.OpBody, Key: hash, Value: []byte(data)}
}

func pointer(name, hash string) luastate.Record {
	return luastate.Record{Op: luastate.OpPointer, Key: name, Value: []byte(hash)}
}

func commit(revision uint64) luastate.Record {
	return luastate.Record{Op: luastate.OpRevision, Value: strconv.AppendUint(nil, revision, 10)}
}

func remove(name string) luastate.Record { return luastate.Record{Op: luastate.OpDelete, Key: name} }

func drop(hash string) luastate.Record { return luastate.Record{Op: luastate.OpDrop, Key: hash} }

// view is all that a reader of the log can see.
type view struct {
	Revision uint64
	Pointers map[string]string
	Bodies   map[string]string
}

func look(t testing.TB, l *Log) view {
	t.Helper()
	v := view{Revision: l.Revision(), Bodies: map[string]string{}}
	pointers, bodies := l.Held()
	v.Pointers = pointers
	for hash, size := range bodies {
		b, err := l.Body(hash)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) != size {
			t.Fatalf("body %s has %d bytes, told %d", hash, len(b), size)
		}
		v.Bodies[hash] = string(b)
	}
	return v
}

func open(t testing.TB, path string) (*Log, Recovery) {
	t.Helper()
	l, rec := Open(Config{Path: path})
	t.Cleanup(func() { _ = l.Close() })
	return l, rec
}

// history is a handful of pushes that use every operation.
func history() [][]luastate.Record {
	return [][]luastate.Record{
		{body("h1", "one"), body("h2", "two"), pointer("upstream/a", "h1"), pointer("host/x", "h2"), commit(1)},
		{body("h3", "three"), pointer("upstream/a", "h3"), commit(2), drop("h1")},
		{commit(3), remove("host/x"), drop("h2")},
		{body("h1", "one"), pointer("cert/c", "h1"), commit(7)},
	}
}

func appendAll(t testing.TB, l *Log, pushes [][]luastate.Record) []view {
	t.Helper()
	views := []view{look(t, l)}
	for _, p := range pushes {
		if err := l.Append(revisionOf(p), p); err != nil {
			t.Fatal(err)
		}
		views = append(views, look(t, l))
	}
	return views
}

func revisionOf(p []luastate.Record) uint64 {
	for _, r := range p {
		if r.Op == luastate.OpRevision {
			n, _ := strconv.ParseUint(string(r.Value), 10, 64)
			return n
		}
	}
	return 0
}

func TestReopenGivesWhatWasAppended(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.log")
	l, _ := Open(Config{Path: path})
	views := appendAll(t, l, history())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, rec := open(t, path)
	if rec != (Recovery{Revision: 7}) {
		t.Errorf("recovery %+v", rec)
	}
	if d := cmp.Diff(views[len(views)-1], look(t, again)); d != "" {
		t.Error(d)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v", info.Mode())
	}
}

// Wherever the file is cut, the log holds one of the states that it went through, whole, and takes
// new pushes behind it.
func TestCutAtEveryByte(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.log")
	l, _ := open(t, path)
	views := appendAll(t, l, history())
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for n := range len(whole) + 1 {
		cut := filepath.Join(dir, "cut", "state.log")
		if err := os.RemoveAll(filepath.Dir(cut)); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Dir(cut), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(cut, whole[:n], 0o640); err != nil {
			t.Fatal(err)
		}
		c, rec := Open(Config{Path: cut})
		if c.Condition() != nil || rec.Refused != nil {
			t.Fatalf("cut at %d: condition %v, refused %v", n, c.Condition(), rec.Refused)
		}
		got := look(t, c)
		i := last
		for i < len(views) && !cmp.Equal(views[i], got) {
			i++
		}
		if i == len(views) {
			t.Fatalf("cut at %d gives a state that never was: %+v", n, got)
		}
		last = i
		next := []luastate.Record{body("h9", "nine"), pointer("host/new", "h9"), commit(99)}
		if err := c.Append(99, next); err != nil {
			t.Fatal(err)
		}
		want := look(t, c)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		c, rec = Open(Config{Path: cut})
		if rec.CutBytes != 0 {
			t.Errorf("cut at %d: the append after it was cut: %+v", n, rec)
		}
		if d := cmp.Diff(want, look(t, c)); d != "" {
			t.Fatalf("cut at %d: %s", n, d)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if last != len(views)-1 {
		t.Errorf("the whole file gives view %d of %d", last, len(views)-1)
	}
}

// A flipped byte costs the push that it hits and those behind it, never a wrong state.
func TestFlipEveryByte(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.log")
	l, _ := open(t, path)
	views := appendAll(t, l, history())
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		b := bytes.Clone(whole)
		b[n] ^= 0x20
		c, err := readFrom(bytes.NewReader(b), int64(len(b)))
		var foreign *ForeignError
		if errors.As(err, &foreign) && n < len(magic) {
			continue
		}
		if err != nil {
			t.Fatalf("flip at %d: %v", n, err)
		}
		ok := false
		for _, v := range views {
			ok = ok || v.Revision == c.revision && cmp.Equal(v.Pointers, c.pointers)
		}
		if !ok {
			t.Fatalf("flip at %d gives a state that never was", n)
		}
	}
}

func TestForeignFilesAreMovedAside(t *testing.T) {
	other := newWriter("", 1, 0, 0)
	other.add(luastate.Record{Op: luastate.OpBody, Key: luastate.SchemaKey, Value: []byte("2")})
	none := newWriter("", 1, 0, 0)
	none.add(commit(1))
	for name, tc := range map[string]struct{ file, want string }{
		"other magic":  {"HGSTATE2whatever", "does not begin with HGSTATE1"},
		"text":         {"hello", "does not begin with HGSTATE1"},
		"other schema": {magic + string(other.finish().bytes), `schema is "2"`},
		"no schema":    {magic + string(none.finish().bytes), "does not begin with its schema"},
		"empty push":   {magic + string(newWriter("", 1, 0, 0).finish().bytes), "does not begin with its schema"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.log")
			if err := os.WriteFile(path, []byte(tc.file), 0o600); err != nil {
				t.Fatal(err)
			}
			l, rec := open(t, path)
			if rec.Refused == nil || !strings.Contains(rec.Refused.Error(), tc.want) {
				t.Errorf("refused: %v", rec.Refused)
			}
			if b, err := os.ReadFile(rec.RefusedPath); err != nil || string(b) != tc.file {
				t.Errorf("moved aside: %q, %v", b, err)
			}
			if l.Condition() != nil {
				t.Error(l.Condition())
			}
			appendAll(t, l, history())
		})
	}
}

func TestCompaction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.log")
	l, _ := Open(Config{Path: path, CompactBytes: 4096})
	for i := range uint64(500) {
		hash := fmt.Sprintf("hash-%d", i)
		p := []luastate.Record{body(hash, strings.Repeat("x", 50)), pointer("host/a", hash), commit(i + 1)}
		if i > 0 {
			p = append(p, drop(fmt.Sprintf("hash-%d", i-1)))
		}
		if err := l.Append(i+1, p); err != nil {
			t.Fatal(err)
		}
	}
	before := look(t, l)
	if l.due() != dueCompaction {
		t.Fatal("no compaction due")
	}
	l.maintain()
	if l.size > 1000 {
		t.Errorf("%d bytes after the compaction", l.size)
	}
	if d := cmp.Diff(before, look(t, l)); d != "" {
		t.Error(d)
	}
	more := []luastate.Record{body("z", "after"), pointer("host/z", "z"), commit(501)}
	if err := l.Append(501, more); err != nil {
		t.Fatal(err)
	}
	want := look(t, l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, rec := open(t, path)
	if rec.CutBytes != 0 || rec.Revision != 501 {
		t.Errorf("recovery %+v", rec)
	}
	if d := cmp.Diff(want, look(t, again)); d != "" {
		t.Error(d)
	}
	if _, err := os.Stat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("temporary file left: %v", err)
	}
}

// Pushes that come while the new file is being written are in it.
func TestAppendDuringCompaction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.log")
	l, _ := Open(Config{Path: path})
	h := history()
	appendAll(t, l, h[:2])
	s, err := l.freeze()
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, l, h[2:3])
	f, places, size, err := l.writeWhole(path+".new", s)
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, l, h[3:])
	want := look(t, l)
	if err := l.takeOver(f, path+".new", places, size); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, look(t, l)); d != "" {
		t.Error(d)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, _ := open(t, path)
	if d := cmp.Diff(want, look(t, again)); d != "" {
		t.Error(d)
	}
}

// A disk that takes no more: pushes go on in memory, the condition tells, and the file is written
// whole when that works again.
func TestBrokenDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state.log")
		l, _ := Open(Config{Path: path})
		h := history()
		appendAll(t, l, h[:1])

		readOnly, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.file.Close()
		l.file = readOnly
		obstacle := path + ".new"
		if err := os.MkdirAll(filepath.Join(obstacle, "full"), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, p := range h[1:] {
			if err := l.Append(revisionOf(p), p); err == nil {
				t.Fatal("append to a broken disk succeeded")
			}
		}
		want := look(t, l)
		if want.Revision != 7 || want.Bodies["h3"] != "three" {
			t.Fatalf("memory does not follow: %+v", want)
		}

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		synctest.Wait()
		if l.Condition() == nil {
			t.Fatal("no condition")
		}
		if err := os.RemoveAll(obstacle); err != nil {
			t.Fatal(err)
		}
		pause(ctx, 2*syncPeriod)
		synctest.Wait()
		if err := l.Condition(); err != nil {
			t.Fatalf("still %v", err)
		}
		if d := cmp.Diff(want, look(t, l)); d != "" {
			t.Error(d)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		again, _ := open(t, path)
		if d := cmp.Diff(want, look(t, again)); d != "" {
			t.Error(d)
		}
	})
}

// What cannot be begun at all still works in memory, and an unreadable file is not overwritten
// before there is something newer.
func TestFolderMissing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	path := filepath.Join(dir, "state.log")
	l, _ := open(t, path)
	if l.Condition() == nil {
		t.Fatal("no condition")
	}
	if l.due() != dueNothing {
		t.Error("something is due before the first push")
	}
	if err := l.Append(1, history()[0]); err == nil {
		t.Error("no error")
	}
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	l.maintain()
	if err := l.Condition(); err != nil {
		t.Error(err)
	}
}

func TestSecondProcessIsKeptOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.log")
	first, _ := Open(Config{Path: path})
	appendAll(t, first, history()[:2])
	second, rec := open(t, path)
	if rec.Revision != 2 {
		t.Errorf("recovery %+v", rec)
	}
	if !errors.Is(second.Condition(), ErrLocked) {
		t.Fatalf("condition %v", second.Condition())
	}
	if err := second.Append(8, []luastate.Record{commit(8)}); !errors.Is(err, ErrLocked) {
		t.Errorf("append: %v", err)
	}
	second.maintain()
	if !errors.Is(second.Condition(), ErrLocked) {
		t.Fatalf("condition %v", second.Condition())
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second.maintain()
	if err := second.Condition(); err != nil {
		t.Error(err)
	}
}

func TestRemovedFileIsWrittenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.log")
	l, _ := Open(Config{Path: path})
	appendAll(t, l, history())
	want := look(t, l)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	l.maintain() // notices
	l.maintain() // writes
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, _ := open(t, path)
	if d := cmp.Diff(want, look(t, again)); d != "" {
		t.Error(d)
	}
}

func TestLargePushIsSeveralBatches(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.log")
	l, _ := Open(Config{Path: path})
	var p []luastate.Record
	for i := range 5 {
		hash := fmt.Sprintf("h%d", i)
		p = append(p, body(hash, strings.Repeat(strconv.Itoa(i), 700<<10)))
	}
	p = append(p, body("huge", strings.Repeat("x", luastate.MaxValueBytes)), pointer("host/a", "huge"), commit(1))
	if err := l.Append(1, p); err != nil {
		t.Fatal(err)
	}
	want := look(t, l)
	info, err := l.file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	size := info.Size()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, _ := Open(Config{Path: path})
	if d := cmp.Diff(want, look(t, again)); d != "" {
		t.Error(d)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	// Without its last batch the push is none.
	if err := os.Truncate(path, size-1); err != nil {
		t.Fatal(err)
	}
	again, rec := open(t, path)
	if again.Revision() != 0 || rec.CutBytes == 0 {
		t.Errorf("revision %d, recovery %+v", again.Revision(), rec)
	}
}

// Random pushes, compactions and reopenings never lose anything.
func TestProperty(t *testing.T) {
	root := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		path := filepath.Join(root, strconv.Itoa(n)+".log")
		l, _ := Open(Config{Path: path, CompactBytes: 1})
		want := view{Pointers: map[string]string{}, Bodies: map[string]string{}}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				l.maintain()
			case 1:
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				l, _ = Open(Config{Path: path, CompactBytes: 1})
			default:
				want.Revision++
				data := rapid.StringN(0, 20, 40).Draw(t, "data")
				hash := fmt.Sprintf("hash of %q", data)
				name := rapid.SampledFrom([]string{"host/a", "host/b", "cert/c"}).Draw(t, "pointer")
				p := []luastate.Record{body(hash, data), pointer(name, hash), commit(want.Revision)}
				old, had := want.Pointers[name]
				want.Pointers[name], want.Bodies[hash] = hash, data
				used := false
				for _, h := range want.Pointers {
					used = used || h == old
				}
				if had && !used {
					p = append(p, drop(old))
					delete(want.Bodies, old)
				}
				if err := l.Append(want.Revision, p); err != nil {
					t.Fatal(err)
				}
			}
			got := view{Revision: l.Revision(), Bodies: map[string]string{}}
			got.Pointers, _ = l.Held()
			for hash := range want.Bodies {
				b, err := l.Body(hash)
				if err != nil {
					t.Fatal(err)
				}
				got.Bodies[hash] = string(b)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatal(d)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzRead(f *testing.F) {
	path := filepath.Join(f.TempDir(), "state.log")
	l, _ := open(f, path)
	appendAll(f, l, history())
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-3])
	f.Add([]byte(magic))
	f.Add([]byte(magic + "HGB1\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\x00\x00\x00\x00"))
	f.Add([]byte("HGSTATE2"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := readFrom(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		if c.end > c.total {
			t.Fatalf("end %d of %d", c.end, c.total)
		}
		for name, hash := range c.pointers {
			if strings.HasPrefix(name, "host/") && hash == "" {
				continue
			}
			p, ok := c.bodies[hash]
			if !ok {
				continue // dropped by a push of its own: odd, yet whole
			}
			if _, err := p.read(bytes.NewReader(b)); err != nil {
				t.Fatalf("body of %q: %v", name, err)
			}
		}
		// What was read as whole reads the same without the rest.
		again, err := readFrom(bytes.NewReader(b[:c.end]), c.end)
		if err != nil || again.revision != c.revision || !cmp.Equal(again.pointers, c.pointers) {
			t.Fatalf("the whole part reads differently: %v", err)
		}
	})
}
