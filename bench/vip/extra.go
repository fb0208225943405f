package main

import (
	"fmt"
	"net/netip"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"headgate/bench/figure"
	"headgate/test/vip/lab"
)

// clusterStarts starts three hosts at once.
func (b *bench) clusterStarts(t testing.TB) {
	t.Helper()
	for range b.plan.starts {
		b.inLab(t, b.clusterStart)
	}
}

func (b *bench) clusterStart(t testing.TB) {
	t.Helper()
	l := lab.New(t, lab.Config{Binary: b.plan.headgate, Proxy: b.proxy, Hosts: []string{"a", "b", "c"}, VIPs: lab.Web("")})
	kernel := l.Watch(t)
	for _, h := range l.Hosts {
		h.StartProxy(t)
	}
	began := time.Now()
	for _, h := range l.Hosts {
		h.SpawnVIP(t)
	}
	for _, h := range l.Hosts {
		h.AwaitVIP(t)
	}
	l.Settled(t)
	pause(t, time.Second)
	owned := kernel.Events(t, lab.Web4(), began)[0].At
	b.figures.starts = append(b.figures.starts, figure.Milliseconds(owned.Sub(began)))
	b.figures.flaps += kernel.Shares(t, lab.Web4(), began).Changes - 1
}

// The thousand addresses move in groups.
const (
	groups  = 40
	members = 25
)

func thousand() ([]lab.VIP, int) {
	var vips []lab.VIP
	for g := range groups {
		v := lab.VIP{Name: fmt.Sprintf("g%d", g), Settings: "preemptDelay: 1s"}
		for m := range members {
			v.Addresses = append(v.Addresses, netip.AddrFrom4([4]byte{10, 64, byte(g), byte(m + 1)}).String())
		}
		vips = append(vips, v)
	}
	return vips, groups * members
}

// takeovers kills the owner of a thousand addresses, and waits until the last one is announced.
func (b *bench) takeovers(t testing.TB) {
	t.Helper()
	vips, count := thousand()
	l := lab.New(t, lab.Config{Binary: b.plan.headgate, Proxy: b.proxy, Hosts: []string{"a", "b"}, VIPs: vips})
	l.Hosts[0].Settings = []string{"priority: 150"}
	l.Start(t)
	for range b.plan.takeovers {
		headgate{l}.Settled(t)
		b.takeover(t, l, count)
	}
}

func (b *bench) takeover(t testing.TB, l *lab.Lab, count int) {
	t.Helper()
	first, second := l.Hosts[0], l.Hosts[1]
	pause(t, time.Second) // its own announcements are over
	if err := within(t.Context(), func(t testing.TB) {
		heard := lab.Announced(t, l.Client)
		mac := second.Namespace.HardwareAddr(t, lab.Interface)
		began := time.Now()
		first.KillBoth(t)
		until(t, "all addresses are announced", func() bool { return len(heard.By(mac)) == count })
		var last time.Time
		for _, at := range heard.By(mac) {
			if at.After(last) {
				last = at
			}
		}
		b.figures.takeovers = append(b.figures.takeovers, figure.Milliseconds(last.Sub(began)))
	}); err != nil {
		t.Fatal(err)
	}
	first.StartProxy(t)
	first.StartVIP(t)
}

// hogs is how many processes want all of the CPU.
const hogs = 8

// underLoad lets two hosts with much competition alone for a while: nothing must move.
func (b *bench) underLoad(t testing.TB) {
	t.Helper()
	l := lab.New(t, lab.Config{Binary: b.plan.headgate, Proxy: b.proxy, Hosts: []string{"a", "b"}, VIPs: lab.Web("nopreempt: true")})
	kernel := l.Watch(t)
	l.Start(t)
	for range hogs {
		hog := exec.CommandContext(t.Context(), "/bin/sh", "-c", "while :; do :; done")
		hog.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := hog.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = hog.Process.Kill()
			_ = hog.Wait()
		})
	}
	began := time.Now()
	pause(t, b.plan.hogs)
	b.figures.moved += kernel.Shares(t, lab.Web4(), began).Changes + kernel.Shares(t, lab.Web6(), began).Changes
	for _, h := range l.Hosts {
		if b.figures.moved > 0 {
			t.Logf("%s, whose VIP moved under load:\n%s", h.Name, h.Tail())
		}
		for _, p := range h.Status(t).Detectors {
			b.figures.silent += p.Silences + p.Crashes
		}
	}
}
