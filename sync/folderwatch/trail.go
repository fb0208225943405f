package folderwatch

import (
	"os"
	"path/filepath"
	"strings"
)

// maxLinks is how many symbolic links lead to a file at the most; the kernel's own limit (path_resolution(7)).
const maxLinks = 40

// trail is what some paths lead through. All its paths are free of symbolic links.
type trail struct {
	folders map[string]bool // to be watched
	whole   map[string]bool // those of which everything matters that lies directly in them
	names   map[string]bool // what else matters: a busy folder such as /tmp tells of much that does not
}

// newTrail follows the paths. They are absolute.
func newTrail(paths []string) *trail {
	t := &trail{folders: map[string]bool{}, whole: map[string]bool{}, names: map[string]bool{}}
	for _, path := range paths {
		t.follow(path)
	}
	return t
}

// concerns tells whether an event about name may mean a change.
func (t *trail) concerns(name string) bool { return t.names[name] || t.whole[filepath.Dir(name)] }

// follow goes the way of one path, up to the first thing on it that does not exist.
func (t *trail) follow(path string) {
	at, rest := "/", elements(path)
	for links := 0; len(rest) > 0; {
		next := filepath.Join(at, rest[0]) // of "..", the folder above: at has no links in it
		rest = rest[1:]
		info, err := os.Lstat(next)
		if err != nil {
			t.note(at, next)
			return
		}
		if info.Mode()&os.ModeSymlink == 0 {
			at = next
			continue
		}
		t.note(at, next)
		target, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			return
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(elements(target), rest...)
	}
	if info, err := os.Lstat(at); err == nil && info.IsDir() {
		t.whole[at] = true
		t.note(at, at)
		return
	}
	t.note(filepath.Dir(at), at)
}

// note has the folder watched for the name, and for itself: what is inside another folder that takes its place is not told
// by a watch on the old one. Its parent tells of its removal at once, and not only when nobody has it open any more.
func (t *trail) note(folder, name string) {
	parent := filepath.Dir(folder)
	t.folders[folder], t.folders[parent] = true, true
	t.names[name], t.names[folder] = true, true
}

func elements(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}
