// Package vip breaks edges: two or three hosts with the real binary and a real nginx, in network namespaces, and
// clients that ask all the time. What is asserted is the state of the kernels and what clients noticed; bounds are those of
// a busy machine. The benchmark bench/vip prints the figures.
package vip

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"headgate/test/netns"
	"headgate/test/product"
	"headgate/test/vip/lab"
)

var headgate string

func TestMain(m *testing.M) { product.Main(m, &headgate) }

// TestVIP shares what the hosts serve between its tests.
func TestVIP(t *testing.T) {
	netns.Require(t)
	product.LookAt(t, "vip")
	proxy := lab.Assemble(t, headgate)
	for _, c := range []struct {
		name string
		test func(t *testing.T, proxy *lab.Proxy)
	}{
		{"planned moves", plannedMoves},
		{"rolling restart of three hosts", rollingRestart},
		{"three hosts start at once", startAtOnce},
		{"five hosts", fiveHosts},
		{"speaker killed", speakerKilled},
		{"connections under way when the speaker is killed", underWay},
		{"everything killed", everythingKilled},
		{"alone", alone},
		{"killed at random instants", killedAtRandom},
		{"killed around moves", killedAroundMoves},
		{"stopped and continued", stoppedAndContinued},
		{"clocks jump", clockJumps},
		{"proxy dies and hangs", proxyFails},
		{"link down", linkDown},
		{"silent cut and heal", cutAndHeal},
		{"heartbeats and gossip blocked", blocked},
		{"one way lost", oneWay},
		{"loss and duplicates", lossAndDuplicates},
		{"busy machine", busy},
		{"two hosts of one name", sameName},
		{"wrong key", wrongKey},
		{"key rotation interrupted", rotationInterrupted},
		{"gossip's port taken", portTaken},
		{"forged announcements", forgedAnnouncements},
		{"forged and replayed heartbeats", forgedHeartbeats},
		{"garbage on the admin socket", socketGarbage},
		{"foreign machine has the VIP", foreignMachine},
		{"the VIP is an address of a host", ownAddress},
		{"address deleted by hand", addressDeleted},
		{"network reconfigured", reconfigured},
		{"interface deleted and made anew", interfaceMadeAnew},
		{"interface renamed", interfaceRenamed},
		{"MTU of 1280", smallMTU},
		{"IPv6 only", ipv6Only},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // most of the time they wait
			c.test(t, proxy)
		})
	}
}

// edge is a lab with clients.
type edge struct {
	*lab.Lab
	kernel  *lab.Kernel
	clients []*lab.Client
	marked  time.Time
}

func open(t *testing.T, proxy *lab.Proxy, c lab.Config) *edge {
	t.Helper()
	c.Binary, c.Proxy = headgate, proxy
	e := &edge{Lab: lab.New(t, c)}
	for _, h := range e.Hosts {
		// A busy machine's nginx is no hung one.
		h.Settings = append(h.Settings, "proxyTimeout: 2s")
	}
	e.kernel = e.Watch(t)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, h := range e.Hosts {
			t.Logf("%s said at the end:\n%s", h.Name, h.Tail())
		}
	})
	return e
}

// pair is two hosts that share the VIP and leave it where it is, with clients.
func pair(t *testing.T, proxy *lab.Proxy) *edge {
	t.Helper()
	e := open(t, proxy, lab.Config{Hosts: []string{"a", "b"}, VIPs: lab.Web("nopreempt: true")})
	e.Start(t)
	e.ask(t)
	return e
}

// ask starts the clients.
func (e *edge) ask(t *testing.T) {
	t.Helper()
	e.clients = []*lab.Client{
		lab.NewClient(t, e.Client, lab.Web4(), 2*time.Millisecond), lab.NewClient(t, e.Client, lab.Web6(), 4*time.Millisecond),
	}
	e.served(t)
	e.mark(t)
}

// served waits until clients of both families are served.
func (e *edge) served(t *testing.T) {
	t.Helper()
	for _, c := range e.clients {
		inARow := 0
		netns.Eventually(t, lab.Patience, "clients are served", func() bool {
			for _, a := range c.Cut(t) {
				inARow++
				if a.Error != "" {
					inARow = 0
				}
			}
			return inARow > 10
		})
	}
}

// mark begins a new look at what clients and kernels notice.
func (e *edge) mark(t *testing.T) {
	t.Helper()
	for _, c := range e.clients {
		c.Cut(t)
	}
	e.marked = time.Now()
}

// pass lets time pass.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	begun := time.Now()
	netns.Eventually(t, d+lab.Patience, "time passes", func() bool { return time.Since(begun) >= d })
}

// noticed is what the clients have noticed since mark until they are served again.
func (e *edge) noticed(t *testing.T) []lab.Damage {
	t.Helper()
	pass(t, lab.Flying)
	var all []lab.Damage
	for _, c := range e.clients {
		attempts, good := c.Cut(t), 0
		netns.Eventually(t, lab.Patience, "clients are served again", func() bool {
			for _, a := range c.Cut(t) {
				attempts = append(attempts, a)
				good++
				if a.Error != "" {
					good = 0
				}
			}
			return good > 10
		})
		all = append(all, lab.Assess(attempts))
	}
	return all
}

// unnoticed asserts that no client was refused since mark.
func (e *edge) unnoticed(t *testing.T, what string) {
	t.Helper()
	for _, d := range e.noticed(t) {
		if d.Refused > 0 || d.Lasting || d.Attempts == 0 {
			t.Errorf("%s: %+v, want that nobody notices", what, d)
		}
	}
}

// slow is what a failover may take on a busy machine.
const slow = 4 * time.Second

// recovered asserts that the clients are served again, after an outage that is not absurd.
func (e *edge) recovered(t *testing.T, what string) {
	t.Helper()
	for _, d := range e.noticed(t) {
		t.Logf("%s: %d of %d failed, outage %s", what, d.Failed, d.Attempts, d.Outage.Round(time.Millisecond))
		if d.Lasting || d.Outage > slow || d.Attempts == 0 {
			t.Errorf("%s: %+v", what, d)
		}
	}
}

// taken waits until a host alone has both addresses.
func (e *edge) taken(t *testing.T, by *lab.Host, what string) {
	t.Helper()
	netns.Eventually(t, lab.Patience, what+": "+by.Name+" alone has the VIP", func() bool { return e.alone(by) })
}

func (e *edge) alone(h *lab.Host) bool {
	one := []string{h.Name}
	return slices.Equal(e.kernel.Holders(lab.Web4()), one) && slices.Equal(e.kernel.Holders(lab.Web6()), one)
}

// has tells whether a host has both addresses, whoever else has.
func (e *edge) has(h *lab.Host) bool {
	return slices.Contains(e.kernel.Holders(lab.Web4()), h.Name) && slices.Contains(e.kernel.Holders(lab.Web6()), h.Name)
}

// shared asserts that since mark no address was with two hosts for longer, and came to a host so many times.
func (e *edge) shared(t *testing.T, what string, longest time.Duration, changes int) {
	t.Helper()
	for _, s := range []lab.Shares{e.kernel.Shares(t, lab.Web4(), e.marked), e.kernel.Shares(t, lab.Web6(), e.marked)} {
		if s.Several > longest || s.Changes != changes {
			t.Errorf("%s: %+v, want two owners for at most %s and %d changes", what, s, longest, changes)
		}
	}
}

// known asserts that the client's neighbour cache names the host, and that it is served.
func (e *edge) known(t *testing.T, h *lab.Host) {
	t.Helper()
	e.client(t, h, lab.Web4(), lab.Web6())
	e.served(t)
}

// client waits until the client's neighbour cache names the host for the addresses.
func (e *edge) client(t *testing.T, h *lab.Host, addresses ...netip.Addr) {
	t.Helper()
	mac := h.Namespace.HardwareAddr(t, lab.Interface).String()
	netns.Eventually(t, lab.Patience, "the client knows "+h.Name, func() bool {
		return !slices.ContainsFunc(addresses, func(ip netip.Addr) bool { return e.Client.Neighbour(t, lab.Interface, ip).String() != mac })
	})
}
