// Package lab is a small edge to break: hosts in network namespaces on one Ethernet, each with a real nginx and the VIP
// process of the real binary, and a client that asks for the VIPs without a pause. It judges nothing: the tests of
// test/vip and the benchmark bench/vip do. It needs root and touches no network but those it made.
package lab

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/test/netns"
)

// Interface is the one interface of each host and of the client.
const Interface = "eth0"

// Config says what the lab is made of.
type Config struct {
	Binary string   // headgate
	Proxy  *Proxy   // what the hosts serve; it may be shared by labs
	Hosts  []string // names of the hosts, ≤ 9
	VIPs   []VIP
	// Switch joins all by TAP interfaces, which can lose and delay, instead of a bridge.
	Switch bool
	// NoIPv4 leaves out the IPv4 addresses, NoIPv6 the IPv6 ones.
	NoIPv4, NoIPv6 bool
}

// VIP is addresses that move together; without Addresses it is both of IPv4 and IPv6.
type VIP struct {
	Name      string
	Addresses []string
	Settings  string // more keys, as "nopreempt: true, preemptDelay: 0s"
}

// The addresses of the only VIP where a test says nothing else.
func web() []string { return []string{"192.0.2.100", "2001:db8::100"} }

// Web is the VIP of IPv4 and IPv6 that most tests share between their hosts.
func Web(settings string) []VIP { return []VIP{{Name: "web", Addresses: web(), Settings: settings}} }

// Web4 and Web6 are its addresses.
func Web4() netip.Addr { return netip.MustParseAddr(web()[0]) }

// Web6 is the address of IPv6.
func Web6() netip.Addr { return netip.MustParseAddr(web()[1]) }

// Lab is the edge.
type Lab struct {
	Hosts  []*Host
	Client *netns.Namespace
	LAN    *netns.LAN    // nil with Config.Switch
	Switch *netns.Switch // nil without

	config Config
	dir    string
	key    string
}

// New makes the namespaces and starts nothing. All is gone when the test ends.
func New(t testing.TB, c Config) *Lab {
	t.Helper()
	netns.Require(t)
	dir := folder(t)
	l := &Lab{config: c, dir: dir, key: filepath.Join(dir, "gossip.key")}
	l.WriteKey(t, l.key)
	if c.Switch {
		l.Switch = netns.NewSwitch(t, 1)
	} else {
		l.LAN = netns.NewLAN(t)
	}
	l.Client = netns.New(t)
	l.join(t, l.Client, clientNumber)
	for i, name := range c.Hosts {
		l.Hosts = append(l.Hosts, newHost(t, l, name, i+1))
	}
	return l
}

// folder makes one that nginx's workers, which are of another user, can reach, with a short path: those of sockets are
// limited. It is removed when the test ends.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lab-") //nolint:usetesting // its paths are too long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // see above
		t.Fatal(err)
	}
	return dir
}

// clientNumber is the last part of the client's addresses.
const clientNumber = 200

// Address4 and Address6 are those of host number n, from 1 on.
func Address4(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}) }

// Address6 is the one of IPv6.
func Address6(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", n)) }

func (l *Lab) join(t testing.TB, n *netns.Namespace, number int) {
	t.Helper()
	var addresses []netip.Prefix
	if !l.config.NoIPv4 {
		addresses = append(addresses, netip.PrefixFrom(Address4(number), 24))
	}
	if !l.config.NoIPv6 {
		addresses = append(addresses, netip.PrefixFrom(Address6(number), 64))
	}
	if l.Switch != nil {
		l.Switch.Join(t, n, Interface, addresses...)
		return
	}
	l.LAN.Join(t, n, Interface, addresses...)
}

// Join puts one more machine on the Ethernet; number is the last part of its addresses.
func (l *Lab) Join(t testing.TB, number int) *netns.Namespace {
	t.Helper()
	n := netns.New(t)
	l.join(t, n, number)
	return n
}

// WriteKey writes a new secret of gossip into a file.
func (l *Lab) WriteKey(t testing.TB, path string) {
	t.Helper()
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // documented never to fail
	if err := os.WriteFile(path, []byte(base64.StdEncoding.EncodeToString(secret[:])+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// address is where gossip listens.
func (l *Lab) address(number int) netip.Addr {
	if l.config.NoIPv4 {
		return Address6(number)
	}
	return Address4(number)
}

// gossipPort and heartbeatPort are the product's defaults.
const (
	gossipPort    = 7946
	heartbeatPort = 7947
)

// text is the configuration of a host.
func (h *Host) text() []byte {
	var peers []string
	for _, o := range h.lab.Hosts {
		if o != h {
			peers = append(peers, fmt.Sprintf("%q", netip.AddrPortFrom(h.lab.address(o.Number), gossipPort)))
		}
	}
	var groups []string
	for _, v := range h.lab.config.VIPs {
		group := fmt.Sprintf("{name: %q, addresses: [%s]", v.Name, quoted(v.Addresses))
		if v.Settings != "" {
			group += ", " + v.Settings
		}
		groups = append(groups, group+"}")
	}
	vip := []string{
		fmt.Sprintf("interface: %q", Interface), "metricsListen: \"\"", fmt.Sprintf("groups: [%s]", strings.Join(groups, ", ")),
	}
	return []byte(strings.Join([]string{
		fmt.Sprintf("gossip: {cluster: lab, host: %q, listen: %q, keyFile: %q, peers: [%s]}", h.GossipName,
			netip.AddrPortFrom(h.lab.address(h.Number), gossipPort), h.Key, strings.Join(peers, ", ")),
		fmt.Sprintf("vip: {%s}", strings.Join(append(vip, h.Settings...), ", ")),
		fmt.Sprintf("stateDir: %q", filepath.Join(h.dir, "state")), fmt.Sprintf("runtimeDir: %q", filepath.Join(h.dir, "run")),
		"log: {level: debug}",
	}, "\n") + "\n")
}

func quoted(list []string) string {
	var b bytes.Buffer
	for i, s := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", s)
	}
	return b.String()
}

// Start starts everything on every host, at once, and waits until the first VIP has one owner that all agree on.
func (l *Lab) Start(t testing.TB) {
	t.Helper()
	for _, h := range l.Hosts {
		h.StartProxy(t)
	}
	for _, h := range l.Hosts {
		h.StartVIP(t)
	}
	l.Settled(t)
}

// Patience is how long a test waits for what takes a moment on an idle machine.
const Patience = 20 * time.Second

// Settled waits until all hosts whose VIP process runs hear each other, are ready, and name the same owner for each VIP;
// it gives the owner of the first one.
func (l *Lab) Settled(t testing.TB) *Host {
	t.Helper()
	var owner *Host
	why := ""
	deadline := time.Now().Add(Patience)
	for {
		if owner, why = l.settled(); why == "" {
			return owner
		}
		if time.Now().After(deadline) {
			for _, h := range l.Hosts {
				t.Logf("%s:\n%s", h.Name, h.Tail())
			}
			t.Fatalf("not settled within %s: %s", Patience, why)
		}
		rest()
	}
}

// look is how often the processes are asked.
const look = 10 * time.Millisecond

func rest() {
	time.Sleep(look) // processes and kernels are asked; neither gives a sign when the answer changes
}

func (l *Lab) settled() (*Host, string) {
	owner := map[string]string{}
	running := 0
	for _, h := range l.Hosts {
		if h.Running() {
			running++
		}
	}
	for _, h := range l.Hosts {
		if !h.Running() {
			continue
		}
		s, err := h.ask()
		if err != nil {
			return nil, err.Error()
		}
		alive := 1
		for _, p := range s.Peers {
			if p.Alive {
				alive++
			}
		}
		if alive != running || !s.Ready {
			return nil, fmt.Sprintf("%s hears %d of %d hosts; ready: %t (%s)", h.Name, alive, running, s.Ready, s.Health)
		}
		for _, v := range s.VIPs {
			if known, told := owner[v.Name]; v.Owner == "" || v.Successor != "" || told && known != string(v.Owner) {
				return nil, fmt.Sprintf("%s says that %s is at %q (going to %q), another one %q", h.Name, v.Name, v.Owner, v.Successor, known)
			}
			owner[v.Name] = string(v.Owner)
		}
	}
	for _, h := range l.Hosts {
		if len(l.config.VIPs) > 0 && h.GossipName == owner[l.config.VIPs[0].Name] {
			return h, ""
		}
	}
	return nil, "nobody owns the first VIP"
}

// Other is a host that is not the given one.
func (l *Lab) Other(h *Host) *Host {
	for _, o := range l.Hosts {
		if o != h {
			return o
		}
	}
	return nil
}
