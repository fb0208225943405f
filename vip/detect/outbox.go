package detect

import (
	"net/netip"
	"sync"
)

// letter is what to send; it becomes a packet, with the newest state, when it is sent.
type letter struct {
	kind    kind
	nonce   [nonceBytes]byte
	to      string
	address netip.AddrPort // UDP only
}

// outboxDepth bounds what waits behind a stuck socket; what a flood of challenges adds beyond it is dropped.
const outboxDepth = 32

// outbox holds what a sender has yet to send. Putting never blocks, so that one stuck socket stalls nobody else.
type outbox struct {
	wake chan struct{} // capacity 1: there is something

	mu      sync.Mutex // guards letters
	letters []letter
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

// put adds the letter; a heartbeat to the same address that still waits makes another one needless.
func (o *outbox) put(l letter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.letters) >= outboxDepth {
		return
	}
	for _, waiting := range o.letters {
		if l.kind == beat && waiting.kind == beat && waiting.address == l.address {
			return
		}
	}
	o.letters = append(o.letters, l)
	poke(o.wake)
}

func (o *outbox) take() []letter {
	o.mu.Lock()
	defer o.mu.Unlock()
	letters := o.letters
	o.letters = nil
	return letters
}

// seal makes the packet of a letter for a channel.
func (d *Detector) seal(l letter, over channel) []byte {
	ring := *d.keys.Load()
	return ring[0].seal(packet{
		kind: l.kind, channel: over, incarnation: d.incarnation, counter: d.counter.Add(1),
		nonce: l.nonce, from: d.cfg.Host, to: l.to, state: *d.state.Load(),
	})
}

// sendAll sends to every peer over every channel.
func (d *Detector) sendAll(l letter) {
	for s := range d.sessions {
		s.out.put(l)
	}
	for _, link := range d.links {
		link.out.put(l)
	}
	for _, p := range d.peers {
		l.address = p.address
		d.udpOut.put(l)
	}
}

// sendTo sends to one peer over every channel; on links all hear it.
func (d *Detector) sendTo(host string, l letter) {
	for s := range d.sessions {
		if s.host == host {
			s.out.put(l)
		}
	}
	for _, link := range d.links {
		link.out.put(l)
	}
	if p := d.peers[host]; p != nil {
		l.address = p.address
		d.udpOut.put(l)
	}
}

// sayFarewell tells the peers that this process stops, without a queue: the senders end with it.
func (d *Detector) sayFarewell() {
	l := letter{kind: farewell}
	for s := range d.sessions {
		_ = s.write(d.seal(l, overSession)) // the others carry it too
	}
	for _, p := range d.peers {
		_, _ = d.udp.WriteToUDPAddrPort(d.seal(l, overUDP), p.address) // likewise
	}
}
