package product

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A result is taken from the cache while the sources are the same, and not after one of them changed.
func TestLookAt(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"go.mod": "module example\n", "go.sum": "", "extra/x": "1",
		"cmd/a/a.go": "package a\n", "gateway/g.go": "package gateway\n", "sync/s.go": "package sync\n", "lua/l.lua": "-- 1\n",
		"product/product.go": read(t, "product.go"),
		"test/deep/t_test.go": "package deep\nimport (\"testing\"; \"example/product\")\n" +
			"func Test(t *testing.T) { product.LookAt(t, \"extra\") }\n",
	}
	for name, text := range files {
		write(t, filepath.Join(dir, name), text)
	}
	run := func() bool {
		t.Helper()
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "go", "test", "./test/deep")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go test: %v\n%s", err, out)
		}
		return bytes.Contains(out, []byte("(cached)"))
	}
	for _, name := range []string{"lua/l.lua", "cmd/a/a.go", "cmd/b/new.go", "extra/x"} {
		age(t, dir)
		run()
		if !run() {
			t.Fatalf("before %s changed: not taken from the cache", name)
		}
		write(t, filepath.Join(dir, name), files[name]+strings.Repeat(" ", 7))
		if run() {
			t.Errorf("%s changed: taken from the cache", name)
		}
		files[name] += strings.Repeat(" ", 7)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// age makes everything old: go test keeps no result of files that changed within the last seconds.
func age(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		long := time.Now().Add(-time.Hour)
		return errors.Join(err, os.Chtimes(path, long, long))
	})
	if err != nil {
		t.Fatal(err)
	}
}
