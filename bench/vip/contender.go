package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/test/vip/lab"
)

// contender is what moves a VIP between two hosts, the first of which has the higher priority.
type contender interface {
	// Start begins on a host and returns when it runs; Stop ends it as its unit does.
	Start(t testing.TB, h *lab.Host)
	Stop(t testing.TB, h *lab.Host)
	Kill(t testing.TB, h *lab.Host)
	KillBoth(t testing.TB, h *lab.Host)
	Freeze(t testing.TB, h *lab.Host)
	Thaw(t testing.TB, h *lab.Host)
	// Talk is what its hosts say to each other.
	Talk() lab.Talk
	// Settled waits until the first host owns the VIP and all is well.
	Settled(t testing.TB)
}

// headgate is ours.
type headgate struct{ lab *lab.Lab }

func (g headgate) Start(t testing.TB, h *lab.Host)    { h.StartVIP(t) }
func (g headgate) Stop(t testing.TB, h *lab.Host)     { h.StopVIP(t) }
func (g headgate) Kill(t testing.TB, h *lab.Host)     { h.KillVIP(t) }
func (g headgate) KillBoth(t testing.TB, h *lab.Host) { h.KillBoth(t) }
func (g headgate) Freeze(t testing.TB, h *lab.Host)   { h.FreezeVIP(t) }
func (g headgate) Thaw(t testing.TB, h *lab.Host)     { h.ThawVIP(t) }
func (g headgate) Talk() lab.Talk                     { return lab.Heartbeats }

func (g headgate) Settled(t testing.TB) {
	until(t, "the first host owns the VIP again", func() bool { return g.lab.Settled(t) == g.lab.Hosts[0] })
}

// keepalived is Debian's, with one VRRP instance: advertisements each second, and a script that looks each second
// whether nginx lives.
type keepalived struct {
	lab     *lab.Lab
	kernel  *lab.Kernel
	running map[*lab.Host]*lab.Process
}

const keepalivedText = `global_defs {
  router_id %[1]s
  script_user root
}
vrrp_script proxy {
  script "%[2]s"
  interval 1
  fall 1
  rise 1
}
vrrp_instance web {
  state BACKUP
  interface %[3]s
  virtual_router_id 51
  priority %[4]d
  advert_int 1
  track_script { proxy }
  virtual_ipaddress { %[5]s/32 dev %[3]s }
  virtual_ipaddress_excluded { %[6]s/128 dev %[3]s }
}
`

func (k *keepalived) Start(t testing.TB, h *lab.Host) {
	t.Helper()
	const best, other = 150, 100
	priority := other
	if h == k.lab.Hosts[0] {
		priority = best
	}
	script, file := filepath.Join(h.Dir(), "proxy-lives"), filepath.Join(h.Dir(), "keepalived.conf")
	pid, vrrp := filepath.Join(h.Dir(), "keepalived.pid"), filepath.Join(h.Dir(), "vrrp.pid")
	// After kill -9 it may find another process under the number that stands there, and not start.
	for _, stale := range []string{pid, vrrp} {
		if err := os.Remove(stale); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf("#!/bin/sh\nkill -0 \"$(cat %s)\"\n", filepath.Join(h.Dir(), "run", "nginx.pid"))
	write(t, script, text, 0o700)
	write(t, file, fmt.Sprintf(keepalivedText, h.Name, script, lab.Interface, priority, lab.Web4(), lab.Web6()), 0o600)
	k.running[h] = h.Run(t, "keepalived", "/usr/sbin/keepalived", "--dont-fork", "--vrrp", "--log-console", "--log-detail", "-f", file,
		"-p", pid, "-r", vrrp)
}

func write(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func (k *keepalived) signal(t testing.TB, h *lab.Host, sig syscall.Signal) {
	t.Helper()
	k.running[h].Signal(t, sig)
	k.running[h].Wait(t)
}

// Stop implements contender: SIGTERM goes to the parent, as systemd's KillMode=process of Debian's unit has it.
func (k *keepalived) Stop(t testing.TB, h *lab.Host) {
	t.Helper()
	if err := syscall.Kill(k.running[h].PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	k.running[h].Wait(t)
}

// Kill implements contender.
func (k *keepalived) Kill(t testing.TB, h *lab.Host) { t.Helper(); k.signal(t, h, syscall.SIGKILL) }

// KillBoth implements contender.
func (k *keepalived) KillBoth(t testing.TB, h *lab.Host) {
	t.Helper()
	k.running[h].Signal(t, syscall.SIGKILL)
	h.KillProxy(t)
	k.running[h].Wait(t)
}

// Freeze implements contender.
func (k *keepalived) Freeze(t testing.TB, h *lab.Host) { t.Helper(); k.running[h].Freeze(t) }

// Thaw implements contender.
func (k *keepalived) Thaw(t testing.TB, h *lab.Host) {
	t.Helper()
	k.running[h].Signal(t, syscall.SIGCONT)
}

// Talk implements contender.
func (k *keepalived) Talk() lab.Talk { return lab.VRRP }

// Settled implements contender.
func (k *keepalived) Settled(t testing.TB) {
	t.Helper()
	host := k.lab.Hosts[0]
	first := []string{host.Name}
	for deadline := time.Now().Add(patience); ; pause(t, poll) {
		four, six := k.kernel.Holders(lab.Web4()), k.kernel.Holders(lab.Web6())
		if slices.Equal(four, first) && slices.Equal(six, first) && master(t, host) {
			return
		}
		late := time.Now().After(deadline)
		for h, p := range k.running {
			if late || !p.Running() {
				t.Fatalf("keepalived's first host alone should have the VIP; now %v and %v have its addresses; %s says:\n%s", four, six, h.Name, p.Tail())
			}
		}
	}
}

// master tells whether keepalived says so of the host: its addresses may be those of a run before.
func master(t testing.TB, h *lab.Host) bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(h.Dir(), "keepalived.log"))
	if err != nil {
		t.Fatal(err)
	}
	newest := strings.LastIndex(string(text), ") Entering MASTER STATE")
	return newest > max(strings.LastIndex(string(text), "Starting Keepalived"), strings.LastIndex(string(text), ") Entering BACKUP"),
		strings.LastIndex(string(text), ") Entering FAULT"))
}

// patience is how long a steady state is waited for: clients of a host that returned with keepalived are black-holed for
// 46 s.
const patience = 90 * time.Second

func until(t testing.TB, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); pause(t, poll) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

const poll = 10 * time.Millisecond
