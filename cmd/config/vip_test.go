package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestGoodVIPs(t *testing.T) {
	for _, c := range []struct {
		yaml string
		set  func(*Config)
	}{
		{`gossip: {cluster: edge, host: edge1.example.com, listen: "10.0.0.1:7946", peers: [10.0.0.2, "10.0.0.3:7000", "[2001:db8::3]:7946", "2001:db8::4", edge5.example.com], keyFile: /k, mtu: 1280}`, func(c *Config) {
			c.Gossip = Gossip{
				Cluster: "edge", Host: "edge1.example.com", Listen: netip.MustParseAddrPort("10.0.0.1:7946"),
				Peers: []string{"10.0.0.2", "10.0.0.3:7000", "[2001:db8::3]:7946", "2001:db8::4", "edge5.example.com"}, KeyFile: "/k", MTU: 1280,
			}
		}},
		{`vip: {interface: eth0, addresses: [192.0.2.10, 192.0.2.11/24, "2001:db8::10", 192.0.2.0/31, "2001:db8::/127", "2001:db8::ffff/112"]}`, func(c *Config) {
			c.VIP.Interface, c.VIP.Addresses = "eth0", []string{
				"192.0.2.10", "192.0.2.11/24", "2001:db8::10", "192.0.2.0/31", "2001:db8::/127", "2001:db8::ffff/112",
			}
		}},
		{`vip: {priority: 254, nopreempt: true, preemptDelay: 0s, listen: "10.0.0.1:7000", heartbeat: 10ms, misses: 2, linkHeartbeat: false, realtime: false, proxyTimeout: 1s, keepFlows: 0s, notify: [/n, a], metricsListen: ""}`, func(c *Config) {
			c.VIP = VIP{
				Priority: 254, NoPreempt: true, Listen: netip.MustParseAddrPort("10.0.0.1:7000"), Heartbeat: Duration(10 * time.Millisecond), Misses: 2,
				ProxyTimeout: Duration(time.Second), Notify: []string{"/n", "a"},
			}
		}},
		{`vip: {groups: [{name: web, addresses: [192.0.2.10], interface: eth0.100, priority: 1, nopreempt: true, preemptDelay: 1s}]}`, func(c *Config) {
			c.VIP.Groups = []VIPGroup{{Name: "web", Addresses: []string{"192.0.2.10"}, Interface: "eth0.100", Priority: 1, NoPreempt: true, PreemptDelay: Duration(time.Second)}}
		}},
	} {
		t.Run(c.yaml, func(t *testing.T) {
			want := Default()
			c.set(&want)
			got, err := Load(write(t, c.yaml), nil, NoSource)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, want, got)
		})
	}
}

func TestBadVIPs(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"gossip: {cluster: \"a b\"}", `F:1: gossip.cluster: "a b" is not a name: write letters, digits, '.', '-' and '_', such as headgate`},
		{"gossip: {host: -x}", `F:1: gossip.host: "-x" is not a host name: write letters, digits, '.', '-' and '_', such as edge1`},
		{"gossip: {listen: 10.0.0.1}", "F:1: gossip.listen: 10.0.0.1 lacks a port from 1 to 65535: write 10.0.0.1:7946"},
		{"gossip: {peers: [Edge2]}", `F:1: gossip.peers[0]: "Edge2" is neither an address nor a DNS name in lower case: write one such as 10.0.0.12 or edge2.example.com:7946`},
		{"gossip: {peers: [\"edge2:0\"]}", `F:1: gossip.peers[0]: "edge2:0" has no port from 1 to 65535: write edge2:7946, or leave the port out`},
		{"gossip: {peers: [a, a]}", `F:1: gossip.peers[1]: "a" is listed twice: keep one`},
		{"gossip: {keyFile: k}", `F:1: gossip.keyFile: "k" is not an absolute path of letters, digits and ._+-: write one such as /etc/headgate/gossip.key`},
		{"gossip: {mtu: 1000}", "F:1: gossip.mtu: 1000 is out of range: write a value from 1280 to 9216"},
		{"gossip: {peer: [a]}", "F:1: gossip.peer: unknown key: did you mean gossip.peers?"},
		{"vip: {addresses: [192.0.2.10]}", "F:1: vip.interface: no interface for vip.addresses[0]: write the one that clients reach, such as eth0"},
		{"vip: {interface: a/b, addresses: [192.0.2.10]}", `F:1: vip.interface: "a/b" is not an interface: write one that 'ip link' shows, such as eth0`},
		{"vip: {interface: eth0, addresses: [x]}", `F:1: vip.addresses[0]: "x" is no address: write one such as 192.0.2.10, 192.0.2.10/24 or 2001:db8::10`},
		{"vip: {interface: eth0, addresses: [127.0.0.1]}", `F:1: vip.addresses[0]: "127.0.0.1" cannot be a VIP: write a unicast address that clients reach, such as 192.0.2.10`},
		{"vip: {interface: eth0, addresses: [\"::ffff:192.0.2.1\"]}", `F:1: vip.addresses[0]: "::ffff:192.0.2.1" mixes IPv4 and IPv6: write 192.0.2.1`},
		{"vip: {interface: eth0, addresses: [192.0.2.1, 192.0.2.1/24]}", `F:1: vip.addresses[1]: the VIP "192.0.2.1" stands in vip.addresses[0] already: keep one`},
		{"vip: {interface: eth0, addresses: [192.0.2.0/24]}", `F:1: vip.addresses[0]: "192.0.2.0/24" is the address of the network itself: write one of a host in it, such as 192.0.2.1/24`},
		{"vip: {interface: eth0, addresses: [\"2001:db8::/64\"]}", `F:1: vip.addresses[0]: "2001:db8::/64" is the address of the network itself: write one of a host in it, such as 2001:db8::1/64`},
		{"vip: {interface: eth0, addresses: [192.0.2.255/24]}", `F:1: vip.addresses[0]: "192.0.2.255/24" is the broadcast address of its network: write one of a host in it, such as 192.0.2.254/24`},
		{"{gossip: {peers: [192.0.2.9, \"192.0.2.10:7946\"]}, vip: {interface: eth0, addresses: [192.0.2.10/24]}}", `F:1: gossip.peers[1]: 192.0.2.10 is a VIP: write an address that one host has all the time`},
		{"{gossip: {listen: \"192.0.2.10:7946\"}, vip: {interface: eth0, addresses: [192.0.2.10]}}", `F:1: gossip.listen: 192.0.2.10 is a VIP: write an address that one host has all the time`},
		{"vip: {interface: eth0, listen: \"[2001:db8::1]:7947\", addresses: [\"2001:DB8:0::1\"]}", `F:1: vip.listen: 2001:db8::1 is a VIP: write an address that one host has all the time`},
		{"vip: {priority: 255}", "F:1: vip.priority: 255 is out of range: write a value from 1 to 254"},
		{"vip: {listen: \"0.0.0.0:7946\"}", "F:1: vip.listen: 0.0.0.0:7946 is gossip.listen already: write another port"},
		{"vip: {heartbeat: 1ms}", "F:1: vip.heartbeat: 1ms is out of range: write a value from 10ms to 10s"},
		{"vip: {notify: [run.sh]}", `F:1: vip.notify[0]: "run.sh" is not an absolute path of letters, digits and ._+-: write the program first, such as /usr/local/bin/vip-changed`},
		{"vip: {metricsListen: \"0.0.0.0:9791\"}", "F:1: vip.metricsListen: 0.0.0.0:9791 is not a loopback address: write 127.0.0.1:9791; to scrape from elsewhere put a proxy with authentication in front"},
		{"vip: {interface: eth0, groups: [{name: \"a b\", addresses: [192.0.2.1]}]}", `F:1: vip.groups[0].name: "a b" is not a name: write letters, digits, '.', ':', '-' and '_', the same on all hosts, such as web`},
		{"vip: {interface: eth0, groups: [{name: a}]}", "F:1: vip.groups[0].addresses: the list is empty: write the addresses that move together, such as [192.0.2.11]"},
		{"vip: {interface: eth0, groups: [{name: a, addreses: [192.0.2.1]}]}", "F:1: vip.groups[0].addreses: unknown key: did you mean vip.groups[0].addresses?"},
		{"vip: {interface: eth0, addresses: [192.0.2.1], groups: [{name: a, addresses: [192.0.2.2, 192.0.2.1]}]}", "F:1: vip.groups[0].addresses[1]: 192.0.2.1 stands in vip.addresses[0] already: keep one"},
	} {
		t.Run(c.yaml, func(t *testing.T) {
			file := write(t, c.yaml)
			_, err := Load(file, nil, NoSource)
			if err == nil {
				t.Fatal("accepted")
			}
			if got, _, _ := strings.Cut(strings.ReplaceAll(err.Error(), file, "F"), "\n"); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	var many []string
	for i := range maxVIPs + 1 {
		many = append(many, fmt.Sprintf("192.0.2.%d", i+1))
	}
	_, err := Load(write(t, "vip: {interface: eth0, addresses: ["+strings.Join(many, ", ")+"]}"), nil, NoSource)
	if err == nil || !strings.Contains(err.Error(), "65 VIPs are too many, at most 64 have an owner of their own: write a group") {
		t.Error(err)
	}
}

// A list is a group each, a group takes from vip what it leaves out, and a name is the same however it is written.
func TestAll(t *testing.T) {
	c, err := Load(write(t, `vip:
  interface: eth1
  addresses: [192.0.2.10/24, "2001:DB8:0::10"]
  priority: 120
  groups:
    - {name: web, addresses: [192.0.2.11, 192.0.2.12], priority: 50, interface: eth0}
`), nil, NoSource)
	if err != nil {
		t.Fatal(err)
	}
	delay := Duration(10 * time.Second)
	want := []VIPGroup{
		{Name: "192.0.2.10", Addresses: []string{"192.0.2.10/24"}, Interface: "eth1", Priority: 120, PreemptDelay: delay},
		{Name: "2001:db8::10", Addresses: []string{"2001:DB8:0::10"}, Interface: "eth1", Priority: 120, PreemptDelay: delay},
		{Name: "web", Addresses: []string{"192.0.2.11", "192.0.2.12"}, Interface: "eth0", Priority: 50, PreemptDelay: delay},
	}
	if diff := cmp.Diff(want, c.VIP.All()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"eth0", "eth1"}, c.VIP.Interfaces()); diff != "" {
		t.Error(diff)
	}
}
