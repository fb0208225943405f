package netns

import (
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// End is one end of a veth pair: an interface to be made in a namespace.
type End struct {
	Namespace *Namespace
	Interface string // at most 15 bytes, as the kernel has it
}

// Veth joins two namespaces by a cable and sets both ends up.
func Veth(t testing.TB, a, b End) {
	t.Helper()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = a.Interface
	attributes.Namespace = netlink.NsFd(a.Namespace.handle)
	cable := &netlink.Veth{LinkAttrs: attributes, PeerName: b.Interface, PeerNamespace: netlink.NsFd(b.Namespace.handle)}
	if err := a.Namespace.link.LinkAdd(cable); err != nil {
		t.Fatalf("veth %s to %s: %v", a.Interface, b.Interface, err)
	}
	a.Namespace.Up(t, a.Interface)
	b.Namespace.Up(t, b.Interface)
}

// LAN is an Ethernet: a bridge in a namespace of its own, to which hosts are joined by veth pairs.
type LAN struct {
	namespace *Namespace

	mu    sync.Mutex // guards ports
	ports map[End]string
}

const bridge = "lan"

// NewLAN makes an Ethernet without spanning tree, multicast snooping or an address of its own.
func NewLAN(t testing.TB) *LAN {
	t.Helper()
	l := &LAN{namespace: New(t), ports: map[End]string{}}
	l.namespace.Sysctl(t, "net/ipv6/conf/default/disable_ipv6", "1")
	attributes := netlink.NewLinkAttrs()
	attributes.Name = bridge
	snooping := false
	if err := l.namespace.link.LinkAdd(&netlink.Bridge{LinkAttrs: attributes, MulticastSnooping: &snooping}); err != nil {
		t.Fatalf("make the bridge: %v", err)
	}
	l.namespace.Up(t, bridge)
	return l
}

// Join gives the namespace an interface on the LAN, up and with the addresses.
func (l *LAN) Join(t testing.TB, n *Namespace, iface string, addresses ...netip.Prefix) {
	t.Helper()
	l.mu.Lock()
	port := "port" + strconv.Itoa(len(l.ports))
	l.ports[End{n, iface}] = port
	l.mu.Unlock()
	Veth(t, End{n, iface}, End{l.namespace, port})
	master := l.namespace.Link(t, bridge)
	if err := l.namespace.link.LinkSetMaster(l.namespace.Link(t, port), master); err != nil {
		t.Fatalf("join %s: %v", iface, err)
	}
	for _, a := range addresses {
		n.AddAddress(t, iface, a)
	}
}

// Cut makes the LAN drop all frames from and to the interface, while its carrier stays: nobody is told.
// It asserts that the kernel took it.
func (l *LAN) Cut(t testing.TB, n *Namespace, iface string) {
	t.Helper()
	l.setState(t, End{n, iface}, portDisabled)
}

// Heal undoes Cut.
func (l *LAN) Heal(t testing.TB, n *Namespace, iface string) {
	t.Helper()
	l.setState(t, End{n, iface}, portForwarding)
}

// Unplug takes the carrier from the interface, as a pulled cable does; Plug gives it back.
func (l *LAN) Unplug(t testing.TB, n *Namespace, iface string) {
	t.Helper()
	l.namespace.Down(t, l.port(t, End{n, iface}))
}

// Plug undoes Unplug.
func (l *LAN) Plug(t testing.TB, n *Namespace, iface string) {
	t.Helper()
	l.namespace.Up(t, l.port(t, End{n, iface}))
}

func (l *LAN) port(t testing.TB, e End) string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	port, ok := l.ports[e]
	if !ok {
		t.Fatalf("%s never joined this LAN", e.Interface)
	}
	return port
}

// The states of a bridge port (BR_STATE_* of linux/if_bridge.h).
const (
	portDisabled   = 0
	portForwarding = 3
)

func (l *LAN) setState(t testing.TB, e End, state byte) {
	t.Helper()
	index := l.namespace.Link(t, l.port(t, e)).Attrs().Index
	err := l.namespace.Do(func() error { return setPortState(index, state) })
	if err != nil {
		t.Fatalf("state %d of the port of %s: %v", state, e.Interface, err)
	}
	var now byte
	err = l.namespace.Do(func() (err error) {
		now, err = portState(index)
		return err
	})
	if err != nil || now != state {
		t.Fatalf("the port of %s is in state %d, want %d: %v", e.Interface, now, state, err)
	}
}

// setPortState is what bridge link set dev PORT state N does.
func setPortState(index int, state byte) error {
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_BRIDGE)
	message.Index = int32(index)
	request.AddData(message)
	protocol := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	protocol.AddRtAttr(nl.IFLA_BRPORT_STATE, []byte{state})
	request.AddData(protocol)
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func portState(index int) (byte, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		info := nl.DeserializeIfInfomsg(m)
		if int(info.Index) != index {
			continue
		}
		attributes, err := nl.ParseRouteAttr(m[info.Len():])
		if err != nil {
			return 0, err
		}
		if state, ok := stateOf(attributes); ok {
			return state, nil
		}
	}
	return 0, unix.ENODEV
}

func stateOf(attributes []syscall.NetlinkRouteAttr) (byte, bool) {
	for _, a := range attributes {
		if a.Attr.Type&^unix.NLA_F_NESTED != unix.IFLA_PROTINFO {
			continue
		}
		inner, err := nl.ParseRouteAttr(a.Value)
		if err != nil {
			return 0, false
		}
		for _, i := range inner {
			if i.Attr.Type == nl.IFLA_BRPORT_STATE && len(i.Value) == 1 {
				return i.Value[0], true
			}
		}
	}
	return 0, false
}
