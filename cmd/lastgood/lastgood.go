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

// Load reads what was kept. No file means none; one that cannot be read is told and counts as none, because
// it only matters for objects that are broken.
func (k *Keeper) Load() []*snapshot.Ingress {
	text, err := os.ReadFile(k.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var list []*snapshot.Ingress
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		k.log.Warn("last good versions not read: an Ingress that is broken now is not served", "err", err)
		return nil
	}
	k.last = slices.DeleteFunc(list, func(i *snapshot.Ingress) bool { return i == nil })
	return k.last
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
		err = renameio.WriteFile(k.path, text, 0o640)
	}
	if err != nil {
		k.log.Warn("last good versions not kept", "err", fmt.Errorf("write %s: %w", k.path, err))
	}
}
