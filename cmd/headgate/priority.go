package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// proxySlice is the time slice that nginx asks the kernel for, the shortest that there is: who has a shorter one than the
// process on the core interrupts it, and does not wait for the end of its slice (1.4 ms and more). It has no say in how much of a
// core nginx gets.
const proxySlice = 100 * time.Microsecond

// startWithSlice runs start with the slice on its thread: what start starts from its own goroutine, and what that starts, has it.
// The thread ends with that goroutine (the first one of a process cannot, and does nothing any more). Kernels before 6.12 take any
// slice and do without (sched_setattr(2), sched-eevdf). An error of the kernel goes to refused, and start runs all the same.
func startWithSlice(slice time.Duration, start func() error, refused func(error)) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if err := setSlice(slice); err != nil {
			refused(err)
		}
		done <- start()
	}()
	return <-done
}

func setSlice(slice time.Duration) error {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return fmt.Errorf("read the scheduler's settings: %w", err)
	}
	attr.Runtime = uint64(slice) //nolint:gosec // a positive constant
	if err := unix.SchedSetAttr(0, attr, 0); err != nil {
		return fmt.Errorf("set the time slice: %w", err)
	}
	return nil
}

// raiseSession gives the session of a process the niceness of this one, which is the unit's: where the kernel shares cores out by
// session (autogroup, sched(7)), the niceness of nginx counts among its own processes only, and that of its session among all. A
// negative one needs RLIMIT_NICE or CAP_SYS_NICE. Where the kernel does not group, nothing is to be done.
func raiseSession(ctx context.Context, pid int) error {
	// The kernel takes ten such changes a second of all processes without CAP_SYS_ADMIN.
	const patience, pause = 2 * time.Second, 50 * time.Millisecond
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return fmt.Errorf("read the niceness: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		err := os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte(strconv.Itoa(int(attr.Nice))), 0)
		if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("set the niceness of the session: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("set the niceness of the session: %w", err)
		case <-tick.C:
		}
	}
}

// launch starts nginx so that it goes before what else runs on the host. Where that is refused it runs all the same.
func launch(ctx context.Context, u *unitProxy) error {
	refused := func(err error) { u.log.Info("nginx does not go before other processes of this host", "err", err) }
	if err := startWithSlice(proxySlice, func() error { return u.proxy.Launch(ctx) }, refused); err != nil {
		return err
	}
	if err := raiseSession(ctx, u.proxy.Condition().MasterPID); err != nil {
		refused(err)
	}
	return nil
}
