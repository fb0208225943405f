// Package doctor has `headgate doctor` look at hosts of a small network, where what it should find is really so: a key that
// differs, a VIP that another machine has, a way that carries no large packets.
package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/cmd/check"
	"headgate/sync/gossip"
	"headgate/test/netns"
	"headgate/test/product"
)

var binary string

func TestMain(m *testing.M) { product.Main(m, &binary) }

// edge is a host that shares the VIP.
type edge struct {
	*netns.Namespace
	address, dir string
}

const (
	iface = "eth0"
	vip4  = "10.9.0.100"
	vip6  = "2001:db8:9::100"
)

// network is edge1 and edge2, and a machine that is none of them.
func network(t *testing.T) (edge1, edge2 *edge, other *netns.Namespace) {
	t.Helper()
	product.LookAt(t, "vip")
	lan := netns.NewLAN(t)
	host := func(number int) *edge {
		e := &edge{netns.New(t), fmt.Sprintf("10.9.0.%d", number), t.TempDir()}
		lan.Join(t, e.Namespace, iface, netip.MustParsePrefix(e.address+"/24"), netip.MustParsePrefix(fmt.Sprintf("2001:db8:9::%d/64", number)))
		return e
	}
	edge1, edge2 = host(11), host(12)
	secret := gossip.NewSecret()
	for _, e := range []*edge{edge1, edge2} {
		if err := gossip.WriteSecretFile(filepath.Join(e.dir, "gossip.key"), secret); err != nil {
			t.Fatal(err)
		}
		e.configure(t, "", vip4, vip6)
	}
	other = netns.New(t)
	lan.Join(t, other, iface, netip.MustParsePrefix("10.9.0.50/24"), netip.MustParsePrefix("2001:db8:9::50/64"))
	return edge1, edge2, other
}

func (e *edge) configure(t *testing.T, more string, vips ...string) {
	t.Helper()
	quoted := `"` + strings.Join(vips, `", "`) + `"`
	text := fmt.Sprintf(`
manifests: [%[1]s]
stateDir: %[1]s/state
runtimeDir: %[1]s/run
metrics: {listen: ""}
gossip: {host: h%[2]s, peers: [10.9.0.11, 10.9.0.12], keyFile: %[1]s/gossip.key%[3]s}
vip: {interface: %[4]s, addresses: [%[5]s], realtime: false, metricsListen: ""}
`, e.dir, strings.ReplaceAll(e.address, ".", "-"), more, iface, quoted)
	if err := os.WriteFile(filepath.Join(e.dir, "headgate.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (e *edge) command(t *testing.T, out *bytes.Buffer, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, append(args, "--config", filepath.Join(e.dir, "headgate.yaml"))...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// shares runs the VIP process until the test ends, and returns once it gossips.
func (e *edge) shares(t *testing.T) {
	t.Helper()
	var out bytes.Buffer
	cmd := e.command(t, &out, "vip", "run")
	if err := e.Start(cmd); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // what it said is shown
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-ended
		if t.Failed() {
			t.Logf("the VIP process of %s:\n%s", e.address, out.String())
		}
	})
	netns.Eventually(t, 20*time.Second, "the VIP process of "+e.address+" answers", func() bool {
		_, err := gossip.Ask(t.Context(), filepath.Join(e.dir, "run", "vip", "vip.sock"))
		return err == nil
	})
}

// doctor gives the lines of an area.
func (e *edge) doctor(t *testing.T, areas ...string) []check.Line {
	t.Helper()
	var out bytes.Buffer
	cmd := e.command(t, &out, "doctor", "-o", "json")
	if err := e.Start(cmd); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("doctor: %v\n%s", err, out.String())
	}
	var report check.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if (err == nil) != (report.Count(check.Fail) == 0) {
		t.Errorf("exit code of %v with %d lines to mend", err, report.Count(check.Fail))
	}
	var lines []check.Line
	for _, l := range report.Lines {
		for _, a := range areas {
			if l.Area == a {
				lines = append(lines, l)
			}
		}
	}
	return lines
}

// says wants a line "verdict message -> fix" that holds all parts of each, split at "…".
func says(t *testing.T, lines []check.Line, want ...string) {
	t.Helper()
	var all []string
	for _, l := range lines {
		all = append(all, string(l.Verdict)+" "+l.Message+" -> "+l.Fix)
		if l.Verdict == check.Fail && l.Fix == "" {
			t.Errorf("nothing mends %q", l.Message)
		}
	}
wanted:
	for _, w := range want {
	lines:
		for _, line := range all {
			for part := range strings.SplitSeq(w, "…") {
				if !strings.Contains(line, part) {
					continue lines
				}
			}
			continue wanted
		}
		t.Errorf("no line says %q:\n%s", w, strings.Join(all, "\n"))
	}
}

func never(t *testing.T, lines []check.Line, v check.Verdict) {
	t.Helper()
	for _, l := range lines {
		if l.Verdict == v {
			t.Errorf("%s %s -> %s", l.Verdict, l.Message, l.Fix)
		}
	}
}

func TestTwoHostsThatAgree(t *testing.T) {
	edge1, edge2, _ := network(t)
	edge2.shares(t)
	lines := edge1.doctor(t, "gossip", "mtu", "vip", "privileges")
	never(t, lines, check.Fail)
	says(t, lines,
		"ok the secret of the hosts can be read: key ",
		"ok free, TCP and UDP: 0.0.0.0:7946, 0.0.0.0:7947",
		"ok 10.9.0.12 is host h10-9-0-12 of the cluster headgate, with our key",
		"ok packets of 1500 bytes reach 10.9.0.12",
		"ok 10.9.0.100 is in the network 10.9.0.0/24 of eth0", "ok nobody has 10.9.0.100",
		"ok 2001:db8:9::100 is in the network 2001:db8:9::/64 of eth0", "ok nobody has 2001:db8:9::100",
		"ok this user has CAP_NET_ADMIN, CAP_NET_RAW",
	)
	// Its own process knows the members; nobody has a proxy, so nobody takes the VIP.
	edge1.shares(t)
	var own []check.Line
	netns.Eventually(t, 20*time.Second, "the hosts are members", func() bool {
		own = edge1.doctor(t, "gossip", "vip", "privileges")
		return strings.Contains(fmt.Sprint(own), "h10-9-0-12 (10.9.0.12:7946) is a member, with our key")
	})
	says(t, own, "warn the proxy of this host cannot serve… -> headgate vip status", "ok the VIP process (PID … has CAP_NET_ADMIN")
}

func TestThePeerIsNotThere(t *testing.T) {
	edge1, _, _ := network(t)
	says(t, edge1.doctor(t, "gossip"), "fail 10.9.0.12 does not answer on 10.9.0.12:7946: …refused… -> systemctl start headgate-vip on 10.9.0.12")
}

func TestThePeerHasAnotherKeyOrCluster(t *testing.T) {
	edge1, edge2, _ := network(t)
	edge2.shares(t)
	edge1.configure(t, ", cluster: elsewhere", vip4)
	says(t, edge1.doctor(t, "gossip"), `fail 10.9.0.12 says that it is host "h10-9-0-12" of the cluster "headgate", and ours is "elsewhere" -> write the same gossip.cluster`)

	edge1.configure(t, "", vip4)
	key := filepath.Join(edge1.dir, "gossip.key")
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	says(t, edge1.doctor(t, "gossip"), "fail read the gossip secret: …no such file… -> headgate gossip genkey --out "+key)
	secret := gossip.NewSecret()
	if err := gossip.WriteSecretFile(key, secret); err != nil {
		t.Fatal(err)
	}
	says(t, edge1.doctor(t, "gossip"), "fail 10.9.0.12 says that it is host … with the key …, and ours is "+secret.ID()+" -> copy gossip.keyFile")
	if err := os.Chmod(key, 0o644); err != nil { //nolint:gosec // that is what is tested
		t.Fatal(err)
	}
	says(t, edge1.doctor(t, "gossip"), "fail …has mode 0644, so that others can read")
}

func TestSomebodyHasTheVIP(t *testing.T) {
	edge1, edge2, other := network(t)
	other.AddAddress(t, iface, netip.MustParsePrefix(vip4+"/32"))
	other.AddAddress(t, iface, netip.MustParsePrefix(vip6+"/128"))
	mac := other.HardwareAddr(t, iface).String()
	says(t, edge1.doctor(t, "vip"),
		"fail 10.9.0.100 is taken: the machine with the hardware address "+mac+" on eth0 answers for it… -> take 10.9.0.100 off the machine",
		"fail 2001:db8:9::100 is taken: the machine with the hardware address "+mac)
	other.RemoveAddress(t, iface, netip.MustParsePrefix(vip4+"/32"))

	// A peer may have it, and is known by its hardware address.
	edge2.AddAddress(t, iface, netip.MustParsePrefix(vip4+"/32"))
	says(t, edge1.doctor(t, "vip"), "ok 10.9.0.100 is at 10.9.0.12 (hardware address "+edge2.HardwareAddr(t, iface).String()+")")
	edge2.RemoveAddress(t, iface, netip.MustParsePrefix(vip4+"/32"))

	// Or this host, whose process is dead.
	edge1.AddAddress(t, iface, netip.MustParsePrefix(vip4+"/32"))
	says(t, edge1.doctor(t, "vip"), "fail 10.9.0.100 is on eth0 of this host, and no VIP process runs here… -> headgate vip cleanup, or ip address del 10.9.0.100/32 dev eth0")
}

func TestVIPsThatCannotWork(t *testing.T) {
	edge1, _, _ := network(t)
	edge1.configure(t, "", "192.0.2.10", "198.51.100.7/24")
	says(t, edge1.doctor(t, "vip"),
		"fail 192.0.2.10 is in no network of eth0 (IPv4: 10.9.0.0/24)… -> write an address of the interface's network",
		"ok 198.51.100.7/24 brings its network to eth0")
	edge1.Down(t, iface)
	says(t, edge1.doctor(t, "vip"), "fail the interface eth0 is down -> ip link set eth0 up")
}

func TestTheWayCarriesNoLargePackets(t *testing.T) {
	edge1, edge2, _ := network(t)
	if err := edge2.Netlink().LinkSetMTU(edge2.Link(t, iface), 1380); err != nil {
		t.Fatal(err)
	}
	// The kernel leaves room for the tag of a VLAN: 4 bytes.
	says(t, edge1.doctor(t, "mtu"), "fail packets of 1500 bytes do not reach 10.9.0.12; the largest that do have 1384 -> write gossip.mtu: 1384 on all hosts")
}
