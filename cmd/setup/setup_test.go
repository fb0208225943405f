package setup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"headgate/cmd/config"
	"headgate/sync/gossip"
)

// loaded writes c as a file and reads it back, as the daemon would.
func loaded(t *testing.T, c config.Config) config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "headgate.yaml")
	if err := os.WriteFile(path, Text(c), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := config.Load(path, nil, config.Source)
	if err != nil {
		t.Fatalf("%v\n%s", err, Text(c))
	}
	return got
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	for name, a := range map[string]Answers{
		"one host":  {Kubeconfig: "/etc/headgate/kubeconfig", KeyFile: "/etc/headgate/gossip.key"},
		"manifests": {Manifests: []string{"/srv/a b", `/srv/"odd": {`}, KeyFile: "/etc/headgate/gossip.key"},
		"two hosts": {
			Kubeconfig: "/etc/headgate/kubeconfig", KeyFile: "/srv/gossip.key", Interface: "eth0", VIPs: []string{"192.0.2.10", "2001:db8::1/64"},
			Own: "10.0.0.11", Peers: []string{"10.0.0.12", "edge3.example.com"}, Cluster: "edge",
		},
	} {
		c, err := a.Compose()
		if err != nil {
			t.Fatal(name, err)
		}
		if diff := cmp.Diff(c, loaded(t, c), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.AddrPort{}, netip.Prefix{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	j := someJoin(t)
	j.GossipPort, j.VIPPort, j.MTU = 7000, 7001, 1400
	c, err := Answers{Kubeconfig: "/k", KeyFile: "/srv/gossip.key", Interface: "eth1", Own: "10.0.0.12"}.ComposeJoin(j)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c, loaded(t, c), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.AddrPort{}, netip.Prefix{})); diff != "" {
		t.Error(diff)
	}
	if want := []string{"10.0.0.11", "edge2.example.com:7946", "10.0.0.12"}; !cmp.Equal(c.Gossip.Peers, want) {
		t.Errorf("peers %v, want %v", c.Gossip.Peers, want)
	}
}

func TestAnswersThatAreRefused(t *testing.T) {
	for want, a := range map[string]Answers{
		"no source of objects: give --kubeconfig":   {},
		"peers and no VIP":                          {Kubeconfig: "/k", KeyFile: "/g", Peers: []string{"10.0.0.12"}},
		"vip.interface: no interface for":           {Kubeconfig: "/k", KeyFile: "/g", VIPs: []string{"192.0.2.10"}},
		`vip.addresses[0]: "edge" is no address`:    {Kubeconfig: "/k", KeyFile: "/g", Interface: "eth0", VIPs: []string{"edge"}},
		`gossip.cluster: "two words"`:               {Kubeconfig: "/k", KeyFile: "/g", Cluster: "two words"},
		`gossip.peers[0]: "a b" is neither an addr`: {Kubeconfig: "/k", KeyFile: "/g", Interface: "eth0", VIPs: []string{"192.0.2.10"}, Peers: []string{"a b"}},
	} {
		if _, err := a.Compose(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestWhatIsThereIsNotWrittenOver(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "etc", "headgate.yaml")
	write := func(text string) string {
		t.Helper()
		backup, err := WriteConfig(path, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return backup
	}
	if err := Permit(path, New); err != nil {
		t.Error("no file:", err)
	}
	if backup := write("# nothing yet\n"); backup != "" {
		t.Errorf("a copy of nothing: %s", backup)
	}
	if err := Permit(path, New); err != nil {
		t.Error("a file without keys:", err)
	}
	if backup := write("manifests: [/a]\n"); backup != path+".bak" {
		t.Errorf("the copy is %q", backup)
	}
	if err := Permit(path, New); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "--force") {
		t.Error("a file with keys:", err)
	}
	if err := Permit(path, Replace); err != nil {
		t.Error(err)
	}
	if backup := write("manifests: [/b]\n"); backup != path+".bak.1" {
		t.Errorf("the second copy is %q", backup)
	}
	if backup := write("manifests: [/b]\n"); backup != "" {
		t.Errorf("a copy of the same: %q", backup)
	}
	for name, want := range map[string]string{"headgate.yaml": "manifests: [/b]\n", "headgate.yaml.bak": "# nothing yet\n", "headgate.yaml.bak.1": "manifests: [/a]\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, "etc", name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if err := os.WriteFile(path, []byte("no: [yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Permit(path, New); !errors.Is(err, ErrExists) {
		t.Error("a file that is no YAML:", err)
	}
}

func TestSecretsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etc", "gossip.key")
	first, made, err := KeepSecret(path)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	again, made, err := KeepSecret(path)
	if err != nil || made || again.ID() != first.ID() {
		t.Errorf("%v, made %v: %v", again.ID(), made, err)
	}
	if err := TakeSecret(path, first, New); err != nil {
		t.Error("the same secret:", err)
	}
	other := gossip.NewSecret()
	if err := TakeSecret(path, other, New); !errors.Is(err, ErrExists) {
		t.Error("another secret:", err)
	}
	if err := TakeSecret(path, other, Replace); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{path: other.ID(), path + ".bak": first.ID()} {
		if got, err := gossip.ReadSecretFile(name); err != nil || got[0].ID() != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(path, []byte("no secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := KeepSecret(path); err == nil {
		t.Error("a file that holds something else was taken")
	}
}

func TestTheNetworkFollowsFromTheVIP(t *testing.T) {
	all := []Interface{
		{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.11/24"), netip.MustParsePrefix("2001:db8::11/64")}},
		{Name: "eth1", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24"), netip.MustParsePrefix("192.0.2.2/24")}},
		{Name: "eth2", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.9/8")}},
	}
	for vip, want := range map[string]string{
		"192.0.2.10": "eth1", "2001:db8::10": "eth0", "10.0.0.10": "in the network of eth0 and eth2: give --interface",
		"198.51.100.1": "no interface is in the network of 198.51.100.1", "none": "is no address",
	} {
		got, err := InterfaceOf(all, vip)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", vip, got, want)
		}
	}
	for _, c := range []struct {
		iface, want string
		vips        []string
	}{
		{"eth1", "192.0.2.2", []string{"192.0.2.10"}}, // a VIP that is there already is not its own
		{"eth0", "10.0.0.11", []string{"10.0.0.10"}},
		{"eth0", "2001:db8::11", []string{"2001:db8::10", "10.0.0.10"}},
		{"eth2", "eth2 has no address by which", []string{"2001:db8::10"}},
		{"eth9", "eth9 has no address by which", []string{"10.0.0.10"}},
	} {
		got, err := OwnAddress(all, c.iface, c.vips)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s %v: %q, want %q", c.iface, c.vips, got, c.want)
		}
	}
}

func TestCredentialsThatAreThereAreNotWrittenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etc", "kubeconfig")
	for _, c := range []struct {
		text   string
		how    Writing
		backup string
		there  string // afterwards
	}{
		{"one", New, "", "one"},
		{"one", New, "", "one"},
		{"two", New, "refused", "one"},
		{"two", Replace, path + ".bak", "two"},
		{"two", Replace, "", "two"},
	} {
		backup, err := WriteSecret(path, []byte(c.text), c.how)
		if errors.Is(err, ErrExists) {
			backup, err = "refused", nil
		}
		got, readErr := os.ReadFile(path)
		if err := errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		if backup != c.backup || string(got) != c.there {
			t.Errorf("%s: a copy %q, want %q; there is %q, want %q", c.text, backup, c.backup, got, c.there)
		}
	}
	for name, want := range map[string]string{"": "two", ".bak": "one"} {
		got, err := os.ReadFile(path + name)
		info, statErr := os.Stat(path + name)
		if errors.Join(err, statErr) != nil || string(got) != want || info.Mode().Perm() != 0o640 {
			t.Errorf("%s%s: %q, %v", path, name, got, err)
		}
	}
}

func TestPath(t *testing.T) {
	t.Setenv("HOME", "/srv/ann")
	for answer, want := range map[string]string{"~/.kube/config": "/srv/ann/.kube/config", "/etc/k": "/etc/k", "a b": "a b", "~": "~", "~bob/x": "~bob/x"} {
		if got := Path(answer); got != want {
			t.Errorf("%q means %q, want %q", answer, got, want)
		}
	}
}

func TestWhoeverGivesUpIsNotAskedOn(t *testing.T) {
	in, end := io.Pipe()
	defer func() { _ = end.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if _, err := NewTerminal(in, &out).Ask(ctx, "Which", "usual", func(string) error { return nil }); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("%v", err)
	}
}

func TestQuestionsAreAskedUntilTheAnswerIsGood(t *testing.T) {
	var out bytes.Buffer
	terminal := NewTerminal(strings.NewReader("wrong\n\n  right \nlast"), &out)
	check := func(answer string) error {
		if answer == "wrong" {
			return errors.New("write something else")
		}
		return nil
	}
	for _, want := range []string{"usual", "right", "last"} {
		if got, err := terminal.Ask(t.Context(), "Which", "usual", check); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	if _, err := terminal.Ask(t.Context(), "Which", "", check); !errors.Is(err, ErrNoAnswer) {
		t.Error(err)
	}
	want := "Which [usual]:   write something else\nWhich [usual]: Which [usual]: Which [usual]: Which: "
	if out.String() != want {
		t.Errorf("%q", out.String())
	}
	if IsTerminal(strings.NewReader("")) {
		t.Error("a text is no terminal")
	}
}

const ca = `-----BEGIN CERTIFICATE-----
MIIBdDCCARqgAwIBAgIBATAKBggqhkjOPQQDAjANMQswCQYDVQQDEwJjYTAeFw0y
-----END CERTIFICATE-----
`

func TestAccessThatIsRefused(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token, empty, broken := file("token", "abc\n"), file("empty", "\n"), file("broken.crt", ca)
	for want, a := range map[string]Access{
		`--api-server "http://10.0.0.1"`:                {Server: "http://10.0.0.1"},
		`--api-server "https://admin:xxxxx@10.0.0.1"`:   {Server: "https://admin:hunter2@10.0.0.1"},
		"--ca: open /nowhere":                           {Server: "https://10.0.0.1:6443", CA: "/nowhere"},
		"broken.crt holds no certificate in PEM":        {Server: "https://10.0.0.1:6443", CA: broken, TokenFile: token},
		"empty holds no certificate in PEM: write the ": {Server: "https://10.0.0.1:6443", CA: empty},
	} {
		_, err := a.Kubeconfig()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := CopyKubeconfig(token); err == nil {
		t.Error("a token is no kubeconfig")
	}
	none := file("kubeconfig", "apiVersion: v1\nkind: Config\n")
	if _, err := CopyKubeconfig(none); err == nil || !strings.Contains(err.Error(), "no current-context") {
		t.Error(err)
	}
}
