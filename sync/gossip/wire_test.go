package gossip

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func FuzzEnvelope(f *testing.F) {
	f.Add([]byte(`{"greeting":{"cluster":"c","host":"h","key":"0123abcd","verdict":"welcome"},"random":"AAAA","sealed":"AAAA"}`))
	f.Add([]byte(`{"greeting":{"host":"\u0000"}}`))
	seal := newSealer(Secret{strings.Repeat("s", secretBytes)}, make([]byte, randomBytes), make([]byte, randomBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEnvelope(b)
		if err != nil {
			return
		}
		for _, text := range []string{e.Greeting.Cluster, e.Greeting.Host, e.Greeting.KeyID, e.Greeting.Retired} {
			if len(text) > maxName || strings.ContainsAny(text, "\n\r\x00\x1b") {
				t.Fatalf("let through: %q", text)
			}
		}
		var r request
		if seal.open(fromClient, e, &r) == nil {
			t.Fatal("believed what nobody sealed")
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x00\x02{}\x00"))
	f.Add([]byte{0xff, 0xff, '{'})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			if _, err := readFrame(r); err != nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || r.Len() == 0) {
				return
			}
			if r.Len() == 0 {
				return
			}
		}
	})
}

func FuzzLabel(f *testing.F) {
	f.Add([]byte{labelByte, 1, 'x', 0})
	f.Add([]byte{labelByte, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		if label := labelOf(b); label != "" && !bytes.Contains(b, []byte(label)) {
			t.Fatalf("label %q", label)
		}
		if len(parseMeta(b)) > len(b) {
			t.Fatal("longer than what it came from")
		}
	})
}

// Everything of an exchange is authentic: changed, from another exchange, or turned around, it is refused.
func TestWhatIsSealedCannotBeChangedOrReplayed(t *testing.T) {
	s, server, client := NewSecret(), bytes.Repeat([]byte{1}, randomBytes), bytes.Repeat([]byte{2}, randomBytes)
	seal := newSealer(s, server, client)
	g := greeting{Cluster: "c", Host: "h", KeyID: s.ID()}
	sealed, err := seal.seal(fromClient, g, request{Op: opRetire, ID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	good := envelope{Greeting: g, Sealed: sealed}
	var r request
	if err := seal.open(fromClient, good, &r); err != nil || r.Op != opRetire {
		t.Fatalf("the right one: %+v, %v", r, err)
	}
	renamed, cut, turned := good, good, good
	renamed.Greeting.Host = "other"
	cut.Sealed = sealed[1:]
	turned.Sealed = bytes.Clone(sealed)
	turned.Sealed[0] ^= 1
	for name, c := range map[string]struct {
		with      sealer
		direction byte
		e         envelope
	}{
		"another name":       {seal, fromClient, renamed},
		"cut":                {seal, fromClient, cut},
		"one bit":            {seal, fromClient, turned},
		"the other way":      {seal, fromServer, good},
		"another exchange":   {newSealer(s, client, client), fromClient, good},
		"another secret":     {newSealer(NewSecret(), server, client), fromClient, good},
		"nothing was sealed": {seal, fromClient, envelope{Greeting: g}},
	} {
		if err := c.with.open(c.direction, c.e, &r); err == nil {
			t.Errorf("%s: believed", name)
		}
	}
}

func TestLinesOfMemberlistThatAreConditions(t *testing.T) {
	for line, want := range map[string]string{
		"[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the message from=10.0.0.3:7946":         "WrongKey 10.0.0.3",
		"[ERR] memberlist: failed to receive: no installed keys could decrypt the message from=[fe80::1%eth0]:4711":       "WrongKey fe80::1%eth0",
		"[ERR] memberlist: failed to receive: encryption is configured but remote state is not encrypted from=10.0.0.3:1": "WrongKey 10.0.0.3",
		"[WARN] memberlist: Was able to connect to beta over TCP but UDP probes failed, network may be misconfigured":     "UDPBlocked beta",
		"[ERR] memberlist: Conflicting address for a. Mine: 10.0.0.1:7946 Theirs: 10.0.0.2:7946 Old state: 0":             "",
		"[DEBUG] memberlist: Stream connection from=10.0.0.3:4711":                                                        "",
		"[INFO] memberlist: Suspect beta has failed, no acks received":                                                    "",
		"[ERR] memberlist: Failed to send gossip to 10.0.0.3:7946: write udp: network is unreachable":                     "logged",
		"[ERR] memberlist: failed to receive: read tcp 10.0.0.1:7946->10.0.0.3:1: i/o timeout from=10.0.0.3:1":            "logged",
	} {
		var log strings.Builder
		got := ""
		to := &lines{log: slog.New(slog.NewTextHandler(&log, nil)), last: map[string]time.Time{}, note: func(k Kind, peer, _ string) { got = string(k) + " " + peer }}
		for range 2 {
			if _, err := io.WriteString(to, line+"\n"); err != nil {
				t.Fatal(err)
			}
		}
		if got == "" && log.Len() > 0 {
			got = "logged"
			if n := strings.Count(log.String(), "\n"); n != 1 {
				t.Errorf("%s: %d lines at once", line, n)
			}
		}
		if got != want {
			t.Errorf("%s\nbecame %q, want %q", line, got, want)
		}
	}
}

// Of two that meet exactly one refuses, whatever they thought before; the clocks of the two ends of an exchange differ.
func TestOneOfTwoRivalsRefuses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rivalSeen{instance: rapid.Uint64().Draw(t, "a"), age: time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "ageA"))}
		b := rivalSeen{instance: rapid.Uint64().Draw(t, "b"), age: a.age + time.Duration(rapid.Int64Range(-5e9, 5e9).Draw(t, "difference"))}
		a.refused, b.refused = rapid.Bool().Draw(t, "refusedA"), rapid.Bool().Draw(t, "refusedB")
		if a.instance == b.instance {
			t.Skip("one process")
		}
		if loses(a, b) == loses(b, a) {
			t.Fatalf("%+v and %+v judge alike", a, b)
		}
	})
}

func TestTheYoungerProcessRefuses(t *testing.T) {
	old, young := rivalSeen{instance: 1, age: time.Hour}, rivalSeen{instance: 2, age: time.Minute}
	if loses(old, young) || !loses(young, old) {
		t.Error("the older one refuses")
	}
	old.refused = true
	if !loses(old, young) {
		t.Error("one that has refused takes its name from one that serves")
	}
}

func TestPeersAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.2": "10.0.0.2 7946", "10.0.0.2:1": "10.0.0.2 1", "fd00::2": "fd00::2 7946", "[fd00::2]": "fd00::2 7946", "[fd00::2]:5": "fd00::2 5",
		"edge.example.com": "edge.example.com 7946", "edge:99": "edge 99",
		"": "!", "edge:0": "!", "edge:99999": "!", "edge:x": "!", "a b": "!", "http://edge": "!", "10.0.0.2:0": "!",
	} {
		host, port, err := splitPeer(text, 7946)
		got := host + " " + netip.AddrPortFrom(netip.IPv4Unspecified(), port).String()[len("0.0.0.0:"):]
		if err != nil {
			got = "!"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// A keyring step that is done twice is done once, and no step loses the key in use.
func TestStepsOfARotation(t *testing.T) {
	old, fresh := NewSecret(), NewSecret()
	k := keyring{Secrets: []Secret{old}, Seed: "s"}
	step := func(what string, f func(keyring) (keyring, error)) {
		t.Helper()
		for range 2 {
			var err error
			if k, err = f(k); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	want := func(turn uint64, secrets ...Secret) {
		t.Helper()
		if idList(k.Secrets) != idList(secrets) || k.Turn != turn || k.Seed != "s" {
			t.Fatalf("keys %s, turn %d; want %s, turn %d", idList(k.Secrets), k.Turn, idList(secrets), turn)
		}
	}
	step("accept", func(k keyring) (keyring, error) { return accept(k, fresh) })
	want(0, old, fresh)
	if _, err := accept(k, NewSecret()); err == nil {
		t.Error("a third key is accepted before the rotation is finished")
	}
	if _, err := retire(k, fresh.ID(), time.Now()); err == nil {
		t.Error("the key in use is retired")
	}
	step("use", func(k keyring) (keyring, error) { return use(k, fresh.ID(), time.Now()) })
	want(1, fresh, old)
	if _, err := forget(k, fresh.ID()); err == nil {
		t.Error("the key in use is forgotten")
	}
	step("retire", func(k keyring) (keyring, error) { return retire(k, fresh.ID(), time.Now()) })
	want(1, fresh)
	if _, ok := k.retiredAt(old.ID()); !ok {
		t.Error("the old key is not noted as retired")
	}
	if _, err := use(k, old.ID(), time.Now()); err == nil {
		t.Error("a retired key is used again")
	}
	step("accept the old one again", func(k keyring) (keyring, error) { return accept(k, old) })
	if _, retired := k.retiredAt(old.ID()); retired {
		t.Error("a valid key is noted as retired")
	}
	step("forget", func(k keyring) (keyring, error) { return forget(k, old.ID()) })
	want(1, fresh)
}

func TestNothingThatIsShownHoldsASecret(t *testing.T) {
	s := NewSecret()
	b, err := json.Marshal(Status{Keys: ids([]Secret{s}), Members: []Member{{Name: "a"}}})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), s.Reveal()) {
		t.Error("the status holds the secret")
	}
}
