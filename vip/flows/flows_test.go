package flows_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"headgate/test/netns"
	"headgate/vip/arp"
	"headgate/vip/flows"
	"headgate/vip/ndp"
)

const (
	iface = "eth0"
	port  = 8443
	limit = 10 * time.Second
	// patience is how long an answer may take that should come: a lost packet is sent again after 200 ms or more.
	patience = 5 * time.Second
	keep     = time.Minute
)

// network is the addresses of one family.
type network struct {
	vip                       netip.Addr
	client, old, fresh, third netip.Prefix
	table                     nftables.TableFamily
}

func networks() map[string]network {
	return map[string]network{
		"IPv4": {
			vip: netip.MustParseAddr("192.0.2.10"), client: netip.MustParsePrefix("192.0.2.100/24"),
			old: netip.MustParsePrefix("192.0.2.1/24"), fresh: netip.MustParsePrefix("192.0.2.2/24"), third: netip.MustParsePrefix("192.0.2.3/24"),
			table: nftables.TableFamilyIPv4,
		},
		"IPv6": {
			vip: netip.MustParseAddr("2001:db8::10"), client: netip.MustParsePrefix("2001:db8::100/64"),
			old: netip.MustParsePrefix("2001:db8::1/64"), fresh: netip.MustParsePrefix("2001:db8::2/64"), third: netip.MustParsePrefix("2001:db8::3/64"),
			table: nftables.TableFamilyIPv6,
		},
	}
}

func bothFamilies(t *testing.T, test func(t *testing.T, n network)) {
	t.Helper()
	for name, n := range networks() {
		t.Run(name, func(t *testing.T) { test(t, n) })
	}
}

// edge is a host with a proxy: a server that says its name and then echoes lines.
type edge struct {
	*netns.Namespace
	t     *testing.T
	name  string
	net   network
	state string
	flows *flows.Flows
}

func newEdge(t *testing.T, lan *netns.LAN, name string, own netip.Prefix, n network) *edge {
	t.Helper()
	e := &edge{Namespace: netns.New(t), t: t, name: name, net: n, state: filepath.Join(t.TempDir(), "flows.json")}
	lan.Join(t, e.Namespace, iface, own)
	e.flows = e.open()
	return e
}

func (e *edge) open() *flows.Flows {
	e.t.Helper()
	var f *flows.Flows
	e.do(func() (err error) {
		f, err = flows.New(flows.Config{StateFile: e.state, Interfaces: []string{iface}, Log: slog.New(slog.DiscardHandler)})
		return err
	})
	e.t.Cleanup(f.Close)
	return f
}

func (e *edge) do(f func() error) {
	e.t.Helper()
	if err := e.Do(f); err != nil {
		e.t.Fatal(err)
	}
}

func (e *edge) serve() {
	e.t.Helper()
	var listener net.Listener
	e.do(func() (err error) {
		listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	e.t.Cleanup(func() {
		stop()
		_ = listener.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { e.answer(ctx, conn) })
		}
	})
}

func (e *edge) answer(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	_, err := io.WriteString(conn, e.name+"\n")
	for buffer := make([]byte, 1<<16); err == nil; {
		var length int
		if length, err = conn.Read(buffer); err != nil {
			return
		}
		var size int64
		if _, scanned := fmt.Sscanf(string(buffer[:length]), sendCommand, &size); scanned == nil {
			_, err = io.CopyN(conn, zeros{}, size)
			continue
		}
		_, err = conn.Write(buffer[:length])
	}
}

// sendCommand asks the server for so many bytes.
const sendCommand = "send %d\n"

func (e *edge) take(vip netip.Addr) { e.AddAddress(e.t, iface, netip.PrefixFrom(vip, vip.BitLen())) }
func (e *edge) leave(vip netip.Addr) {
	e.RemoveAddress(e.t, iface, netip.PrefixFrom(vip, vip.BitLen()))
}

func (e *edge) announce(vip netip.Addr) {
	e.t.Helper()
	e.do(func() error {
		quiet := slog.New(slog.DiscardHandler)
		if vip.Is4() {
			l, err := arp.Open(iface, quiet)
			if err != nil {
				return err
			}
			return errors.Join(l.Announce(vip), l.Close())
		}
		l, err := ndp.Open(iface, quiet)
		if err != nil {
			return err
		}
		return errors.Join(l.Announce(vip), l.Close())
	})
}

func (e *edge) forward(old netip.Addr, until time.Duration) {
	e.t.Helper()
	e.do(func() error { return e.flows.Forward([]netip.Addr{e.net.vip}, old, time.Now().Add(until)) })
}

func (e *edge) keep(until time.Duration) {
	e.t.Helper()
	e.do(func() error { return e.flows.Keep([]netip.Addr{e.net.vip}, time.Now().Add(until)) })
}

// sentOn is how many packets the host has sent on to old owners.
func (e *edge) sentOn() uint64 {
	e.t.Helper()
	var packets uint64
	e.do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		table := &nftables.Table{Family: e.net.table, Name: "headgate_flows"}
		rules, err := conn.GetRules(table, &nftables.Chain{Table: table, Name: "away"})
		for _, r := range rules {
			for _, part := range r.Exprs {
				if c, ok := part.(*expr.Counter); ok {
					packets += c.Packets
				}
			}
		}
		return err
	})
	return packets
}

func (e *edge) tables() int {
	e.t.Helper()
	count := 0
	e.do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		list, err := conn.ListTables()
		count = len(list)
		return err
	})
	return count
}

// lab is two edge hosts and a client.
type lab struct {
	t          *testing.T
	net        network
	lan        *netns.LAN
	client     *netns.Namespace
	old, fresh *edge
}

func newLab(t *testing.T, n network) *lab {
	t.Helper()
	l := &lab{t: t, net: n, lan: netns.NewLAN(t), client: netns.New(t)}
	l.lan.Join(t, l.client, iface, n.client)
	l.old = newEdge(t, l.lan, "old", n.old, n)
	l.fresh = newEdge(t, l.lan, "fresh", n.fresh, n)
	return l
}

// flow is an established connection of the client to the VIP.
type flow struct {
	conn   net.Conn
	reader *bufio.Reader
	server string
}

func (l *lab) dial() (*flow, error) {
	var conn net.Conn
	err := l.client.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(l.net.vip, port).String(), patience)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.t.Cleanup(func() { _ = conn.Close() })
	f := &flow{conn: conn, reader: bufio.NewReader(conn)}
	_ = conn.SetDeadline(time.Now().Add(patience))
	name, err := f.reader.ReadString('\n')
	f.server = strings.TrimSpace(name)
	return f, err
}

// lives sends a line and waits for its echo.
func (f *flow) lives(wait time.Duration) bool {
	_ = f.conn.SetDeadline(time.Now().Add(wait))
	if _, err := io.WriteString(f.conn, "still here\n"); err != nil {
		return false
	}
	line, err := f.reader.ReadString('\n')
	return err == nil && line == "still here\n"
}

func (l *lab) open(count int) []*flow {
	l.t.Helper()
	var all []*flow
	for range count {
		f, err := l.dial()
		if err != nil {
			l.t.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

func alive(all []*flow, wait time.Duration) int {
	count := 0
	for _, f := range all {
		if f.lives(wait) {
			count++
		}
	}
	return count
}

// move is a planned one with second chance: make before break.
func (l *lab) move(from, to *edge, address netip.Addr) {
	l.t.Helper()
	from.keep(keep)
	to.forward(address, keep)
	to.take(l.net.vip)
	to.announce(l.net.vip)
	from.leave(l.net.vip)
}

func (l *lab) clientKnows(e *edge) bool {
	return l.client.Neighbour(l.t, iface, l.net.vip).String() == e.HardwareAddr(l.t, iface).String()
}

const flowCount = 50

func TestFlowsSurviveAMove(t *testing.T) {
	bothFamilies(t, func(t *testing.T, n network) {
		l := newLab(t, n)
		l.old.serve()
		l.fresh.serve()
		l.old.take(n.vip)
		before := l.open(flowCount)
		l.move(l.old, l.fresh, n.old.Addr())
		start := time.Now()
		if got := alive(before, patience); got != flowCount {
			t.Errorf("%d of %d flows survived", got, flowCount)
		}
		t.Logf("%d flows answered after the move within %s", flowCount, time.Since(start))
		if l.fresh.sentOn() < flowCount {
			t.Errorf("the new owner sent %d packets on: the flows did not go through it", l.fresh.sentOn())
		}
		if !l.clientKnows(l.fresh) {
			t.Error("the client went back to the old owner")
		}
		for _, f := range l.open(4 * flowCount) {
			if f.server != "fresh" {
				t.Fatalf("a new connection went to %s", f.server)
			}
		}
		sent := l.fresh.sentOn()
		after := l.open(flowCount)
		if got := alive(after, patience); got != flowCount {
			t.Errorf("%d of %d new flows live", got, flowCount)
		}
		if l.fresh.sentOn() != sent {
			t.Errorf("%d packets of new flows were sent on", l.fresh.sentOn()-sent)
		}
		// Large answers and requests go through as well.
		if err := bulk(before[0], 1<<20); err != nil {
			t.Error(err)
		}
	})
}

// bulk echoes a megabyte through an old flow.
func bulk(f *flow, size int) error {
	_ = f.conn.SetDeadline(time.Now().Add(limit))
	written := make(chan error, 1)
	go func() {
		_, err := io.CopyN(f.conn, zeros{}, int64(size))
		written <- err
	}()
	got, err := io.CopyN(io.Discard, f.reader, int64(size))
	if err = errors.Join(err, <-written); err != nil {
		return fmt.Errorf("%d of %d bytes came back: %w", got, size, err)
	}
	return nil
}

// receive asks for bytes through an old flow.
func receive(f *flow, size int64) error {
	_ = f.conn.SetDeadline(time.Now().Add(limit))
	if _, err := fmt.Fprintf(f.conn, sendCommand, size); err != nil {
		return err
	}
	if got, err := io.CopyN(io.Discard, f.reader, size); err != nil {
		return fmt.Errorf("%d of %d bytes came: %w", got, size, err)
	}
	return nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// What the second chance is measured against: without it no flow survives.
func TestFlowsDieWithoutIt(t *testing.T) {
	bothFamilies(t, func(t *testing.T, n network) {
		l := newLab(t, n)
		l.old.serve()
		l.fresh.serve()
		l.old.take(n.vip)
		before := l.open(5)
		l.fresh.take(n.vip)
		l.fresh.announce(n.vip)
		l.old.leave(n.vip)
		if got := alive(before, time.Second); got != 0 {
			t.Errorf("%d flows survived without a second chance", got)
		}
	})
}

// While the new owner's proxy does not listen, its flows go on all the same.
func TestFlowsSurviveWithoutAListenerThere(t *testing.T) {
	bothFamilies(t, func(t *testing.T, n network) {
		l := newLab(t, n)
		l.old.serve()
		l.old.take(n.vip)
		before := l.open(5)
		l.move(l.old, l.fresh, n.old.Addr())
		if got := alive(before, patience); got != 5 {
			t.Errorf("%d of 5 flows survived", got)
		}
	})
}

// Two moves one after the other: the third host sends on to the second one, that one to the first.
func TestFlowsSurviveAChainOfMoves(t *testing.T) {
	bothFamilies(t, func(t *testing.T, n network) {
		l := newLab(t, n)
		third := newEdge(t, l.lan, "third", n.third, n)
		for _, e := range []*edge{l.old, l.fresh, third} {
			e.serve()
		}
		l.old.take(n.vip)
		first := l.open(10)
		l.move(l.old, l.fresh, n.old.Addr())
		second := l.open(10)
		l.move(l.fresh, third, n.fresh.Addr())
		last := l.open(10)
		for name, all := range map[string][]*flow{"first": first, "second": second, "last": last} {
			if got := alive(all, patience); got != len(all) {
				t.Errorf("%d of %d flows of the %s owner survived", got, len(all), name)
			}
		}
	})
}

// And back: the hosts now send on to each other, and a packet that nobody knows must not circle for long.
func TestARingEnds(t *testing.T) {
	bothFamilies(t, func(t *testing.T, n network) {
		l := newLab(t, n)
		l.old.serve()
		l.fresh.serve()
		l.old.take(n.vip)
		first := l.open(5)
		l.move(l.old, l.fresh, n.old.Addr())
		second := l.open(5)
		l.move(l.fresh, l.old, n.fresh.Addr())
		if got := alive(first, patience) + alive(second, patience); got != 10 {
			t.Errorf("%d of 10 flows survived the way there and back", got)
		}
		sent := l.old.sentOn() + l.fresh.sentOn()
		l.sendUnknown()
		netns.Eventually(t, limit, "a packet that nobody knows was sent on", func() bool {
			return l.old.sentOn()+l.fresh.sentOn() == sent+flows.MaxHops
		})
		// A flow that answers now came after it.
		if got := alive(first, patience); got != 5 {
			t.Errorf("%d of 5 flows live", got)
		}
		if got := l.old.sentOn() + l.fresh.sentOn() - sent; got > flows.MaxHops+10 {
			t.Errorf("sent on %d times, want %d", got, flows.MaxHops)
		}
	})
}

// sendUnknown sends an ACK to the VIP that belongs to no flow at all.
func (l *lab) sendUnknown() {
	l.t.Helper()
	kind := "ip4:tcp"
	if l.net.vip.Is6() {
		kind = "ip6:tcp"
	}
	err := l.client.Do(func() error {
		conn, err := net.Dial(kind, l.net.vip.String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		const ack = 0x10
		header := []byte{0xf0, 0, port >> 8, port & 0xff, 0, 0, 0, 1, 0, 0, 0, 1, 5 << 4, ack, 1, 0, 0, 0, 0, 0}
		_, err = conn.Write(header)
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

// Hosts that know each other's link-local addresses only.
func TestALinkLocalOldOwner(t *testing.T) {
	n := networks()["IPv6"]
	l := newLab(t, n)
	l.old.serve()
	l.fresh.serve()
	l.old.take(n.vip)
	before := l.open(5)
	l.move(l.old, l.fresh, l.linkLocal(l.old).WithZone(iface))
	if got := alive(before, patience); got != 5 {
		t.Errorf("%d of 5 flows survived", got)
	}
}

func (l *lab) linkLocal(e *edge) netip.Addr {
	l.t.Helper()
	list, err := e.Netlink().AddrList(e.Link(l.t, iface), unix.AF_INET6)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, a := range list {
		if ip, _ := netip.AddrFromSlice(a.IP); ip.IsLinkLocalUnicast() {
			return ip
		}
	}
	l.t.Fatal("no link-local address")
	return netip.Addr{}
}

func TestOwn(t *testing.T) {
	v4, v6 := networks()["IPv4"], networks()["IPv6"]
	l := newLab(t, v4)
	own := func() (a, b netip.Addr) {
		t.Helper()
		a, b, err := l.old.flows.Own(iface, []netip.Addr{v4.vip, v6.vip})
		if err != nil {
			t.Fatal(err)
		}
		return a, b
	}
	l.old.take(v4.vip)
	l.old.take(v6.vip)
	l.old.AddAddress(t, iface, v6.old)
	// The link-local address is tentative for a moment.
	netns.Eventually(t, limit, "both addresses are known", func() bool {
		a, b := own()
		return a == v4.old.Addr() && b == l.linkLocal(l.old)
	})
	l.old.RemoveAddress(t, iface, v4.old)
	l.old.RemoveAddress(t, iface, netip.PrefixFrom(l.linkLocal(l.old), 64))
	if a, b := own(); a.IsValid() || b != v6.old.Addr() {
		t.Errorf("own addresses %s and %s", a, b)
	}
	if _, _, err := l.old.flows.Own("eth9", nil); err == nil || !strings.Contains(err.Error(), "eth9") {
		t.Errorf("got %v, want an error that names the interface", err)
	}
}

func TestTheOldOwnerAnswersNoARP(t *testing.T) {
	bothFamilies(t, func(t *testing.T, n network) {
		l := newLab(t, n)
		l.old.keep(keep)
		var found bool
		err := l.fresh.Do(func() error {
			quiet := slog.New(slog.DiscardHandler)
			if n.vip.Is4() {
				link, err := arp.Open(iface, quiet)
				if err != nil {
					return err
				}
				defer func() { _ = link.Close() }()
				_, found, err = link.Probe(t.Context(), n.vip)
				return err
			}
			link, err := ndp.Open(iface, quiet)
			if err != nil {
				return err
			}
			defer func() { _ = link.Close() }()
			_, found, err = link.Probe(t.Context(), n.vip)
			return err
		})
		if err != nil || found {
			t.Errorf("somebody answers for the VIP: %t, %v", found, err)
		}
	})
}

// Without its ARP settings the old owner would be a second owner.
func TestNothingIsKeptWhereARPWouldAnswer(t *testing.T) {
	n := networks()["IPv4"]
	l := newLab(t, n)
	l.old.Sysctl(t, "net/ipv4/conf/all/arp_ignore", "3")
	v6 := networks()["IPv6"].vip
	err := l.old.Do(func() error { return l.old.flows.Keep([]netip.Addr{n.vip, v6}, time.Now().Add(keep)) })
	if err == nil || !strings.Contains(err.Error(), "sysctl -w net.ipv4.conf.all.arp_ignore=1") {
		t.Errorf("got %v, want the command", err)
	}
	if got := l.old.Addresses(t, "lo"); len(got) != 3 || !slices.Contains(got, netip.PrefixFrom(v6, 128)) {
		t.Errorf("the loopback has %v, want the IPv6 VIP alone", got)
	}
}

func TestAllExpiresByItself(t *testing.T) {
	bothFamilies(t, func(t *testing.T, n network) {
		l := newLab(t, n)
		l.old.serve()
		l.fresh.serve()
		l.old.take(n.vip)
		before := l.open(3)
		const short = 3 * time.Second
		l.move(l.old, l.fresh, n.old.Addr())
		l.old.keep(short)
		l.fresh.forward(n.old.Addr(), short)
		if got := alive(before, patience); got != 3 {
			t.Errorf("%d of 3 flows live before the deadline", got)
		}
		l.old.flows.Close() // both processes are gone
		l.fresh.flows.Close()
		netns.Eventually(t, limit, "the loopback loses the VIP", func() bool { return len(l.old.Addresses(t, "lo")) == 2 })
		sent := l.fresh.sentOn()
		if got := alive(before, 300*time.Millisecond); got != 0 {
			t.Errorf("%d flows live after the deadline", got)
		}
		if l.fresh.sentOn() != sent {
			t.Error("packets are sent on after the deadline")
		}
		if f, err := l.dial(); err != nil || f.server != "fresh" {
			t.Errorf("a new connection after the deadline: %v", err)
		}
		for _, e := range []*edge{l.old, l.fresh} {
			e.flows = e.open()
			e.do(e.flows.Sweep)
			if e.tables() != 0 {
				t.Errorf("%d tables are left", e.tables())
			}
		}
	})
}

func TestRunTidiesUp(t *testing.T) {
	bothFamilies(t, func(t *testing.T, n network) {
		l := newLab(t, n)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.fresh.Do(func() error { return l.fresh.flows.Run(ctx) }) }()
		l.fresh.forward(n.old.Addr(), time.Second)
		l.fresh.keep(time.Second)
		if len(l.fresh.flows.Status()) != 2 || l.fresh.tables() != 1 {
			t.Errorf("status %v, %d tables", l.fresh.flows.Status(), l.fresh.tables())
		}
		netns.Eventually(t, limit, "the table is gone", func() bool { return l.fresh.tables() == 0 })
		if got := l.fresh.flows.Status(); len(got) != 0 {
			t.Errorf("status %v", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A restart during the second chance costs no flow.
func TestANewProcessGoesOn(t *testing.T) {
	bothFamilies(t, func(t *testing.T, n network) {
		l := newLab(t, n)
		l.old.serve()
		l.fresh.serve()
		l.old.take(n.vip)
		before := l.open(5)
		l.move(l.old, l.fresh, n.old.Addr())
		for _, e := range []*edge{l.old, l.fresh} {
			e.flows.Close()
			e.flows = e.open()
			e.do(e.flows.Sweep)
			status := e.flows.Status()
			if len(status) != 1 || status[0].VIP != n.vip || time.Until(status[0].Until) < keep/2 {
				t.Errorf("%s: adopted %+v", e.name, status)
			}
		}
		if got := l.fresh.flows.Status()[0]; got.Role != flows.Forwarding || got.To != n.old.Addr() {
			t.Errorf("adopted %+v", got)
		}
		if got := alive(before, patience); got != 5 {
			t.Errorf("%d of 5 flows live after both processes started anew", got)
		}
		// Another VIP leaves the adopted one alone.
		other := n.vip.Next()
		l.fresh.do(func() error { return l.fresh.flows.Forward([]netip.Addr{other}, n.old.Addr(), time.Now().Add(keep)) })
		l.old.do(func() error { return l.old.flows.Keep([]netip.Addr{other}, time.Now().Add(keep)) })
		if got := alive(before, patience); got != 5 || len(l.fresh.flows.Status()) != 2 {
			t.Errorf("%d of 5 flows live, status %v", got, l.fresh.flows.Status())
		}
		for _, e := range []*edge{l.old, l.fresh} {
			e.do(func() error { return e.flows.Expire([]netip.Addr{n.vip}) })
			if status := e.flows.Status(); len(status) != 1 || status[0].VIP != other {
				t.Errorf("%s: status %v after Expire", e.name, status)
			}
		}
		if got := alive(before, 300*time.Millisecond); got != 0 {
			t.Errorf("%d flows live after Expire", got)
		}
		for _, e := range []*edge{l.old, l.fresh} {
			e.do(e.flows.Clear)
			if e.tables() != 0 || len(e.Addresses(t, "lo")) != 2 || len(e.flows.Status()) != 0 {
				t.Errorf("%s: left after Clear: %d tables, %v", e.name, e.tables(), e.Addresses(t, "lo"))
			}
		}
	})
}

func TestWhatForwardRefuses(t *testing.T) {
	n, other := networks()["IPv4"], networks()["IPv6"]
	l := newLab(t, n)
	l.fresh.AddRoute(t, iface, netip.MustParsePrefix("198.51.100.0/24"), n.old.Addr())
	until := time.Now().Add(keep)
	for _, c := range []struct {
		vip, old netip.Addr
		until    time.Time
		want     string
	}{
		{n.vip, netip.MustParseAddr("198.51.100.1"), until, "same Ethernet"},
		{n.vip, netip.MustParseAddr("203.0.113.1"), until, "route to the old owner"},
		{n.vip, n.fresh.Addr(), until, "is this host"},
		{n.vip, n.vip, until, "cannot go to itself"},
		{other.vip, n.old.Addr(), until, "IPv6 address"},
		{n.vip, other.old.Addr(), until, "IPv4 address"},
		{other.vip, netip.MustParseAddr("fe80::1"), until, "fe80::1%eth0"},
		{other.vip, netip.MustParseAddr("fe80::1%eth9"), until, "interface of the old owner"},
		{n.vip, n.old.Addr(), time.Now(), "more than 0"},
		{n.vip, n.old.Addr(), time.Now().Add(25 * time.Hour), "at most 24h"},
		{netip.Addr{}, n.old.Addr(), until, "no address"},
		{n.vip, netip.Addr{}, until, "no address"},
	} {
		err := l.fresh.Do(func() error { return l.fresh.flows.Forward([]netip.Addr{c.vip}, c.old, c.until) })
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s to %s: got %v, want %q in it", c.vip, c.old, err, c.want)
		}
	}
	if l.fresh.tables() != 0 {
		t.Error("a refused call left a table")
	}
	if err := l.fresh.Do(func() error { return l.fresh.flows.Keep([]netip.Addr{n.vip}, time.Now()) }); err == nil {
		t.Error("kept until now")
	}
}

func TestAvailable(t *testing.T) {
	bothFamilies(t, func(t *testing.T, n network) {
		l := newLab(t, n)
		l.fresh.do(func() error { return l.fresh.flows.Available(n.vip) })
		if l.fresh.tables() != 0 {
			t.Error("the trial left a table")
		}
		err := l.fresh.Do(func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var none [2]unix.CapUserData
			if err := unix.Capset(&header, &none[0]); err != nil { // of this thread alone
				return fmt.Errorf("capset: %w", err)
			}
			return l.fresh.flows.Available(n.vip)
		})
		if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("without capabilities: %v", err)
		}
	})
}

func TestAThousandVIPs(t *testing.T) {
	const count, few, budget = 1000, 200, 10 * time.Second // the machine may be busy
	bothFamilies(t, func(t *testing.T, n network) {
		l := newLab(t, n)
		var vips []netip.Addr
		for i, vip := 0, n.vip; i < count; i++ {
			vips = append(vips, vip)
			vip = vip.Next()
		}
		if n.vip.Is4() {
			for i := range vips {
				vips[i] = netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})
			}
		}
		until := time.Now().Add(keep)
		forward := func(vips []netip.Addr) error { return l.fresh.flows.Forward(vips, n.old.Addr(), until) }
		keeping := func(vips []netip.Addr) error { return l.old.flows.Keep(vips, until) }
		for _, c := range []struct {
			what        string
			on          *edge
			do          func([]netip.Addr) error
			total, each int
		}{
			{"forward one by one", l.fresh, forward, few, 1}, {"keep one by one", l.old, keeping, few, 1},
			{"forward all at once", l.fresh, forward, count, count}, {"keep all at once", l.old, keeping, count, count},
		} {
			c.on.do(c.on.flows.Clear)
			start := time.Now()
			c.on.do(func() error {
				for part := range slices.Chunk(vips[:c.total], c.each) {
					if err := c.do(part); err != nil {
						return err
					}
				}
				return nil
			})
			t.Logf("%s: %d VIPs in %s", c.what, c.total, time.Since(start))
			if took := time.Since(start); took > budget {
				t.Errorf("%s took %s", c.what, took)
			}
		}
		if got := len(l.old.Addresses(t, "lo")); got != count+2 {
			t.Errorf("the loopback has %d addresses, want %d", got, count+2)
		}
		l.fresh.flows.Close()
		l.fresh.flows = l.fresh.open()
		if got := len(l.fresh.flows.Status()); got != count {
			t.Errorf("adopted %d of %d", got, count)
		}
	})
}
