package flows_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"go.uber.org/goleak"

	"headgate/test/netns"
	"headgate/vip/flows"
)

// childState tells the test's own binary to be the process that is killed; it holds the state file.
const childState = "HEADGATE_TEST_FLOWS_STATE"

func TestMain(m *testing.M) {
	if state := os.Getenv(childState); state != "" {
		fmt.Println(child(state)) // it only returns with an error
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// deadline of all that the child does.
const childKeep = 1500 * time.Millisecond

// child does everything that Flows do, again and again, until it is killed.
func child(state string) error {
	f, err := flows.New(flows.Config{StateFile: state, Interfaces: []string{iface}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	fmt.Println(netns.ChildRuns)
	for {
		for _, n := range networks() {
			vips := []netip.Addr{n.vip, n.vip.Next()}
			for _, step := range []func() error{
				f.Sweep,
				func() error { return f.Forward(vips, n.old.Addr(), time.Now().Add(childKeep)) },
				func() error { return f.Keep(vips, time.Now().Add(childKeep)) },
				func() error { return f.Forward(vips[1:], n.old.Addr(), time.Now().Add(childKeep)) },
				func() error { return f.Expire(vips[:1]) },
				func() error { return f.Keep(vips[:1], time.Now().Add(childKeep)) },
				f.Clear,
				func() error { return f.Forward(vips[:1], n.old.Addr(), time.Now().Add(childKeep)) },
			} {
				if err := step(); err != nil {
					return err
				}
			}
		}
	}
}

// Killed at any moment the process leaves only what expires, and the next one sweeps the rest.
func TestKilledAtAnyMoment(t *testing.T) {
	v4, v6 := networks()["IPv4"], networks()["IPv6"]
	lan := netns.NewLAN(t)
	e := newEdge(t, lan, "edge", v4.fresh, v4)
	e.AddAddress(t, iface, v6.fresh)
	const rounds = 25
	left := 0
	for range rounds {
		e.KillAfter(t, childState, e.state, time.Duration(5+rand.IntN(60))*time.Millisecond)
		left += e.onlyWhatExpires(t)
	}
	if left == 0 {
		t.Error("no round left anything: the child did nothing")
	}
	netns.Eventually(t, limit, "all has expired", func() bool {
		return len(e.Addresses(t, "lo")) == 2 && len(e.elements(t)) == 0
	})
	e.flows = e.open()
	e.do(e.flows.Sweep)
	if e.tables() != 0 {
		t.Errorf("%d tables are left after the sweep", e.tables())
	}
}

// onlyWhatExpires asserts on the kernel and counts what is left.
func (e *edge) onlyWhatExpires(t *testing.T) int {
	t.Helper()
	all := e.elements(t)
	for _, element := range all {
		if element.Expires <= 0 || element.Expires > childKeep {
			t.Errorf("an element stays for %s", element.Expires)
		}
	}
	state, _ := os.ReadFile(e.state)
	list, err := e.Netlink().AddrList(e.Link(t, "lo"), 0)
	if err != nil {
		t.Fatal(err)
	}
	left := len(all)
	for _, a := range list {
		ip, _ := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); ip.IsLoopback() {
			continue
		}
		left++
		if a.ValidLft > 2 {
			t.Errorf("%s stays for %d s", ip, a.ValidLft)
		}
		if !strings.Contains(string(state), `"`+ip.String()+`"`) {
			t.Errorf("%s is in the kernel and not in the state file", ip)
		}
	}
	return left
}

// elements are those of both tables.
func (e *edge) elements(t *testing.T) []nftables.SetElement {
	t.Helper()
	var all []nftables.SetElement
	e.do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		for _, n := range networks() {
			table := &nftables.Table{Family: n.table, Name: "headgate_flows"}
			found, err := conn.GetSetElements(&nftables.Set{Table: table, Name: "old_owner"})
			if err == nil {
				all = append(all, found...)
			}
		}
		return nil
	})
	return all
}
