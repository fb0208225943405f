package manifests

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestSignsOfTrouble: what a folder may lose without anybody having removed it is told as doubtful; an edit is not.
func TestSignsOfTrouble(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "site")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, content string) {
		t.Helper()
		must(os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
	}
	must(os.Mkdir(folder, 0o700))
	write("a.yaml", service)
	write("b.yaml", "")
	d := newDesk(t, Config{Folders: []string{folder}})
	look := func(step, want string) {
		t.Helper()
		d.now = d.now.Add(time.Minute)
		d.source.scan(d.now)
		h := d.source.Health()
		if !h.Listed.Equal(d.now) {
			t.Errorf("%s: listed at %v, looked at %v", step, h.Listed, d.now)
		}
		if doubtful := h.Troubled.Equal(d.now); doubtful != (want != "") || (doubtful && h.Trouble != want) {
			t.Errorf("%s: %q at %v (now %v), want %q", step, h.Trouble, h.Troubled, d.now, want)
		}
	}
	look("first", "")
	write("c.yaml", "# nothing\n")
	must(os.Remove(filepath.Join(folder, "b.yaml")))
	look("edited", "")
	write("a.yaml", "")
	look("a file is emptied", "the file "+filepath.Join(folder, "a.yaml")+" has become empty")
	look("and stays so", "")
	write("a.yaml", service)
	must(os.Rename(folder, folder+".old"))
	look("gone", "the folder "+folder+" cannot be read")
	must(os.Mkdir(folder, 0o700))
	write("a.yaml", service)
	look("another one", "the folder "+folder+" is another one than before")
	look("known by now", "")
	must(os.Remove(filepath.Join(folder, "a.yaml")))
	look("empty", "the folder "+folder+" is empty")
}
