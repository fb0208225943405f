package statelog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// fileMode: the log holds private keys; only the daemon and the proxy's group read it.
const fileMode = 0o640

func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, unix.EROFS) || errors.Is(err, os.ErrPermission) {
		// What the proxy may hold is worth knowing even where nothing can be written. The first
		// write fails and tells.
		f, err = os.Open(path) //nolint:gosec // the administrator's own path
	}
	if err != nil {
		return nil, fmt.Errorf("open the state log: %w", err)
	}
	return f, nil
}

// own gives the file its mode and group.
func (l *Log) own(f *os.File) error {
	if err := f.Chmod(fileMode); err != nil {
		return fmt.Errorf("set the mode of the state log: %w", err)
	}
	if l.cfg.GID != 0 {
		if err := f.Chown(-1, l.cfg.GID); err != nil {
			return fmt.Errorf("give the state log to group %d: %w", l.cfg.GID, err)
		}
	}
	return nil
}

// takeLock makes this process the only writer. The lock lies in a file of its own: the log itself is
// replaced by each compaction. The kernel drops the lock when the process ends, however it ends.
func (l *Log) takeLock() error {
	if l.lock != nil {
		return nil
	}
	path := l.cfg.Path + ".lock"
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock of the state log: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLocked
		}
		return errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	l.lock = f
	return nil
}

// syncFolder makes a rename in the folder of path durable.
func syncFolder(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("open the folder of the state log: %w", err)
	}
	if err := d.Sync(); err != nil {
		return errors.Join(fmt.Errorf("fsync the folder of the state log: %w", err), d.Close())
	}
	return d.Close()
}
