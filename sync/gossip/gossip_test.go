package gossip

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/test/netns"
)

const patience = 30 * time.Second

// journal is a log that a test can read.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

type running struct {
	*Gossip
	stop func()
	log  *journal
}

type host struct {
	name   string
	secret Secret
	change func(*Config)
}

func start(t *testing.T, h host, peers ...*running) *running {
	t.Helper()
	log := &journal{}
	cfg := Config{
		Cluster: "test", Host: h.name, Bind: netip.MustParseAddrPort("127.0.0.1:0"), Secrets: []Secret{h.secret},
		Keyring: filepath.Join(t.TempDir(), "keyring"), JoinInterval: 200 * time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil)),
	}
	for _, p := range peers {
		cfg.Peers = append(cfg.Peers, p.Address().String())
	}
	if h.change != nil {
		h.change(&cfg)
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return &running{Gossip: g, stop: stop, log: log}
}

func (r *running) names() string {
	var names []string
	for _, m := range r.Members() {
		names = append(names, m.Name)
	}
	return strings.Join(names, " ")
}

func (r *running) has(k Kind, text string) bool {
	return slices.ContainsFunc(r.Status().Conditions, func(c Condition) bool { return c.Kind == k && strings.Contains(c.Message, text) })
}

func together(t *testing.T, names string, hosts ...*running) {
	t.Helper()
	netns.Eventually(t, patience, "members "+names, func() bool {
		return !slices.ContainsFunc(hosts, func(h *running) bool { return h.names() != names })
	})
}

func TestHostsFindEachOtherAndTheirMetadata(t *testing.T) {
	for name, at := range map[string]string{"IPv4": "127.0.0.1:0", "IPv6": "[::1]:0"} {
		t.Run(name, func(t *testing.T) {
			s := NewSecret()
			bind := func(c *Config) { c.Bind = netip.MustParseAddrPort(at) }
			a := start(t, host{"a", s, bind})
			b := start(t, host{"b", s, bind}, a)
			c := start(t, host{"c", s, bind}, a, b)
			together(t, "a b c", a, b, c)
			meta := bytes.Repeat([]byte{0xfe}, MaxMeta)
			if err := b.SetMeta(meta); err != nil {
				t.Fatal(err)
			}
			copy(meta, "changed later")
			want := bytes.Repeat([]byte{0xfe}, MaxMeta)
			netns.Eventually(t, patience, "c knows the metadata of b", func() bool { return bytes.Equal(c.Members()[1].Meta, want) })
			if err := b.SetMeta(make([]byte, MaxMeta+1)); err == nil || MaxMeta+metaHead >= 200 {
				t.Errorf("%d bytes of metadata: %v", MaxMeta+1, err)
			}
			b.stop()
			together(t, "a c", a, c)
		})
	}
}

// The peer list is tried for ever: a host that comes later, or again under another address, is joined.
func TestAPeerThatComesLaterAndAgainIsJoined(t *testing.T) {
	s := NewSecret()
	port := freePort(t)
	later := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	a := start(t, host{"a", s, func(c *Config) {
		c.Peers = []string{"edge.test"}
		c.Lookup = lookup(t, later.Addr())
		c.Bind = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), port)
	}})
	netns.Eventually(t, patience, "the absence is told", func() bool { return a.has(Unreachable, "connection refused") })
	at := func(c *Config) { c.Bind = later }
	b := start(t, host{"b", s, at})
	together(t, "a b", a, b)
	netns.Eventually(t, patience, "the condition is over", func() bool { return !a.has(Unreachable, "") })
	b.stop()
	together(t, "a", a)
	b = start(t, host{"b", s, at})
	together(t, "a b", a, b)
	if n := strings.Count(a.log.String(), "condition=Unreachable"); n > 4 {
		t.Errorf("%d lines about one absent peer:\n%s", n, a.log)
	}
}

func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

func lookup(t *testing.T, ips ...netip.Addr) func(context.Context, string) ([]netip.Addr, error) {
	return func(_ context.Context, name string) ([]netip.Addr, error) {
		if name != "edge.test" {
			return nil, fmt.Errorf("no such name: %s", name)
		}
		return ips, nil
	}
}

func TestANameThatCannotBeLookedUpIsTold(t *testing.T) {
	a := start(t, host{"a", NewSecret(), func(c *Config) { c.Peers = []string{"gone.test"}; c.Lookup = lookup(t) }})
	netns.Eventually(t, patience, "told", func() bool { return a.has(Unresolved, "no such name") })
}

func TestAPortThatIsTakenIsNamed(t *testing.T) {
	a := start(t, host{name: "a", secret: NewSecret()})
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	for name, at := range map[string]netip.AddrPort{"TCP": a.Address(), "UDP": udp.LocalAddr().(*net.UDPAddr).AddrPort()} {
		g, err := New(Config{Cluster: "test", Host: "b", Bind: at, Secrets: []Secret{NewSecret()}})
		if err == nil {
			_ = g.Close()
			t.Fatalf("%s: %s taken, and no error", name, at)
		}
		for _, want := range []string{at.String(), "another process has the port"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q does not say %q", name, err, want)
			}
		}
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	good := Config{Cluster: "c", Host: "a", Bind: netip.MustParseAddrPort("127.0.0.1:0"), Secrets: []Secret{NewSecret()}}
	for want, spoil := range map[string]func(*Config){
		`cluster "": write`:                   func(c *Config) { c.Cluster = "" },
		`host "a/b": write`:                   func(c *Config) { c.Host = "a/b" },
		"bind: write an address and a port":   func(c *Config) { c.Bind = netip.AddrPort{} },
		"no secret: write one with 'headgate": func(c *Config) { c.Secrets = nil },
		"join interval 1ms: write 100ms":      func(c *Config) { c.JoinInterval = time.Millisecond },
		"MTU 100: write 1280 to 9216":         func(c *Config) { c.MTU = 100 },
		`peer "a:b:c:d"`:                      func(c *Config) { c.Peers = []string{"a:b:c:d"} },
		"this host does not have the address": func(c *Config) { c.Bind = netip.MustParseAddrPort("192.0.2.9:0") },
		"no peer shows which address of this": func(c *Config) { c.Bind = netip.MustParseAddrPort("0.0.0.0:0") },
	} {
		cfg := good
		spoil(&cfg)
		g, err := New(cfg)
		if err == nil {
			_ = g.Close()
			t.Errorf("accepted, want an error with %q", want)
			continue
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want it to say %q", err, want)
		}
	}
}

func TestAWildcardTellsTheAddressThatLeadsToThePeer(t *testing.T) {
	a := start(t, host{"a", NewSecret(), func(c *Config) { c.Bind = netip.MustParseAddrPort("0.0.0.0:0"); c.Peers = []string{"127.0.0.9:1"} }})
	if got := a.Address().Addr().String(); got != "127.0.0.1" {
		t.Errorf("tells %s, want 127.0.0.1", got)
	}
}

// A wrong key and another cluster are told on both sides, with the address and the name of the other, once.
func TestStrangersAreToldOnBothSides(t *testing.T) {
	s := NewSecret()
	for _, c := range []struct {
		name  string
		other host
		kind  Kind
		here  string
		there string
	}{
		{"wrong key", host{name: "b", secret: NewSecret()}, WrongKey, `host "b" says that its key is`, `host "a" says that its key is`},
		{"other cluster", host{"b", s, func(c *Config) { c.Cluster = "elsewhere" }}, OtherCluster, `host "b" says that its cluster is "elsewhere", and ours is "test"`, `host "a" says that its cluster is "test", and ours is "elsewhere"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := start(t, host{name: "a", secret: s})
			b := start(t, c.other, a)
			netns.Eventually(t, patience, "told here", func() bool { return a.has(c.kind, c.here) })
			netns.Eventually(t, patience, "told there", func() bool { return b.has(c.kind, c.there) })
			netns.Eventually(t, patience, "counted again and again", func() bool { return b.Status().Counts[c.kind] > 3 })
			if a.names() != "a" || b.names() != "b" {
				t.Errorf("members %s and %s", a.names(), b.names())
			}
			for _, h := range []*running{a, b} {
				if n := strings.Count(h.log.String(), "condition="+string(c.kind)); n != 1 {
					t.Errorf("%d lines at %s, want one:\n%s", n, h.cfg.Host, h.log)
				}
			}
		})
	}
}

// memberlist itself sees the same: packets of a host that skipped the hello.
func TestPacketsOfStrangersAreTold(t *testing.T) {
	s := NewSecret()
	a := start(t, host{name: "a", secret: s})
	for _, c := range []struct {
		other host
		kind  Kind
		text  string
	}{
		{host{name: "b", secret: NewSecret()}, WrongKey, "cannot be decrypted"},
		{host{"c", s, func(c *Config) { c.Cluster = "elsewhere" }}, OtherCluster, `gossip of the cluster "elsewhere" comes to this one, which is "test"`},
	} {
		b := start(t, c.other)
		if _, err := b.list.Join([]string{a.Address().String()}); err == nil {
			t.Fatal("joined")
		}
		netns.Eventually(t, patience, "the stream is told", func() bool { return a.has(c.kind, c.text) })
		before := a.Status().Counts[c.kind]
		conn, err := net.Dial("udp", a.Address().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		packet := append([]byte{labelByte, byte(len(b.cfg.Cluster))}, b.cfg.Cluster...)
		if _, err := conn.Write(append(packet, make([]byte, 60)...)); err != nil {
			t.Fatal(err)
		}
		netns.Eventually(t, patience, "the packet is counted", func() bool { return a.Status().Counts[c.kind] > before })
	}
	conn, err := net.Dial("tcp", a.Address().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	netns.Eventually(t, patience, "a foreign protocol is told", func() bool { return a.has(OtherCluster, "no headgate") })
}

func TestTheNewcomerOfTheSameNameRefuses(t *testing.T) {
	for _, direct := range []bool{true, false} {
		t.Run(map[bool]string{true: "asked directly", false: "heard through another host"}[direct], func(t *testing.T) {
			s := NewSecret()
			a := start(t, host{name: "a", secret: s})
			b := start(t, host{name: "b", secret: s}, a)
			together(t, "a b", a, b)
			a.begun = a.begun.Add(-time.Hour) // before the newcomer exists: nobody else reads it yet
			through := a
			if !direct {
				through = b
			}
			c := start(t, host{name: "a", secret: s}, through)
			netns.Eventually(t, patience, "the newcomer refuses", func() bool { return strings.Contains(c.Clash(), "is older: this host does not serve") })
			netns.Eventually(t, patience, "the old one says so", func() bool { return a.has(NameClash, "is younger") })
			if a.Clash() != "" {
				t.Errorf("the old one refuses: %s", a.Clash())
			}
			if got := b.Members(); len(got) != 2 || got[0].Address != a.Address() {
				t.Errorf("b knows %+v, want the old a", got)
			}
			if !strings.Contains(c.log.String(), a.Address().String()) {
				t.Errorf("the newcomer's log does not say whose name it has:\n%s", c.log)
			}
			c.stop() // it must not take the name of the old one away by leaving
			if got := b.names(); got != "a b" {
				t.Errorf("after the newcomer has stopped b knows %s", got)
			}
			a.stop()
			d := start(t, host{name: "a", secret: s}, b)
			netns.Eventually(t, patience, "the name is free", func() bool { return d.Clash() == "" && b.names() == "a b" && b.Members()[0].Address == d.Address() })
		})
	}
}

func TestAClashEndsWithTheRival(t *testing.T) {
	s := NewSecret()
	a := start(t, host{name: "a", secret: s})
	a.begun = a.begun.Add(-time.Hour)
	c := start(t, host{name: "a", secret: s}, a)
	netns.Eventually(t, patience, "the newcomer refuses", func() bool { return c.Clash() != "" })
	a.stop()
	netns.Eventually(t, patience, "and serves when the other one is gone", func() bool { return c.Clash() == "" })
}

func TestKeysRotateWithoutAGap(t *testing.T) {
	s := NewSecret()
	var mu sync.Mutex
	told := map[string][]string{}
	hear := func(name string) func(*Config) {
		return func(c *Config) {
			c.OnKeys = func(keys []Secret) {
				mu.Lock()
				defer mu.Unlock()
				told[name] = append(told[name], idList(keys))
			}
		}
	}
	a := start(t, host{"a", s, hear("a")})
	b := start(t, host{"b", s, hear("b")}, a)
	c := start(t, host{"c", s, hear("c")}, a, b)
	together(t, "a b c", a, b, c)
	r, err := b.RotateKey(t.Context())
	if err != nil || !r.Used || !r.Finished || r.Old != s.ID() || len(r.Hosts) != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, h := range []*running{a, b, c} {
		if got := h.Status(); len(got.Keys) != 1 || got.Keys[0] != r.New || len(got.Retired) != 1 || got.Retired[0].ID != r.Old {
			t.Errorf("%s: keys %v, retired %v", h.cfg.Host, got.Keys, got.Retired)
		}
		want := []string{r.Old, r.Old + "," + r.New, r.New + "," + r.Old, r.New}
		mu.Lock()
		if got := told[h.cfg.Host]; !slices.Equal(got, want) {
			t.Errorf("%s was told the keys %v, want %v", h.cfg.Host, got, want)
		}
		mu.Unlock()
		for _, text := range []string{s.Reveal(), h.Secrets()[0].Reveal()} {
			if strings.Contains(h.log.String(), text) {
				t.Error("a secret stands in the log")
			}
		}
	}
	if err := a.SetMeta([]byte("after")); err != nil {
		t.Fatal(err)
	}
	netns.Eventually(t, patience, "gossip goes on under the new key", func() bool { return string(c.Members()[0].Meta) == "after" })
	together(t, "a b c", a, b, c)
	if n := a.Status().Counts[WrongKey] + b.Status().Counts[WrongKey] + c.Status().Counts[WrongKey]; n > 0 {
		t.Errorf("%d packets could not be decrypted on the way", n)
	}
}

// A host that was away is let in while both keys are valid, gets the new one, and is told clearly when it comes too late.
func TestAHostThatWasAwayDuringARotation(t *testing.T) {
	s := NewSecret()
	folder := t.TempDir()
	port := freePort(t)
	at := func(c *Config) {
		c.Keyring, c.Bind = filepath.Join(folder, "keyring"), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	}
	away := fmt.Sprintf("127.0.0.1:%d", port)
	a := start(t, host{"a", s, func(c *Config) { c.Peers = []string{away} }})
	b := start(t, host{name: "b", secret: s}, a)
	c := start(t, host{"c", s, at}, a, b)
	together(t, "a b c", a, b, c)
	c.stop()
	together(t, "a b", a, b)

	r, err := a.RotateKey(t.Context())
	if err != nil || !r.Used || r.Finished {
		t.Fatalf("%+v, %v: want used and not finished", r, err)
	}
	if last := r.Hosts[len(r.Hosts)-1]; last.Host != away || last.OK || !strings.Contains(last.Message, "away") {
		t.Errorf("the absent host: %+v", last)
	}
	if _, err := b.RotateKey(t.Context()); !errors.Is(err, ErrRotation) || !strings.Contains(err.Error(), "finish it first") {
		t.Errorf("a second rotation: %v", err)
	}
	c = start(t, host{"c", s, at}, a, b)
	together(t, "a b c", a, b, c)
	if got := c.Status().Keys; got[0] != r.New {
		t.Errorf("it came back with the keys %v, want %s first", got, r.New)
	}
	c.stop()
	together(t, "a b", a, b)

	late := start(t, host{name: "late", secret: s}) // was away all the time
	f, err := a.FinishRotation(t.Context())
	if err != nil || !f.Finished {
		t.Fatalf("%+v, %v", f, err)
	}
	late.stop()
	late = start(t, host{name: "late", secret: s}, a)
	netns.Eventually(t, patience, "the late host is told", func() bool {
		return late.has(RetiredKey, `host "a" says that our key `+s.ID()+" was retired at ")
	})
	netns.Eventually(t, patience, "and so is the one that it came to", func() bool { return a.has(RetiredKey, `host "late" comes with the key `+s.ID()) })
	if late.names() != "late" {
		t.Errorf("let in with a retired key: %s", late.names())
	}
	c = start(t, host{"c", s, at}, a, b)
	together(t, "a b c", a, b, c)
}

// A host whose secret file was replaced by hand brings the new secret to those that still have the old one.
func TestASecretThatIsReplacedByHandOnOneHostAfterTheOther(t *testing.T) {
	old, fresh := NewSecret(), NewSecret()
	folder := t.TempDir()
	at := func(c *Config) { c.Keyring = filepath.Join(folder, "keyring") }
	a := start(t, host{"a", old, at})
	b := start(t, host{name: "b", secret: old}, a)
	together(t, "a b", a, b)
	a.stop()
	together(t, "b", b)
	a = start(t, host{"a", fresh, func(c *Config) {
		at(c)
		c.Peers = []string{b.Address().String()}
		c.Bind = netip.AddrPortFrom(c.Bind.Addr(), a.Address().Port())
	}})
	together(t, "a b", a, b)
	netns.Eventually(t, patience, "b has fetched it", func() bool { return b.Status().Keys[0] == fresh.ID() })
}

func TestARotationThatAMemberRefusesChangesNothing(t *testing.T) {
	s := NewSecret()
	folder := filepath.Join(t.TempDir(), "gone")
	a := start(t, host{name: "a", secret: s})
	b := start(t, host{name: "b", secret: s}, a)
	together(t, "a b", a, b)
	b.cfg.Keyring = filepath.Join(folder, "keyring") // a disk that fails: no folder
	r, err := a.RotateKey(t.Context())
	if !errors.Is(err, ErrRotation) || r.Used || len(r.Hosts) != 1 || r.Hosts[0].OK || !strings.Contains(r.Hosts[0].Message, "write the keyring") {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, h := range []*running{a, b} {
		if got := h.Status(); len(got.Keys) != 1 || got.Keys[0] != s.ID() {
			t.Errorf("%s: keys %v, want %s alone", h.cfg.Host, got.Keys, s.ID())
		}
	}
}

func TestARotationNeedsAKeyringFile(t *testing.T) {
	a := start(t, host{"a", NewSecret(), func(c *Config) { c.Keyring = "" }})
	if _, err := a.RotateKey(t.Context()); !errors.Is(err, ErrRotation) || !strings.Contains(err.Error(), "keyring file") {
		t.Errorf("error %v", err)
	}
}

func TestTheAdminPaths(t *testing.T) {
	a := start(t, host{name: "a", secret: NewSecret()})
	server := httptest.NewServer(a.Handler())
	defer server.Close()
	ask := func(method, path string, code int, into any) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if answer.StatusCode != code {
			t.Fatalf("%s %s: %s, want %d", method, path, answer.Status, code)
		}
		if into != nil {
			if err := json.NewDecoder(answer.Body).Decode(into); err != nil {
				t.Fatal(err)
			}
		}
	}
	var s Status
	ask("GET", StatusPath, 200, &s)
	if s.Host != "a" || len(s.Members) != 1 || len(s.Keys) != 1 {
		t.Errorf("status %+v", s)
	}
	var r Reply
	ask("POST", RotatePath, 200, &r)
	if r.Old != s.Keys[0] || !r.Finished || r.Error != "" {
		t.Errorf("rotation %+v", r)
	}
	ask("POST", FinishPath, 200, &r)
	ask("GET", RotatePath, 405, nil)
	a.cfg.Keyring = ""
	ask("POST", RotatePath, 409, &r)
	if !strings.Contains(r.Error, "keyring file") {
		t.Errorf("error %q", r.Error)
	}
}
