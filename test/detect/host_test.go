// Package detect runs vip/detect in network namespaces, a process each, and does to them what happens to hosts.
package detect

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"headgate/test/netns"
	"headgate/vip/detect"
)

const (
	childFlag = "HEADGATE_TEST_DETECT"
	patience  = 20 * time.Second
	port      = 7947
)

func TestMain(m *testing.M) {
	if text := os.Getenv(childFlag); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// setup is what a child is told.
type setup struct {
	Host       string
	Key        []byte
	Listen     netip.AddrPort
	Interfaces []string
	Interval   time.Duration
	Misses     int
	Peers      []detect.Peer
}

// line is what a child says: an event, or the status when it was asked for.
type line struct {
	Host      string
	Kind      string
	Detector  detect.Via
	Restarted bool
	Reason    string
	State     string
	At        time.Time
	Status    []detect.PeerStatus
	Strangers []detect.Stranger
	Stalls    uint64
}

// child runs a detector until SIGTERM; it says what happens, and its status for each line that it reads.
func child(text string) error {
	var s setup
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	d, err := detect.New(detect.Config{Host: s.Host, Keys: [][]byte{s.Key}, Listen: s.Listen, Interfaces: s.Interfaces, Interval: s.Interval, Misses: s.Misses})
	if err != nil {
		return err
	}
	if err := d.SetPeers(s.Peers); err != nil {
		return err
	}
	if err := d.Publish([]byte("of " + s.Host)); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	out := make(chan line)
	go func() {
		for e := range d.Events() {
			out <- line{Host: e.Host, Kind: e.Kind.String(), Detector: e.Detector, Restarted: e.Restarted, Reason: e.Reason, State: string(e.State), At: e.At}
		}
	}()
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			out <- line{Kind: "status", Status: d.Status(), Strangers: d.Strangers(), Stalls: d.Stalls()}
		}
	}()
	go func() {
		encoder := json.NewEncoder(os.Stdout)
		for l := range out {
			_ = encoder.Encode(l)
		}
	}()
	return d.Run(ctx)
}

// host is a detector in a namespace of its own.
type host struct {
	*netns.Namespace
	setup
	process *exec.Cmd
	in      io.Writer
	*talk
}

// talk is what one process said.
type talk struct {
	wake  chan struct{} // capacity 1: there is a line
	taken int           // the test's own

	mu    sync.Mutex // guards lines
	lines []line
}

// network is a LAN, or a switch that harms frames.
type network interface {
	Join(t testing.TB, n *netns.Namespace, iface string, addresses ...netip.Prefix)
}

// lan makes hosts on one LAN; they are not started yet.
func lan(t testing.TB, names ...string) (*netns.LAN, []*host) {
	t.Helper()
	l := netns.NewLAN(t)
	return l, on(t, l, names...)
}

func on(t testing.TB, l network, names ...string) []*host {
	t.Helper()
	var hosts []*host
	for i, name := range names {
		h := &host{Namespace: netns.New(t), setup: setup{
			Host: name, Key: []byte(strings.Repeat("k", 32)), Interfaces: []string{"eth0"}, Interval: 100 * time.Millisecond, Misses: 3,
			Listen: netip.AddrPortFrom(address(i), port),
		}}
		l.Join(t, h.Namespace, "eth0", netip.PrefixFrom(address(i), 24))
		hosts = append(hosts, h)
	}
	for _, h := range hosts {
		for _, other := range hosts {
			if other != h {
				h.Peers = append(h.Peers, detect.Peer{Host: other.Host, Address: other.Listen})
			}
		}
	}
	return hosts
}

func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 1)}) }

// start runs the process; it is killed when the test ends.
func (h *host) start(t testing.TB) {
	t.Helper()
	text, err := json.Marshal(h.setup)
	if err != nil {
		t.Fatal(err)
	}
	h.talk = &talk{wake: make(chan struct{}, 1)}
	h.process = exec.Command("/proc/self/exe")
	h.process.Env = append(os.Environ(), childFlag+"="+string(text))
	h.process.Stderr = os.Stderr
	out, err := h.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if h.in, err = h.process.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := h.Start(h.process); err != nil {
		t.Fatal(err)
	}
	go h.read(out)
	process := h.process
	t.Cleanup(func() {
		_ = process.Process.Signal(syscall.SIGCONT)
		_ = process.Process.Kill()
		_ = process.Wait()
	})
}

func (k *talk) read(out io.Reader) {
	for decoder := json.NewDecoder(out); ; {
		var l line
		if decoder.Decode(&l) != nil {
			return
		}
		k.mu.Lock()
		k.lines = append(k.lines, l)
		k.mu.Unlock()
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// next gives the next line of the kind about the host ("": any); those before it are skipped.
func (h *host) next(t testing.TB, kind, about string) line {
	t.Helper()
	limit := time.After(patience)
	from := h.taken
	for {
		h.mu.Lock()
		for ; h.taken < len(h.lines); h.taken++ {
			if l := h.lines[h.taken]; l.Kind == kind && (about == "" || l.Host == about) {
				h.taken++
				h.mu.Unlock()
				return l
			}
		}
		h.mu.Unlock()
		select {
		case <-h.wake:
		case <-limit:
			h.mu.Lock()
			defer h.mu.Unlock()
			t.Fatalf("%s was not told %q of %q in %v; told %+v", h.Host, kind, about, patience, h.lines[from:])
		}
	}
}

// seen says whether a line of one of the kinds came since the beginning.
func (h *host) seen(kinds ...string) []line {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []line
	for _, l := range h.lines {
		for _, k := range kinds {
			if l.Kind == k {
				list = append(list, l)
			}
		}
	}
	return list
}

func (h *host) status(t testing.TB) line {
	t.Helper()
	if _, err := io.WriteString(h.in, "\n"); err != nil {
		t.Fatal(err)
	}
	return h.next(t, "status", "")
}

func (h *host) signal(t testing.TB, s os.Signal) {
	t.Helper()
	if err := h.process.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// startAll starts the hosts and waits until all hear each other on every detector.
func startAll(t testing.TB, hosts ...*host) {
	t.Helper()
	for _, h := range hosts {
		h.start(t)
	}
	for _, h := range hosts {
		netns.Eventually(t, patience, h.Host+" hears all on every detector", func() bool {
			for _, p := range h.status(t).Status {
				for _, d := range p.Detectors {
					if p.Verdict != 0 && p.Word != "up" || d.Heartbeats < 3 || d.Lost {
						return false
					}
				}
			}
			return true
		})
	}
}
