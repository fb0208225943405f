// Package plan compares what the proxy was seen to have with what it should have, and says what to
// do: nothing, a push (with its records), or a reload (with its reasons) before the push. It is
// pure: it touches nothing, and equal inputs give equal plans. sync/reconcile runs what it says.
package plan

import (
	"slices"

	"headgate/gateway/luastate"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
)

// Reason says why a reload is due. Reloads are counted by reason.
type Reason string

// The reasons, in the order in which a plan lists them.
const (
	// FirstStart: nobody knows what configuration the proxy runs, or it runs none.
	FirstStart Reason = "first-start"
	// LuaVersion: the proxy runs other Lua files, or another schema, than this binary brought.
	LuaVersion Reason = "lua-version"
	// Listener: an address to listen on came, went or changed.
	Listener Reason = "listener"
	// NewProfile: a route needs a combination of native directives that is not in nginx.conf.
	NewProfile Reason = "new-profile"
	// NewIdentity: peers are spoken to with a TLS certificate, CA, name or setting that is not in nginx.conf.
	NewIdentity Reason = "new-identity"
	// LogPhase: the proxy must see the end of requests, to count them or for an upstream's balancing or health.
	LogPhase Reason = "log-phase"
	// GlobalSetting: a native directive of the whole proxy changed.
	GlobalSetting Reason = "global-setting"
	// Resize: the pushed state needs a larger shared dict.
	Resize Reason = "resize"
)

// Reasons lists all of them.
func Reasons() []Reason {
	return []Reason{FirstStart, LuaVersion, Listener, NewProfile, NewIdentity, LogPhase, GlobalSetting, Resize}
}

// Applied is what was observed of the proxy.
type Applied struct {
	// Config is the configuration that a worker reported. Without a Generation nothing is known.
	Config nginxconf.Config
	// Pointers maps each pointer in the dict to the hash of its body.
	Pointers map[string]string
	// Bodies maps the hash of each body in the dict to its length in bytes; 0 where only the name is known.
	Bodies map[string]int
	// Known is false when Pointers and Bodies may differ from what the dict holds.
	Known bool
	// State is what Pointers and Bodies were brought to, so that Diff need only look at what differs from it. The zero
	// value: all is looked at. It counts only while Known.
	State luastate.State
	// Revision is the committed one.
	Revision uint64
	// LuaBuild is the build of the Lua files that the proxy runs, Schema what they understand.
	LuaBuild string
	Schema   int
	// BootID changes whenever the dict was made anew.
	BootID string
	// StateBytes is the capacity of the dict; 0 when unknown, or when there is none.
	StateBytes int64
	// MemoryRefused tells that the last push did not fit (507).
	MemoryRefused bool
}

// Desired is what the proxy should have.
type Desired struct {
	// Config was rendered for a dict of StateBytes.
	Config nginxconf.Config
	State  luastate.State
	// LuaBuild is the build of the Lua files that Config loads.
	LuaBuild string
	// StateBytes is the size of the dict in Config: the configured one, or the applied one when that
	// is larger (a dict never shrinks while its proxy lives).
	StateBytes int64
}

// Plan is what to do, in this order: reload when Reload is not empty, then push when Push.
type Plan struct {
	// Reload lists the reasons, each once, in the order of Reasons.
	Reload []Reason
	// StateBytes is the size of the dict to render the configuration with: at least what
	// Applied and Desired say, and more where the state needs it (reason Resize).
	StateBytes int64
	Push       bool
	// Delta is against Applied; after a reload that made the dict anew, compute it again (Changes).
	Delta Delta
}

// Nothing tells that the proxy is as it should be.
func (p Plan) Nothing() bool { return len(p.Reload) == 0 && !p.Push }

// Diff plans the way from applied to desired. When Applied.Known is false the delta is computed
// against whatever Applied holds, and Push is set even for an empty delta: its commit is what makes
// the state known.
func Diff(a Applied, d Desired) Plan {
	p := Plan{Delta: a.changes(d.State)}
	p.StateBytes = stateBytes(a, d, p.Delta)
	p.Reload = reasons(a, d, p.StateBytes)
	p.Push = !p.Delta.Empty() || !a.Known
	return p
}

func reasons(a Applied, d Desired, size int64) []Reason {
	var rs []Reason
	add := func(r Reason, due bool) {
		if due {
			rs = append(rs, r)
		}
	}
	unknown := a.Config.Generation == ""
	add(FirstStart, unknown)
	add(LuaVersion, a.LuaBuild != "" && (a.LuaBuild != d.LuaBuild || a.Schema != luastate.Schema))
	if !unknown {
		add(Listener, !slices.Equal(a.Config.Listeners, d.Config.Listeners))
		profile, identity := newProfiles(a.Config, d.Config)
		add(NewProfile, profile)
		add(NewIdentity, identity)
		// One that is needed no more costs a little until the next reload, and less than that.
		add(LogPhase, d.Config.LogPhase && !a.Config.LogPhase)
		add(GlobalSetting, a.Config.Globals != d.Config.Globals)
	}
	running := a.StateBytes
	if running == 0 && !unknown {
		running = d.StateBytes
	}
	add(Resize, running > 0 && size > running)
	return rs
}

// newProfiles tells whether a profile is new for itself, and whether one is for its identity. It ignores those that are
// no longer used: they cost nothing until the next reload.
func newProfiles(applied, desired nginxconf.Config) (profile, identity bool) {
	known, of := map[model.IdentityID]bool{"": true}, map[string]model.IdentityID{}
	for _, p := range applied.ProfileList {
		known[p.Identity] = true
	}
	for _, p := range desired.ProfileList {
		of[p.Name()] = p.Identity
	}
	for name, hash := range desired.Profiles {
		if have, ok := applied.Profiles[name]; ok && have == hash {
			continue
		}
		fresh := !known[of[name]]
		identity = identity || fresh
		profile = profile || !fresh
	}
	return profile, identity
}
