package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"headgate/gateway/build"
	"headgate/gateway/luastate"
	"headgate/gateway/plan"
	"headgate/gateway/snapshot"
	"headgate/sync/luapush"
	"headgate/sync/nginxproc"
)

// errRebuild asks for another build within the pass: the builder has learned something.
var errRebuild = errors.New("build again")

// maxBuilds bounds the builds of one pass. Each further one has a profile rejected, or the memory of
// the proxy grown.
const maxBuilds = 16

// begin takes over what there is. A proxy that serves is left alone; where there is none and the
// state log knows what was served, one is started with that, before any source is read.
func (l *Loop) begin(ctx context.Context) {
	var err error
	if l.memory, err = readMemory(l.cfg.MemoryFile); err != nil {
		l.log.Warn("applied configuration not remembered: the proxy will be reloaded once", "err", err)
	}
	running := l.cfg.Proxy.Adopt(ctx)
	if !running && l.cfg.StateLog.Revision() > 0 && ctx.Err() == nil {
		err := l.startFromLog(ctx)
		if err != nil {
			l.log.Error("proxy not started from the state log", "err", err)
		}
		running = err == nil
	}
	if !running {
		// The last good configuration may do better than none.
		if _, err := l.cfg.Proxy.Resume(ctx); err != nil {
			l.log.Error("proxy not resumed", "err", err)
		}
	}
	s, err := l.state(ctx) // for Status; the first pass looks again
	if err == nil && s.Revision > 0 {
		l.log.Info("serving the last known good state until a source has been read completely", "revision", s.Revision)
	}
	l.publish()
}

// pass goes the whole way once. It does nothing before the source is complete: half a cluster is
// never served.
func (l *Loop) pass(ctx context.Context) error {
	started := time.Now()
	snap, complete := l.cfg.Source.Snapshot()
	if !complete {
		return nil
	}
	l.now.Synced = true
	l.now.Passes++
	changed := false
	for range maxBuilds {
		l.beats.Add(1)
		result, err := l.build(ctx, snap)
		if result == nil {
			return err
		}
		c, err := l.apply(ctx, result)
		changed = changed || c
		if errors.Is(err, errRebuild) {
			continue
		}
		l.result = result
		if err != nil {
			l.now.Ready = false
			return err
		}
		l.finish(Pass{Result: result, Revision: l.applied.Revision, Changed: changed, Started: started, Took: time.Since(started)})
		return nil
	}
	return fmt.Errorf("no configuration that nginx accepts after %d builds", maxBuilds)
}

func (l *Loop) finish(p Pass) {
	l.now.Ready, l.now.LastPass = true, time.Now()
	l.rival.settled()
	if p.Changed {
		l.log.Info("applied", "revision", p.Revision, "took", p.Took)
	}
	l.publish()
	if l.cfg.Applied != nil {
		l.cfg.Applied(p)
	}
}

// build makes the result of snap, with every regular expression checked by the proxy. A nil result
// without an error means: not yet.
func (l *Loop) build(ctx context.Context, snap *snapshot.Snapshot) (*build.Result, error) {
	s := l.completed(snap)
	r := l.cfg.Builder.Build(s, time.Now())
	if l.cfg.Resolver != nil {
		l.cfg.Resolver.Want(r.ExternalNames)
	}
	if l.cfg.Checker != nil {
		l.cfg.Checker.Want(r.Checks)
	}
	if l.waitForNames(s, r.ExternalNames) || l.waitForSecrets(r.PeerSecrets) {
		return nil, nil
	}
	if len(r.UnknownRegexes) == 0 {
		return r, nil
	}
	if err := l.look(ctx); err != nil {
		return nil, err
	}
	if !l.applied.Known {
		// Nobody is there to ask: a proxy with the rest of the configuration is.
		if err := l.startWithout(ctx, r); err != nil {
			return nil, err
		}
	}
	asking, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	verdicts, err := l.cfg.Control.CheckRegexes(asking, r.UnknownRegexes)
	if err != nil {
		return nil, fmt.Errorf("check %d regular expressions: %w", len(r.UnknownRegexes), err)
	}
	l.cfg.Builder.LearnRegexes(verdicts)
	return l.cfg.Builder.Build(s, time.Now()), nil
}

func (l *Loop) startWithout(ctx context.Context, r *build.Result) error {
	err := l.reload(ctx, r.Model, plan.Plan{Reload: []plan.Reason{plan.FirstStart}, StateBytes: l.stateBytes(r)})
	if err != nil && !errors.Is(err, errRebuild) {
		return err
	}
	return l.look(ctx)
}

// completed adds to what the source read what was found out about it.
func (l *Loop) completed(snap *snapshot.Snapshot) *snapshot.Snapshot {
	s := *snap
	if l.cfg.Resolver != nil {
		s.Resolutions = l.cfg.Resolver.Resolutions()
	}
	if l.cfg.Checker != nil {
		s.Verdicts = l.cfg.Checker.Verdicts()
	}
	return &s
}

// asking is since when Secrets are waited for, and which ones have been for long enough.
type asking struct {
	since time.Time
	given []snapshot.Key // up: sorted
}

// waitForSecrets holds a pass back for Secrets that are named for the first time.
func (l *Loop) waitForSecrets(wanted []snapshot.Key) bool {
	if l.cfg.Secrets == nil {
		return false
	}
	known := l.cfg.Secrets.Want(wanted)
	isGiven := func(key snapshot.Key) bool {
		_, given := slices.BinarySearchFunc(l.asking.given, key, snapshot.Key.Compare)
		return given
	}
	if known || !slices.ContainsFunc(wanted, func(key snapshot.Key) bool { return !isGiven(key) }) {
		waited := !l.asking.since.IsZero()
		l.asking.since = time.Time{}
		if known {
			l.asking.given = wanted // all of them were found out about once
		}
		if waited {
			l.retry.soon(time.Now(), 0) // what came may not stand in the snapshot of this pass yet
		}
		return waited
	}
	now := time.Now()
	if l.asking.since.IsZero() {
		l.asking.since = now
	}
	left := secretPatience - now.Sub(l.asking.since)
	if left <= 0 {
		l.asking = asking{given: wanted}
		return false
	}
	l.retry.soon(now, left)
	return true
}

// waitForNames holds the first pass back for names that nobody has asked yet.
func (l *Loop) waitForNames(s *snapshot.Snapshot, names []string) bool {
	if l.cfg.Resolver == nil || l.result != nil {
		return false
	}
	known := func(name string) bool {
		_, ok := slices.BinarySearchFunc(s.Resolutions, name, func(r *snapshot.Resolution, n string) int {
			return strings.Compare(r.Name, n)
		})
		return ok
	}
	if !slices.ContainsFunc(names, func(n string) bool { return !known(n) }) {
		return false
	}
	now := time.Now()
	if l.waiting.IsZero() {
		l.waiting = now
	}
	left := resolvePatience - now.Sub(l.waiting)
	if left <= 0 {
		return false
	}
	l.retry.soon(now, left)
	return true
}

// look makes l.applied what the proxy has. One that does not answer is given the chance to come back
// as it was before anything is changed.
func (l *Loop) look(ctx context.Context) error {
	if !l.stale && l.applied.Known {
		return nil
	}
	if err := l.resync(ctx); err != nil || l.applied.BootID != "" {
		return err
	}
	running, err := l.cfg.Proxy.Resume(ctx)
	if err != nil {
		l.log.Error("proxy not resumed", "err", err)
	}
	if !running {
		return ctx.Err()
	}
	return l.resync(ctx)
}

// apply brings the proxy to what r wants. changed tells that something was pushed or reloaded. A
// reload that fails does not hold up the push of what needs none.
func (l *Loop) apply(ctx context.Context, r *build.Result) (changed bool, err error) {
	l.handOver(ctx)
	if err := l.look(ctx); err != nil {
		return false, err
	}
	encoded := l.encoder.Encode(r.Model)
	d, err := l.desired(r, encoded)
	if err != nil {
		return false, err
	}
	p := plan.Diff(l.applied, d)
	var reloadErr error
	if len(p.Reload) > 0 {
		reloadErr = l.reload(ctx, r.Model, p)
		switch {
		case errors.Is(reloadErr, errRebuild):
			return false, errRebuild
		case errors.Is(reloadErr, errSearching):
			reloadErr = nil // nothing was reloaded, and what can do without is pushed
		default:
			changed = reloadErr == nil
			err := l.afterReload(ctx, p)
			if reloadErr != nil && errors.Is(err, luapush.ErrUnreachable) {
				return false, l.away(reloadErr) // that nobody answers follows from it
			}
			if err != nil {
				return changed, errors.Join(reloadErr, err)
			}
		}
		d.State = l.keep(l.hold(r.Model, encoded))
		p = plan.Diff(l.applied, d)
	}
	l.now.TooLarge = p.Delta.TooLarge
	if !p.Push {
		l.align(d.State)
		l.applied.State = d.State
	} else if err := l.push(ctx, d.State, p.Delta); err != nil {
		return changed, errors.Join(reloadErr, err)
	}
	uses := d.Config
	if l.search != nil {
		uses = l.applied.Config // hosts that are held use what they used before
	}
	l.served, l.parts = uses.ProfileList, parts{uses.Identities, uses.FastCGI}
	return changed || p.Push, reloadErr
}

// away has Status tell what must be done before the proxy can answer, in place of how the call failed.
func (l *Loop) away(why error) error {
	l.why = nil
	var taken *takenError
	if errors.As(why, &taken) || errors.Is(why, nginxproc.ErrSocketGone) {
		l.why, l.now.ProxyErr = why, why
	}
	return why
}

// afterReload looks again and tells why nothing can be pushed, if that is so.
func (l *Loop) afterReload(ctx context.Context, p plan.Plan) error {
	l.stale = true
	if err := l.resync(ctx); err != nil {
		return err
	}
	switch {
	case l.applied.BootID == "":
		return luapush.ErrUnreachable
	case !l.applied.Known:
		return fmt.Errorf("%w: schema %d, wanted %d", luapush.ErrSchema, l.applied.Schema, luastate.Schema)
	case slices.Contains(p.Reload, plan.LuaVersion) && l.applied.LuaBuild != l.cfg.Layout.LuaBuild:
		return fmt.Errorf("the proxy runs Lua build %s, wanted %s", l.applied.LuaBuild, l.cfg.Layout.LuaBuild)
	}
	return nil
}

func (l *Loop) stateBytes(r *build.Result) int64 {
	return max(r.Model.Settings.StateMemoryBytes, l.applied.StateBytes)
}

func (l *Loop) desired(r *build.Result, encoded luastate.State) (plan.Desired, error) {
	size := l.stateBytes(r)
	config, err := l.render(r.Model, size, nil)
	if err != nil {
		return plan.Desired{}, err
	}
	if len(config.Refused) > 0 {
		for name, why := range config.Refused {
			l.rejectProfile(name, why)
		}
		return plan.Desired{}, errRebuild
	}
	return plan.Desired{Config: config, State: l.keep(encoded), LuaBuild: l.cfg.Layout.LuaBuild, StateBytes: size}, nil
}

// push writes the state log, then pushes, and takes the proxy's acknowledgement as applied.
func (l *Loop) push(ctx context.Context, state luastate.State, delta plan.Delta) error {
	l.revision = max(l.revision, l.applied.Revision, l.cfg.StateLog.Revision()) + 1
	records := delta.Records(l.revision)
	l.record(l.revision, state, records)
	l.beats.Add(1)
	pushing, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	committed, err := l.cfg.Control.Push(pushing, luapush.Push{Base: l.applied.Revision, Revision: l.revision, Records: records})
	if err != nil {
		return l.refused(err)
	}
	delta.Apply(l.applied.Pointers, l.applied.Bodies)
	l.applied.Revision, l.applied.MemoryRefused, l.applied.State = committed, false, state
	l.logged = true
	l.now.Pushes++
	return nil
}

// record appends to the state log what turns its state into the wanted one. Where it cannot be
// written, the log tells so itself (Condition): traffic goes first.
func (l *Loop) record(revision uint64, state luastate.State, records []luastate.Record) {
	if !l.logged {
		pointers, bodies := l.cfg.StateLog.Held()
		records = plan.Changes(pointers, bodies, state).Records(revision)
	}
	_ = l.cfg.StateLog.Append(revision, records) // see above
}

// align makes the log hold what the proxy holds already, such as after the log was lost.
func (l *Loop) align(state luastate.State) {
	if l.logged {
		return
	}
	l.logged = true
	pointers, bodies := l.cfg.StateLog.Held()
	changes := plan.Changes(pointers, bodies, state)
	if changes.Empty() && l.cfg.StateLog.Revision() == l.applied.Revision {
		return
	}
	_ = l.cfg.StateLog.Append(l.applied.Revision, changes.Records(l.applied.Revision)) // see record
}

// refused turns what became of a push into what follows from it. Nothing is known of the proxy's
// state after any of it.
func (l *Loop) refused(err error) error {
	l.applied.Known, l.logged, l.stale = false, false, true
	var answer *luapush.Refused
	switch {
	case errors.Is(err, luapush.ErrMemory):
		if l.applied.MemoryRefused {
			return err // it was made larger already, and yet
		}
		l.applied.MemoryRefused = true
		return errRebuild
	case errors.Is(err, luapush.ErrBusy) && errors.As(err, &answer):
		if l.rival.name != answer.Pusher {
			l.log.Warn("another daemon pushes to this proxy", "pusher", answer.Pusher)
		}
		l.rival.blocked(answer.Pusher, time.Now())
		return fmt.Errorf("%w: %w", errRival, err)
	}
	return err
}
