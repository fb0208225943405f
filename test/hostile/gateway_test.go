// Package hostile feeds the product what nobody well-meaning would: strings that look like syntax, files that
// are no manifests, requests that are no HTTP. Each test runs the headgate binary with a real nginx of its own
// and shows that the hostile thing costs nobody but its author.
package hostile

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"headgate/test/product"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if bin != "" {
		_ = os.RemoveAll(bin)
	}
	os.Exit(code)
}

// bin is the folder of the binary; "" until a test needs it. Workers of the fuzzer never do.
var bin string

// binary builds headgate once and gives its path.
var binary = sync.OnceValues(func() (string, error) {
	var err error
	if bin, err = os.MkdirTemp("", "headgate-hostile-"); err != nil {
		return "", err
	}
	path := filepath.Join(bin, "headgate")
	out, err := exec.CommandContext(context.Background(), "go", "build", "-o", path, "headgate/cmd/headgate").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build headgate: %w\n%s", err, out)
	}
	return path, nil
})

// patience bounds every wait. It is long: the machine may be busy.
const patience = 30 * time.Second

// gateway is one running headgate with its proxy.
type gateway struct {
	t           *testing.T
	dir         string
	manifests   string
	http, https string // "127.0.0.1:port"
	binary      string
	cmd         *exec.Cmd
	log         *syncBuffer
	marks       atomic.Int64
	backends    map[string]*backend
}

// syncBuffer is a bytes.Buffer that a process writes while a test reads it.
type syncBuffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// start runs headgate with a small configuration and extra top-level keys in YAML.
func start(t *testing.T, extra string) *gateway {
	t.Helper()
	product.LookAt(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := publicDir(t)
	g := &gateway{
		t: t, dir: dir, manifests: filepath.Join(dir, "manifests"),
		http: product.FreeAddress(t), https: product.FreeAddress(t), log: &syncBuffer{}, backends: map[string]*backend{},
	}
	if err := os.Mkdir(g.manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	conf := fmt.Sprintf(`
manifests: [%q]
listeners: {http: [%q], https: [%q]}
proxy: {mode: managed, stopWithDaemon: true, workerProcesses: 2}
upstreams: {allowLoopback: true}
metrics: {listen: ""}
stateDir: %q
runtimeDir: %q
%s`, g.manifests, g.http, g.https, filepath.Join(dir, "state"), filepath.Join(dir, "run"), extra)
	file := filepath.Join(dir, "headgate.yaml")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	g.binary = path
	//nolint:usetesting // it is ended by stop, which runs after the test's context has ended
	g.cmd = exec.CommandContext(context.Background(), path, "run", "--config", file)
	g.cmd.Stdout, g.cmd.Stderr = g.log, g.log
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.stop)
	return g
}

// publicDir is a folder of the test that nginx's workers, who are another user, can reach.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func (g *gateway) stop() {
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- g.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			g.t.Errorf("headgate did not stop cleanly: %v", err)
		}
	case <-time.After(patience):
		_ = g.cmd.Process.Kill()
		g.t.Errorf("headgate did not stop within %s", patience)
	}
	if lines := complaints(g.dir); lines != "" {
		g.t.Errorf("the proxy's error log holds what no input may cause:\n%s", lines)
	}
	for _, word := range []string{"panic:", "goroutine 1 [", "fatal error:", "DATA RACE"} {
		if strings.Contains(g.log.String(), word) {
			g.t.Errorf("headgate's log holds %q", word)
		}
	}
	if g.t.Failed() {
		g.t.Logf("headgate's log:\n%s", tail(g.log.String(), 8_000))
	}
}

// complaints gives the lines of error logs below dir that neither a request nor an object may cause.
func complaints(dir string) string {
	var bad strings.Builder
	_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.Contains(entry.Name(), "error") {
			return nil //nolint:nilerr // likewise for a folder
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // a log that vanishes with the proxy has nothing to say
		}
		for line := range strings.Lines(string(text)) {
			// nginx's word for a handshake that OpenSSL refused for a reason that nginx has no name for.
			if strings.Contains(line, "[crit]") && strings.Contains(line, "SSL_do_handshake() failed") {
				continue
			}
			for _, mark := range []string{"[alert]", "[emerg]", "[crit]", "lua entry thread aborted", "failed to run", "stack traceback"} {
				if strings.Contains(line, mark) {
					bad.WriteString(line)
					break
				}
			}
		}
		return nil
	})
	return bad.String()
}

// write puts one file into the folder of manifests, as an editor does: whole, by a rename.
func (g *gateway) write(name, text string) {
	g.t.Helper()
	temp := filepath.Join(g.manifests, ".writing")
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
	if err := os.Rename(temp, filepath.Join(g.manifests, name)); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) remove(name string) {
	g.t.Helper()
	if err := os.RemoveAll(filepath.Join(g.manifests, name)); err != nil {
		g.t.Fatal(err)
	}
}

// settle returns once everything that was written before is served. Each call brings a marker host of its own in
// a file of its own; the folder is read as a whole, so what lies beside the marker is served when the marker is.
func (g *gateway) settle() {
	g.t.Helper()
	host := fmt.Sprintf("marker-%d.invalid", g.marks.Add(1))
	g.write("zz-marker.yaml", ingress("zz-marker", host, prefix("/", "zz-marker"))+g.service("zz-marker"))
	g.await("marker "+host, func() bool { return g.get(host, "/") == "200 zz-marker" })
}

// await polls until ok holds: a folder and a proxy give a test no signal.
func (g *gateway) await(what string, ok func() bool) {
	g.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			g.t.Fatalf("%s: not within %s; problems: %v", what, patience, g.status().Problems)
		case <-tick.C:
		}
	}
}

// get asks for a path of a host, both written as they are, and gives "status backend".
func (g *gateway) get(host, target string) string {
	a, err := g.exchange(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", target, host), "GET")
	if err != nil {
		return err.Error()
	}
	return a.String()
}

// wants compares get with what must come.
func (g *gateway) wants(host, target, want string) {
	g.t.Helper()
	if got := g.get(host, target); got != want {
		g.t.Errorf("GET %s of %s: got %q, want %q", cut(target, 200), host, got, want)
	}
}

// exchange sends bytes on a connection of their own and reads one answer.
func (g *gateway) exchange(raw, method string) (answer, error) {
	conn, err := net.DialTimeout("tcp", g.http, patience)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte(raw)); err != nil {
		return answer{}, err
	}
	return readAnswer(bufio.NewReader(conn), method)
}

// daemonStatus is what the tests need of `headgate status -o json`.
type daemonStatus struct {
	Ready    bool
	Error    string
	Problems []problem
	TooLarge []string
	Reloads  map[string]int
	Failures int
	Proxy    struct {
		Restarts int
		Workers  []struct {
			PID    int
			Errors []string
		}
	}
}

type problem struct {
	Kind, Namespace, Name, Origin, Field, Reason, Message string
	Warning                                               bool
}

func (g *gateway) status() daemonStatus {
	g.t.Helper()
	out, err := exec.CommandContext(context.Background(), g.binary, "status", "-o", "json",
		"--config", filepath.Join(g.dir, "headgate.yaml")).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		g.t.Fatal(err)
	}
	var s daemonStatus
	if err := json.Unmarshal(out, &s); err != nil {
		g.t.Fatalf("headgate status -o json: %v in %q", err, out)
	}
	return s
}

// told looks for a problem whose origin begins with origin and whose message and field hold all words.
func (g *gateway) told(origin string, words ...string) {
	g.t.Helper()
	var seen []string
	for _, p := range g.status().Problems {
		text := strings.Join([]string{p.Kind, p.Name, p.Field, p.Reason, p.Message}, " ")
		if !strings.HasPrefix(p.Origin, origin) {
			continue
		}
		seen = append(seen, p.Origin+" "+text)
		missing := false
		for _, w := range words {
			missing = missing || !strings.Contains(text, w)
		}
		if !missing {
			return
		}
	}
	g.t.Errorf("no problem of %s says %q; it has %q", origin, words, cut(strings.Join(seen, "\n"), 4000))
}

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most] + fmt.Sprintf("… (%d bytes)", len(s))
}

func tail(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("(%d bytes) …", len(s)) + s[len(s)-most:]
}
