// Package quickstart tests the README's first command as a newcomer lives it: the requests of
// scripts/quickstart.sh, a manifest edited while it serves, and an end that leaves nothing behind.
// It runs the real binary and a real nginx on the script's own ports.
package quickstart

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/test/product"
)

const (
	root    = "../.."
	patient = 30 * time.Second // for a machine that builds beside the test
)

// run is one run of the script, in a session of its own by which its processes are known.
type run struct {
	cmd   *exec.Cmd
	tmp   string // its TMPDIR
	lines chan string
	seen  []string
}

func start(t *testing.T, env ...string) *run {
	t.Helper()
	product.LookAt(t, "scripts", "examples")
	if _, err := os.Stat(filepath.Join(root, "bin", "headgate")); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("bin/headgate is missing: `make test` builds it first")
		}
		t.Skip("bin/headgate is missing: run `make build`") // `go test ./...` alone must not build a binary
	}
	tmp, err := os.MkdirTemp("", "qs") //nolint:usetesting // t.TempDir is too long for the paths of unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	// nginx's workers, another user, pass through.
	if err := os.Chmod(tmp, 0o711); err != nil {
		t.Fatal(err)
	}

	r := &run{tmp: tmp, lines: make(chan string)}
	r.cmd = exec.Command("scripts/quickstart.sh")
	r.cmd.Dir = root
	r.cmd.Env = append(os.Environ(), append(env, "TMPDIR="+tmp)...)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Stdout, r.cmd.Stderr = in, in
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	go func() {
		defer close(r.lines)
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			r.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		for _, pid := range r.processes(t) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		for range r.lines { // until the pipe is closed
		}
		_ = out.Close()
		if t.Failed() {
			t.Logf("the script's output:\n%s", strings.Join(r.seen, "\n"))
		}
	})
	return r
}

// until reads the script's output up to a line that holds the text.
func (r *run) until(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(patient)
	for {
		select {
		case line, open := <-r.lines:
			if !open {
				t.Fatalf("the script ended before it said %q", text)
			}
			r.seen = append(r.seen, line)
			if strings.Contains(line, text) {
				return
			}
		case <-deadline:
			t.Fatalf("the script did not say %q in %v", text, patient)
		}
	}
}

// end waits for the script and gives its exit status.
func (r *run) end(t *testing.T) int {
	t.Helper()
	deadline := time.After(patient)
	for {
		select {
		case line, open := <-r.lines:
			if !open {
				_ = r.cmd.Wait()
				return r.cmd.ProcessState.ExitCode()
			}
			r.seen = append(r.seen, line)
		case <-deadline:
			t.Fatalf("the script did not end in %v", patient)
		}
	}
}

// leavesNothing checks for processes of the session, files, and listeners.
func (r *run) leavesNothing(t *testing.T) {
	t.Helper()
	for _, pid := range r.processes(t) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		t.Errorf("process %d is left: %q", pid, strings.ReplaceAll(string(line), "\x00", " "))
	}
	left, err := os.ReadDir(r.tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		t.Errorf("%s is left in the temporary folder", entry.Name())
	}
	for _, port := range []string{"8080", "8443", "18081", "18084"} {
		listener, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Errorf("port %s is still taken: %v", port, err)
			continue
		}
		_ = listener.Close()
	}
}

// processes gives the live processes of the script's session (field 6 of /proc/PID/stat, see proc(5)).
func (r *run) processes(t *testing.T) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		pid, fields := splitStat(string(text))
		if len(fields) > 3 && fields[3] == strconv.Itoa(r.cmd.Process.Pid) && fields[0] != "Z" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// splitStat gives the PID and the fields from the third on: the second, a name in parentheses, may hold anything.
func splitStat(text string) (int, []string) {
	pid, err := strconv.Atoi(strings.SplitN(text, " ", 2)[0])
	if err != nil {
		return 0, nil
	}
	return pid, strings.Fields(text[strings.LastIndex(text, ")")+1:])
}

// named gives the PID of the session's process whose command line holds the words.
func (r *run) named(t *testing.T, words string) int {
	t.Helper()
	for _, pid := range r.processes(t) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(strings.ReplaceAll(string(line), "\x00", " "), words) {
			return pid
		}
	}
	t.Fatalf("the script runs no %q", words)
	return 0
}

// status asks the proxy for a path of a host; 0 when it does not answer.
func status(ctx context.Context, host, path string) int {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8080"+path, nil)
	if err != nil {
		return 0
	}
	request.Host = host
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return 0
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

func becomes(t *testing.T, host, path string, want int) {
	t.Helper()
	var got int
	for deadline := time.Now().Add(patient); time.Now().Before(deadline); {
		if got = status(t.Context(), host, path); got == want {
			return
		}
		time.Sleep(20 * time.Millisecond) // a file system tells nobody when its watcher has acted
	}
	t.Fatalf("%s%s answers %d, want %d", host, path, got, want)
}

func TestTheRequestsAreAnsweredAsShown(t *testing.T) {
	r := start(t, "QUICKSTART_ONCE=1")
	if code := r.end(t); code != 0 {
		t.Errorf("exit status %d", code)
	}
	out := strings.Join(r.seen, "\n")
	for _, want := range []string{
		"$ curl -i http://blog.localhost:8080/feed", "posts", "feed", "web-1", "web-2", "api",
		"308", "https://shop.localhost:8443", "404",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the output does not show %q", want)
		}
	}
	r.leavesNothing(t)
}

func TestAnEditIsServedAndCtrlCLeavesNothing(t *testing.T) {
	manifests := t.TempDir()
	if err := os.CopyFS(manifests, os.DirFS(filepath.Join(root, "examples", "quickstart"))); err != nil {
		t.Fatal(err)
	}
	r := start(t, "QUICKSTART_MANIFESTS="+manifests)
	r.until(t, "Ctrl-C ends everything")
	go func() {
		for range r.lines { // what the daemon logs from here on
		}
	}()
	becomes(t, "blog.localhost", "/feed", 200)

	blog := filepath.Join(manifests, "blog.yaml")
	text, err := os.ReadFile(blog)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(blog, []byte(strings.ReplaceAll(string(text), "/feed", "/news")), 0o644); err != nil {
		t.Fatal(err)
	}
	becomes(t, "blog.localhost", "/news", 200)
	becomes(t, "blog.localhost", "/feed", 404)

	// As a terminal does it: to every process of the group.
	if err := syscall.Kill(-r.cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	r.leavesNothing(t)
}

func TestADaemonThatDiesLeavesNothing(t *testing.T) {
	r := start(t)
	r.until(t, "Ctrl-C ends everything")
	if err := syscall.Kill(r.named(t, "bin/headgate run"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := r.end(t); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	r.leavesNothing(t)
}
