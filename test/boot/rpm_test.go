package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"headgate/test/netns"
)

// anotherDefault is the version that ships another headgate.yaml than the one before.
const anotherDefault = "1.2.0"

// standIns are what the rpm depends on, without content: name, version, and what else it provides.
var standIns = [][3]string{
	{"nginx", "1.26.3"},
	{"nginx-mod-http-lua", "0.10.28"},
	{"lua-resty-core", "0.1.31"},
	{"lua-resty-lrucache", "0.15"},
	{"lua-cjson", "2.1.0"},
	{"openresty", "1.27.1"},
	{"systemd", "252"},
	{"polkit", "0.117"},
	{"util-linux", "2.37.4"},
	{"bash", "5.1.8", "/bin/sh"},
}

// red is a host on which the rpm is installed by dnf. It is a Debian all the same: systemd, rpm and dnf are real, and
// nginx is the distribution's, which the rpm's stand-in only promises.
type red struct{ *host }

func TestTheRPMOnAHost(t *testing.T) {
	l := theLab()
	l.index(t)
	l.yumRepository(t)
	startBackend(t)
	r := &red{newHost(t, l, "edge6", 26)}
	r.write(t, "/etc/yum.repos.d/lab.repo", "[lab]\nname=lab\nbaseurl=file:///repo/rpm\ngpgcheck=0\n")
	for _, stage := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"install", r.install},
		{"start", r.start},
		{"upgrade and downgrade", r.upgrade},
		{"another default configuration", r.newDefault},
		{"remove", r.remove},
		{"install with OpenResty", r.openresty},
	} {
		if !t.Run(stage.name, stage.run) {
			return // what follows builds on it
		}
	}
}

// yumRepository makes /repo/rpm: the built rpms, one more with another default configuration, and the stand-ins.
func (l lab) yumRepository(t *testing.T) {
	t.Helper()
	const nfpm = `export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false"; nfpm=$(go tool -modfile=tools/go.mod -n nfpm)
`
	to := filepath.Join(l.repository(), "rpm")
	err := shell(t.Context(), filepath.Join(l.dir, "source-0"), nfpm+`mkdir "$1"; cp dist/*.rpm "$1"; echo '# one more remark' >>packaging/headgate.yaml
		PACKAGE_VERSION=$2 ARCH=$3 SOURCE_DATE_EPOCH=1700000000 "$nfpm" package -f packaging/nfpm.yaml -p rpm -t "$1/headgate_$2_$3.rpm"`, to, anotherDefault, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, s := range standIns {
		recipe := fmt.Sprintf("{name: %s, version: %s, arch: noarch, maintainer: headgate developers, description: a stand-in, provides: [%q]}\n", s[0], s[1], s[2])
		if s[2] == "" {
			recipe = strings.Replace(recipe, `, provides: [""]`, "", 1)
		}
		if err := os.WriteFile(filepath.Join(dir, s[0]+".yaml"), []byte(recipe), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := shell(t.Context(), "../..", nfpm+`for f in "$1"/*.yaml; do "$nfpm" package -f "$f" -p rpm -t "$2"; done; createrepo_c --quiet "$2"`, dir, to); err != nil {
		t.Fatal(err)
	}
}

// dnf answers no questions; a Debian has no version of EL, and one is wanted.
func (r *red) dnf(t *testing.T, what string) string {
	t.Helper()
	return r.must(t, "dnf --assumeyes --quiet --releasever=9 "+what+" 2>&1")
}

func (r *red) installed(t *testing.T, name string) bool {
	t.Helper()
	_, err := r.run(t.Context(), "rpm", "--quiet", "-q", name)
	return err == nil
}

// install: dnf finds nginx and its module, nothing is started, nothing has failed.
func (r *red) install(t *testing.T) {
	r.dnf(t, "install headgate-"+oldVersion)
	for name, wanted := range map[string]bool{"nginx": true, "nginx-mod-http-lua": true, "lua-resty-core": true, "openresty": false} {
		if r.installed(t, name) != wanted {
			t.Errorf("%s installed: %t, want %t", name, !wanted, wanted)
		}
	}
	r.nothingFailed(t)
	for _, unit := range []string{"headgate", "headgate-proxy", "headgate-vip"} {
		if s := r.state(t, unit); s != "inactive" {
			t.Errorf("%s is %s after the install", unit, s)
		}
		r.fails(t, "systemctl is-enabled "+unit)
	}
	r.must(t, "rpm --verify --nomode --nogroup headgate")       // but for /etc/headgate, which tmpfiles gives to the group
	r.must(t, "getent passwd headgate headgate-proxy")          // by sysusers
	r.must(t, "test -d /var/lib/headgate")                      // by tmpfiles
	r.must(t, "grep -qx 1 /proc/sys/net/ipv4/ip_nonlocal_bind") // by sysctl
}

func (r *red) nothingFailed(t *testing.T) {
	t.Helper()
	if failed := strings.TrimSpace(r.must(t, "systemctl --failed --no-legend --plain")); failed != "" {
		t.Errorf("failed units: %s", failed)
	}
}

// start: with a real nginx, and with a configuration of the administrator's.
func (r *red) start(t *testing.T) {
	r.apt(t, "install "+closure)
	if s := r.state(t, "nginx"); s != "inactive" {
		t.Errorf("the distribution's nginx is %s: it would take our ports", s)
	}
	r.write(t, "/etc/headgate/manifests/shop.yaml", objects)
	r.write(t, "/etc/headgate/headgate.yaml", "manifests: [/etc/headgate/manifests]\n")
	r.must(t, "systemctl enable --now headgate")
	serves(t, r.address, serveLimit)
}

// runs waits until the daemon of that version serves.
func (r *red) runs(t *testing.T, version string) {
	t.Helper()
	if got := r.must(t, "headgate version"); !strings.Contains(got, version) {
		t.Errorf("headgate version says %q, want %s", got, version)
	}
	netns.Eventually(t, bootLimit, "the daemon of "+version, func() bool {
		_, err := r.run(t.Context(), "sh", "-c", `cmp /usr/bin/headgate "/proc/$(systemctl show --value -p MainPID headgate)/exe" && headgate status`)
		return err == nil
	})
}

func (r *red) upgrade(t *testing.T) {
	edited := r.read(t, "/etc/headgate/headgate.yaml")
	for _, step := range [][2]string{{"upgrade", newVersion}, {"downgrade", oldVersion}} {
		during(t, r.address, "dnf "+step[0]+" to "+step[1], func() {
			proxy := r.mainPID(t, "headgate-proxy")
			r.dnf(t, step[0]+" headgate-"+step[1])
			r.runs(t, step[1])
			if now := r.mainPID(t, "headgate-proxy"); now != proxy {
				t.Errorf("nginx was restarted: PID %s, before %s", now, proxy)
			}
		})
	}
	if now := r.read(t, "/etc/headgate/headgate.yaml"); now != edited {
		t.Errorf("the administrator's configuration was changed to:\n%s", now)
	}
	if s := strings.TrimSpace(r.must(t, "systemctl is-enabled headgate")); s != "enabled" {
		t.Errorf("headgate is %s after upgrades", s)
	}
}

// newDefault: what was edited stays, and the new default lies beside it.
func (r *red) newDefault(t *testing.T) {
	edited := r.read(t, "/etc/headgate/headgate.yaml")
	during(t, r.address, "upgrade to another default", func() { r.dnf(t, "upgrade headgate") })
	if now := r.read(t, "/etc/headgate/headgate.yaml"); now != edited {
		t.Errorf("the administrator's configuration was changed to:\n%s", now)
	}
	if shipped := r.read(t, "/etc/headgate/headgate.yaml.rpmnew"); !strings.Contains(shipped, "# one more remark\n") {
		t.Errorf("headgate.yaml.rpmnew is not what the rpm ships:\n%s", shipped)
	}
	r.nothingFailed(t)
}

// remove stops and disables everything; what was edited is kept under another name.
func (r *red) remove(t *testing.T) {
	edited := r.read(t, "/etc/headgate/headgate.yaml")
	r.dnf(t, "remove headgate")
	if err := refuses(r.address, "80"); err != nil {
		t.Errorf("after remove: %v", err)
	}
	if left := strings.TrimSpace(r.must(t, "pgrep -l 'nginx|headgate' || true")); left != "" {
		t.Errorf("processes after remove: %s", left)
	}
	r.must(t, "! find /etc/systemd/system -name 'headgate*' | grep .")
	r.must(t, "test ! -e /run/headgate")
	if kept := r.read(t, "/etc/headgate/headgate.yaml.rpmsave"); kept != edited {
		t.Errorf("headgate.yaml.rpmsave is not the administrator's:\n%s", kept)
	}
	r.nothingFailed(t)
}

// openresty is as good as nginx and its module: dnf adds none of them.
func (r *red) openresty(t *testing.T) {
	r.dnf(t, "install openresty headgate-"+newVersion)
	if r.installed(t, "nginx") || r.installed(t, "nginx-mod-http-lua") {
		t.Error("nginx came with OpenResty")
	}
	r.nothingFailed(t)
}
