package ndp

import (
	"net"
	"net/netip"
	"testing"

	"github.com/mdlayher/ndp"
)

var (
	own  = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	vip  = netip.MustParseAddr("2001:db8::10")
	peer = netip.MustParseAddr("fe80::2")
)

// text is a message as the raw socket gives it.
func text(t testing.TB, m ndp.Message) []byte {
	t.Helper()
	b, err := ndp.MarshalMessage(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func option(d ndp.Direction) []ndp.Option {
	return []ndp.Option{&ndp.LinkLayerAddress{Direction: d, Addr: own}}
}

func TestClaim(t *testing.T) {
	target := netip.MustParseAddr("2001:db8::99")
	for name, c := range map[string]struct {
		message ndp.Message
		from    netip.Addr
		want    netip.Addr
	}{
		"advertisement":                    {&ndp.NeighborAdvertisement{TargetAddress: vip, Options: option(ndp.Target)}, peer, vip},
		"advertisement without address":    {&ndp.NeighborAdvertisement{TargetAddress: vip}, peer, netip.Addr{}},
		"advertisement with the wrong one": {&ndp.NeighborAdvertisement{TargetAddress: vip, Options: option(ndp.Source)}, peer, netip.Addr{}},
		"solicitation from the VIP":        {&ndp.NeighborSolicitation{TargetAddress: target, Options: option(ndp.Source)}, vip, vip},
		"solicitation of the VIP":          {&ndp.NeighborSolicitation{TargetAddress: vip, Options: option(ndp.Source)}, peer, peer},
		"duplicate address detection":      {&ndp.NeighborSolicitation{TargetAddress: vip}, netip.IPv6Unspecified(), netip.Addr{}},
		"from nowhere with an address":     {&ndp.NeighborSolicitation{TargetAddress: vip, Options: option(ndp.Source)}, netip.IPv6Unspecified(), netip.Addr{}},
		"router solicitation":              {&ndp.RouterSolicitation{}, vip, netip.Addr{}},
	} {
		ip, by, ok := claim(text(t, c.message), c.from)
		if ok != c.want.IsValid() || ok && (ip != c.want || by.String() != own.String()) {
			t.Errorf("%s: %s by %s, %t; want %s", name, ip, by, ok, c.want)
		}
	}
}

func from(ip netip.Addr) func(net.HardwareAddr, netip.Addr) ([]byte, error) {
	return func(own net.HardwareAddr, vip netip.Addr) ([]byte, error) { return solicitation(own, ip, vip) }
}

// The frames are those of RFC 2464 and RFC 4861; that the kernel takes their checksums is seen by the lab's tests.
func TestFrames(t *testing.T) {
	for name, c := range map[string]struct {
		build func(net.HardwareAddr, netip.Addr) ([]byte, error)
		to    string
		from  netip.Addr
		group netip.Addr
	}{
		"advertisement": {advertisement, "33:33:00:00:00:01", vip, netip.MustParseAddr("ff02::1")},
		"solicitation":  {from(peer), "33:33:ff:00:00:10", peer, netip.MustParseAddr("ff02::1:ff00:10")},
		"from no address": {
			from(netip.IPv6Unspecified()), "33:33:ff:00:00:10", netip.IPv6Unspecified(), netip.MustParseAddr("ff02::1:ff00:10"),
		},
	} {
		frame, err := c.build(own, vip)
		if err != nil {
			t.Fatal(err)
		}
		from, _ := netip.AddrFromSlice(frame[etherBytes+8 : etherBytes+24])
		group, _ := netip.AddrFromSlice(frame[etherBytes+24 : etherBytes+40])
		if net.HardwareAddr(frame[:6]).String() != c.to || net.HardwareAddr(frame[6:12]).String() != own.String() ||
			from != c.from || group != c.group || frame[etherBytes+7] != ndp.HopLimit {
			t.Errorf("%s: % x", name, frame)
		}
		if _, err := ndp.ParseMessage(frame[etherBytes+ipv6Bytes:]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzClaim(f *testing.F) {
	f.Add(text(f, &ndp.NeighborAdvertisement{TargetAddress: vip, Options: option(ndp.Target)}))
	f.Add(text(f, &ndp.NeighborSolicitation{TargetAddress: vip, Options: option(ndp.Source)}))
	f.Add([]byte{136, 0, 0, 0})
	f.Fuzz(func(t *testing.T, message []byte) {
		if ip, by, ok := claim(message, peer); ok && (!ip.IsValid() || len(by) == 0) {
			t.Errorf("claim of %s by %s", ip, by)
		}
	})
}

func TestParseLocal(t *testing.T) {
	text := "fe800000000000000000000000000005 02 40 20 80 eth0\n20010db8000000000000000000000001 0a 40 00 80 eth1\n" +
		"broken\nfe80 0a 40 20 80 eth1\nfe800000000000000000000000000006 0a 40 20 80 eth1\n"
	for index, want := range map[int]string{2: "fe80::5", 10: "fe80::6", 3: "::"} {
		if got := parseLocal(text, index); got.String() != want {
			t.Errorf("interface %d has %s, want %s", index, got, want)
		}
	}
}
