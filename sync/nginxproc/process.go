package nginxproc

import (
	"bufio"
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

// The titles that nginx gives its processes.
const (
	masterTitle = "nginx: master process "
	workerTitle = "nginx: worker process" // of one that takes requests
)

// process is one process of this host. The start time tells it from a later one with the same ID.
type process struct {
	pid     int
	started uint64 // clock ticks since boot (proc(5), field 22)
	parent  int
	title   string // the command line, NULs as spaces
}

// inspect reads a process from /proc. ok is false when there is none, or only its zombie.
func inspect(pid int) (process, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, false
	}
	// The name in parentheses may hold spaces and parentheses; what follows the last one does not.
	i := strings.LastIndexByte(string(stat), ')')
	fields := strings.Fields(string(stat[i+1:]))
	const state, parent, started = 0, 1, 19 // counted from field 3
	if i < 0 || len(fields) <= started || fields[state] == "Z" || fields[state] == "X" {
		return process{}, false
	}
	p := process{pid: pid}
	var errs [2]error
	p.parent, errs[0] = strconv.Atoi(fields[parent])
	p.started, errs[1] = strconv.ParseUint(fields[started], 10, 64)
	if errors.Join(errs[:]...) != nil {
		return process{}, false
	}
	line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return process{}, false
	}
	p.title = strings.TrimRight(strings.ReplaceAll(string(line), "\x00", " "), " ")
	return p, true
}

// alive tells whether p still runs (and is not another process by now).
func (p process) alive() bool {
	now, ok := inspect(p.pid)
	return ok && now.started == p.started
}

// same tells whether p and q are one process, whatever its title is by now.
func (p process) same(q process) bool { return p.pid == q.pid && p.started == q.started }

func (p process) isMaster() bool { return strings.HasPrefix(p.title, masterTitle) }

// runs tells whether p is a master that was started with our configuration file.
func (p process) runs(conf string) bool {
	return p.isMaster() && strings.Contains(p.title+" ", " -c "+conf+" ")
}

// signal sends sig, unless p is gone: then the error is os.ErrProcessDone.
func (p process) signal(sig unix.Signal) error {
	if !p.alive() {
		return fmt.Errorf("signal %s to process %d: %w", unix.SignalName(sig), p.pid, os.ErrProcessDone)
	}
	if err := unix.Kill(p.pid, sig); err != nil {
		return fmt.Errorf("signal %s to process %d: %w", unix.SignalName(sig), p.pid, err)
	}
	return nil
}

// wait returns nil when p has ended (a zombie has ended), or ctx's error.
func (p process) wait(ctx context.Context) error {
	fd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return p.waitPolling(ctx) // a kernel before 5.10, or p is gone
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer func() { _ = f.Close() }() // nothing was written
	if !p.alive() {                  // else the descriptor might be that of a later process
		return nil
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return p.waitPolling(ctx)
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) //nolint:gosec // a descriptor
		return err == nil && n == 1
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return p.waitPolling(ctx)
	}
	return nil
}

func (p process) waitPolling(ctx context.Context) error {
	return poll(ctx, 100*time.Millisecond, func() bool { return !p.alive() })
}

// poll asks done at once and then every period, until it says yes or ctx ends.
func poll(ctx context.Context, period time.Duration, done func() bool) error {
	t := time.NewTicker(period)
	defer t.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	return nil
}

// holders are the nginx processes that have the listening unix socket at path open. Reading other
// users' descriptors needs privileges: without them those processes are not seen.
func holders(path string) ([]process, error) {
	inodes, err := socketInodes(path)
	if err != nil || len(inodes) == 0 {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, ok := inspect(pid)
		if ok && strings.HasPrefix(p.title, "nginx: ") && holdsAny(pid, inodes) {
			found = append(found, p)
		}
	}
	return found, nil
}

// socketInodes finds the sockets bound to path, also when the file itself was removed (unix(7), /proc/net/unix).
func socketInodes(path string) (map[string]bool, error) {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("list unix sockets: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	inodes := make(map[string]bool)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// Num RefCount Protocol Flags Type St Inode Path
		fields := strings.Fields(lines.Text())
		const listening, flags, inode, name = "00010000", 3, 6, 7
		if len(fields) == name+1 && fields[name] == path && fields[flags] == listening {
			inodes["socket:["+fields[inode]+"]"] = true
		}
	}
	return inodes, lines.Err()
}

func holdsAny(pid int, links map[string]bool) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		link, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err == nil && links[link] {
			return true
		}
	}
	return false
}

// orphans are those processes whose master is gone: they go on serving, hold the ports, and no
// configuration reaches them any more.
func orphans(ps []process) []process {
	var lost []process
	for _, p := range ps {
		if p.isMaster() {
			continue
		}
		if parent, ok := inspect(p.parent); !ok || !parent.isMaster() {
			lost = append(lost, p)
		}
	}
	return lost
}
