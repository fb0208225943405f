package vip

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"headgate/sync/gossip"
	"headgate/vip/detect"
	"headgate/vip/election"
	"headgate/vip/speaker"
)

// members brings the hosts that gossip knows to the detectors, and what the detectors say to the speaker.
type members struct {
	gossip   *gossip.Gossip
	detector *detect.Detector
	port     uint16
	events   chan<- speaker.PeerEvent
	own      func() []netip.Addr // this host's addresses on the VIPs' networks
	log      *slog.Logger
	told     string // metadata

	mu    sync.Mutex // guards known
	known map[string]member
}

// member is a host that gossip told once. One that it tells no more is watched on: gossip may be blocked while
// the heartbeats are not.
type member struct {
	address netip.AddrPort // of its detector
	own     []netip.Addr   // on the VIPs' networks
	gone    time.Time      // since when gossip does not know it; zero: it does
}

// forgetAfter is how long a host that gossip lost and that the detectors do not hear is remembered.
const forgetAfter = 10 * time.Minute

// portMeta begins the metadata: the detector's port, and then the addresses for a second chance of connections:
// "vip=7947 192.0.2.1 fe80::1".
const portMeta = "vip="

// metaEvery is how often the own addresses are looked at.
const metaEvery = 10 * time.Second

// tell lets the others know where this host's detector listens, and which address leads to it on the VIPs' networks.
func (m *members) tell() {
	text := portMeta + strconv.Itoa(int(m.port))
	for _, a := range m.own() {
		if longer := text + " " + a.String(); len(longer) <= gossip.MaxMeta {
			text = longer
		}
	}
	if text == m.told {
		return
	}
	if err := m.gossip.SetMeta([]byte(text)); err != nil {
		m.log.Error("the others do not hear where the heartbeats go", "err", err)
		return
	}
	m.told = text
}

// memberOf reads what a host told: its detector listens on its address of gossip.
func memberOf(g gossip.Member, standard uint16) member {
	m := member{address: netip.AddrPortFrom(g.Address.Addr(), standard)}
	text, found := strings.CutPrefix(string(g.Meta), portMeta)
	words := strings.Fields(text)
	if !found || len(words) == 0 {
		return m
	}
	if n, err := strconv.ParseUint(words[0], 10, 16); err == nil && n > 0 {
		m.address = netip.AddrPortFrom(g.Address.Addr(), uint16(n))
	}
	for _, w := range words[1:] {
		if a, err := netip.ParseAddr(w); err == nil {
			m.own = append(m.own, a)
		}
	}
	return m
}

// addresses are those at which a host takes connections of which it was the owner; nil when it told none.
func (m *members) addresses(host string) []netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[host].own
}

// run keeps the two lists equal, and passes events on, until ctx ends.
func (m *members) run(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	meta := time.NewTicker(metaEvery)
	defer meta.Stop()
	for {
		m.follow(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-m.gossip.Changed():
		case <-ticker.C:
		case <-meta.C:
			m.tell()
		case e := <-m.detector.Events():
			m.pass(ctx, e)
		}
	}
}

// follow brings what gossip knows to the detectors.
func (m *members) follow(ctx context.Context) {
	now := time.Now()
	m.mu.Lock()
	before := maps.Clone(m.known)
	for name, k := range m.known {
		if k.gone.IsZero() {
			k.gone = now
			m.known[name] = k
		}
	}
	for _, g := range m.gossip.Members() {
		m.known[g.Name] = memberOf(g, m.port)
	}
	var forgotten []string
	for name, k := range m.known {
		if !k.gone.IsZero() && now.Sub(k.gone) > forgetAfter && !m.heard(name) {
			delete(m.known, name)
			forgotten = append(forgotten, name)
		}
	}
	changed := !maps.EqualFunc(before, m.known, func(a, b member) bool { return a.address == b.address })
	peers := make([]detect.Peer, 0, len(m.known))
	for name, k := range m.known {
		peers = append(peers, detect.Peer{Host: name, Address: k.address})
	}
	m.mu.Unlock()
	if !changed {
		return
	}
	if err := m.detector.SetPeers(peers); err != nil {
		m.log.Error("the detectors keep their old peers", "err", err)
	}
	slices.Sort(forgotten)
	for _, name := range forgotten {
		m.log.Info("a host is forgotten: nothing was heard of it for long", "peer", name)
		m.send(ctx, speaker.PeerEvent{Host: election.Host(name), Kind: speaker.PeerGone, Reason: "no member any more"})
	}
}

// heard tells that the detectors hear the host.
func (m *members) heard(name string) bool {
	return slices.ContainsFunc(m.detector.Status(), func(s detect.PeerStatus) bool { return s.Host == name && s.Verdict == detect.Up })
}

// pass translates what the detectors say.
func (m *members) pass(ctx context.Context, e detect.Event) {
	out := speaker.PeerEvent{Host: election.Host(e.Host), State: e.State, Reason: e.Reason}
	switch e.Kind {
	case detect.Up, detect.State:
		out.Kind = speaker.PeerHeard
	case detect.Crashed, detect.Left:
		out.Kind = speaker.PeerCrashed // a farewell is as good a proof
	case detect.Quiet:
		out.Kind = speaker.PeerQuiet
	case detect.Silent:
		out.Kind = speaker.PeerSilent
	case detect.Lost, detect.Regained, detect.Clash: // told in the log and the status
		return
	default:
		return
	}
	m.send(ctx, out)
}

func (m *members) send(ctx context.Context, e speaker.PeerEvent) {
	select {
	case m.events <- e:
	case <-ctx.Done():
	}
}
