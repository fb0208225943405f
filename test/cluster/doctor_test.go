package cluster

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"headgate/cmd/check"
	"headgate/cmd/config"
	"headgate/cmd/rbac"
	"headgate/test/cluster/harness"
)

// TestDoctorAsksForEachRule: without roles every rule is named with the command that grants it, and no pod is tried; with them all
// is well.
func TestDoctorAsksForEachRule(t *testing.T) {
	c := harness.Start(t)
	shop := c.Namespace(t, "shop")
	settings := configured("", []string{shop}, "")
	// The account alone, without any role.
	account, _, _ := strings.Cut(string(rbac.YAML(rbac.From(settings), "test")), "---\n# ")
	c.Apply(t, account)
	settings.Kubeconfig = c.ServiceAccountKubeconfig(t, "headgate-system", "headgate")

	lines := doctor(t, settings)
	rules := rbac.Rules(rbac.From(settings))
	refused := 0
	for _, l := range lines["rbac"] {
		if l.Verdict == check.Fail && strings.HasPrefix(l.Message, "may not ") && strings.HasPrefix(l.Fix, "headgate rbac") {
			refused++
		}
	}
	if refused != len(rules) {
		t.Errorf("%d of %d rules are named as missing: %v", refused, len(rules), lines["rbac"])
	}
	if pods := lines["pods"]; len(pods) != 1 || pods[0].Verdict != check.Warn || !strings.Contains(pods[0].Message, "no pods are tried") {
		t.Errorf("pods: %v", pods)
	}

	c.Apply(t, string(rbac.YAML(rbac.From(settings), "test")))
	lines = doctor(t, settings)
	for area, want := range map[string]string{"rbac": "rules are granted", "pods": "there is no ready pod to try", "cluster": "the API server answers: Kubernetes"} {
		found := false
		for _, l := range lines[area] {
			found = found || l.Verdict == check.OK && strings.Contains(l.Message, want)
			if l.Verdict == check.Fail {
				t.Errorf("%s: %s", area, l.Message)
			}
		}
		if !found {
			t.Errorf("%s does not say %q: %v", area, want, lines[area])
		}
	}
}

// doctor gives the lines by area.
func doctor(t *testing.T, c config.Config) map[string][]check.Line {
	t.Helper()
	c.StateDir, c.RuntimeDir = filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "run")
	c.Listeners.HTTP, c.Listeners.HTTPS = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:18080")}, nil
	lines := map[string][]check.Line{}
	for _, l := range check.Doctor(t.Context(), check.Subject{Config: c, Version: "test", Host: check.This()}).Lines {
		lines[l.Area] = append(lines[l.Area], l)
	}
	return lines
}
