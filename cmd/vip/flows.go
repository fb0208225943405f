package vip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"headgate/cmd/config"
	"headgate/vip/addr"
	"headgate/vip/flows"
	"headgate/vip/speaker"
)

// keeper gives connections that are open at a planned move a second chance (vip/flows): the new owner sends them on to
// the old one, before it announces; the old owner goes on answering them, from before its address goes. Where only the old
// owner's VIP process died its proxy lives: what is under way gets afterCrash to end.
type keeper struct {
	flows      *flows.Flows // nil: off
	keep       time.Duration
	log        *slog.Logger
	vips       map[string][]netip.Addr // by VIP
	all        []netip.Addr
	interfaces map[string]string // VIP → interface
	refused    map[bool]string   // by family, true for IPv6: why it cannot be done here
	later      chan crash        // what run does, beside the speaker

	mu    sync.Mutex     // guards moves, and is held while what came later is done
	moves map[string]int // by VIP: how many transitions there were
}

// crash is a second chance behind an owner that crashed. It is void once the VIP made another transition.
type crash struct {
	transition speaker.Transition
	old        []netip.Addr
	until      time.Time
	move       int
}

// crashes is how many may wait; behind them the speaker does it itself.
const crashes = 16

// afterCrash is how long connections go on at the host of a VIP process that died: the kernel keeps the address that long after
// the last refresh, and a cleanup sees to it that it does. Whether anybody answers them there is not known, so no longer.
const afterCrash = 2 * time.Second

// errNoAddress says that the old owner keeps no connections.
var errNoAddress = errors.New("the old owner told no address on a network of this host")

// newKeeper never fails: without a second chance a move is what it is elsewhere.
func newKeeper(c config.Config, stateFile string, log *slog.Logger) *keeper {
	k := &keeper{
		keep: time.Duration(c.VIP.KeepFlows), log: log, vips: map[string][]netip.Addr{}, interfaces: map[string]string{},
		refused: map[bool]string{}, later: make(chan crash, crashes), moves: map[string]int{},
	}
	for _, g := range c.VIP.All() {
		k.interfaces[g.Name] = g.Interface
		for _, text := range g.Addresses {
			if p, err := config.ParseVIP(text); err == nil { // validated before
				k.vips[g.Name] = append(k.vips[g.Name], p.Addr())
				k.all = append(k.all, p.Addr())
			}
		}
	}
	if k.keep == 0 || len(c.Gossip.Peers) == 0 {
		return k
	}
	f, err := flows.New(flows.Config{StateFile: stateFile, Interfaces: c.VIP.Interfaces(), Log: log})
	if err != nil {
		log.Warn("connections are cut by planned moves", "err", err)
		k.refused[false], k.refused[true] = err.Error(), err.Error()
		return k
	}
	k.flows = f
	k.try()
	return k
}

// try asks the kernel once for each family.
func (k *keeper) try() {
	for _, ipv6 := range []bool{false, true} {
		at := slices.IndexFunc(k.all, func(a netip.Addr) bool { return a.Is6() == ipv6 })
		if at < 0 {
			continue
		}
		if err := k.flows.Available(k.all[at]); err != nil {
			k.refused[ipv6] = err.Error()
			k.log.Warn("connections are cut by planned moves to this host", "ipv6", ipv6, "err", err)
		}
	}
}

// own are the addresses at which other hosts on the VIPs' networks reach this one.
func (k *keeper) own() []netip.Addr {
	if k.flows == nil {
		return nil
	}
	var list []netip.Addr
	for _, name := range distinct(k.interfaces) {
		v4, v6, err := k.flows.Own(name, k.all)
		if err != nil {
			continue // it is not there; its VIPs are not here either
		}
		for _, a := range []netip.Addr{v4, v6} {
			if a.IsValid() {
				list = append(list, a.WithZone(""))
			}
		}
	}
	return list
}

func distinct(names map[string]string) []string {
	var list []string
	for _, name := range names {
		list = append(list, name)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// tell follows a transition, in the speaker's goroutine: the kernel must be ready before the addresses are announced, or
// before they go. at gives the addresses of the other host.
func (k *keeper) tell(t speaker.Transition, at func(host string) []netip.Addr) {
	now, move := time.Now(), k.moved(t.VIP)
	switch {
	case k.flows == nil:
	case t.Reason == speaker.HandedOver && t.From == speaker.Active:
		if err := k.flows.Keep(k.vips[t.VIP], now.Add(k.keep)); err != nil {
			k.log.Warn("open connections may not survive the move", "vip", t.VIP, "err", err)
		}
	case t.Reason == speaker.HandedOver:
		k.expire(t.VIP)
		k.forward(t, at(string(t.Peer)), now.Add(k.keep))
	case t.Reason == speaker.OwnerCrashed: // clients may wait: what is older ends at its own deadline
		k.followCrashed(crash{transition: t, old: at(string(t.Peer)), until: now.Add(min(k.keep, afterCrash)), move: move})
	}
}

func (k *keeper) moved(vip string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.moves[vip]++
	return k.moves[vip]
}

// followCrashed takes half a millisecond a family, but 15 where what an earlier crash left must be written anew: clients that open
// connections do not wait for that.
func (k *keeper) followCrashed(c crash) {
	if k.forwards(k.vips[c.transition.VIP]) {
		select {
		case k.later <- c:
			return
		default:
		}
	}
	k.forward(c.transition, c.old, c.until)
}

func (k *keeper) forwards(vips []netip.Addr) bool {
	return slices.ContainsFunc(k.flows.Status(), func(f flows.Flow) bool { return f.Role == flows.Forwarding && slices.Contains(vips, f.VIP) })
}

// expire ends an older second chance.
func (k *keeper) expire(vip string) {
	vips := k.vips[vip]
	if !k.touches(vips) {
		return
	}
	if err := k.flows.Expire(vips); err != nil {
		k.log.Warn("an older second chance could not be ended", "vip", vip, "err", err)
	}
}

func (k *keeper) forward(t speaker.Transition, old []netip.Addr, until time.Time) {
	vips := k.vips[t.VIP]
	for _, ipv6 := range []bool{false, true} {
		mine := slices.DeleteFunc(slices.Clone(vips), func(a netip.Addr) bool { return a.Is6() != ipv6 })
		if len(mine) == 0 || k.refused[ipv6] != "" {
			continue
		}
		if err := k.forwardTo(mine, old, k.interfaces[t.VIP], until); err != nil {
			k.log.Warn("open connections do not survive the move", "vip", t.VIP, "from", t.Peer, "err", err)
		}
	}
}

// forwardTo tries the addresses of the old owner until one is on a network of this host.
func (k *keeper) forwardTo(vips, old []netip.Addr, iface string, until time.Time) error {
	err := errNoAddress
	for _, a := range old {
		if a.Is6() != vips[0].Is6() {
			continue
		}
		if a.IsLinkLocalUnicast() && a.Is6() {
			a = a.WithZone(iface)
		}
		if err = k.flows.Forward(vips, a, until); err == nil {
			return nil
		}
	}
	return err
}

// touches tells that there is an older second chance of one of the VIPs.
func (k *keeper) touches(vips []netip.Addr) bool {
	return slices.ContainsFunc(k.flows.Status(), func(f flows.Flow) bool { return slices.Contains(vips, f.VIP) })
}

func (k *keeper) run(ctx context.Context) error {
	if k.flows == nil {
		<-ctx.Done()
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return k.flows.Run(ctx) })
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case c := <-k.later:
				k.catchUp(c)
			}
		}
	})
	return g.Wait()
}

// catchUp does what the speaker did not wait for, unless it is void by now.
func (k *keeper) catchUp(c crash) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.move == k.moves[c.transition.VIP] {
		k.forward(c.transition, c.old, c.until)
	}
}

// close leaves the second chances: they end at their deadlines.
func (k *keeper) close() {
	if k.flows != nil {
		k.flows.Close()
	}
}

// status lists the second chances that go on.
func (k *keeper) status() []Flow {
	list := []Flow{}
	if k.flows == nil {
		return list
	}
	for _, f := range k.flows.Status() {
		flow := Flow{VIP: f.VIP.String(), Role: f.Role.String(), Until: f.Until}
		if f.To.IsValid() {
			flow.To = f.To.String()
		}
		list = append(list, flow)
	}
	return list
}

// keepCrashed lets the proxy of this host, whose VIP process died, answer what is under way for a moment, and says what came of
// it. It must be done before the addresses go.
func keepCrashed(c config.Config, log *slog.Logger) error {
	p := PathsOf(c)
	if c.VIP.KeepFlows == 0 || len(c.Gossip.Peers) == 0 {
		return nil
	}
	set, err := addr.New(addr.Config{StateFile: p.Addresses, Log: log})
	if err != nil {
		return fmt.Errorf("addresses: %w", err)
	}
	defer set.Close()
	held, err := set.Held()
	if err != nil || len(held) == 0 {
		return err //nolint:wrapcheck // it says what it was about
	}
	f, err := flows.New(flows.Config{StateFile: p.Flows, Interfaces: c.VIP.Interfaces(), Log: log})
	if err != nil {
		return fmt.Errorf("connections: %w", err)
	}
	defer f.Close()
	var vips []netip.Addr
	for _, a := range held {
		vips = append(vips, a.IP)
	}
	return f.Keep(vips, time.Now().Add(min(time.Duration(c.VIP.KeepFlows), afterCrash))) //nolint:wrapcheck // likewise
}
