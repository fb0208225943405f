package vip

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// priority is low among real-time processes: the kernel's own threads that matter run above it.
const priority = 10

// maxRounds bounds how often the threads are listed: Go may start one meanwhile.
const maxRounds = 10

// Realtime puts the whole process under SCHED_RR (sched(7)). All threads must be: Go's timers and its poller run on
// others than the goroutines that wait for them. Threads that are started later inherit it. The kernel keeps a twentieth
// of each CPU for everybody else (sched_rt_runtime_us), so that a loop here takes no host down.
func Realtime() error {
	for range maxRounds {
		changed, err := realtimeThreads()
		if err != nil || !changed {
			return err
		}
	}
	return nil
}

func realtimeThreads() (bool, error) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return false, fmt.Errorf("list the threads: %w", err)
	}
	changed := false
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		have, err := unix.SchedGetAttr(id, 0)
		if err == nil && have.Policy == unix.SCHED_RR {
			continue
		}
		err = unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: priority}, 0)
		if errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return changed, fmt.Errorf("run under SCHED_RR: %w", err)
		}
		changed = true
	}
	return changed, nil
}

// Scheduler names the scheduler of this process: "SCHED_RR 10" or "SCHED_OTHER".
func Scheduler() string {
	attr, err := unix.SchedGetAttr(os.Getpid(), 0)
	switch {
	case err != nil:
		return "unknown"
	case attr.Policy == unix.SCHED_RR:
		return fmt.Sprintf("SCHED_RR %d", attr.Priority)
	case attr.Policy == unix.SCHED_FIFO:
		return fmt.Sprintf("SCHED_FIFO %d", attr.Priority)
	}
	return "SCHED_OTHER"
}
