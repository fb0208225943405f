package nginxproc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// File is what a configuration names and nginx reads with it, such as a certificate with its key. It lies in
// Config.FilesDir; its name changes with its content.
type File struct {
	Path    string
	Content []byte
}

const (
	filesDirMode = 0o750
	// testPIDSuffix stands between Config.PIDFile and the process that runs nginx -t.
	testPIDSuffix = ".test-"
)

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

// tidy removes, once, what a process left that was killed while it made a configuration: the candidate, files with keys that
// nobody names, and those that nginx -t makes.
func (p *Proxy) tidy() {
	if p.tidied {
		return
	}
	p.tidied = true
	if err := errors.Join(removeIfThere(p.candidate()), p.removeTestPIDs(), p.pruneFiles()); err != nil {
		p.cfg.Log.Warn("what a process left that was killed stays", "err", err)
	}
}

// removeTestPIDs removes the PID files of nginx -t whose process is gone.
func (p *Proxy) removeTestPIDs() error {
	if p.cfg.PIDFile == "" {
		return nil
	}
	found, err := filepath.Glob(p.cfg.PIDFile + testPIDSuffix + "*")
	if err != nil {
		return fmt.Errorf("look for what nginx -t left: %w", err)
	}
	var errs []error
	for _, path := range found {
		pid, err := strconv.Atoi(strings.TrimPrefix(path, p.cfg.PIDFile+testPIDSuffix))
		if err == nil && pid > 0 && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			errs = append(errs, removeIfThere(path))
		}
	}
	return errors.Join(errs...)
}

// pruneFiles removes the files that no configuration names, for they hold keys: neither the one that is there, nor the last good
// one, nor one that another process is checking.
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
	beside, err := filepath.Glob(p.cfg.Conf + ".*")
	if err != nil {
		return fmt.Errorf("look for configurations: %w", err)
	}
	var texts []byte
	for _, conf := range append(beside, p.cfg.Conf) {
		text, err := os.ReadFile(conf)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("look for certificates that nobody uses: %w", err) // better one too many than one too few
		}
		texts = append(texts, text...)
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(p.cfg.FilesDir, e.Name())
		if !bytes.Contains(texts, []byte(`"`+path+`"`)) {
			errs = append(errs, removeIfThere(path))
		}
	}
	return errors.Join(errs...)
}
