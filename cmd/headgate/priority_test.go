package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestStartWithSlice(t *testing.T) {
	const slice = 3 * time.Millisecond // no kernel's own
	own, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if own.Runtime == 0 {
		t.Skip("Linux before 6.12 has no slices of a process's own")
	}
	child := exec.CommandContext(t.Context(), "sleep", "60")
	wrong := errors.New("what start says")
	err = startWithSlice(slice, func() error { return errors.Join(wrong, child.Start()) }, func(err error) { t.Error(err) })
	if !errors.Is(err, wrong) || child.Process == nil {
		t.Fatalf("error %v, want start's own", err)
	}
	defer stop(t, child)
	got, err := unix.SchedGetAttr(child.Process.Pid, 0)
	if err != nil || got.Runtime != uint64(slice) || got.Policy != own.Policy || got.Nice != own.Nice {
		t.Errorf("the child has %+v, %v, want a slice of %s and else %+v", got, err, slice, own)
	}
	if now, err := unix.SchedGetAttr(0, 0); err != nil || now.Runtime != own.Runtime {
		t.Errorf("the thread of the caller has %+v, %v, had %+v", now, err, own)
	}
}

// A session of its own begins with niceness 0, whatever its process has.
func TestRaiseSession(t *testing.T) {
	child := exec.CommandContext(t.Context(), "sleep", "60")
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer stop(t, child)
	file := fmt.Sprintf("/proc/%d/autogroup", child.Process.Pid)
	before, err := os.ReadFile(file)
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(before)), " nice 0") {
		t.Skipf("this kernel does not group by session here: %q, %v", before, err)
	}
	const niceness = 19 // nobody is refused it
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // which ends with this goroutine
		done <- errors.Join(unix.Setpriority(unix.PRIO_PROCESS, 0, niceness), raiseSession(t.Context(), child.Process.Pid))
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(file)
	if want := fmt.Sprintf(" nice %d", niceness); err != nil || !strings.HasSuffix(strings.TrimSpace(string(after)), want) {
		t.Errorf("the session is %q, %v, want%s", after, err, want)
	}
}

func TestRaiseSessionOfAnEndedProcess(t *testing.T) {
	child := exec.CommandContext(t.Context(), "true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	if err := raiseSession(t.Context(), child.Process.Pid); err != nil {
		t.Errorf("error %v, want none", err)
	}
}

func stop(t *testing.T, child *exec.Cmd) {
	t.Helper()
	if err := child.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = child.Wait() // it was killed
}
