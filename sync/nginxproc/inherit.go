package nginxproc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// listeners are the listening sockets of workers whose master is gone. Handed to a new master they keep
// the ports open: nobody is refused between the end of the old workers and the start of the new ones
// (measured without: 20–60 ms). nginx takes them as it does in its own upgrade
// (https://nginx.org/en/docs/control.html#upgrade): the variable NGINX lists the descriptors.
type listeners struct {
	files []*os.File
	from  []process // whose they were
}

// firstExtra is the number of the first descriptor of os/exec.Cmd.ExtraFiles in the child.
const firstExtra = 3

// inherit takes copies of the orphans' listening sockets. Where it may not (reading another process's
// descriptors needs the right to trace it, and Linux 5.6) there are none, and a new master has to bind
// the addresses itself.
func (p *Proxy) inherit() listeners {
	lost, err := p.lost()
	if err != nil {
		return listeners{}
	}
	// The youngest first: should two listen on one unix path, the younger bound it last.
	slices.SortFunc(lost, func(a, b process) int { return cmp.Compare(b.started, a.started) })
	all := listeners{from: lost}
	seen := make(map[string]bool)
	for _, o := range lost {
		if err := all.takeFrom(o, seen); err != nil {
			p.cfg.Log.Warn("listeners of workers whose master is gone cannot be taken over: connections will be refused for a moment", "err", err)
			all.close()
			return listeners{}
		}
	}
	return all
}

// takeFrom copies o's listening sockets, one for each address.
func (l *listeners) takeFrom(o process, seen map[string]bool) error {
	dir := filepath.Join("/proc", strconv.Itoa(o.pid), "fd")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it has ended meanwhile
	}
	if err != nil {
		return fmt.Errorf("list the descriptors of process %d: %w", o.pid, err)
	}
	pidfd, err := unix.PidfdOpen(o.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", o.pid, err)
	}
	defer func() { _ = unix.Close(pidfd) }() // nothing was written
	for _, e := range entries {
		link, err := os.Readlink(filepath.Join(dir, e.Name()))
		fd, numErr := strconv.Atoi(e.Name())
		if err != nil || numErr != nil || !strings.HasPrefix(link, "socket:") {
			continue
		}
		copied, err := unix.PidfdGetfd(pidfd, fd, 0)
		if errors.Is(err, unix.EBADF) || errors.Is(err, unix.ESRCH) {
			continue // closed meanwhile
		}
		if err != nil {
			return fmt.Errorf("copy descriptor %d of process %d: %w", fd, o.pid, err)
		}
		address := listensOn(copied)
		socket, isUnix := strings.CutPrefix(address, "unix:")
		// nginx would not make the file of a socket anew that it is handed.
		if address == "" || seen[address] || (isUnix && removed(socket)) {
			_ = unix.Close(copied)
			continue
		}
		seen[address] = true
		// The description is shared with a worker that accepts until nobody is left: it must stay
		// non-blocking, and os.File leaves it so.
		l.files = append(l.files, os.NewFile(uintptr(copied), address)) //nolint:gosec // a descriptor
	}
	return nil
}

// listensOn is the address of a listening socket; "" for any other.
func listensOn(fd int) string {
	accepting, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || accepting == 0 {
		return ""
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return ""
	}
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)).String() //nolint:gosec // a port
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)).String() //nolint:gosec // a port
	case *unix.SockaddrUnix:
		return "unix:" + a.Name
	}
	return ""
}

func (l *listeners) none() bool { return len(l.files) == 0 }

// environment is what tells nginx of them.
func (l *listeners) environment() []string {
	if l.none() {
		return nil
	}
	var b strings.Builder
	b.WriteString("NGINX=")
	for i := range l.files {
		b.WriteString(strconv.Itoa(firstExtra+i) + ";")
	}
	return []string{b.String()}
}

// close gives the copies up.
func (l *listeners) close() {
	for _, f := range l.files {
		_ = f.Close() // a copy; a second time does nothing
	}
}

// relieve ends the orphans once the new master has a worker that accepts in their place. Where it gets
// none, they serve on; so do its own workers, should it die now.
func (p *Proxy) relieve(ctx context.Context, logs *tails, m process, orphans []process) error {
	waiting, cancel := context.WithTimeout(ctx, p.cfg.ReloadTimeout)
	defer cancel()
	var failed error
	err := poll(waiting, 5*time.Millisecond, func() bool {
		switch {
		case !m.alive():
			failed = errExited
		case gaveUp(logs.text()):
			failed = errGaveUp
		default:
			return accepts(m)
		}
		return true
	})
	if err := errors.Join(failed, err); err != nil {
		return err
	}
	return p.endThese(ctx, func(o process) bool { return slices.ContainsFunc(orphans, o.same) })
}
