// Package rivals is the book of who says on the wire that an address is his: it turns claims that vip/arp and
// vip/ndp heard into conflicts and into answers of a probe. It reads no socket and decides nothing.
package rivals

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Conflict is the claim of somebody else on a watched address.
type Conflict struct {
	IP           netip.Addr
	HardwareAddr net.HardwareAddr // the claimant's
	At           time.Time        // of the newest claim
}

// Book keeps claims. Its methods may be called from any goroutine; none waits for a reader of the conflicts.
type Book struct {
	conflicts chan Conflict // capacity 0: what waits is in pending, the newest of each address
	wake      chan struct{} // capacity 1: one token is enough to look again
	closed    chan struct{}
	ended     chan struct{}
	closing   sync.Once

	mu      sync.Mutex // guards what follows
	watched map[netip.Addr]bool
	pending []Conflict // at most one an address, in the order of their first claims
	probes  map[netip.Addr][]chan net.HardwareAddr
}

// Open makes a book that watches nothing and starts the goroutine that hands conflicts out. The caller closes it.
func Open() *Book {
	b := &Book{
		conflicts: make(chan Conflict), wake: make(chan struct{}, 1), closed: make(chan struct{}), ended: make(chan struct{}),
		watched: map[netip.Addr]bool{}, probes: map[netip.Addr][]chan net.HardwareAddr{},
	}
	go b.handOut()
	return b
}

// Close ends the goroutine and returns when it has ended. The channel of the conflicts stays open. Closing
// twice does no harm.
func (b *Book) Close() {
	b.closing.Do(func() { close(b.closed) })
	<-b.ended
}

// Watch sets the addresses whose claims are conflicts. It replaces those of before, and forgets conflicts of
// addresses that are no longer among them.
func (b *Book) Watch(ips []netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.watched)
	for _, ip := range ips {
		b.watched[ip.Unmap()] = true
	}
	b.pending = slices.DeleteFunc(b.pending, func(c Conflict) bool { return !b.watched[c.IP] })
	b.lookAgain()
}

// Cares says whether a claim on the address would go anywhere, so that a reader need not look closer.
func (b *Book) Cares(ip netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.watched[ip] || len(b.probes[ip]) > 0
}

// Claim notes that the hardware address, which is not our own, said that the IP is its.
func (b *Book) Claim(ip netip.Addr, by net.HardwareAddr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	by = slices.Clone(by)
	for _, answer := range b.probes[ip] {
		select {
		case answer <- by:
		default: // the first answer counts
		}
	}
	if !b.watched[ip] {
		return
	}
	c := Conflict{IP: ip, HardwareAddr: by, At: time.Now()}
	if i := slices.IndexFunc(b.pending, func(p Conflict) bool { return p.IP == ip }); i >= 0 {
		b.pending[i] = c
	} else {
		b.pending = append(b.pending, c)
	}
	b.lookAgain()
}

// lookAgain takes a conflict back that was offered and is no longer the newest.
func (b *Book) lookAgain() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Probe gives a channel that gets the first claimant of the address from now on, until stop is called.
func (b *Book) Probe(ip netip.Addr) (answer <-chan net.HardwareAddr, stop func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	mine := make(chan net.HardwareAddr, 1) // capacity 1: the first answer waits for the one who asked
	b.probes[ip] = append(b.probes[ip], mine)
	return mine, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.probes[ip] = slices.DeleteFunc(b.probes[ip], func(c chan net.HardwareAddr) bool { return c == mine })
		if len(b.probes[ip]) == 0 {
			delete(b.probes, ip)
		}
	}
}

// Conflicts gives the newest claim of each watched address. Nobody need read it.
func (b *Book) Conflicts() <-chan Conflict { return b.conflicts }

func (b *Book) handOut() {
	defer close(b.ended)
	for {
		next, ok := b.first()
		if !ok {
			select {
			case <-b.wake:
			case <-b.closed:
				return
			}
			continue
		}
		select {
		case b.conflicts <- next:
			b.handedOut(next)
		case <-b.wake: // perhaps a newer claim, or it is no longer watched
		case <-b.closed:
			return
		}
	}
}

func (b *Book) first() (Conflict, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pending) == 0 {
		return Conflict{}, false
	}
	return b.pending[0], true
}

// handedOut forgets the conflict, unless a newer claim took its place meanwhile.
func (b *Book) handedOut(c Conflict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = slices.DeleteFunc(b.pending, func(p Conflict) bool { return p.IP == c.IP && p.At.Equal(c.At) })
}
