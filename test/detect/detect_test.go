package detect

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/packet"

	"headgate/test/netns"
	"headgate/vip/detect"
)

func TestHostsHearEachOtherOnTheLinkToo(t *testing.T) {
	_, hosts := lan(t, "a", "b", "c")
	startAll(t, hosts...)
	for _, h := range hosts {
		for _, p := range h.status(t).Status {
			if len(p.Detectors) != 3 || p.Detectors[2].Detector != "link:eth0" {
				t.Errorf("%s watches %s by %+v", h.Host, p.Host, p.Detectors)
			}
		}
		if bad := h.seen("crashed", "silent", "lost", "clash"); len(bad) > 0 {
			t.Errorf("%s was told %+v", h.Host, bad)
		}
	}
}

func TestAKilledProcessIsACrashAndItsSuccessorARestart(t *testing.T) {
	_, hosts := lan(t, "a", "b")
	startAll(t, hosts...)
	a, b := hosts[0], hosts[1]
	b.signal(t, syscall.SIGKILL)
	if l := a.next(t, "crashed", "b"); !strings.Contains(l.Reason, "its session ended, and the redial") || l.State != "of b" {
		t.Errorf("told %+v", l)
	}
	b.start(t)
	if l := a.next(t, "up", "b"); !l.Restarted {
		t.Errorf("told %+v, want a restart", l)
	}
	if p := a.status(t).Status[0]; p.Crashes != 1 || p.FalseCrashes != 0 || p.Silences != 0 {
		t.Errorf("counted %+v", p)
	}
	b.signal(t, syscall.SIGTERM)
	a.next(t, "left", "b")
}

func TestACutIsSilenceAndHealsByAProof(t *testing.T) {
	network, hosts := lan(t, "a", "b")
	startAll(t, hosts...)
	a, b := hosts[0], hosts[1]
	network.Cut(t, b.Namespace, "eth0")
	a.next(t, "silent", "b")
	b.next(t, "silent", "a")
	network.Heal(t, b.Namespace, "eth0")
	healed := time.Now()
	for _, h := range []*host{a, b} {
		l := h.next(t, "up", "")
		if l.Restarted || !strings.Contains(l.Reason, "its death is taken back") {
			t.Errorf("%s was told %+v", h.Host, l)
		}
		t.Logf("%s: taken back %v after the cable was healed", h.Host, l.At.Sub(healed).Round(time.Millisecond))
	}
	if p := a.status(t).Status[0]; p.Silences != 1 || p.FalseSilences != 1 || p.Crashes != 0 {
		t.Errorf("counted %+v", p)
	}
}

// A fifth of all frames is lost, a fifth comes twice, all come late: nobody is judged by it.
func TestLossDuplicatesAndDelayAreNoDeath(t *testing.T) {
	wires := netns.NewSwitch(t, 1)
	hosts := on(t, wires, "a", "b")
	startAll(t, hosts...)
	a, b := hosts[0], hosts[1]
	bad := netns.Fault{Loss: 0.2, Duplicate: 0.2, Delay: 5 * time.Millisecond}
	ends := []netns.End{{Namespace: a.Namespace, Interface: "eth0"}, {Namespace: b.Namespace, Interface: "eth0"}}
	wires.Set(ends[0], ends[1], bad)
	wires.Set(ends[1], ends[0], bad)
	begun := time.Now()
	netns.Eventually(t, patience, "three seconds pass, and duplicates are seen", func() bool {
		return a.status(t).Status[0].Detectors[2].Old > 3 && time.Since(begun) > 3*time.Second
	})
	for _, h := range hosts {
		if judged := h.seen("silent", "crashed", "left", "clash"); len(judged) > 0 {
			t.Errorf("%s was told %+v", h.Host, judged)
		}
	}
}

func TestACutOfOneWayIsSeenByTheOneThatHearsNothing(t *testing.T) {
	wires := netns.NewSwitch(t, 1)
	hosts := on(t, wires, "a", "b")
	startAll(t, hosts...)
	a, b := hosts[0], hosts[1]
	ends := []netns.End{{Namespace: a.Namespace, Interface: "eth0"}, {Namespace: b.Namespace, Interface: "eth0"}}
	wires.Set(ends[0], ends[1], netns.Fault{Cut: true})
	b.next(t, "silent", "a")
	a.next(t, "lost", "b") // the session needs both ways
	if judged := a.seen("silent", "crashed"); len(judged) > 0 {
		t.Errorf("a, which hears b, was told %+v", judged)
	}
	wires.Set(ends[0], ends[1], netns.Fault{})
	if l := b.next(t, "up", "a"); l.Restarted {
		t.Errorf("told %+v", l)
	}
}

// A process that was stopped for seconds must accuse nobody when it goes on, and neither must what it finds in its
// queues make it: the others lived all the time.
func TestAStoppedProcessAccusesNobodyAfterwards(t *testing.T) {
	_, hosts := lan(t, "a", "b", "c")
	startAll(t, hosts...)
	a, b, c := hosts[0], hosts[1], hosts[2]
	for range 2 {
		b.signal(t, syscall.SIGSTOP)
		a.next(t, "silent", "b")
		c.next(t, "silent", "b")
		begun := time.Now()
		netns.Eventually(t, patience, "three seconds pass", func() bool { return time.Since(begun) > 3*time.Second })
		stalls := uint64(0)
		b.signal(t, syscall.SIGCONT)
		a.next(t, "up", "b")
		c.next(t, "up", "b")
		netns.Eventually(t, patience, "the stall is counted, and a second passes", func() bool {
			stalls = b.status(t).Stalls
			return stalls > 0 && time.Since(begun) > 4*time.Second
		})
	}
	if bad := b.seen("crashed", "silent", "left", "clash"); len(bad) > 0 {
		t.Errorf("the stopped host accused others: %+v", bad)
	}
	for _, h := range []*host{a, c} {
		if bad := h.seen("crashed", "left", "clash"); len(bad) > 0 {
			t.Errorf("%s was told %+v", h.Host, bad)
		}
	}
}

func TestTheLossOfOneDetectorIsToldAndNotJudged(t *testing.T) {
	_, hosts := lan(t, "a", "b")
	a, b := hosts[0], hosts[1]
	b.Interfaces = []string{"eth9"} // b neither sends nor hears on the link
	a.start(t)
	b.start(t)
	if l := a.next(t, "lost", "b"); l.Detector != "link:eth0" || l.Reason != "never heard there" {
		t.Errorf("told %+v", l)
	}
	if bad := a.seen("silent", "crashed"); len(bad) > 0 {
		t.Errorf("judged: %+v", bad)
	}
	// The link alone is enough to know that b lives: its address goes, its frames stay.
	b.signal(t, syscall.SIGKILL)
	a.next(t, "crashed", "b")
	b.Interfaces = []string{"eth0"}
	b.start(t)
	a.next(t, "up", "b")
	netns.Eventually(t, patience, "the link is heard", func() bool { return a.status(t).Status[0].Detectors[2].Heartbeats > 3 })
	prefix := a.Addresses(t, "eth0")
	a.RemoveAddress(t, "eth0", prefix[0])
	lost := []detect.Via{a.next(t, "lost", "b").Detector, a.next(t, "lost", "b").Detector}
	slices.Sort(lost)
	if !slices.Equal(lost, []detect.Via{detect.Session, detect.UDP}) {
		t.Errorf("lost %v, want session and udp", lost)
	}
	if p := a.status(t).Status[0]; p.Word != "up" || p.Silences != 0 {
		t.Errorf("judged: %+v", p)
	}
	a.AddAddress(t, "eth0", prefix[0])
	a.next(t, "regained", "b")
	a.next(t, "regained", "b")
}

func TestAnInterfaceThatGoesDownIsRenamedOrCreatedAnewIsOpenedAgain(t *testing.T) {
	network, hosts := lan(t, "a", "b")
	startAll(t, hosts...)
	a := hosts[0]
	heard := func() uint64 { return a.status(t).Status[0].Detectors[2].Heartbeats }
	hears := func(what string) {
		t.Helper()
		before := heard()
		netns.Eventually(t, patience, "the link is heard after it was "+what, func() bool { return heard() > before+3 })
	}
	a.Down(t, "eth0")
	a.next(t, "silent", "b")
	a.Up(t, "eth0")
	hears("down")

	rename := func(from, to string) {
		t.Helper()
		l := a.Link(t, from)
		if err := a.Netlink().LinkSetDown(l); err != nil {
			t.Fatal(err)
		}
		if err := a.Netlink().LinkSetName(l, to); err != nil {
			t.Fatal(err)
		}
		a.Up(t, to)
	}
	rename("eth0", "other0")
	netns.Eventually(t, patience, "nothing is heard on a name that is gone", func() bool {
		before, begun := heard(), time.Now()
		for time.Since(begun) < 300*time.Millisecond {
			if heard() != before {
				return false
			}
		}
		return true
	})
	rename("other0", "eth0")
	hears("renamed")

	addresses := a.Addresses(t, "eth0")
	if err := a.Netlink().LinkDel(a.Link(t, "eth0")); err != nil {
		t.Fatal(err)
	}
	network.Join(t, a.Namespace, "eth0", addresses[0])
	hears("created anew")
}

// A third machine on the link that has no key: what it makes up and what it recorded is counted, never believed.
func TestForgedAndReplayedFramesOfAThirdMachine(t *testing.T) {
	network, hosts := lan(t, "a", "b")
	mallory := netns.New(t)
	network.Join(t, mallory, "eth0")
	startAll(t, hosts...)
	a, b := hosts[0], hosts[1]

	var conn *packet.Conn
	if err := mallory.Do(func() error {
		iface, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		conn, err = packet.Listen(iface, packet.Raw, 0x88B5, nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	mac := b.HardwareAddr(t, "eth0")
	recorded := record(t, conn, mac)
	b.signal(t, syscall.SIGKILL)
	a.next(t, "crashed", "b")
	before := a.status(t)
	send := func(frame []byte) {
		t.Helper()
		if _, err := conn.WriteTo(frame, &packet.Addr{HardwareAddr: frame[:6]}); err != nil {
			t.Fatal(err)
		}
	}
	forged := slices.Clone(recorded)
	forged[14+4+2+4+8+7]++ // a higher counter; the code no longer fits
	for range 20 {
		send(recorded)
		send(forged)
	}
	netns.Eventually(t, patience, "both are counted", func() bool {
		now := a.status(t)
		unproven := now.Status[0].Detectors[2].Unproven >= before.Status[0].Detectors[2].Unproven+20
		told := slices.ContainsFunc(now.Strangers, func(s detect.Stranger) bool {
			return s.Detector == "link:eth0" && s.From == mac.String() && s.Claims == "b" && s.Count >= 20
		})
		return unproven && told
	})
	b.start(t)
	a.next(t, "up", "b")
	fresh := a.status(t).Status[0]
	netns.Eventually(t, patience, "b is heard on every detector", func() bool {
		for i, d := range a.status(t).Status[0].Detectors {
			if d.Heartbeats < fresh.Detectors[i].Heartbeats+3 {
				return false
			}
		}
		return true
	})
	for range 20 {
		send(recorded) // of the earlier boot
	}
	b.signal(t, syscall.SIGKILL)
	a.next(t, "crashed", "b")
	if p := a.status(t).Status[0]; p.FalseCrashes+p.FalseSilences > 0 {
		t.Errorf("a recording brought a dead host back: %+v", p)
	}
}

func record(t *testing.T, conn *packet.Conn, from net.HardwareAddr) []byte {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for buffer := make([]byte, 1500); ; {
		n, _, err := conn.ReadFrom(buffer)
		if err != nil {
			t.Fatal(err)
		}
		if net.HardwareAddr(buffer[6:12]).String() == from.String() {
			return slices.Clone(buffer[:n])
		}
	}
}

func TestTheLinkHeartbeatNeedsNoAddress(t *testing.T) {
	_, hosts := lan(t, "a", "b")
	startAll(t, hosts...)
	a := hosts[0]
	for _, h := range hosts {
		for _, p := range h.Addresses(t, "eth0") {
			h.RemoveAddress(t, "eth0", p)
		}
	}
	a.next(t, "lost", "b")
	a.next(t, "lost", "b")
	if bad := a.seen("silent", "crashed"); len(bad) > 0 {
		t.Errorf("judged: %+v", bad)
	}
}

// BenchmarkCrashProof measures from kill -9 to the verdict in another process on the same machine.
func BenchmarkCrashProof(b *testing.B) {
	_, hosts := lan(b, "a", "b")
	for _, h := range hosts {
		h.Interval = 50 * time.Millisecond // as under a real-time scheduler
	}
	startAll(b, hosts...)
	var took []time.Duration
	for b.Loop() {
		b.StopTimer()
		victim := hosts[1]
		at := time.Now()
		victim.signal(b, syscall.SIGKILL)
		l := hosts[0].next(b, "crashed", "b")
		took = append(took, l.At.Sub(at))
		_ = victim.process.Wait()
		victim.start(b)
		hosts[0].next(b, "up", "b")
		settle := time.Now()
		netns.Eventually(b, patience, "the session is older than an interval", func() bool { return time.Since(settle) > 300*time.Millisecond })
		b.StartTimer()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[0].Microseconds())/1000, "min-ms")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "median-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
	b.Log(fmt.Sprint(took))
}
