package build_test

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headgate/gateway/build/buildtest"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// TestGoldens builds every case of testdata, then again from shuffled objects.
func TestGoldens(t *testing.T) {
	names, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no goldens in testdata: %v", err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			c, err := buildtest.Load(os.DirFS("."), name)
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range c.Run(nil) {
				dir := c.Steps[i].Dir
				compare(t, c, dir+"model", buildtest.Dump(r))
				compare(t, c, dir+"problems", buildtest.Problems(r))
			}
			if *update {
				if err := os.WriteFile(name, c.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for seed := range uint64(5) {
				for i, r := range c.Run(rand.New(rand.NewPCG(seed, 1))) {
					dir := c.Steps[i].Dir
					if diff := cmp.Diff(string(c.File(dir+"model")), string(buildtest.Dump(r))); diff != "" {
						t.Errorf("%smodel depends on the order of objects (-want +got):\n%s", dir, diff)
					}
					if diff := cmp.Diff(string(c.File(dir+"problems")), string(buildtest.Problems(r))); diff != "" {
						t.Errorf("%sproblems depend on the order of objects (-want +got):\n%s", dir, diff)
					}
				}
			}
		})
	}
}

func compare(t *testing.T, c *buildtest.Case, file string, got []byte) {
	t.Helper()
	if *update {
		c.SetFile(file, got)
		return
	}
	if !bytes.Equal(c.File(file), got) {
		t.Errorf("%s differs (-want +got):\n%s", file, cmp.Diff(string(c.File(file)), string(got)))
	}
}
