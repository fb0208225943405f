package assemble

import (
	"time"

	"headgate/gateway/build"
	"headgate/gateway/model"
	"headgate/sync/admin"
	"headgate/sync/health"
	"headgate/sync/lossguard"
	"headgate/sync/luapush"
	"headgate/sync/nginxproc"
	"headgate/sync/reconcile"
)

// Told is what the rooms tell of themselves at one moment.
type Told struct {
	Loop        reconcile.Status
	Process     nginxproc.Condition
	LogRevision uint64 // newest in the state log
	LogBytes    int64  // length of the state log
	Checks      health.Stats
	Guard       lossguard.Condition
}

// Status adds what was told to base, which holds what never changes and the source's health.
func Status(base admin.Status, t Told) admin.Status {
	s := base
	l := t.Loop
	s.Source.Synced = l.Synced
	s.Revision = admin.Revision{Desired: l.Desired, Applied: l.Applied}
	if l.LastKnownGood { // the loop has made nothing yet; the proxy loaded it from the state log
		s.Revision = admin.Revision{Desired: l.Proxy.Revision, Applied: l.Proxy.Revision}
	}
	s.Ready, s.LastKnownGood = l.Ready, l.LastKnownGood
	s.Error, s.Rival, s.TooLarge = text(l.Err), l.Rival, l.TooLarge
	s.StateLog = admin.StateLog{Revision: t.LogRevision, SizeBytes: t.LogBytes, Error: text(l.LogErr)}
	s.Passes, s.Pushes, s.Failures = l.Passes, l.Pushes, l.Failures
	s.Reloads = make(map[string]uint64, len(l.Reloads))
	for reason, n := range l.Reloads {
		s.Reloads[string(reason)] = n
	}
	s.LastReload = lastReload(l.LastReload)
	s.Proxy = proxy(s.Proxy.Mode, t)
	s.Health, s.LossGuard = checks(t.Checks), guard(t.Guard)
	s.Problems = problems(l.Problems)
	if l.Result != nil {
		s.Counts = counts(l.Result.Model)
		s.Health.AllDown = allDown(l.Result.Checks)
		s.Certificates = append(s.Certificates[:len(s.Certificates):len(s.Certificates)], certificates(l.Result.Model)...)
	}
	return s
}

func checks(h health.Stats) admin.Health {
	return admin.Health{
		Up: h.Up, Down: h.Down, Unknown: h.Unknown, Running: h.Running, LateMs: h.Late.Milliseconds(),
		Succeeded: h.Succeeded, Failed: h.Failed, Void: h.Void, WentDown: h.WentDown, CameUp: h.CameUp,
	}
}

// allDown names the upstreams of which every peer that could get new requests is down.
func allDown(list []build.Check) []string {
	var ids []string
	for _, c := range list {
		candidates, down := 0, 0
		for i := range c.Peers {
			if p := &c.Peers[i]; !p.Draining {
				candidates++
				if p.Down {
					down++
				}
			}
		}
		if candidates > 0 && down == candidates {
			ids = append(ids, string(c.Upstream))
		}
	}
	return ids
}

func guard(c lossguard.Condition) admin.LossGuard {
	out := admin.LossGuard{AgeSeconds: c.Age.Seconds(), MaxAgeSeconds: c.MaxAge.Seconds(), TooOld: c.TooOld, Holds: c.Holds}
	if !c.Since.IsZero() {
		out.Held = Held(c.Report)
	}
	return out
}

// Held says what a guard holds.
func Held(r lossguard.Report) *admin.Held {
	return &admin.Held{
		Since: r.Since, Until: r.Until, Why: r.Why, Withheld: r.Withheld, Before: admin.Amount(r.Before), Now: admin.Amount(r.Now),
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func lastReload(r reconcile.Reload) *admin.Reload {
	if r.Time.IsZero() {
		return nil
	}
	out := &admin.Reload{Time: r.Time, Error: text(r.Err)}
	for _, reason := range r.Reasons {
		out.Reasons = append(out.Reasons, string(reason))
	}
	return out
}

func proxy(mode string, t Told) admin.Proxy {
	p := t.Loop.Proxy
	out := admin.Proxy{
		Mode: mode, Reachable: t.Loop.ProxyErr == nil && p.Boot != "", Error: text(t.Loop.ProxyErr), Restarts: t.Process.Restarts,
		MasterPID: p.MasterPID, NginxVersion: p.NginxVersion, LuaBuild: p.LuaBuild, Generation: p.Generation,
		DictCapacityBytes: p.Dict.Capacity, DictFreeBytes: p.Dict.Free,
	}
	if t.Process.Err != nil {
		out.Error = t.Process.Err.Error() // says more than that nobody answers
	}
	for _, w := range p.Workers {
		out.Workers = append(out.Workers, worker(w))
	}
	return out
}

func worker(w luapush.Worker) admin.Worker {
	return admin.Worker{PID: w.PID, Generation: w.Generation, Revision: w.Revision, SeenMs: w.SeenMs, Errors: w.Errors}
}

func problems(list []build.Problem) []admin.Problem {
	out := make([]admin.Problem, 0, len(list))
	for _, p := range list {
		out = append(out, Problem(p))
	}
	return out
}

// Problem is one for people.
func Problem(p build.Problem) admin.Problem {
	return admin.Problem{
		Kind: p.Object.Kind, Namespace: p.Object.Namespace, Name: p.Object.Name, Origin: p.Object.Origin,
		Field: p.Field, Reason: string(p.Reason), Message: p.Message, Warning: p.Warning,
	}
}

func counts(m *model.Model) admin.Counts {
	c := admin.Counts{Hosts: len(m.Hosts), Upstreams: len(m.Upstreams), Certificates: len(m.Certificates)}
	for _, h := range m.Hosts {
		c.Routes += len(h.Routes)
	}
	for _, u := range m.Upstreams {
		c.Peers += len(u.Peers)
	}
	return c
}

// certificates leaves out those of which only "keep what you have" is known.
func certificates(m *model.Model) []admin.Certificate {
	var out []admin.Certificate
	for _, c := range m.Certificates {
		if !c.Keep {
			out = append(out, admin.Certificate{ID: string(c.ID), NotAfter: c.NotAfter})
		}
	}
	return out
}

// Base is the part of the status that holds from the start.
func Base(version string, pid int, now time.Time) admin.Status {
	return admin.Status{Version: version, PID: pid, Started: now}
}
