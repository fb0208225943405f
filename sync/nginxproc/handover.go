package nginxproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// HandOver goes along with an upgrade of nginx's binary (USR2, see
// https://nginx.org/en/docs/control.html#upgrade): a master that has started its successor shares the
// listeners with it, control socket included, while each has a dict of its own. As soon as the successor
// has a worker, the workers of the old master are retired and the successor is the master from then on:
// true means that this has just happened. In external mode the old master stays, without workers (WINCH),
// for whoever upgrades to end it (QUIT), or to come back to it; a managed one runs in the foreground,
// where nginx ignores WINCH, and ends (QUIT). Where there is nothing to do, this costs the reading of one
// file.
func (p *Proxy) HandOver(ctx context.Context) (bool, error) {
	if !p.mu.TryLock() {
		return false, nil // a start or a reload is under way; there is a next time
	}
	defer p.mu.Unlock()
	p.reap()
	if p.master.pid == 0 || !p.master.alive() {
		return false, nil
	}
	before, after, ok := p.succession()
	if !ok {
		return false, nil
	}
	err := p.retire(ctx, before)
	if errors.Is(err, os.ErrPermission) {
		return false, nil // whoever upgrades another user's nginx retires the old master, too: Upgrade
	}
	if err != nil {
		return false, fmt.Errorf("hand over from master %d to %d: %w", before.pid, after.pid, err)
	}
	p.cfg.Log.Info("proxy handed over to a new binary", "pid", after.pid, "formerPid", before.pid)
	if p.master == after {
		return true, nil
	}
	if p.child != nil {
		p.former = append(p.former, p.child)
	}
	p.watch(after, nil)
	if p.unwatch != nil {
		p.unwatch()
	}
	return true, nil
}

// succession tells whether two masters share the work: ours with its successor, or with its predecessor.
// A worker that was forked a moment ago still has its master's title, but no workers.
func (p *Proxy) succession() (before, after process, ok bool) {
	for _, c := range children(p.master.pid) {
		if p.ours(c) && accepts(c) {
			return p.master, c, true
		}
	}
	parent, ok := inspect(p.master.parent)
	if !ok || !p.ours(parent) || !accepts(parent) {
		return process{}, process{}, false
	}
	return parent, p.master, true
}

// retire ends the workers of before, and returns when none of them takes requests.
func (p *Proxy) retire(ctx context.Context, before process) error {
	if !accepts(before) {
		return nil
	}
	var err error
	for _, how := range retirements(p.cfg.Mode) {
		if err := before.signal(how); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		retiring, cancel := context.WithTimeout(ctx, time.Second)
		err = poll(retiring, 5*time.Millisecond, func() bool { return !accepts(before) })
		cancel()
		if err == nil {
			return nil
		}
	}
	return err
}

// retirements are the ways to end the workers of a master, in the order in which they are tried. WINCH
// leaves a way back, and a master in the foreground (as a managed one is) ignores it.
func retirements(mode Mode) []unix.Signal {
	if mode == Managed {
		return []unix.Signal{unix.SIGQUIT}
	}
	return []unix.Signal{unix.SIGWINCH, unix.SIGQUIT}
}

// accepts tells whether a master has a worker that takes requests. A worker gives itself its title when
// it begins to, and another when it is shutting down.
func accepts(master process) bool {
	for _, c := range children(master.pid) {
		if c.title == workerTitle {
			return true
		}
	}
	return false
}

// children lists the processes that pid has started and that live (proc(5), children: the main thread's
// are all there are, nginx has one thread that forks).
func children(pid int) []process {
	id := strconv.Itoa(pid)
	text, err := os.ReadFile(filepath.Join("/proc", id, "task", id, "children"))
	if err != nil {
		return nil
	}
	var list []process
	for _, field := range strings.Fields(string(text)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			continue
		}
		if c, ok := inspect(child); ok {
			list = append(list, c)
		}
	}
	return list
}

// reap collects former masters that were children of ours and have ended since.
func (p *Proxy) reap() {
	left := p.former[:0]
	for _, f := range p.former {
		pid, err := unix.Wait4(f.Pid, nil, unix.WNOHANG, nil)
		if pid == 0 && err == nil {
			left = append(left, f)
			continue
		}
		_ = f.Release() // it was waited for
	}
	p.former = left
}
