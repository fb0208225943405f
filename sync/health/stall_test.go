package health

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"headgate/gateway/build"
	"headgate/gateway/model"
)

// impatient is a check of which one is always on its way, and of which one failure is enough.
func impatient(address string) []build.Check {
	return []build.Check{check("n/s/80", model.HealthCheck{
		Protocol: model.ProtocolHTTP, Interval: 300 * time.Millisecond, Timeout: 300 * time.Millisecond, Fall: 1, Rise: 1,
	}, address)}
}

// checkForever is the child of TestAStoppedProcessBlamesNobody: it prints a line when a verdict changes.
func checkForever(address string) {
	c := New(Config{})
	go func() { panic(c.Run(context.Background())) }()
	c.Want(impatient(address))
	for range c.Changed() {
		fmt.Println("down:", downs(c)) // to the parent
	}
}

// TestAStoppedProcessBlamesNobody stops a checker while a check is under way, for longer than its time-out. It must not
// take the peer for dead when it goes on; and it must still see that one really fails.
func TestAStoppedProcessBlamesNobody(t *testing.T) {
	var asked atomic.Int64
	var ill atomic.Bool
	answer := make(chan struct{}) // one for each request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		select {
		case <-answer:
		case <-r.Context().Done():
		}
		if ill.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	child := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // ourselves
	child.Env = append(os.Environ(), roleVariable+"=checker", "HEADGATE_TEST_HEALTH_ADDRESS="+server.Listener.Addr().String())
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Wait() }()
	defer func() { _ = child.Process.Kill() }()
	lines := make(chan string, 1)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()

	for range 3 {
		// A request is on its way; the process stops, and the answer comes when its time is long over.
		before := asked.Load()
		for asked.Load() == before {
			select {
			case answer <- struct{}{}: // those before are answered in time
			case line := <-lines:
				t.Fatalf("before any stop: %s", line)
			case <-time.After(time.Millisecond):
			}
		}
		stop(t, child.Process.Pid)
		<-time.After(time.Second) // more than the time-out passes for the one that is stopped
		if err := child.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		for seen := asked.Load(); asked.Load() < seen+3; { // it goes on asking, and says nothing
			select {
			case answer <- struct{}{}:
			case line := <-lines:
				t.Fatalf("after a stop: %s", line)
			case <-time.After(time.Millisecond):
			}
		}
	}

	ill.Store(true)
	for {
		select {
		case answer <- struct{}{}:
			continue
		case line := <-lines:
			if !strings.HasPrefix(line, "down: n/s/80 ") {
				t.Errorf("it said %q", line)
			}
		case <-time.After(30 * time.Second):
			t.Error("a peer that is ill is not seen")
		}
		break
	}
	_ = child.Process.Kill()
	for range lines { // until its end
		continue
	}
}

// stop stops a process and returns when it has stopped.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		if _, rest, _ := strings.Cut(string(text), ") "); strings.HasPrefix(rest, "T") {
			return
		}
	}
}

// BenchmarkTenThousandPeers measures what 10,000 peers cost that are checked every 10 s: one op is ten seconds, and
// "%core" is the CPU time of the checker's process in them. The peers are a process of their own.
func BenchmarkTenThousandPeers(b *testing.B) {
	for _, protocol := range []model.Protocol{model.ProtocolHTTP, model.ProtocolTCP} {
		b.Run(string(protocol), func(b *testing.B) { benchmarkPeers(b, 10_000, protocol) })
	}
}

func benchmarkPeers(b *testing.B, peers int, protocol model.Protocol) {
	child := exec.CommandContext(b.Context(), os.Args[0]) //nolint:gosec // ourselves
	child.Env = append(os.Environ(), roleVariable+"=server", "HEADGATE_TEST_HEALTH_ADDRESS=0.0.0.0:0")
	told, err := child.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := child.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = child.Wait() }()
	defer func() { _ = child.Process.Kill() }()
	line, err := bufio.NewReader(told).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, told) }()
	_, port, err := net.SplitHostPort(strings.TrimSpace(line))
	if err != nil {
		b.Fatal(err)
	}
	one := check("n/s/80", model.HealthCheck{Protocol: protocol, Interval: 10 * time.Second, Timeout: 5 * time.Second})
	for i := range peers { // all of 127.0.0.0/8 is this host
		a := netip.MustParseAddrPort(fmt.Sprintf("127.%d.%d.%d:%s", 1+i>>16, byte(i>>8), byte(i), port))
		one.Peers = append(one.Peers, model.Peer{Address: a, Weight: 1})
	}
	c := New(Config{})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	c.Want([]build.Check{one})
	for c.Stats().Unknown != 0 || c.Stats().Up == 0 {
		<-time.After(pulse)
	}
	b.ResetTimer()
	before, was := processTime(), c.Stats()
	for range b.N {
		<-time.After(10 * time.Second)
	}
	spent, now := processTime()-before, c.Stats()
	b.StopTimer()
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	window := time.Duration(b.N) * 10 * time.Second
	b.ReportMetric(100*spent.Seconds()/window.Seconds(), "%core")
	b.ReportMetric(float64(now.Succeeded-was.Succeeded)/window.Seconds(), "checks/s")
	if failed := now.Failed + now.Void; failed > 0 {
		b.ReportMetric(float64(failed), "failed")
	}
}
