package nginxproc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// with adds files that the configuration includes: nginx reads them with it.
func (b *bench) with(c Conf, names ...string) Conf {
	var extra strings.Builder
	for _, name := range names {
		path := filepath.Join(b.path("tls"), name)
		fmt.Fprintf(&extra, "    include \"%s\";\n", path)
		c.Files = append(c.Files, File{Path: path, Content: []byte("# " + name + "\n")})
	}
	text := string(c.Text)
	end := strings.LastIndex(text, "}")
	c.Text = []byte(text[:end] + extra.String() + text[end:])
	return c
}

func (b *bench) files() []string {
	b.t.Helper()
	entries, err := os.ReadDir(b.path("tls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestFiles: what a configuration names lies there before nginx reads it, and goes when neither the configuration nor
// the last good one names it.
func TestFiles(t *testing.T) {
	b := newBench(t)
	cfg := b.config()
	cfg.FilesDir = b.path("tls")
	p := New(cfg)
	b.run(p)
	expect := func(step string, want ...string) {
		t.Helper()
		if got := b.files(); !slices.Equal(got, want) {
			t.Errorf("%s: files %v, want %v", step, got, want)
		}
	}
	b.apply(p, b.conf("none", "", ""))
	expect("none")
	b.apply(p, b.with(b.conf("one", "", ""), "a.pem", "b.pem"))
	expect("one", "a.pem", "b.pem")
	info, err := os.Stat(filepath.Join(b.path("tls"), "a.pem"))
	if err != nil || info.Mode().Perm() != confMode {
		t.Errorf("%v %v", info, err)
	}
	if info, err := os.Stat(b.path("tls")); err != nil || info.Mode().Perm() != filesDirMode {
		t.Errorf("%v %v", info, err)
	}
	b.apply(p, b.with(b.conf("two", "", ""), "b.pem", "c.pem"))
	expect("the last good one still names a", "a.pem", "b.pem", "c.pem")
	b.apply(p, b.with(b.conf("three", "", ""), "c.pem"))
	expect("nobody names a any more", "b.pem", "c.pem")

	// What is only tried, or refused, leaves nothing behind.
	if err := p.Test(t.Context(), b.with(b.conf("tried", "", ""), "d.pem")); err != nil {
		t.Error(err)
	}
	expect("tried", "b.pem", "c.pem")
	bad := b.with(b.conf("bad", "", ""), "e.pem")
	bad.Files[0].Content = []byte("no_such_directive on;")
	var refused *ConfError
	if err := p.Apply(t.Context(), bad); !errors.As(err, &refused) || !strings.Contains(refused.Message, "no_such_directive") {
		t.Errorf("%v", err)
	}
	expect("refused", "b.pem", "c.pem")
	// One that passes nginx -t and does not come up: nginx goes back, and reads its files again.
	err = p.Apply(t.Context(), b.with(b.conf("broken", `error("broken")`, ""), "f.pem"))
	var failed *ReloadError
	if !errors.As(err, &failed) {
		t.Errorf("%v", err)
	}
	b.eventually("the generation before", b.serves("three"))
	expect("gone back", "c.pem")

	// A file that was damaged is written anew, and a leftover goes.
	for _, name := range []string{"c.pem", "leftover"} {
		if err := os.WriteFile(filepath.Join(b.path("tls"), name), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.apply(p, b.with(b.conf("four", "", ""), "c.pem"))
	expect("mended", "c.pem")
	if text, err := os.ReadFile(filepath.Join(b.path("tls"), "c.pem")); err != nil || string(text) != "# c.pem\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestTidy: what a daemon left that was killed between the first file of a configuration and its reload goes with the next one's
// start, and nothing else does.
func TestTidy(t *testing.T) {
	b := newBench(t)
	cfg := b.config()
	cfg.FilesDir = b.path("tls")
	first := New(cfg)
	b.run(first)
	b.apply(first, b.with(b.conf("one", "", ""), "a.pem"))
	gone := exec.CommandContext(t.Context(), "true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	cfg.PIDFile = b.path("nginx.pid")
	tests := func(pid int) string { return fmt.Sprintf("%s.test-%d", cfg.PIDFile, pid) }
	left := []string{b.path("nginx.conf.new"), filepath.Join(cfg.FilesDir, "b.pem"), filepath.Join(cfg.FilesDir, ".b.pem123"), tests(gone.Process.Pid)}
	boot := b.with(b.conf("boot", "", ""), "c.pem").Text // the unit of nginx is at it
	if err := os.WriteFile(b.path("nginx.conf.boot"), boot, 0o600); err != nil {
		t.Fatal(err)
	}
	stays := []string{filepath.Join(cfg.FilesDir, "a.pem"), filepath.Join(cfg.FilesDir, "c.pem"), tests(os.Getpid()), tests(0), cfg.PIDFile + ".test-x"}
	for _, path := range append(slices.Clone(left), stays...) {
		if err := os.WriteFile(path, []byte("# left\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !New(cfg).Adopt(t.Context()) {
		t.Error("the proxy that runs is not taken over")
	}
	for _, path := range left {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	for _, path := range stays {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%v", err)
		}
	}
}

func TestFilesElsewhereAreRefused(t *testing.T) {
	b := newBench(t)
	cfg := b.config()
	cfg.FilesDir = b.path("tls")
	c := b.conf("one", "", "")
	c.Files = []File{{Path: b.path("elsewhere"), Content: []byte("x")}}
	if err := New(cfg).Apply(t.Context(), c); err == nil || !strings.Contains(err.Error(), "is not in") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(b.path("elsewhere")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was written: %v", err)
	}
}
