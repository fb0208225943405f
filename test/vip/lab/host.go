package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/cmd/config"
	"headgate/cmd/vip"
	"headgate/sync/luapush"
	"headgate/test/netns"
)

// Host is an edge host. Its fields may be changed before its VIP process starts (again).
type Host struct {
	Name       string
	Number     int // the last part of its addresses
	Namespace  *netns.Namespace
	GossipName string   // Name, unless two are to have the same
	Key        string   // file with the secret of gossip
	Settings   []string // more keys of vip, as "priority: 150"

	lab     *Lab
	dir     string
	control *luapush.Client
	proxy   *Process
	vip     *Process
	starts  int
}

func newHost(t testing.TB, l *Lab, name string, number int) *Host {
	t.Helper()
	h := &Host{Name: name, GossipName: name, Number: number, Namespace: netns.New(t), Key: l.key, lab: l, dir: filepath.Join(l.dir, name)}
	l.join(t, h.Namespace, number)
	if err := os.MkdirAll(h.dir, 0o755); err != nil { //nolint:gosec // nginx's workers are of another user
		t.Fatal(err)
	}
	if l.config.Proxy != nil {
		l.config.Proxy.copyTo(t, h.dir)
		h.control = luapush.New(luapush.Config{Socket: filepath.Join(h.dir, "run", "proxy", "control.sock"), Timeout: time.Second})
		t.Cleanup(h.control.Close)
	}
	return h
}

// SpawnVIP starts the VIP process and returns at once.
func (h *Host) SpawnVIP(t testing.TB) {
	t.Helper()
	if err := os.WriteFile(h.file(), h.text(), 0o600); err != nil {
		t.Fatal(err)
	}
	h.starts++
	h.vip = h.Run(t, "vip", h.lab.config.Binary, "vip", "run", "--config", h.file())
}

func (h *Host) file() string { return filepath.Join(h.dir, "vip.yaml") }

// StartVIP starts the VIP process and waits until it answers.
func (h *Host) StartVIP(t testing.TB) {
	t.Helper()
	h.SpawnVIP(t)
	h.AwaitVIP(t)
}

// AwaitVIP waits until the VIP process answers.
func (h *Host) AwaitVIP(t testing.TB) {
	t.Helper()
	for deadline := time.Now().Add(Patience); ; rest() {
		_, err := h.ask()
		if err == nil {
			return
		}
		if !h.Running() || time.Now().After(deadline) {
			t.Fatalf("the VIP process of %s does not answer: %v\n%s", h.Name, err, h.Tail())
		}
	}
}

// Running tells whether the VIP process lives.
func (h *Host) Running() bool { return h.vip != nil && h.vip.Running() }

// StopVIP ends the VIP process as systemd does and waits for its end; cleanup follows, as in ExecStopPost.
func (h *Host) StopVIP(t testing.TB) {
	t.Helper()
	h.vip.Signal(t, syscall.SIGTERM)
	h.vip.Wait(t)
	if code := h.vip.code(); code != 0 {
		t.Fatalf("the VIP process of %s ended with %d:\n%s", h.Name, code, h.Tail())
	}
	h.Cleanup(t)
}

// KillVIP kills the VIP process with -9. No cleanup follows: the addresses stay as they would without systemd.
func (h *Host) KillVIP(t testing.TB) {
	t.Helper()
	h.vip.Signal(t, syscall.SIGKILL)
	h.vip.Wait(t)
}

// KillBoth kills the VIP process and nginx in one moment.
func (h *Host) KillBoth(t testing.TB) {
	t.Helper()
	h.vip.Signal(t, syscall.SIGKILL)
	h.proxy.Signal(t, syscall.SIGKILL)
	h.vip.Wait(t)
	h.proxy.Wait(t)
}

// FreezeVIP stops the VIP process where it stands, and waits until it has stopped.
func (h *Host) FreezeVIP(t testing.TB) { t.Helper(); h.vip.Freeze(t) }

// ThawVIP lets it go on.
func (h *Host) ThawVIP(t testing.TB) { t.Helper(); h.vip.Signal(t, syscall.SIGCONT) }

// PID is that of the VIP process.
func (h *Host) PID() int { return h.vip.cmd.Process.Pid }

// ProxyPID is that of nginx's master, which leads a process group.
func (h *Host) ProxyPID() int { return h.proxy.cmd.Process.Pid }

// Cleanup does what ExecStopPost does.
func (h *Host) Cleanup(t testing.TB) {
	t.Helper()
	if out, err := h.Command(t, "vip", "cleanup"); err != nil {
		t.Fatalf("clean up %s: %v\n%s", h.Name, err, out)
	}
}

// Command runs the binary on the host, with its configuration.
func (h *Host) Command(t testing.TB, arguments ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.lab.config.Binary, append(arguments, "--config", h.file())...) //nolint:gosec // the product
	var out []byte
	err := h.Namespace.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	return strings.TrimSpace(string(out)), err
}

func (h *Host) paths() vip.Paths {
	c := config.Default()
	c.RuntimeDir, c.StateDir = filepath.Join(h.dir, "run"), filepath.Join(h.dir, "state")
	return vip.PathsOf(c)
}

func (h *Host) ask() (vip.Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // also at the end of a test
	defer cancel()
	return vip.Ask(ctx, h.paths())
}

// Status asks the VIP process.
func (h *Host) Status(t testing.TB) vip.Status {
	t.Helper()
	s, err := h.ask()
	if err != nil {
		t.Fatalf("%s: %v\n%s", h.Name, err, h.Tail())
	}
	return s
}

// Owner is the host that this one takes for the owner of its first VIP; "" also while it does not answer.
func (h *Host) Owner() string {
	s, err := h.ask()
	if err != nil || len(s.VIPs) == 0 {
		return ""
	}
	return string(s.VIPs[0].Owner)
}

// Order tells the VIP process to do something: "move", "release", "drain", "undrain".
func (h *Host) Order(t testing.TB, name string, o vip.Order) {
	t.Helper()
	if _, err := vip.Command(t.Context(), h.paths(), name, o); err != nil {
		t.Fatalf("%s on %s: %v\n%s", name, h.Name, err, h.Tail())
	}
}

// Dir is the folder of the host's files.
func (h *Host) Dir() string { return h.dir }

// Log is what the VIP process has said so far, over all its runs.
func (h *Host) Log() string {
	text, err := os.ReadFile(filepath.Join(h.dir, "vip.log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Tail is the end of Log.
func (h *Host) Tail() string { return tail(h.Log()) }

func tail(text string) string {
	const lines = 60
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Process is a child with a process group of its own. It is killed when the test ends.
type Process struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed once it has ended
	// children are those that it had when it was last signalled.
	children []int
}

// Run starts a program in the host's namespace; its output is added to NAME.log.
func (h *Host) Run(t testing.TB, name string, argv ...string) *Process {
	t.Helper()
	p := &Process{log: filepath.Join(h.dir, name+".log"), ended: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // no secret in it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	p.cmd = exec.Command(argv[0], argv[1:]...) //nolint:gosec,noctx // ended by signals
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := h.Namespace.Start(p.cmd); err != nil {
		t.Fatalf("start %s on %s: %v", name, h.Name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.ended
	})
	return p
}

// Running tells whether it lives.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// code is the exit code, -1 when a signal ended it.
func (p *Process) code() int { return p.cmd.ProcessState.ExitCode() }

// Tail is the end of its log.
func (p *Process) Tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return tail(string(text))
}

// Signal sends a signal to the whole group.
func (p *Process) Signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	p.children = Children(p.cmd.Process.Pid)
	if err := syscall.Kill(-p.cmd.Process.Pid, sig); err != nil {
		t.Fatalf("signal %s: %v\n%s", p.cmd.Path, err, p.Tail())
	}
}

// Freeze stops a process group where it stands and waits until it has stopped.
func (p *Process) Freeze(t testing.TB) {
	t.Helper()
	p.Signal(t, syscall.SIGSTOP)
	for deadline := time.Now().Add(Patience); state(p.cmd.Process.Pid) != 'T'; rest() {
		if time.Now().After(deadline) {
			t.Fatalf("process %d did not stop", p.cmd.Process.Pid)
		}
	}
}

// Wait waits for the end, and for that of the children that it had when it was last signalled.
func (p *Process) Wait(t testing.TB) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(Patience):
		t.Fatalf("%s did not end within %s:\n%s", p.cmd.Path, Patience, p.Tail())
	}
	for _, pid := range p.children {
		for deadline := time.Now().Add(Patience); state(pid) != gone; rest() {
			if time.Now().After(deadline) {
				t.Fatalf("a child of %s did not end", p.cmd.Path)
			}
		}
	}
}

// gone is the state of a process that has ended: a zombie, whoever is to reap it, holds nothing any more.
const gone = 'Z'

// state is the letter of a process's state (proc_pid_stat(5)); gone for none.
func state(pid int) byte {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	at := strings.LastIndexByte(string(text), ')')
	if err != nil || at < 0 || len(text) < at+3 {
		return gone
	}
	return text[at+2]
}

// Children lists those of a process.
func Children(pid int) []int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil // it has ended
	}
	var list []int
	for _, field := range strings.Fields(string(text)) {
		if child, err := strconv.Atoi(field); err == nil {
			list = append(list, child)
		}
	}
	return list
}

// PID is that of the process, which leads the group.
func (p *Process) PID() int { return p.cmd.Process.Pid }
