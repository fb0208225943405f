package vip

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"headgate/vip/speaker"
)

// hooks runs the administrator's program at each change of state, one at a time and in their order, without a shell.
type hooks struct {
	argv  []string // empty: none
	log   *slog.Logger
	queue chan speaker.Transition
	grace time.Duration // for all that still waits when the process stops
}

const (
	// maxWaiting bounds the changes that wait for a slow program; beyond it the newest are lost and told.
	maxWaiting = 256
	hookLimit  = 30 * time.Second
	// stopGrace is well below the TimeoutStopSec= of headgate-vip.service: a program that hangs must not make a stop fail.
	stopGrace = 5 * time.Second
)

func newHooks(argv []string, log *slog.Logger) *hooks {
	// The one channel with a longer queue: the speaker must not wait, and no change may be left out for a burst of them.
	return &hooks{argv: argv, log: log, queue: make(chan speaker.Transition, maxWaiting), grace: stopGrace}
}

// tell queues a transition; it never blocks.
func (h *hooks) tell(t speaker.Transition) {
	if len(h.argv) == 0 || hookState(t) == "" {
		return
	}
	select {
	case h.queue <- t:
	default:
		h.log.Warn("vip.notify is too slow: a change is not told", "vip", t.VIP, "state", t.To.String())
	}
}

// hookState is keepalived's word for the state (keepalived.conf(5), notify).
func hookState(t speaker.Transition) string {
	switch {
	case t.To == speaker.Active:
		return "MASTER"
	case t.Reason == speaker.Stopped:
		return "STOP"
	case t.Reason == speaker.ProxyNotReady || t.Reason == speaker.LinkDown || t.Reason == speaker.KernelRefused || t.Reason == speaker.Stalled:
		return "FAULT"
	case t.To == speaker.Backup:
		return "BACKUP"
	}
	return ""
}

// run runs what is queued until ctx ends, and then what still waits, but no longer than grace.
func (h *hooks) run(ctx context.Context) error {
	limited, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(h.grace):
			cancel()
		case <-limited.Done():
		}
	})
	defer stop()
	for {
		select {
		case t := <-h.queue:
			h.call(limited, t)
			continue
		default:
		}
		select {
		case t := <-h.queue:
			h.call(limited, t)
		case <-ctx.Done():
			return nil
		}
	}
}

func (h *hooks) call(ctx context.Context, t speaker.Transition) {
	if ctx.Err() != nil {
		h.log.Warn("vip.notify did not end before the process stopped: a change is not told", "vip", t.VIP, "state", hookState(t))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, hookLimit)
	defer cancel()
	args := append(append([]string{}, h.argv[1:]...), "INSTANCE", t.VIP, hookState(t), strconv.Itoa(int(t.Priority)))
	cmd := exec.CommandContext(ctx, h.argv[0], args...) //nolint:gosec // the administrator's program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	var output tail
	cmd.Stdout, cmd.Stderr = &output, &output
	started := make(chan error, 1) // the goroutine must not wait
	go func() {
		// A child inherits the scheduler of the thread that forks: a hook must not run under SCHED_RR. The thread is not
		// unlocked, so that it ends with the goroutine.
		runtime.LockOSThread()
		started <- startNormally(cmd)
	}()
	err := <-started
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		h.log.Warn("vip.notify failed", "vip", t.VIP, "state", hookState(t), "err", err, "output", string(output))
	}
}

func startNormally(cmd *exec.Cmd) error {
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0); err != nil {
		return fmt.Errorf("leave the real-time scheduler: %w", err)
	}
	return cmd.Start()
}

// tail keeps the last bytes of what a program says.
type tail []byte

const tailBytes = 500

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	*t = append(*t, b...)
	*t = (*t)[max(0, len(*t)-tailBytes):]
	return len(b), nil
}
