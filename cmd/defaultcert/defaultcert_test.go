package defaultcert

import (
	"bytes"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func at() time.Time { return time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC) }

func ensure(t *testing.T, dir string, now time.Time) (Files, []byte) {
	t.Helper()
	files, err := Ensure(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(files.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	return files, text
}

func TestMadeOnceAndKept(t *testing.T) {
	dir := t.TempDir()
	files, first := ensure(t, dir, at())
	if _, again := ensure(t, dir, at().AddDate(9, 11, 0)); !bytes.Equal(first, again) {
		t.Error("a second start made another certificate")
	}
	pair, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	leaf := pair.Leaf
	if leaf.Subject.CommonName != CommonName || !leaf.NotAfter.Equal(at().AddDate(10, 0, 0)) || leaf.IsCA || leaf.PublicKeyAlgorithm.String() != "ECDSA" {
		t.Errorf("certificate %v, until %v, CA %t, %v", leaf.Subject, leaf.NotAfter, leaf.IsCA, leaf.PublicKeyAlgorithm)
	}
	if !files.NotAfter.Equal(leaf.NotAfter) {
		t.Errorf("told to expire %v, expires %v", files.NotAfter, leaf.NotAfter)
	}
	for path, want := range map[string]os.FileMode{files.Key: 0o640, files.Certificate: 0o644} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

func TestAnExpiredOneIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	_, first := ensure(t, dir, at())
	if files, second := ensure(t, dir, at().AddDate(11, 0, 0)); bytes.Equal(first, second) || files.Refused != nil {
		t.Errorf("an expired certificate was kept, or refused: %v", files.Refused)
	}
}

// A pair that cannot be used must not keep the proxy from starting, and may be somebody's own.
func TestWhatCannotBeUsedIsSetAside(t *testing.T) {
	for _, c := range []struct {
		name     string
		spoil    func(Files) error
		aside    []string
		contents string // of the last one
	}{
		{"empty certificate", func(f Files) error { return os.WriteFile(f.Certificate, nil, 0o600) }, []string{"default.key", "default.crt"}, ""},
		{"empty key", func(f Files) error { return os.WriteFile(f.Key, nil, 0o600) }, []string{"default.crt", "default.key"}, ""},
		{"no key at all", func(f Files) error { return os.WriteFile(f.Key, []byte("not a key"), 0o600) }, []string{"default.crt", "default.key"}, "not a key"},
		{"a certificate alone", func(f Files) error { return os.Remove(f.Key) }, []string{"default.crt"}, "-----BEGIN CERTIFICATE"},
		{"a key alone", func(f Files) error { return os.Remove(f.Certificate) }, []string{"default.key"}, "-----BEGIN PRIVATE KEY"},
		{"a folder", func(f Files) error { return errors.Join(os.Remove(f.Key), os.Mkdir(f.Key, 0o700)) }, []string{"default.key", "default.crt"}, "-----BEGIN CERTIFICATE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			files, _ := ensure(t, dir, at())
			if err := c.spoil(files); err != nil {
				t.Fatal(err)
			}
			files, _ = ensure(t, dir, at())
			if _, err := tls.LoadX509KeyPair(files.Certificate, files.Key); err != nil || !files.NotAfter.Equal(at().AddDate(10, 0, 0)) {
				t.Errorf("no new pair: %v, until %v", err, files.NotAfter)
			}
			var last []byte
			for _, name := range c.aside {
				path := filepath.Join(dir, name+".refused")
				if files.Refused == nil || !strings.Contains(files.Refused.Error(), path) {
					t.Errorf("refused %v does not name %s", files.Refused, path)
				}
				if _, err := os.Stat(path); err != nil {
					t.Error(err)
				}
				last, _ = os.ReadFile(path)
			}
			if !strings.HasPrefix(string(last), c.contents) {
				t.Errorf("set aside: %.40q, want %q", last, c.contents)
			}
			if again, _ := ensure(t, dir, at()); again.Refused != nil {
				t.Errorf("the new pair is refused: %v", again.Refused)
			}
		})
	}
}

func TestNoFolder(t *testing.T) {
	if _, err := Ensure(filepath.Join(t.TempDir(), "missing"), at()); err == nil {
		t.Error("a missing folder: no error")
	}
}
