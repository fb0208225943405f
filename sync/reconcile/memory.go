package reconcile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
)

// memory is what must be known of the applied configuration after a restart of the daemon, so that a
// proxy that serves on is not reloaded for nothing, and after a boot of the host, so that the state
// log finds its profiles. It holds no secret.
type memory struct {
	Generation  string            `json:"generation"`
	Profiles    map[string]string `json:"profiles"`
	ProfileList []model.Profile   `json:"profileList"`
	// Default is the default profile, which is inlined.
	Default    model.Profile `json:"default"`
	Listeners  []string      `json:"listeners"`
	Globals    string        `json:"globals"`
	StateBytes int64         `json:"stateBytes"`
}

func remember(c nginxconf.Config, standard model.Profile, stateBytes int64) memory {
	return memory{
		Generation: c.Generation, Profiles: c.Profiles, ProfileList: c.ProfileList, Default: standard,
		Listeners: c.Listeners, Globals: c.Globals, StateBytes: stateBytes,
	}
}

func (m memory) config() nginxconf.Config {
	return nginxconf.Config{
		Generation: m.Generation, Profiles: m.Profiles, ProfileList: m.ProfileList,
		Listeners: m.Listeners, Globals: m.Globals,
	}
}

// readMemory gives the zero memory when there is none. What cannot be read costs a reload, no more.
func readMemory(path string) (memory, error) {
	b, err := os.ReadFile(path) //nolint:gosec // the administrator's own path
	if errors.Is(err, os.ErrNotExist) {
		return memory{}, nil
	}
	if err != nil {
		return memory{}, fmt.Errorf("read the applied configuration: %w", err)
	}
	var m memory
	if err := json.Unmarshal(b, &m); err != nil {
		return memory{}, fmt.Errorf("read the applied configuration %s: %w", path, err)
	}
	return m, nil
}

func (m memory) write(path string) error {
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode the applied configuration: %w", err)
	}
	if err := renameio.WriteFile(path, b, 0o640, renameio.WithTempDir(filepath.Dir(path))); err != nil {
		return fmt.Errorf("remember the applied configuration: %w", err)
	}
	return nil
}
