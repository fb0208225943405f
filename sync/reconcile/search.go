package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"headgate/gateway/luastate"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/plan"
	"headgate/sync/nginxproc"
)

// search looks for the profiles that nginx does not accept, beside the loop: it takes some runs of nginx -t for each of
// them, and endpoints change meanwhile. Until it ends, nginx.conf gets no profile that nobody has looked at, and hosts that need
// one stay as they are.
type search struct {
	generation string // of the configuration that nginx refused
	reasons    []plan.Reason
	refused    *nginxproc.ConfError
	done       chan findings // capacity 1: who searches waits for nobody
	cancel     context.CancelFunc
}

// findings are how a search ended. Without culprits nothing can be left out. The cleared ones are those that were suspected and
// are none.
type findings struct {
	culprits []culprit
	cleared  []model.Profile
	err      error
}

// errSearching is a reload that waits for the end of a search.
var errSearching = errors.New("the profiles that nginx does not accept are being looked for")

// configured tells that there is a proxy whose configuration is known: pushes can go on without a reload.
func (l *Loop) configured() bool { return l.applied.Known && l.applied.Config.Generation != "" }

// searchFor begins a search for what nginx refused in full.
func (l *Loop) searchFor(ctx context.Context, m *model.Model, p plan.Plan, full nginxconf.Config, refused *nginxproc.ConfError) {
	ctx, cancel := context.WithCancel(ctx)
	s := &search{generation: full.Generation, reasons: p.Reload, refused: refused, done: make(chan findings, 1), cancel: cancel}
	suspects, others := l.suspects(full)
	try := l.trial(ctx, m, p.StateBytes, full)
	go func() { s.done <- find(suspects, others, try) }()
	l.search = s
	l.log.Warn("nginx does not accept the configuration: hosts that need new profiles wait until those at fault are found",
		"profiles", len(suspects), "err", refused.Message)
}

// searched gives the end of the search that is under way.
func (l *Loop) searched() <-chan findings {
	if l.search == nil {
		return nil
	}
	return l.search.done
}

// endSearch gives a search up, and returns when it has ended.
func (l *Loop) endSearch() {
	if l.search == nil {
		return
	}
	l.search.cancel()
	<-l.search.done
	l.search = nil
}

// conclude draws the conclusions from a search that has ended. What follows from them is the next pass's business.
func (l *Loop) conclude(f findings) {
	s := l.search
	l.search = nil
	s.cancel()
	if err := l.rejectAll(f, s.refused); !errors.Is(err, errRebuild) {
		l.giveUp(s.generation, s.reasons, err)
	}
	for _, p := range f.cleared {
		l.cleared[nginxconf.ProfileName(p)] = true
	}
	l.debounce.change(time.Now())
}

// reject finds the profiles that nginx does not accept while everything waits for it: there is no proxy that could be
// pushed to meanwhile.
func (l *Loop) reject(ctx context.Context, m *model.Model, size int64, full nginxconf.Config, refused *nginxproc.ConfError) error {
	suspects, others := l.suspects(full)
	try := l.trial(ctx, m, size, full)
	return l.rejectAll(find(suspects, others, func(profiles []model.Profile) error {
		l.beats.Add(1)
		return try(profiles)
	}), refused)
}

// rejectAll has the builder leave the culprits out: then the error is errRebuild.
func (l *Loop) rejectAll(f findings, refused *nginxproc.ConfError) error {
	for _, c := range f.culprits {
		l.rejectProfile(nginxconf.ProfileName(c.profile), c.why)
	}
	switch {
	case f.err != nil:
		return f.err
	case len(f.culprits) == 0:
		return refused
	}
	return errRebuild
}

func (l *Loop) rejectProfile(name, why string) {
	l.log.Warn("profile rejected: nginx does not accept it", "profile", name, "err", why)
	l.rejected[name] = true
	l.cfg.Builder.RejectProfile(name, why)
}

// suspects are the profiles of a configuration that the proxy does not run yet, and that were in no search. Others are the rest.
func (l *Loop) suspects(full nginxconf.Config) (suspects, others []model.Profile) {
	for _, p := range full.ProfileList {
		name := nginxconf.ProfileName(p)
		if hash, known := l.applied.Config.Profiles[name]; l.cleared[name] || known && hash == full.Profiles[name] {
			others = append(others, p)
		} else {
			suspects = append(suspects, p)
		}
	}
	return suspects, others
}

// trial gives a function that has nginx check a configuration with some of the profiles of full. It may be called beside the loop.
func (l *Loop) trial(ctx context.Context, m *model.Model, size int64, full nginxconf.Config) func([]model.Profile) error {
	bare := &model.Model{Settings: m.Settings, Listeners: m.Listeners, Identities: full.Identities, FastCGI: full.FastCGI}
	layout, proxy := l.layout(nil), l.cfg.Proxy
	return func(profiles []model.Profile) error {
		layout.KeepProfiles = profiles
		c, err := renderFor(bare, size, layout)
		if err != nil {
			return err
		}
		return proxy.Test(ctx, confOf(c))
	}
}

type culprit struct {
	profile model.Profile
	why     string
}

// find looks through the suspects, and through the others if it is none of them. Where nginx does not even accept the
// configuration without any profile, nothing can be left out.
func find(suspects, others []model.Profile, try func([]model.Profile) error) findings {
	if err := try(nil); err != nil {
		return findings{err: fmt.Errorf("the configuration without any profile: %w", err)}
	}
	found, err := culprits(suspects, try)
	switch {
	case err != nil:
		return findings{culprits: found, err: err}
	case len(found) == 0:
		found, err = culprits(others, try)
		return findings{culprits: found, err: err}
	}
	isCulprit := func(p model.Profile) bool {
		return slices.ContainsFunc(found, func(c culprit) bool { return c.profile == p })
	}
	return findings{culprits: found, cleared: slices.DeleteFunc(slices.Clone(suspects), isCulprit)}
}

// culprits bisects: it returns the profiles each of which nginx does not accept alone. Any error of
// try but a *nginxproc.ConfError ends the search.
func culprits(profiles []model.Profile, try func([]model.Profile) error) ([]culprit, error) {
	if len(profiles) == 0 {
		return nil, nil
	}
	err := try(profiles)
	var refused *nginxproc.ConfError
	switch {
	case err == nil:
		return nil, nil
	case !errors.As(err, &refused):
		return nil, err
	case len(profiles) == 1:
		return []culprit{{profiles[0], strings.TrimSpace(refused.Message)}}, nil
	}
	half := len(profiles) / 2
	first, err := culprits(profiles[:half], try)
	if err != nil {
		return first, err
	}
	second, err := culprits(profiles[half:], try)
	return append(first, second...), err
}

// withoutNew gives the reasons of a reload that do not wait for the end of a search: what they ask for can be had with
// the profiles that the proxy has.
func withoutNew(reasons []plan.Reason) []plan.Reason {
	return slices.DeleteFunc(slices.Clone(reasons), func(r plan.Reason) bool {
		return r == plan.NewProfile || r == plan.NewIdentity
	})
}

// reloadMeanwhile has nginx run what m asks of it while a search is under way: with the profiles that it runs already, and with
// those of full, which it refused, that an earlier search has cleared. So bad ones that keep coming hold up no others for ever.
func (l *Loop) reloadMeanwhile(ctx context.Context, m *model.Model, p plan.Plan, full nginxconf.Config) error {
	runs := l.applied.Config
	layout := l.layout(slices.Clone(runs.ProfileList))
	layout.KeepIdentities = slices.Concat(runs.Identities, full.Identities)
	layout.KeepFastCGI = slices.Concat(runs.FastCGI, full.FastCGI)
	layout.KeepLogPhase = runs.LogPhase || m.LogPhase()
	for _, profile := range full.ProfileList {
		if l.cleared[nginxconf.ProfileName(profile)] && l.lacks(m, profile) {
			layout.KeepProfiles = append(layout.KeepProfiles, profile)
		}
	}
	if len(layout.KeepProfiles) == len(runs.ProfileList) {
		p.Reload = withoutNew(p.Reload)
	}
	if len(p.Reload) == 0 {
		return errSearching
	}
	config, err := renderFor(&model.Model{Settings: m.Settings, Listeners: m.Listeners}, p.StateBytes, layout)
	if err != nil {
		return err
	}
	if err := l.failed.lately(config.Generation); err != nil {
		return err
	}
	err = l.load(ctx, config, m, p)
	var refused *nginxproc.ConfError
	if errors.As(err, &refused) {
		l.giveUp(l.search.generation, l.search.reasons, err)
		l.endSearch() // no new profile is at fault
	}
	return err
}

// hold replaces what cannot be pushed before a search has ended by what the proxy has: hosts with profiles that nginx.conf
// lacks, and all that such hosts may refer to.
func (l *Loop) hold(m *model.Model, s luastate.State) luastate.State {
	if l.search == nil {
		return s
	}
	held := map[string]bool{}
	for _, h := range m.Hosts {
		if slices.ContainsFunc(h.Routes, func(r *model.Route) bool { return l.lacks(m, r.Profile) }) {
			held["host/"+string(h.Name)] = true
		}
	}
	if len(held) == 0 {
		return s
	}
	away := maps.Clone(l.applied.Pointers)
	maps.DeleteFunc(away, func(pointer, _ string) bool { return luastate.Referring(pointer) })
	objects := make([]*luastate.Object, 0, len(s.Objects)+len(away))
	for _, o := range s.Objects {
		delete(away, o.Pointer)
		if held[o.Pointer] {
			o = &luastate.Object{Pointer: o.Pointer, Keep: true}
		}
		objects = append(objects, o)
	}
	for pointer := range away {
		objects = append(objects, &luastate.Object{Pointer: pointer, Keep: true})
	}
	slices.SortFunc(objects, func(a, b *luastate.Object) int { return strings.Compare(a.Pointer, b.Pointer) })
	return luastate.State{Objects: objects}
}

// lacks tells that the proxy does not run a profile.
func (l *Loop) lacks(m *model.Model, p model.Profile) bool {
	if p == m.Settings.DefaultProfile {
		return false
	}
	_, has := l.applied.Config.Profiles[nginxconf.ProfileName(p)]
	return !has
}
