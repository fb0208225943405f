package speaker

import (
	"bytes"
	"net"
	"slices"
	"time"
)

// reconcile makes the kernel hold what is decided: addresses on before they are announced, off before it is told.
func (m *machine) reconcile(now time.Time) {
	if m.fresh && slices.ContainsFunc(m.units, func(u *unit) bool { return u.state == Init }) {
		return // what the run before left is neither refreshed nor removed until it is clear whose it is
	}
	const passes = 2 // what the kernel refuses is taken off again at once
	for range passes {
		if !m.pass(now) {
			return
		}
	}
}

// pass gives the kernel what is decided if that is due; false when nothing was.
func (m *machine) pass(now time.Time) bool {
	desired, lifetime := m.desired(), m.wantedLifetime()
	changed := m.tried == nil || !slices.Equal(desired, m.tried) || lifetime != m.triedLifetime
	due := m.failed || len(desired) > 0 && !now.Before(m.appliedAt.Add(lifetime/refreshes))
	m.dirty = m.dirty && m.lacks(desired)
	if !changed && (!due && !m.dirty || now.Before(m.retryAt)) {
		return false
	}
	lost := m.dirty && !changed
	m.apply(now, desired, lifetime)
	if lost {
		m.readd(now)
	}
	return true
}

// refreshes is how often an address is refreshed within its lifetime.
const refreshes = 6

func (m *machine) desired() []Address {
	desired := []Address{}
	for _, u := range m.units {
		if u.state == Active {
			desired = append(desired, u.Addresses...)
		}
	}
	return desired
}

// wantedLifetime is long while nobody could take over: then a restart must lose nothing.
func (m *machine) wantedLifetime() time.Duration {
	for _, p := range m.peers {
		if p.alive && p.state != nil && p.state.Ready && !p.state.Leaving {
			return m.Timing.Lifetime
		}
	}
	return m.Timing.Lasting
}

// lacks tells that the kernel lost an address that it should hold.
func (m *machine) lacks(desired []Address) bool {
	held, err := m.Kernel.Held()
	return err == nil && slices.ContainsFunc(desired, func(a Address) bool { return !holds(held, a) })
}

// readd announces what somebody else had deleted, and says so.
func (m *machine) readd(now time.Time) {
	m.Log.Warn("somebody else removed an address of a VIP that this host owns: it was added again")
	for _, u := range m.units {
		if u.state == Active {
			u.scheduleAnnounces(now, 0)
		}
	}
}

// kernelRetry is between two tries while the kernel refuses.
const kernelRetry = 100 * time.Millisecond

func (m *machine) apply(now time.Time, desired []Address, lifetime time.Duration) {
	m.dirty, m.tried, m.triedLifetime, m.retryAt = false, desired, lifetime, now.Add(kernelRetry)
	err := m.Kernel.Apply(desired, lifetime)
	m.failed = err != nil
	if err != nil {
		m.refused(now, err)
		return
	}
	m.fresh, m.lifetime, m.appliedAt = false, lifetime, now
	for _, u := range m.units {
		if u.state == Active {
			u.refusals = 0
		}
	}
	m.watch()
}

// refused finds out which VIPs the kernel does not hold, and gives those up; the others stay.
func (m *machine) refused(now time.Time, err error) {
	m.relink = true
	held, heldErr := m.Kernel.Held()
	if heldErr != nil {
		m.Log.Error("the kernel does not tell which addresses it has", "err", heldErr)
		return
	}
	m.fresh = false
	for _, u := range m.units {
		lacks := slices.ContainsFunc(u.Addresses, func(a Address) bool { return !holds(held, a) })
		if u.state != Active || !lacks {
			continue
		}
		u.refusals++
		pause := min(refusalPause<<min(u.refusals-1, 8), maxRefusalPause)
		m.letGo(u, now, change{to: Backup, reason: KernelRefused, detail: err.Error()})
		u.blocked = now.Add(pause)
	}
	m.Log.Error("the kernel did not take all addresses as they should be", "err", err)
	m.watch()
}

func (m *machine) watch() {
	m.Wire.Watch(m.desired())
}

func (m *machine) announce(u *unit) {
	for _, a := range u.Addresses {
		if err := m.Wire.Announce(a); err != nil {
			m.Log.Warn("announcement not sent: neighbours may keep the old owner for a while", "vip", u.Name, "address", a.IP, "err", err)
		}
	}
}

// finish ends the stop once everything is handed over, or cannot be. What no peer could take stays in the kernel for
// Timing.Lasting: the next start adopts it.
func (m *machine) finish(now time.Time) {
	if m.stopping.IsZero() || m.stopped {
		return
	}
	moving := slices.ContainsFunc(m.units, func(u *unit) bool { return u.state == Active && u.offer.to != "" })
	if moving && now.Sub(m.stopping) < m.Timing.StopTimeout {
		return
	}
	m.stopped = true
	if m.wantedLifetime() >= m.Timing.Lasting {
		if desired := m.desired(); len(desired) > 0 {
			m.apply(now, desired, m.Timing.Lasting)
			m.Log.Info("stopped; no other host could take the VIPs: the kernel keeps them for a while", "lifetime", m.Timing.Lasting.String())
		}
		return
	}
	for _, u := range m.units {
		if u.state == Active {
			m.letGo(u, now, change{to: Backup, reason: Stopped, detail: "nobody took it over in time"})
		}
	}
	m.reconcile(now)
}

// publish tells the peers what changed.
func (m *machine) publish(now time.Time) {
	m.requests = slices.DeleteFunc(m.requests, func(o outgoing) bool { return !now.Before(o.till) })
	msg := m.message(now)
	text := msg.encode()
	if bytes.Equal(text, m.published) {
		return
	}
	m.published = text
	m.sequence++
	msg.Sequence = m.sequence
	m.Publisher.Publish(msg.encode())
}

func (m *machine) message(now time.Time) *message {
	msg := &message{
		Boot: m.boot, Ready: m.health.Ready, Draining: m.draining, Leaving: !m.stopping.IsZero(),
		Lasting: m.lifetime >= m.Timing.Lasting,
	}
	for _, l := range m.links {
		if len(l.HardwareAddr) == hardwareBytes {
			msg.Hardware = append(msg.Hardware, l.HardwareAddr)
		}
	}
	slices.SortFunc(msg.Hardware, func(a, b net.HardwareAddr) int { return bytes.Compare(a, b) })
	msg.Hardware = msg.Hardware[:min(len(msg.Hardware), maxHardware)]
	for _, u := range m.units {
		e := entry{ID: u.id, Claim: m.claim(u), Able: m.cannot(u, now) == "", Priority: u.priority(), Term: u.top()}
		if u.state == Active {
			e.Term, e.Manual = u.term, u.offer.manual
			if u.offer.to != "" {
				e.Offered = hostID(u.offer.to)
			}
		}
		msg.Entries = append(msg.Entries, e)
	}
	for _, o := range m.requests {
		msg.Requests = append(msg.Requests, o.request)
	}
	return msg
}

// hardwareBytes is the length of an Ethernet address.
const hardwareBytes = 6

func (m *machine) claim(u *unit) claimState {
	switch {
	case u.state == Active:
		return claimActive
	case u.state == Init && u.held:
		return claimAdopting
	case u.probe.token != 0:
		return claimProbing
	}
	return claimNone
}

// next is the earliest moment at which something is due, and before that nothing happens without an event.
func (m *machine) next(now time.Time) time.Time {
	next := now.Add(maxSleep)
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = later(t, now)
		}
	}
	if !m.settled {
		sooner(m.settleAt)
	}
	if now.Before(m.graceTill) {
		sooner(m.graceTill)
	}
	if len(m.tried) > 0 {
		sooner(later(m.appliedAt.Add(m.lifetime/refreshes), m.retryAt))
	}
	if m.dirty || m.failed {
		sooner(m.retryAt)
	}
	for _, u := range m.units {
		if u.state == Active {
			sooner(u.nextAnnounce(now))
			sooner(u.checkAt)
		}
		if u.state == Backup && !u.freeSince.IsZero() {
			for rank := range time.Duration(maxSuccessors) {
				if at := u.freeSince.Add(rank * claimStep); at.After(now) {
					sooner(at)
				}
			}
			if u.nextProbe.After(now) {
				sooner(u.nextProbe)
			}
		}
	}
	return next
}
