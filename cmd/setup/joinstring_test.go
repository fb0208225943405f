package setup

import (
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/cmd/config"
	"headgate/sync/gossip"
)

const secretText = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

func someJoin(t interface{ Fatal(...any) }) Join {
	secret, err := gossip.ParseSecret(secretText)
	if err != nil {
		t.Fatal(err)
	}
	return Join{
		Cluster: "edge", Peers: []string{"10.0.0.11", "edge2.example.com:7946"}, Addresses: []string{"192.0.2.10", "2001:db8::10/64"},
		Groups:     []config.VIPGroup{{Name: "web", Addresses: []string{"192.0.2.11", "192.0.2.12"}}},
		GossipPort: 7946, VIPPort: 7947, MTU: 1500, Secret: secret,
	}
}

func equalJoins(a, b Join) string {
	if a.Secret.Reveal() != b.Secret.Reveal() {
		return "another secret"
	}
	a.Secret, b.Secret = gossip.Secret{}, gossip.Secret{}
	return cmp.Diff(a, b, cmp.Comparer(func(a, b gossip.Secret) bool { return a == b }))
}

func TestAJoinStringComesBackAsItWas(t *testing.T) {
	j := someJoin(t)
	text := j.Reveal()
	if !regexp.MustCompile(`^[A-Za-z0-9._-]+$`).MatchString(text) {
		t.Errorf("a shell would change %q", text)
	}
	broken := " " + text[:40] + "\n  " + text[40:90] + "\r\n" + text[90:] + "\n"
	for _, form := range []string{text, broken} {
		got, err := ParseJoin(form)
		if err != nil {
			t.Fatal(err)
		}
		if diff := equalJoins(j, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestAJoinPrintsNoSecret(t *testing.T) {
	j := someJoin(t)
	for _, text := range []string{fmt.Sprint(j), fmt.Sprintf("%+v %#v %q", j, j, j), fmt.Sprint(&j)} {
		if strings.Contains(text, secretText[:20]) || !strings.Contains(text, "redacted") {
			t.Errorf("%q", text)
		}
	}
}

// sealed makes a string of any payload, with the checksum that it needs.
func sealed(version, payload string) string {
	head := joinPrefix + version + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	return head + "." + checksum(head)
}

func TestStringsThatAreRefused(t *testing.T) {
	good := someJoin(t).Reveal()
	changed := []byte(good)
	changed[30] ^= 1
	payload := func(edit string) string {
		text := `{"cluster":"edge","peers":["10.0.0.11"],"addresses":["192.0.2.10"],"gossipPort":7946,"vipPort":7947,"mtu":1500,"secret":"` + secretText + `"}`
		from, to, _ := strings.Cut(edit, " => ")
		if !strings.Contains(text, from) {
			t.Fatalf("no %q in the payload", from)
		}
		return sealed("1", strings.Replace(text, from, to, 1))
	}
	if _, err := ParseJoin(payload("edge => edge")); err != nil {
		t.Fatal("the payload that is changed below:", err)
	}
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "does not begin with headgate-join-"},
		{"another text", "kubeadm join 10.0.0.1:6443", "does not begin with"},
		{"cut off", good[:len(good)-30], "damaged: copy it whole"},
		{"a digit less", good[:len(good)-1], "checksum does not fit"},
		{"a bit more", good + "0", "checksum does not fit"},
		{"changed", string(changed), "checksum does not fit"},
		{"newer", sealed("2", "{}"), "of version 2, and this headgate reads version 1: install the same version"},
		{"too long", strings.Repeat("x", maxJoin+1), "16385 characters"},
		{"no JSON", sealed("1", "hello"), "not what headgate writes"},
		{"two objects", sealed("1", "{} {}"), "something behind"},
		{"unknown field", payload(`"mtu" => "mut"`), "not what headgate writes"},
		{"no secret", payload(secretText + " => short"), "no secret in it"},
		{"no hosts", payload(`["10.0.0.11"] => []`), "names 0 hosts"},
		{"many hosts", payload(`["10.0.0.11"] => [` + strings.Repeat(`"10.0.0.11",`, 70) + `"10.0.0.11"]`), "names 71 hosts"},
		{"no port", payload("7946 => 0"), "lacks the ports"},
		{"one port twice", payload("7946 => 7947"), "vip.listen: "},
		{"hostile cluster", payload(`"edge" => "edge\nmanifests: [/etc]"`), "gossip.cluster: "},
		{"hostile host", payload(`10.0.0.11 => 10.0.0.11; reboot`), "gossip.peers[0]: "},
		{"hostile VIP", payload(`192.0.2.10 => $(reboot)`), "vip.addresses[0]: "},
		{"loopback VIP", payload(`192.0.2.10 => 127.0.0.1`), "cannot be a VIP"},
		{"MTU", payload(`1500 => 99999`), "gossip.mtu: "},
	} {
		j, err := ParseJoin(c.text)
		if !errors.Is(err, ErrJoin) || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if !j.Secret.IsZero() || strings.Contains(fmt.Sprint(err), secretText[:12]) {
			t.Errorf("%s: the secret is shown: %v", c.name, err)
		}
	}
}

func TestAnyJoinOfValidPartsComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := someJoin(t)
		j.Cluster = rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,20}[A-Za-z0-9]`).Draw(t, "cluster")
		j.Peers = rapid.SliceOfNDistinct(rapid.StringMatching(`10\.[1-9]\.[1-9]\.[1-9]`), 1, 6, rapid.ID[string]).Draw(t, "peers")
		j.Addresses = rapid.SliceOfNDistinct(rapid.StringMatching(`192\.0\.3\.[1-9]`), 1, 6, rapid.ID[string]).Draw(t, "vips")
		j.GossipPort = rapid.Uint16Range(1, 30000).Draw(t, "port")
		j.VIPPort = j.GossipPort + rapid.Uint16Range(1, 100).Draw(t, "distance")
		got, err := ParseJoin(j.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		if diff := equalJoins(j, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// FuzzParseJoin: any text gives something that can stand in a configuration, or an error that shows no secret.
func FuzzParseJoin(f *testing.F) {
	f.Add(someJoin(f).Reveal())
	f.Add(sealed("1", `{"cluster":"\u0000","peers":["a"],"gossipPort":1,"vipPort":2,"secret":"`+secretText+`"}`))
	f.Add(sealed("1", `{"peers":null}`))
	f.Add(sealed("01", "{}"))
	f.Add("headgate-join-1..")
	f.Fuzz(func(t *testing.T, text string) {
		// Without this the checksum would keep all but the seeds out.
		for _, form := range []string{text, sealed("1", text)} {
			j, err := ParseJoin(form)
			if err != nil {
				if !errors.Is(err, ErrJoin) || strings.Contains(err.Error(), secretText[:12]) {
					t.Errorf("%v", err)
				}
				continue
			}
			c, err := Answers{Manifests: []string{"/srv"}, Interface: "eth0", KeyFile: "/etc/headgate/gossip.key"}.ComposeJoin(j)
			if err != nil {
				t.Fatalf("accepted, and no configuration can be made of it: %v", err)
			}
			if again := JoinOf(loaded(t, c), j.Secret); !slices.Equal(again.Peers, j.Peers) || again.Cluster != j.Cluster {
				t.Errorf("%+v became %+v", j.Peers, again.Peers)
			}
		}
	})
}
