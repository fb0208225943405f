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

	"headgate/bench/stage"
)

func TestProcessesEndWithTheStage(t *testing.T) {
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
