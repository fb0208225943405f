package check

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"headgate/cmd/config"
	"headgate/cmd/shell"
)

// account is a user of this host, by the numbers that the kernel knows.
type account struct {
	name     string
	uid, gid int
	groups   []uint32 // all that it is in besides gid
}

// The users that the packaged units run the daemon and nginx as, and their groups.
const (
	daemonName = "headgate"
	proxyName  = "headgate-proxy"
)

// daemon is the account of the packaged units, where root asks: root may read and write everything, and would find nothing
// wrong with a file that the daemon cannot read. ok is false where there is no such account, or whoever asks is not root.
func (r *run) daemon() (a account, ok bool) {
	if r.Host.UID != 0 || r.Config.Proxy.Mode != config.External {
		return account{}, false
	}
	return r.account(daemonName)
}

// account finds a user of this host; ok is false where there is none of the name.
func (r *run) account(who string) (a account, ok bool) {
	const name, number, gid, members = 0, 2, 3, 3 // of passwd(5) and group(5)
	for _, f := range r.colons("/etc/passwd") {
		if f[name] != who {
			continue
		}
		var errs [2]error
		a.name = who
		a.uid, errs[0] = strconv.Atoi(f[number])
		a.gid, errs[1] = strconv.Atoi(f[gid])
		ok = errors.Join(errs[:]...) == nil
	}
	for _, f := range r.colons("/etc/group") {
		if n, err := strconv.ParseUint(f[number], 10, 32); err == nil && slices.Contains(strings.Split(f[members], ","), who) {
			a.groups = append(a.groups, uint32(n))
		}
	}
	return a, ok
}

// colons reads a file whose lines are fields with colons between, four or more; other lines are left out.
func (r *run) colons(name string) [][]string {
	const least = 4
	text, err := os.ReadFile(r.path(name))
	if err != nil {
		return nil
	}
	var all [][]string
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) >= least {
			all = append(all, f)
		}
	}
	return all
}

// access asks the kernel whether the account may do to path what mode says (unix.R_OK, …): with access control lists and
// all. Only root may ask. The error is unix.EACCES when it may not.
func (a account) access(path string, mode uint32) error {
	answer := make(chan error)
	go func() {
		// Never unlocked: the thread, which has become somebody else, ends with this goroutine.
		runtime.LockOSThread()
		err := a.become()
		if err == nil {
			err = unix.Faccessat2(unix.AT_FDCWD, path, mode, unix.AT_EACCESS)
		}
		answer <- err
	}()
	return <-answer
}

// become gives this thread the account's rights to files, and takes root's from it (capabilities(7), "Effect of user ID
// changes on capabilities"). The functions of the standard library would do so for the whole process.
func (a account) become() error {
	var first *uint32
	if len(a.groups) > 0 {
		first = &a.groups[0]
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(a.groups)), uintptr(unsafe.Pointer(first)), 0); errno != 0 { //nolint:gosec // see above
		return fmt.Errorf("take the groups of %s: %w", a.name, errno)
	}
	if err := errors.Join(unix.Setfsgid(a.gid), unix.Setfsuid(a.uid)); err != nil {
		return fmt.Errorf("look at files as %s: %w", a.name, err)
	}
	return nil
}

// obstacle is the first of the folders above path, or path itself, that keeps the account from it.
func (a account) obstacle(path string) string {
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	var above []string
	for dir := filepath.Dir(path); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		above = append([]string{dir}, above...)
	}
	for _, dir := range above {
		if errors.Is(a.access(dir, unix.X_OK), unix.EACCES) {
			return dir
		}
	}
	return path
}

// secretFile looks at a file with secrets: can the daemon read it, and nobody else. what says what is in it.
func (r *run) secretFile(path, what string) {
	if daemon, ok := r.daemon(); ok && !r.readable(daemon, path, what) {
		return
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return // told by whoever has read it
	}
	word := shell.Word(path)
	fix, others := "chmod 0600 "+word, stat.Mode&0o077
	if daemon, ok := r.account(daemonName); ok {
		fix = "chgrp " + daemonName + " " + word + " && chmod 0640 " + word
		if int(stat.Gid) == daemon.gid {
			others = stat.Mode & 0o007
		}
	}
	if others != 0 {
		r.warn(fix, "%s holds %s and may be read by others (mode %04o)", path, what, stat.Mode&0o7777)
	}
}

// readable tells whether the daemon can read a file, and says so when not. What else is wrong with the file is told elsewhere.
func (r *run) readable(daemon account, path, what string) bool {
	if err := daemon.access(path, unix.R_OK); !errors.Is(err, unix.EACCES) {
		return true
	}
	if in := daemon.obstacle(path); in != path {
		r.fail(fmt.Sprintf("install -o root -g %s -m 0640 %s /etc/headgate/, and name that copy; or chmod o+x %s", daemonName, shell.Word(path), shell.Word(in)),
			"the daemon (user %s) cannot read %s, %s: it may not enter %s", daemon.name, path, what, in)
		return false
	}
	word := shell.Word(path)
	r.fail("chgrp "+daemonName+" "+word+" && chmod 0640 "+word, "the daemon (user %s) cannot read %s, %s", daemon.name, path, what)
	return false
}
