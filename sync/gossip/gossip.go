// Package gossip keeps the list of the hosts that share VIPs: memberlist, wrapped. It is encrypted with a key derived from
// one secret, bound to the name of the cluster, joins the configured peers for ever, rotates keys without a gap, and
// names every peer that it cannot talk to, and why.
//
// It is for membership and for small metadata. It does not say fast that a host has died; that is vip/detect's.
package gossip

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// Config of a Gossip. Cluster, Host, Bind and Secrets must be given.
type Config struct {
	// Cluster is the name that all hosts share: 1 to 63 letters, digits, '.', '-' and '_'.
	Cluster string
	// Host is the name of this host, of the same letters; no other host may have it.
	Host string
	// Bind is where to listen, TCP and UDP. An unspecified address (0.0.0.0, ::) listens on all, and the one that leads to
	// the first peer is told to the others; with port 0 the kernel chooses (tests).
	Bind netip.AddrPort
	// Advertise is the address that is told to the others where it is not Bind (NAT). Zero: Bind.
	Advertise netip.AddrPort
	// Peers are the other hosts: addresses or DNS names, with or without a port (then Bind's). All addresses of a name
	// count, and names are looked up again each time. This host's own may be among them.
	Peers []string
	// Secrets are those of the configuration, the first in use. See ReadSecretFile.
	Secrets []Secret
	// Keyring is the file that keeps the secrets after a rotation; its folder must exist. "": nothing is kept, and
	// rotating is refused.
	Keyring string
	// OnKeys is called with the valid secrets, the first in use, by New and at each change, before any other host
	// uses a new one. It must not block. nil: nobody is told.
	OnKeys func([]Secret)
	// JoinInterval is the time between two attempts to join the peers that are missing: 100 ms to 10 min. 0: 5 s.
	JoinInterval time.Duration
	// MTU is the smallest on the way between hosts, in bytes: 1280 to 9216. 0: 1500. Lower it behind overlays.
	MTU int
	// Lookup resolves the names of peers. nil: the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Log takes what happens. nil: discarded.
	Log *slog.Logger
}

const (
	defaultJoin = 5 * time.Second
	defaultMTU  = 1500
	headers     = 48   // IPv6 and UDP
	packetMost  = 1400 // memberlist's own choice
	lookupLimit = 2 * time.Second
	leaveLimit  = 500 * time.Millisecond
)

func (c Config) withDefaults() Config {
	if c.JoinInterval == 0 {
		c.JoinInterval = defaultJoin
	}
	if c.MTU == 0 {
		c.MTU = defaultMTU
	}
	if c.Lookup == nil {
		c.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if c.OnKeys == nil {
		c.OnKeys = func([]Secret) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) check() error {
	switch {
	case !validName(c.Cluster):
		return fmt.Errorf("cluster %q: write 1 to %d letters, digits, '.', '-' or '_'", c.Cluster, maxName)
	case !validName(c.Host):
		return fmt.Errorf("host %q: write 1 to %d letters, digits, '.', '-' or '_'", c.Host, maxName)
	case !c.Bind.IsValid():
		return errors.New("bind: write an address and a port, such as 10.0.0.1:7946")
	case len(c.Secrets) == 0 || slices.ContainsFunc(c.Secrets, Secret.IsZero):
		return errors.New("no secret: write one with 'headgate gossip genkey'")
	case len(c.Secrets) > maxSecrets:
		return fmt.Errorf("%d secrets: at most %d", len(c.Secrets), maxSecrets)
	case c.JoinInterval < 100*time.Millisecond || c.JoinInterval > 10*time.Minute:
		return fmt.Errorf("join interval %v: write 100ms to 10m", c.JoinInterval)
	case c.MTU < 1280 || c.MTU > 9216:
		return fmt.Errorf("MTU %d: write 1280 to 9216", c.MTU)
	}
	for _, p := range c.Peers {
		if _, _, err := splitPeer(p, c.Bind.Port()); err != nil {
			return err
		}
	}
	return nil
}

func validName(text string) bool {
	return text != "" && len(text) <= maxName && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == ""
}

// splitPeer reads "host", "host:port", "1.2.3.4", "fe80::1" or "[fe80::1]:port".
func splitPeer(text string, port uint16) (string, uint16, error) {
	if at, err := netip.ParseAddrPort(text); err == nil && at.Port() != 0 {
		return at.Addr().String(), at.Port(), nil
	}
	if ip, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return ip.String(), port, nil
	}
	host := text
	if name, digits, err := net.SplitHostPort(text); err == nil {
		n, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || n == 0 {
			return "", 0, fmt.Errorf("peer %q: write a port from 1 to 65535", text)
		}
		host, port = name, uint16(n)
	}
	if host == "" || len(host) > 253 || strings.ContainsAny(host, " /:[]\t\n") {
		return "", 0, fmt.Errorf("peer %q: write an address or a DNS name, with or without a port", text)
	}
	return host, port, nil
}

// Member is a host of the cluster, this one among them.
type Member struct {
	Name    string         `json:"name"`
	Address netip.AddrPort `json:"address"`
	// Meta is what the host set by SetMeta.
	Meta []byte `json:"meta,omitempty"`
}

// Gossip is the membership. All methods may be called from any goroutine.
type Gossip struct {
	cfg        Config
	instance   uint64 // of this process: two of one name differ in it
	begun      time.Time
	address    netip.AddrPort // told to the others
	list       *memberlist.Memberlist
	keys       *memberlist.Keyring
	ring       atomic.Pointer[keyring]
	meta       atomic.Pointer[[]byte]
	conditions *conditions

	ringMu    sync.Mutex    // serialises changes of the ring
	rotating  sync.Mutex    // one rotation at a time
	changed   chan struct{} // capacity 1: the newest is read
	metaSet   chan struct{} // capacity 1: likewise
	rivals    chan struct{} // capacity 1: likewise
	joined    chan struct{} // closed after the first round
	closeOnce sync.Once

	mu      sync.Mutex // guards the rest
	members map[string]Member
	clash   clash
}

// New opens the port, and begins to answer: memberlist cannot open it otherwise. A port that is taken is an error that
// names it. Run joins the peers and closes everything; where it is never called, Close does.
func New(cfg Config) (*Gossip, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	ring, err := openKeyring(cfg.Keyring, cfg.Secrets, cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	cfg.Secrets = nil
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	g := &Gossip{
		cfg: cfg, instance: binary.BigEndian.Uint64(random[:]), begun: time.Now(), conditions: newConditions(cfg.Log),
		changed: make(chan struct{}, 1), metaSet: make(chan struct{}, 1), rivals: make(chan struct{}, 1), joined: make(chan struct{}),
		members: map[string]Member{},
	}
	g.ring.Store(&ring)
	g.meta.Store(&[]byte{})
	if err := g.open(); err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	cfg.OnKeys(slices.Clone(ring.Secrets))
	return g, nil
}

const gossipLabel = "gossip"

func (g *Gossip) open() error {
	var err error
	secrets := g.ring.Load().Secrets
	accepted := make([][]byte, 0, len(secrets))
	for _, s := range secrets {
		accepted = append(accepted, s.Key(gossipLabel))
	}
	if g.keys, err = memberlist.NewKeyring(accepted, accepted[0]); err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	logger := newLines(g.cfg.Log, g.conditions.note)
	t, err := newTransport(g.cfg, logger)
	if err != nil {
		return err
	}
	conf := g.memberlistConfig(t)
	conf.Logger = logger
	g.address, err = g.advertised(context.Background(), t) //nolint:forbidigo // bounded, and New has none to pass on
	if err == nil {
		conf.AdvertiseAddr, conf.AdvertisePort = g.address.Addr().String(), int(g.address.Port())
		t.start(g.conditions.note, g.serve)
		g.list, err = memberlist.Create(conf)
	}
	if err != nil {
		return errors.Join(err, t.Shutdown())
	}
	return nil
}

// memberlistConfig departs from the defaults where two to five hosts on one LAN want it: Lifeguard's patience would slow
// the verdicts of two hosts, and a dead host's name must be free for its next address.
func (g *Gossip) memberlistConfig(t *transport) *memberlist.Config {
	conf := memberlist.DefaultLANConfig()
	conf.Name, conf.Label, conf.Transport = g.cfg.Host, g.cfg.Cluster, t
	conf.BindAddr, conf.BindPort = g.cfg.Bind.Addr().String(), t.GetAutoBindPort()
	conf.Keyring = g.keys
	conf.EnableCompression = false
	conf.TCPTimeout = controlTimeout
	conf.PushPullInterval = 15 * time.Second
	conf.GossipInterval = 100 * time.Millisecond
	conf.SuspicionMult = 2 // 3 would wait for confirmations that three hosts cannot give
	conf.AwarenessMaxMultiplier = 2
	conf.DeadNodeReclaimTime = time.Second
	conf.UDPBufferSize = min(packetMost, g.cfg.MTU-headers)
	d := &delegate{g}
	conf.Delegate, conf.Events, conf.Conflict, conf.Ping = d, d, d, d
	return conf
}

// advertised is the address to tell.
func (g *Gossip) advertised(ctx context.Context, t *transport) (netip.AddrPort, error) {
	if g.cfg.Advertise.IsValid() {
		return g.cfg.Advertise, nil
	}
	port := uint16(t.GetAutoBindPort())
	if ip := g.cfg.Bind.Addr(); !ip.IsUnspecified() {
		return netip.AddrPortFrom(ip, port), nil
	}
	for _, p := range g.cfg.Peers {
		host, at, err := splitPeer(p, port)
		if err != nil {
			continue // checked before
		}
		conn, err := (&net.Dialer{Timeout: lookupLimit}).DialContext(ctx, "udp", net.JoinHostPort(host, strconv.Itoa(int(at)))) // sends nothing
		if err != nil {
			continue
		}
		ip := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap() //nolint:forcetypeassert // of network udp
		_ = conn.Close()                                                // nothing was sent
		return netip.AddrPortFrom(ip, port), nil
	}
	return netip.AddrPort{}, fmt.Errorf("bind %s: no peer shows which address of this host the others reach: write the address instead", g.cfg.Bind)
}

// Address is what is told to the others.
func (g *Gossip) Address() netip.AddrPort { return g.address }

// Close ends what New began. A host that runs leaves first, unless its name is another's: leaving would take that
// one away.
func (g *Gossip) Close() error {
	var err error
	g.closeOnce.Do(func() {
		if !g.refused() {
			if err := g.list.Leave(leaveLimit); err != nil {
				g.cfg.Log.Info("the others may see this host leave late", "err", err)
			}
		}
		err = g.list.Shutdown()
	})
	if err != nil {
		return fmt.Errorf("gossip: %w", err)
	}
	return nil
}

// Run joins the peers, for ever, until ctx ends; then it leaves and closes. It returns nil, or what closing met.
func (g *Gossip) Run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { g.keepJoining(ctx) })
	running.Go(func() { g.keepTelling(ctx) })
	running.Go(func() { g.watchRivals(ctx) })
	running.Wait()
	return g.Close()
}

// Joined is closed when every configured peer was tried once: whoever is there is known then.
func (g *Gossip) Joined() <-chan struct{} { return g.joined }

// Changed says that Members, Clash or the secrets changed. Capacity 1; never closed.
func (g *Gossip) Changed() <-chan struct{} { return g.changed }

// Members are the hosts that memberlist thinks alive, by name, this one among them.
func (g *Gossip) Members() []Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]Member, 0, len(g.members))
	for _, m := range g.members {
		m.Meta = slices.Clone(m.Meta)
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// MaxMeta is the most that SetMeta takes; with what this package adds, a host's metadata stays below 200 bytes (memberlist
// panics beyond 512, and small packets carry several).
const MaxMeta = 180

// SetMeta tells the bytes to the others with the host's membership. It copies them and does not block; of several in a
// row only the last may arrive. More than MaxMeta bytes are an error.
func (g *Gossip) SetMeta(meta []byte) error {
	if len(meta) > MaxMeta {
		return fmt.Errorf("gossip: metadata of %d bytes: at most %d", len(meta), MaxMeta)
	}
	meta = slices.Clone(meta)
	g.meta.Store(&meta)
	poke(g.metaSet)
	return nil
}

// keepTelling gives memberlist new metadata; it may block there.
func (g *Gossip) keepTelling(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.metaSet:
			_ = g.list.UpdateNode(leaveLimit) // late only: gossip goes on by itself
		}
	}
}

func (g *Gossip) age() time.Duration { return time.Since(g.begun) }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
