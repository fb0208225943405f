package detect

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// bench is a judge with a clock of its own and the peers alpha and beta; it speaks for them.
type bench struct {
	t *testing.T
	*judge
	now     time.Time
	counter uint64
}

const step = 25 * time.Millisecond // a quarter of the interval of 100 ms

func newBench(t *testing.T) *bench {
	start := time.Unix(1000, 0)
	j := newJudge(rules{self: "self", incarnation: 1, interval: 4 * step, misses: 3, confirm: 5 * time.Millisecond}, start)
	j.detectors = append(j.detectors, linkVia("eth0"))
	j.watch([]Peer{{Host: "alpha", Address: netip.MustParseAddrPort("192.0.2.1:1")}, {Host: "beta", Address: netip.MustParseAddrPort("192.0.2.2:1")}})
	j.resume(start)
	return &bench{t: t, judge: j, now: start}
}

// pass lets time go by, with ticks, while the hosts named are heard on the detectors.
func (b *bench) pass(d time.Duration, via []Via, hosts ...string) {
	for end := b.now.Add(d); b.now.Before(end); {
		b.now = b.now.Add(step)
		for _, h := range hosts {
			for _, v := range via {
				b.say(h, v, beat)
			}
		}
		b.tick(b.now)
	}
}

func (b *bench) say(host string, via Via, k kind) {
	b.counter++
	b.hear(b.now, via, packet{kind: k, from: host, incarnation: b.of(host), counter: b.counter})
}

func (b *bench) of(host string) uint64 { return uint64(host[0]) }

// answer proves the host, as the process that it is.
func (b *bench) answer(host string, incarnation uint64) {
	for _, a := range b.asks {
		if a.host == host {
			b.counter++
			b.hear(b.now, UDP, packet{kind: answer, from: host, to: "self", incarnation: incarnation, counter: b.counter, nonce: a.nonce})
		}
	}
	b.asks = nil
}

// crash is what the session sees of one.
func (b *bench) crash(host string) {
	b.ended(host, b.of(host))
	b.refused(b.now, host, "refused")
}

// told takes the events as words.
func (b *bench) told() string {
	var words []string
	for _, e := range b.out {
		word := e.Host + " " + e.Kind.String()
		if e.Restarted {
			word += " restarted"
		}
		if e.Detector != "" {
			word += " " + string(e.Detector)
		}
		words = append(words, word)
	}
	b.out = nil
	return strings.Join(words, ", ")
}

func (b *bench) want(what, events string) {
	b.t.Helper()
	if got := b.told(); got != events {
		b.t.Fatalf("%s: told %q, want %q", what, got, events)
	}
}

func (b *bench) up(hosts ...string) {
	for _, h := range hosts {
		b.greeted(b.now, h, b.of(h))
	}
	b.told()
}

func all() []Via { return []Via{Session, UDP, linkVia("eth0")} }

func TestAHostIsUpOnlyAfterAProof(t *testing.T) {
	b := newBench(t)
	b.pass(time.Second, all(), "alpha")
	b.want("heartbeats alone", "")
	if got := b.status()[0]; got.Detectors[1].Unproven == 0 || got.Word != "unknown" {
		t.Errorf("status %+v: want heartbeats counted as unproven", got)
	}
	b.answer("alpha", b.of("alpha"))
	b.want("an answer", "alpha up")
}

func TestSilenceIsThatOfAllDetectors(t *testing.T) {
	b := newBench(t)
	b.up("alpha", "beta")
	b.pass(time.Second, all(), "alpha", "beta")
	b.want("both heard", "")
	b.pass(300*time.Millisecond, []Via{linkVia("eth0")}, "alpha")
	b.want("beta quiet for three intervals", "beta quiet")
	b.pass(step, []Via{linkVia("eth0")}, "alpha")
	b.want("beta quiet for longer", "beta silent")
	b.pass(time.Second, []Via{linkVia("eth0")}, "alpha")
	b.want("alpha heard on the link alone", "alpha lost session, alpha lost udp")
	b.pass(step, all(), "alpha")
	b.want("all again", "alpha regained session, alpha regained udp")
	if s := b.status()[0].Detectors[1]; s.Losses != 1 || s.Regains != 1 || s.Lost {
		t.Errorf("counted %+v, want one loss and one regain", s)
	}
}

func TestAVerdictIsDueWhenTheSilenceEnds(t *testing.T) {
	b := newBench(t)
	if at, ok := b.due(); ok {
		t.Errorf("due at %v before anybody is known", at)
	}
	b.up("alpha")
	b.pass(time.Second, all(), "alpha")
	heard := b.now
	for _, c := range []struct {
		after time.Duration
		want  string
	}{{200 * time.Millisecond, "alpha quiet"}, {300 * time.Millisecond, "alpha silent"}} {
		at, ok := b.due()
		if late := at.Sub(heard.Add(c.after)); !ok || late <= 0 || late > time.Millisecond {
			t.Errorf("due %v after %s, %t; want at once", late, c.after, ok)
		}
		b.pass(heard.Add(c.after).Sub(b.now), nil)
		b.tick(at)
		b.want("at that time", c.want)
	}
}

func TestADetectorThatNeverHeardIsTold(t *testing.T) {
	b := newBench(t)
	b.up("alpha")
	b.pass(2*time.Second, []Via{Session, UDP}, "alpha")
	b.want("a link that carries nothing", "alpha lost link:eth0")
}

// After a verdict of death nothing that could be a recording takes it back.
func TestOnlyAnAnswerTakesADeathBack(t *testing.T) {
	b := newBench(t)
	b.up("beta")
	b.pass(time.Second, all(), "beta")
	b.pass(500*time.Millisecond, all())
	b.want("silence", "beta quiet, beta silent")
	b.asks = nil
	b.pass(500*time.Millisecond, all(), "beta")
	b.want("newer heartbeats of the same process", "")
	b.answer("beta", b.of("beta"))
	b.want("its answer", "beta up")
	if s := b.status()[1]; s.Silences != 1 || s.FalseSilences != 1 {
		t.Errorf("counted %+v, want one false silence", s)
	}
}

func TestAnswersThatProveNothing(t *testing.T) {
	right := func(b *bench) packet {
		return packet{kind: answer, from: "beta", to: "self", incarnation: 77, counter: 1e6, nonce: b.asks[0].nonce}
	}
	for name, spoil := range map[string]func(*bench, *packet){
		"another nonce":     func(_ *bench, p *packet) { p.nonce[0]++ },
		"for another host":  func(_ *bench, p *packet) { p.to = "alpha" },
		"of another host":   func(_ *bench, p *packet) { p.from = "alpha" },
		"no answer":         func(_ *bench, p *packet) { p.kind = beat },
		"too late":          func(b *bench, _ *packet) { b.now = b.now.Add(nonceLife + 1) },
		"no host of ours":   func(_ *bench, p *packet) { p.from = "gamma" },
		"answered before":   func(b *bench, p *packet) { b.hear(b.now, UDP, *p); b.told(); p.incarnation = 78 },
		"an older question": func(b *bench, p *packet) { b.peers["beta"].asked = time.Time{}; b.challenge(b.now, b.peers["beta"]) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.say("beta", UDP, beat)
			p := right(b)
			spoil(b, &p)
			b.hear(b.now, UDP, p)
			b.want(name, "")
		})
	}
	b := newBench(t)
	b.say("beta", UDP, beat)
	b.hear(b.now, UDP, right(b))
	b.want("the right one", "beta up")
}

func TestACrashNeedsSessionRedialAndNoAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		then func(*bench)
		want string
	}{
		"nobody answers": {func(*bench) {}, "beta crashed"},
		"it answers":     {func(b *bench) { b.answer("beta", b.of("beta")) }, ""},
		"it greets":      {func(b *bench) { b.greeted(b.now, "beta", b.of("beta")) }, ""},
		"a new process":  {func(b *bench) { b.greeted(b.now, "beta", 99) }, "beta up restarted"},
		"late heartbeat": {func(b *bench) { b.say("beta", UDP, beat) }, "beta crashed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.up("beta")
			b.crash("beta")
			if at, ok := b.due(); !ok || at.Sub(b.now) != 5*time.Millisecond {
				t.Fatalf("due at %v, %t", at, ok)
			}
			b.now = b.now.Add(2 * time.Millisecond)
			c.then(b)
			b.now = b.now.Add(3 * time.Millisecond)
			b.confirmed(b.now)
			b.want(name, c.want)
		})
	}
}

func TestACrashOfAnotherProcessIsNone(t *testing.T) {
	b := newBench(t)
	b.up("beta")
	b.refused(b.now, "beta", "refused") // without the end of a session
	b.ended("beta", 12345)
	b.refused(b.now, "beta", "refused")
	b.ended("gamma", 1)
	b.refused(b.now, "gamma", "refused")
	if b.peers["beta"].suspected {
		t.Error("beta is suspected")
	}
	b.confirmed(b.now.Add(time.Second))
	b.want("no end of a session, an earlier process, a stranger", "")
}

func TestAFalseCrashIsCounted(t *testing.T) {
	b := newBench(t)
	b.up("beta")
	b.crash("beta")
	b.now = b.now.Add(6 * time.Millisecond)
	b.confirmed(b.now)
	b.greeted(b.now, "beta", b.of("beta"))
	b.want("dead and back", "beta crashed, beta up")
	if s := b.status()[1]; s.Crashes != 1 || s.FalseCrashes != 1 {
		t.Errorf("counted %+v, want one false crash", s)
	}
}

// After a stall of its own the judge waits: what came meanwhile lies in queues.
func TestAStalledJudgeAccusesNobody(t *testing.T) {
	b := newBench(t)
	b.up("alpha", "beta")
	b.pass(time.Second, all(), "alpha", "beta")
	b.now = b.now.Add(10 * time.Second)
	b.tick(b.now)
	b.want("the first look", "")
	b.pass(250*time.Millisecond, nil)
	b.want("within the grace", "alpha quiet, beta quiet")
	if b.stalls != 1 {
		t.Errorf("%d stalls counted, want 1", b.stalls)
	}
	b.pass(time.Second, all(), "alpha")
	b.want("beta is really gone", "beta silent")
}

func TestACrashThatWasDueDuringAStallIsAskedAgain(t *testing.T) {
	b := newBench(t)
	b.up("beta")
	b.crash("beta")
	b.now = b.now.Add(5 * time.Second)
	b.tick(b.now)
	b.want("late", "")
	b.answer("beta", b.of("beta"))
	b.now = b.now.Add(10 * time.Millisecond)
	b.tick(b.now)
	b.want("answered after all", "")
}

func TestReplaysAndOldPacketsChangeNothing(t *testing.T) {
	b := newBench(t)
	b.up("beta")
	newest := packet{kind: beat, from: "beta", incarnation: b.of("beta"), counter: 10, state: []byte("ten")}
	b.hear(b.now, UDP, newest)
	b.want("news", "beta state")
	old := newest
	old.counter, old.state = 9, []byte("nine")
	for _, p := range []packet{newest, old} {
		b.hear(b.now.Add(time.Second), UDP, p)
	}
	b.hear(b.now, Session, old) // a slower channel
	b.want("a duplicate, an overtaken one, a slower channel", "")
	s := b.status()[1]
	if s.Detectors[1].Old != 2 || !s.Detectors[1].Heard.Equal(b.now) {
		t.Errorf("%+v: want two old ones that were not heard", s.Detectors[1])
	}
	b.pass(time.Second, all())
	b.told()
	b.greeted(b.now, "beta", 99)
	b.want("a new process", "beta up restarted")
	newest.counter = 1e9
	b.hear(b.now, UDP, newest)
	b.want("a recording of the earlier boot", "")
	if got := b.peers["beta"].state; bytes.Equal(got, []byte("ten")) {
		t.Error("the state of the earlier boot is believed")
	}
}

func TestAFarewellIsNoCrash(t *testing.T) {
	b := newBench(t)
	b.up("beta")
	b.say("beta", UDP, farewell)
	b.crash("beta")
	b.now = b.now.Add(time.Second)
	b.tick(b.now)
	b.want("farewell, then the end of the session", "beta left")
}

func TestTwoProcessesOfOneName(t *testing.T) {
	b := newBench(t)
	b.up("beta")
	b.greeted(b.now, "beta", 99)
	b.greeted(b.now, "beta", b.of("beta"))
	b.want("a peer's name twice", "beta up restarted, beta clash")
	b.greeted(b.now, "beta", b.of("beta"))
	b.want("told once", "")

	recorded := packet{kind: beat, from: "self", incarnation: 2, counter: 5}
	b.hearSelf(b.now, recorded)
	b.want("our name in what may be a recording", "")
	b.hearSelf(b.now, packet{kind: answer, from: "self", to: "self", incarnation: 2, nonce: b.mirror.nonce})
	b.want("our name with a proof", "self clash")
}

func TestPeersThatAreNoLongerWanted(t *testing.T) {
	b := newBench(t)
	b.up("alpha", "beta")
	b.watch([]Peer{{Host: "alpha"}})
	b.pass(time.Second, all(), "alpha")
	b.want("beta forgotten", "")
	if len(b.status()) != 1 {
		t.Errorf("%d peers, want 1", len(b.status()))
	}
}

func TestASlowReaderGetsTheNewestStateAndEveryVerdict(t *testing.T) {
	b := newBench(t)
	b.up("alpha", "beta")
	state := func(host, text string) {
		b.counter++
		b.hear(b.now, UDP, packet{kind: beat, from: host, incarnation: b.of(host), counter: b.counter, state: []byte(text)})
	}
	state("beta", "1")
	state("alpha", "a")
	state("beta", "2")
	b.say("beta", UDP, farewell)
	b.greeted(b.now, "beta", b.of("beta"))
	state("beta", "3")
	if got := string(b.out[0].State); got != "2" {
		t.Errorf("the first state is %q, want 2", got)
	}
	b.want("in order", "beta state, alpha state, beta left, beta up, beta state")
}

// Whatever is lost, doubled or overtaken: a host of which one detector brings something new in every silence period
// stays up, and every state that is told is newer than the one before.
func TestLossAndReorderingHarmNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBench(nil)
		b.up("beta")
		seed := rapid.Uint64().Draw(t, "seed")
		random := rand.New(rand.NewPCG(seed, 1))
		var sent []packet
		quiet := time.Duration(0)
		last := byte(0)
		for i := range 400 {
			b.now = b.now.Add(step)
			p := packet{kind: beat, from: "beta", incarnation: b.of("beta"), counter: uint64(i + 1), state: []byte{byte(i / 100)}}
			sent = append(sent, p)
			quiet += step
			if random.IntN(3) > 0 || quiet > 200*time.Millisecond {
				b.hear(b.now, all()[random.IntN(3)], p)
				quiet = 0
			}
			for range random.IntN(3) { // recordings of this boot, on any detector
				b.hear(b.now, all()[random.IntN(3)], sent[random.IntN(len(sent))])
			}
			b.tick(b.now)
			for _, e := range b.out {
				if slices.Contains([]Kind{Crashed, Silent, Left, Clash}, e.Kind) {
					t.Fatalf("step %d: %s: %s", i, e.Kind, e.Reason)
				}
				if e.Kind == State {
					if e.State[0] < last {
						t.Fatalf("step %d: state %d after %d", i, e.State[0], last)
					}
					last = e.State[0]
				}
			}
			b.out = nil
		}
	})
}
