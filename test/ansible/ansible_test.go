// Package ansible tests the collection in ansible/: the linter's strictest profile, what the role writes against the real
// binary, and drain and undrain against VIP processes in network namespaces. Systemd is a stand-in that notes what was
// restarted; nothing is installed on this machine.
package ansible

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"headgate/test/product"
)

var binary string // of headgate

func TestMain(m *testing.M) { product.Main(m, &binary) }

// collections makes a folder of collections that holds ours, and gives its path.
func collections(t *testing.T, tools ...string) string {
	t.Helper()
	product.LookAt(t, "ansible")
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s is missing: scripts/install-deps.sh test installs it", tool)
			}
			t.Skipf("%s is missing: run scripts/install-deps.sh test", tool)
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "ansible_collections", "headgate", "edge"), os.DirFS("../../ansible")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTheLinterFindsNothing(t *testing.T) {
	dir := collections(t, "ansible-lint")
	lint := exec.CommandContext(t.Context(), "ansible-lint", "--offline", "--nocolor", "--strict", "--profile", "production")
	lint.Dir = filepath.Join(dir, "ansible_collections", "headgate", "edge")
	lint.Env = append(os.Environ(), "ANSIBLE_COLLECTIONS_PATH="+dir, "ANSIBLE_HOME="+filepath.Join(dir, "home"), "HOME="+dir)
	out, err := lint.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Passed with production profile") {
		t.Errorf("%v\n%s", err, out)
	}
}

// site is a control node: an inventory, and what each run of a playbook needs.
type site struct {
	t     *testing.T
	dir   string
	hosts []string
	vars  map[string]any // extra variables
}

func newSite(t *testing.T, hosts ...string) *site {
	t.Helper()
	s := &site{t: t, dir: collections(t, "ansible-playbook"), hosts: hosts, vars: map[string]any{
		"ansible_become": false, "ansible_python_interpreter": "/usr/bin/python3", "edge_binary": binary, "edge_group": "root",
	}}
	var inventory strings.Builder
	inventory.WriteString("edge:\n  hosts:\n")
	for _, h := range hosts {
		fmt.Fprintf(&inventory, "    %s: {ansible_connection: local}\n", h)
	}
	write(t, filepath.Join(s.dir, "inventory.yml"), inventory.String())
	s.standInForSystemd()
	return s
}

// standInForSystemd says of each unit that it is enabled, and that it runs once the file running exists; it notes each
// restart as a line of restarts.
func (s *site) standInForSystemd() {
	s.t.Helper()
	bin := filepath.Join(s.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil { //nolint:gosec // a folder of programs
		s.t.Fatal(err)
	}
	script := `#!/bin/sh
case "$1" in
  restart) echo "$2" >>"` + filepath.Join(s.dir, "restarts") + `" ;;
  is-enabled) echo enabled ;;
  is-active) shift; for unit in "$@"; do if [ -e "` + filepath.Join(s.dir, "running") + `" ]; then echo active; else echo inactive; fi; done ;;
  show) printf 'LoadState=loaded\nActiveState=active\nSubState=running\n' ;;
esac
`
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(script), 0o755); err != nil { //nolint:gosec // a program
		s.t.Fatal(err)
	}
}

// restarts gives the units that were restarted since it was asked last.
func (s *site) restarts() string {
	s.t.Helper()
	path := filepath.Join(s.dir, "restarts")
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	_ = os.Remove(path)
	return strings.Join(strings.Fields(string(text)), " ")
}

// run is one run of a playbook.
type run struct {
	err  error
	text string
}

// play runs a playbook: a name of the collection's, or a file of s.dir.
func (s *site) play(playbook string, arguments ...string) run {
	s.t.Helper()
	vars, err := json.Marshal(s.vars)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(s.t.Context(), "ansible-playbook", append([]string{"-i", "inventory.yml", "-e", string(vars), playbook}, arguments...)...) //nolint:gosec // a test's own
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "ANSIBLE_COLLECTIONS_PATH="+s.dir, "ANSIBLE_HOME="+filepath.Join(s.dir, "home"), "HOME="+s.dir,
		"ANSIBLE_NOCOLOR=1", "ANSIBLE_PIPELINING=1", "ANSIBLE_LOCALHOST_WARNING=0", "PATH="+filepath.Join(s.dir, "bin")+":"+os.Getenv("PATH"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return run{err, out.String()}
}

var recap = regexp.MustCompile(`(?m)^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)`)

// count gives a host's changed and failed tasks; what is missing in the recap fails the test.
func (s *site) count(r run, host string) (changed, failed string) {
	s.t.Helper()
	for _, m := range recap.FindAllStringSubmatch(r.text, -1) {
		if m[1] == host {
			return m[3], m[5]
		}
	}
	s.t.Fatalf("no recap of %s: %v\n%s", host, r.err, r.text)
	return "", ""
}

func (s *site) succeeds(r run) {
	s.t.Helper()
	if r.err != nil {
		s.t.Fatalf("%v\n%s", r.err, r.text)
	}
}

// saysWhy fails the test unless the run failed with those words.
func (s *site) saysWhy(r run, words string) {
	s.t.Helper()
	if r.err == nil || !strings.Contains(strings.ReplaceAll(r.text, "\\n", "\n"), words) {
		s.t.Errorf("%v; want a failure that says %q\n%s", r.err, words, r.text)
	}
}
