package vip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"headgate/cmd/config"
	"headgate/vip/arp"
	"headgate/vip/ndp"
	"headgate/vip/speaker"
)

// wire is the speaker's Wire: vip/arp and vip/ndp, one link for each interface and family, opened when first used,
// because an interface may come later than this process.
type wire struct {
	log       *slog.Logger
	conflicts chan speaker.Conflict
	closed    chan struct{}
	once      sync.Once
	readers   sync.WaitGroup

	mu      sync.Mutex // guards the rest
	links   map[place]link
	refused map[place]refusal
}

// place is an interface and a family.
type place struct {
	iface string
	ipv6  bool
}

// link is what arp.Link and ndp.Link have in common.
type link interface {
	Announce(vip netip.Addr) error
	Probe(ctx context.Context, vip netip.Addr) (net.HardwareAddr, bool, error)
	Watch(vips []netip.Addr)
	Close() error
}

// refusal is why a link could not be opened, so that a thousand addresses do not try a thousand times.
type refusal struct {
	err error
	at  time.Time
}

// reopen is the shortest time between two tries.
const reopen = 500 * time.Millisecond

func newWire(log *slog.Logger) *wire {
	return &wire{log: log, conflicts: make(chan speaker.Conflict), closed: make(chan struct{}), links: map[place]link{}, refused: map[place]refusal{}}
}

// prepare opens the links that will be needed, before there is any session with a peer: the kernel closes the files of a
// process that was killed from the newest to the oldest, and each packet socket takes it some 10 ms (packet_release
// waits for an RCU grace period). The sessions, whose end is how the others know, must not come after them. A link
// that cannot be opened now is opened when it is needed.
func (w *wire) prepare(vips []config.VIPGroup) {
	for _, g := range vips {
		for _, text := range g.Addresses {
			prefix, err := config.ParseVIP(text)
			if err != nil {
				continue // validated before
			}
			if _, err := w.open(place{g.Interface, prefix.Addr().Is6()}); err != nil {
				w.log.Debug("link not opened yet", "iface", g.Interface, "err", err)
			}
		}
	}
}

func placeOf(a speaker.Address) place { return place{a.Interface, a.IP.Is6()} }

func (w *wire) open(p place) (link, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.links[p]; l != nil {
		return l, nil
	}
	if r := w.refused[p]; r.err != nil && time.Since(r.at) < reopen {
		return nil, r.err
	}
	l, err := w.dial(p)
	if err != nil {
		w.refused[p] = refusal{err, time.Now()}
		return nil, err
	}
	delete(w.refused, p)
	w.links[p] = l
	return l, nil
}

func (w *wire) dial(p place) (link, error) {
	if p.ipv6 {
		l, err := ndp.Open(p.iface, w.log)
		if err != nil {
			return nil, fmt.Errorf("neighbor discovery on %s: %w", p.iface, err)
		}
		w.readers.Go(func() {
			w.pass(func() (speaker.Conflict, bool) {
				select {
				case c := <-l.Conflicts():
					return speaker.Conflict{IP: c.IP, HardwareAddr: c.HardwareAddr}, true
				case <-w.closed:
					return speaker.Conflict{}, false
				}
			})
		})
		return l, nil
	}
	l, err := arp.Open(p.iface, w.log)
	if err != nil {
		return nil, fmt.Errorf("ARP on %s: %w", p.iface, err)
	}
	w.readers.Go(func() {
		w.pass(func() (speaker.Conflict, bool) {
			select {
			case c := <-l.Conflicts():
				return speaker.Conflict{IP: c.IP, HardwareAddr: c.HardwareAddr}, true
			case <-w.closed:
				return speaker.Conflict{}, false
			}
		})
	})
	return l, nil
}

// pass hands conflicts to the speaker.
func (w *wire) pass(next func() (speaker.Conflict, bool)) {
	for {
		c, more := next()
		if !more {
			return
		}
		select {
		case w.conflicts <- c:
		case <-w.closed:
			return
		}
	}
}

// Announce implements speaker.Wire.
func (w *wire) Announce(a speaker.Address) error {
	l, err := w.open(placeOf(a))
	if err != nil {
		return err
	}
	return l.Announce(a.IP)
}

// Probe implements speaker.Wire.
func (w *wire) Probe(ctx context.Context, a speaker.Address) (net.HardwareAddr, bool, error) {
	l, err := w.open(placeOf(a))
	if err != nil {
		return nil, false, err
	}
	return l.Probe(ctx, a.IP)
}

// Watch implements speaker.Wire.
func (w *wire) Watch(addresses []speaker.Address) {
	at := map[place][]netip.Addr{}
	for _, a := range addresses {
		at[placeOf(a)] = append(at[placeOf(a)], a.IP)
	}
	for p := range at {
		if _, err := w.open(p); err != nil {
			w.log.Warn("nobody looks whether others announce the VIPs", "iface", p.iface, "err", err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for p, l := range w.links {
		l.Watch(at[p])
	}
}

// run ends handing out conflicts when ctx ends: the speaker has ended before.
func (w *wire) run(ctx context.Context) error {
	<-ctx.Done()
	w.stop()
	return nil
}

func (w *wire) stop() { w.once.Do(func() { close(w.closed) }) }

func (w *wire) close() error {
	w.stop()
	w.readers.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for p, l := range w.links {
		errs = append(errs, l.Close())
		delete(w.links, p)
	}
	return errors.Join(errs...)
}
