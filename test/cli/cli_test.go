// Package cli runs the headgate binary the way its users and their scripts do: each file of testdata is a
// script (testscript) that calls it, with a real nginx on loopback where one is needed.
package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"headgate/test/product"
)

var update = flag.Bool("update", false, "rewrite the expected output within the scripts")

// patience is far beyond what a healthy gateway needs, also on a machine that is busy with other tests.
const patience = 30 * time.Second

func TestScripts(t *testing.T) {
	product.LookAt(t)
	bin := filepath.Join(t.TempDir(), "bin")
	build := exec.CommandContext(t.Context(), "go", "build", race, "-o", filepath.Join(bin, "headgate"), "headgate/cmd/headgate")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build headgate: %v\n%s", err, out)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		WorkdirRoot:         reachable(t),
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Defer(func() { endProcesses(t, env.WorkDir) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"port":    port,
			"fetch":   fetch,
			"until":   until,
			"save":    save,
			"same":    same,
			"code":    exitCode,
			"signal":  signalPID,
			"replace": replace,
		},
		Condition: func(cond string) (bool, error) {
			if cond == "nginx" {
				_, err := os.Stat("/usr/sbin/nginx")
				if err != nil && os.Getenv("CI") == "true" {
					return false, errors.New("nginx is missing, and CI skips nothing")
				}
				return err == nil, nil
			}
			return false, fmt.Errorf("unknown condition %s", cond)
		},
	})
}

// reachable gives a folder that nginx's workers, another user, can pass through.
func reachable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // see above
			t.Fatal(err)
		}
	}
	return dir
}

// port NAME... sets each variable to a free port of 127.0.0.1.
func port(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: port NAME...")
	}
	for _, name := range args {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		ts.Check(err)
		defer func() { _ = l.Close() }() // all of them at the end, so that no two get the same
		_, number, err := net.SplitHostPort(l.Addr().String())
		ts.Check(err)
		ts.Setenv(name, number)
	}
}

// fetch [-until] STATUS URL [PATTERN] requests URL from 127.0.0.1, whatever its host, and expects status and
// a body (after the head) that matches. With -until it asks again until that is so.
func fetch(ts *testscript.TestScript, neg bool, args []string) {
	again := len(args) > 0 && args[0] == "-until"
	if again {
		args = args[1:]
	}
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: fetch [-until] STATUS URL [PATTERN]")
	}
	pattern := regexp.MustCompile(strings.Join(args[2:], ""))
	var got string
	fits := func() bool {
		var status int
		status, got = request(args[1])
		return strconv.Itoa(status) == args[0] && pattern.MatchString(got)
	}
	if fits() || again && poll(fits) {
		ts.Logf("%s: %s", args[1], args[0])
		return
	}
	ts.Fatalf("%s: want status %s and %q, got:\n%s", args[1], args[0], pattern, got)
}

// request gives the status, or 0 and the error as text.
func request(to string) (int, string) {
	u, err := url.Parse(to)
	if err != nil {
		return 0, err.Error()
	}
	local := net.JoinHostPort("127.0.0.1", u.Port())
	client := &http.Client{
		Timeout:       5 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", local)
			},
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the certificate is looked at, not trusted
		},
	}
	res, err := client.Get(to)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	var text bytes.Buffer
	fmt.Fprintln(&text, res.Status)
	if res.TLS != nil {
		fmt.Fprintln(&text, "Certificate:", res.TLS.PeerCertificates[0].Subject)
	}
	_ = res.Header.Write(&text)
	if _, err := io.Copy(&text, res.Body); err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, text.String()
}

func poll(ok func() bool) bool {
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			return false
		case <-tick.C:
		}
	}
	return true
}

// until PATTERN COMMAND... runs the command until its output (both streams) matches; its exit code does not matter.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN COMMAND...")
	}
	pattern := regexp.MustCompile("(?m)" + args[0])
	var out []byte
	if !poll(func() bool {
		out, _ = command(ts, args[1:]).CombinedOutput()
		return pattern.Match(out)
	}) {
		ts.Fatalf("%q never said %q; last:\n%s", args[1:], args[0], out)
	}
}

func command(ts *testscript.TestScript, args []string) *exec.Cmd {
	path := args[0]
	for dir := range strings.SplitSeq(ts.Getenv("PATH"), string(os.PathListSeparator)) {
		if _, err := os.Stat(filepath.Join(dir, args[0])); err == nil {
			path = filepath.Join(dir, args[0])
			break
		}
	}
	cmd := exec.CommandContext(context.Background(), path, args[1:]...)
	cmd.Dir = ts.MkAbs(".")
	return cmd
}

// save NAME PATTERN COMMAND... sets the variable to the first group of the pattern in the command's output.
func save(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: save NAME PATTERN COMMAND...")
	}
	out, _ := command(ts, args[2:]).CombinedOutput()
	found := regexp.MustCompile("(?m)" + args[1]).FindSubmatch(out)
	if len(found) < 2 {
		ts.Fatalf("%q does not say %q:\n%s", args[2:], args[1], out)
	}
	ts.Setenv(args[0], string(found[1]))
}

// same A B compares two values.
func same(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: same A B")
	}
	if (args[0] == args[1]) == neg {
		ts.Fatalf("%q and %q", args[0], args[1])
	}
}

// exitCode N COMMAND... runs the command and expects that exit code.
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N COMMAND...")
	}
	cmd := command(ts, args[1:])
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		ts.Fatalf("run %q: %v", args[1:], err)
	}
	if got := strconv.Itoa(cmd.ProcessState.ExitCode()); got != args[0] {
		ts.Fatalf("%q: exit code %s, want %s; it says:\n%s", args[1:], got, args[0], out)
	}
}

// replace FILE OLD NEW edits a file as an editor does: a new one takes its place.
func replace(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: replace FILE OLD NEW")
	}
	path := ts.MkAbs(args[0])
	text := ts.ReadFile(args[0])
	if !strings.Contains(text, args[1]) {
		ts.Fatalf("%s does not hold %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(path+".tmp", []byte(strings.ReplaceAll(text, args[1], args[2])), 0o600))
	ts.Check(os.Rename(path+".tmp", path))
}

// signal NAME PID sends a signal to a process of this script.
func signalPID(ts *testscript.TestScript, neg bool, args []string) {
	numbers := map[string]syscall.Signal{"KILL": syscall.SIGKILL, "TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP}
	if neg || len(args) != 2 || numbers[args[0]] == 0 {
		ts.Fatalf("usage: signal KILL|TERM|INT|HUP PID")
	}
	pid, err := strconv.Atoi(args[1])
	ts.Check(err)
	if pid <= 1 {
		ts.Fatalf("PID %d", pid)
	}
	ts.Check(syscall.Kill(pid, numbers[args[0]]))
}

// processes are those that name dir in their command line, or work in it, by PID.
func processes(dir string) map[int]string {
	found := map[int]string{}
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range all {
		line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
		if err != nil || len(line) == 0 {
			continue // gone, or a zombie
		}
		cwd, _ := os.Readlink(filepath.Join(proc, "cwd")) // of others it cannot be read
		if !bytes.Contains(line, []byte(dir)) && cwd != dir && !strings.HasPrefix(cwd, dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(proc)); err == nil && pid != os.Getpid() {
			found[pid] = strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return found
}

// endProcesses ends what a failed script left: daemons first, which would start their proxies again.
func endProcesses(t *testing.T, dir string) {
	end := func(daemons bool) bool {
		return poll(func() bool {
			left := 0
			for pid, line := range processes(dir) {
				if strings.Contains(line, "headgate run") == daemons {
					_ = syscall.Kill(pid, syscall.SIGTERM)
					left++
				}
			}
			return left == 0
		})
	}
	if !end(true) || !end(false) {
		t.Errorf("processes do not end: %v", processes(dir))
	}
}
