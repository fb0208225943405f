package vip

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"headgate/test/netns"
	"headgate/test/vip/lab"
)

// A rotation of the key whose host is killed at any of its steps keeps nobody out: the hosts hear each other with the keys that
// they have then, the VIP stays where it is unless its owner was killed, and --finish leaves all with one key.
func rotationInterrupted(t *testing.T, proxy *lab.Proxy) {
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b", "c"}, VIPs: lab.Web("nopreempt: true")})
	e.Start(t)
	const rounds = 10
	cut := 0
	for range rounds {
		e.mark(t)
		owner := e.Settled(t)
		by := e.Hosts[rand.N(len(e.Hosts))] //nolint:gosec // any
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = by.Command(t, "gossip", "rotate-key") // its host is killed meanwhile, or not
		}()
		// Each step changes the file, the first one that of this host.
		keyring := filepath.Join(by.Dir(), "state", "gossip.keyring")
		before := read(t, keyring)
		netns.Eventually(t, lab.Patience, "the rotation begins", func() bool { return read(t, keyring) != before })
		pass(t, rand.N(8*time.Millisecond))
		by.KillVIP(t)
		<-ended
		pass(t, rand.N(400*time.Millisecond))
		by.StartVIP(t)
		e.Settled(t)
		if by != owner {
			e.shared(t, "a rotation is interrupted", 0, 0)
		}
		for _, h := range e.Hosts {
			if len(h.Status(t).Gossip.Keys) > 1 {
				cut++
				break
			}
		}
		finisher := e.Hosts[rand.N(len(e.Hosts))] //nolint:gosec // any
		if out, err := finisher.Command(t, "gossip", "rotate-key", "--finish"); err != nil {
			t.Fatalf("finish on %s: %v\n%s", finisher.Name, err, out)
		}
		for _, h := range e.Hosts {
			keys := h.Status(t).Gossip.Keys
			if len(keys) != 1 || keys[0] != e.Hosts[0].Status(t).Gossip.Keys[0] {
				t.Fatalf("%s has the keys %v after the end, %s %v", h.Name, keys, e.Hosts[0].Name, e.Hosts[0].Status(t).Gossip.Keys)
			}
		}
	}
	t.Logf("%d of %d rotations were cut", cut, rounds)
	if cut == 0 {
		t.Error("none was interrupted: nothing was tried")
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
