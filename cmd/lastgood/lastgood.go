// Package lastgood keeps, over a restart of the daemon, the versions of Ingresses that are served in place of
// a newer, broken one (gateway/build holds them while it runs). It turns them into a file and back; it judges
// none of them. The loop hands them over after a pass, a goroutine of cmd/headgate writes.
package lastgood

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"headgate/gateway/snapshot"
)

// Keeper writes the newest list that it was given.
type Keeper struct {
	path string
	log  *slog.Logger
	// newest has room for one list: a newer one takes the place of one that waits.
	newest chan []*snapshot.Ingress
	last   []*snapshot.Ingress // belongs to the goroutine that calls Keep
}

// New makes a Keeper of the file; its folder exists. A nil log discards.
func New(path string, log *slog.Logger) *Keeper {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{path: path, log: log, newest: make(chan []*snapshot.Ingress, 1)}
}

// Load reads what was kept. A file that cannot be read is set aside, told, and counts as none: it only matters for
// objects that are broken.
func (k *Keeper) Load() []*snapshot.Ingress {
	list, err := Read(k.path)
	if err != nil {
		aside := k.path + ".refused"
		if asideErr := os.Rename(k.path, aside); asideErr != nil {
			aside, err = "", errors.Join(err, asideErr)
		}
		k.log.Warn("last good versions not read: an Ingress that is broken now is not served", "err", err, "setAside", aside)
	}
	k.last = list
	return list
}

// Read gives what a Keeper wrote to the file, and changes nothing. No file means none.
func Read(path string) ([]*snapshot.Ingress, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read last good versions: %w", err)
	}
	var list []*snapshot.Ingress
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read last good versions from %s: %w", path, err)
	}
	return slices.DeleteFunc(list, func(i *snapshot.Ingress) bool { return i == nil }), nil
}

// Keep hands over a list. It never blocks and does nothing when the list is the last one. Only one goroutine
// may call it.
func (k *Keeper) Keep(list []*snapshot.Ingress) {
	if slices.Equal(k.last, list) {
		return
	}
	k.last = list
	select {
	case <-k.newest: // nobody needs that one any more
	default:
	}
	k.newest <- list
}

// Run writes until ctx ends, and what waits then. A file that cannot be written is told once for each list.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		select {
		case list := <-k.newest:
			k.write(list)
		case <-ctx.Done():
			select {
			case list := <-k.newest:
				k.write(list)
			default:
			}
			return nil
		}
	}
}

func (k *Keeper) write(list []*snapshot.Ingress) {
	text, err := json.Marshal(list)
	if err == nil {
		err = renameio.WriteFile(k.path, text, 0o640, renameio.WithTempDir(filepath.Dir(k.path)))
	}
	if err != nil {
		k.log.Warn("last good versions not kept", "err", fmt.Errorf("write %s: %w", k.path, err))
	}
}
