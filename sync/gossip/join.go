package gossip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// keepJoining tries the peers that are no members, at once and then for ever: memberlist never tries a dead one again.
func (g *Gossip) keepJoining(ctx context.Context) {
	for first := true; ; first = false {
		for _, at := range g.missing(ctx) {
			g.join(ctx, at)
		}
		g.conditions.expire()
		if ctx.Err() != nil {
			return
		}
		if first {
			close(g.joined)
		}
		if !pause(ctx, g.cfg.JoinInterval) {
			return
		}
	}
}

// missing resolves the peers and leaves out the members and this host.
func (g *Gossip) missing(ctx context.Context) []netip.AddrPort {
	seen := map[netip.AddrPort]bool{g.address: true}
	for _, m := range g.Members() {
		seen[m.Address] = true
	}
	var list []netip.AddrPort
	for _, p := range g.cfg.Peers {
		for _, at := range g.resolve(ctx, p) {
			if !seen[at] {
				seen[at] = true
				list = append(list, at)
			}
		}
	}
	return list
}

// resolve gives the addresses of a peer; none where the name cannot be looked up, which is told.
func (g *Gossip) resolve(ctx context.Context, peer string) []netip.AddrPort {
	host, port, err := splitPeer(peer, g.address.Port())
	if err != nil {
		return nil // checked at the start
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(ip, port)}
	}
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	ips, err := g.cfg.Lookup(ctx, host)
	if err == nil && len(ips) == 0 {
		err = errors.New("the name has no address")
	}
	if err != nil {
		g.conditions.note(Unresolved, peer, "look up the peer: "+err.Error())
		return nil
	}
	g.conditions.clear(peer, Unresolved)
	list := make([]netip.AddrPort, 0, len(ips))
	for _, ip := range ips {
		list = append(list, netip.AddrPortFrom(ip.Unmap(), port))
	}
	return list
}

// join says hello first: it tells why a join cannot work, and brings the key in use after an absence.
func (g *Gossip) join(ctx context.Context, at netip.AddrPort) {
	peer := at.String()
	who, a, err := g.exchange(ctx, peer, request{Op: opHello})
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && unreachable(err):
		g.conditions.note(Unreachable, peer, "no connection to the peer: "+rootOf(err).Error())
		return
	case err != nil:
		g.conditions.note(JoinFailed, peer, "the peer does not speak as a headgate does: "+err.Error())
		return
	}
	g.conditions.clear(peer, Unreachable)
	if !g.heed(peer, who, a) {
		return
	}
	if who.Host == g.cfg.Host {
		if a.Instance != g.instance {
			g.rival(rivalSeen{address: peer, instance: a.Instance, age: time.Duration(a.AgeMs) * time.Millisecond, refused: a.Refused})
		}
		return // ourselves, or one that we cannot join
	}
	if _, err := g.list.Join([]string{net.JoinHostPort(at.Addr().String(), strconv.Itoa(int(at.Port())))}); err != nil {
		g.conditions.note(JoinFailed, peer, "join: "+err.Error())
		return
	}
	g.conditions.clear(peer, JoinFailed)
}

func unreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// rootOf leaves out what stands in the condition already.
func rootOf(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// heed tells what the peer's verdict means for us, fetches keys, and says whether to go on.
func (g *Gossip) heed(peer string, who greeting, a answer) bool {
	ours := g.ring.Load()
	switch who.Verdict {
	case welcome:
		g.conditions.clear(peer, WrongKey, RetiredKey, BehindKey, OtherCluster)
		if a.Error != "" {
			g.conditions.note(JoinFailed, peer, a.Error)
			return false
		}
		if err := g.catchUp(a); err != nil {
			g.conditions.note(JoinFailed, peer, "take over the keys of the peer: "+err.Error())
			return false
		}
		return true
	case otherCluster:
		g.conditions.note(OtherCluster, peer, fmt.Sprintf("host %q says that its cluster is %q, and ours is %q: write the same gossip.cluster, or take it out of the peers", who.Host, who.Cluster, g.cfg.Cluster))
	case retiredKeyed:
		g.conditions.note(RetiredKey, peer, fmt.Sprintf("host %q says that our key %s was retired at %s, while this host was away: copy its keyring here, as the secret file", who.Host, ours.Secrets[0].ID(), who.Retired))
	case unknownKey:
		if _, accepted := ours.byID(who.KeyID); accepted {
			g.conditions.note(BehindKey, peer, fmt.Sprintf("host %q was away during the rotation and still uses the key %s: it fetches the new one when it reaches this host", who.Host, who.KeyID))
			return false
		}
		if at, retired := ours.retiredAt(who.KeyID); retired {
			g.conditions.note(RetiredKey, peer, fmt.Sprintf("host %q still has the key %s, which was retired at %s: copy our keyring to it, as its secret file", who.Host, who.KeyID, at.UTC().Format(time.RFC3339)))
			return false
		}
		g.conditions.note(WrongKey, peer, fmt.Sprintf("host %q says that its key is %s, and ours is %s: give all hosts the same secret", who.Host, who.KeyID, ours.Secrets[0].ID()))
	default:
		g.conditions.note(JoinFailed, peer, fmt.Sprintf("host %q gives no verdict that this version knows", who.Host))
	}
	return false
}

func pause(ctx context.Context, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
