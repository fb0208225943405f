// Package lastgood keeps, over a restart of the daemon, the versions of objects that are served in place of
// a newer, broken one (gateway/build holds them while it runs). It turns them into a file and back; it judges
// none of them. The loop hands them over after a pass, a goroutine of cmd/headgate writes. The file holds the private keys that
// are shown to peers, as applied.json does: only its mode protects it.
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

	"headgate/gateway/build"
)

// Keeper writes the newest that it was given.
type Keeper struct {
	path string
	log  *slog.Logger
	// newest has room for one: a newer one takes the place of one that waits.
	newest chan build.Kept
	last   build.Kept // belongs to the goroutine that calls Keep
}

// New makes a Keeper of the file; its folder exists. A nil log discards.
func New(path string, log *slog.Logger) *Keeper {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{path: path, log: log, newest: make(chan build.Kept, 1)}
}

// Load reads what was kept. A file that cannot be read is set aside, told, and counts as none: it only matters for
// objects that are broken.
func (k *Keeper) Load() build.Kept {
	kept, err := Read(k.path)
	if err != nil {
		aside := k.path + ".refused"
		if asideErr := os.Rename(k.path, aside); asideErr != nil {
			aside, err = "", errors.Join(err, asideErr)
		}
		k.log.Warn("last good versions not read: what is broken now is not served", "err", err, "setAside", aside)
	}
	k.last = kept
	return kept
}

// Read gives what a Keeper wrote to the file, and changes nothing. No file means none.
func Read(path string) (build.Kept, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return build.Kept{}, nil
	}
	if err != nil {
		return build.Kept{}, fmt.Errorf("read last good versions: %w", err)
	}
	var kept build.Kept
	if err := json.Unmarshal(text, &kept); err != nil {
		return build.Kept{}, fmt.Errorf("read last good versions from %s: %w", path, err)
	}
	kept.Ingresses = without(kept.Ingresses)
	kept.Services = without(kept.Services)
	kept.PeerSecrets = without(kept.PeerSecrets)
	return kept, nil
}

// without leaves nulls out.
func without[T any](list []*T) []*T {
	return slices.DeleteFunc(list, func(v *T) bool { return v == nil })
}

// Keep hands over what is to be kept. It never blocks and does nothing when that is the same as last time. Only one goroutine
// may call it.
func (k *Keeper) Keep(kept build.Kept) {
	if k.last.Equal(kept) {
		return
	}
	k.last = kept
	select {
	case <-k.newest: // nobody needs that one any more
	default:
	}
	k.newest <- kept
}

// Run writes until ctx ends, and what waits then. A file that cannot be written is told once for each change.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		select {
		case kept := <-k.newest:
			k.write(kept)
		case <-ctx.Done():
			select {
			case kept := <-k.newest:
				k.write(kept)
			default:
			}
			return nil
		}
	}
}

func (k *Keeper) write(kept build.Kept) {
	text, err := json.Marshal(kept)
	if err == nil {
		err = renameio.WriteFile(k.path, text, 0o640, renameio.WithTempDir(filepath.Dir(k.path)))
	}
	if err != nil {
		k.log.Warn("last good versions not kept", "err", fmt.Errorf("write %s: %w", k.path, err))
	}
}
