// Package stage is where a benchmark plays: a network namespace of its own, cores set apart for what is
// measured, a folder that goes away, and child processes that end when the benchmark does, however it ends.
// It measures nothing. The programs of bench/ run it.
package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside marks the program's second run, in its namespace; headgate refuses variables of its own prefix that it does not
// know. Its value is the core set apart.
const inside = "BENCH_ISOLATED_CORE"

// Division says who may run on which cores.
type Division string

const (
	// LastCoreApart leaves the last core to what Pin moves there; on a machine with one core everything shares it.
	LastCoreApart Division = "last core apart"
	// AllShared leaves everything to the kernel.
	AllShared Division = "all shared"
)

// Isolated tells whether this process is the one that Isolate started.
func Isolated() bool { return os.Getenv(inside) != "" }

// Isolate runs this program again with the same arguments, in a network namespace in which loopback is up and
// all of 10.244.0.0/16 is local (an API server refuses endpoints in 127.0.0.0/8), and gives its exit code. When
// ctx ends the new process gets SIGTERM and is waited for. It is in a session of its own and has the rank First. It needs
// root and iproute2.
func Isolate(ctx context.Context, division Division) (int, error) {
	if os.Geteuid() != 0 {
		return 0, errors.New("a network namespace of its own and pinned workers need root: run this as root")
	}
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find the program itself: %w", err)
	}
	// Affinity, niceness and Pdeathsig are of the thread that starts the child, so this one has to stay.
	runtime.LockOSThread()
	measured, err := divide(division)
	if err != nil {
		return 0, err
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, int(First)); err != nil {
		return 0, fmt.Errorf("set the niceness: %w", err)
	}
	const setup = `ip link set lo up && ip route add local 10.244.0.0/16 dev lo && exec "$0" "$@"`
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", setup, self}, os.Args[1:]...)...) //nolint:gosec // ourselves
	cmd.Env = append(os.Environ(), inside+"="+strconv.Itoa(measured))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// A session of its own: Ctrl-C reaches the child once, from here, and its rank is not that of the user's shell.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM, Setsid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	err = cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() >= 0 {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("run in a network namespace: %w", err)
	}
	return 0, nil
}

// divide takes the last core from this thread and from the children that it will start, or only names it.
func divide(division Division) (int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, fmt.Errorf("read the cores of this process: %w", err)
	}
	allowed := coresOf(set)
	last := allowed[len(allowed)-1]
	if division == LastCoreApart && len(allowed) > 1 {
		set.Clear(last)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return 0, fmt.Errorf("leave core %d: %w", last, err)
	}
	return last, nil
}

func coresOf(set unix.CPUSet) []int {
	var cores []int
	for core := range len(set) * strconv.IntSize {
		if set.IsSet(core) {
			cores = append(cores, core)
		}
	}
	return cores
}

// Cores gives the core that is set apart for what is measured, and those of everything else.
func Cores() (measured int, others []int, err error) {
	measured, err = strconv.Atoi(os.Getenv(inside))
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", inside, err)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, nil, fmt.Errorf("read the cores of this process: %w", err)
	}
	return measured, coresOf(set), nil
}

// Pin moves a process (its first thread) to one core and gives it the rank First.
func Pin(pid, core int) error {
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(pid, &set); err != nil {
		return fmt.Errorf("pin process %d to core %d: %w", pid, core, err)
	}
	return Put(pid, First)
}

// Machine describes the host in one line: processor, cores, memory, kernel, load.
func Machine() string {
	model := field("/proc/cpuinfo", "model name")
	kib, _ := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 10, 64) // 0 GiB tells that it is unknown
	return fmt.Sprintf("%s, %d cores, %d GiB, Linux %s, load %s", model, cores(), kib>>20, first("/proc/sys/kernel/osrelease"), first("/proc/loadavg"))
}

// cores counts those of the machine, not those of this process.
func cores() int {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.NumCPU()
	}
	return strings.Count("\n"+string(b), "\nprocessor\t")
}

func field(path, name string) string {
	b, err := os.ReadFile(path) //nolint:gosec // a file of /proc
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func first(path string) string {
	b, err := os.ReadFile(path) //nolint:gosec // a file of /proc
	if fields := strings.Fields(string(b)); err == nil && len(fields) > 0 {
		return fields[0]
	}
	return "unknown"
}

// Quick tells whether QUICK is set in the environment: fewer repetitions of the same work.
func Quick() bool { return !slices.Contains([]string{"", "0"}, os.Getenv("QUICK")) }
