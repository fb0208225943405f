package flows

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// MaxHops is how many hosts one after the other may send a packet on: there are at most five.
const MaxHops = 4

// priority is that of our chain: before connection tracking (-200), which must not see flows that are not ours,
// and before rules that say what it shall not see (-300).
const priority = nftables.ChainPriority(-305)

// loopbackIndex is that of lo in every network namespace.
const loopbackIndex = 1

// The registers of the rules, 4 bytes each: a VIP, an old owner with the interface behind it, and a small value.
const (
	regVIP   = unix.NFT_REG32_00
	regOwner = unix.NFT_REG32_04
	regValue = unix.NFT_REG32_15
)

// TCP's flags in its header (RFC 9293 section 3.1).
const (
	flagsOffset = 13
	flagSYN     = 0x02
	flagACK     = 0x10
)

// bytes is the target as the map has it: the address, then the interface's index in the host's byte order.
func (t target) bytes() []byte {
	return binary.NativeEndian.AppendUint32(t.host.AsSlice(), uint32(t.index))
}

// parseTarget reads what bytes wrote; addressBytes is the length of an address.
func parseTarget(b []byte, addressBytes int) (target, bool) {
	const indexBytes = 4
	if addressBytes == 0 || len(b) != addressBytes+indexBytes {
		return target{}, false
	}
	host, ok := netip.AddrFromSlice(b[:addressBytes])
	return target{host: host, index: int(binary.NativeEndian.Uint32(b[addressBytes:]))}, ok
}

// rules fill the table. In nft's words, for IPv4:
//
//	chain arriving {
//	    type filter hook prerouting priority -305
//	    iif != lo meta l4proto tcp ip daddr @old_owner tcp flags & (syn|ack) != syn goto unknown
//	    iif != lo meta l4proto icmp ip daddr @old_owner icmp type destination-unreachable jump copy
//	}
//	chain unknown {
//	    socket wildcard 1 goto away      # a listener alone
//	    socket transparent <= 1 accept   # any other socket: a flow, a handshake, one in TIME_WAIT
//	    goto away                        # none
//	}
//	chain copy { ip ttl > 5 ip ttl set 5;  ip ttl > 1 dup to ip daddr map @old_owner }
//	chain away { the same;  ip ttl > 1 dup to ip daddr map @old_owner drop }
//
// The second rule of unknown cannot be "socket wildcard 0 accept": a socket of a handshake answers
// neither 0 nor 1, and its last packet would go away.
func (fam family) rules(conn *nftables.Conn, table *nftables.Table) {
	// A rule may only go to a chain that the transaction has added already.
	away := conn.AddChain(&nftables.Chain{Table: table, Name: "away"})
	duplicate := conn.AddChain(&nftables.Chain{Table: table, Name: "copy"})
	unknown := conn.AddChain(&nftables.Chain{Table: table, Name: "unknown"})
	place := priority
	arriving := conn.AddChain(&nftables.Chain{
		Table: table, Name: "arriving", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: &place,
	})
	add := func(chain *nftables.Chain, parts ...[]expr.Any) {
		var all []expr.Any
		for _, p := range parts {
			all = append(all, p...)
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: all})
	}
	add(away, fam.shorten())
	add(away, fam.sendOn(), verdict(expr.VerdictDrop, ""))
	add(duplicate, fam.shorten())
	add(duplicate, fam.sendOn())
	add(unknown, onlyListener(), verdict(expr.VerdictGoto, away.Name))
	add(unknown, anySocket(), verdict(expr.VerdictAccept, ""))
	add(unknown, verdict(expr.VerdictGoto, away.Name))
	add(arriving, fromOutside(), protocol(unix.IPPROTO_TCP), fam.moved(), noFirstSYN(), verdict(expr.VerdictGoto, unknown.Name))
	add(arriving, fromOutside(), protocol(fam.icmp), fam.moved(), fam.isError(), verdict(expr.VerdictJump, duplicate.Name))
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}

func compare(op expr.CmpOp, value ...byte) expr.Any {
	return &expr.Cmp{Op: op, Register: regValue, Data: value}
}

func fromOutside() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIF, Register: regValue},
		compare(expr.CmpOpNeq, binary.NativeEndian.AppendUint32(nil, loopbackIndex)...),
	}
}

func protocol(number byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: regValue}, compare(expr.CmpOpEq, number)}
}

// moved matches packets to a VIP in the map, and loads the old owner.
func (fam family) moved() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: regVIP, Base: expr.PayloadBaseNetworkHeader, Offset: fam.address.offset, Len: fam.address.length},
		&expr.Lookup{SourceRegister: regVIP, DestRegister: regOwner, IsDestRegSet: true, SetName: mapName, SetID: mapID},
	}
}

// noFirstSYN matches all TCP packets but the one that opens a flow.
func noFirstSYN() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: regValue, Base: expr.PayloadBaseTransportHeader, Offset: flagsOffset, Len: 1},
		&expr.Bitwise{SourceRegister: regValue, DestRegister: regValue, Len: 1, Mask: []byte{flagSYN | flagACK}, Xor: []byte{0}},
		compare(expr.CmpOpNeq, flagSYN),
	}
}

// isError matches ICMP's error messages, which routers send to the VIP about packets of the old owner.
func (fam family) isError() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: regValue, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		compare(expr.CmpOpGte, fam.lowest),
		compare(expr.CmpOpLte, fam.errors),
	}
}

// onlyListener matches where the socket lookup finds a socket on the wildcard address.
func onlyListener() []expr.Any {
	return []expr.Any{&expr.Socket{Key: expr.SocketKeyWildcard, Register: regValue}, compare(expr.CmpOpEq, 1)}
}

// anySocket matches where it finds one at all: this key, unlike the others, is also that of a handshake.
func anySocket() []expr.Any {
	return []expr.Any{&expr.Socket{Key: expr.SocketKeyTransparent, Register: regValue}, compare(expr.CmpOpLte, 1)}
}

func (fam family) loadHopLimit() expr.Any {
	return &expr.Payload{DestRegister: regValue, Base: expr.PayloadBaseNetworkHeader, Offset: fam.hopLimit.offset, Len: fam.hopLimit.length}
}

// shorten leaves the packet MaxHops: each takes one, and the last host gets 1, which is not sent on. The IPv4 checksum is written by whoever sends the copy, and nobody looks at
// that of the original again.
func (fam family) shorten() []expr.Any {
	return []expr.Any{
		fam.loadHopLimit(),
		compare(expr.CmpOpGt, MaxHops+1),
		&expr.Immediate{Register: regValue, Data: []byte{MaxHops + 1}},
		&expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: regValue, Base: expr.PayloadBaseNetworkHeader,
			Offset: fam.hopLimit.offset, Len: fam.hopLimit.length,
		},
	}
}

// sendOn sends a copy to the old owner, which takes one from its hop limit, unless that is used up.
func (fam family) sendOn() []expr.Any {
	all := append([]expr.Any{fam.loadHopLimit(), compare(expr.CmpOpGt, 1)}, fam.moved()...)
	regInterface := uint32(regOwner + fam.address.length/4)
	return append(all, &expr.Counter{}, &expr.Dup{RegAddr: regOwner, RegDev: regInterface, IsRegDevSet: true})
}
