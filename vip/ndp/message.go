package ndp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"
)

// advertisement is an unsolicited neighbor advertisement of the VIP to all nodes.
func advertisement(own net.HardwareAddr, vip netip.Addr) ([]byte, error) {
	message := &ndp.NeighborAdvertisement{
		Override:      true,
		TargetAddress: vip,
		Options:       []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: own}},
	}
	return frame(own, vip, netip.IPv6LinkLocalAllNodes(), message)
}

// solicitation asks for the VIP, from an address of this host or from none. Asked from an address, the owner answers
// that one alone. Asked from none, as by duplicate address detection, it answers all nodes, with the override flag: where
// a dead process's kernel still has the VIP that undoes, for everybody, what the new owner announced a moment before.
func solicitation(own net.HardwareAddr, from, vip netip.Addr) ([]byte, error) {
	group, err := ndp.SolicitedNodeMulticast(vip)
	if err != nil {
		return nil, fmt.Errorf("neighbor solicitation of %s: %w", vip, err)
	}
	message := &ndp.NeighborSolicitation{TargetAddress: vip}
	if !from.IsUnspecified() { // RFC 4861 section 4.3
		message.Options = []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: own}}
	}
	return frame(own, from, group, message)
}

// The header of a frame and of an IPv6 packet (RFC 8200 section 3).
const (
	etherBytes = 14
	ipv6Bytes  = 40
	version6   = 6 << 4
)

// frame puts the message into an IPv6 packet and that into an Ethernet frame to a multicast group (RFC 2464).
func frame(own net.HardwareAddr, from, group netip.Addr, message ndp.Message) ([]byte, error) {
	payload, err := ndp.MarshalMessageChecksum(message, from, group)
	if err != nil {
		return nil, fmt.Errorf("neighbor message to %s: %w", group, err)
	}
	to := group.As16()
	f := make([]byte, 0, etherBytes+ipv6Bytes+len(payload))
	f = append(f, 0x33, 0x33, to[12], to[13], to[14], to[15])
	f = append(f, own...)
	f = binary.BigEndian.AppendUint16(f, unix.ETH_P_IPV6)
	f = append(f, version6, 0, 0, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(len(payload)))
	f = append(f, unix.IPPROTO_ICMPV6, ndp.HopLimit)
	f = append(f, from.AsSlice()...)
	f = append(f, to[:]...)
	return append(f, payload...), nil
}

// claim reads who says that which address is his: the target of a neighbor advertisement with its link-layer
// address, or the source of a neighbor solicitation with its own. Without such an option a message changes no
// neighbour's cache and claims nothing.
func claim(text []byte, from netip.Addr) (netip.Addr, net.HardwareAddr, bool) {
	message, err := ndp.ParseMessage(text)
	if err != nil {
		return netip.Addr{}, nil, false
	}
	switch m := message.(type) {
	case *ndp.NeighborAdvertisement:
		by, ok := linkLayer(m.Options, ndp.Target)
		return m.TargetAddress, by, ok
	case *ndp.NeighborSolicitation:
		by, ok := linkLayer(m.Options, ndp.Source)
		return from, by, ok && !from.IsUnspecified()
	}
	return netip.Addr{}, nil, false
}

func linkLayer(options []ndp.Option, direction ndp.Direction) (net.HardwareAddr, bool) {
	for _, o := range options {
		if a, ok := o.(*ndp.LinkLayerAddress); ok && a.Direction == direction {
			return a.Addr, true
		}
	}
	return nil, false
}
