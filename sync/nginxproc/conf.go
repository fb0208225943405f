package nginxproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Conf is one rendered nginx.conf.
type Conf struct {
	Text []byte
	// Generation stands in Text; workers that run it report it.
	Generation string
	// Files are what Text names besides: they are written before it, and removed when no configuration on disk
	// names them any more.
	Files []File
}

// ConfError is a configuration that nginx does not accept (nginx -t).
type ConfError struct {
	// Message is nginx's own first complaint, without the file name.
	Message string
	// Line in the configuration; 0 when nginx names none.
	Line int
	// Output is all that nginx said.
	Output string
}

// Error implements error.
func (e *ConfError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("nginx does not accept the configuration: %s (line %d)", e.Message, e.Line)
	}
	return "nginx does not accept the configuration: " + e.Message
}

const (
	testTimeout = 30 * time.Second
	confMode    = 0o640
)

func (p *Proxy) candidate() string { return p.cfg.Candidate }
func (p *Proxy) lastGood() string  { return p.cfg.Conf + ".last" }

// Test has nginx check a configuration without loading it. The error is a *ConfError when nginx does
// not accept it. A configuration that passes may still fail: nginx -t runs no Lua.
func (p *Proxy) Test(ctx context.Context, c Conf) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.writeCandidate(ctx, c)
	return errors.Join(err, removeIfThere(p.candidate()), p.pruneFiles())
}

// writeCandidate writes c beside the configuration, synced, and has nginx check it. On an error no
// file is left but those of c, which pruneFiles removes.
func (p *Proxy) writeCandidate(ctx context.Context, c Conf) error {
	if err := p.writeFiles(c.Files); err != nil {
		return err
	}
	if err := writeSynced(p.candidate(), c.Text); err != nil {
		return errors.Join(err, removeIfThere(p.candidate()))
	}
	if err := p.test(ctx, p.candidate()); err != nil {
		return errors.Join(err, removeIfThere(p.candidate()))
	}
	return nil
}

func (p *Proxy) test(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	more := []string{"-t", "-q"}
	if p.cfg.PIDFile != "" {
		// nginx -t makes the file. Each process has one of its own: nobody may write that of another user.
		pid := p.cfg.PIDFile + testPIDSuffix + strconv.Itoa(os.Getpid())
		more = append(more, pidArgument(pid)...)
		defer func() { _ = removeIfThere(pid) }() // an empty file more is no reason to refuse a configuration
	}
	cmd := exec.CommandContext(ctx, p.cfg.Binary, p.arguments(path, more...)...) //nolint:gosec // the administrator's own binary
	cmd.Env = environment()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("run nginx -t: %w", ctx.Err())
	case errors.As(err, &exit) && exit.Exited():
		return parseTest(string(out), path)
	}
	return fmt.Errorf("run nginx -t: %w: %.200s", err, out)
}

// complaint is a line of nginx about what keeps it from going on. Once it has read the error_log
// directive it writes a time instead of its name.
var complaint = regexp.MustCompile(`(?m)^(?:nginx:|[\d/]+ [\d:]+) \[(?:emerg|crit|alert|error)\] (?:\d+#\d+: )?(.*)$`)

// parseTest reads what nginx -t wrote about the file at path.
func parseTest(output, path string) *ConfError {
	e := &ConfError{Output: strings.TrimSpace(output)}
	m := complaint.FindStringSubmatch(output)
	if m == nil {
		e.Message, _, _ = strings.Cut(e.Output, "\n")
		if e.Message == "" {
			e.Message = "no reason given"
		}
		return e
	}
	e.Message = m[1]
	before, line, found := cutLast(e.Message, " in "+path+":")
	if n, err := strconv.Atoi(line); found && err == nil {
		e.Message, e.Line = before, n
	}
	return e
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// install makes the candidate the configuration and keeps the one before as the last good one.
func (p *Proxy) install() error {
	if err := removeIfThere(p.lastGood()); err != nil {
		return err
	}
	if err := os.Link(p.cfg.Conf, p.lastGood()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("keep the last good configuration: %w", err)
	}
	if err := os.Rename(p.candidate(), p.cfg.Conf); err != nil {
		return fmt.Errorf("put the configuration in place: %w", err)
	}
	return syncFolder(filepath.Dir(p.cfg.Conf))
}

// restore brings the last good configuration back. ok is false when there is none: then the new one
// is removed, so that nothing starts with it.
func (p *Proxy) restore() (ok bool, err error) {
	err = os.Rename(p.lastGood(), p.cfg.Conf)
	if errors.Is(err, os.ErrNotExist) {
		return false, removeIfThere(p.cfg.Conf)
	}
	if err != nil {
		return false, fmt.Errorf("bring the last good configuration back: %w", err)
	}
	return true, syncFolder(filepath.Dir(p.cfg.Conf))
}

func writeSynced(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, confMode)
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("fsync %s: %w", dir, err)
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}
