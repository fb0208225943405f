package product

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds the wait for an end. It is long: the machine may be busy.
const patience = 30 * time.Second

// Log is what a process writes while a test reads it. The zero value is empty and ready.
type Log struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String gives all of it so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// PublicDir is a folder of the test that nginx's workers, who are another user, can reach.
func PublicDir(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // see above
			tb.Fatal(err)
		}
	}
	return dir
}

// Gateway is one daemon with the proxy that it keeps, on addresses of its own, over a folder of manifests.
type Gateway struct {
	Dir         string // all its files
	Manifests   string // the folder that it reads; empty at first
	RuntimeDir  string
	Config      string // headgate.yaml
	HTTP, HTTPS string // "127.0.0.1:port"
	Metrics     string // likewise
	// Env is the environment of the daemon; nil: that of the test.
	Env []string
	// Cmd and Log are the daemon's; nil before Start.
	Cmd *exec.Cmd
	Log *Log

	tb testing.TB
}

// NewGateway writes the configuration: a small one, and extra top-level keys in YAML. Nothing runs yet.
func NewGateway(tb testing.TB, extra string) *Gateway {
	tb.Helper()
	LookAt(tb)
	dir := PublicDir(tb)
	g := &Gateway{
		Dir: dir, Manifests: filepath.Join(dir, "manifests"), RuntimeDir: filepath.Join(dir, "run"),
		Config: filepath.Join(dir, "headgate.yaml"), HTTP: FreeAddress(tb), HTTPS: FreeAddress(tb), Metrics: FreeAddress(tb), tb: tb,
	}
	if err := os.Mkdir(g.Manifests, 0o755); err != nil { //nolint:gosec // no secret in it
		tb.Fatal(err)
	}
	conf := fmt.Sprintf(`
manifests: [%q]
listeners: {http: [%q], https: [%q]}
proxy: {mode: managed, stopWithDaemon: true, workerProcesses: 2}
upstreams: {allowLoopback: true}
metrics: {listen: %q}
stateDir: %q
runtimeDir: %q
%s`, g.Manifests, g.HTTP, g.HTTPS, g.Metrics, filepath.Join(dir, "state"), g.RuntimeDir, extra)
	if err := os.WriteFile(g.Config, []byte(conf), 0o600); err != nil {
		tb.Fatal(err)
	}
	return g
}

// Start runs the binary, as Run does it.
func (g *Gateway) Start(binary string) {
	g.tb.Helper()
	g.Cmd = exec.CommandContext(context.WithoutCancel(g.tb.Context()), binary, "run", "--config", g.Config) // ends in the clean-up
	g.Cmd.Env = g.Env
	g.Log = Run(g.tb, g.Cmd, g.Dir)
}

// Run starts a daemon or a proxy whose files lie below dir, and gives what it writes. At the end of the test it is stopped
// as systemd does it; the test fails when it does not stop cleanly, or when it or its proxy logged what neither a request
// nor an object may cause.
func Run(tb testing.TB, cmd *exec.Cmd, dir string) *Log {
	tb.Helper()
	log := &Log{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		end(tb, cmd)
		judge(tb, dir, log.String())
	})
	return log
}

func end(tb testing.TB, cmd *exec.Cmd) {
	tb.Helper()
	name := filepath.Base(cmd.Path)
	_ = cmd.Process.Signal(syscall.SIGTERM)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			tb.Errorf("%s did not stop cleanly: %v", name, err)
		}
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		<-ended
		tb.Errorf("%s did not stop within %s", name, patience)
	}
}

func judge(tb testing.TB, dir, text string) {
	tb.Helper()
	if lines := Complaints(dir); lines != "" {
		tb.Errorf("the proxy's error log holds what no input may cause:\n%s", lines)
	}
	for _, word := range []string{"panic:", "goroutine 1 [", "fatal error:", "DATA RACE"} {
		if strings.Contains(text, word) {
			tb.Errorf("the log holds %q", word)
		}
	}
	if tb.Failed() {
		const most = 32_000
		tb.Logf("the log, its end:\n%s", text[max(0, len(text)-most):])
	}
}

// Complaints gives the lines of ErrorLogs that neither a request nor an object may cause.
func Complaints(dir string) string {
	var bad strings.Builder
	for line := range strings.Lines(ErrorLogs(dir)) {
		if complains(line) {
			bad.WriteString(line)
		}
	}
	return bad.String()
}

// ErrorLogs gives all that proxies with their files below dir have told so far.
func ErrorLogs(dir string) string {
	var all strings.Builder
	_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.Contains(entry.Name(), "error") {
			return nil //nolint:nilerr // likewise for a folder
		}
		text, err := os.ReadFile(path) //nolint:gosec // the test's own folder
		if err != nil {
			return nil //nolint:nilerr // a log that vanishes with the proxy has nothing to say
		}
		all.Write(text)
		return nil
	})
	return all.String()
}

func complains(line string) bool {
	// nginx's word for a handshake that OpenSSL refused for a reason that nginx has no name for.
	if strings.Contains(line, "[crit]") && strings.Contains(line, "SSL_do_handshake() failed") {
		return false
	}
	for _, mark := range []string{"[alert]", "[emerg]", "[crit]", "lua entry thread aborted", "failed to run", "stack traceback"} {
		if strings.Contains(line, mark) {
			return true
		}
	}
	return false
}
