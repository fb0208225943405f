package netns

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Fault is what happens to the frames that go one way, from one interface to another. The zero value
// is a good cable.
type Fault struct {
	Cut       bool          // nothing passes
	Loss      float64       // share of the frames that is lost, 0 to 1
	Duplicate float64       // share of the frames that arrives twice, 0 to 1
	Delay     time.Duration // each frame is this late; frames keep their order
}

// Switch is an Ethernet in the test's own process, made of TAP interfaces. It floods every frame to all
// interfaces, and does to each direction what [Switch.Set] says. Slower than a [LAN]: for faults only.
type Switch struct {
	mu     sync.Mutex // guards what follows
	ports  map[End]*port
	faults map[direction]Fault
	dice   *rand.Rand
	wait   sync.WaitGroup
}

type direction struct{ from, to End }

// NewSwitch makes an empty switch; seed makes its losses the same in each run.
func NewSwitch(t testing.TB, seed uint64) *Switch {
	t.Helper()
	Require(t)
	s := &Switch{ports: map[End]*port{}, faults: map[direction]Fault{}, dice: rand.New(rand.NewPCG(seed, seed))}
	t.Cleanup(s.close)
	return s
}

// Join gives the namespace a TAP interface on the switch, up and with the addresses.
func (s *Switch) Join(t testing.TB, n *Namespace, iface string, addresses ...netip.Prefix) {
	t.Helper()
	var tap *os.File
	err := n.Do(func() (err error) {
		tap, err = openTAP(iface)
		return err
	})
	if err != nil {
		t.Fatalf("TAP interface %s: %v", iface, err)
	}
	n.Up(t, iface)
	for _, a := range addresses {
		n.AddAddress(t, iface, a)
	}
	p := &port{tap: tap, wake: make(chan struct{}, 1), closed: make(chan struct{})}
	end := End{n, iface}
	s.mu.Lock()
	s.ports[end] = p
	s.mu.Unlock()
	s.wait.Go(func() { s.read(end, p) })
	s.wait.Go(p.write)
}

// Set changes what happens to frames from one interface to another, that way alone.
func (s *Switch) Set(from, to End, f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[direction{from, to}] = f
}

func openTAP(iface string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(iface)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	// Only now: the poller takes no tun file that has no interface yet.
	return os.NewFile(uintptr(fd), "tap"), nil
}

// frameBytes holds any frame of a TAP interface, offloads included.
const frameBytes = 1 << 16

func (s *Switch) read(from End, p *port) {
	buffer := make([]byte, frameBytes)
	for {
		length, err := p.tap.Read(buffer)
		if errors.Is(err, os.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, unix.EBADFD) {
			return
		}
		if err != nil {
			continue // the interface is down for now
		}
		s.forward(from, append([]byte(nil), buffer[:length]...))
	}
}

func (s *Switch) forward(from End, frame []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for to, p := range s.ports {
		if to == from {
			continue
		}
		f := s.faults[direction{from, to}]
		if f.Cut || s.dice.Float64() < f.Loss {
			continue
		}
		at := time.Now().Add(f.Delay)
		p.send(frame, at)
		if s.dice.Float64() < f.Duplicate {
			p.send(frame, at)
		}
	}
}

func (s *Switch) close() {
	s.mu.Lock()
	for _, p := range s.ports {
		close(p.closed)
		_ = p.tap.Close()
	}
	s.mu.Unlock()
	s.wait.Wait()
}

// port is one interface and the frames that wait for it.
type port struct {
	tap    *os.File
	wake   chan struct{} // capacity 1: one token is enough to look again
	closed chan struct{}

	mu    sync.Mutex // guards queue and count
	queue frames
	count uint64
}

func (p *port) send(frame []byte, at time.Time) {
	p.mu.Lock()
	p.count++
	heap.Push(&p.queue, late{at: at, number: p.count, frame: frame})
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *port) write() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-p.closed:
			return
		case <-p.wake:
		case <-timer.C:
		}
		for frame, wait := p.due(); ; frame, wait = p.due() {
			if frame == nil {
				timer.Reset(wait)
				break
			}
			// A frame for an interface that is down or gone is a lost frame.
			_, _ = p.tap.Write(frame)
		}
	}
}

// due takes the next frame whose time has come; without one it says how long to wait.
func (p *port) due() ([]byte, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		return nil, time.Hour
	}
	if wait := time.Until(p.queue[0].at); wait > 0 {
		return nil, wait
	}
	return heap.Pop(&p.queue).(late).frame, 0
}

type late struct {
	at     time.Time
	number uint64 // keeps the order of frames of one instant
	frame  []byte
}

// frames is a heap by time.
type frames []late

func (f frames) Len() int { return len(f) }
func (f frames) Less(i, j int) bool {
	if f[i].at.Equal(f[j].at) {
		return f[i].number < f[j].number
	}
	return f[i].at.Before(f[j].at)
}
func (f frames) Swap(i, j int) { f[i], f[j] = f[j], f[i] }

// Push is heap.Interface's.
func (f *frames) Push(x any) { *f = append(*f, x.(late)) }

// Pop is heap.Interface's.
func (f *frames) Pop() any {
	old := *f
	last := old[len(old)-1]
	*f = old[:len(old)-1]
	return last
}
