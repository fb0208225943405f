package stage_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/bench/stage"
)

func TestProcessesEndWithTheStage(t *testing.T) {
	needRoot(t)
	s, err := stage.New()
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Start(t.Context(), "child", nil, "/bin/sh", "-c", "echo READY one two; exec sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Await(t.Context(), 10*time.Second, func(context.Context) error {
		if said, ok := p.Said("READY "); !ok || said != "one two" {
			return errors.New("not ready")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the child is still there: %v", err)
	}
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestAwaitShowsWhatAChildSaidAtItsEnd(t *testing.T) {
	needRoot(t)
	s, err := stage.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	p, err := s.Start(t.Context(), "child", nil, "/bin/sh", "-c", "echo no licence; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	err = p.Await(t.Context(), 10*time.Second, func(context.Context) error { return errors.New("not ready") })
	if exit := new(exec.ExitError); !errors.As(err, &exit) || !strings.Contains(err.Error(), "no licence") {
		t.Errorf("error %v, want the exit code and the last words", err)
	}
}

func TestChildrenAndTheirTime(t *testing.T) {
	needRoot(t)
	s, err := stage.New()
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Start(t.Context(), "parent", nil, "/bin/sh", "-c", "(while :; do :; done) & wait")
	if err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	child := 0
	if err := p.Await(t.Context(), 10*time.Second, func(context.Context) error {
		children, err := stage.Children(p.PID())
		if err != nil || len(children) != 1 {
			return errors.New("no child yet")
		}
		child = children[0]
		if spent, err := stage.CPU(child); err != nil || spent == 0 {
			return errors.New("the child has done nothing yet")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	// The shell is gone and leaves its child to init, which may take a moment.
	for end := time.Now().Add(10 * time.Second); child != 0 && running(child); time.Sleep(time.Millisecond) { // nobody tells
		if time.Now().After(end) {
			t.Fatalf("process %d of the group is still there", child)
		}
	}
}

func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestMachine(t *testing.T) {
	if m := stage.Machine(); strings.Contains(m, "unknown") || !strings.Contains(m, " cores, ") || strings.Contains(m, " 0 cores") {
		t.Errorf("the machine is %q", m)
	}
}

func TestMemoryIsOfItsKind(t *testing.T) {
	const size = 64 << 20 // what the test itself takes meanwhile is little beside it
	take := func(kind int) {
		b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, kind|unix.MAP_ANON)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(b) })
		for i := 0; i < size; i += os.Getpagesize() {
			b[i] = 1
		}
	}
	memory := func() stage.Memory {
		m, err := stage.MemoryOf(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	start := memory()
	take(unix.MAP_PRIVATE)
	own := memory()
	take(unix.MAP_SHARED)
	all := memory()
	if grown := own.Own - start.Own; grown < size || grown > 2*size || own.Zones != start.Zones {
		t.Errorf("private pages: %+v became %+v", start, own)
	}
	if grown := all.Own - own.Own; all.Zones-own.Zones != size || grown > size/2 || all.Resident() < 2*size {
		t.Errorf("shared pages: %+v became %+v", own, all)
	}
	if _, err := stage.MemoryOf(1 << 30); err == nil {
		t.Error("a process that is not there has memory")
	}
}
