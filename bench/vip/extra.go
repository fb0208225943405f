package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// load is the competition that must move nothing.
type load struct {
	lasts time.Duration
	hogs  int // processes that want all of the CPU
	quota int // percent of one CPU for the first host; 0: no limit
}

// hogs is how many there are unless told otherwise.
const hogs = 8

// underLoad lets two hosts with much competition alone for a while: nothing must move.
func (b *bench) underLoad(t testing.TB) {
	t.Helper()
	l := lab.New(t, lab.Config{Binary: b.plan.headgate, Proxy: b.proxy, Hosts: []string{"a", "b"}, VIPs: lab.Web("nopreempt: true")})
	kernel := l.Watch(t)
	l.Start(t)
	if b.plan.load.quota > 0 {
		limitCPU(t, l.Hosts[0], b.plan.load.quota)
	}
	for range b.plan.load.hogs {
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
	pause(t, b.plan.load.lasts)
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

// limitCPU puts the VIP process and the proxy of a host into a control group with a share of one CPU (cpu.max of
// cgroup-v2, or cpu.cfs_quota_us of the version before, where real-time processes have a limit of their own).
func limitCPU(t testing.TB, h *lab.Host, percent int) {
	t.Helper()
	const period = 100000 // microseconds
	root, file, text := "/sys/fs/cgroup", "cpu.max", fmt.Sprintf("%d %d", period*percent/100, period)
	if !exists(filepath.Join(root, "cgroup.controllers")) {
		root, file, text = filepath.Join(root, "cpu"), "cpu.cfs_quota_us", fmt.Sprint(period*percent/100)
	}
	dir, err := os.MkdirTemp(root, "headgate-bench-") //nolint:usetesting // a control group, not a folder of files
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the processes are still there: they go back
		for _, pid := range processes(h) {
			_ = os.WriteFile(filepath.Join(root, "cgroup.procs"), fmt.Append(nil, pid), 0o600)
		}
		_ = os.Remove(dir)
	})
	write(t, filepath.Join(dir, file), text, 0o600)
	const realTimePeriod = 1000000 // microseconds, the kernel's default
	if realTime := filepath.Join(dir, "cpu.rt_runtime_us"); exists(realTime) {
		write(t, realTime, fmt.Sprint(realTimePeriod*percent/100), 0o600)
	}
	for _, pid := range processes(h) {
		write(t, filepath.Join(dir, "cgroup.procs"), fmt.Sprint(pid), 0o600)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// processes are those of a host.
func processes(h *lab.Host) []int {
	return slices.Concat([]int{h.PID(), h.ProxyPID()}, lab.Children(h.ProxyPID()))
}
