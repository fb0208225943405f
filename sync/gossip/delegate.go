package gossip

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// delegate is what memberlist calls, often under its own lock: everything is copied, and nothing blocks.
type delegate struct{ g *Gossip }

// Metadata on the wire: a version, the instance, what SetMeta got.
const (
	metaVersion = 1
	metaHead    = 1 + 8
)

// NodeMeta implements memberlist.Delegate.
func (d *delegate) NodeMeta(limit int) []byte {
	b := binary.BigEndian.AppendUint64([]byte{metaVersion}, d.g.instance)
	b = append(b, *d.g.meta.Load()...)
	return b[:min(len(b), limit)]
}

// parseMeta gives what SetMeta got on that host; nil for what is none of ours.
func parseMeta(b []byte) []byte {
	if len(b) < metaHead || b[0] != metaVersion {
		return nil
	}
	return append([]byte{}, b[metaHead:]...)
}

// NotifyMsg implements memberlist.Delegate: there are no such messages.
func (*delegate) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate.
func (*delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (*delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (*delegate) MergeRemoteState([]byte, bool) {}

// NotifyJoin implements memberlist.EventDelegate.
func (d *delegate) NotifyJoin(n *memberlist.Node) {
	m := memberOf(n)
	d.set(m)
	if m.Name == d.g.cfg.Host {
		return
	}
	d.g.cfg.Log.Info("a host joined", "host", m.Name, "address", m.Address.String())
	for _, peer := range []string{m.Address.String(), m.Address.Addr().String()} {
		d.g.conditions.clear(peer, Unreachable, JoinFailed, WrongKey, RetiredKey, BehindKey, OtherCluster)
	}
}

// NotifyUpdate implements memberlist.EventDelegate.
func (d *delegate) NotifyUpdate(n *memberlist.Node) { d.set(memberOf(n)) }

// NotifyLeave implements memberlist.EventDelegate.
func (d *delegate) NotifyLeave(n *memberlist.Node) {
	name, left := n.Name, n.State == memberlist.StateLeft
	d.g.mu.Lock()
	delete(d.g.members, name)
	d.g.mu.Unlock()
	poke(d.g.changed)
	if name != d.g.cfg.Host {
		d.g.cfg.Log.Info("a host is gone", "host", name, "left", left)
	}
}

func (d *delegate) set(m Member) {
	d.g.mu.Lock()
	d.g.members[m.Name] = m
	d.g.mu.Unlock()
	poke(d.g.changed)
}

func memberOf(n *memberlist.Node) Member {
	return Member{Name: n.Name, Address: addressOf(n), Meta: parseMeta(n.Meta)}
}

func addressOf(n *memberlist.Node) netip.AddrPort {
	ip, _ := netip.AddrFromSlice(n.Addr)
	return netip.AddrPortFrom(ip.Unmap(), n.Port)
}

// NotifyConflict implements memberlist.ConflictDelegate.
func (d *delegate) NotifyConflict(existing, other *memberlist.Node) {
	name, here, there := existing.Name, addressOf(existing), addressOf(other)
	if name == d.g.cfg.Host {
		d.g.suspectRival(there)
		return
	}
	d.g.conditions.note(NameClash, there.String(), "this host and the one at "+here.String()+" are both called "+name+": give each a name of its own; the one at "+here.String()+" keeps it")
}

// AckPayload implements memberlist.PingDelegate.
func (*delegate) AckPayload() []byte { return nil }

// NotifyPingComplete implements memberlist.PingDelegate: only answers by UDP come here.
func (d *delegate) NotifyPingComplete(n *memberlist.Node, _ time.Duration, _ []byte) {
	d.g.conditions.clear(n.Name, UDPBlocked)
}
