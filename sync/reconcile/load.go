package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/plan"
	"headgate/sync/luapush"
	"headgate/sync/nginxproc"
)

// failedLoad keeps a configuration that did not come up from being tried over and over: each try
// makes nginx start workers anew, and that closes every client's idle connection.
type failedLoad struct {
	generation string
	err        error
	wait       time.Duration
	until      time.Time
}

const (
	firstReloadWait = time.Second
	lastReloadWait  = 5 * time.Minute
	// takenWait is for an address that somebody is about to free. A try starts no worker.
	takenWait = 5 * time.Second
)

func (f *failedLoad) note(generation string, err error, now time.Time) {
	if f.generation != generation {
		*f = failedLoad{generation: generation}
	}
	f.err = err
	f.wait = min(max(2*f.wait, firstReloadWait), lastReloadWait)
	var taken *takenError
	if errors.As(err, &taken) {
		f.wait = min(f.wait, takenWait)
	}
	f.until = now.Add(f.wait)
}

// lately gives why a configuration failed, while it is not to be tried again.
func (f *failedLoad) lately(generation string) error {
	if f.generation != generation || !time.Now().Before(f.until) {
		return nil
	}
	return f.err
}

// render writes nginx.conf for m with a dict of size bytes.
func (l *Loop) render(m *model.Model, size int64, keep []model.Profile) (nginxconf.Config, error) {
	return renderFor(m, size, l.layout(keep))
}

func renderFor(m *model.Model, size int64, layout nginxconf.Layout) (nginxconf.Config, error) {
	sized := *m
	sized.Settings.StateMemoryBytes = size
	return nginxconf.Render(&sized, layout)
}

// layout is how nginx.conf is rendered with these profiles beside those of the model.
func (l *Loop) layout(keep []model.Profile) nginxconf.Layout {
	layout := l.cfg.Layout
	layout.KeepProfiles = keep
	kept := l.keptParts()
	layout.KeepIdentities, layout.KeepFastCGI = kept.identities, kept.fastcgi
	// Before the first push the proxy serves what it had, or what the log holds.
	layout.KeepLogPhase = l.served == nil && l.memory.LogPhase
	return layout
}

// keptProfiles are those of the state that the proxy serves until the push that follows a reload.
func (l *Loop) keptProfiles() []model.Profile {
	keep := l.served
	if keep == nil {
		keep = l.memory.ProfileList
	}
	return slices.DeleteFunc(slices.Clone(keep), func(p model.Profile) bool {
		return l.rejected[nginxconf.ProfileName(p)]
	})
}

// parts are what profiles name.
type parts struct {
	identities []*model.Identity
	fastcgi    []*model.FastCGI
}

// keptParts are what the kept profiles name.
func (l *Loop) keptParts() parts {
	if l.served == nil {
		return l.memory.parts()
	}
	return l.parts
}

// startFromLog starts a proxy for the state in the log: no source is complete yet, so the
// configuration is the remembered one, rendered anew for this binary and host.
func (l *Loop) startFromLog(ctx context.Context) error {
	m := &model.Model{Settings: l.cfg.Settings, Listeners: l.cfg.Listeners}
	if l.memory.Generation != "" {
		m.Settings.DefaultProfile = l.memory.Default
	}
	// What a dict has grown to holds while its proxy lives; a new one is as large as configured, or as
	// its state needs.
	pointers, bodies := l.cfg.StateLog.Held()
	size := plan.HeldBytes(pointers, bodies, m.Settings.StateMemoryBytes)
	return l.reload(ctx, m, plan.Plan{Reload: []plan.Reason{plan.FirstStart}, StateBytes: size})
}

// reload has nginx run the configuration of m. Where nginx does not accept it, the profiles at fault are looked for: while
// the proxy can be pushed to, beside the loop (the error is errSearching unless there is another reason to reload), else at
// once, and they are rejected (errRebuild).
func (l *Loop) reload(ctx context.Context, m *model.Model, p plan.Plan) error {
	if !l.configured() {
		l.endSearch() // it was for a proxy that is gone
	}
	config, err := l.render(m, p.StateBytes, l.keptProfiles())
	if err != nil {
		return err
	}
	if l.search != nil {
		return l.reloadMeanwhile(ctx, m, p, config)
	}
	if err := l.failed.lately(config.Generation); err != nil {
		return err
	}
	err = l.load(ctx, config, m, p)
	var refused *nginxproc.ConfError
	if !errors.As(err, &refused) {
		clear(l.cleared) // nobody is suspected any more
		return err
	}
	if l.configured() {
		l.searchFor(ctx, m, p, config, refused)
		return l.reloadMeanwhile(ctx, m, p, config)
	}
	if err = l.reject(ctx, m, p.StateBytes, config, refused); !errors.Is(err, errRebuild) {
		l.giveUp(config.Generation, p.Reload, err)
	}
	return err
}

// giveUp notes that nginx does not accept a configuration, and that nothing can be left out of it.
func (l *Loop) giveUp(generation string, reasons []plan.Reason, err error) {
	now := time.Now()
	l.failed.note(generation, err, now)
	l.now.LastReload = Reload{Time: now, Reasons: reasons, Err: err}
}

// load has nginx run a configuration. What nginx -t does not accept (*nginxproc.ConfError) is not noted as a failure: who is at
// fault may be found.
func (l *Loop) load(ctx context.Context, config nginxconf.Config, m *model.Model, p plan.Plan) error {
	started := time.Now()
	l.beats.Add(1)
	err := l.cfg.Proxy.Apply(ctx, confOf(config))
	l.beats.Add(1)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err = explainTaken(err, m.Listeners)
	var refused *nginxproc.ConfError
	if errors.As(err, &refused) {
		return err
	}
	l.now.LastReload = Reload{Time: started, Reasons: p.Reload, Took: time.Since(started), Err: err}
	switch {
	case err == nil:
		l.loaded(config, m, p)
		return l.settle(ctx, config, p.Reload)
	case errors.Is(err, nginxproc.ErrNotRunning), errors.Is(err, nginxproc.ErrSocketGone):
		// It lies ready: whoever starts nginx starts it with this.
		l.keepMemory(config, m, p)
	default:
		l.failed.note(config.Generation, err, time.Now())
	}
	return err
}

func (l *Loop) loaded(config nginxconf.Config, m *model.Model, p plan.Plan) {
	l.failed = failedLoad{}
	l.now.ReloadCount++
	for _, r := range p.Reload {
		l.now.Reloads[r]++
	}
	l.log.Info("proxy reloaded", "reasons", p.Reload, "took", l.now.LastReload.Took)
	l.applied.Config, l.applied.MemoryRefused = config, false
	l.keepMemory(config, m, p)
}

// confOf is a configuration as nginxproc takes it.
func confOf(c nginxconf.Config) nginxproc.Conf {
	conf := nginxproc.Conf{Text: c.Text, Generation: c.Generation}
	for _, f := range c.Files {
		conf.Files = append(conf.Files, nginxproc.File{Path: f.Path, Content: f.Content})
	}
	return conf
}

// The times of settle: around a reload, workers of the old load answer for about a tenth of a second.
const (
	settleTimeout = 5 * time.Second
	leaveTimeout  = time.Second
	settlePeriod  = 10 * time.Millisecond
)

// settle waits until a worker answers that runs config, with this binary's Lua files: what is asked
// or pushed from then on meets the new load. Where none does, whoever looks next finds that out: the
// only error is the end of ctx.
//
// Before routes are pushed that need what is new in config, it waits for the workers of the load before, which cannot serve
// them, to take no more connections.
func (l *Loop) settle(ctx context.Context, config nginxconf.Config, reasons []plan.Reason) error {
	answers := func(s luapush.State) bool {
		return s.Generation == config.Generation && s.LuaBuild == l.cfg.Layout.LuaBuild
	}
	if err := l.await(ctx, settleTimeout, answers); err != nil || len(withoutNew(reasons)) == len(reasons) {
		return err
	}
	return l.await(ctx, leaveTimeout, func(s luapush.State) bool {
		return !slices.ContainsFunc(s.Workers, func(w luapush.Worker) bool { return w.Generation != config.Generation && !w.Leaving })
	})
}

// await asks the proxy until an answer is as wanted, or the time is over. The only error is the end of ctx.
func (l *Loop) await(ctx context.Context, timeout time.Duration, wanted func(luapush.State) bool) error {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		if s, err := l.state(waiting); err == nil && wanted(s) {
			return nil
		}
		again := time.NewTimer(settlePeriod)
		select {
		case <-waiting.Done():
			again.Stop()
			return ctx.Err()
		case <-again.C:
		}
	}
}

// takenError tells of addresses that other processes listen on, in terms of the configuration.
type takenError struct {
	message string
	cause   error
}

// Error implements error.
func (e *takenError) Error() string { return e.message }

// Unwrap gives what nginx made of it.
func (e *takenError) Unwrap() error { return e.cause }

// explainTaken puts what to do first where err says that an address of listeners is taken.
func explainTaken(err error, listeners []model.Listener) error {
	var failed *nginxproc.ReloadError
	if !errors.As(err, &failed) || len(failed.Taken) == 0 {
		return err
	}
	messages := make([]string, len(failed.Taken))
	for i, t := range failed.Taken {
		key := "listeners"
		for _, l := range listeners {
			if l.Address.String() == t.Address {
				key = "listeners." + string(l.Scheme)
			}
		}
		messages[i] = t.String() + " or change " + key
	}
	return &takenError{message: strings.Join(messages, "; "), cause: err}
}

func (l *Loop) keepMemory(config nginxconf.Config, m *model.Model, p plan.Plan) {
	l.memory = remember(config, m.Settings.DefaultProfile, p.StateBytes)
	if err := l.memory.write(l.cfg.MemoryFile); err != nil {
		l.log.Warn("applied configuration not remembered", "err", err)
	}
}
