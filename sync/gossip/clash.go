package gossip

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// Two hosts of one name: the younger process refuses to serve, the older goes on. memberlist alone would let both
// believe that they are members.

const (
	// clashTies is within which difference of age the instance decides: ages are read at either end of an exchange.
	clashTies = time.Second
	// clashYoung is until which age a host that sees its name taken refuses before it has asked the other one.
	clashYoung = 30 * time.Second
	// clashTries is how many unanswered questions in a row mean that the other one is gone.
	clashTries = 3
)

// clash is what is known of another process of our name.
type clash struct {
	address string // where it was seen; "": nowhere
	asked   int    // unanswered questions
	refused bool   // we lost, or may lose
	message string
}

// rivalSeen is another process of our name, as it says.
type rivalSeen struct {
	address  string
	instance uint64
	age      time.Duration
	refused  bool
}

// Clash says why this host must not serve: an older process bears its name. "" while none is known.
func (g *Gossip) Clash() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.clash.refused {
		return ""
	}
	return g.clash.message
}

func (g *Gossip) refused() bool { return g.Clash() != "" }

// suspectRival takes that memberlist heard of our name at another address: an earlier address of ours, or a rival. It
// does not block.
func (g *Gossip) suspectRival(at netip.AddrPort) {
	g.mu.Lock()
	if g.clash.address == "" {
		g.clash.address = at.String()
		if g.age() < clashYoung {
			g.clash.refused = true
			g.clash.message = fmt.Sprintf("the host at %s bears the name %s already, or did until now: asking it", at, g.cfg.Host)
		}
	}
	g.mu.Unlock()
	poke(g.rivals)
	poke(g.changed)
}

// rival judges another process of our name that has proven to have the secret.
func (g *Gossip) rival(r rivalSeen) {
	ours := rivalSeen{instance: g.instance, age: g.age(), refused: g.refused()}
	message := fmt.Sprintf("the host at %s bears the name %s, too, and is older: this host does not serve; give it a name of its own", r.address, g.cfg.Host)
	lost := loses(ours, r)
	if !lost {
		message = fmt.Sprintf("the host at %s bears the name of this one, %s, and is younger: it does not serve; give it a name of its own", r.address, g.cfg.Host)
	}
	g.mu.Lock()
	if g.clash.address == "" {
		g.clash.address = r.address
	}
	g.clash.asked, g.clash.refused, g.clash.message = 0, lost, message
	g.mu.Unlock()
	g.conditions.note(NameClash, r.address, message)
	poke(g.rivals)
	poke(g.changed)
}

// loses is the same question on both sides, with opposite answers. One that has refused stays so while the other serves;
// that also ends a tie that was judged differently by the two.
func loses(ours, theirs rivalSeen) bool {
	if ours.refused != theirs.refused {
		return ours.refused
	}
	if d := ours.age - theirs.age; d > clashTies || d < -clashTies {
		return d < 0
	}
	return ours.instance < theirs.instance
}

// watchRivals asks a rival again and again, until it is gone or has another name.
func (g *Gossip) watchRivals(ctx context.Context) {
	for {
		g.mu.Lock()
		at := g.clash.address
		g.mu.Unlock()
		if at == "" {
			select {
			case <-ctx.Done():
				return
			case <-g.rivals:
				continue
			}
		}
		g.askRival(ctx, at)
		if !pause(ctx, g.cfg.JoinInterval) {
			return
		}
	}
}

func (g *Gossip) askRival(ctx context.Context, at string) {
	who, a, err := g.exchange(ctx, at, request{Op: opHello})
	switch {
	case ctx.Err() != nil:
	case err == nil && who.Verdict == welcome && who.Host == g.cfg.Host && a.Instance != g.instance:
		g.rival(rivalSeen{address: at, instance: a.Instance, age: time.Duration(a.AgeMs) * time.Millisecond, refused: a.Refused})
	case err == nil && who.Host != g.cfg.Host || err == nil && a.Instance == g.instance:
		g.forgetRival(at)
	default:
		g.mu.Lock()
		g.clash.asked++
		gone := g.clash.asked >= clashTries
		g.mu.Unlock()
		if gone {
			g.forgetRival(at)
		}
	}
}

func (g *Gossip) forgetRival(at string) {
	g.mu.Lock()
	g.clash = clash{}
	g.mu.Unlock()
	g.conditions.clear(at, NameClash)
	poke(g.changed)
}
