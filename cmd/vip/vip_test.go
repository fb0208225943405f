package vip

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/goleak"

	"headgate/cmd/config"
	"headgate/sync/gossip"
	"headgate/vip/detect"
	"headgate/vip/speaker"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(m)
}

func moment() time.Time { return time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC) }

// healthy is a host that owns one of two VIPs and hears its peer.
func healthy() Status {
	at := moment()
	s := Status{
		Version: "v1", PID: 7, Started: at.Add(-time.Hour), Time: at, Scheduler: "SCHED_RR 10",
		Status: speaker.Status{
			Host: "edge1", Ready: true, Health: "the proxy serves a complete revision",
			VIPs: []speaker.VIPStatus{
				{
					Name: "192.0.2.10", Addresses: []string{"192.0.2.10/32 eth0"}, State: speaker.Active, Owner: "edge1", Term: 3, Since: at.Add(-time.Minute),
					Reason: speaker.OwnerCrashed, Priority: 100, Able: true, Wants: "serves it", Moves: 2,
					Views: []speaker.View{{Host: "edge1", Claim: "active", Able: true, Priority: 100, Term: 3}, {Host: "edge2", Claim: "none", Able: true, Priority: 90, Term: 3}},
				},
				{Name: "web", Addresses: []string{"192.0.2.11/32 eth0", "2001:db8::11/128 eth0"}, State: speaker.Backup, Owner: "edge2", Term: 1, Since: at.Add(-time.Hour), Reason: speaker.Started, Priority: 100, Able: true, Wants: "stands by"},
			},
			Peers:  []speaker.PeerStatus{{Host: "edge2", Alive: true, Since: at.Add(-time.Hour), Ready: true}},
			Recent: []speaker.Transition{{VIP: "192.0.2.10", From: speaker.Backup, To: speaker.Active, Term: 3, Reason: speaker.OwnerCrashed, Peer: "edge2", Detail: "its session ended", At: at.Add(-time.Minute)}},
		},
		Detectors: []detect.PeerStatus{{
			Host: "edge2", Address: netip.MustParseAddrPort("10.0.0.12:7947"), Verdict: detect.Up, Word: "up", Crashes: 1,
			Detectors: []detect.DetectorStatus{{Detector: detect.Session, Heard: at.Add(-20 * time.Millisecond), Heartbeats: 9}},
		}},
		Gossip: &gossip.Status{Members: []gossip.Member{{Name: "edge1"}, {Name: "edge2"}}, Counts: map[gossip.Kind]uint64{gossip.UDPBlocked: 1}},
		Flows:  []Flow{{VIP: "192.0.2.10", Role: "forwarding", To: "10.0.0.12", Until: at.Add(4 * time.Minute)}},
		Counts: []Count{{VIP: "192.0.2.10", State: "active", Reason: speaker.OwnerCrashed, Count: 2}},
	}
	s.Degraded = s.degraded()
	return s
}

// broken has everything that can be wrong at once.
func broken() Status {
	s := healthy()
	s.Ready, s.Health, s.Draining, s.Stopping, s.Lasting, s.Stalls = false, "the proxy says nothing for 100ms", true, true, true, 2
	s.VIPs[0] = speaker.VIPStatus{Name: "192.0.2.10", Addresses: []string{"192.0.2.10/32 eth0"}, State: speaker.Backup, Reason: speaker.Started, Priority: 100, Since: moment(), Occupant: "aa:00:00:00:00:01", Wants: "refuses to take it", Released: true, Why: "eth0 is down or does not exist", Conflicts: 4, Rival: "aa:00:00:00:00:01"}
	s.VIPs[1].Owner, s.VIPs[1].Wants, s.VIPs[1].Manual = "", "waits for the proxy", true
	s.Peers = []speaker.PeerStatus{
		{Host: "edge2", Reason: "nothing for 150ms\nVIP fake", Since: moment().Add(-time.Second), Crashed: true, Draining: true, Leaving: true},
		{Host: "edge3", Alive: true, Since: moment().Add(-time.Second)}, {Host: "edge4", Alive: true, Ready: true, Error: "version 2"},
	}
	s.Detectors[0].Detectors[0].Lost = true
	s.Detectors = append(s.Detectors, detect.PeerStatus{Host: "edge9", Address: netip.MustParseAddrPort("10.0.0.19:7947")})
	s.Strangers = []detect.Stranger{{Detector: detect.UDP, From: "10.0.0.99:1", Count: 3, Last: moment(), Reason: "made with a key that this host does not have"}}
	s.Gossip.Clash = "another host is called edge1"
	s.Gossip.Conditions = []gossip.Condition{{Kind: gossip.WrongKey, Message: "10.0.0.12 has another key"}}
	s.Degraded = s.degraded()
	return s
}

func TestText(t *testing.T) {
	for name, s := range map[string]Status{"healthy": healthy(), "broken": broken()} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := s.WriteText(&out); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Errorf("%s (-want +got; -update rewrites):\n%s", file, diff)
			}
		})
	}
}

func TestMetrics(t *testing.T) {
	families, err := registry(func() Status { return broken() }).Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	gathered := map[string]bool{}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "headgate_") {
			gathered[f.GetName()] = true
			if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, want := range []string{
		`headgate_vip_conflicts_total{vip="192.0.2.10"} 4`, `headgate_vip_transitions_total{reason="owner-crashed",state="active",vip="192.0.2.10"} 2`,
		`headgate_vip_proxy_ready 0`, `headgate_vip_owned{vip="web"} 0`, `headgate_vip_peer_alive{peer="edge3"} 1`, `headgate_vip_stalls_total 2`,
		`headgate_detect_deaths_total{peer="edge2",verdict="crashed"} 1`, `headgate_detect_lost{detector="session",peer="edge2"} 1`,
		`headgate_vip_kept_flows{role="forwarding"} 1`, `headgate_gossip_members 2`, `headgate_gossip_conditions_total{kind="UDPBlocked"} 1`,
	} {
		if !strings.Contains(text.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, text.String())
		}
	}
	for _, d := range MetricDocs() {
		if !gathered[d.Name] {
			t.Errorf("%s is documented and not gathered", d.Name)
		}
	}
	problems, err := promlint.New(&text).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// fakeHost is a kernel and a wire on which nobody else is.
type fakeHost struct {
	mu   sync.Mutex // guards held
	held []speaker.Address
}

func (f *fakeHost) Apply(desired []speaker.Address, _ time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = desired
	return nil
}

func (f *fakeHost) Held() ([]speaker.Address, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held, nil
}
func (*fakeHost) Link(string) (speaker.Link, error) { return speaker.Link{Up: true}, nil }
func (*fakeHost) Announce(speaker.Address) error    { return nil }
func (*fakeHost) Watch([]speaker.Address)           {}
func (*fakeHost) Publish([]byte)                    {}
func (*fakeHost) Probe(context.Context, speaker.Address) (net.HardwareAddr, bool, error) {
	return nil, false, nil
}

// serveProcess runs a speaker on a fake host, with the real socket.
func serveProcess(t *testing.T) config.Config {
	t.Helper()
	c := config.Default()
	c.RuntimeDir = filepath.Join(t.TempDir(), "run")
	paths := PathsOf(c)
	s, err := openSocket(t.Context(), paths)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{host: "edge1", version: "v1", log: slog.New(slog.DiscardHandler), paths: paths, socket: s, account: newAccount(), flows: newKeeper(c, "", nil), health: make(chan speaker.Health)}
	host := &fakeHost{}
	p.speaker, err = speaker.New(speaker.Config{
		Host: "edge1", Kernel: host, Wire: host, Publisher: host, Log: p.log, Health: p.health, Observe: p.account.count,
		VIPs: []speaker.VIP{{Name: "web", Addresses: []speaker.Address{{IP: netip.MustParseAddr("192.0.2.10"), Bits: 32, Interface: "eth0"}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- p.speaker.Run(ctx) }()
	go func() { ended <- p.serveSocket(ctx) }()
	p.health <- speaker.Health{Ready: true, Reason: "ready"}
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, <-ended, p.socket.Close()); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "it owns the VIP", func() bool { return len(p.status().owned()) == 1 })
	return c
}

func TestCommands(t *testing.T) {
	c := serveProcess(t)
	paths := PathsOf(c)
	s, err := Ask(t.Context(), paths)
	if err != nil || s.Host != "edge1" || s.VIPs[0].Owner != "edge1" || s.Counts[len(s.Counts)-1].Count != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, c := range []struct {
		name  string
		order Order
		want  string
		err   error
	}{
		{"move", Order{VIP: "192.0.2.10", Host: "edge1"}, "192.0.2.10 is at edge1", nil},
		{"move", Order{VIP: "web", Host: "edge2"}, `not done: web cannot be moved to edge2: no host of that name is known: write one of ["edge1"]`, ErrRefused},
		{"move", Order{VIP: "x", Host: "edge1"}, `not done: no VIP is called "x": write one of ["web"]`, ErrRefused},
		{"drain", Order{}, "drained, but no other host can serve web: it stays here until one can", nil},
		{"move", Order{VIP: "web", Host: "edge1"}, "not done: web cannot be moved to edge1: it is draining: undrain it first", ErrRefused},
		{"undrain", Order{}, "undrained: this host takes VIPs again", nil},
		{"release", Order{VIP: "web"}, "web is released; no other host can serve it", nil},
	} {
		got, err := Command(t.Context(), paths, c.name, c.order)
		if err != nil {
			got = err.Error()
		}
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s %+v: %q, want %q", c.name, c.order, got, c.want)
		}
	}
	if _, err := os.Stat(paths.Drained); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mark of the drain is left: %v", err)
	}
	if _, err := openSocket(t.Context(), paths); !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), fmt.Sprintf("PID %d holds", os.Getpid())) {
		t.Errorf("a second process: %v", err)
	}
	if _, err := Cleanup(c, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrRunning) {
		t.Errorf("cleaned up under a process that lives: %v", err)
	}
}

func TestNobodyAnswers(t *testing.T) {
	c := config.Default()
	c.RuntimeDir = t.TempDir()
	if _, err := Ask(t.Context(), PathsOf(c)); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "'headgate vip run' does not run") {
		t.Error(err)
	}
	if text, err := Cleanup(c, slog.New(slog.DiscardHandler)); err != nil || !strings.Contains(text, "nothing to clean up") {
		t.Errorf("%q, %v", text, err)
	}
}

// While nobody else could take the VIPs a cleanup leaves them.
func TestCleanupKeepsWhatNobodyCouldTake(t *testing.T) {
	c := config.Default()
	c.RuntimeDir = t.TempDir()
	paths := PathsOf(c)
	if err := os.Mkdir(paths.Dir, 0o750); err != nil {
		t.Fatal(err)
	}
	k := &kernel{keep: paths.Keep, lasting: lasting, log: slog.New(slog.DiscardHandler)}
	k.mark(lasting)
	if text, err := Cleanup(c, slog.New(slog.DiscardHandler)); err != nil || !strings.HasPrefix(text, "the addresses stay") {
		t.Errorf("%q, %v", text, err)
	}
	k.mark(2 * time.Second)
	if text, err := Cleanup(c, slog.New(slog.DiscardHandler)); err != nil || text != "the addresses of the VIPs are off" {
		t.Errorf("%q, %v", text, err)
	}
}

// The hook gets keepalived's arguments, in the order of the transitions, and no shell sees them.
func TestHooks(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "told")
	script := filepath.Join(dir, "hook")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nprintf '%s|' \"$@\" >> "+out+"\necho >> "+out+"\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	h := newHooks([]string{script, "first; rm"}, slog.New(slog.DiscardHandler))
	for _, tr := range []speaker.Transition{
		{VIP: "web", To: speaker.Backup, Reason: speaker.Started, Priority: 100},
		{VIP: "$(id)", To: speaker.Active, Reason: speaker.Vacant, Priority: 150},
		{VIP: "web", To: speaker.Init, Reason: speaker.Stalled, Priority: 1},
		{VIP: "web", To: speaker.Backup, Reason: speaker.LinkDown, Priority: 1},
		{VIP: "web", To: speaker.Backup, Reason: speaker.Stopped, Priority: 254},
	} {
		h.tell(tr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // what waits is told all the same
	if err := h.run(ctx); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	want := "first; rm|INSTANCE|web|BACKUP|100|\nfirst; rm|INSTANCE|$(id)|MASTER|150|\nfirst; rm|INSTANCE|web|FAULT|1|\n" +
		"first; rm|INSTANCE|web|FAULT|1|\nfirst; rm|INSTANCE|web|STOP|254|\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

// A hook that fails, or that does not exist, is told with what it said, and holds nothing up.
func TestHooksThatFail(t *testing.T) {
	var log bytes.Buffer
	for _, argv := range [][]string{{"/bin/ls", "/no-such-folder"}, {"/no-such-program"}} {
		h := newHooks(argv, slog.New(slog.NewTextHandler(&log, nil)))
		for range maxWaiting + 1 {
			h.tell(speaker.Transition{VIP: "web", To: speaker.Active})
		}
		for len(h.queue) > 1 {
			<-h.queue
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := h.run(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"no-such-folder", "fork/exec /no-such-program", "vip.notify is too slow"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in %s", want, log.String())
		}
	}
}

// A hook that hangs holds the stop of the process up for a moment only, with all that it has started; what it was not told is
// told in the log.
func TestAHookThatHangsEndsWithTheProcess(t *testing.T) {
	var log bytes.Buffer
	h := newHooks([]string{"/bin/sh", "-c", "yes | head -c 1000000; sleep 100 & sleep 100"}, slog.New(slog.NewTextHandler(&log, nil)))
	h.grace = 300 * time.Millisecond
	const changes = 3
	for range changes {
		h.tell(speaker.Transition{VIP: "web", To: speaker.Active})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	begun := time.Now()
	if err := h.run(ctx); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	if text := log.String(); strings.Count(text, "vip.notify failed") != 1 || strings.Count(text, "a change is not told") != changes-1 || len(text) > 4096 {
		t.Errorf("the log says:\n%.4096s", text)
	}
}

func TestMemberOf(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.2:7946")
	for meta, want := range map[string]string{
		"": "10.0.0.2:7947 []", "vip=7000": "10.0.0.2:7000 []", "vip=x": "10.0.0.2:7947 []", "vip=": "10.0.0.2:7947 []", "vip=0": "10.0.0.2:7947 []",
		"vip=7947 192.0.2.1 fe80::1 nonsense": "10.0.0.2:7947 [192.0.2.1 fe80::1]", "other": "10.0.0.2:7947 []",
	} {
		m := memberOf(gossip.Member{Name: "edge2", Address: at, Meta: []byte(meta)}, 7947)
		if got := fmt.Sprint(m.address, " ", m.own); got != want {
			t.Errorf("%q gives %s, want %s", meta, got, want)
		}
	}
}

func TestLine(t *testing.T) {
	s := healthy().Status
	if got, want := line(s), "owns 1 of 2 VIPs (192.0.2.10); 1 other hosts"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s.Draining = true
	if got := line(s); !strings.HasSuffix(got, "; drained") {
		t.Error(got)
	}
}
