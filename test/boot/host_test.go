package boot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"headgate/test/netns"
)

// The network of the lab. The API server and the backend have addresses of their own: the gateway refuses to proxy to an
// API server.
const (
	bridge         = "edge0"
	serverAddress  = "10.77.0.1"
	backendAddress = "10.77.0.2"
)

// bootLimit is how long a host may take to boot on a busy machine.
const bootLimit = time.Minute

// makeBridge makes the network, once for the process: it lies in the namespace of this process.
var makeBridge = sync.OnceValue(func() error {
	return shell(context.Background(), "", `ip link add "$1" type bridge && ip addr add "$2/24" dev "$1" && ip addr add "$3/24" dev "$1" && ip link set "$1" up`,
		bridge, serverAddress, backendAddress)
})

// host is one booted system.
type host struct {
	name, address string
	root          string // its files, as it sees them
	cgroups       []string
	nspawn        *exec.Cmd
	ended         chan struct{} // closed when nspawn has ended
	console       string        // a file
	started       time.Time     // of the last boot
}

// newHost makes a host and boots it.
func newHost(t *testing.T, l lab, name string, number int) *host {
	t.Helper()
	if err := makeBridge(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(l.dir, name)
	h := &host{name: name, address: fmt.Sprintf("10.77.0.%d", number), root: filepath.Join(dir, "root"), console: filepath.Join(dir, "console")}
	for _, d := range []string{h.root, filepath.Join(dir, "upper"), filepath.Join(dir, "work")} {
		if err := os.MkdirAll(d, 0o755); err != nil { //nolint:gosec // root folders of systems
			t.Fatal(err)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", l.tree, filepath.Join(dir, "upper"), filepath.Join(dir, "work"))
	if err := syscall.Mount("overlay", h.root, "overlay", 0, options); err != nil {
		t.Fatalf("mount the root of %s: %v", name, err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(h.root, syscall.MNT_DETACH) })
	h.write(t, "/etc/hostname", name+"\n")
	h.write(t, "/etc/apt/sources.list", "deb [trusted=yes] file:/repo ./\n")
	h.write(t, "/etc/systemd/network/10-host0.network",
		fmt.Sprintf("[Match]\nName=host0\n[Network]\nAddress=%s/24\nGateway=%s\nIPv6AcceptRA=no\n", h.address, serverAddress))
	if err := os.RemoveAll(h.path("/etc/apt/sources.list.d")); err != nil {
		t.Fatal(err)
	}
	wants := h.path("/etc/systemd/system/multi-user.target.wants/systemd-networkd.service")
	if err := os.Symlink("/usr/lib/systemd/system/systemd-networkd.service", wants); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	h.makeCgroups(t)
	h.boot(t, l)
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := h.run(context.WithoutCancel(t.Context()), "journalctl", "--no-pager", "-o", "short-precise", "-n", "150", "-u", "headgate*", "-u", "nginx")
			t.Logf("journal of %s:\n%s", name, out)
		}
		h.cut()
		for _, c := range h.cgroups {
			removeCgroup(c)
		}
	})
	return h
}

// makeCgroups gives the host cgroups of its own: two guests in one kill each other's services.
func (h *host) makeCgroups(t *testing.T) {
	t.Helper()
	roots := []string{"/sys/fs/cgroup"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err != nil {
		roots = []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"}
	}
	for _, r := range roots {
		dir := filepath.Join(r, fmt.Sprintf("headgate-boot-%d-%s", os.Getpid(), h.name))
		if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // as cgroups are
			t.Fatal(err)
		}
		h.cgroups = append(h.cgroups, dir)
	}
}

// removeCgroup removes a cgroup and those in it; who is still in one keeps it.
func removeCgroup(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			removeCgroup(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(dir) // only a leftover in /sys
}

func (h *host) path(name string) string { return filepath.Join(h.root, name) }

// write puts a file on the host.
func (h *host) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755); err != nil { //nolint:gosec // a system's folders
		t.Fatal(err)
	}
	if err := os.WriteFile(h.path(name), []byte(content), 0o644); err != nil { //nolint:gosec // a system's files
		t.Fatal(err)
	}
}

func (h *host) read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(h.path(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// boot starts the host and waits until systemd has started everything.
func (h *host) boot(t *testing.T, l lab) {
	t.Helper()
	console, err := os.OpenFile(h.console, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644) //nolint:gosec // what a machine says
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = console.Close() }() // nspawn has its own
	join := `for c in "${@:3:$2}"; do echo $$ > "$c/cgroup.procs"; done; shift $(($2 + 2)); exec "$@"`
	arguments := append([]string{"-c", join, "bash", "-", strconv.Itoa(len(h.cgroups))}, h.cgroups...)
	arguments = append(arguments, "systemd-nspawn", "--quiet", "-D", h.root, "-M", h.name, "--boot", "--register=no", "--keep-unit",
		"--network-bridge="+bridge, "--console=pipe", "--notify-ready=no", "--resolv-conf=off", "--timezone=off", "--link-journal=no",
		"--bind-ro="+l.repository()+":/repo",
		// nspawn forbids it, a host does not: with it nginx's listeners pass from a killed master to the next.
		"--system-call-filter=pidfd_getfd")
	h.nspawn = exec.CommandContext(context.WithoutCancel(t.Context()), "bash", arguments...) //nolint:gosec // see above
	h.nspawn.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1")
	h.nspawn.Stdout, h.nspawn.Stderr = console, console
	h.nspawn.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	h.started = time.Now()
	if err := h.nspawn.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	h.ended = ended
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait() // how it ended is asked of ProcessState
		close(ended)
	}(h.nspawn)
	h.awaitBoot(t)
}

func (h *host) awaitBoot(t *testing.T) {
	t.Helper()
	netns.Eventually(t, bootLimit, h.name+" to boot", func() bool {
		out, _ := h.run(t.Context(), "systemctl", "is-system-running")
		state := strings.TrimSpace(out)
		return state == "running" || state == "degraded"
	})
}

// leader is the host's PID 1, in our namespace; 0 when there is none.
func (h *host) leader() int {
	pid := strconv.Itoa(h.nspawn.Process.Pid)
	text, err := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
	if err != nil {
		return 0
	}
	for _, child := range strings.Fields(string(text)) {
		comm, err := os.ReadFile(filepath.Join("/proc", child, "comm"))
		if err == nil && strings.TrimSpace(string(comm)) == "systemd" {
			n, _ := strconv.Atoi(child) // the kernel writes numbers
			return n
		}
	}
	return 0
}

// run runs a command on the host and gives what it printed, standard error included.
func (h *host) run(ctx context.Context, command ...string) (string, error) {
	var out bytes.Buffer
	err := h.runTo(ctx, &out, command...)
	return out.String(), err
}

// runTo is like run, and what is printed goes to w as it comes.
func (h *host) runTo(ctx context.Context, w io.Writer, command ...string) error {
	leader := h.leader()
	if leader == 0 {
		return errors.New(h.name + " is down")
	}
	arguments := append([]string{"-t", strconv.Itoa(leader), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--",
		"systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--"}, command...)
	cmd := exec.CommandContext(ctx, "nsenter", arguments...) //nolint:gosec // the commands are the tests' own
	cmd.Stdout, cmd.Stderr = w, w
	return cmd.Run()
}

// must runs a line of the shell that must succeed.
func (h *host) must(t *testing.T, script string) string {
	t.Helper()
	out, err := h.run(t.Context(), "sh", "-c", script)
	if err != nil {
		t.Fatalf("%s: %s: %v\n%s", h.name, script, err, out)
	}
	return out
}

// fails runs a line of the shell that must not succeed, and gives its output.
func (h *host) fails(t *testing.T, script string) string {
	t.Helper()
	out, err := h.run(t.Context(), "sh", "-c", script)
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("%s: %s did not fail: %v\n%s", h.name, script, err, out)
	}
	return out
}

// apt installs as an administrator does who answers no questions.
func (h *host) apt(t *testing.T, what string) string {
	t.Helper()
	return h.must(t, "export DEBIAN_FRONTEND=noninteractive; apt-get -qq update && apt-get -y -qq "+what+" 2>&1")
}

// state is what systemd says of a unit: "active", "inactive", "failed" or "activating".
func (h *host) state(t *testing.T, unit string) string {
	t.Helper()
	out, _ := h.run(t.Context(), "systemctl", "show", "--value", "-p", "ActiveState", unit) // the word says it all
	return strings.TrimSpace(out)
}

// reboot has the host boot anew.
func (h *host) reboot(t *testing.T, l lab) {
	t.Helper()
	_, _ = h.run(t.Context(), "systemctl", "reboot") // the answer may not come any more
	h.awaitEnd(t)
	h.boot(t, l)
}

func (h *host) awaitEnd(t *testing.T) {
	t.Helper()
	select {
	case <-h.ended:
	case <-time.After(bootLimit):
		t.Fatalf("%s does not go down", h.name)
	}
}

// cut takes the power away: first from the network, or dying processes would say goodbye.
func (h *host) cut() {
	_ = exec.CommandContext(context.Background(), "ip", "link", "set", "vb-"+h.name, "down").Run() // it may be gone
	if leader := h.leader(); leader > 1 {
		_ = syscall.Kill(leader, syscall.SIGKILL) // likewise
	}
	if h.ended != nil {
		<-h.ended
	}
}
