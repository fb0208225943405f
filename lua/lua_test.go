package lua

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lua")
	for _, step := range []string{"first", "again"} {
		if err := Write(dir); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		if !same(Dir(dir)) {
			t.Fatalf("%s: other files were written", step)
		}
	}
	// A file that was damaged, and one that does not belong there, are put right.
	for _, damage := range []func(string) error{
		func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) },
		os.Remove,
	} {
		if err := damage(filepath.Join(Dir(dir), "headgate", "router.lua")); err != nil {
			t.Fatal(err)
		}
		if err := Write(dir); err != nil || !same(Dir(dir)) {
			t.Fatalf("after damage: %v", err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != Build() {
		t.Errorf("%v %v", entries, err)
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o444 != 0o444 {
			t.Errorf("%s is not readable for workers: %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWriteErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(file); err == nil || !strings.Contains(err.Error(), "writing the Lua files") {
		t.Errorf("%v", err)
	}
}

func TestBuild(t *testing.T) {
	if b := Build(); !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(b) || b != Build() {
		t.Errorf("%q", b)
	}
}

// TestEveryFileCompiles: nginx -t does not even parse Lua, so a syntax error would only show when a
// reload fails.
func TestEveryFileCompiles(t *testing.T) {
	luajit, err := exec.LookPath("luajit")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("needs luajit: %v", err)
	}
	dir := t.TempDir()
	if err := Write(dir); err != nil {
		t.Fatal(err)
	}
	for _, f := range list() {
		out, err := exec.CommandContext(t.Context(), luajit, "-bl", filepath.Join(Dir(dir), f.name)).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", f.name, err, out)
		}
		if bytes.Contains(out, []byte("GSET")) {
			t.Errorf("%s sets a global", f.name)
		}
	}
}
