// Package vip is the process that owns VIPs: it ties the speaker to the kernel's addresses, to ARP and NDP, to the
// detectors, to gossip and to the proxy on this host, and serves the admin socket of `headgate vip`. It decides
// nothing about VIPs; vip/speaker does. It needs neither the daemon nor the cluster. cmd/headgate runs it.
package vip

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"headgate/cmd/config"
	"headgate/cmd/stages"
	"headgate/sync/gossip"
	"headgate/sync/socket"
	"headgate/vip/addr"
	"headgate/vip/detect"
	"headgate/vip/election"
	"headgate/vip/speaker"
)

// Process is one `headgate vip run`.
type Process struct {
	// LogLevel answers /v1/log-level on the admin socket; it is set before Run. nil: the level is fixed.
	LogLevel http.Handler

	config  config.Config
	host    string
	version string
	started time.Time
	log     *slog.Logger
	paths   Paths

	scheduler string // for people
	socket    *socket.Socket
	metrics   net.Listener // nil: off
	addresses *addr.Set
	kernel    *kernel
	wire      *wire
	gossip    *gossip.Gossip   // nil: this host is alone
	detector  *detect.Detector // likewise
	members   *members
	proxy     *proxyCheck
	hooks     *hooks
	flows     *keeper
	account   *account
	speaker   *speaker.Speaker
	faults    []string // of this host's settings, found at the start

	peerEvents chan speaker.PeerEvent
	health     chan speaker.Health
}

// Paths are the files of the process.
type Paths struct {
	Dir       string // below the runtime directory, 0750
	Socket    string // of the admin API
	Lock      string // held while the process lives
	Addresses string // vip/addr's state: which addresses are ours
	Flows     string // vip/flows's
	Keep      string // exists while no peer could take over: a cleanup leaves the addresses then
	Drained   string // exists while the host is drained: a restart keeps that, a reboot does not
	Keyring   string // the secrets after a rotation; in the state directory
}

// PathsOf gives them.
func PathsOf(c config.Config) Paths {
	dir := filepath.Join(c.RuntimeDir, "vip")
	return Paths{
		Dir: dir, Socket: filepath.Join(dir, "vip.sock"), Lock: filepath.Join(dir, "vip.lock"),
		Addresses: filepath.Join(dir, "addresses.json"), Flows: filepath.Join(dir, "flows.json"),
		Keep: filepath.Join(dir, "keep"), Drained: filepath.Join(dir, "drained"),
		Keyring: filepath.Join(c.StateDir, "gossip.keyring"),
	}
}

// ErrNothing says that the configuration has no VIP.
var ErrNothing = errors.New("no VIP is configured: write vip.interface and vip.addresses, such as vip: {interface: eth0, addresses: [192.0.2.10]}")

// New builds every part and opens the sockets; it owns nothing yet. What it opened is closed again when it fails.
// The scheduler must be chosen before, because the detectors' defaults depend on it: see Realtime.
func New(ctx context.Context, c config.Config, version string, log *slog.Logger) (*Process, error) {
	if len(c.VIP.All()) == 0 {
		return nil, ErrNothing
	}
	host, err := c.Gossip.Name()
	if err != nil {
		return nil, err
	}
	p := &Process{
		config: c, host: host, version: version, started: time.Now(), log: log, paths: PathsOf(c), scheduler: Scheduler(),
		peerEvents: make(chan speaker.PeerEvent), health: make(chan speaker.Health),
	}
	if err := p.open(ctx); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *Process) open(ctx context.Context) error {
	var err error
	if p.socket, err = openSocket(ctx, p.paths); err != nil {
		return err
	}
	if p.config.VIP.MetricsListen != "" {
		if p.metrics, err = new(net.ListenConfig).Listen(ctx, "tcp", p.config.VIP.MetricsListen); err != nil {
			return fmt.Errorf("listen for metrics (write another vip.metricsListen, or \"\" to do without): %w", err)
		}
	}
	p.checkSettings()
	if p.addresses, err = addr.New(addr.Config{StateFile: p.paths.Addresses, Log: p.log.With("room", "addr")}); err != nil {
		return fmt.Errorf("addresses of the VIPs: %w", err)
	}
	p.wire = newWire(p.log.With("room", "wire"))
	p.wire.prepare(p.config.VIP.All())
	p.proxy = newProxyCheck(p.config, p.log.With("room", "proxy"))
	p.hooks = newHooks(p.config.VIP.Notify, p.log.With("room", "notify"))
	p.flows = newKeeper(p.config, p.paths.Flows, p.log.With("room", "flows"))
	if err := p.openPeers(); err != nil { //nolint:contextcheck // gossip takes none: it opens ports and sends nothing yet
		return err
	}
	p.kernel = &kernel{addresses: p.addresses, keep: p.paths.Keep, lasting: lasting, log: p.log}
	p.account = newAccount()
	return p.openSpeaker()
}

// lasting is the lifetime of addresses that nobody could take over.
const lasting = time.Minute

// checkSettings sets the kernel's settings that VIPs need, or complains.
func (p *Process) checkSettings() {
	for _, name := range p.config.VIP.Interfaces() {
		settings, err := addr.Sysctls(name)
		if err != nil {
			p.log.Warn("interface of a VIP is not there: its VIPs wait for it", "iface", name, "err", err)
			continue
		}
		for _, s := range settings {
			if complaint := s.Complaint(); complaint != "" {
				p.log.Warn("a setting of the kernel is not as VIPs need it", "complaint", complaint)
				p.faults = append(p.faults, complaint)
			}
		}
	}
}

// openPeers opens gossip and the detectors, unless this host is alone.
func (p *Process) openPeers() error {
	g := p.config.Gossip
	if len(g.Peers) == 0 {
		return nil
	}
	secrets, err := gossip.ReadSecretFile(g.KeyFile)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: 'headgate gossip genkey' writes one; copy it to all hosts", err)
		}
		return fmt.Errorf("gossip.keyFile: %w", err)
	}
	if err := os.MkdirAll(p.config.StateDir, 0o755); err != nil { //nolint:gosec // the daemon's folder, too; the keyring is 0600
		return fmt.Errorf("stateDir: %w", err)
	}
	keys := &keys{}
	// Two hosts of one name would each take the other's word for its own.
	p.proxy.veto = func() string { return p.gossip.Clash() }
	p.gossip, err = gossip.New(gossip.Config{
		Cluster: g.Cluster, Host: p.host, Bind: g.Listen, Peers: g.Peers, Secrets: secrets, Keyring: p.paths.Keyring,
		MTU: g.MTU, JoinInterval: time.Second, OnKeys: keys.set, Log: p.log.With("room", "gossip"),
	})
	if err != nil {
		return err
	}
	v := p.config.VIP
	listen := v.Listen
	if listen.Addr().IsUnspecified() {
		// The address that gossip tells is one of this host, never a VIP.
		listen = netip.AddrPortFrom(p.gossip.Address().Addr(), listen.Port())
	}
	var links []string
	if v.LinkHeartbeat {
		links = v.Interfaces()
	}
	p.detector, err = detect.New(detect.Config{
		Host: p.host, Keys: keys.heartbeat(), Listen: listen, Interfaces: links, Interval: time.Duration(v.Heartbeat), Misses: v.Misses,
		Log: p.log.With("room", "detect"),
	})
	if err != nil {
		return err
	}
	keys.follow(p.detector, p.log)
	p.members = &members{
		gossip: p.gossip, detector: p.detector, port: listen.Port(), events: p.peerEvents, own: p.flows.own,
		log: p.log.With("room", "members"), known: map[string]member{},
	}
	p.members.tell()
	return nil
}

// keys brings the secrets of gossip to the detectors.
type keys struct {
	mu       sync.Mutex // guards the rest
	secrets  []gossip.Secret
	detector *detect.Detector
	log      *slog.Logger
}

// heartbeatLabel derives the detectors' key from the secret.
const heartbeatLabel = "heartbeat"

func (k *keys) set(secrets []gossip.Secret) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.secrets = secrets
	k.pass()
}

func (k *keys) follow(d *detect.Detector, log *slog.Logger) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.detector, k.log = d, log
	k.pass()
}

func (k *keys) pass() {
	if k.detector == nil {
		return
	}
	if err := k.detector.SetKeys(derived(k.secrets)); err != nil {
		k.log.Error("the heartbeats keep the old key", "err", err)
	}
}

func (k *keys) heartbeat() [][]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return derived(k.secrets)
}

func derived(secrets []gossip.Secret) [][]byte {
	var list [][]byte
	for _, s := range secrets {
		list = append(list, s.Key(heartbeatLabel))
	}
	return list
}

func (p *Process) openSpeaker() error {
	var vips []speaker.VIP
	for _, g := range p.config.VIP.All() {
		v := speaker.VIP{
			Name: g.Name, Priority: uint8(g.Priority), NoPreempt: g.NoPreempt, //nolint:gosec // 1–254, validated
			PreemptDelay: time.Duration(g.PreemptDelay),
		}
		for _, text := range g.Addresses {
			prefix, err := config.ParseVIP(text)
			if err != nil {
				return fmt.Errorf("vip %s: %w", g.Name, err)
			}
			v.Addresses = append(v.Addresses, speaker.Address{IP: prefix.Addr(), Bits: prefix.Bits(), Interface: g.Interface})
		}
		vips = append(vips, v)
	}
	_, err := os.Stat(p.paths.Drained)
	drained := err == nil
	if drained {
		p.log.Info("this host is drained, as before the restart: 'headgate undrain' ends that")
	}
	p.speaker, err = speaker.New(speaker.Config{
		Host: election.Host(p.host), VIPs: vips, Peers: p.expected(), Draining: drained, Timing: speaker.Timing{Lasting: lasting},
		Kernel: p.kernel, Wire: p.wire, Publisher: p, Log: p.log.With("room", "speaker"), Observe: p.observe,
		PeerEvents: p.peerEvents, Conflicts: p.wire.conflicts, Health: p.health, KernelChanged: p.addresses.Changes(),
	})
	return err
}

// expected is how many other hosts the list of peers names. This host's own addresses do not count.
func (p *Process) expected() int {
	own := map[string]bool{p.host: true}
	if addresses, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addresses {
			if ipNet, ok := a.(*net.IPNet); ok {
				own[ipNet.IP.String()] = true
			}
		}
	}
	others := 0
	for _, peer := range p.config.Gossip.Peers {
		host, _, err := net.SplitHostPort(peer)
		if err != nil {
			host = peer
		}
		short, _, _ := strings.Cut(host, ".")
		if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
			short = ip.String()
		}
		if !own[short] {
			others++
		}
	}
	return others
}

// Publish implements speaker.Publisher.
func (p *Process) Publish(state []byte) {
	if p.detector == nil {
		return
	}
	if err := p.detector.Publish(state); err != nil { // the speaker keeps below the limit
		p.log.Error("state not published", "err", err)
	}
}

// observe hears of each transition, from the speaker's goroutine.
func (p *Process) observe(t speaker.Transition) {
	p.account.count(t)
	p.hooks.tell(t)
	p.flows.tell(t, func(host string) []netip.Addr {
		if p.members == nil {
			return nil
		}
		return p.members.addresses(host)
	})
}

// Run owns the VIPs until ctx ends. Then, each stage once the one before has ended: the speaker hands over what it has;
// what it works with stops (proxy check, peers, hooks); the admin socket and the metrics go last. It returns nil, or the
// first thing that failed, which stops all in the same order.
func (p *Process) Run(ctx context.Context) error {
	g, first := errgroup.WithContext(ctx)
	second, endSecond := context.WithCancel(context.WithoutCancel(ctx))
	third, endThird := context.WithCancel(context.WithoutCancel(ctx))
	defer endThird()
	stages.Go(first, g, endSecond, p.speaker.Run)
	runs := []func(context.Context) error{p.proxyHealth, p.hooks.run, p.flows.run, p.addresses.Run, p.wire.run, p.notifySystemd}
	if p.gossip != nil {
		runs = append(runs, p.gossip.Run, p.detector.Run, p.members.run)
	}
	stages.Go(second, g, endThird, runs...)
	stages.Go(third, g, func() {}, p.serveSocket, p.serveMetrics)
	err := g.Wait()
	if closeErr := p.close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}

// close closes what open opened and Run did not.
func (p *Process) close() error {
	var errs []error
	if p.gossip != nil {
		errs = append(errs, p.gossip.Close())
	}
	if p.detector != nil {
		errs = append(errs, ignoreClosed(p.detector.Close()))
	}
	if p.wire != nil {
		errs = append(errs, p.wire.close())
	}
	if p.flows != nil {
		p.flows.close()
	}
	if p.addresses != nil {
		p.addresses.Close()
	}
	if p.proxy != nil {
		p.proxy.close()
	}
	if p.metrics != nil {
		errs = append(errs, ignoreClosed(p.metrics.Close()))
	}
	if p.socket != nil {
		errs = append(errs, p.socket.Close())
	}
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
