package vip

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/test/netns"
	"headgate/test/vip/lab"
)

// Five hosts, the most that there may be, share three VIPs: a rolling restart that nobody notices, and then one after the other
// dies until one has them all.
func fiveHosts(t *testing.T, proxy *lab.Proxy) {
	vips := append(lab.Web("preemptDelay: 200ms"), lab.VIP{Name: "two", Addresses: []string{"192.0.2.101"}},
		lab.VIP{Name: "three", Addresses: []string{"192.0.2.102", "2001:db8::102"}})
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b", "c", "d", "e"}, VIPs: vips})
	e.Start(t)
	e.ask(t)
	for _, h := range e.Hosts {
		h.StopVIP(t)
		h.KillProxy(t)
		h.StartProxy(t)
		h.StartVIP(t)
		e.Settled(t)
	}
	e.unnoticed(t, "a rolling restart of five")
	e.mark(t)
	for range len(e.Hosts) - 1 {
		e.Settled(t).KillBoth(t)
	}
	last := e.Settled(t)
	e.recovered(t, "four of five die")
	for _, text := range []string{"192.0.2.101", "2001:db8::102"} {
		ip := netip.MustParseAddr(text)
		netns.Eventually(t, lab.Patience, "the last host alone has "+text, func() bool {
			holders := e.kernel.Holders(ip)
			return len(holders) == 1 && holders[0] == last.Name
		})
	}
}

// Whatever comes over the admin socket, and however many come and say nothing, moves no VIP and stops no answer.
func socketGarbage(t *testing.T, proxy *lab.Proxy) {
	e := pair(t, proxy)
	owner := e.Settled(t)
	path := filepath.Join(owner.Dir(), "run", "vip", "vip.sock")
	const visitors = 1000
	for i := range visitors {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("visitor %d: %v", i, err)
		}
		defer func() { _ = conn.Close() }() // all stay until the end
		var text []byte
		switch i % 4 {
		case 0:
			text = make([]byte, 300)
			_, _ = rand.Read(text) // documented never to fail
		case 1:
			text = []byte("POST /v1/move HTTP/1.1\r\nHost: vip\r\nContent-Length: 100000000\r\n\r\n{")
		case 2:
			text = fmt.Appendf(nil, "GET /v1/status HTTP/1.1\r\nHost: vip\r\nX: %s", strings.Repeat("a", 5000))
		default: // says nothing
			continue
		}
		if _, err := conn.Write(text); err != nil {
			t.Fatalf("visitor %d: %v", i, err)
		}
	}
	for _, c := range []struct {
		arguments []string
		want      string
	}{
		{[]string{"vip", "move", "web", "nobody"}, `no host of that name is known: write one of ["b" "a"]`},
		{[]string{"vip", "move", "", ""}, `no VIP is called "": write one of ["web"]`},
		{[]string{"vip", "move", "web"}, "1 arguments are given: write VIP and HOST"},
		{[]string{"vip", "release"}, "0 arguments are given: write VIP"},
		{[]string{"vip", "release", "x\ny"}, `no VIP is called "x\ny": write one of ["web"]`},
	} {
		out, err := owner.Command(t, c.arguments...)
		known := strings.Contains(out, c.want) || strings.Contains(out, strings.Replace(c.want, `["b" "a"]`, `["a" "b"]`, 1))
		if err == nil || !known {
			t.Errorf("%q gives %v and %q, want %q", c.arguments, err, out, c.want)
		}
	}
	pass(t, time.Second)
	e.unnoticed(t, "garbage on the admin socket")
	e.shared(t, "garbage on the admin socket", 0, 0)
	if s := owner.Status(t); s.Stalls > 0 || len(s.Degraded) > 0 {
		t.Errorf("stalled %d times, degraded: %q", s.Stalls, s.Degraded)
	}
}

// A VIP that a host has as an address of its own is not taken there, and the status says why; nor is that address taken off.
func ownAddress(t *testing.T, proxy *lab.Proxy) {
	const ip = "192.0.2.77"
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b"}, VIPs: []lab.VIP{{Name: "web", Addresses: []string{ip}}}})
	a, b := e.Hosts[0], e.Hosts[1]
	own := netip.PrefixFrom(netip.MustParseAddr(ip), 24)
	a.Namespace.AddAddress(t, lab.Interface, own)
	for _, h := range e.Hosts {
		h.StartProxy(t)
	}
	a.StartVIP(t)
	netns.Eventually(t, lab.Patience, "the host says that the address is there already", func() bool {
		return strings.Contains(a.Log(), "the address is there already and is not ours")
	})
	b.StartVIP(t)
	netns.Eventually(t, lab.Patience, "the other one says who has the VIP", func() bool {
		v := b.Status(t).VIPs[0]
		return v.Owner == "" && v.Occupant == a.Namespace.HardwareAddr(t, lab.Interface).String()
	})
	if holders := e.kernel.Holders(own.Addr()); len(holders) != 1 || holders[0] != a.Name {
		t.Errorf("%v have the address", holders)
	}
	a.Namespace.RemoveAddress(t, lab.Interface, own)
	e.Settled(t)
}
