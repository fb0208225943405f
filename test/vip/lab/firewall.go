package lab

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"headgate/test/netns"
)

// Firewall drops frames that come to the interface of one machine.
type Firewall struct {
	namespace *netns.Namespace
	table     *nftables.Table
	chain     *nftables.Chain
}

// Talk is what hosts say to each other about VIPs.
type Talk int

// What Block drops.
const (
	Heartbeats Talk = iota // headgate's heartbeats and sessions, on the link too, and gossip
	VRRP                   // RFC 5798
)

// Block drops what a machine hears of the others' talk; everything else passes, ARP and the client first of all.
func Block(t testing.TB, n *netns.Namespace, what Talk) *Firewall {
	t.Helper()
	f := &Firewall{namespace: n}
	if err := f.do(func(c *nftables.Conn) error {
		priority := nftables.ChainPriority(0)
		f.table = c.AddTable(&nftables.Table{Name: "lab", Family: nftables.TableFamilyNetdev})
		f.chain = c.AddChain(&nftables.Chain{
			Name: "in", Table: f.table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookIngress, Priority: &priority, Device: Interface,
		})
		for _, match := range matches(what) {
			rule := append(match, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})
			c.AddRule(&nftables.Rule{Table: f.table, Chain: f.chain, Exprs: rule})
		}
		return c.Flush()
	}); err != nil {
		t.Fatalf("block: %v", err)
	}
	return f
}

// OpenOnly drops all that a machine sends over TCP but the packets that open connections: those then stay half open.
func OpenOnly(t testing.TB, n *netns.Namespace) *Firewall {
	t.Helper()
	f := &Firewall{namespace: n}
	const flagsOffset, flagSYN = 13, 0x02
	rule := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: flagsOffset, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{flagSYN}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0}},
		&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop},
	}
	if err := f.do(func(c *nftables.Conn) error {
		f.table = c.AddTable(&nftables.Table{Name: "lab", Family: nftables.TableFamilyINet})
		f.chain = c.AddChain(&nftables.Chain{
			Name: "out", Table: f.table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter,
		})
		c.AddRule(&nftables.Rule{Table: f.table, Chain: f.chain, Exprs: rule})
		return c.Flush()
	}); err != nil {
		t.Fatalf("block: %v", err)
	}
	return f
}

// Both blocks a pair of machines.
func Both(t testing.TB, a, b *Host, what Talk) []*Firewall {
	t.Helper()
	return []*Firewall{Block(t, a.Namespace, what), Block(t, b.Namespace, what)}
}

func matches(what Talk) [][]expr.Any {
	equal := func(load expr.Any, data ...byte) []expr.Any {
		return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
	}
	protocol := func(number byte) []expr.Any {
		return equal(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, number)
	}
	if what == VRRP {
		const vrrp = 112
		return [][]expr.Any{protocol(vrrp)}
	}
	const typeOffset, typeBytes = 12, 2
	link := equal(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: typeOffset, Len: typeBytes}, 0x88, 0xb5)
	all := [][]expr.Any{link}
	for _, number := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		for _, port := range []uint16{gossipPort, heartbeatPort} {
			for _, offset := range []uint32{0, 2} { // source and destination
				all = append(all, append(protocol(number), equal(
					&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}, byte(port>>8), byte(port))...))
			}
		}
	}
	return all
}

// Dropped waits until the firewall has dropped something: the fault took effect.
func (f *Firewall) Dropped(t testing.TB) {
	t.Helper()
	for deadline := time.Now().Add(Patience); ; rest() {
		packets := uint64(0)
		if err := f.do(func(c *nftables.Conn) error {
			rules, err := c.GetRules(f.table, f.chain)
			for _, r := range rules {
				for _, e := range r.Exprs {
					if counter, ok := e.(*expr.Counter); ok {
						packets += counter.Packets
					}
				}
			}
			return err
		}); err != nil {
			t.Fatalf("count what was dropped: %v", err)
		}
		if packets > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the firewall has dropped nothing")
		}
	}
}

// Open lets everything pass again.
func (f *Firewall) Open(t testing.TB) {
	t.Helper()
	if err := f.do(func(c *nftables.Conn) error {
		c.DelTable(f.table)
		return c.Flush()
	}); err != nil {
		t.Fatalf("open: %v", err)
	}
}

func (f *Firewall) do(work func(*nftables.Conn) error) error {
	return f.namespace.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		return errors.Join(work(c))
	})
}
