package stage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// exitTimeout is how long a child may take to end when it is asked to.
	exitTimeout = 10 * time.Second
	// Poll is how often something is asked that gives no sign of its own.
	Poll = 20 * time.Millisecond
)

// Stage owns a temporary folder and the processes of one benchmark. It is for one goroutine.
type Stage struct {
	// Dir is the folder; workers of another user can reach what is in it.
	Dir       string
	processes []*Process
}

// New makes the folder. Close must be called.
func New() (*Stage, error) {
	dir, err := os.MkdirTemp("", "headgate-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // nginx's workers run as another user
		return nil, fmt.Errorf("open the folder: %w", err)
	}
	return &Stage{Dir: dir}, nil
}

// Close ends all processes, the youngest first, and removes the folder.
func (s *Stage) Close() error {
	var errs []error
	for i := len(s.processes) - 1; i >= 0; i-- {
		errs = append(errs, s.processes[i].end())
	}
	errs = append(errs, os.RemoveAll(s.Dir))
	return errors.Join(errs...)
}

// Folder makes a folder below Dir.
func (s *Stage) Folder(name string) (string, error) {
	path := filepath.Join(s.Dir, name)
	if err := os.MkdirAll(path, 0o755); err != nil { //nolint:gosec // nginx's workers run as another user
		return "", fmt.Errorf("make a folder: %w", err)
	}
	return path, nil
}

// Process is a child that lives until the stage is closed.
type Process struct {
	name   string
	cmd    *exec.Cmd
	log    string
	done   chan struct{} // closed once it has ended
	err    error         // of its end; after done
	rank   Rank
	leaves func() []int
}

// Start starts a process of the rank First whose output goes to a log file. leaves gives processes that it started outside
// of its own process group and that must be gone with it; nil when there are none.
func (s *Stage) Start(ctx context.Context, name string, leaves func() []int, argv ...string) (*Process, error) {
	return s.StartAt(ctx, First, name, leaves, argv...)
}

// StartAt is Start for a process of another rank.
func (s *Stage) StartAt(ctx context.Context, rank Rank, name string, leaves func() []int, argv ...string) (*Process, error) {
	log, err := os.OpenFile(filepath.Join(s.Dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // no secret in it
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer func() { _ = log.Close() }()
	// Close ends it, in its order, not the context.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), argv[0], argv[1:]...) //nolint:gosec // argv is the benchmark's own
	cmd.Stdout, cmd.Stderr = log, log
	// A session of its own keeps Ctrl-C for us; and the kernel shares cores out by session (autogroup), so that a peer
	// in ours would get less of its core than headgate's proxy, which has one of its own, and do its work in larger
	// batches. SIGTERM and not SIGKILL should we die, for a master takes its workers along only then. The threads of
	// a Go process stay, so that of the start is ours for life.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	// testcluster lives as long as its input does.
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{name: name, cmd: cmd, log: log.Name(), done: make(chan struct{}), rank: rank, leaves: leaves}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	s.processes = append(s.processes, p)
	return p, Put(p.PID(), rank)
}

// Kill sends a signal and waits until the process has ended; another one may then be started in its place.
func (p *Process) Kill(ctx context.Context, sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // Ctrl-C
	case <-time.After(exitTimeout):
		return fmt.Errorf("%s did not end within %s of %s", p.name, exitTimeout, sig)
	}
}

// PID is the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Await calls ready every Poll until it returns nil, and gives up after timeout, with ctx, or when the
// process ends; the error then shows the end of its log. Once it is ready, all its threads have its rank: those that it started
// before Start could give it one have that of this process.
func (p *Process) Await(ctx context.Context, timeout time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(Poll)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return Put(p.PID(), p.rank)
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended (%w):\n%s", p.name, p.err, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %s: %w\n%s", p.name, timeout, err, p.Tail())
		case <-tick.C:
		}
	}
}

// Said gives what follows prefix on the first line of the log that begins with it.
func (p *Process) Said(prefix string) (string, bool) {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, prefix); ok && strings.HasSuffix(rest, "\n") {
			return strings.TrimSpace(rest), true
		}
	}
	return "", false
}

// Tail is the end of the log.
func (p *Process) Tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// end asks, waits, and kills what is left of the process's group and of what it left elsewhere.
func (p *Process) end() error {
	var left []int
	if p.leaves != nil {
		left = p.leaves()
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	var err error
	select {
	case <-p.done:
	case <-time.After(exitTimeout):
		err = fmt.Errorf("%s did not end within %s and was killed", p.name, exitTimeout)
	}
	for _, pid := range append(left, -p.PID()) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // usually all are gone
	}
	<-p.done
	return err
}

// Children gives the child processes of a process.
func Children(pid int) ([]int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil, fmt.Errorf("read the children of process %d: %w", pid, err)
	}
	var children []int
	for field := range strings.FieldsSeq(string(b)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("read the children of process %d: %w", pid, err)
		}
		children = append(children, child)
	}
	return children, nil
}

// CPU is the time that the first thread of a process has spent on a core so far.
func CPU(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	spent, _, _ := strings.Cut(string(b), " ")
	ns, err := strconv.ParseInt(spent, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ns), nil
}

// Wait waits, and gives the error of ctx when it ends first.
func Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // Ctrl-C
	case <-timer.C:
		return nil
	}
}

// Listens is a condition for Await: somebody accepts connections at a TCP address.
func Listens(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("dial: %w", err)
		}
		return conn.Close() //nolint:wrapcheck // never fails on loopback
	}
}
