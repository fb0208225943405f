package setup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/google/renameio/v2"
	"go.yaml.in/yaml/v3"

	"headgate/sync/gossip"
)

// Writing says what may become of files that exist.
type Writing int

// The ways. New writes over nothing that anybody has filled in; Replace does, and keeps a copy.
const (
	New Writing = iota
	Replace
)

// ErrExists tells that a file is there that must not be written over.
var ErrExists = errors.New("exists already")

// The modes of what is written. The configuration holds no secret.
const (
	openMode   fs.FileMode = 0o644
	secretMode fs.FileMode = 0o640
	folderMode fs.FileMode = 0o755
)

// group is whom secrets are opened to, where it exists: that of the daemon and of the VIP process.
const groupName = "headgate"

// Permit says, before anything is written, whether the configuration may be: ErrExists when it may not. A file that sets no
// key, such as the one that comes with the package, may always be replaced.
func Permit(path string, how Writing) error {
	text, err := os.ReadFile(path) //nolint:gosec // the administrator's file
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && how == Replace:
		return nil
	case err != nil:
		return fmt.Errorf("read %s: %w", path, err)
	}
	var keys map[string]any
	if yaml.Unmarshal(text, &keys) == nil && len(keys) == 0 {
		return nil
	}
	return fmt.Errorf("%s %w: give --force to replace it (a copy is kept beside it)", path, ErrExists)
}

// WriteConfig puts the configuration in its place, whole or not at all, and gives where a copy of what was there is, or "".
// Permit must have allowed it.
func WriteConfig(path string, text []byte) (backup string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), folderMode); err != nil { //nolint:gosec // nothing in it is open but the configuration
		return "", fmt.Errorf("make the folder of the configuration: %w", err)
	}
	old, err := os.ReadFile(path) //nolint:gosec // the administrator's file
	switch {
	case err == nil && bytes.Equal(old, text):
		return "", nil
	case err == nil:
		if backup, err = keep(path, old); err != nil {
			return "", err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("read what is there: %w", err)
	}
	if err := renameio.WriteFile(path, text, openMode, renameio.IgnoreUmask()); err != nil {
		return backup, fmt.Errorf("write the configuration: %w", err)
	}
	return backup, nil
}

// keep writes a copy beside path, under a name that nothing has.
func keep(path string, text []byte) (string, error) {
	const most = 1000
	for n := range most {
		name := path + ".bak"
		if n > 0 {
			name += "." + strconv.Itoa(n)
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, secretMode) //nolint:gosec // beside the administrator's file
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("keep a copy of what was there: %w", err)
		}
		_, err = f.Write(text)
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			return "", fmt.Errorf("keep a copy of what was there: %w", err)
		}
		return name, nil
	}
	return "", fmt.Errorf("keep a copy of what was there: %s.bak and %d more exist: remove them", path, most-1)
}

// WriteSecret puts a file with credentials in its place, closed to all but root and the daemon's group. Others that are there
// already are kept as a copy with Replace, whose path it gives, and are ErrExists otherwise.
func WriteSecret(path string, text []byte, how Writing) (backup string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), folderMode); err != nil { //nolint:gosec // the file is closed
		return "", fmt.Errorf("make the folder: %w", err)
	}
	old, err := os.ReadFile(path) //nolint:gosec // the administrator's file
	switch {
	case err == nil && bytes.Equal(old, text):
		return "", openToGroup(path)
	case err == nil && how != Replace:
		return "", fmt.Errorf("%s %w, with other credentials: give --force to replace it (a copy is kept beside it), or name it by --kubeconfig to use it", path, ErrExists)
	case err == nil:
		if backup, err = keep(path, old); err != nil {
			return "", err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("read what is there: %w", err)
	}
	if err := renameio.WriteFile(path, text, secretMode, renameio.IgnoreUmask()); err != nil {
		return backup, fmt.Errorf("write %s: %w", path, err)
	}
	return backup, openToGroup(path)
}

// KeepSecret gives the secret of the hosts that lies at path, or makes one there.
func KeepSecret(path string) (secret gossip.Secret, made bool, err error) {
	found, err := gossip.ReadSecretFile(path)
	switch {
	case err == nil:
		return found[0], false, nil
	case !errors.Is(err, fs.ErrNotExist):
		return gossip.Secret{}, false, err
	}
	secret = gossip.NewSecret()
	return secret, true, writeSecret(path, secret)
}

// TakeSecret writes the secret of the other hosts to path. One that is there already and differs is kept as a copy with
// Replace, and is ErrExists otherwise.
func TakeSecret(path string, secret gossip.Secret, how Writing) error {
	found, err := gossip.ReadSecretFile(path)
	switch {
	case err == nil && found[0].ID() == secret.ID():
		return openToGroup(path)
	case errors.Is(err, fs.ErrNotExist):
		return writeSecret(path, secret)
	case how != Replace:
		return fmt.Errorf("%s %w, and holds another secret than the join string: give --force to replace it (a copy is kept beside it)", path, ErrExists)
	}
	old, err := os.ReadFile(path) //nolint:gosec // the administrator's file
	if err != nil {
		return fmt.Errorf("read the secret that is there: %w", err)
	}
	if _, err := keep(path, old); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("replace the secret: %w", err)
	}
	return writeSecret(path, secret)
}

func writeSecret(path string, secret gossip.Secret) error {
	if err := os.MkdirAll(filepath.Dir(path), folderMode); err != nil { //nolint:gosec // the file is closed
		return fmt.Errorf("make the folder: %w", err)
	}
	if err := gossip.WriteSecretFile(path, secret); err != nil {
		return err
	}
	return openToGroup(path)
}

// openToGroup lets the daemon's group read a secret, where there is such a group and we may.
func openToGroup(path string) error {
	if err := os.Chmod(path, secretMode); err != nil {
		return fmt.Errorf("open the file to the group %s: %w", groupName, err)
	}
	g, err := user.LookupGroup(groupName)
	if err != nil || os.Geteuid() != 0 {
		return nil //nolint:nilerr // whoever runs the daemon owns the file
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return fmt.Errorf("the group %s has the number %q", groupName, g.Gid)
	}
	if err := os.Chown(path, 0, gid); err != nil {
		return fmt.Errorf("open the file to the group %s: %w", groupName, err)
	}
	return nil
}
