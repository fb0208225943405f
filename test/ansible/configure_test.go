package ansible

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/test/product"
)

const onlyConfigure = `- hosts: edge
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: headgate.edge.edge, tasks_from: configure}
`

const (
	secretKey   = "c2VjcmV0LWtleS1vZi10aGUtdGVzdC0wMTIzNDU2Nzg="
	secretToken = "token-of-the-test"
)

// edge is a site with one host that has everything a production host has.
func edge(t *testing.T) *site {
	t.Helper()
	s := newSite(t, "edge1", "edge2")
	write(t, filepath.Join(s.dir, "configure.yml"), onlyConfigure)
	for key, value := range map[string]any{
		"edge_directory":  filepath.Join(s.dir, "{{ inventory_hostname }}"),
		"edge_gossip_key": secretKey, "edge_interface": "eth0", "edge_vips": []string{"192.0.2.10", "2001:db8::10"}, "edge_priority": 150,
		"edge_api_server": "https://10.0.0.1:6443", "edge_api_ca": "-----BEGIN CERTIFICATE-----\n", "edge_api_token": secretToken,
		"edge_config": map[string]any{"publish": map[string]any{"addresses": []string{"192.0.2.10"}}, "maxBodySize": "8MiB", "hsts": map[string]any{"enabled": false}},
	} {
		s.vars[key] = value
	}
	for _, h := range s.hosts {
		if err := os.Mkdir(filepath.Join(s.dir, h), 0o755); err != nil { //nolint:gosec // as /etc/headgate
			t.Fatal(err)
		}
	}
	return s
}

func TestTheRoleWritesWhatHeadgateAccepts(t *testing.T) {
	s := edge(t)
	dry := s.play("configure.yml", "--limit", "edge1", "--check", "--diff")
	s.succeeds(dry)
	if left, _ := os.ReadDir(filepath.Join(s.dir, "edge1")); len(left) != 0 {
		t.Errorf("a dry run wrote %v", left)
	}
	first := s.play("configure.yml", "--limit", "edge1", "--diff", "-vvv")
	s.succeeds(first)
	for _, secret := range []string{secretKey, secretToken} {
		if strings.Contains(dry.text+first.text, secret) {
			t.Errorf("the output shows %q:\n%s", secret, first.text)
		}
	}
	s.accepted("edge1")
	s.modes(map[string]os.FileMode{"headgate.yaml": 0o644, "kubeconfig": 0o640, "gossip.key": 0o640})

	again := s.play("configure.yml", "--limit", "edge1")
	s.succeeds(again)
	if changed, _ := s.count(again, "edge1"); changed != "0" {
		t.Errorf("the second run changes %s tasks, want 0\n%s", changed, again.text)
	}
}

// accepted asks the binary: rbac for the configuration alone, check for what it says of it.
func (s *site) accepted(host string) {
	s.t.Helper()
	file := filepath.Join(s.dir, host, "headgate.yaml")
	if out, err := exec.CommandContext(s.t.Context(), binary, "rbac", "--config", file).CombinedOutput(); err != nil { //nolint:gosec // the product
		s.t.Errorf("%v\n%s", err, out)
	}
	out, err := exec.CommandContext(s.t.Context(), binary, "check", "--config", file, "-o", "json").Output() //nolint:gosec // the product
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	var report struct {
		Lines []struct{ Area, Verdict, Message string }
	}
	if err := json.Unmarshal(out, &report); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	seen := false
	for _, line := range report.Lines {
		if line.Area == "config" {
			seen = true
			if line.Verdict == "fail" {
				s.t.Errorf("check: %s", line.Message)
			}
		}
	}
	if !seen {
		s.t.Errorf("check says nothing of the configuration:\n%s", out)
	}
}

func (s *site) modes(want map[string]os.FileMode) {
	s.t.Helper()
	for name, mode := range want {
		info, err := os.Stat(filepath.Join(s.dir, "edge1", name))
		if err != nil {
			s.t.Error(err)
		} else if info.Mode().Perm() != mode {
			s.t.Errorf("%s has mode %04o, want %04o", name, info.Mode().Perm(), mode)
		}
	}
}

// What changed is taken by the running daemon where it can be; the VIP process, whose restart moves addresses, is restarted
// for its own keys alone; and what headgate refuses never replaces what it accepted.
func TestAChangeRestartsWhatReadsIt(t *testing.T) {
	s := edge(t)
	file := filepath.Join(s.dir, "edge1", "headgate.yaml")
	set := s.asForADaemonHere()
	s.succeeds(s.play("configure.yml", "--limit", "edge1"))
	if got := s.restarts(); got != "" {
		t.Errorf("units that do not run are restarted: %q", got)
	}
	s.runDaemon(file)

	change := func(what, key string, value any, restarted string) {
		t.Helper()
		set(key, value)
		s.succeeds(s.play("configure.yml", "--limit", "edge1"))
		if got := s.restarts(); got != restarted {
			t.Errorf("%s restarts %q, want %q", what, got, restarted)
		}
	}
	change("a key that the daemon takes", "maxBodySize", "9MiB", "")
	if out, err := exec.CommandContext(t.Context(), binary, "reload", "--dry-run", "--config", file).CombinedOutput(); err != nil || string(out) != "nothing changed\n" { //nolint:gosec // the product
		t.Errorf("the daemon was not told: %v\n%s", err, out)
	}
	change("a key of the daemon's start", "metrics", map[string]any{"listen": product.FreeAddress(t)}, "headgate")
	set("metrics", map[string]any{"listen": ""})
	change("a key of the VIP process", "vip", map[string]any{"priority": 90}, "headgate-vip")
	s.vars["edge_gossip_key"] = "YW5vdGhlci1zZWNyZXQta2V5LW9mLXRoZS10ZXN0LTAxMjM0NTY="
	change("the key of gossip", "maxBodySize", "9MiB", "headgate-vip")

	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(good), "- edge2") {
		t.Errorf("with --limit the other host is no peer any more:\n%s", good)
	}
	set("maxBodysize", "9MiB")
	s.saysWhy(s.play("configure.yml", "--limit", "edge1"), "maxBodysize")
	if now, _ := os.ReadFile(file); string(now) != string(good) {
		t.Errorf("a refused configuration was written:\n%s", now)
	}
	if got := s.restarts(); got != "" {
		t.Errorf("a refused configuration restarts %q", got)
	}
}

// asForADaemonHere lets the role configure a daemon that can run on this machine, and gives what sets one more key.
func (s *site) asForADaemonHere() (set func(key string, value any)) {
	s.t.Helper()
	manifests := filepath.Join(s.dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil { //nolint:gosec // no secret in it
		s.t.Fatal(err)
	}
	short, err := os.MkdirTemp("", "ha") // t.TempDir is too long for the paths of unix sockets
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = os.RemoveAll(short) })
	if err := os.Chmod(short, 0o711); err != nil { //nolint:gosec // nginx's workers, another user, pass through
		s.t.Fatal(err)
	}
	s.vars["edge_api_server"] = ""
	settings := map[string]any{
		"manifests": []string{manifests}, "status": map[string]any{"enabled": false}, "metrics": map[string]any{"listen": ""},
		"listeners": map[string]any{"http": []string{product.FreeAddress(s.t)}, "https": []string{}},
		"proxy":     map[string]any{"mode": "managed", "stopWithDaemon": true, "workerProcesses": 1},
		"stateDir":  filepath.Join(short, "state"), "runtimeDir": filepath.Join(short, "run"),
	}
	s.vars["edge_config"] = settings
	return func(key string, value any) { settings[key] = value }
}

// runDaemon runs the daemon on the file, and says so to the stand-in for systemd, until the test ends.
func (s *site) runDaemon(file string) {
	s.t.Helper()
	var log bytes.Buffer
	daemon := exec.Command(binary, "run", "--config", file) //nolint:gosec // ended below, so that it ends its proxy
	daemon.Stdout, daemon.Stderr = &log, &log
	if err := daemon.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		_ = daemon.Wait()
		if s.t.Failed() {
			s.t.Logf("the daemon:\n%s", log.String())
		}
	})
	const patience = 30 * time.Second
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // it has nothing else to tell that it is there
		if exec.CommandContext(s.t.Context(), binary, "status", "--config", file).Run() == nil { //nolint:gosec // the product
			break
		}
		if time.Now().After(deadline) {
			s.t.Fatal("the daemon is not ready")
		}
	}
	write(s.t, filepath.Join(s.dir, "running"), "")
}

// Each host of the inventory is a mistake; all are made in one run.
func TestMistakesAreNamed(t *testing.T) {
	cases := map[string]struct {
		vars map[string]any
		says string
	}{
		"nothing":  {map[string]any{}, "Nothing to serve"},
		"token":    {map[string]any{"edge_api_server": "https://10.0.0.1:6443"}, "edge_api_server needs edge_api_ca and edge_api_token"},
		"iface":    {map[string]any{"edge_kubeconfig": "x", "edge_vips": []string{"192.0.2.10"}, "edge_gossip_key": "x"}, "edge_vips needs edge_interface"},
		"key":      {map[string]any{"edge_kubeconfig": "x", "edge_vips": []string{"192.0.2.10"}, "edge_interface": "eth0"}, "need edge_gossip_key"},
		"checksum": {map[string]any{"edge_kubeconfig": "x", "edge_package": "https://example.com/x.deb"}, "needs edge_package_checksum"},
		"http":     {map[string]any{"edge_kubeconfig": "x", "edge_package": "http://example.com/x.deb"}, "write https://"},
		"good":     {map[string]any{"edge_config": map[string]any{"manifests": []string{"/srv"}}}, ""},
	}
	var hosts []string
	for name := range cases {
		hosts = append(hosts, name)
	}
	s := newSite(t, hosts...)
	if err := os.Mkdir(filepath.Join(s.dir, "host_vars"), 0o755); err != nil { //nolint:gosec // nothing secret
		t.Fatal(err)
	}
	for name, c := range cases {
		text, err := json.Marshal(c.vars)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(s.dir, "host_vars", name+".json"), string(text))
	}
	write(t, filepath.Join(s.dir, "variables.yml"), strings.ReplaceAll(onlyConfigure, "configure", "variables"))
	r := s.play("variables.yml")
	for name, c := range cases {
		_, failed := s.count(r, name)
		if wanted := c.says != ""; (failed != "0") != wanted {
			t.Errorf("%s: %s failed tasks", name, failed)
		}
		if !strings.Contains(r.text, c.says) {
			t.Errorf("%s: the output does not say %q", name, c.says)
		}
	}
	if t.Failed() {
		t.Log(r.text)
	}
}
