package boot

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// lateLimit is how late a request may be while networkd has taken the VIP off: the address is back in milliseconds, but a client
// whose first packet met nobody sends it again after a second (RFC 6298).
const lateLimit = 2500 * time.Millisecond

// networkd has systemd-networkd configure the owner's interface anew, in every way that administrators and packages let it. It
// takes off addresses that it does not know. The VIP process hears that from the kernel and adds its own again: nothing is lost,
// and the VIP stays where it is.
func (p *pair) networkd(t *testing.T) {
	owner := p.hosts[0]
	for _, c := range []struct{ what, script string }{
		{"networkctl reconfigure", "networkctl reconfigure host0"},
		{"networkctl reconfigure three times", "for i in 1 2 3; do networkctl reconfigure host0; done"},
		{"a file that changed, and networkctl reload", "printf '[Link]\\nMTUBytes=1400\\n' >> /etc/systemd/network/10-host0.network && networkctl reload"},
		{"restart of networkd", "systemctl restart systemd-networkd"},
	} {
		p.settled(t, owner)
		l := startLoad(t, sharedAddress)
		l.await(t, askers)
		before, moves := owner.removals(t), owner.moves(t)
		owner.must(t, c.script)
		owner.must(t, "networkctl status host0 | grep -q 'State: routable (configured)'")
		l.await(t, l.count()+afterwards)
		p.settled(t, owner)
		if failed := l.stop(t, c.what); failed > 0 || l.worst > lateLimit {
			t.Errorf("%s: %d requests failed, the slowest took %s", c.what, failed, l.worst)
		}
		taken := owner.removals(t) - before
		t.Logf("%s: networkd took the VIP off %d times", c.what, taken)
		if strings.HasPrefix(c.what, "networkctl") && taken == 0 {
			t.Errorf("%s: networkd left the VIP alone: nothing was tried", c.what)
		}
		if now := owner.moves(t); now != moves {
			t.Errorf("%s: the VIP moved: its process became active %d times, %d before", c.what, now, moves)
		}
	}
}

// removals is how often the VIP process has found that somebody took an address off.
func (h *host) removals(t *testing.T) int {
	t.Helper()
	return h.number(t, "journalctl --no-pager -o cat -u headgate-vip | grep -c 'somebody else removed an address' || true")
}

// moves is how often the process became active.
func (h *host) moves(t *testing.T) int {
	t.Helper()
	return h.number(t, "journalctl --no-pager -o cat -u headgate-vip | grep -c 'VIP active' || true")
}

func (h *host) number(t *testing.T, script string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(h.must(t, script)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
