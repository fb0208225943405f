package addr

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// What is taken for a state file comes back as it was written.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"schema":1,"addresses":[{"interface":"eth0","index":2,"ip":"192.0.2.10","bits":32}]}`))
	f.Add([]byte(`{"schema":1,"addresses":null}`))
	f.Add([]byte(`{"schema":1,"addresses":[{"interface":"eth0","index":2,"ip":"2001:db8::1","bits":64},{"interface":"a","index":1,"ip":"2001:db8::1","bits":64}]}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		owned, err := parse("state", text)
		if err != nil {
			return
		}
		path := filepath.Join(t.TempDir(), "state")
		if err := store(path, owned); err != nil {
			t.Fatal(err)
		}
		first, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		again, err := load(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := store(path, again); err != nil {
			t.Fatal(err)
		}
		second, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(first, second) {
			t.Errorf("%q became %q (%v)", first, second, err)
		}
	})
}
