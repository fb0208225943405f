// Package boot installs the built package on booted hosts, and works with them as an administrator does: each host is a
// Debian of its own under systemd-nspawn, on a bridge in a network namespace that the test made. The API server and the
// clients are the test's own process, outside.
package boot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"headgate/test/cluster/harness"
)

// What the hosts are made of. A change of any of these makes another tree in the cache.
const (
	suite = "bookworm"
	base  = "systemd,systemd-sysv,dbus,iproute2,polkitd,needrestart,nftables,curl,ca-certificates,procps,logrotate,apt-utils," +
		"openssh-server,python3,python3-apt,rpm,dnf" // for Ansible, and for the rpm
	// closure is what the package depends on and what the tests install later: downloaded with the tree, not installed.
	closure = "nginx libnginx-mod-http-lua lua-resty-core lua-resty-lrucache lua-cjson"
	recipe  = "1" // of baseTree itself
)

// The versions that the tests install; both are built from this tree.
const (
	oldVersion = "1.0.0"
	newVersion = "1.1.0"
)

// prepared names the folder that TestMain has made, for the test in its network namespace.
const prepared = "HEADGATE_TEST_BOOT"

func TestMain(m *testing.M) {
	if os.Getenv(prepared) != "" {
		harness.Main(m)
	}
	os.Exit(prepareAndRun(m))
}

func prepareAndRun(m *testing.M) int {
	if why := missing(); why != "" {
		fmt.Fprintln(os.Stderr, "skipped:", why)
		if os.Getenv("CI") == "true" {
			return 1
		}
		return 0
	}
	dir, err := os.MkdirTemp("", "headgate-boot-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := prepare(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// harness.Main ends its process, and the folder must go.
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.CommandContext(context.Background(), self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), prepared+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// missing says why no host can be booted here; "" when it can.
func missing() string {
	if os.Geteuid() != 0 {
		return "booting hosts needs root"
	}
	for _, tool := range []string{"systemd-nspawn", "mmdebstrap", "dpkg-scanpackages", "createrepo_c", "ansible-playbook", "ssh", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + " is not installed: scripts/install-deps.sh test"
		}
	}
	return ""
}

// lab is what all hosts share.
type lab struct {
	dir  string // of this run
	tree string // the root folder below each host's own
}

func theLab() lab {
	dir := os.Getenv(prepared)
	return lab{dir: dir, tree: filepath.Join(dir, "tree")}
}

// repository is a flat repository of apt, seen by the hosts as /repo.
func (l lab) repository() string { return filepath.Join(l.dir, "repo") }

// deb is the path of a built package.
func (l lab) deb(version string) string {
	return filepath.Join(l.repository(), fmt.Sprintf("headgate_%s_%s.deb", version, runtime.GOARCH))
}

// prepare makes the tree of the hosts, or finds it, and builds the packages.
func prepare(ctx context.Context, dir string) error {
	tree, err := baseTree(ctx)
	if err != nil {
		return err
	}
	l := lab{dir: dir, tree: filepath.Join(dir, "tree")}
	if err := errors.Join(os.Symlink(tree, l.tree), os.Mkdir(l.repository(), 0o755)); err != nil {
		return err
	}
	// Both copies are of one moment: somebody may be working in the tree.
	first, second := filepath.Join(dir, "source-0"), filepath.Join(dir, "source-2")
	if err := errors.Join(copySource(ctx, first), shell(ctx, "", `cp -a "$1" "$2"`, first, second)); err != nil {
		return err
	}
	for _, b := range []struct {
		from    string
		version string
		setting string // of the shell that builds
	}{
		{first, oldVersion, "umask 022; export TZ=UTC"},
		{first, newVersion, "umask 022; export TZ=UTC"},
		{second, oldVersion, "umask 077; export TZ=Asia/Tokyo"},
	} {
		if err := build(ctx, b.from, b.version, b.setting); err != nil {
			return err
		}
	}
	if err := copyAll(filepath.Join(tree, "closure"), l.repository()); err != nil {
		return err
	}
	return copyAll(filepath.Join(dir, "source-0", "dist"), l.repository())
}

// baseTree is the minimal system, from the cache or made now.
func baseTree(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = "/var/cache"
	}
	sum := sha256.Sum256([]byte(suite + base + closure + recipe + runtime.GOARCH))
	tree := filepath.Join(cache, "headgate", "boot", hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(filepath.Join(tree, "closure")); err == nil {
		return tree, nil
	}
	if err := os.MkdirAll(filepath.Dir(tree), 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(tree), "new-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	if err := os.Chmod(fresh, 0o755); err != nil { //nolint:gosec // the root folder of a system
		return "", err
	}
	download := `rm -f "$1"/var/cache/apt/archives/*.deb; APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -qq --yes --no-install-recommends --download-only install ` + closure +
		` && mkdir "$1/closure" && mv "$1"/var/cache/apt/archives/*.deb "$1/closure/"`
	if err := shell(ctx, "", `mmdebstrap --quiet --variant=minbase --include="$1" --customize-hook="$2" "$3" "$4"`, base, download, suite, fresh); err != nil {
		return "", err
	}
	// Nobody waits for terminals, and nothing is fetched.
	for _, unit := range []string{"apt-daily.timer", "apt-daily-upgrade.timer", "getty.target", "console-getty.service", "systemd-resolved.service"} {
		if err := os.Symlink("/dev/null", filepath.Join(fresh, "etc/systemd/system", unit)); err != nil {
			return "", err
		}
	}
	err = os.Rename(fresh, tree)
	if err != nil {
		if _, there := os.Stat(filepath.Join(tree, "closure")); there == nil {
			return tree, nil // somebody else was faster
		}
	}
	return tree, err
}

// copySource copies the files of the repository, those that git does not know yet among them.
func copySource(ctx context.Context, to string) error {
	return shell(ctx, "../..", `mkdir "$1" && git ls-files -coz --exclude-standard | while IFS= read -r -d '' f; do [ ! -f "$f" ] || printf '%s\0' "$f"; done |
		tar --null -T - -cf - | tar -C "$1" -xf -`, to)
}

// build makes the packages, with nothing but the version and the time from outside.
func build(ctx context.Context, dir, version, setting string) error {
	return shell(ctx, dir, setting+`; PACKAGE_VERSION=$1 SOURCE_DATE_EPOCH=1700000000 ARCHES=$2 packaging/build.sh`, version, runtime.GOARCH)
}

func copyAll(from, to string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.deb"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no packages in %s: %w", from, err)
	}
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(f)), content, 0o644); err != nil { //nolint:gosec // packages
			return err
		}
	}
	return nil
}

// shell runs a script; its output is in the error.
func shell(ctx context.Context, dir, script string, arguments ...string) error {
	cmd := exec.CommandContext(ctx, "bash", append([]string{"-euo", "pipefail", "-c", script, "bash"}, arguments...)...) //nolint:gosec // the scripts are ours
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.SplitN(script, "\n", 2)[0], err, out.String())
	}
	return nil
}

// index tells apt what is in the repository.
func (l lab) index(t *testing.T) {
	t.Helper()
	if err := shell(t.Context(), l.repository(), "dpkg-scanpackages --multiversion . > Packages 2>/dev/null"); err != nil {
		t.Fatal(err)
	}
}
