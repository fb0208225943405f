package manifests

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// FuzzFirstSeen: any file of first-seen times is read or refused, and what was read is read again after a save.
func FuzzFirstSeen(f *testing.F) {
	f.Add([]byte(`{"version":1,"objects":[{"kind":"Ingress","namespace":"a","name":"b","seen":"2026-01-02T03:04:05Z"}]}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"objects":[{"seen":"0000-01-01T00:00:00Z"},{}]}`))
	f.Add([]byte(`[]`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, firstSeenFile), text, 0o600); err != nil {
			t.Fatal(err)
		}
		seen, err := loadFirstSeen(dir)
		if err != nil {
			return
		}
		id := identity{kind: "Ingress"}
		at := seen.time(id, time.Now())
		seen.dirty = true
		if err := seen.save(); err != nil {
			t.Fatal(err)
		}
		again, err := loadFirstSeen(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := again.time(id, time.Now().Add(time.Hour)); !got.Equal(at) {
			t.Errorf("%v became %v", at, got)
		}
	})
}
