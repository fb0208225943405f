package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"headgate/gateway/snapshot"
)

// folder is one folder and what its files last said.
type folder struct {
	path   string
	prefix string // stands before file names in origins; "" with a single folder
	read   bool   // was read at least once
	files  map[string]*file
	fault  *snapshot.Fault // why it could not be read last time
	reason string          // the same with the folder's name, for log and Health; "" when it could
	id     identityOnDisk  // of the folder that was read last
	doubt  string          // what of the last look is not as one expects; "" when all is
}

// file is one file and the objects it stands for, which may be older than its newest content.
type file struct {
	stamp   stamp
	stable  bool // stamp is old enough to prove that the content is the one that was read
	content []byte
	parsed
}

// parsed is what a file says.
type parsed struct {
	objects []*object
	faults  []snapshot.Fault
	ignored kindCount
}

// stamp tells one content of a file from another. The inode change time cannot be set back by touch(1).
type stamp struct {
	device, inode  uint64
	size           int64
	changed, wrote time.Time
}

// scan reads what is new. On an error the folder stays as it was.
func (f *folder) scan() {
	f.doubt = ""
	err := f.look()
	if err == nil {
		f.read, f.fault, f.reason = true, nil, ""
		return
	}
	why := f.whyNot(err)
	if f.read {
		why += "; what it last held is still served"
	}
	f.fault = &snapshot.Fault{Origin: f.path, Message: "the folder " + why}
	f.reason = "the folder " + f.path + " " + why
	f.doubt = "the folder " + f.path + " cannot be read"
}

// identityOnDisk tells a folder from another one of the same path.
type identityOnDisk struct{ device, inode uint64 }

// recognise doubts a folder that is not the one it was, and one that has become empty: that is how a mount looks that is
// not there.
func (f *folder) recognise(root *os.Root, names map[string]bool) {
	info, err := root.Stat(".")
	if err != nil {
		return // the look itself went well
	}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		now := identityOnDisk{uint64(sys.Dev), sys.Ino} // Dev is narrower on some architectures
		if f.read && now != f.id {
			f.doubt = "the folder " + f.path + " is another one than before"
		}
		f.id = now
	}
	if len(names) == 0 {
		f.doubt = "the folder " + f.path + " is empty"
	}
}

func (f *folder) whyNot(err error) string {
	info, statErr := os.Stat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "does not exist: create it, or correct manifests (--manifests)"
	case statErr == nil && !info.IsDir(): // os.OpenRoot has no sentinel for this one
		return "is no folder: name the folder that holds the files in manifests (--manifests)"
	case errors.Is(err, errTooMany):
		return fmt.Sprintf("holds more than %d files: spread them over several", maxFiles)
	}
	return fmt.Sprintf("cannot be read (%v): make it readable for headgate", cause(err))
}

func (f *folder) look() error {
	root, err := os.OpenRoot(f.path)
	if err != nil {
		return err
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, entry := range entries {
		if !isManifest(entry.Name()) || entry.IsDir() {
			continue
		}
		if len(names) == maxFiles {
			return errTooMany
		}
		names[entry.Name()] = true
		f.visit(root, entry.Name())
	}
	f.recognise(root, names)
	maps.DeleteFunc(f.files, func(name string, _ *file) bool { return !names[name] })
	return nil
}

func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// visit brings one file up to date.
func (f *folder) visit(root *os.Root, name string) {
	known := f.files[name]
	if known == nil {
		known = &file{}
		f.files[name] = known
	}
	started := time.Now()
	content, now, err := readFile(root, name, known)
	if err != nil {
		known.stamp, known.stable, known.content = stamp{}, false, nil
		known.faults = []snapshot.Fault{{Origin: f.origin(name), Message: whyUnreadable(err)}}
		return
	}
	if content == nil {
		return
	}
	// A file that changed a moment ago could change again within one tick of the clock of the file system.
	unchanged := known.stamp != stamp{} && bytes.Equal(known.content, content)
	known.stamp, known.content = now, content
	known.stable = started.Sub(now.changed) > time.Second
	if len(content) == 0 && len(known.objects) > 0 {
		f.doubt = "the file " + filepath.Join(f.path, name) + " has become empty"
	}
	if !unchanged {
		known.parsed = parse(f.origin(name), content).over(known.parsed)
	}
}

func (f *folder) origin(name string) string { return filepath.Join(f.prefix, name) }

// sorted gives the files in the order of their names.
func (f *folder) sorted() []*file {
	list := make([]*file, 0, len(f.files))
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		list = append(list, f.files[name])
	}
	return list
}

// readFile returns nil content when the file is known to be the same as before.
func readFile(root *os.Root, name string, known *file) ([]byte, stamp, error) {
	// Without O_NONBLOCK, the open of a FIFO would wait for a writer.
	opened, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, stamp{}, err
	}
	defer opened.Close()
	info, err := opened.Stat()
	if err != nil {
		return nil, stamp{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, stamp{}, errNotRegular
	}
	if info.Size() > maxFileBytes {
		return nil, stamp{}, errTooLarge
	}
	now := stampOf(info)
	if known.stable && now == known.stamp {
		return nil, now, nil
	}
	content, err := io.ReadAll(io.LimitReader(opened, maxFileBytes+1))
	if err != nil {
		return nil, stamp{}, err
	}
	if len(content) > maxFileBytes {
		return nil, stamp{}, errTooLarge
	}
	return append([]byte{}, content...), now, nil
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size(), wrote: info.ModTime()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.device, s.inode = uint64(sys.Dev), sys.Ino // Dev is narrower on some architectures
		s.changed = time.Unix(sys.Ctim.Unix())
	}
	return s
}

var (
	errNotRegular = errors.New("it is no regular file")
	errTooLarge   = errors.New("it is too large")
	errTooMany    = errors.New("it holds too many files")
)

func whyUnreadable(err error) string {
	const kept = "; what it last held is still served"
	switch {
	case errors.Is(err, errTooLarge):
		return fmt.Sprintf("the file is larger than %d MiB: split it"+kept, maxFileBytes>>20)
	case errors.Is(err, errNotRegular):
		return "this is neither a regular file nor a link to one: remove it or give it another ending" + kept
	case errors.Is(err, fs.ErrNotExist):
		return "the symbolic link leads nowhere: remove it or its file's name must be corrected" + kept
	case strings.Contains(err.Error(), "escapes from parent"):
		// os.Root has no sentinel for this one.
		return "the symbolic link leads out of the folder, and is not followed: copy the file into the folder" + kept
	}
	return fmt.Sprintf("the file cannot be read (%v): make it readable for headgate"+kept, cause(err))
}

// cause strips operation and path, which the origin says already.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
