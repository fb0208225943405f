package boot

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// control is the machine that Ansible runs on, and all it has of the hosts is ssh to their root.
type control struct {
	pair    *pair
	dir     string
	secrets map[string]string // by their names; nothing may tell one
	said    strings.Builder   // the output of all runs
}

func TestAnsibleSetsUpAndUpgradesTwoHosts(t *testing.T) {
	l := theLab()
	l.index(t)
	startBackend(t)
	_, kubeconfig := startCluster(t)
	c := newControl(t, &pair{lab: l, hosts: [2]*host{newHost(t, l, "edge4", 24), newHost(t, l, "edge5", 25)}}, kubeconfig)
	for _, stage := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"dry run on fresh hosts", c.dryRun},
		{"first run", c.firstRun},
		{"second run", c.secondRun},
		{"rolling upgrade", c.rollingUpgrade},
		{"secrets", c.tellsNoSecret},
	} {
		if !t.Run(stage.name, stage.run) {
			return // what follows builds on it
		}
	}
}

// newControl writes what an administrator writes: an inventory, a vault, and the keys of ssh.
func newControl(t *testing.T, p *pair, kubeconfig string) *control {
	t.Helper()
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	c := &control{pair: p, dir: filepath.Join(p.lab.dir, "control"), secrets: map[string]string{
		"gossip key": base64.StdEncoding.EncodeToString(key), "token": tokenOf(t, kubeconfig),
	}}
	if err := os.CopyFS(filepath.Join(c.dir, "ansible_collections", "headgate", "edge"), os.DirFS("../../ansible")); err != nil {
		t.Fatal(err)
	}
	first, second := p.hosts[0], p.hosts[1]
	c.write(t, "inventory.json", map[string]any{"edge": map[string]any{
		"hosts": map[string]any{
			first.name:  map[string]any{"ansible_host": first.address, "edge_priority": 150},
			second.name: map[string]any{"ansible_host": second.address},
		},
		"vars": map[string]any{
			"ansible_user": "root", "ansible_python_interpreter": "/usr/bin/python3",
			"edge_package": p.lab.deb(oldVersion), "edge_interface": "host0", "edge_vips": []string{sharedAddress},
			"edge_config": map[string]any{"vip": map[string]any{"preemptDelay": "1s"}},
		},
	}})
	c.write(t, "group_vars/edge/vault.json", map[string]any{"edge_gossip_key": c.secrets["gossip key"], "edge_kubeconfig": kubeconfig})
	err := shell(t.Context(), c.dir, `echo open-sesame > password && ANSIBLE_HOME=$PWD/home ansible-vault encrypt --vault-password-file password group_vars/edge/vault.json &&
		ssh-keygen -q -t ed25519 -N '' -f id`)
	if err != nil {
		t.Fatal(err)
	}
	c.trust(t)
	return c
}

func tokenOf(t *testing.T, kubeconfig string) string {
	t.Helper()
	config, err := clientcmd.Load([]byte(kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		if user.Token != "" {
			return user.Token
		}
	}
	t.Fatal("the kubeconfig has no token")
	return ""
}

func (c *control) write(t *testing.T, name string, content any) {
	t.Helper()
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// trust makes the hosts known here, and this machine's key known to them.
func (c *control) trust(t *testing.T) {
	t.Helper()
	key, err := os.ReadFile(filepath.Join(c.dir, "id.pub"))
	if err != nil {
		t.Fatal(err)
	}
	var known strings.Builder
	for _, h := range c.pair.hosts {
		h.write(t, "/root/.ssh/authorized_keys", string(key))
		known.WriteString(h.address + " " + h.read(t, "/etc/ssh/ssh_host_ed25519_key.pub"))
	}
	if err := os.WriteFile(filepath.Join(c.dir, "known"), []byte(known.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// play runs a playbook that must succeed, as loud as it can be, and gives its output.
func (c *control) play(t *testing.T, playbook string, arguments ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ansible-playbook", append([]string{"-i", "inventory.json", "--vault-password-file", "password", "--diff", "-vvv", playbook}, arguments...)...) //nolint:gosec // a test's own
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "ANSIBLE_COLLECTIONS_PATH="+c.dir, "ANSIBLE_HOME="+filepath.Join(c.dir, "home"), "HOME="+c.dir, "ANSIBLE_NOCOLOR=1", "ANSIBLE_PIPELINING=1",
		"ANSIBLE_SSH_ARGS=-F none -i "+filepath.Join(c.dir, "id")+" -o UserKnownHostsFile="+filepath.Join(c.dir, "known")+" -o ControlMaster=auto -o ControlPersist=20s")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	c.said.WriteString(out.String())
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", playbook, arguments, err, lastLines(out.String(), 60))
	}
	return out.String()
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

var recap = regexp.MustCompile(`(?m)^(\S+)\s+: ok=\d+\s+changed=(\d+)\s+unreachable=0\s+failed=0\s`)

// changed gives how many tasks changed something, by host.
func (c *control) changed(t *testing.T, output string) map[string]string {
	t.Helper()
	counts := map[string]string{}
	for _, m := range recap.FindAllStringSubmatch(output, -1) {
		counts[m[1]] = m[2]
	}
	if len(counts) != len(c.pair.hosts) {
		t.Fatalf("hosts that did not fail: %v\n%s", counts, lastLines(output, 60))
	}
	return counts
}

// dryRun: nothing fails where there is nothing yet, and nothing comes there.
func (c *control) dryRun(t *testing.T) {
	c.changed(t, c.play(t, "headgate.edge.site", "--check"))
	for _, h := range c.pair.hosts {
		for _, file := range []string{"/usr/bin/headgate", "/etc/headgate", "/var/cache/headgate-edge"} {
			if _, err := os.Lstat(h.path(file)); err == nil {
				t.Errorf("a dry run made %s on %s", file, h.name)
			}
		}
	}
}

func (c *control) firstRun(t *testing.T) {
	for host, n := range c.changed(t, c.play(t, "headgate.edge.site")) {
		if n == "0" {
			t.Errorf("nothing changed on %s, which was fresh", host)
		}
	}
	serves(t, sharedAddress, serveLimit)
	c.pair.settled(t, c.pair.hosts[0])
	for _, h := range c.pair.hosts {
		if got := strings.TrimSpace(h.read(t, "/etc/headgate/gossip.key")); got != c.secrets["gossip key"] {
			t.Errorf("%s does not have the key of the vault", h.name)
		}
		for _, unit := range []string{"headgate", "headgate-proxy", "headgate-vip"} {
			h.must(t, "systemctl is-enabled "+unit)
		}
	}
}

func (c *control) secondRun(t *testing.T) {
	during(t, sharedAddress, "the second run of site", func() {
		output := c.play(t, "headgate.edge.site")
		for host, n := range c.changed(t, output) {
			if n != "0" {
				t.Errorf("the second run changed %s tasks on %s:\n%s", n, host, output)
			}
		}
	})
}

// rollingUpgrade drains, upgrades and lets back one host after the other; the address goes there and back.
func (c *control) rollingUpgrade(t *testing.T) {
	during(t, sharedAddress, "rolling upgrade by Ansible", func() {
		c.changed(t, c.play(t, "headgate.edge.upgrade", "-e", "edge_package="+c.pair.lab.deb(newVersion)))
		c.pair.settled(t, c.pair.hosts[0])
	})
	for _, h := range c.pair.hosts {
		if got := h.must(t, "headgate version"); !strings.Contains(got, newVersion) {
			t.Errorf("headgate version on %s says %q, want %s", h.name, got, newVersion)
		}
		for _, unit := range []string{"headgate", "headgate-vip"} { // each runs the new binary
			h.must(t, `cmp /usr/bin/headgate "/proc/$(systemctl show --value -p MainPID `+unit+`)/exe"`)
		}
		var status struct{ Draining, Ready bool }
		if err := json.Unmarshal([]byte(h.must(t, "headgate vip status -o json")), &status); err != nil || status.Draining || !status.Ready {
			t.Errorf("%s after the upgrade: %+v, %v", h.name, status, err)
		}
	}
}

// tellsNoSecret looks at everything that was said and logged so far.
func (c *control) tellsNoSecret(t *testing.T) {
	for what, secret := range c.secrets {
		if strings.Contains(c.said.String(), secret) {
			t.Errorf("the output of Ansible shows the %s", what)
		}
		for _, h := range c.pair.hosts {
			if journal := h.must(t, "journalctl --no-pager -o export"); strings.Contains(journal, secret) {
				t.Errorf("the journal of %s shows the %s", h.name, what)
			}
			for _, file := range filesWith(t, h.path("/var/log"), secret) {
				t.Errorf("%s on %s shows the %s", file, h.name, what)
			}
		}
	}
}

func filesWith(t *testing.T, dir, word string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path) //nolint:gosec // a host's log
		if bytes.Contains(content, []byte(word)) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
