package speaker

import (
	"bytes"
	"net"
	"slices"
	"time"

	"headgate/vip/election"
)

// peer is another host, as far as this one knows.
type peer struct {
	host   election.Host
	id     uint32
	alive  bool
	since  time.Time // of alive
	reason string
	proven bool      // not alive, and its speaker's end is proven
	quiet  time.Time // when it was said to be quiet last
	state  *message
	err    string // its last state could not be read
	text   []byte // of state, to know it again

	able     map[uint32]time.Time // by VIP: since when it could own it without a break
	claiming map[uint32]time.Time // by VIP: since when it probes or adopts
	requests []uint32             // nonces of its requests that were looked at
}

// maxNonces bounds what is remembered of a peer's requests.
const maxNonces = 16

func newPeer(host election.Host, now time.Time) *peer {
	return &peer{host: host, id: hostID(host), since: now, able: map[uint32]time.Time{}, claiming: map[uint32]time.Time{}}
}

// hear takes a state; the answer is the state before it, and false when the new one is no news.
func (p *peer) hear(now time.Time, m *message, text []byte) (*message, bool) {
	old := p.state
	if old != nil {
		switch {
		case m.Boot == old.Boot && m.Sequence < old.Sequence:
			return nil, false // overtaken on another way
		case m.Boot != old.Boot:
			clear(p.able)
			clear(p.claiming)
		}
	}
	p.state, p.text, p.err = m, text, ""
	p.rise(now)
	for _, e := range m.Entries {
		note(p.able, e.ID, now, func() bool { return p.can(&e) })
		note(p.claiming, e.ID, now, e.claiming)
	}
	return old, true
}

// note keeps since when something has been so; while says whether it is.
func note(since map[uint32]time.Time, id uint32, now time.Time, while func() bool) {
	if _, known := since[id]; !while() {
		delete(since, id)
	} else if !known {
		since[id] = now
	}
}

// can tells that the host could own the VIP of e, wherever it is now.
func (p *peer) can(e *entry) bool {
	return e != nil && p.state.Ready && !p.state.Leaving && e.Able
}

func (p *peer) rise(now time.Time) {
	if !p.alive {
		p.alive, p.proven, p.since, p.reason = true, false, now, ""
	}
}

// fall notes that the peer lives no more as far as this host can tell.
func (p *peer) fall(now time.Time, reason string) {
	if p.alive {
		p.since = now
	}
	p.alive, p.reason = false, reason
	clear(p.able)
	clear(p.claiming)
}

// has tells whether a hardware address is one of the peer's.
func (p *peer) has(hardware net.HardwareAddr) bool {
	return p.state != nil && slices.ContainsFunc(p.state.Hardware, func(a net.HardwareAddr) bool { return bytes.Equal(a, hardware) })
}

// fresh gives the requests that were not looked at before.
func (p *peer) fresh() []request {
	var list []request
	for _, r := range p.state.Requests {
		if !slices.Contains(p.requests, r.Nonce) {
			p.requests = append(p.requests, r.Nonce)
			list = append(list, r)
		}
	}
	p.requests = p.requests[max(0, len(p.requests)-maxNonces):]
	return list
}
