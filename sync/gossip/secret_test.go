package gossip

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestASecretNeverShows(t *testing.T) {
	s := NewSecret()
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", s, "list", []Secret{s})
	b, err := json.Marshal(map[string]any{"secret": s, "list": []Secret{s}})
	if err != nil {
		t.Fatal(err)
	}
	shown := []string{log.String(), string(b)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		shown = append(shown, fmt.Sprintf(verb, s), fmt.Sprintf(verb, struct{ S Secret }{s}), fmt.Sprintf(verb, []Secret{s}))
	}
	raw := s.text
	for _, text := range shown {
		if strings.Contains(text, s.Reveal()) || strings.Contains(text, raw) || strings.Contains(text, fmt.Sprintf("%x", raw)) {
			t.Errorf("shows the secret: %s", text)
		}
	}
}

func TestASecretSurvivesItsText(t *testing.T) {
	s := NewSecret()
	again, err := ParseSecret(s.Reveal())
	if err != nil || again != s {
		t.Fatalf("came back as another one, %v", err)
	}
	if s.ID() == NewSecret().ID() || len(s.ID()) != 8 {
		t.Errorf("ID %s", s.ID())
	}
	if string(s.Key("gossip")) == string(s.Key("heartbeat")) || len(s.Key("gossip")) != 32 {
		t.Error("two labels give one key")
	}
	for _, bad := range []string{"", "abc", strings.Repeat("A", 44), s.Reveal() + "A", s.Reveal()[1:]} {
		if _, err := ParseSecret(bad); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}

const (
	knownGossipKey    = "81dc7f1607fb1547ad95c8fd216715e0348c80f9c1452538a8ada5a43a5e46e8"
	knownHeartbeatKey = "c2bdf191694f149036c75f006a0202c413f345f5a14455cf5378081e7832d413"
)

// The derivation is fixed: hosts of two versions must agree. Checked against RFC 5869 by a second implementation
// (openssl kdf HKDF, SHA-256, no salt).
func TestTheKeyOfAKnownSecret(t *testing.T) {
	s := Secret{strings.Repeat("\x01", secretBytes)}
	if got, want := fmt.Sprintf("%x", s.Key("gossip")), knownGossipKey; got != want {
		t.Errorf("key %s, want %s", got, want)
	}
	if got, want := fmt.Sprintf("%x", s.Key("heartbeat")), knownHeartbeatKey; got != want {
		t.Errorf("key %s, want %s", got, want)
	}
}

func TestSecretFilesThatOthersCanRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	s := NewSecret()
	if err := WriteSecretFile(path, s); err != nil {
		t.Fatal(err)
	}
	if err := WriteSecretFile(path, s); !errors.Is(err, os.ErrExist) {
		t.Errorf("written over another one: %v", err)
	}
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o640: true, 0o400: true, 0o440: true, 0o644: false, 0o660: false, 0o604: false, 0o700: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		got, err := ReadSecretFile(path)
		switch {
		case ok && (err != nil || len(got) != 1 || got[0] != s):
			t.Errorf("mode %04o: %d secrets, %v", mode, len(got), err)
		case !ok && (err == nil || !strings.Contains(err.Error(), "chmod 0640 "+path)):
			t.Errorf("mode %04o: error %v does not say what to run", mode, err)
		}
	}
	if _, err := ReadSecretFile(t.TempDir()); err == nil {
		t.Error("a folder is read as a secret")
	}
}

func TestKeyringsThatAreRefused(t *testing.T) {
	good := NewSecret().Reveal()
	for text, want := range map[string]string{
		"":                                     "no secret",
		"# only a comment\n":                   "no secret",
		good + "\nfoo bar\n":                   "line 2: neither a secret nor a note",
		"# x\n\n" + good[1:] + "\n":            "line 3: no secret: write 32 bytes in base64",
		good + "\nretired 12345678 yesterday":  "line 2: no time",
		good + "\nturn -1":                     "line 2: no number after turn",
		good + "\nretired xyz 2026-01-01T0:0Z": "line 2: neither",
		strings.Join([]string{good, NewSecret().Reveal(), NewSecret().Reveal(), NewSecret().Reveal(), NewSecret().Reveal()}, "\n"): "5 secrets: at most 4",
	} {
		_, err := parseKeyring(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), good[1:]) {
			t.Errorf("the error shows a secret: %v", err)
		}
	}
}

func TestAKeyringComesBackAsItWas(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	k := keyring{Secrets: []Secret{NewSecret(), NewSecret()}, Seed: "0123abcd", Turn: 3, Retired: []retiredKey{{"aaaaaaaa", at}, {"bbbbbbbb", at}}}
	got, err := parseKeyring(k.text())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(k, got, cmp.AllowUnexported(Secret{})); diff != "" {
		t.Error(diff)
	}
}

func FuzzKeyring(f *testing.F) {
	s := Secret{strings.Repeat("s", secretBytes)}
	f.Add(keyring{Secrets: []Secret{s}, Seed: "x", Turn: 9, Retired: []retiredKey{{"aaaaaaaa", time.Unix(0, 0).UTC()}}}.text())
	f.Add("turn 1\nseed\n")
	f.Fuzz(func(t *testing.T, text string) {
		k, err := parseKeyring(text)
		if err != nil {
			return
		}
		again, err := parseKeyring(k.text())
		if err != nil {
			t.Fatalf("written as %q, which is refused: %v", k.text(), err)
		}
		if diff := cmp.Diff(k, again, cmp.AllowUnexported(Secret{})); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestTheKeyringFileAndTheConfiguredSecret(t *testing.T) {
	first, second := NewSecret(), NewSecret()
	path := filepath.Join(t.TempDir(), "keyring")
	log := slog.New(slog.DiscardHandler)
	open := func(configured ...Secret) keyring {
		t.Helper()
		k, err := openKeyring(path, configured, log)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	if k := open(first); k.Secrets[0] != first {
		t.Error("a new keyring does not begin with the configured secret")
	}
	rotated := keyring{Secrets: []Secret{second}, Seed: idList([]Secret{first}), Turn: 1}
	rotated.retire(first.ID(), time.Unix(1000, 0).UTC())
	if err := writeKeyring(path, rotated); err != nil {
		t.Fatal(err)
	}
	if k := open(first); k.Secrets[0] != second || len(k.Secrets) != 1 {
		t.Error("a secret that was retired came back by a restart")
	}
	third := NewSecret()
	k := open(third)
	if len(k.Secrets) != 2 || k.Secrets[0] != third || k.Secrets[1] != second || k.Turn != 2 {
		t.Errorf("a secret changed by hand: %d secrets, turn %d; want it in front of the one before, turn 2", len(k.Secrets), k.Turn)
	}
	if again := open(third); again.Turn != 2 {
		t.Errorf("the same secret at the next start is another turn: %d", again.Turn)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if k := open(first); k.Secrets[0] != first {
		t.Error("a damaged keyring is not replaced by the configured secret")
	}
	if b, err := os.ReadFile(path + ".refused"); err != nil || string(b) != "garbage" {
		t.Errorf("the damaged keyring was not put aside: %q, %v", b, err)
	}
}
