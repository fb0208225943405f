package boot

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"headgate/test/netns"
)

// sharedAddress is the VIP of the two hosts.
const sharedAddress = "10.77.0.100"

// takeOverLimit is how long a VIP may be without a host that serves it, whatever has happened to the one that had it.
const takeOverLimit = 10 * time.Second

// pair are two hosts with one VIP; the first has the higher priority.
type pair struct {
	lab   lab
	pod   *backend
	hosts [2]*host
}

func TestTwoHostsShareAnAddress(t *testing.T) {
	l := theLab()
	l.index(t)
	p := &pair{lab: l, pod: startBackend(t), hosts: [2]*host{newHost(t, l, "edge2", 22), newHost(t, l, "edge3", 23)}}
	p.configure(t)
	for _, stage := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"start", p.start},
		{"stop of the VIP process", p.stop},
		{"drain", p.drain},
		{"drain with open connections", p.drainOpen},
		{"a mistake in the configuration", p.mistake},
		{"kill -9 of the VIP process", p.kill},
		{"networkd configures anew", p.networkd},
		{"reboot", p.rebootOwner},
		{"power cut", p.powerCut},
	} {
		if !t.Run(stage.name, stage.run) {
			return // what follows builds on it
		}
	}
}

// configure sets both hosts up as docs/howto/two-hosts-with-a-vip.md says.
func (p *pair) configure(t *testing.T) {
	for i, h := range p.hosts {
		h.apt(t, "install headgate="+oldVersion)
		h.write(t, "/etc/headgate/manifests/shop.yaml", objects)
		if i == 0 {
			h.must(t, fmt.Sprintf("headgate init --manifests /etc/headgate/manifests --interface host0 --vip %s --peer %s", sharedAddress, p.hosts[1].address))
		} else {
			h.write(t, "/root/string", p.hosts[0].must(t, "headgate join --show 2>/dev/null"))
			h.must(t, "headgate join - --manifests /etc/headgate/manifests < /root/string")
		}
		written := h.read(t, "/etc/headgate/headgate.yaml") // the section vip is the last one
		h.write(t, "/etc/headgate/headgate.yaml", written+fmt.Sprintf("  priority: %d\n  preemptDelay: 1s\n", 150-50*i))
	}
}

// start: one command on each host, and the VIP is at the first. doctor finds nothing to mend before and after.
func (p *pair) start(t *testing.T) {
	p.hosts[0].must(t, "headgate doctor || headgate doctor | grep -A1 '^FAIL' | grep -q 'systemctl start headgate-vip on "+p.hosts[1].address+"'") // it is not there yet
	for _, h := range p.hosts {
		h.must(t, "systemctl enable --now headgate headgate-vip")
	}
	t.Logf("the VIP served after %s", serves(t, sharedAddress, serveLimit).Round(time.Millisecond))
	p.settled(t, p.hosts[0])
	for _, h := range p.hosts {
		h.must(t, "headgate doctor")
	}
}

// has tells whether the host has the VIP in its kernel.
func (h *host) has(t *testing.T) bool {
	t.Helper()
	out, err := h.run(t.Context(), "ip", "-brief", "address", "show", "dev", "host0")
	return err == nil && strings.Contains(out, " "+sharedAddress+"/")
}

// settled waits until the VIP is at the host, and there alone, and both say that all is well.
func (p *pair) settled(t *testing.T, at *host) {
	t.Helper()
	netns.Eventually(t, bootLimit, "the VIP at "+at.name+" alone", func() bool {
		for _, h := range p.hosts {
			if _, err := h.run(t.Context(), "headgate", "vip", "status"); err != nil || h.has(t) != (h == at) {
				return false
			}
		}
		return true
	})
}

func (p *pair) stop(t *testing.T) {
	during(t, sharedAddress, "stop of the owner's VIP process", func() {
		p.hosts[0].must(t, "systemctl stop headgate-vip")
		if p.hosts[0].has(t) || !p.hosts[1].has(t) {
			t.Error("the VIP is not at the other host when the stop has returned")
		}
	})
	during(t, sharedAddress, "its start", func() {
		p.hosts[0].must(t, "systemctl start headgate-vip")
		p.settled(t, p.hosts[0])
	})
}

func (p *pair) drain(t *testing.T) {
	during(t, sharedAddress, "drain, restart of the proxy, undrain", func() {
		p.hosts[0].must(t, "headgate drain && systemctl restart headgate-proxy && headgate undrain")
		p.settled(t, p.hosts[0])
	})
}

// kill: the address that the process leaves behind goes, and somebody serves.
func (p *pair) kill(t *testing.T) {
	l := startLoad(t, sharedAddress)
	l.await(t, askers)
	p.hosts[0].must(t, "systemctl kill --signal=KILL --kill-who=main headgate-vip")
	serves(t, sharedAddress, takeOverLimit)
	p.settled(t, p.hosts[0])
	l.stop(t, "kill -9 of the owner's VIP process")
}

// rebootOwner: nobody who connects is refused. A connection that was open through the host may be cut when that goes
// down, once for each.
func (p *pair) rebootOwner(t *testing.T) {
	l := startLoad(t, sharedAddress)
	l.await(t, askers)
	p.hosts[0].reboot(t, p.lab)
	p.settled(t, p.hosts[0])
	failed := l.stop(t, "reboot of the owner")
	if l.fresh > 0 || failed > askers/2 {
		t.Errorf("%d requests failed, %d of them on connections of their own", failed, l.fresh)
	}
}

func (p *pair) powerCut(t *testing.T) {
	l := startLoad(t, sharedAddress)
	l.await(t, askers)
	p.hosts[0].cut()
	t.Logf("served again after %s", serves(t, sharedAddress, takeOverLimit).Round(time.Millisecond))
	if !p.hosts[1].has(t) {
		t.Error("the VIP is not at the other host")
	}
	failed := l.stop(t, "power cut of the owner")
	if l.requests == failed {
		t.Error("nothing was served")
	}
	during(t, sharedAddress, "its return", func() {
		p.hosts[0].boot(t, p.lab)
		p.settled(t, p.hosts[0])
	})
}
