package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/test/netns"
)

// Announcements are the ARP announcements that come to a machine: for each address when it was heard first from whom.
type Announcements struct {
	mu    sync.Mutex // guards heard
	heard map[announced]time.Time
}

type announced struct {
	ip       netip.Addr
	hardware string
}

// bufferBytes holds the announcements of a thousand addresses.
const bufferBytes = 8 << 20

// Announced begins to listen on a machine; it ends with the test.
func Announced(t testing.TB, n *netns.Namespace) *Announcements {
	t.Helper()
	a := &Announcements{heard: map[announced]time.Time{}}
	fd := -1
	if err := n.Do(func() (err error) {
		fd, err = packetSocket()
		return err
	}); err != nil {
		t.Fatalf("listen to announcements: %v", err)
	}
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() { a.read(fd, stop) })
	t.Cleanup(func() {
		close(stop)
		reader.Wait()
		_ = unix.Close(fd)
	})
	return a
}

func packetSocket() (int, error) {
	var protocol [2]byte
	binary.BigEndian.PutUint16(protocol[:], unix.ETH_P_ARP)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(binary.NativeEndian.Uint16(protocol[:])))
	if err != nil {
		return 0, fmt.Errorf("packet socket: %w", err)
	}
	// The reader looks now and then whether it is to stop.
	timeout := unix.NsecToTimeval(int64(50 * time.Millisecond))
	return fd, errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferBytes),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
}

func (a *Announcements) read(fd int, stop <-chan struct{}) {
	var b [128]byte
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, _, err := unix.Recvfrom(fd, b[:], 0)
		if err != nil || n < arpBytes {
			continue
		}
		// RFC 826: the sender's addresses follow 14 bytes of Ethernet and 8 of ARP, then the target's.
		sender, ip, target := b[22:28], b[28:32], b[38:42]
		if [4]byte(ip) != [4]byte(target) {
			continue
		}
		key := announced{netip.AddrFrom4([4]byte(ip)), net.HardwareAddr(sender).String()}
		a.mu.Lock()
		if _, known := a.heard[key]; !known {
			a.heard[key] = time.Now()
		}
		a.mu.Unlock()
	}
}

const arpBytes = 42

// By lists when each address was first announced by a hardware address.
func (a *Announcements) By(hardware net.HardwareAddr) map[netip.Addr]time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := map[netip.Addr]time.Time{}
	for key, at := range a.heard {
		if key.hardware == hardware.String() {
			list[key.ip] = at
		}
	}
	return list
}
