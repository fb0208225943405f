// Package lua holds the Lua files that run in the proxy and writes them to disk. They are part of
// the binary, so that daemon and data plane always fit; each build has a folder of its own, so that
// a running proxy keeps the files that it was started with.
package lua

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed headgate
var files embed.FS

// Build names the Lua files by their content (16 hex digits).
func Build() string {
	hash := sha256.New()
	for _, f := range list() {
		fmt.Fprintf(hash, "%s %d\n", f.name, len(f.content))
		hash.Write(f.content)
	}
	return hex.EncodeToString(hash.Sum(nil)[:8])
}

// Dir is the folder below dir that holds the files of this build: lua_package_path names it.
func Dir(dir string) string { return filepath.Join(dir, Build()) }

// Write puts the files into <dir>/<build>/headgate/…, readable for everybody. The folder appears
// under its name only when it is complete. One that is there already is left alone when it holds the
// same files, and replaced when it does not. Folders of other builds are not touched.
func Write(dir string) error {
	target := Dir(dir)
	if same(target) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("writing the Lua files: %w", err)
	}
	temp, err := os.MkdirTemp(dir, ".new-*")
	if err != nil {
		return fmt.Errorf("writing the Lua files: %w", err)
	}
	err = fill(temp)
	if err == nil {
		err = replace(temp, target)
	}
	if err != nil {
		return fmt.Errorf("writing the Lua files to %s: %w", target, errors.Join(err, os.RemoveAll(temp)))
	}
	return nil
}

func fill(temp string) error {
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	for _, f := range list() {
		path := filepath.Join(temp, f.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// replace moves temp to target. Something else of that name is moved away first: a folder cannot be
// renamed over one that is not empty.
func replace(temp, target string) error {
	err := os.Rename(temp, target)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	old := temp + ".old"
	if err := os.Rename(target, old); err != nil {
		return err
	}
	if err := os.Rename(temp, target); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

func same(target string) bool {
	for _, f := range list() {
		have, err := os.ReadFile(filepath.Join(target, f.name))
		if err != nil || !bytes.Equal(have, f.content) {
			return false
		}
	}
	return true
}

type file struct {
	name    string
	content []byte
}

// list reads the embedded files, in the order of their names.
func list() []file {
	var all []file
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := files.ReadFile(path)
		all = append(all, file{name: path, content: content})
		return err
	})
	if err != nil {
		panic("lua: reading an embedded file: " + err.Error())
	}
	return all
}
