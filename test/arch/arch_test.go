// Package arch tests the shape of the tree rather than what the code does: which room imports
// which, how packages are called, what every file must and must not hold, and that the README
// tells the truth. It reads sources and runs `go list`; it starts nothing and changes nothing.
package arch

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "headgate"

// pkg is what `go list -json` tells of a package of the main module.
type pkg struct {
	Dir, ImportPath, Name, Doc                   string
	GoFiles, TestGoFiles, XTestGoFiles, CgoFiles []string
	IgnoredGoFiles                               []string
	Imports, TestImports, XTestImports           []string
}

// path is the package's folder below the module's root.
func (p pkg) path() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

func (p pkg) allImports() []string { return slices.Concat(p.Imports, p.TestImports, p.XTestImports) }

func packages(t *testing.T) []pkg {
	t.Helper()
	list, err := listOnce()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// listOnce is a variable only to be computed once for all tests.
var listOnce = sync.OnceValues(list)

func list() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-e", "-json", "./...")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var all []pkg
	stream := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		err := stream.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

// file is one file of the tree, its path relative to the root and with slashes.
type file struct{ path, text string }

// files gives the text files of the tree that match, without what is built.
func files(t *testing.T, match func(path string) bool) []file {
	t.Helper()
	root := filepath.Join("..", "..")
	var all []file
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return nil // another test's temporary file
			}
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator)))
		if entry.IsDir() {
			if slices.Contains([]string{".git", "bin", "build", "dist", "node_modules"}, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() || !match(name) {
			return nil
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		all = append(all, file{name, string(text)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func isGo(path string) bool { return strings.HasSuffix(path, ".go") }

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func exists(path string) bool {
	_, err := os.Stat(filepath.Join("..", "..", filepath.FromSlash(path)))
	return err == nil
}
