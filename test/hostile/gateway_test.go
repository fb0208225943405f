// Package hostile feeds the product what nobody well-meaning would: strings that look like syntax, files that
// are no manifests, requests that are no HTTP. Each test runs the headgate binary with a real nginx of its own
// and shows that the hostile thing costs nobody but its author.
package hostile

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	metrics     string // likewise
	binary      string
	cmd         *exec.Cmd
	marks       atomic.Int64
	backends    map[string]*backend
}

// start runs headgate with a small configuration, extra top-level keys in YAML, and variables of its environment.
func start(t *testing.T, extra string, variables ...string) *gateway {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	p := product.NewGateway(t, extra)
	p.Env = append(environment(), variables...)
	p.Start(path)
	return &gateway{
		t: t, dir: p.Dir, manifests: p.Manifests, http: p.HTTP, https: p.HTTPS, metrics: p.Metrics,
		binary: path, cmd: p.Cmd, backends: map[string]*backend{},
	}
}

// environment is that of the tests, whose own variables are none of the product's configuration.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "HEADGATE_") })
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
	PID      int
	Problems []problem
	TooLarge []string
	Reloads  map[string]int
	Failures int
	Proxy    struct {
		Reachable           bool
		Restarts, MasterPID int
		Workers             []struct {
			PID    int
			Errors []string
		}
	}
	Health struct {
		Up, Down, Unknown, Running int
		LateMs, Succeeded, Failed  int64
	}
}

type problem struct {
	Kind, Namespace, Name, Origin, Field, Reason, Message string
	Warning                                               bool
}

func (g *gateway) status() daemonStatus {
	g.t.Helper()
	cmd := exec.CommandContext(context.Background(), g.binary, "status", "-o", "json", "--config", filepath.Join(g.dir, "headgate.yaml"))
	cmd.Env = environment()
	out, err := cmd.Output()
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

// told waits for a problem whose origin begins with origin and whose message and field hold all words: what is served can be
// seen a moment before the status tells of it.
func (g *gateway) told(origin string, words ...string) {
	g.t.Helper()
	g.await(fmt.Sprintf("a problem of %s says %q", origin, words), func() bool {
		return slices.ContainsFunc(g.status().Problems, func(p problem) bool {
			text := strings.Join([]string{p.Kind, p.Name, p.Field, p.Reason, p.Message}, " ")
			lacks := func(word string) bool { return !strings.Contains(text, word) }
			return strings.HasPrefix(p.Origin, origin) && !slices.ContainsFunc(words, lacks)
		})
	})
}

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most] + fmt.Sprintf("… (%d bytes)", len(s))
}
