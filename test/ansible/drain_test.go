package ansible

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"headgate/test/vip/lab"
)

// edgeOfTwo is two hosts that share an address, and a site that knows them. A host's processes live in a network
// namespace of its own; its commands ask over unix sockets, so that Ansible runs them from here.
func edgeOfTwo(t *testing.T) (*site, *lab.Lab) {
	t.Helper()
	s := newSite(t, "edge1", "edge2")
	l := lab.New(t, lab.Config{Binary: binary, Proxy: lab.Assemble(t, binary), Hosts: s.hosts, VIPs: lab.Web("preemptDelay: 0s")})
	l.Start(t)
	files := map[string]string{}
	for _, h := range l.Hosts {
		files[h.Name] = configOf(t, h)
	}
	s.vars["test_files"] = files
	s.vars["edge_config_file"] = "{{ test_files[item | default(inventory_hostname)] }}" // item: the host that a task is delegated to
	s.vars["edge_vips"] = []string{"192.0.2.100"}
	s.vars["edge_kubeconfig"] = "not read here"
	s.vars["edge_wait_seconds"] = 20
	return s, l
}

// configOf reads the file from the command line of the host's process.
func configOf(t *testing.T, h *lab.Host) string {
	t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", h.PID()))
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	return words[len(words)-1]
}

func TestDrainMovesTheAddressAndUndrainLetsItBack(t *testing.T) {
	s, l := edgeOfTwo(t)
	owner := l.Settled(t)
	r := s.play("headgate.edge.drain", "--limit", owner.Name)
	s.succeeds(r)
	if changed, _ := s.count(r, owner.Name); changed != "1" {
		t.Errorf("%s tasks changed, want 1\n%s", changed, r.text)
	}
	if now := l.Settled(t); now == owner {
		t.Fatalf("%s still owns the address", owner.Name)
	}
	r = s.play("headgate.edge.drain", "--limit", owner.Name)
	s.succeeds(r)
	if changed, _ := s.count(r, owner.Name); changed != "0" {
		t.Errorf("the second drain changed %s tasks, want 0", changed)
	}

	r = s.play("headgate.edge.drain", "--limit", owner.Name, "-e", "edge_drain_state=undrained")
	s.succeeds(r)
	if text, _ := owner.Command(t, "vip", "status", "-o", "json"); !strings.Contains(text, `"draining": false`) {
		t.Errorf("%s is still drained:\n%s", owner.Name, text)
	}
}

func TestDrainIsRefusedWhereNobodyElseServes(t *testing.T) {
	s, l := edgeOfTwo(t)
	owner := l.Settled(t)
	s.saysWhy(s.play("headgate.edge.drain"), "All hosts of the group would be drained")

	l.Other(owner).StopVIP(t)
	l.Settled(t)
	s.saysWhy(s.play("headgate.edge.drain", "--limit", owner.Name), "No other host is alive and ready")
	if text, _ := owner.Command(t, "vip", "status", "-o", "json"); !strings.Contains(text, `"draining": false`) {
		t.Errorf("%s is drained all the same:\n%s", owner.Name, text)
	}
}
