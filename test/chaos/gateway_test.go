package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"headgate/sync/admin"
	"headgate/sync/luapush"
	"headgate/test/cluster/harness"
)

// harnessEventually polls f until it is well.
func harnessEventually(t testing.TB, timeout time.Duration, f func() error) {
	t.Helper()
	harness.Eventually(t, timeout, f)
}

// gateway is one headgate with the nginx that it keeps.
type gateway struct {
	t           *testing.T // the part that is running
	binary      string
	dir         string // all files, in no other test's way
	runtimeDir  string
	stateDir    string
	http, https string
	log         *journal
	control     *luapush.Client
	daemon      *exec.Cmd // nil while none runs
}

// journal is a log that is read while it is written.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// mark is a place in the log.
func (j *journal) mark() int { return len(j.String()) }

// since tells whether the text was logged after the mark.
func (j *journal) since(mark int, text string) bool { return strings.Contains(j.String()[mark:], text) }

// told waits until the text was logged after the mark: the status shows an event before the log does.
func (g *gateway) told(mark int, text string) {
	g.t.Helper()
	harnessEventually(g.t, patience, func() error {
		if !g.log.since(mark, text) {
			return fmt.Errorf("the log does not tell: %s", text)
		}
		return nil
	})
}

// newGateway writes the configuration; nothing runs yet. settings are further top-level keys in YAML.
func newGateway(t *testing.T, binary string, port int, settings string) *gateway {
	t.Helper()
	dir, err := os.MkdirTemp("", "chaos-") //nolint:usetesting // a unix socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // nginx's workers, another user, pass through
		t.Fatal(err)
	}
	g := &gateway{
		t: t, binary: binary, dir: dir, runtimeDir: filepath.Join(dir, "run"), stateDir: filepath.Join(dir, "state"),
		http: fmt.Sprintf("127.0.0.1:%d", port), https: fmt.Sprintf("127.0.0.1:%d", port+1), log: &journal{},
	}
	g.control = luapush.New(luapush.Config{Socket: filepath.Join(g.runtimeDir, "proxy", "control.sock"), Pusher: "test"})
	g.guard(t)
	t.Cleanup(g.end)
	text := fmt.Sprintf(`
listeners: {http: [%q], https: [%q]}
metrics: {listen: ""}
stateDir: %q
runtimeDir: %q
%s`, g.http, g.https, g.stateDir, g.runtimeDir, settings)
	if err := os.WriteFile(g.config(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *gateway) config() string { return filepath.Join(g.dir, "headgate.yaml") }

// guard sees to it that nothing of this gateway outlives the test, however that ends: a shell waits for its death.
func (g *gateway) guard(t *testing.T) {
	const script = `cat >/dev/null
for p in /proc/[0-9]*; do
	case "$(readlink "$p/cwd")" in "$1"|"$1"/*) kill -9 "${p#/proc/}";; esac
done
for m in "$1"/*; do umount -l "$m" 2>/dev/null; done
rm -rf "$1"`
	guard := exec.Command("/bin/sh", "-c", script, "guard", g.dir)
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := guard.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := guard.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// end stops what runs and shows what was said, if the test failed. The guard removes the rest.
func (g *gateway) end() {
	if g.daemon != nil {
		g.stop()
	}
	g.control.Close()
	if g.t.Failed() {
		g.t.Logf("headgate's log:\n%s", g.log)
		errorLog, _ := os.ReadFile(filepath.Join(g.runtimeDir, "error.log"))
		g.t.Logf("nginx's error log:\n%s", lastLines(string(errorLog), 40))
	}
	for _, p := range g.nginx() {
		_ = syscall.Kill(p.pid, syscall.SIGTERM)
	}
	harnessEventually(withoutContext{g.t}, patience, func() error {
		if left := g.nginx(); len(left) > 0 {
			return fmt.Errorf("still running: %v", left)
		}
		return nil
	})
}

// withoutContext lets a cleanup wait: the context of its test has ended.
type withoutContext struct{ testing.TB }

// Context implements testing.TB.
func (w withoutContext) Context() context.Context { return context.WithoutCancel(w.TB.Context()) }

func lastLines(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// run is the command that starts a daemon. Variables of the test are none of its configuration.
func (g *gateway) run(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), g.binary, "run", "--config", g.config())
	cmd.Dir = g.dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "HEADGATE_") })
	return cmd
}

// start starts a daemon and waits until it answers.
func (g *gateway) start() {
	g.t.Helper()
	if g.daemon != nil {
		g.t.Fatal("a daemon runs already")
	}
	cmd := g.run(g.t.Context())
	cmd.Stdout, cmd.Stderr = g.log, g.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	g.daemon = cmd
	harnessEventually(g.t, patience, func() error {
		s, err := g.status()
		if err == nil && s.PID != cmd.Process.Pid {
			return fmt.Errorf("the daemon that answers is %d, not %d", s.PID, cmd.Process.Pid)
		}
		return err
	})
}

// stop ends the daemon as systemd does. The proxy goes on.
func (g *gateway) stop() {
	_ = g.daemon.Process.Signal(syscall.SIGTERM)
	ended := make(chan error, 1)
	go func(cmd *exec.Cmd) { ended <- cmd.Wait() }(g.daemon)
	select {
	case err := <-ended:
		if err != nil {
			g.t.Errorf("headgate did not stop cleanly: %v", err)
		}
	case <-time.After(patience):
		_ = g.daemon.Process.Kill()
		<-ended
		g.t.Errorf("headgate did not stop within %v", patience)
	}
	g.daemon = nil
}

// kill9 ends the daemon with SIGKILL.
func (g *gateway) kill9() {
	_ = g.daemon.Process.Kill()
	_ = g.daemon.Wait()
	g.daemon = nil
}

// status is the daemon's account of itself.
func (g *gateway) status() (admin.Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return admin.Ask(ctx, g.runtimeDir)
}

// awaitStatus returns the first status that pleases ok.
func (g *gateway) awaitStatus(what string, ok func(admin.Status) bool) admin.Status {
	g.t.Helper()
	var s admin.Status
	harnessEventually(g.t, patience, func() (err error) {
		if s, err = g.status(); err != nil {
			return err
		}
		if !ok(s) {
			var text bytes.Buffer
			_ = s.WriteText(&text)
			return fmt.Errorf("%s; the status is\n%s", what, text.String())
		}
		return nil
	})
	return s
}

// well: everything was read, everything is served.
func well(s admin.Status) bool {
	return s.Ready && s.Source.Synced && s.Source.Healthy && !s.LastKnownGood && s.Error == "" && s.Rival == "" &&
		s.Proxy.Reachable && s.StateLog.Error == "" && s.Revision.Desired == s.Revision.Applied && s.StateLog.Revision == s.Revision.Applied
}

// proxyState asks nginx itself.
func (g *gateway) proxyState() (luapush.State, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return g.control.State(ctx)
}

func (g *gateway) mustProxyState() luapush.State {
	g.t.Helper()
	var s luapush.State
	harnessEventually(g.t, patience, func() (err error) {
		s, err = g.proxyState()
		return err
	})
	return s
}

// serves waits until the gateway answers so.
func (g *gateway) serves(to target) {
	g.t.Helper()
	client := newClient(g.http, g.https)
	client.Transport.(*http.Transport).DisableKeepAlives = true
	harnessEventually(g.t, patience, func() error { return get(client, to.url, to.want) })
}

// answers gives the status of one request.
func (g *gateway) answers(url string) (int, error) {
	client := newClient(g.http, g.https)
	defer client.CloseIdleConnections()
	res, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode, res.Body.Close()
}

// awaitCode waits until a request is answered with the status.
func (g *gateway) awaitCode(url string, want int) {
	g.t.Helper()
	harnessEventually(g.t, patience, func() error {
		got, err := g.answers(url)
		if err == nil && got != want {
			return fmt.Errorf("GET %s: %d, want %d", url, got, want)
		}
		return err
	})
}

// nginxProcess is a process of the gateway's nginx.
type nginxProcess struct {
	pid, parent int
	title       string
}

func (p nginxProcess) master() bool { return strings.HasPrefix(p.title, "nginx: master process") }

// worker: it takes requests (one that is shutting down has another title).
func (p nginxProcess) worker() bool { return p.title == "nginx: worker process" }

// nginx lists the gateway's nginx processes that live: all of them have the runtime directory as their working directory.
func (g *gateway) nginx() []nginxProcess {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		g.t.Fatal(err)
	}
	var found []nginxProcess
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		folder := filepath.Join("/proc", e.Name())
		if at, err := os.Readlink(filepath.Join(folder, "cwd")); err != nil || at != g.runtimeDir {
			continue
		}
		line, err1 := os.ReadFile(filepath.Join(folder, "cmdline"))
		stat, err2 := os.ReadFile(filepath.Join(folder, "stat"))
		if errors.Join(err1, err2) != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		parent, err := strconv.Atoi(fields[1])
		title := strings.TrimRight(strings.ReplaceAll(string(line), "\x00", " "), " ")
		if err != nil || fields[0] == "Z" || fields[0] == "X" || !strings.Contains(title, "nginx") {
			continue
		}
		found = append(found, nginxProcess{pid, parent, title})
	}
	return found
}

func (g *gateway) masters() (pids []int) {
	for _, p := range g.nginx() {
		if p.master() {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// workers are those that take requests.
func (g *gateway) workers() (pids []int) {
	for _, p := range g.nginx() {
		if p.worker() {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// master waits until there is exactly one.
func (g *gateway) master() int {
	g.t.Helper()
	var pids []int
	harnessEventually(g.t, patience, func() error {
		if pids = g.masters(); len(pids) != 1 {
			return fmt.Errorf("%d masters: %v", len(pids), g.nginx())
		}
		return nil
	})
	return pids[0]
}

// killProcesses kills with SIGKILL and returns once they are dead.
func killProcesses(t testing.TB, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	harnessEventually(t, patience, func() error {
		for _, pid := range pids {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil {
				continue
			}
			if state := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[0]; state != "Z" && state != "X" {
				return fmt.Errorf("process %d does not die", pid)
			}
		}
		return nil
	})
}

// killNginx kills master and workers.
func (g *gateway) killNginx() {
	g.t.Helper()
	for {
		var pids []int
		for _, p := range g.nginx() {
			pids = append(pids, p.pid)
		}
		if len(pids) == 0 {
			return
		}
		// The master first, or it would start new workers.
		master := g.masters()
		killProcesses(g.t, append(master, pids...)...)
	}
}

// startNginx starts nginx as its unit would: dead sockets removed, the configuration that lies there.
func (g *gateway) startNginx() {
	g.t.Helper()
	sockets, err := filepath.Glob(filepath.Join(g.runtimeDir, "proxy", "*"))
	if err != nil {
		g.t.Fatal(err)
	}
	for _, s := range sockets {
		if err := os.Remove(s); err != nil {
			g.t.Fatal(err)
		}
	}
	cmd := exec.Command("/usr/sbin/nginx", "-p", g.runtimeDir+"/", "-c", filepath.Join(g.runtimeDir, "nginx.conf"))
	cmd.Dir = g.runtimeDir
	cmd.Stdout, cmd.Stderr = g.log, g.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }() // reaped whenever it ends
	g.mustProxyState()
}

// listening waits until the gateway answers on both ports. That it accepts connections says less: nginx -t does, too.
func (g *gateway) listening() {
	g.t.Helper()
	client := newClient(g.http, g.https)
	defer client.CloseIdleConnections()
	harnessEventually(g.t, patience, func() error {
		for _, url := range []string{"http://nobody.invalid/", "https://nobody.invalid/"} {
			res, err := client.Get(url)
			if err != nil {
				return err
			}
			_ = res.Body.Close()
		}
		return nil
	})
}

var errNoMaster = errors.New("no master runs")

// pause is for moments at random, which no event marks.
func pause(d time.Duration) { time.Sleep(d) }

// caughtUp: the worker has used the revision.
func caughtUp(workers []luapush.Worker, pid int, revision uint64) error {
	for _, r := range workers {
		if r.PID == pid {
			if r.Revision < revision || len(r.Errors) > 0 {
				return fmt.Errorf("worker %d is at revision %d, want %d; errors %v", pid, r.Revision, revision, r.Errors)
			}
			return nil
		}
	}
	return fmt.Errorf("worker %d does not report", pid)
}
