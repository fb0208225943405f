package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Outcome is what a step of a rotation did on one host.
type Outcome struct {
	// Host is a name, or the address of a peer that is no member.
	Host string `json:"host"`
	// OK: the host has the new key.
	OK bool `json:"ok"`
	// Message says what it did, or what to do.
	Message string `json:"message"`
}

// Rotation is the result of RotateKey or FinishRotation.
type Rotation struct {
	// Old and New are the IDs of the keys.
	Old string `json:"old"`
	New string `json:"new"`
	// Used: the new key is in use.
	Used bool `json:"used"`
	// Finished: the old key is accepted no more.
	Finished bool `json:"finished"`
	// Hosts tells of each host, this one first.
	Hosts []Outcome `json:"hosts"`
}

// ErrRotation is the sentinel of a rotation that was refused or taken back; the message says why. Nothing changed then.
var ErrRotation = errors.New("the key was not rotated")

// RotateKey draws a new secret and brings it to all members without a gap: first all accept it, then all use it, then,
// if no configured peer is away, the old one is accepted no more. A host that is away fetches the new key when it
// comes back, as long as the old one is accepted; FinishRotation ends that. If a member cannot accept the new key, nothing
// changes (ErrRotation, with the outcomes).
//
// The new secret travels under the present one. If that is known to somebody else, write a new secret file on all hosts
// instead.
func (g *Gossip) RotateKey(ctx context.Context) (Rotation, error) {
	if !g.rotating.TryLock() {
		return Rotation{}, fmt.Errorf("%w: another rotation is under way", ErrRotation)
	}
	defer g.rotating.Unlock()
	ring := *g.ring.Load()
	old, fresh := ring.Secrets[0], NewSecret()
	r := Rotation{Old: old.ID(), New: fresh.ID()}
	if err := g.mayRotate(ring); err != nil {
		return r, err
	}
	if err := g.change(func(k keyring) (keyring, error) { return accept(k, fresh) }); err != nil {
		return r, fmt.Errorf("%w: %w", ErrRotation, err)
	}
	added, failed := g.onMembers(ctx, request{Op: opAdd, Secret: fresh.Reveal()})
	if failed {
		g.onMembers(ctx, request{Op: opForget, ID: fresh.ID()})
		err := g.change(func(k keyring) (keyring, error) { return forget(k, fresh.ID()) })
		r.Hosts = added
		return r, errors.Join(fmt.Errorf("%w: a member could not take the new key, so it was taken back everywhere", ErrRotation), err)
	}
	if err := g.change(func(k keyring) (keyring, error) { return use(k, fresh.ID(), time.Now()) }); err != nil {
		return r, fmt.Errorf("%w: %w", ErrRotation, err)
	}
	r.Used = true
	outcomes, failed := g.onMembers(ctx, request{Op: opUse, ID: fresh.ID()})
	r.Hosts = append([]Outcome{{Host: g.cfg.Host, OK: true, Message: "uses the new key"}}, outcomes...)
	away := g.away(ctx)
	r.Hosts = append(r.Hosts, away...)
	if failed || len(away) > 0 {
		return r, nil
	}
	return g.retireOld(ctx, r)
}

func (g *Gossip) mayRotate(ring keyring) error {
	switch {
	case g.cfg.Keyring == "":
		return fmt.Errorf("%w: no keyring file is configured, so a restart would bring the old key back", ErrRotation)
	case g.refused():
		return fmt.Errorf("%w: %s", ErrRotation, g.Clash())
	case len(ring.Secrets) > 1:
		return fmt.Errorf("%w: the rotation before is not finished (%d keys are accepted): finish it first", ErrRotation, len(ring.Secrets))
	}
	return nil
}

// FinishRotation ends an unfinished rotation: no host accepts another key than the one in use. Members that do not use
// it are an error (ErrRotation), and nothing changes. Hosts that are away are named: they need the secret by hand.
func (g *Gossip) FinishRotation(ctx context.Context) (Rotation, error) {
	if !g.rotating.TryLock() {
		return Rotation{}, fmt.Errorf("%w: another rotation is under way", ErrRotation)
	}
	defer g.rotating.Unlock()
	ring := g.ring.Load()
	r := Rotation{New: ring.Secrets[0].ID(), Used: true}
	if len(ring.Secrets) > 1 {
		r.Old = ring.Secrets[1].ID()
	}
	used, failed := g.onMembers(ctx, request{Op: opUse, ID: r.New})
	if failed {
		r.Hosts = used
		return r, fmt.Errorf("%w: a member does not use the key %s", ErrRotation, r.New)
	}
	r, err := g.retireOld(ctx, r)
	for _, o := range g.away(ctx) {
		o.Message = "away: it is refused until it gets the keyring of a host as its secret file, unless it had the new key already"
		r.Hosts = append(r.Hosts, o)
	}
	return r, err
}

func (g *Gossip) retireOld(ctx context.Context, r Rotation) (Rotation, error) {
	outcomes, failed := g.onMembers(ctx, request{Op: opRetire, ID: r.New})
	own := Outcome{Host: g.cfg.Host, OK: true, Message: "accepts the new key alone"}
	if err := g.change(func(k keyring) (keyring, error) { return retire(k, r.New, time.Now()) }); err != nil {
		own, failed = Outcome{Host: g.cfg.Host, Message: err.Error()}, true
	}
	r.Hosts = append([]Outcome{own}, outcomes...)
	r.Finished = !failed
	return r, nil
}

// onMembers asks each member but this host, one after the other, and says whether one failed.
func (g *Gossip) onMembers(ctx context.Context, r request) ([]Outcome, bool) {
	var list []Outcome
	failed := false
	for _, m := range g.Members() {
		if m.Name == g.cfg.Host {
			continue
		}
		o := g.onMember(ctx, m, r)
		failed = failed || !o.OK
		list = append(list, o)
	}
	return list, failed
}

func (g *Gossip) onMember(ctx context.Context, m Member, r request) Outcome {
	who, a, err := g.exchange(ctx, m.Address.String(), r)
	o := Outcome{Host: m.Name}
	switch {
	case err != nil:
		o.Message = fmt.Sprintf("%s: %v", r.Op, err)
	case who.Verdict != welcome:
		o.Message = fmt.Sprintf("%s: refused (%s)", r.Op, who.Verdict)
	case who.Host != m.Name:
		o.Message = fmt.Sprintf("%s: host %q answers at %s", r.Op, who.Host, m.Address)
	case a.Error != "":
		o.Message = fmt.Sprintf("%s: %s", r.Op, a.Error)
	default:
		o.OK, o.Message = true, done(r.Op)
	}
	return o
}

func done(op operation) string {
	switch op {
	case opAdd:
		return "accepts the new key"
	case opUse:
		return "uses the new key"
	case opRetire:
		return "accepts the new key alone"
	case opForget:
		return "has forgotten the new key"
	case opHello:
	}
	return "answered"
}

// away tells of the configured peers that are no members.
func (g *Gossip) away(ctx context.Context) []Outcome {
	var list []Outcome
	for _, at := range g.missing(ctx) {
		list = append(list, Outcome{Host: at.String(), Message: "away: it fetches the new key when it comes back, until 'headgate gossip rotate-key --finish'"})
	}
	return list
}

// perform does on this host what another one asks for, authenticated.
func (g *Gossip) perform(r request) answer {
	var err error
	switch r.Op {
	case opHello:
	case opAdd:
		var s Secret
		if s, err = ParseSecret(r.Secret); err == nil {
			err = g.change(func(k keyring) (keyring, error) { return accept(k, s) })
		}
	case opUse:
		err = g.change(func(k keyring) (keyring, error) { return use(k, r.ID, time.Now()) })
	case opRetire:
		err = g.change(func(k keyring) (keyring, error) { return retire(k, r.ID, time.Now()) })
	case opForget:
		err = g.change(func(k keyring) (keyring, error) { return forget(k, r.ID) })
	default:
		err = fmt.Errorf("this version does not know %q", string(r.Op))
	}
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{}
}

// The steps, pure. Doing one twice is the same as doing it once.

func accept(k keyring, s Secret) (keyring, error) {
	switch {
	case slices.Contains(k.Secrets, s):
		return k, nil
	case len(k.Secrets) > 1:
		return k, fmt.Errorf("the rotation before is not finished here (%d keys are accepted)", len(k.Secrets))
	}
	return k.keep(append(slices.Clone(k.Secrets), s), time.Time{}), nil
}

func use(k keyring, id string, now time.Time) (keyring, error) {
	s, ok := k.byID(id)
	if !ok {
		return k, fmt.Errorf("the key %s is not accepted here", id)
	}
	others := slices.DeleteFunc(slices.Clone(k.Secrets), func(other Secret) bool { return other == s })
	next := k.keep(append([]Secret{s}, others...), now)
	if k.Secrets[0] != s {
		next.Turn++
	}
	return next, nil
}

func retire(k keyring, id string, now time.Time) (keyring, error) {
	if k.Secrets[0].ID() != id {
		return k, fmt.Errorf("the key in use here is %s, not %s", k.Secrets[0].ID(), id)
	}
	return k.keep(k.Secrets[:1:1], now), nil
}

func forget(k keyring, id string) (keyring, error) {
	if k.Secrets[0].ID() == id {
		return k, fmt.Errorf("the key %s is in use here", id)
	}
	rest := slices.DeleteFunc(slices.Clone(k.Secrets), func(s Secret) bool { return s.ID() == id })
	return keyring{Secrets: rest, Retired: k.Retired, Seed: k.Seed, Turn: k.Turn}, nil
}

// catchUp takes over the keyring of a peer that is newer than ours.
func (g *Gossip) catchUp(a answer) error {
	if len(a.Secrets) == 0 || len(a.Secrets) > maxSecrets {
		return nil
	}
	var fresh []Secret
	for _, text := range a.Secrets {
		s, err := ParseSecret(text)
		if err != nil {
			return err
		}
		fresh = append(fresh, s)
	}
	return g.change(func(k keyring) (keyring, error) {
		if a.Turn <= k.Turn {
			return k, nil // a rotation reached us meanwhile
		}
		next := k.keep(fresh, time.Now())
		next.Turn = a.Turn
		return next, nil
	})
}

// change is the one way to another ring: file first, then memberlist, then whoever derives keys from it.
func (g *Gossip) change(step func(keyring) (keyring, error)) error {
	g.ringMu.Lock()
	defer g.ringMu.Unlock()
	k := *g.ring.Load()
	next, err := step(k)
	if err != nil || slices.Equal(k.Secrets, next.Secrets) && k.Turn == next.Turn {
		return err
	}
	if g.cfg.Keyring != "" {
		if err := writeKeyring(g.cfg.Keyring, next); err != nil {
			return err
		}
	}
	if err := g.install(next); err != nil {
		return err
	}
	g.ring.Store(&next)
	g.cfg.OnKeys(slices.Clone(next.Secrets))
	g.cfg.Log.Info("gossip keys changed", "uses", next.Secrets[0].ID(), "accepts", idList(next.Secrets))
	poke(g.changed)
	return nil
}

// install gives memberlist the keys. It removes from the end only: memberlist's own removal writes into the list that its
// readers hold, unless it takes the last (v0.7.0).
func (g *Gossip) install(next keyring) error {
	wanted := make([][]byte, 0, len(next.Secrets))
	for _, s := range next.Secrets {
		key := s.Key(gossipLabel)
		wanted = append(wanted, key)
		if err := g.keys.AddKey(key); err != nil {
			return fmt.Errorf("add a key: %w", err)
		}
	}
	if err := g.keys.UseKey(wanted[0]); err != nil {
		return fmt.Errorf("use a key: %w", err)
	}
	for {
		keys := g.keys.GetKeys()
		last := keys[len(keys)-1]
		if slices.ContainsFunc(wanted, func(key []byte) bool { return bytes.Equal(key, last) }) {
			return nil
		}
		if err := g.keys.RemoveKey(last); err != nil {
			return fmt.Errorf("remove a key: %w", err)
		}
	}
}
