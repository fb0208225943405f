package lab

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// Kernel is told by the kernels of all hosts of each address that comes and goes, and keeps who had what when. So no
// moment is missed, however short.
type Kernel struct {
	mu      sync.Mutex // guards the rest
	events  []Event
	failure error
	holds   map[netip.Addr]map[string]bool
}

// Event is an address that came to a host's interface, or went.
type Event struct {
	At   time.Time
	Host string
	IP   netip.Addr
	On   bool
}

// Watch begins to listen to all hosts of a lab; it ends with the test.
func (l *Lab) Watch(t testing.TB) *Kernel {
	t.Helper()
	k := &Kernel{holds: map[netip.Addr]map[string]bool{}}
	for _, h := range l.Hosts {
		k.follow(t, h)
	}
	return k
}

// loopback is the index of lo in every namespace: a VIP there serves the connections of before a move and is announced
// to nobody.
const loopback = 1

// socketBytes holds the news of a thousand addresses that come at once.
const socketBytes = 4 << 20

func (k *Kernel) follow(t testing.TB, h *Host) {
	t.Helper()
	news := make(chan netlink.AddrUpdate)
	done := make(chan struct{})
	err := h.Namespace.Do(func() error {
		return netlink.AddrSubscribeWithOptions(news, done, netlink.AddrSubscribeOptions{
			ListExisting: true, ReceiveBufferSize: socketBytes,
			ErrorCallback: func(err error) { k.fail(err) },
		})
	})
	if err != nil {
		t.Fatalf("listen to the kernel of %s: %v", h.Name, err)
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		for u := range news {
			if ip, ok := netip.AddrFromSlice(u.LinkAddress.IP); ok && u.LinkIndex != loopback {
				k.note(Event{time.Now(), h.Name, ip.Unmap(), u.NewAddr})
			}
		}
	})
	t.Cleanup(func() {
		close(done)
		reader.Wait()
	})
}

func (k *Kernel) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failure = err
}

// note leaves out what is no news: a refresh of an address.
func (k *Kernel) note(e Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.holds[e.IP] == nil {
		k.holds[e.IP] = map[string]bool{}
	}
	if k.holds[e.IP][e.Host] == e.On {
		return
	}
	k.holds[e.IP][e.Host] = e.On
	k.events = append(k.events, e)
}

// Events gives what happened to an address from a moment on.
func (k *Kernel) Events(t testing.TB, ip netip.Addr, since time.Time) []Event {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failure != nil {
		t.Fatalf("the kernel's news are not complete: %v", k.failure)
	}
	var list []Event
	for _, e := range k.events {
		if e.IP == ip && !e.At.Before(since) {
			list = append(list, e)
		}
	}
	return list
}

// Holders are the hosts that have the address now.
func (k *Kernel) Holders(ip netip.Addr) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var list []string
	for host, on := range k.holds[ip] {
		if on {
			list = append(list, host)
		}
	}
	return list
}

// Shares tells how long an address was with nobody, and with more than one host, each the longest time in a row from
// a moment on.
type Shares struct {
	Nobody, Several time.Duration
	Changes         int // an address that came to a host
}

// Shares looks at one address from a moment until now.
func (k *Kernel) Shares(t testing.TB, ip netip.Addr, since time.Time) Shares {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failure != nil {
		t.Fatalf("the kernel's news are not complete: %v", k.failure)
	}
	var s Shares
	holders, last := 0, since
	span := func(till time.Time) {
		d := till.Sub(last)
		switch {
		case d <= 0:
		case holders == 0:
			s.Nobody = max(s.Nobody, d)
		case holders > 1:
			s.Several = max(s.Several, d)
		}
	}
	for _, e := range k.events {
		if e.IP != ip {
			continue
		}
		if !e.At.Before(since) {
			was := holders
			now := was - 1
			if e.On {
				s.Changes++
				now = was + 1
			}
			if class(was) != class(now) {
				span(e.At)
				last = e.At
			}
		}
		if e.On {
			holders++
		} else {
			holders--
		}
	}
	span(time.Now())
	return s
}

func class(holders int) int { return min(holders, 2) }
