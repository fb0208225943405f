package stage

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Rank says who goes first where several want the same core. It is a niceness (−20 to 19), of a process and, where the kernel
// shares cores out by session (autogroup, sched(7)), of its session: there the niceness of a process counts within its
// session only.
type Rank int

const (
	// First is for what is measured, and for what measures it: it goes before other work of the machine, which would be
	// measured, too.
	First Rank = -10
	// Beside is for what shares the host with what is measured: of a core that both want it gets a tenth.
	Beside Rank = 0
	// Elsewhere stands for another machine: it runs where nobody else wants the core.
	Elsewhere Rank = 19
)

// firstSlice is the time slice of the rank First: 'headgate proxy start' asks for the same. The others have the kernel's, which
// is longer, so that First interrupts them whenever it wakes up.
const firstSlice = 100 * time.Microsecond

// maxRounds bounds how often the threads of a process are listed: it may start some meanwhile.
const maxRounds = 10

// Put gives a rank to all threads of a process and to its session. What they start has it, too. Threads of the
// real-time scheduler stay as they are. A process that has ended is no error. It needs CAP_SYS_NICE.
func Put(pid int, r Rank) error {
	for range maxRounds {
		changed, err := putThreads(pid, r)
		if err != nil {
			return err
		}
		if !changed {
			break
		}
	}
	// Kernels that do not group by session have no such file.
	err := os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte(strconv.Itoa(int(r))), 0)
	if err != nil && !ended(err) {
		return fmt.Errorf("set the niceness of the session of process %d: %w", pid, err)
	}
	return nil
}

func ended(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

func putThreads(pid int, r Rank) (changed bool, err error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil && !ended(err) {
		return false, fmt.Errorf("list the threads of process %d: %w", pid, err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			continue
		}
		c, err := putThread(id, r)
		if err != nil && !ended(err) {
			return changed, fmt.Errorf("set the niceness of thread %d of process %d: %w", id, pid, err)
		}
		changed = changed || c
	}
	return changed, nil
}

// putThread gives a thread its niceness and its slice (sched_setattr(2); sched_runtime is the slice of an ordinary thread since
// Linux 6.12, and always 0 before).
func putThread(id int, r Rank) (changed bool, err error) {
	attr, err := unix.SchedGetAttr(id, 0)
	if err != nil || attr.Policy != unix.SCHED_NORMAL {
		return false, err //nolint:wrapcheck // putThreads does
	}
	short := attr.Runtime == uint64(firstSlice)
	if attr.Nice == int32(r) && (attr.Runtime == 0 || short == (r == First)) { //nolint:gosec // −20 to 19
		return false, nil
	}
	attr.Nice, attr.Runtime = int32(r), 0 //nolint:gosec // likewise; 0 is the kernel's own slice
	if r == First {
		attr.Runtime = uint64(firstSlice)
	}
	return true, unix.SchedSetAttr(id, attr, 0) //nolint:wrapcheck // putThreads does
}
