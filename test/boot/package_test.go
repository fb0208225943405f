package boot

import (
	"bytes"
	"crypto/sha256"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestThePackageIsReproducible compares two builds of one version: from two folders, with another umask and time zone.
func TestThePackageIsReproducible(t *testing.T) {
	t.Parallel()
	l := theLab()
	for _, kind := range []string{".deb", ".rpm"} {
		name := "headgate_" + oldVersion + "_" + runtime.GOARCH + kind
		var sums [2][sha256.Size]byte
		for i, folder := range []string{"source-0", "source-2"} {
			content, err := os.ReadFile(filepath.Join(l.dir, folder, "dist", name))
			if err != nil {
				t.Fatal(err)
			}
			sums[i] = sha256.Sum256(content)
		}
		if sums[0] != sums[1] {
			t.Errorf("two builds of %s differ: %x and %x", name, sums[0], sums[1])
		}
	}
}

func TestLintianFindsNoError(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "lintian", "--allow-root", "--fail-on", "error", theLab().deb(oldVersion)).CombinedOutput()
	if err != nil {
		t.Errorf("lintian: %v\n%s", err, out)
	}
}

// TestMaintainerScriptsAreShort: what runs as root on other people's hosts is read by them first.
func TestMaintainerScriptsAreShort(t *testing.T) {
	t.Parallel()
	const most = 20
	scripts, err := filepath.Glob("../../packaging/*/*")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, name := range scripts {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(text, []byte("\n")); lines > most {
			t.Errorf("%s has %d lines, at most %d are wanted", name, lines, most)
		}
		if out, err := exec.CommandContext(t.Context(), "shellcheck", "--shell=sh", "--severity=warning", name).CombinedOutput(); err != nil { //nolint:gosec // our own files
			t.Errorf("shellcheck: %v\n%s", err, out)
		}
	}
}

// TestThePackageHoldsWhatItShould names files that something outside of the package relies on.
func TestThePackageHoldsWhatItShould(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--contents", theLab().deb(oldVersion)).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{
		"/usr/bin/headgate", "/etc/headgate/headgate.yaml", "/usr/lib/systemd/system/headgate.service",
		"/usr/lib/systemd/system/headgate-proxy.service", "/usr/lib/systemd/system/headgate-vip.service",
		"/usr/share/man/man1/headgate-run.1.gz", "/usr/share/bash-completion/completions/headgate",
		"/usr/share/doc/headgate/rbac.yaml", "/usr/share/doc/headgate/examples/shop.yaml", "/usr/share/doc/headgate/third-party-licenses.gz",
		"/usr/share/polkit-1/rules.d/50-headgate.rules", "/etc/logrotate.d/headgate",
	} {
		if !strings.Contains(string(out), " ."+file+"\n") {
			t.Errorf("%s is missing", file)
		}
	}
}
