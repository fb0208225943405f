package boot

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"headgate/cmd/check"
	"headgate/test/cluster/harness"
	"headgate/test/netns"
)

// serveLimit is how long after a start or a boot the gateway may take to serve, on a machine that does nothing else three
// seconds; the tests' own is busy.
const serveLimit = 15 * time.Second

// life is one host from the first install to the last trace, in the order in which things happen to it.
type life struct {
	*host
	lab        lab
	cluster    *harness.Cluster
	kubeconfig string
}

func TestTheLifeOfAHost(t *testing.T) {
	l := theLab()
	l.index(t)
	startBackend(t)
	cluster, kubeconfig := startCluster(t)
	a := &life{host: newHost(t, l, "edge1", 11), lab: l, cluster: cluster, kubeconfig: kubeconfig}
	for _, stage := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"install", a.install},
		{"unconfigured", a.unconfigured},
		{"first start", a.firstStart},
		{"doctor", a.doctor},
		{"hardening", a.hardening},
		{"bad configuration", a.badConfiguration},
		{"the daemon dies", a.daemonDies},
		{"the daemon hangs", a.daemonHangs},
		{"the proxy dies", a.proxyDies},
		{"the proxy is restarted", a.proxyRestarted},
		{"the daemon's rights", a.rights},
		{"upgrade", a.upgrade},
		{"nginx is upgraded", a.nginxUpgraded},
		{"needrestart", a.needrestart},
		{"reboot", a.reboots},
		{"reboot with a mistake in the configuration", a.rebootWithMistake},
		{"reboot without the cluster", a.rebootWithoutCluster},
		{"remove and purge", a.removed},
	} {
		if !t.Run(stage.name, stage.run) {
			return // what follows builds on it
		}
	}
}

// install: nothing is started, nothing has failed, and nobody listens.
func (a *life) install(t *testing.T) {
	a.apt(t, "install headgate="+oldVersion)
	if failed := strings.TrimSpace(a.must(t, "systemctl --failed --no-legend --plain")); failed != "" {
		t.Errorf("failed units: %s", failed)
	}
	for _, unit := range []string{"nginx", "headgate", "headgate-proxy", "headgate-vip"} {
		if s := a.state(t, unit); s != "inactive" {
			t.Errorf("%s is %s after the install", unit, s)
		}
	}
	for _, port := range []string{"80", "443"} {
		if err := refuses(a.address, port); err != nil {
			t.Errorf("port %s: %v", port, err)
		}
	}
	a.must(t, "systemctl start nginx") // which does nothing
	if s := a.state(t, "nginx"); s != "inactive" {
		t.Errorf("the distribution's nginx is %s after a start: it would take our ports", s)
	}
	a.must(t, "systemd-analyze verify --man=no /usr/lib/systemd/system/headgate*.service")
	a.must(t, "man -w headgate >/dev/null 2>&1 || test -e /usr/share/man/man1/headgate.1.gz")
}

// unconfigured: one start, one line, no second start.
func (a *life) unconfigured(t *testing.T) {
	a.fails(t, "systemctl start headgate")
	log := a.must(t, "journalctl -u headgate -o cat --no-pager")
	if !strings.Contains(log, `write "kubeconfig: FILE"`) {
		t.Errorf("the log does not say what to write:\n%s", log)
	}
	if s := a.state(t, "headgate"); s != "failed" {
		t.Errorf("headgate is %s: it should have given up", s)
	}
	if n := strings.TrimSpace(a.must(t, "systemctl show --value -p NRestarts headgate")); n != "0" {
		t.Errorf("%s restarts of what cannot work", n)
	}
	a.must(t, "systemctl stop headgate-proxy; systemctl reset-failed")
}

// firstStart: the administrator puts a kubeconfig there and edits one line.
func (a *life) firstStart(t *testing.T) {
	a.write(t, "/etc/headgate/kubeconfig", a.kubeconfig)
	a.must(t, "chgrp headgate /etc/headgate/kubeconfig && chmod 0640 /etc/headgate/kubeconfig")
	config := a.read(t, "/etc/headgate/headgate.yaml")
	edited := strings.Replace(config, "#kubeconfig:", "kubeconfig:", 1)
	if edited == config {
		t.Fatalf("the shipped configuration has no line for the kubeconfig:\n%s", config)
	}
	a.write(t, "/etc/headgate/headgate.yaml", edited)
	from := time.Now()
	a.must(t, "systemctl enable --now headgate")
	serves(t, a.address, serveLimit)
	t.Logf("served %s after the start", time.Since(from).Round(time.Millisecond))
	if s := a.must(t, "systemctl show --value -p StatusText headgate"); !strings.Contains(s, "revision") {
		t.Errorf("systemctl status says %q", s)
	}
	if s := a.state(t, "headgate-vip"); s != "inactive" {
		t.Errorf("headgate-vip is %s on a host without a VIP", s)
	}
	a.must(t, "headgate status")
}

// doctor finds nothing on a host that serves, and what keeps the daemon's user from its files, although root can read them.
func (a *life) doctor(t *testing.T) {
	out := a.must(t, "headgate doctor 2>&1")
	for line := range strings.Lines(out) {
		// The tests' network has no name server, their tokens last an hour, and a guest may open fewer files than a host.
		ofTheLab := strings.HasPrefix(line, "warn  dns ") || strings.Contains(line, "the token expires") || strings.HasPrefix(line, "warn  limits ")
		if strings.HasPrefix(line, "warn") && !ofTheLab {
			t.Errorf("on a host that serves doctor finds:\n%s", out)
			break
		}
	}
	var report check.Report
	if err := json.Unmarshal([]byte(a.must(t, "headgate doctor -o json")), &report); err != nil || len(report.Lines) == 0 {
		t.Errorf("doctor -o json: %v", err)
	}
	a.must(t, "chmod 0600 /etc/headgate/kubeconfig")
	const fix = "chgrp headgate /etc/headgate/kubeconfig && chmod 0640 /etc/headgate/kubeconfig"
	if out := a.fails(t, "headgate doctor 2>&1"); !strings.Contains(out, "cannot read /etc/headgate/kubeconfig") || !strings.Contains(out, "-> "+fix) {
		t.Errorf("doctor does not tell of a kubeconfig that the daemon cannot read:\n%s", out)
	}
	a.must(t, fix+" && headgate doctor")
}

var exposure = regexp.MustCompile(`Overall exposure level for (\S+): ([0-9.]+)`)

func (a *life) hardening(t *testing.T) {
	for unit, most := range map[string]float64{"headgate.service": 1.8, "headgate-proxy.service": 1.8, "headgate-vip.service": 2.5} {
		out := a.must(t, "systemd-analyze security --no-pager "+unit+" | tail -n 1")
		m := exposure.FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("systemd-analyze says %q", out)
		}
		score, err := strconv.ParseFloat(m[2], 64)
		if err != nil || score > most {
			t.Errorf("%s has exposure %s, at most %.1f is wanted", m[1], m[2], most)
		}
	}
	if user := strings.TrimSpace(a.must(t, `ps -o user= -p "$(systemctl show --value -p MainPID headgate-proxy)"`)); !strings.HasPrefix("headgate-proxy", strings.TrimSuffix(user, "+")) {
		t.Errorf("nginx's master runs as %q", user)
	}
	// A worker that somebody has broken into reaches none of these.
	for _, file := range []string{"/etc/headgate/kubeconfig", "/run/headgate/admin/admin.sock", "/run/headgate/vip"} {
		a.fails(t, "setpriv --reuid=headgate-proxy --regid=headgate-proxy --init-groups test -r "+file)
	}
}

// badConfiguration: a reload says so, and everything stays as it was.
func (a *life) badConfiguration(t *testing.T) {
	good := a.read(t, "/etc/headgate/headgate.yaml")
	during(t, a.address, "the reload of a bad configuration", func() {
		a.write(t, "/etc/headgate/headgate.yaml", good+"\nmaxBodySize: plenty\n")
		a.fails(t, "systemctl reload headgate")
		if log := a.must(t, "journalctl -u headgate -o cat --no-pager -n 30"); !strings.Contains(log, "maxBodySize") {
			t.Errorf("the log does not name the key:\n%s", log)
		}
	})
	a.write(t, "/etc/headgate/headgate.yaml", good)
	a.must(t, "systemctl reload headgate")
	if s := a.state(t, "headgate"); s != "active" {
		t.Errorf("headgate is %s", s)
	}
}

// mainPID is as the host sees it; "0" when the unit does not run.
func (h *host) mainPID(t *testing.T, unit string) string {
	t.Helper()
	return strings.TrimSpace(h.must(t, "systemctl show --value -p MainPID "+unit))
}

// another waits for a main process that is not pid.
func (a *life) another(t *testing.T, unit, pid string) {
	t.Helper()
	netns.Eventually(t, bootLimit, "another process of "+unit, func() bool {
		now := a.mainPID(t, unit)
		return now != pid && now != "0" && a.state(t, unit) == "active"
	})
}

func (a *life) daemonDies(t *testing.T) {
	during(t, a.address, "kill -9 of the daemon", func() {
		pid := a.mainPID(t, "headgate")
		a.must(t, "kill -KILL "+pid)
		a.another(t, "headgate", pid)
	})
	during(t, a.address, "restart of the daemon", func() { a.must(t, "systemctl restart headgate") })
}

// daemonHangs: systemd hears nothing from the loop, ends the process, and the goroutines are in the journal.
func (a *life) daemonHangs(t *testing.T) {
	const drop = "/run/systemd/system/headgate.service.d/watchdog.conf"
	a.must(t, "mkdir -p "+filepath.Dir(drop)+" && printf '[Service]\\nWatchdogSec=3s\\n' > "+drop+" && systemctl daemon-reload && systemctl restart headgate")
	during(t, a.address, "a daemon that hangs", func() {
		pid := a.mainPID(t, "headgate")
		a.must(t, "kill -STOP "+pid)
		a.another(t, "headgate", pid)
	})
	a.must(t, "journalctl -u headgate -o cat --no-pager | grep -q 'Watchdog timeout'")
	a.must(t, "journalctl -u headgate -o cat --no-pager | grep -q '^goroutine [0-9]'") // what it was doing
	a.must(t, "rm -r "+filepath.Dir(drop)+" && systemctl daemon-reload && systemctl restart headgate")
}

func (a *life) proxyDies(t *testing.T) {
	during(t, a.address, "kill -9 of nginx's master", func() {
		pid := a.mainPID(t, "headgate-proxy")
		a.must(t, "kill -KILL "+pid)
		a.another(t, "headgate-proxy", pid)
	})
	// Everything at once is an outage, and must end.
	a.must(t, "systemctl kill --signal=KILL headgate-proxy")
	t.Logf("all of nginx killed: served again after %s", serves(t, a.address, serveLimit).Round(time.Millisecond))
	a.ready(t)
}

// ready waits until the daemon is content.
func (a *life) ready(t *testing.T) {
	t.Helper()
	netns.Eventually(t, bootLimit, "headgate status to be ok", func() bool {
		_, err := a.run(t.Context(), "headgate", "status")
		return err == nil
	})
}

func (a *life) proxyRestarted(t *testing.T) {
	for _, command := range []string{"systemctl restart headgate-proxy", "systemctl reload headgate-proxy", "headgate proxy upgrade", "headgate proxy upgrade"} {
		during(t, a.address, command, func() { a.must(t, command) })
	}
	a.ready(t)
	a.must(t, "systemctl stop headgate-proxy")
	if left := strings.TrimSpace(a.must(t, "pgrep nginx || true")); left != "" {
		t.Errorf("processes of nginx after a stop: %s", left)
	}
	a.must(t, "systemctl start headgate-proxy")
	serves(t, a.address, serveLimit)
	a.ready(t)
}

// rights: the daemon's user may have nginx reloaded, and nothing else.
func (a *life) rights(t *testing.T) {
	as := "setpriv --reuid=headgate --regid=headgate --init-groups "
	a.must(t, as+"systemctl --no-ask-password reload headgate-proxy.service")
	for _, refused := range []string{
		"stop headgate-proxy.service", "restart headgate-proxy.service", "reload headgate-vip.service", "restart dbus.service",
		"start nginx.service", "daemon-reload", "reboot",
	} {
		a.fails(t, as+"systemctl --no-ask-password "+refused)
	}
	if s := a.state(t, "headgate-proxy"); s != "active" {
		t.Errorf("the proxy is %s", s)
	}
}

// upgrade to the next version and back, under load, with a configuration that the administrator has edited.
func (a *life) upgrade(t *testing.T) {
	edited := a.read(t, "/etc/headgate/headgate.yaml")
	for _, version := range []string{newVersion, oldVersion} {
		during(t, a.address, "install of "+version, func() {
			pid := a.mainPID(t, "headgate")
			proxy := a.mainPID(t, "headgate-proxy")
			a.apt(t, "install --allow-downgrades headgate="+version)
			a.another(t, "headgate", pid)
			a.ready(t)
			if now := a.mainPID(t, "headgate-proxy"); now != proxy {
				t.Errorf("nginx was restarted by the upgrade: PID %s, before %s", now, proxy)
			}
		})
		if got := a.must(t, "headgate version"); !strings.Contains(got, version) {
			t.Errorf("headgate version says %q, want %s", got, version)
		}
		if now := a.read(t, "/etc/headgate/headgate.yaml"); now != edited {
			t.Errorf("the administrator's configuration was changed to:\n%s", now)
		}
	}
}

// nginxUpgraded: the distribution's packages come in a later version, and ours replaces the master.
func (a *life) nginxUpgraded(t *testing.T) {
	for _, name := range []string{"nginx", "libnginx-mod-http-lua"} {
		a.lab.later(t, name)
	}
	a.lab.index(t)
	proxy := a.mainPID(t, "headgate-proxy")
	during(t, a.address, "upgrade of nginx", func() {
		out := a.apt(t, "install --only-upgrade nginx libnginx-mod-http-lua")
		if !strings.Contains(out, "nginx was replaced") {
			t.Errorf("nothing replaced the running nginx:\n%s", out)
		}
	})
	a.another(t, "headgate-proxy", proxy)
	a.ready(t)
	if s := a.state(t, "nginx"); s != "inactive" {
		t.Errorf("nginx.service is %s", s)
	}
}

// later puts a package into the repository that is the one there but for a higher version.
func (l lab) later(t *testing.T, name string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(l.repository(), name+"_*.deb"))
	if err != nil || len(found) != 1 {
		t.Fatalf("packages %s: %v, %v", name, found, err)
	}
	err = shell(t.Context(), t.TempDir(), `dpkg-deb -R "$1" tree && sed -i 's/^Version: .*/&+later1/' tree/DEBIAN/control &&
		find tree/usr -type f -exec touch {} + && dpkg-deb -b tree "$2" >/dev/null`, found[0], strings.TrimSuffix(found[0], ".deb")+"+later1.deb")
	if err != nil {
		t.Fatal(err)
	}
}

// needrestart restarts what uses old libraries, but for nginx.
func (a *life) needrestart(t *testing.T) {
	proxy := a.mainPID(t, "headgate-proxy")
	during(t, a.address, "needrestart -r a", func() { a.must(t, "touch /usr/sbin/nginx; needrestart -r a -q; true") })
	if now := a.mainPID(t, "headgate-proxy"); now != proxy {
		t.Errorf("needrestart restarted nginx")
	}
}

func (a *life) reboots(t *testing.T) {
	a.reboot(t, a.lab)
	serves(t, a.address, serveLimit)
	t.Logf("served %s after the power was switched on, at the latest", time.Since(a.started).Round(time.Millisecond))
	a.ready(t)
}

// rebootWithMistake: what was served last is served by the configuration that was good last; the daemon says what is wrong, once.
func (a *life) rebootWithMistake(t *testing.T) {
	good := a.read(t, "/etc/headgate/headgate.yaml")
	a.write(t, "/etc/headgate/headgate.yaml", good+"\nmaxBodySize: plenty\n")
	a.reboot(t, a.lab)
	serves(t, a.address, serveLimit)
	netns.Eventually(t, bootLimit, "the daemon to give up", func() bool { return a.state(t, "headgate") == "failed" })
	for _, unit := range []string{"headgate", "headgate-proxy"} {
		if log := a.must(t, "journalctl --boot -u "+unit+" -o cat --no-pager"); strings.Count(log, "is not a size") != 1 {
			t.Errorf("%s does not say once what is wrong:\n%s", unit, log)
		}
		if n := strings.TrimSpace(a.must(t, "systemctl show --value -p NRestarts "+unit)); n != "0" {
			t.Errorf("%s restarts of %s", n, unit)
		}
	}
	during(t, a.address, "restart of the proxy with a mistake in the configuration", func() { a.must(t, "systemctl restart headgate-proxy") })
	a.write(t, "/etc/headgate/headgate.yaml", good)
	a.must(t, "systemctl start headgate")
	a.ready(t)
}

// rebootWithoutCluster: what was served last is served, and the daemon is up and says so.
func (a *life) rebootWithoutCluster(t *testing.T) {
	a.cluster.Stop(t)
	a.reboot(t, a.lab)
	serves(t, a.address, serveLimit)
	t.Logf("served %s after the power was switched on, at the latest", time.Since(a.started).Round(time.Millisecond))
	netns.Eventually(t, bootLimit, "headgate to be active", func() bool { return a.state(t, "headgate") == "active" })
	if s := a.must(t, "systemctl show --value -p StatusText headgate"); !strings.Contains(s, "degraded") {
		t.Errorf("systemctl status says %q", s)
	}
	a.must(t, "systemctl stop headgate && systemctl restart headgate-proxy")
	serves(t, a.address, serveLimit) // the proxy needs no daemon for it
	a.cluster.Resume(t)
	a.must(t, "systemctl start headgate")
	a.ready(t)
}

// removed: remove keeps the configuration, purge keeps nothing, and it can be installed again.
func (a *life) removed(t *testing.T) {
	a.apt(t, "remove headgate")
	if err := refuses(a.address, "80"); err != nil {
		t.Errorf("after remove: %v", err)
	}
	if left := strings.TrimSpace(a.must(t, "pgrep -l 'nginx|headgate' || true")); left != "" {
		t.Errorf("processes after remove: %s", left)
	}
	for _, kept := range []string{"/etc/headgate/headgate.yaml", "/etc/headgate/kubeconfig", "/var/lib/headgate/state.log"} {
		if _, err := os.Stat(a.path(kept)); err != nil {
			t.Errorf("after remove: %v", err)
		}
	}
	a.apt(t, "install headgate="+oldVersion)
	a.must(t, "systemctl start headgate")
	serves(t, a.address, serveLimit)
	a.apt(t, "purge headgate")
	left := a.must(t, `find / -xdev -name '*headgate*' -not -path '/proc/*' -not -path '/repo/*' -not -path '/var/lib/apt/*' -not -path '/var/cache/apt/*' -not -path '/sys/*'; find /run -name '*headgate*'; getent passwd headgate headgate-proxy; getent group headgate headgate-proxy; true`)
	if left = strings.TrimSpace(left); left != "" {
		t.Errorf("after purge there is still:\n%s", left)
	}
	if failed := strings.TrimSpace(a.must(t, "systemctl --failed --no-legend --plain")); failed != "" {
		t.Errorf("failed units after purge: %s", failed)
	}
	a.apt(t, "install headgate="+newVersion)
	if got := a.must(t, "headgate version"); !strings.Contains(got, newVersion) {
		t.Errorf("headgate version says %q", got)
	}
}
