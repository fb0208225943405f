package speaker

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/vip/election"
)

// The world is a simulation of hosts, their kernels and their network on one clock. The speakers in it are the real
// machine; a seed makes every run of it the same again.

// What the detectors of the world do; vip/detect does the same with its defaults.
const (
	heartbeat  = 50 * time.Millisecond
	deadAfter  = 3 * heartbeat
	quietAfter = 2 * heartbeat
	probeEvery = 20 * time.Millisecond
)

type world struct {
	t      *testing.T
	rand   *rand.Rand
	now    time.Duration
	queue  events
	serial uint64
	hosts  []*simHost
	vips   []VIP
	timing Timing

	loss, duplicates float64
	slowest          time.Duration           // of a message
	foreign          map[netip.Addr]bool     // addresses that a machine that is none of us has
	cache            map[netip.Addr]*simHost // of a client: who announced the address last
	trace            []string
	transitions      int
	lastChange       time.Duration

	together map[couple]time.Duration // owners that hear each other → since when
	shadowed map[couple]time.Duration // owners that share only the L2 → since when
	longest  map[string]time.Duration // of the two
	gaps     map[string]time.Duration // VIP → longest time without a reachable owner
	gapFrom  map[string]time.Duration
}

type event struct {
	at     time.Duration
	serial uint64
	do     func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].serial < e[j].serial
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) } //nolint:forcetypeassert // only events are pushed
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// simHost is one host: a kernel, a proxy, and a speaker that may be dead or asleep.
type simHost struct {
	w        *world
	index    int
	name     election.Host
	hardware net.HardwareAddr
	offset   time.Duration // of its clock
	rate     float64       // of its clock
	frozen   time.Duration // of its clock: the time that the whole host did not exist

	machine  *machine
	boot     uint64
	asleep   bool // the process is stopped; the kernel lives
	vanished bool // the whole host is stopped, like a virtual machine that moves
	off      bool
	waiting  []func() // what the process finds in its queues when it wakes up
	wake     uint64   // serial of the timer that counts

	proxy  bool
	hangs  bool // the proxy says nothing, and serves nobody
	linkUp bool
	kernel map[netip.Addr]simAddress
	watch  []Address
	refuse error
	// diesAfterAnnouncing ends the process after its next announcement, before its word about it is out.
	diesAfterAnnouncing, dying bool
	// linkErr is what the kernel says of the interface.
	linkErr error

	state []byte
	heard []time.Duration // by host; 0 is never
	alive []bool
	quiet []bool
	dead  []uint64 // by host: the boot whose end was proven
	// believed is, by host, the boot that proved that it lives.
	believed []uint64

	sessionTo, l2To []bool // by host: what is sent arrives
}

type simAddress struct {
	address Address
	until   time.Duration
}

func newWorld(t *testing.T, seed uint64, hosts int, vips ...VIP) *world {
	w := &world{
		t: t, rand: rand.New(rand.NewPCG(seed, 42)), vips: vips, slowest: 2 * time.Millisecond,
		foreign: map[netip.Addr]bool{}, cache: map[netip.Addr]*simHost{}, together: map[couple]time.Duration{}, shadowed: map[couple]time.Duration{},
		longest: map[string]time.Duration{}, gaps: map[string]time.Duration{}, gapFrom: map[string]time.Duration{},
		timing: Timing{}.withDefaults(),
	}
	for i := range hosts {
		h := &simHost{
			w: w, index: i, name: election.Host(fmt.Sprintf("edge%d", i+1)), hardware: net.HardwareAddr{2, 0, 0, 0, 0, byte(i + 1)},
			offset: time.Duration(w.rand.Int64N(int64(time.Hour))), rate: 0.98 + 0.04*w.rand.Float64(),
			proxy: true, linkUp: true, kernel: map[netip.Addr]simAddress{},
			heard: make([]time.Duration, hosts), alive: make([]bool, hosts), quiet: make([]bool, hosts), dead: make([]uint64, hosts), believed: make([]uint64, hosts),
		}
		for range hosts {
			h.sessionTo, h.l2To = append(h.sessionTo, true), append(h.l2To, true)
		}
		w.hosts = append(w.hosts, h)
	}
	return w
}

func (w *world) after(d time.Duration, do func()) uint64 {
	w.serial++
	heap.Push(&w.queue, event{w.now + d, w.serial, do})
	return w.serial
}

// between draws a time.
func (w *world) between(low, high time.Duration) time.Duration {
	return low + time.Duration(w.rand.Int64N(int64(high-low)+1))
}

func (w *world) chance(p float64) bool { return p > 0 && w.rand.Float64() < p }

// run lets the world go on for d.
func (w *world) run(d time.Duration) {
	end := w.now + d
	for len(w.queue) > 0 && w.queue[0].at <= end {
		e := heap.Pop(&w.queue).(event) //nolint:forcetypeassert // only events are pushed
		w.now = e.at
		e.do()
		w.look()
	}
	w.now = end
	w.look()
}

// until lets the world go on until so, and tells how long that took. It fails after most.
func (w *world) until(what string, most time.Duration, so func() bool) time.Duration {
	w.t.Helper()
	begin := w.now
	for !so() {
		if len(w.queue) == 0 || w.queue[0].at > begin+most {
			w.fail("%s: not within %s", what, most)
		}
		w.run(w.queue[0].at - w.now)
	}
	return w.now - begin
}

func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%9.3fs  ", w.now.Seconds())+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("at %.3fs: %s\n%s", w.now.Seconds(), fmt.Sprintf(format, args...), strings.Join(w.trace[max(0, len(w.trace)-80):], "\n"))
}

// The bounds of the issue: how long two hosts may own one VIP.
const (
	// togetherBound is for two that hear each other: a lost heartbeat or two, then the higher term wins.
	togetherBound = 400 * time.Millisecond
	// shadowBound is for two that share the L2 and nothing else, after both probes of one were lost.
	shadowBound = 10 * time.Second
)

// look holds the world against its laws.
func (w *world) look() {
	for _, v := range w.vips {
		w.lookAt(v)
	}
}

func (w *world) lookAt(v VIP) {
	reachable := false
	for i, a := range w.hosts {
		if a.serves(v) {
			reachable = true
		}
		for _, b := range w.hosts[i+1:] {
			both := a.speaksFor(v) && b.speaksFor(v)
			c := couple{v.Name, a.index, b.index}
			l2 := a.reaches(b) && b.reaches(a)
			session := l2 && a.sessionTo[b.index] && b.sessionTo[a.index]
			w.bound(w.together, "together", c, both && session, togetherBound)
			w.bound(w.shadowed, "shadowed", c, both && l2 && a.knows(b), shadowBound)
		}
	}
	if reachable {
		delete(w.gapFrom, v.Name)
		return
	}
	if _, open := w.gapFrom[v.Name]; !open {
		w.gapFrom[v.Name] = w.now
	}
	w.gaps[v.Name] = max(w.gaps[v.Name], w.now-w.gapFrom[v.Name])
}

// knows tells that one of the two has heard of the other. Hosts that never did take each other for strangers, to which
// neither gives way: then a probe alone keeps a VIP with one owner.
func (h *simHost) knows(other *simHost) bool {
	knows := func(a, b *simHost) bool {
		return a.running() && a.machine.peers[b.name] != nil && a.machine.peers[b.name].state != nil
	}
	return knows(h, other) || knows(other, h)
}

// couple is two hosts, by index, and a VIP.
type couple struct {
	vip  string
	a, b int
}

func (w *world) bound(since map[couple]time.Duration, kind string, c couple, so bool, most time.Duration) {
	begin, open := since[c]
	switch {
	case !so && open:
		delete(since, c)
	case so && !open:
		since[c] = w.now
	case so:
		w.longest[kind] = max(w.longest[kind], w.now-begin)
		if w.now-begin > most {
			w.fail("%s: %s and %s own it both (%s) for %s", c.vip, w.hosts[c.a].name, w.hosts[c.b].name, kind, w.now-begin)
		}
	}
}

// owners are the hosts that are Active and whose process runs.
func (w *world) owners(v VIP) []election.Host {
	var list []election.Host
	for _, h := range w.hosts {
		if h.speaksFor(v) {
			list = append(list, h.name)
		}
	}
	return list
}

// holders are the hosts whose kernel has the address.
func (w *world) holders(v VIP) []election.Host {
	var list []election.Host
	for _, h := range w.hosts {
		if h.holds(v.Addresses[0].IP) {
			list = append(list, h.name)
		}
	}
	return list
}

func (h *simHost) running() bool {
	return h.machine != nil && !h.asleep && !h.vanished && !h.off
}

func (h *simHost) unit(v VIP) *unit {
	for _, u := range h.machine.units {
		if u.Name == v.Name {
			return u
		}
	}
	panic("no VIP " + v.Name)
}

func (h *simHost) speaksFor(v VIP) bool {
	return len(h.kernel) > 0 && h.running() && h.unit(v).state == Active && h.holds(v.Addresses[0].IP)
}

// serves tells that a client that sends to this host is served.
func (h *simHost) serves(v VIP) bool {
	return h.holds(v.Addresses[0].IP) && h.fit() && h.linkUp && !h.off && !h.vanished
}

func (h *simHost) holds(ip netip.Addr) bool {
	a, found := h.kernel[ip]
	return found && a.until > h.kernelNow() && !h.off
}

// kernelNow stands still while the host does not exist.
func (h *simHost) kernelNow() time.Duration { return h.w.now - h.frozen }

func (h *simHost) reaches(other *simHost) bool {
	return h.linkUp && other.linkUp && h.l2To[other.index] && !h.off && !other.off && !h.vanished && !other.vanished
}

// clock is the host's own monotonic clock.
func (h *simHost) clock() time.Time {
	return time.Unix(0, 0).Add(h.offset + time.Duration(float64(h.kernelNow())*h.rate))
}

// start begins a new run of the speaker.
func (h *simHost) start() {
	if h.machine != nil || h.off {
		return
	}
	h.boot++
	h.waiting = nil
	c := Config{
		Host: h.name, VIPs: h.w.vips, Peers: len(h.w.hosts) - 1, Timing: h.w.timing, Kernel: h, Wire: h, Publisher: h,
		Log: slog.New(slog.DiscardHandler), Observe: h.observe,
	}
	for i := range h.heard {
		h.heard[i], h.alive[i], h.believed[i] = 0, false, 0
	}
	h.machine = newMachine(c, uint64(h.index+1)<<32|h.boot)
	h.machine.probe = h.ask
	h.w.note("%s starts", h.name)
	h.machine.begin(h.clock())
	boot := h.boot
	h.beat(boot)
	h.detect(boot)
	h.w.after(h.w.between(time.Millisecond, 60*time.Millisecond), func() { h.checkProxy(boot) })
	h.step()
}

func (h *simHost) observe(t Transition) {
	h.w.note("%s %s: %s → %s: %s, term %d, peer %q %s", h.name, t.VIP, t.From, t.To, t.Reason, t.Term, t.Peer, t.Detail)
	if t.From == Active && t.Reason == ProxyNotReady && t.Peer == "" && h.machine.health.Why != Forbidden && !h.helps(t.VIP) {
		h.w.fail("%s gives %s away because of its proxy, and nobody can take it", h.name, t.VIP)
	}
	h.w.transitions++
	h.w.lastChange = h.w.now
}

// helps tells that it is of use when this host lets a VIP go for its proxy: another host said that it is ready, or the
// own proxy serves nobody for sure and there is a host that might be ready unheard.
func (h *simHost) helps(vip string) bool {
	u, _ := h.machine.unit(vip)
	for _, p := range h.machine.peers {
		if p.alive && p.can(p.state.find(u.id)) || !p.alive && !p.proven && h.machine.health.Why == Dead {
			return true
		}
	}
	return false
}

// give hands something to the process; while it is stopped, it waits in a queue.
func (h *simHost) give(boot uint64, do func(m *machine)) {
	switch {
	case h.machine == nil || h.boot != boot || h.off:
	case h.asleep || h.vanished:
		if len(h.waiting) < 1000 {
			h.waiting = append(h.waiting, func() { h.give(boot, do) })
		}
	default:
		do(h.machine)
		h.step()
	}
}

func (h *simHost) step() {
	next := h.machine.step(h.clock())
	if h.dying {
		h.w.note("%s dies after announcing", h.name)
		h.kill()
		h.dying = false
		return
	}
	if h.machine.stopped {
		h.w.note("%s has stopped", h.name)
		h.kill()
		return
	}
	wait := time.Duration(float64(min(next.Sub(h.clock()), maxSleep))/h.rate) + h.w.between(0, 2*time.Millisecond)
	boot := h.boot
	var serial uint64
	serial = h.w.after(max(wait, time.Microsecond), func() {
		if h.wake == serial && h.boot == boot && h.running() {
			h.step()
		}
	})
	h.wake = serial
}

// beat sends the newest state to everybody.
func (h *simHost) beat(boot uint64) {
	if h.boot != boot || h.machine == nil {
		return
	}
	if h.running() {
		h.send()
	}
	h.w.after(heartbeat, func() { h.beat(boot) })
}

func (h *simHost) send() {
	if h.state == nil || h.dying {
		return
	}
	for _, other := range h.w.hosts {
		if other == h || !h.reaches(other) || !h.sessionTo[other.index] || h.w.chance(h.w.loss) {
			continue
		}
		copies := 1
		if h.w.chance(h.w.duplicates) {
			copies = 2
		}
		state, boot := bytes.Clone(h.state), h.boot
		for range copies {
			h.w.after(h.w.between(50*time.Microsecond, h.w.slowest), func() { other.receive(h, boot, state) })
		}
	}
}

func (h *simHost) receive(from *simHost, boot uint64, state []byte) {
	h.give(h.boot, func(m *machine) {
		// The detectors believe a process once it proved that it lives, and then no earlier one; nor one whose end was proven.
		if lives := from.machine != nil && from.boot == boot; h.dead[from.index] == boot || boot < h.believed[from.index] || !lives && boot != h.believed[from.index] {
			return
		}
		h.believed[from.index] = boot
		h.heard[from.index], h.alive[from.index] = h.w.now, true
		m.peerEvent(h.clock(), PeerEvent{Host: from.name, Kind: PeerHeard, State: state})
	})
}

// detect tells who fell silent.
func (h *simHost) detect(boot uint64) {
	if h.boot != boot || h.machine == nil {
		return
	}
	for i, other := range h.w.hosts {
		quiet := h.alive[i] && h.w.now-h.heard[i] > quietAfter
		if h.running() && quiet && !h.quiet[i] {
			h.give(boot, func(m *machine) {
				m.peerEvent(h.clock(), PeerEvent{Host: other.name, Kind: PeerQuiet, Reason: "nothing for 100ms"})
			})
		}
		h.quiet[i] = quiet
		if h.running() && h.alive[i] && h.w.now-h.heard[i] > deadAfter {
			h.alive[i] = false
			h.give(boot, func(m *machine) {
				m.peerEvent(h.clock(), PeerEvent{Host: other.name, Kind: PeerSilent, Reason: "nothing for 150ms"})
			})
		}
	}
	h.w.after(10*time.Millisecond, func() { h.detect(boot) })
}

// checkProxy asks the proxy every now and then.
func (h *simHost) checkProxy(boot uint64) {
	if h.boot != boot || h.machine == nil {
		return
	}
	h.give(boot, func(m *machine) { m.setHealth(h.health()) })
	h.w.after(50*time.Millisecond, func() { h.checkProxy(boot) })
}

// fit tells that the proxy serves.
func (h *simHost) fit() bool { return h.proxy && !h.hangs }

func (h *simHost) health() Health {
	health := Health{Ready: h.fit(), Reason: "simulated"}
	switch {
	case !h.proxy:
		health.Why = Dead
	case h.hangs:
		health.Why = Silent
	}
	return health
}

// kill ends the process; its kernel keeps what it has. The peers that it talks to find out quickly.
func (h *simHost) kill() {
	if h.machine == nil {
		return
	}
	boot := h.boot
	h.machine, h.asleep, h.state = nil, false, nil
	for _, other := range h.w.hosts {
		if other == h || !h.reaches(other) || !other.reaches(h) || !h.sessionTo[other.index] || !other.sessionTo[h.index] || h.vanished {
			continue
		}
		h.w.after(h.w.between(5*time.Millisecond, 15*time.Millisecond), func() {
			if !h.reaches(other) || !other.reaches(h) || h.boot != boot && h.machine != nil {
				return // it cannot be proven any more
			}
			other.give(other.boot, func(m *machine) {
				if other.dead[h.index] == boot || !other.alive[h.index] {
					return
				}
				other.dead[h.index], other.alive[h.index] = boot, false
				m.peerEvent(other.clock(), PeerEvent{Host: h.name, Kind: PeerCrashed, Reason: "connection refused"})
			})
		})
	}
}

// powerOff ends everything on the host.
func (h *simHost) powerOff() {
	h.off, h.machine, h.asleep, h.vanished, h.state = true, nil, false, false, nil
	h.kernel = map[netip.Addr]simAddress{}
}

func (h *simHost) sleep() { h.asleep = h.machine != nil }

func (h *simHost) vanish() { h.vanished = !h.off }

// wakeUp ends sleep and vanish. What waited is handled before anything is judged: so does vip/detect.
func (h *simHost) wakeUp(since time.Duration) {
	if !h.asleep && !h.vanished {
		return
	}
	if h.vanished {
		h.frozen += h.w.now - since
	}
	h.asleep, h.vanished = false, false
	if h.machine == nil {
		return
	}
	for i := range h.heard {
		h.heard[i] = h.w.now
	}
	waiting := h.waiting
	h.waiting = nil
	if h.w.chance(0.5) { // the timer may win against the queues
		h.step()
	}
	for _, do := range waiting {
		do()
	}
	if h.machine != nil {
		h.step()
	}
}

// Publish implements Publisher.
func (h *simHost) Publish(state []byte) {
	if len(state) > MaxMessageBytes {
		h.w.fail("%s publishes %d bytes", h.name, len(state))
	}
	h.state = state
	h.send()
}

// Apply implements Kernel.
func (h *simHost) Apply(desired []Address, lifetime time.Duration) error {
	if h.refuse != nil && len(desired) > 0 {
		return h.refuse
	}
	for ip := range h.kernel {
		if !slices.ContainsFunc(desired, func(a Address) bool { return a.IP == ip }) {
			delete(h.kernel, ip)
		}
	}
	for _, a := range desired {
		// The kernel counts in its own ticks, and is late rather than early.
		h.kernel[a.IP] = simAddress{a, h.kernelNow() + lifetime + h.w.between(0, 300*time.Millisecond)}
	}
	return nil
}

// Held implements Kernel.
func (h *simHost) Held() ([]Address, error) {
	var held []Address
	for ip, a := range h.kernel {
		if h.holds(ip) {
			held = append(held, a.address)
		}
	}
	return held, nil
}

var errNoLink = errors.New("no such interface")

// Link implements Kernel.
func (h *simHost) Link(string) (Link, error) {
	return Link{Up: h.linkUp, HardwareAddr: h.hardware}, h.linkErr
}

// Announce implements Wire.
func (h *simHost) Announce(a Address) error {
	if h.linkUp && !h.off {
		h.w.cache[a.IP] = h
	}
	h.dying, h.diesAfterAnnouncing = h.dying || h.diesAfterAnnouncing, false
	for _, other := range h.w.hosts {
		if other == h || !h.reaches(other) || h.w.chance(h.w.loss) {
			continue
		}
		h.w.after(h.w.between(20*time.Microsecond, time.Millisecond), func() { other.hear(Conflict{a.IP, h.hardware}) })
	}
	return nil
}

func (h *simHost) hear(c Conflict) {
	if slices.ContainsFunc(h.watch, func(a Address) bool { return a.IP == c.IP }) {
		h.give(h.boot, func(m *machine) { m.conflict(h.clock(), c) })
	}
}

// Watch implements Wire.
func (h *simHost) Watch(addresses []Address) { h.watch = addresses }

// Probe implements Wire; the machine asks through ask.
func (h *simHost) Probe(_ context.Context, _ Address) (net.HardwareAddr, bool, error) {
	panic("the simulation asks by itself")
}

// ask sends two packets, 20 ms apart, and gives the result after as long again, or with the first answer.
func (h *simHost) ask(p probe) {
	boot := h.boot
	done := false
	finish := func(answers []answer) {
		if !done {
			done = true
			h.give(boot, func(m *machine) { m.probed(h.clock(), probeResult{token: p.token, vip: p.vip, answers: answers}) })
		}
	}
	for n := range 2 {
		h.w.after(time.Duration(n)*probeEvery, func() {
			for _, a := range p.addresses {
				if h.w.foreign[a.IP] && h.linkUp {
					h.w.after(time.Millisecond, func() { finish([]answer{{a, net.HardwareAddr{0xaa, 0, 0, 0, 0, 1}}}) })
				}
				for _, other := range h.w.hosts {
					if other != h && h.reaches(other) && other.reaches(h) && other.holds(a.IP) && !h.w.chance(h.w.loss) && !h.w.chance(h.w.loss) {
						h.w.after(h.w.between(20*time.Microsecond, time.Millisecond), func() { finish([]answer{{a, other.hardware}}) })
					}
				}
			}
		})
	}
	h.w.after(2*probeEvery, func() { finish(nil) })
}
