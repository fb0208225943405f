package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/cmd/shell"
)

// folders looks whether the daemon can make and write its folders, whether nobody else can look into those that
// hold keys and sockets, and whether there is room.
func (r *run) folders(context.Context) {
	p := assemble.PathsOf(r.Config)
	for _, f := range []struct {
		path string
		mode fs.FileMode
	}{
		{r.Config.StateDir, private},
		{r.Config.RuntimeDir, passable},
		{p.ProxyDir, private},
		{filepath.Join(r.Config.RuntimeDir, "admin"), private},
	} {
		if _, err := os.Stat(filepath.Dir(f.path)); err != nil && filepath.Dir(f.path) == r.Config.RuntimeDir {
			continue // it comes with the folder around it
		}
		r.folder(f.path, f.mode)
	}
	r.room(r.Config.StateDir)
}

// The modes of folders: of those that hold keys or sockets, and of the one that the proxy's workers pass through.
const (
	private  fs.FileMode = 0o750
	passable fs.FileMode = 0o755
)

func (r *run) folder(path string, wanted fs.FileMode) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		r.missingFolder(path, wanted)
	case err != nil:
		r.fail("run headgate check as the user who runs the daemon", "%s: %v", path, err)
	case !info.IsDir():
		r.fail("mv "+shell.Word(path)+" "+shell.Word(path+".old"), "%s is not a folder", path)
	default:
		r.existingFolder(path, info.Mode().Perm(), wanted)
	}
}

func (r *run) missingFolder(path string, wanted fs.FileMode) {
	parent := existing(path)
	info, err := os.Stat(parent)
	if err == nil && !info.IsDir() {
		r.fail("mv "+shell.Word(parent)+" "+shell.Word(parent+".old"), "%s cannot be made: %s is not a folder", path, parent)
		return
	}
	if err == nil {
		err = r.writable(parent)
	}
	if err != nil {
		owner := strconv.Itoa(r.Host.UID)
		if _, ok := r.daemon(); ok {
			owner = daemonName
		}
		r.fail(fmt.Sprintf("install -d -m %04o -o %s %s", wanted, owner, shell.Word(path)), "%s does not exist and cannot be made in %s by the daemon: %v", path, parent, err)
		return
	}
	r.ok("%s does not exist; the daemon makes it", path)
}

func (r *run) existingFolder(path string, mode, wanted fs.FileMode) {
	err := r.writable(path)
	daemon, asDaemon := r.daemon()
	switch {
	case errors.Is(err, unix.EROFS):
		r.fail("mount -o remount,rw "+shell.Word(path), "%s lies on a file system that is mounted read-only", path)
	case err != nil && asDaemon:
		r.fail("chown "+daemon.name+" "+shell.Word(path), "%s cannot be written by the daemon (user %s): %v", path, daemon.name, err)
	case err != nil:
		r.fail("chown "+strconv.Itoa(r.Host.UID)+" "+shell.Word(path), "%s cannot be written by this user (UID %d): %v", path, r.Host.UID, err)
	case wanted == private && mode&0o007 != 0:
		r.fail("chmod 0750 "+shell.Word(path), "%s is open to all users of this host (mode %04o): it holds keys or sockets", path, mode)
	case wanted == passable && mode&0o001 == 0:
		r.warn("chmod 0755 "+shell.Word(path), "%s is closed to the proxy's workers (mode %04o), which pass through", path, mode)
	default:
		r.ok("%s is writable, mode %04o", path, mode)
	}
}

// existing is path or the nearest folder above it that exists.
func existing(path string) string {
	for path != "/" {
		if _, err := os.Stat(path); err == nil {
			return path
		}
		path = filepath.Dir(path)
	}
	return path
}

// writable asks for the daemon's account, or for this user where that is not known, and writes nothing.
func (r *run) writable(path string) error {
	if daemon, ok := r.daemon(); ok {
		return daemon.access(path, unix.W_OK|unix.X_OK)
	}
	return unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

// The room for the state log: while it is compacted there are two of it, and an old one.
const (
	logCopies  = 3
	leastSpace = 16 * config.MiB
	leastNodes = 64
)

func (r *run) room(path string) {
	path = existing(path)
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		r.warn("", "the space left in %s is not known: %v", path, err)
		return
	}
	free := config.Size(s.Bavail) * config.Size(s.Bsize) //nolint:gosec // a disk has less than 2^63 bytes
	wanted := logCopies * r.Config.Proxy.StateMemory
	mib := func(n config.Size) int64 { return int64(n / config.MiB) }
	switch {
	case free < leastSpace, s.Files > 0 && s.Ffree < leastNodes:
		r.fail("make room on the file system of "+path, "%d MiB and %d files are left for %s: the state log cannot be written", mib(free), s.Ffree, path)
	case free < wanted:
		r.warn("make room on the file system of "+path, "%d MiB are left for %s; a full state log needs %d MiB while it is compacted", mib(free), path, mib(wanted))
	default:
		r.ok("%d MiB are left for %s", mib(free), path)
	}
}
