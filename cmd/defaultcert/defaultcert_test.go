package defaultcert

import (
	"bytes"
	"crypto/tls"
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

func TestHalfAPairOrAnExpiredOneIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	files, first := ensure(t, dir, at())
	if err := os.Remove(files.Key); err != nil {
		t.Fatal(err)
	}
	_, second := ensure(t, dir, at())
	if bytes.Equal(first, second) {
		t.Error("a certificate without its key was kept")
	}
	if _, third := ensure(t, dir, at().AddDate(11, 0, 0)); bytes.Equal(second, third) {
		t.Error("an expired certificate was kept")
	}
}

func TestForeignFilesStay(t *testing.T) {
	dir := t.TempDir()
	files, _ := ensure(t, dir, at())
	if err := os.WriteFile(files.Key, []byte("not a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(dir, at()); err == nil || !strings.Contains(err.Error(), "remove "+filepath.Join(dir, "default.crt")) {
		t.Errorf("error %v", err)
	}
	if text, _ := os.ReadFile(files.Key); string(text) != "not a key" {
		t.Error("a file that is not ours was overwritten")
	}
	if _, err := Ensure(filepath.Join(dir, "missing"), at()); err == nil {
		t.Error("a missing folder: no error")
	}
}
