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
// log finds its profiles. It holds the keys of TLS identities, as the state log holds those of certificates: only
// its mode protects it.
type memory struct {
	Generation  string            `json:"generation"`
	Profiles    map[string]string `json:"profiles"`
	ProfileList []model.Profile   `json:"profileList"`
	// Identities and FastCGI are what ProfileList names.
	Identities []identity       `json:"identities,omitempty"`
	FastCGI    []*model.FastCGI `json:"fastcgi,omitempty"`
	// Default is the default profile, which is inlined.
	Default    model.Profile `json:"default"`
	Listeners  []string      `json:"listeners"`
	LogPhase   bool          `json:"logPhase"`
	Globals    string        `json:"globals"`
	StateBytes int64         `json:"stateBytes"`
}

func remember(c nginxconf.Config, standard model.Profile, stateBytes int64) memory {
	m := memory{
		Generation: c.Generation, Profiles: c.Profiles, ProfileList: c.ProfileList, FastCGI: c.FastCGI, Default: standard,
		Listeners: c.Listeners, LogPhase: c.LogPhase, Globals: c.Globals, StateBytes: stateBytes,
	}
	for _, i := range c.Identities {
		m.Identities = append(m.Identities, identity{*i, i.Certificate, i.Key, i.CA})
	}
	return m
}

// identity is a model.Identity with its key, which the model's own type writes for nobody.
type identity struct {
	model.Identity
	Certificate, Key, CA []byte // hide those of Identity
}

func (m memory) parts() parts {
	p := parts{fastcgi: m.FastCGI}
	for _, i := range m.Identities {
		i.Identity.Certificate, i.Identity.Key, i.Identity.CA = i.Certificate, i.Key, i.CA
		p.identities = append(p.identities, &i.Identity)
	}
	return p
}

func (m memory) config() nginxconf.Config {
	return nginxconf.Config{
		Generation: m.Generation, Profiles: m.Profiles, ProfileList: m.ProfileList,
		FastCGI: m.FastCGI, Identities: m.parts().identities, Listeners: m.Listeners, LogPhase: m.LogPhase, Globals: m.Globals,
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
