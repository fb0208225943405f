// Package netns makes small networks for tests: anonymous network namespaces, veth pairs, a LAN that can
// be cut, and a switch that loses and delays. Everything is gone when the test ends, also after a crash,
// because no namespace has a name on disk. Tests alone run it; it touches no network but those it made.
//
// A socket belongs to the namespace of the thread that opened it, for ever. So it is enough to open sockets
// inside [Namespace.Do]; they may be used from any goroutine afterwards.
package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	kernel "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Require skips the test where no network namespace can be made (it needs root, more exactly
// CAP_SYS_ADMIN and CAP_NET_ADMIN), and says so. With CI=true in the environment it fails instead.
func Require(t testing.TB) {
	t.Helper()
	handle, err := unshare()
	if err == nil {
		_ = handle.Close()
		return
	}
	why := fmt.Sprintf("no network namespaces here (run the test as root): %v", err)
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// Namespace is one host of the small network. Its methods may be called from any goroutine.
type Namespace struct {
	handle kernel.NsHandle
	link   *netlink.Handle
}

// New makes a namespace with its loopback up. Duplicate address detection is off (net.ipv6.conf.*.dad_transmits
// and accept_dad are 0), so that IPv6 addresses serve at once; [Namespace.Sysctl] turns it on again before an
// interface is made. It skips the test as [Require] does, and closes the namespace when the test ends.
func New(t testing.TB) *Namespace {
	t.Helper()
	Require(t)
	handle, err := unshare()
	if err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	link, err := netlink.NewHandleAt(handle, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatalf("netlink in the namespace: %v", err)
	}
	n := &Namespace{handle: handle, link: link}
	t.Cleanup(func() {
		link.Close()
		_ = handle.Close()
	})
	for _, scope := range []string{"all", "default"} {
		n.Sysctl(t, "net/ipv6/conf/"+scope+"/dad_transmits", "0")
		n.Sysctl(t, "net/ipv6/conf/"+scope+"/accept_dad", "0")
	}
	n.Up(t, "lo")
	return n
}

// unshare makes a namespace on a thread that ends with it: the goroutine never unlocks.
func unshare() (kernel.NsHandle, error) {
	type result struct {
		handle kernel.NsHandle
		err    error
	}
	made := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- result{kernel.None(), fmt.Errorf("unshare: %w", err)}
			return
		}
		handle, err := kernel.Get()
		made <- result{handle, err}
	}()
	r := <-made
	return r.handle, r.err
}

// Do runs f on a thread inside the namespace and returns its error. Goroutines that f starts are not inside.
// f runs in a goroutine of its own: it must not call t.Fatal.
func (n *Namespace) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		finished := false
		defer func() {
			if !finished {
				done <- errors.New("the function ended its goroutine (t.Fatal inside Do?)")
			}
		}()
		runtime.LockOSThread()
		if err := kernel.Set(n.handle); err != nil {
			finished = true
			done <- fmt.Errorf("enter the namespace: %w", err)
			return
		}
		err := f()
		finished = true
		done <- err
	}()
	return <-done
}

// Start starts the process inside the namespace. Ending it is the caller's.
func (n *Namespace) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// Netlink is a route netlink handle of the namespace, closed with it.
func (n *Namespace) Netlink() *netlink.Handle { return n.link }

// Sysctl writes a value; key is a path below /proc/sys, as net/ipv4/conf/eth0/arp_ignore.
func (n *Namespace) Sysctl(t testing.TB, key, value string) {
	t.Helper()
	if err := n.Do(func() error { return os.WriteFile(sysctlPath(key), []byte(value), 0o644) }); err != nil {
		t.Fatalf("sysctl %s: %v", key, err)
	}
}

// ReadSysctl reads what Sysctl writes, without the newline.
func (n *Namespace) ReadSysctl(t testing.TB, key string) string {
	t.Helper()
	var value []byte
	err := n.Do(func() (err error) {
		value, err = os.ReadFile(sysctlPath(key))
		return err
	})
	if err != nil {
		t.Fatalf("sysctl %s: %v", key, err)
	}
	return strings.TrimSpace(string(value))
}

func sysctlPath(key string) string { return filepath.Join("/proc/sys", filepath.FromSlash(key)) }

// Link looks an interface up and fails the test if there is none.
func (n *Namespace) Link(t testing.TB, iface string) netlink.Link {
	t.Helper()
	link, err := n.link.LinkByName(iface)
	if err != nil {
		t.Fatalf("interface %s: %v", iface, err)
	}
	return link
}

// Up sets the interface up.
func (n *Namespace) Up(t testing.TB, iface string) {
	t.Helper()
	if err := n.link.LinkSetUp(n.Link(t, iface)); err != nil {
		t.Fatalf("set %s up: %v", iface, err)
	}
}

// Down sets the interface down, as ip link set IFACE down.
func (n *Namespace) Down(t testing.TB, iface string) {
	t.Helper()
	if err := n.link.LinkSetDown(n.Link(t, iface)); err != nil {
		t.Fatalf("set %s down: %v", iface, err)
	}
}

// AddAddress gives the interface an address, without duplicate address detection.
func (n *Namespace) AddAddress(t testing.TB, iface string, prefix netip.Prefix) {
	t.Helper()
	a := &netlink.Addr{IPNet: ipNet(prefix)}
	if prefix.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := n.link.AddrAdd(n.Link(t, iface), a); err != nil {
		t.Fatalf("add %s to %s: %v", prefix, iface, err)
	}
}

// RemoveAddress takes the address off, as an administrator would.
func (n *Namespace) RemoveAddress(t testing.TB, iface string, prefix netip.Prefix) {
	t.Helper()
	if err := n.link.AddrDel(n.Link(t, iface), &netlink.Addr{IPNet: ipNet(prefix)}); err != nil {
		t.Fatalf("remove %s from %s: %v", prefix, iface, err)
	}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Addresses lists the interface's addresses but for link-local ones, in the kernel's order.
func (n *Namespace) Addresses(t testing.TB, iface string) []netip.Prefix {
	t.Helper()
	link := n.Link(t, iface)
	list, err := n.link.AddrList(link, netlink.FAMILY_ALL)
	for errors.Is(err, netlink.ErrDumpInterrupted) { // something changed meanwhile
		list, err = n.link.AddrList(link, netlink.FAMILY_ALL)
	}
	if err != nil {
		t.Fatalf("addresses of %s: %v", iface, err)
	}
	var prefixes []netip.Prefix
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		if ip = ip.Unmap(); ok && !ip.IsLinkLocalUnicast() {
			prefixes = append(prefixes, netip.PrefixFrom(ip, bits))
		}
	}
	return prefixes
}

// HardwareAddr is the interface's own.
func (n *Namespace) HardwareAddr(t testing.TB, iface string) net.HardwareAddr {
	t.Helper()
	return n.Link(t, iface).Attrs().HardwareAddr
}

// Neighbour is whom the namespace's neighbour cache (ARP, NDP) names for ip, nil if nobody.
func (n *Namespace) Neighbour(t testing.TB, iface string, ip netip.Addr) net.HardwareAddr {
	t.Helper()
	index := n.Link(t, iface).Attrs().Index
	list, err := n.link.NeighList(index, netlink.FAMILY_ALL)
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		list, err = n.link.NeighList(index, netlink.FAMILY_ALL)
	}
	if err != nil {
		t.Fatalf("neighbours on %s: %v", iface, err)
	}
	for _, entry := range list {
		if known, ok := netip.AddrFromSlice(entry.IP); ok && known.Unmap() == ip {
			return entry.HardwareAddr
		}
	}
	return nil
}

// AddRoute adds a route to dst through a gateway that is on the interface's network.
func (n *Namespace) AddRoute(t testing.TB, iface string, dst netip.Prefix, gateway netip.Addr) {
	t.Helper()
	r := &netlink.Route{LinkIndex: n.Link(t, iface).Attrs().Index, Dst: ipNet(dst), Gw: gateway.AsSlice()}
	if err := n.link.RouteAdd(r); err != nil {
		t.Fatalf("route %s via %s: %v", dst, gateway, err)
	}
}

// Eventually waits until the condition holds and fails the test after the limit. The kernel tells nobody
// when a neighbour entry changes or an address expires, so it asks each millisecond.
func Eventually(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
		// Nothing signals the conditions that tests wait for here.
		time.Sleep(time.Millisecond)
	}
}
