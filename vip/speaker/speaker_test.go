package speaker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"headgate/vip/election"
)

// pair is two hosts whose speakers run as they do in production, with channels for a network.
type runner struct {
	*Speaker
	name       election.Host
	events     chan PeerEvent
	health     chan Health
	peer       *runner
	cancel     context.CancelFunc
	ended      chan error
	transition []Transition

	mu   sync.Mutex // guards held
	held []Address
}

func (r *runner) Publish(state []byte) {
	go func() {
		select {
		case r.peer.events <- PeerEvent{Host: r.name, Kind: PeerHeard, State: state}:
		case <-r.peer.Speaker.ended:
		}
	}()
}

func (r *runner) Apply(desired []Address, _ time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = desired
	return nil
}

func (r *runner) Held() ([]Address, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held, nil
}

func (r *runner) Link(string) (Link, error) {
	return Link{Up: true, HardwareAddr: net.HardwareAddr("12345" + r.name[len(r.name)-1:])}, nil
}
func (r *runner) Announce(Address) error { return nil }
func (r *runner) Watch([]Address)        {}

func (r *runner) Probe(ctx context.Context, _ Address) (net.HardwareAddr, bool, error) {
	if held, _ := r.peer.Held(); len(held) > 0 {
		return net.HardwareAddr("12345" + r.peer.name[len(r.peer.name)-1:]), true, nil
	}
	select {
	case <-time.After(40 * time.Millisecond):
		return nil, false, nil
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

func pairOfRunners(t *testing.T) (*runner, *runner) {
	t.Helper()
	a, b := &runner{name: "edge1"}, &runner{name: "edge2"}
	a.peer, b.peer = b, a
	for _, r := range []*runner{a, b} {
		r.events, r.health, r.ended = make(chan PeerEvent), make(chan Health), make(chan error, 1)
		var err error
		r.Speaker, err = New(Config{
			Host: r.name, VIPs: []VIP{vip("192.0.2.10")}, Peers: 1, Kernel: r, Wire: r, Publisher: r,
			Log: slog.New(slog.DiscardHandler), PeerEvents: r.events, Health: r.health,
			Observe: func(tr Transition) { r.transition = append(r.transition, tr) },
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []*runner{a, b} {
		ctx, cancel := context.WithCancel(t.Context())
		r.cancel = cancel
		go func() { r.ended <- r.Run(ctx) }()
		r.health <- Health{Ready: true}
	}
	return a, b
}

func (r *runner) owns() bool { return r.Status().VIPs[0].State == Active }

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pairOfRunners(t)
		time.Sleep(45 * time.Millisecond) // of the bubble: 40 ms of probing and nothing else
		if a.owns() == b.owns() {
			t.Fatalf("owners: %t and %t", a.owns(), b.owns())
		}
		owner, other := a, b
		if b.owns() {
			owner, other = b, a
		}
		if err := owner.Move(t.Context(), "192.0.2.10", other.name); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // of the bubble
		if owner.owns() || !other.owns() || !other.Status().VIPs[0].Manual {
			t.Errorf("not moved: %+v", other.Status().VIPs[0])
		}
		if err := owner.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		other.cancel() // the only one that is not draining stops
		if err := <-other.ended; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if held, _ := other.Held(); len(held) != 0 || !owner.owns() {
			t.Errorf("after the stop the stopped one holds %v, the other owns: %t", held, owner.owns())
		}
		if err := other.Drain(t.Context()); !errors.Is(err, errEnded) {
			t.Errorf("a command after the end: %v", err)
		}
		if err := owner.Undrain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := owner.Release(t.Context(), "192.0.2.10"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if owner.owns() {
			t.Error("owned after its release")
		}
		owner.cancel()
		if err := <-owner.ended; err != nil {
			t.Fatal(err)
		}
		var reasons []string
		for _, tr := range owner.transition {
			reasons = append(reasons, string(tr.Reason))
		}
		if got, want := strings.Join(reasons, " "), "started vacant handed-over handed-over released"; got != want {
			t.Errorf("reasons %q, want %q", got, want)
		}
	})
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	r := &runner{name: "edge1"}
	good := Config{Host: "edge1", Kernel: r, Wire: r, Publisher: r, Log: slog.New(slog.DiscardHandler)}
	for want, change := range map[string]func(c *Config){
		"a speaker needs a host, a kernel":                                        func(c *Config) { c.Host = "" },
		"65 VIPs are too many, at most 64 are elected one by one":                 func(c *Config) { c.VIPs = make([]VIP, 65) },
		`VIP "a" has no address`:                                                  func(c *Config) { c.VIPs = []VIP{{Name: "a"}} },
		`VIP "192.0.2.1" cannot be told from "192.0.2.1": name it otherwise`:      func(c *Config) { c.VIPs = []VIP{vip("192.0.2.1"), vip("192.0.2.1")} },
		`VIP "192.0.2.1" and VIP "b" have the address 192.0.2.1: leave it in one`: func(c *Config) { c.VIPs = []VIP{vip("192.0.2.1"), vip("192.0.2.1", func(v *VIP) { v.Name = "b" })} },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
