package nginxproc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// File is what a configuration names and nginx reads with it, such as a certificate with its key. It lies in
// Config.FilesDir; its name changes with its content.
type File struct {
	Path    string
	Content []byte
}

const filesDirMode = 0o750

// writeFiles puts files in place before a configuration that names them. What is there already stays: a name
// stands for one content.
func (p *Proxy) writeFiles(files []File) error {
	if len(files) == 0 {
		return nil
	}
	if err := os.MkdirAll(p.cfg.FilesDir, filesDirMode); err != nil {
		return fmt.Errorf("make the folder of the certificates for peers: %w", err)
	}
	for _, f := range files {
		if filepath.Dir(f.Path) != filepath.Clean(p.cfg.FilesDir) {
			return fmt.Errorf("write %s: it is not in %s", f.Path, p.cfg.FilesDir)
		}
		have, err := os.ReadFile(f.Path)
		if err == nil && bytes.Equal(have, f.Content) {
			continue
		}
		if err := renameio.WriteFile(f.Path, f.Content, confMode, renameio.WithTempDir(p.cfg.FilesDir), renameio.WithStaticPermissions(confMode)); err != nil {
			return fmt.Errorf("write a certificate for peers: %w", err)
		}
	}
	return syncFolder(p.cfg.FilesDir)
}

// pruneFiles removes the files that neither the configuration nor the last good one names: they hold keys.
func (p *Proxy) pruneFiles() error {
	if p.cfg.FilesDir == "" {
		return nil
	}
	entries, err := os.ReadDir(p.cfg.FilesDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for certificates that nobody uses: %w", err)
	}
	if len(entries) == 0 {
		return nil
	}
	var texts [][]byte
	for _, conf := range []string{p.cfg.Conf, p.lastGood()} {
		text, err := os.ReadFile(conf)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("look for certificates that nobody uses: %w", err) // better one too many than one too few
		}
		texts = append(texts, text)
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(p.cfg.FilesDir, e.Name())
		named := []byte(`"` + path + `"`)
		if !bytes.Contains(texts[0], named) && !bytes.Contains(texts[1], named) {
			errs = append(errs, removeIfThere(path))
		}
	}
	return errors.Join(errs...)
}
