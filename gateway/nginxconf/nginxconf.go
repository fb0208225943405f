// Package nginxconf turns the model into the text of nginx.conf: listeners, the control socket and
// one named location per profile. The text does not grow with the number of hosts, and nothing that
// came from a Kubernetes object ever stands in it: every value is a number, a size, an address, a
// constant of this package, or a path of the Layout, which the administrator chose and Render checks.
// The package does no I/O; sync/nginxproc writes, tests and loads the text.
package nginxconf

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"headgate/gateway/model"
)

// Config is a rendered configuration and what gateway/plan compares of it.
type Config struct {
	// Text is nginx.conf, byte-exact for equal inputs.
	Text []byte
	// Generation is a hash of the text (16 hex digits). It stands in the text once, so that a worker
	// can report which text it was started with.
	Generation string
	// Profiles maps the name of each profile's location to the hash of its text. The default
	// profile is not among them: it is inlined and part of Globals.
	Profiles map[string]string
	// ProfileList holds the profiles themselves, sorted by name (see Layout.KeepProfiles).
	ProfileList []model.Profile
	// Identities and FastCGI are what ProfileList names, sorted by ID (see Layout.KeepIdentities).
	Identities []*model.Identity
	FastCGI    []*model.FastCGI
	// Files hold the certificates of Identities: the text names them. Sorted by path.
	Files []File
	// Refused tells of profiles of the model that are not in the text why they cannot be written, by name: their
	// parts are missing, or not what their types promise. Build lets none come this far.
	Refused map[string]string
	// Listeners names every listener ("https [::]:443 http2"), sorted.
	Listeners []string
	// LogPhase tells that the proxy sees the end of each request (see model.LogPhase).
	LogPhase bool
	// Globals is a hash of everything that is neither a listener, a profile, the log phase, the Lua folder
	// nor the size of the state: a change means a reload for a global setting.
	Globals string
}

// ProfileName is the name of the profile's named location, without the "@". The default profile
// has a name too, but no named location: it is inlined.
func ProfileName(p model.Profile) string { return p.Name() }

// generationMark stands for the generation while its hash is computed; it has the same length.
const generationMark = "0000000000000000"

// Render writes nginx.conf. The error names a field of Layout that cannot be written safely or is
// missing, or a setting out of its range; objects of the cluster cannot cause one.
func Render(m *model.Model, l Layout) (Config, error) {
	c, err := l.check(m)
	if err != nil {
		return Config{}, fmt.Errorf("rendering nginx.conf: %w", err)
	}
	c.settings = m.Settings
	c.listeners = slices.Clone(m.Listeners)
	slices.SortFunc(c.listeners, func(a, b model.Listener) int {
		return strings.Compare(listenerName(a), listenerName(b))
	})
	found := newParts(m, l, c.tlsDir)
	if c.standard, err = found.resolve(m.Settings.DefaultProfile); err != nil {
		return Config{}, fmt.Errorf("rendering nginx.conf: the default profile: %w", err)
	}
	var refused map[string]string
	c.profiles, refused = collectProfiles(m, l.KeepProfiles, found)
	c.logPhase = m.LogPhase() || l.KeepLogPhase

	text := c.text(generationMark)
	generation := shortHash(text)
	// A path of the layout may hold as many zeros, but no quote.
	text = bytes.Replace(text, []byte(`"`+generationMark+`"`), []byte(`"`+generation+`"`), 1)

	config := Config{Text: text, Generation: generation, Profiles: map[string]string{}, Refused: refused, LogPhase: c.logPhase, Globals: c.globals()}
	for _, p := range c.profiles {
		w := &writer{}
		c.profile(w, p)
		config.Profiles[p.Name()] = shortHash(w.bytes())
		config.ProfileList = append(config.ProfileList, p.Profile)
	}
	config.keepParts(c.profiles, found)
	for _, li := range c.listeners {
		config.Listeners = append(config.Listeners, listenerName(li))
	}
	return config, nil
}

// keepParts lists what the profiles name, each once.
func (c *Config) keepParts(profiles []profile, found parts) {
	identities, params := map[model.IdentityID]bool{}, map[model.FastCGIID]bool{}
	for _, p := range profiles {
		if p.identity != nil && !identities[p.Identity] {
			identities[p.Identity] = true
			c.Identities = append(c.Identities, found.identities[p.Identity])
			c.Files = append(c.Files, p.identity.files...)
		}
		if p.Protocol == model.ProtocolFastCGI && p.FastCGI != "" && !params[p.FastCGI] {
			params[p.FastCGI] = true
			c.FastCGI = append(c.FastCGI, found.fastcgi[p.FastCGI])
		}
	}
	slices.SortFunc(c.Identities, func(a, b *model.Identity) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(c.FastCGI, func(a, b *model.FastCGI) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(c.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
}

// globals hashes the text without the parts that have a reason for a reload of their own.
func (c conf) globals() string {
	c.profiles, c.logPhase = nil, false
	// One of each scheme: what is the same in all servers counts.
	c.listeners = []model.Listener{{Scheme: model.HTTP}, {Scheme: model.HTTPS}}
	c.luaDir, c.luaBuild = path{"/lua"}, "0"
	c.settings.StateMemoryBytes = minStateBytes
	return shortHash(c.text(generationMark))
}

func listenerName(l model.Listener) string {
	name := string(l.Scheme) + " " + l.Address.String()
	if l.Scheme == model.HTTPS && l.HTTP2 {
		name += " http2"
	}
	return name
}

func shortHash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
