package shell

import (
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestWord(t *testing.T) {
	for text, want := range map[string]string{
		"/etc/headgate/headgate.yaml": "/etc/headgate/headgate.yaml",
		"":                            "''",
		"a b":                         "'a b'",
		"it's":                        `'it'\''s'`,
		"$(reboot)":                   "'$(reboot)'",
		"~/x":                         "'~/x'",
	} {
		if got := Word(text); got != want {
			t.Errorf("%q is written %s, want %s", text, got, want)
		}
	}
}

func TestAShellReadsItBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ -~\n\täöü✓]{0,20}`).Draw(t, "text")
		out, err := exec.Command("sh", "-c", "printf %s. "+Word(text)).Output() //nolint:gosec // that is what is tested
		if got, _ := strings.CutSuffix(string(out), "."); err != nil || got != text {
			t.Fatalf("%q came back as %q, %v", text, got, err)
		}
	})
}
