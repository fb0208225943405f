package detect

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/test/netns"
)

const patience = 20 * time.Second

func secret(letter string) []byte { return []byte(strings.Repeat(letter, 32)) }

// running is a Detector under test; what it tells is collected.
type running struct {
	*Detector
	stop func()
	log  *journal
}

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

func start(t *testing.T, cfg Config) *running {
	t.Helper()
	if !cfg.Listen.IsValid() {
		cfg.Listen = netip.MustParseAddrPort("127.0.0.1:0")
	}
	if cfg.Keys == nil {
		cfg.Keys = [][]byte{secret("k")}
	}
	log := &journal{}
	cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return &running{Detector: d, stop: stop, log: log}
}

// meet makes the detectors peers of each other and waits until all are up.
func meet(t *testing.T, all ...*running) {
	t.Helper()
	var peers []Peer
	for _, d := range all {
		peers = append(peers, Peer{Host: d.cfg.Host, Address: d.Address()})
	}
	for _, d := range all {
		if err := d.SetPeers(peers); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range all {
		for range len(all) - 1 {
			d.await(t, Up)
		}
	}
}

// await reads events until one of the kind comes.
func (r *running) await(t *testing.T, k Kind) Event {
	t.Helper()
	limit := time.After(patience)
	var seen []string
	for {
		select {
		case e := <-r.Events():
			if e.Kind == k {
				return e
			}
			seen = append(seen, e.Host+" "+e.Kind.String())
		case <-limit:
			t.Fatalf("no event %s in %v; seen %q, status %+v", k, patience, seen, r.Status())
		}
	}
}

func TestHostsFindEachOtherAndTellTheirState(t *testing.T) {
	for name, at := range map[string]string{"IPv4": "127.0.0.1:0", "IPv6": "[::1]:0"} {
		t.Run(name, func(t *testing.T) {
			listen := netip.MustParseAddrPort(at)
			a, b, c := start(t, Config{Host: "a", Listen: listen}), start(t, Config{Host: "b", Listen: listen}), start(t, Config{Host: "c", Listen: listen})
			meet(t, a, b, c)
			buffer := []byte("ready")
			if err := b.Publish(buffer); err != nil {
				t.Fatal(err)
			}
			copy(buffer, "XXXXX") // Publish has copied
			for _, d := range []*running{a, c} {
				for {
					if e := d.await(t, State); e.Host == "b" && string(e.State) == "ready" {
						break
					}
				}
			}
			netns.Eventually(t, patience, "every detector of every peer is heard", func() bool {
				return !slices.ContainsFunc(a.Status(), func(s PeerStatus) bool {
					return slices.ContainsFunc(s.Detectors, func(d DetectorStatus) bool { return d.Heartbeats < 2 })
				})
			})
			b.stop()
			if e := a.await(t, Left); e.Host != "b" {
				t.Errorf("left: %s, want b", e.Host)
			}
		})
	}
}

func TestPublishRefusesWhatDoesNotFit(t *testing.T) {
	d := start(t, Config{Host: "a"})
	if err := d.Publish(make([]byte, MaxState)); err != nil {
		t.Errorf("%d bytes: %v", MaxState, err)
	}
	if err := d.Publish(make([]byte, MaxState+1)); err == nil {
		t.Errorf("%d bytes: accepted", MaxState+1)
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	good := Config{Host: "a", Keys: [][]byte{secret("k")}, Listen: netip.MustParseAddrPort("127.0.0.1:0")}
	for want, spoil := range map[string]func(*Config){
		`host "": write 1 to 63 letters`:      func(c *Config) { c.Host = "" },
		`host "a b"`:                          func(c *Config) { c.Host = "a b" },
		"listen: write an address and":        func(c *Config) { c.Listen = netip.AddrPort{} },
		"interval 1ms: write 10ms to 10s":     func(c *Config) { c.Interval = time.Millisecond },
		"misses 1: write 2 to 100":            func(c *Config) { c.Misses = 1 },
		"confirm 1m0s: write 1ms to 1s":       func(c *Config) { c.Confirm = time.Minute },
		"no key":                              func(c *Config) { c.Keys = nil },
		"this host does not have the address": func(c *Config) { c.Listen = netip.MustParseAddrPort("192.0.2.77:0") },
	} {
		cfg := good
		spoil(&cfg)
		d, err := New(cfg)
		if err == nil {
			_ = d.Close()
			t.Errorf("accepted, want an error with %q", want)
			continue
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want it to say %q", err, want)
		}
	}
}

func TestAPortThatIsTakenIsNamed(t *testing.T) {
	tcp := start(t, Config{Host: "a"})
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	for name, at := range map[string]netip.AddrPort{"TCP": tcp.Address(), "UDP": udp.LocalAddr().(*net.UDPAddr).AddrPort()} {
		d, err := New(Config{Host: "b", Keys: [][]byte{secret("k")}, Listen: at})
		if err == nil {
			_ = d.Close()
			t.Fatalf("%s: %s taken, and no error", name, at)
		}
		for _, want := range []string{at.String(), "another process has the port"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q does not say %q", name, err, want)
			}
		}
	}
}

func TestPeersThatAreRefused(t *testing.T) {
	d := start(t, Config{Host: "a"})
	for _, p := range []Peer{{Host: "", Address: d.Address()}, {Host: "b"}, {Host: "b", Address: netip.MustParseAddrPort("192.0.2.1:0")}} {
		if err := d.SetPeers([]Peer{p}); err == nil {
			t.Errorf("%+v: accepted", p)
		}
	}
}

func TestAnotherKeyIsToldOnBothSides(t *testing.T) {
	a, b := start(t, Config{Host: "a"}), start(t, Config{Host: "b", Keys: [][]byte{secret("x")}})
	peers := []Peer{{Host: "a", Address: a.Address()}, {Host: "b", Address: b.Address()}}
	for _, d := range []*running{a, b} {
		if err := d.SetPeers(peers); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		at   *running
		peer string
	}{{a, "b"}, {b, "a"}} {
		for _, via := range []Via{Session, UDP} {
			netns.Eventually(t, patience, "a stranger on "+string(via), func() bool {
				return slices.ContainsFunc(c.at.Strangers(), func(s Stranger) bool {
					return s.Detector == via && s.From == "127.0.0.1" && s.Claims == c.peer && s.Reason == errForeignKey.Error() && s.Count > 0
				})
			})
		}
		if got := c.at.Status()[0]; got.Word != "unknown" {
			t.Errorf("%s is %s: believed with another key", c.peer, got.Word)
		}
		if lines := strings.Count(c.at.log.String(), "packet not believed"); lines < 1 || lines > 4 {
			t.Errorf("%d lines about it, want one for each detector and way of failing:\n%s", lines, c.at.log)
		}
		if strings.Contains(c.at.log.String(), string(secret("k"))) || strings.Contains(c.at.log.String(), string(secret("x"))) {
			t.Error("a key stands in the log")
		}
	}
}

// All hosts get the new key behind the old one, then in front of it, then alone: nobody is lost on the way.
func TestKeysRotateWithoutAGap(t *testing.T) {
	a, b := start(t, Config{Host: "a", Interval: 20 * time.Millisecond, Misses: 20}), start(t, Config{Host: "b", Interval: 20 * time.Millisecond, Misses: 20})
	meet(t, a, b)
	old, fresh := secret("k"), secret("n")
	heard := func(d *running) uint64 { return d.Status()[0].Detectors[0].Heartbeats }
	for _, keys := range [][][]byte{{old, fresh}, {fresh, old}, {fresh}} {
		for _, d := range []*running{a, b} {
			if err := d.SetKeys(keys); err != nil {
				t.Fatal(err)
			}
			atA, atB := heard(a), heard(b)
			netns.Eventually(t, patience, "heartbeats go on", func() bool { return heard(a) > atA+3 && heard(b) > atB+3 })
		}
	}
	for _, s := range slices.Concat(a.Strangers(), b.Strangers()) {
		if s.Reason != noPeer { // before SetPeers
			t.Errorf("not believed on the way: %+v", s)
		}
	}
	for _, d := range []*running{a, b} {
		if s := d.Status()[0]; s.Crashes+s.Silences > 0 || s.Verdict != Up {
			t.Errorf("on the way: %+v", s)
		}
	}
	if err := a.SetKeys(nil); err == nil {
		t.Error("no keys: accepted")
	}
}

// wire is a peer that is played by the test, at the level of bytes.
type wire struct {
	t        *testing.T
	host     string
	ring     keyring
	process  uint64
	counter  uint64
	listener *net.TCPListener
	udp      *net.UDPConn
}

func newWire(t *testing.T, host string, process uint64) *wire {
	t.Helper()
	w := &wire{t: t, host: host, ring: ringOfSecret(t), process: process}
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	w.listener = tcp
	if w.udp, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: tcp.Addr().(*net.TCPAddr).Port}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tcp.Close(); _ = w.udp.Close() })
	return w
}

func ringOfSecret(t *testing.T) keyring {
	ring, err := newKeyring([][]byte{secret("k")})
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

func (w *wire) peer() Peer {
	return Peer{Host: w.host, Address: w.listener.Addr().(*net.TCPAddr).AddrPort()}
}

func (w *wire) seal(k kind, over channel, nonce [nonceBytes]byte, to string) []byte {
	w.counter++
	return w.ring[0].seal(packet{kind: k, channel: over, incarnation: w.process, counter: w.counter, nonce: nonce, from: w.host, to: to})
}

func (w *wire) send(to *running, b []byte) {
	w.t.Helper()
	if _, err := w.udp.WriteToUDPAddrPort(b, to.Address()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) write(c net.Conn, packets ...[]byte) {
	w.t.Helper()
	for _, p := range packets {
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(p))), p...)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// session accepts the detector's connection and does the handshake; heartbeats that come before the answer are skipped.
func (w *wire) session() net.Conn {
	w.t.Helper()
	c, err := w.listener.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	w.write(c, w.seal(challenge, overSession, [nonceBytes]byte{5}, ""))
	for answered := false; ; {
		b, err := readFrame(c)
		if err != nil {
			w.t.Fatal(err)
		}
		p, err := w.ring.open(b, overSession)
		if err != nil {
			w.t.Fatal(err)
		}
		answered = answered || p.kind == answer && p.nonce == [nonceBytes]byte{5}
		if p.kind == challenge && answered {
			w.write(c, w.seal(answer, overSession, p.nonce, p.from))
			return c
		}
	}
}

func TestTheEndOfASessionAndARefusedRedialAreACrash(t *testing.T) {
	a := start(t, Config{Host: "a", Interval: 100 * time.Millisecond, Misses: 50})
	w := newWire(t, "w", 7)
	if err := a.SetPeers([]Peer{w.peer()}); err != nil {
		t.Fatal(err)
	}
	c := w.session()
	a.await(t, Up)
	lived(t, a)
	_ = w.listener.Close()
	_ = c.Close()
	e := a.await(t, Crashed)
	if e.Host != "w" || e.Incarnation != 7 || !strings.Contains(e.Reason, "refused") {
		t.Errorf("told %+v", e)
	}
}

// lived lets the session grow older than an interval: a shorter one is not redialed at once.
func lived(t *testing.T, a *running) {
	t.Helper()
	begun := time.Now()
	netns.Eventually(t, patience, "an interval passes", func() bool { return time.Since(begun) > a.Interval() })
}

// The kernel of a dying process still accepts: without a greeting the connection proves nothing but its end.
func TestARedialThatIsClosedUngreetedIsACrash(t *testing.T) {
	a := start(t, Config{Host: "a", Misses: 50})
	w := newWire(t, "w", 7)
	if err := a.SetPeers([]Peer{w.peer()}); err != nil {
		t.Fatal(err)
	}
	c := w.session()
	a.await(t, Up)
	lived(t, a)
	_ = c.Close()
	c, err := w.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if e := a.await(t, Crashed); !strings.Contains(e.Reason, "closed before the greeting") {
		t.Errorf("reason %q", e.Reason)
	}
}

func TestARedialThatIsGreetedIsNoCrash(t *testing.T) {
	a := start(t, Config{Host: "a", Misses: 50})
	w := newWire(t, "w", 7)
	if err := a.SetPeers([]Peer{w.peer()}); err != nil {
		t.Fatal(err)
	}
	c := w.session()
	a.await(t, Up)
	lived(t, a)
	_ = c.Close()
	c = w.session()
	if s := a.Status()[0]; s.Crashes != 0 || s.Verdict != Up {
		t.Errorf("status %+v: want no crash", s)
	}
	lived(t, a)
	_ = c.Close()
	w.process = 8
	w.session()
	if e := a.await(t, Up); !e.Restarted || e.Incarnation != 8 || a.Status()[0].Crashes != 0 {
		t.Errorf("told %+v: want a restart and no crash", e)
	}
}

// A firewall that refuses TCP is no crash: the peer answers on another detector before that is told.
func TestAnAnswerOnAnotherDetectorRefutesACrash(t *testing.T) {
	a := start(t, Config{Host: "a", Misses: 50, Confirm: time.Second})
	w := newWire(t, "w", 7)
	if err := a.SetPeers([]Peer{w.peer()}); err != nil {
		t.Fatal(err)
	}
	c := w.session()
	a.await(t, Up)
	lived(t, a)
	_ = w.listener.Close()
	_ = c.Close()
	w.answerUDP(a)
	netns.Eventually(t, patience, "the crash is doubted", func() bool { return a.Status()[0].Doubts == 1 })
	if s := a.Status()[0]; s.Crashes != 0 || s.Verdict != Up {
		t.Errorf("status %+v: want no crash", s)
	}
}

// answerUDP answers the first challenge that comes by UDP.
func (w *wire) answerUDP(a *running) {
	w.t.Helper()
	if err := w.udp.SetReadDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	buffer := make([]byte, maxPacket)
	for {
		n, err := w.udp.Read(buffer)
		if err != nil {
			w.t.Fatal(err)
		}
		p, err := w.ring.open(buffer[:n], overUDP)
		if err != nil {
			w.t.Fatal(err)
		}
		if p.kind == challenge && p.to == w.host {
			w.send(a, w.seal(answer, overUDP, p.nonce, p.from))
			return
		}
	}
}

func TestForgedAndReplayedPacketsAreCountedAndNotBelieved(t *testing.T) {
	a := start(t, Config{Host: "a"})
	w := newWire(t, "w", 7)
	_ = w.listener.Close() // UDP alone
	if err := a.SetPeers([]Peer{w.peer()}); err != nil {
		t.Fatal(err)
	}
	recorded := w.seal(beat, overUDP, [nonceBytes]byte{}, "")
	w.send(a, recorded)
	w.answerUDP(a)
	a.await(t, Up)

	forged := w.seal(beat, overUDP, [nonceBytes]byte{}, "")
	forged[len(forged)-1] ^= 1
	w.send(a, forged)
	netns.Eventually(t, patience, "the forgery is counted", func() bool {
		return slices.ContainsFunc(a.Strangers(), func(s Stranger) bool { return s.Reason == errForged.Error() && s.Claims == "w" })
	})
	udp := func() DetectorStatus { return a.Status()[0].Detectors[1] }
	before := udp()
	w.send(a, recorded)
	netns.Eventually(t, patience, "the replay is counted", func() bool { return udp().Old == before.Old+1 })
	if after := udp(); !after.Heard.Equal(before.Heard) {
		t.Error("a replay counts as heard")
	}
	// A process that only replays what another one recorded cannot keep the host alive.
	a.await(t, Silent)
	w.send(a, w.seal(beat, overUDP, [nonceBytes]byte{}, ""))
	netns.Eventually(t, patience, "a newer heartbeat after the verdict is not enough", func() bool { return udp().Unproven > 0 })
	if s := a.Status()[0]; s.Verdict != Silent {
		t.Errorf("%s: a heartbeat alone took a death back", s.Word)
	}
	netns.Eventually(t, patience, "an answer to a challenge after the verdict takes it back", func() bool {
		w.send(a, w.seal(beat, overUDP, [nonceBytes]byte{}, ""))
		w.answerUDP(a) // the first may be an answer to what was asked before the verdict: it proves nothing
		return a.Status()[0].Verdict == Up
	})
	if e := a.await(t, Up); e.Restarted || a.Status()[0].FalseSilences != 1 {
		t.Errorf("told %+v, status %+v: want a death that is taken back", e, a.Status()[0])
	}
}

// A flood of connections that never prove themselves must not look like a dead process to the peers.
func TestAFloodOfConnectionsIsStillGreeted(t *testing.T) {
	a := start(t, Config{Host: "a"})
	for i := range handshakes + 8 {
		c, err := net.Dial("tcp", a.Address().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		b, err := readFrame(c)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if p, err := ringOfSecret(t).open(b, overSession); err != nil || p.kind != challenge {
			t.Fatalf("connection %d: greeted with %+v, %v", i, p, err)
		}
	}
}

func TestAHostThatIsJustNotNamedYetIsNotTold(t *testing.T) {
	log := &journal{}
	s := newStrangers(slog.New(slog.NewTextHandler(log, nil)))
	now := time.Unix(1000, 0)
	early := Stranger{Detector: UDP, From: "10.0.0.2", Claims: "b", Reason: noPeer}
	s.note(early, now)
	s.note(early, now.Add(strangerPatience-1))
	if log.String() != "" {
		t.Errorf("told at once: %s", log)
	}
	s.note(early, now.Add(strangerPatience))
	s.note(early, now.Add(2*strangerPatience))
	if n := strings.Count(log.String(), "claims=b"); n != 1 {
		t.Errorf("%d lines, want one", n)
	}
}

func TestStrangersAreBounded(t *testing.T) {
	log := &journal{}
	s := newStrangers(slog.New(slog.NewTextHandler(log, nil)))
	now := time.Unix(1000, 0)
	for i := range 1000 {
		now = now.Add(time.Millisecond)
		s.note(Stranger{Detector: UDP, From: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String(), Reason: "x"}, now)
	}
	if n := len(s.list()); n != maxStrangers {
		t.Errorf("%d are kept, want %d", n, maxStrangers)
	}
	if n := strings.Count(log.String(), "\n"); n != strangerBurst {
		t.Errorf("%d lines, want %d", n, strangerBurst)
	}
	now = now.Add(strangerLog)
	s.note(Stranger{Detector: UDP, From: "10.0.3.231", Reason: "x"}, now)
	if got := s.list(); got[len(got)-1].Count != 2 {
		t.Errorf("the newest is %+v, want the one that was noted twice", got[len(got)-1])
	}
	if n := strings.Count(log.String(), "\n"); n != strangerBurst+1 {
		t.Errorf("%d lines after the pause, want one more", n)
	}
}
