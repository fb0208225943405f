package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	"headgate/gateway/luastate"
	"headgate/gateway/nginxconf"
	"headgate/gateway/plan"
	"headgate/sync/luapush"
)

// observe looks at the proxy. Where it is not as it was left, a pass is due.
func (l *Loop) observe(ctx context.Context) {
	l.handOver(ctx)
	s, err := l.state(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if !l.stale && l.now.Synced {
			l.log.Warn("proxy does not answer", "err", err)
		}
		l.lost()
		return
	}
	if l.encounter(s) {
		l.debounce.change(time.Now())
		return
	}
	if l.stale || l.same(s) {
		return
	}
	l.stale = true
	l.debounce.change(time.Now())
}

// handOver makes sure that one master alone has workers before anything is pushed: two have two dicts,
// and each request would meet either.
func (l *Loop) handOver(ctx context.Context) {
	over, err := l.cfg.Proxy.HandOver(ctx)
	if err != nil {
		l.log.Warn("proxy not handed over", "err", err)
	}
	if over {
		l.stale, l.applied.Known = true, false
		l.debounce.change(time.Now())
	}
}

// lost notes that the proxy is away, and tries again: whoever keeps it may have brought it back.
func (l *Loop) lost() {
	first := !l.stale
	l.stale = true
	if first {
		l.debounce.change(time.Now())
	}
}

func (l *Loop) same(s luapush.State) bool {
	return s.Boot == l.applied.BootID && s.Revision == l.applied.Revision &&
		s.Generation == l.applied.Config.Generation && s.LuaBuild == l.applied.LuaBuild
}

func (l *Loop) foreign(pusher string) bool {
	return pusher != "" && pusher != l.cfg.Control.Pusher()
}

// errRival is a pass given up because another daemon pushes to the same proxy.
var errRival = errors.New("another daemon pushes to this proxy: run only one headgate per proxy, or give each its own runtimeDir")

// encounter tells whether another daemon has pushed since we last looked, and steps back before it.
// Who pushed before we ever saw this dict is no rival: most likely our own predecessor.
func (l *Loop) encounter(s luapush.State) bool {
	if s.Boot != l.applied.BootID || s.Revision == l.applied.Revision || !l.foreign(s.Pusher) {
		return false
	}
	l.stale = true
	l.applied.Known, l.applied.Revision = false, s.Revision
	l.step(s.Pusher)
	return true
}

// step goes back before another daemon.
func (l *Loop) step(pusher string) {
	l.rival.met(pusher, time.Now())
	l.log.Warn("another daemon pushes to this proxy", "pusher", pusher, "retryIn", time.Until(l.rival.until()))
}

// state asks the proxy and notes the answer for Status.
func (l *Loop) state(ctx context.Context) (luapush.State, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := l.cfg.Control.State(ctx)
	l.now.ProxyErr = err
	if err != nil && l.why != nil {
		l.now.ProxyErr = l.why
	}
	if err == nil {
		l.now.Proxy, l.why = s, nil
	} else {
		l.now.Proxy.Workers, l.now.Ready = nil, false
	}
	return s, err
}

// resync makes l.applied what the proxy really has. Where nobody answers, that is nothing.
func (l *Loop) resync(ctx context.Context) error {
	s, err := l.state(ctx)
	if errors.Is(err, luapush.ErrUnreachable) {
		l.applied = plan.Applied{MemoryRefused: l.applied.MemoryRefused}
		l.publish() // what follows may take long
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	if l.encounter(s) {
		return errRival
	}
	config := l.configOf(s)
	if l.applied.Known && s.Boot == l.applied.BootID && s.Revision == l.applied.Revision {
		l.applied.Config, l.applied.LuaBuild, l.applied.Schema = config, s.LuaBuild, s.Schema
		l.stale = false
		return nil
	}
	a := plan.Applied{
		Config: config, Revision: s.Revision, LuaBuild: s.LuaBuild, Schema: s.Schema, BootID: s.Boot,
		StateBytes: s.Dict.Capacity, MemoryRefused: l.applied.MemoryRefused,
	}
	if s.Schema == luastate.Schema {
		if err := l.readKeys(ctx, &a); err != nil {
			return err
		}
	}
	l.applied, l.stale, l.logged = a, false, false
	l.revision = max(l.revision, a.Revision)
	return nil
}

func (l *Loop) readKeys(ctx context.Context, a *plan.Applied) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	k, err := l.cfg.Control.Keys(ctx)
	if err != nil {
		return err
	}
	_, sizes := l.cfg.StateLog.Held()
	a.Pointers, a.Bodies, a.Known = k.Pointers, make(map[string]int, len(k.Bodies)), true
	for _, hash := range k.Bodies {
		a.Bodies[hash] = sizes[hash]
	}
	return nil
}

// configOf gives the facts of the configuration that the proxy reports: the one that was applied
// last, or the remembered one. Of any other, nothing is known.
func (l *Loop) configOf(s luapush.State) nginxconf.Config {
	switch s.Generation {
	case "":
	case l.applied.Config.Generation:
		return l.applied.Config
	case l.memory.Generation:
		return l.memory.config()
	}
	return nginxconf.Config{}
}

// keep replaces the objects that stand for "what is there" by what the state log holds under their
// pointers, for a proxy that lost it.
func (l *Loop) keep(s luastate.State) luastate.State {
	var held map[string]string
	out := s
	for i, o := range s.Objects {
		if !o.Keep {
			continue
		}
		if _, there := l.applied.Pointers[o.Pointer]; there {
			continue
		}
		if held == nil {
			held, _ = l.cfg.StateLog.Held()
			out.Objects = slices.Clone(s.Objects)
		}
		hash, ok := held[o.Pointer]
		if !ok {
			continue
		}
		body, err := l.cfg.StateLog.Body(hash)
		if err != nil {
			l.log.Warn("last good object not read from the state log", "pointer", o.Pointer, "err", err)
			continue
		}
		out.Objects[i] = &luastate.Object{Pointer: o.Pointer, Hash: hash, Body: body}
	}
	return out
}
