package vip

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/cmd/vip"
	"headgate/test/netns"
	"headgate/test/vip/lab"
	"headgate/vip/arp"
	"headgate/vip/ether"
	"headgate/vip/ndp"
)

// The newcomer that bears the owner's name must serve nothing, and say why.
func sameName(t *testing.T, proxy *lab.Proxy) {
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b"}, VIPs: lab.Web("nopreempt: true")})
	a, b := e.Hosts[0], e.Hosts[1]
	for _, h := range e.Hosts {
		h.StartProxy(t)
	}
	a.StartVIP(t)
	e.taken(t, a, "a start")
	pass(t, 1500*time.Millisecond) // of two that start within a second either may be taken for the older one
	e.mark(t)
	b.GossipName = a.Name
	b.StartVIP(t)
	netns.Eventually(t, lab.Patience, "the newcomer says that the name is taken", func() bool {
		s := b.Status(t)
		return !s.Ready && strings.Contains(strings.Join(s.Degraded, "\n"), a.Name)
	})
	pass(t, time.Second)
	e.shared(t, "two hosts have one name", 0, 0)
	b.StopVIP(t)
	b.GossipName = b.Name
	b.StartVIP(t)
	e.Settled(t)
}

// A host with another key hears nobody: it must find out on the wire that the VIP is taken, and its status names the key.
func wrongKey(t *testing.T, proxy *lab.Proxy) {
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b"}, VIPs: lab.Web("nopreempt: true")})
	a, b := e.Hosts[0], e.Hosts[1]
	for _, h := range e.Hosts {
		h.StartProxy(t)
	}
	a.StartVIP(t)
	e.taken(t, a, "a start")
	e.mark(t)
	right := b.Key
	b.Key = filepath.Join(b.Dir(), "other.key")
	e.WriteKey(t, b.Key)
	b.StartVIP(t)
	netns.Eventually(t, lab.Patience, "the host says that its key is another one", func() bool {
		return strings.Contains(strings.Join(b.Status(t).Degraded, "\n"), "key")
	})
	pass(t, time.Second)
	e.shared(t, "a host has another key", 0, 0)
	if s := b.Status(t); s.VIPs[0].Occupant != a.Namespace.HardwareAddr(t, lab.Interface).String() {
		t.Errorf("occupant %q", s.VIPs[0].Occupant)
	}
	b.StopVIP(t)
	b.Key = right
	b.StartVIP(t)
	e.Settled(t)
}

func portTaken(t *testing.T, proxy *lab.Proxy) {
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b"}, VIPs: lab.Web("")})
	a := e.Hosts[0]
	var taken net.Listener
	err := a.Namespace.Do(func() (err error) {
		taken, err = net.Listen("tcp", netip.AddrPortFrom(lab.Address4(a.Number), 7946).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	a.SpawnVIP(t)
	netns.Eventually(t, lab.Patience, "the process gives up", func() bool { return !a.Running() })
	if log := a.Log(); !strings.Contains(log, "7946") || !strings.Contains(log, "in use") {
		t.Errorf("it says:\n%s", log)
	}
	if len(e.kernel.Holders(lab.Web4())) > 0 {
		t.Error("it took the VIP")
	}
}

// attack is a machine that is none of ours.
type attack struct {
	namespace *netns.Namespace
	arp       *arp.Link
	ndp       *ndp.Link
}

const attacker = 66

func newAttack(t *testing.T, e *edge) *attack {
	t.Helper()
	a := &attack{namespace: e.Join(t, attacker)}
	log := slog.New(slog.DiscardHandler)
	err := a.namespace.Do(func() (err error) {
		if a.arp, err = arp.Open(lab.Interface, log); err != nil {
			return err
		}
		a.ndp, err = ndp.Open(lab.Interface, log)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(a.arp.Close(), a.ndp.Close()); err != nil {
			t.Error(err)
		}
	})
	return a
}

// A forged announcement is reported and answered, and moves nothing.
func forgedAnnouncements(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	owner := e.Settled(t)
	a := newAttack(t, e)
	mac := a.namespace.HardwareAddr(t, lab.Interface)
	e.mark(t)
	for range 5 {
		if err := errors.Join(a.arp.Announce(lab.Web4()), a.ndp.Announce(lab.Web6())); err != nil {
			t.Fatal(err)
		}
		e.known(t, owner)
	}
	netns.Eventually(t, lab.Patience, "the conflict is told with the address of the machine", func() bool {
		v := owner.Status(t).VIPs[0]
		return v.Conflicts > 0 && v.Rival == mac.String()
	})
	if !strings.Contains(owner.Log(), "another machine announces a VIP") {
		t.Error("the log does not tell")
	}
	e.shared(t, "announcements are forged", 0, 0)
	e.recovered(t, "announcements are forged")
}

// heartbeatType is the EtherType of the heartbeats on the link.
const heartbeatType = 0x88b5

// recorder keeps the heartbeats on the link that a machine hears.
type recorder struct {
	mu     sync.Mutex // guards frames
	frames [][]byte
}

func (r *recorder) run(s *ether.Socket) {
	b := make([]byte, 2048)
	for {
		n, err := s.Receive(b)
		if err != nil {
			return
		}
		r.mu.Lock()
		r.frames = append(r.frames, append([]byte(nil), b[:n]...))
		r.mu.Unlock()
	}
}

func (r *recorder) all() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.frames
}

// Recorded heartbeats of a host that has died must not bring it back, and invented ones must move nothing.
func forgedHeartbeats(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	owner := e.Settled(t)
	other := e.Other(owner)
	machine := e.Join(t, attacker)
	var socket *ether.Socket
	if err := machine.Do(func() (err error) {
		socket, err = ether.Open(lab.Interface, heartbeatType)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	tape := &recorder{}
	var reader sync.WaitGroup
	reader.Go(func() { tape.run(socket) })
	t.Cleanup(func() {
		_ = socket.Close()
		reader.Wait()
	})
	netns.Eventually(t, lab.Patience, "heartbeats are recorded", func() bool { return len(tape.all()) > 50 })
	e.mark(t)
	owner.KillBoth(t)
	e.taken(t, other, "the owner dies")
	frames := tape.all()
	for begun := time.Now(); time.Since(begun) < time.Second; pass(t, 5*time.Millisecond) {
		for i, f := range frames[:50] {
			forged := append([]byte(nil), f...)
			if i%2 == 1 { // another counter: no recording, and not sealed by anybody
				binary.BigEndian.PutUint32(forged[len(forged)/2:], uint32(i)) //nolint:gosec // small
			}
			if err := socket.Send(forged); err != nil && !errors.Is(err, unix.ENOBUFS) {
				t.Fatal(err)
			}
		}
		if p := other.Status(t).Peers[0]; p.Alive {
			t.Fatalf("recordings brought %s back: %+v", p.Host, p)
		}
	}
	e.shared(t, "heartbeats are replayed", lifetime+time.Second, 1)
	if len(other.Status(t).Strangers) == 0 {
		t.Error("no stranger is told: the forged frames were not seen")
	}
	owner.StartProxy(t)
	owner.StartVIP(t)
	e.Settled(t)
}

// A VIP that some machine has already is left to it, and the status names it. When it goes the VIP is taken.
func foreignMachine(t *testing.T, proxy *lab.Proxy) {
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b"}, VIPs: lab.Web("")})
	machine := e.Join(t, attacker)
	addresses := []netip.Prefix{netip.PrefixFrom(lab.Web4(), 32), netip.PrefixFrom(lab.Web6(), 128)}
	for _, a := range addresses {
		machine.AddAddress(t, lab.Interface, a)
	}
	e.mark(t)
	for _, h := range e.Hosts {
		h.StartProxy(t)
		h.StartVIP(t)
	}
	mac := machine.HardwareAddr(t, lab.Interface).String()
	netns.Eventually(t, lab.Patience, "a host says who has the VIP", func() bool {
		for _, h := range e.Hosts {
			if s := h.Status(t); s.VIPs[0].Occupant == mac && strings.Contains(strings.Join(s.Degraded, "\n"), mac) {
				return true
			}
		}
		return false
	})
	e.shared(t, "a foreign machine has the VIP", 0, 0)
	for _, a := range addresses {
		machine.RemoveAddress(t, lab.Interface, a)
	}
	e.Settled(t)
}

func addressDeleted(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	owner := e.Settled(t)
	e.mark(t)
	for _, a := range []netip.Prefix{netip.PrefixFrom(lab.Web4(), 32), netip.PrefixFrom(lab.Web6(), 128)} {
		owner.Namespace.RemoveAddress(t, lab.Interface, a)
	}
	netns.Eventually(t, lab.Patience, "they went and came back", func() bool {
		return len(e.kernel.Events(t, lab.Web4(), e.marked)) >= 2 && len(e.kernel.Events(t, lab.Web6(), e.marked)) >= 2
	})
	e.taken(t, owner, "somebody deleted the addresses")
	e.shared(t, "somebody deleted the addresses", 0, 1)
	e.recovered(t, "somebody deleted the addresses")
	if !strings.Contains(owner.Log(), "somebody else removed an address") {
		t.Error("the log does not tell")
	}
}

// networkd, when it configures an interface again, removes what it does not know and adds its own addresses anew.
func reconfigured(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	owner := e.Settled(t)
	n := owner.Namespace
	for range 3 {
		e.mark(t)
		for _, a := range n.Addresses(t, lab.Interface) {
			n.RemoveAddress(t, lab.Interface, a)
		}
		n.AddAddress(t, lab.Interface, netip.PrefixFrom(lab.Address4(owner.Number), 24))
		n.AddAddress(t, lab.Interface, netip.PrefixFrom(lab.Address6(owner.Number), 64))
		e.known(t, e.Settled(t))
		for _, s := range []lab.Shares{e.kernel.Shares(t, lab.Web4(), e.marked), e.kernel.Shares(t, lab.Web6(), e.marked)} {
			if s.Several > overlap {
				t.Errorf("%+v, want one owner", s)
			}
		}
		owner = e.Settled(t)
		n = owner.Namespace
	}
}

func interfaceMadeAnew(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	owner := e.Settled(t)
	other := e.Other(owner)
	e.mark(t)
	if err := owner.Namespace.Netlink().LinkDel(owner.Namespace.Link(t, lab.Interface)); err != nil {
		t.Fatal(err)
	}
	e.taken(t, other, "the interface is gone")
	e.recovered(t, "the interface is gone")
	e.LAN.Join(t, owner.Namespace, lab.Interface,
		netip.PrefixFrom(lab.Address4(owner.Number), 24), netip.PrefixFrom(lab.Address6(owner.Number), 64))
	e.Settled(t)
	other.Order(t, "move", vip.Order{VIP: "web", Host: owner.Name})
	e.taken(t, owner, "a move to the new interface")
	e.known(t, owner)
}

func interfaceRenamed(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	owner := e.Settled(t)
	other := e.Other(owner)
	e.mark(t)
	rename(t, owner.Namespace, lab.Interface, "other0")
	netns.Eventually(t, lab.Patience, "the other one has the VIP", func() bool { return e.has(other) })
	e.recovered(t, "the interface is renamed")
	e.taken(t, other, "the interface is renamed")
	rename(t, owner.Namespace, "other0", lab.Interface)
	e.Settled(t)
	e.known(t, e.Settled(t))
}

// rename needs an interface that is down; its addresses of IPv6 go with that.
func rename(t *testing.T, n *netns.Namespace, from, to string) {
	t.Helper()
	var own []netip.Prefix
	for _, a := range n.Addresses(t, from) {
		if a.Addr().Is6() && a.Bits() < 128 {
			own = append(own, a)
		}
	}
	n.Down(t, from)
	if err := n.Netlink().LinkSetName(n.Link(t, from), to); err != nil {
		t.Fatal(err)
	}
	n.Up(t, to)
	for _, a := range own {
		n.AddAddress(t, to, a)
	}
}

func smallMTU(t *testing.T, proxy *lab.Proxy) {
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b"}, VIPs: lab.Web("nopreempt: true")})
	for _, h := range e.Hosts {
		mtu(t, h.Namespace, 1280)
	}
	mtu(t, e.Client, 1280)
	e.Start(t)
	e.ask(t)
	owner := e.Settled(t)
	owner.StopVIP(t)
	e.taken(t, e.Other(owner), "a stop")
	e.unnoticed(t, "a stop with an MTU of 1280")
}

func mtu(t *testing.T, n *netns.Namespace, bytes int) {
	t.Helper()
	if err := n.Netlink().LinkSetMTU(n.Link(t, lab.Interface), bytes); err != nil {
		t.Fatal(err)
	}
}

// The hosts have no address of IPv4, and share VIPs of both families all the same.
func ipv6Only(t *testing.T, proxy *lab.Proxy) {
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b"}, VIPs: lab.Web("nopreempt: true"), NoIPv4: true})
	e.Start(t)
	owner := e.Settled(t)
	e.taken(t, owner, "a start")
	client := lab.NewClient(t, e.Client, lab.Web6(), 4*time.Millisecond)
	e.clients = []*lab.Client{client}
	e.served(t)
	e.mark(t)
	owner.KillBoth(t)
	e.taken(t, e.Other(owner), "everything is killed")
	e.recovered(t, "everything is killed")
}
