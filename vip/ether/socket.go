// Package ether sends and receives the Ethernet frames of one interface through a packet socket that follows
// the interface's name: an interface that is deleted and made anew, or changes its hardware address, needs no
// new socket. It knows nothing of what the frames say. vip/arp and vip/ndp use it.
package ether

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// ErrNoInterface says that there is no interface of the name now.
var ErrNoInterface = errors.New("no such interface")

// ErrNotEthernet says that the interface has no Ethernet hardware address (a loopback, a tunnel).
var ErrNotEthernet = errors.New("the interface is no Ethernet")

// addressBytes is the length of an Ethernet hardware address.
const addressBytes = 6

// returnPeriod is how often an interface that went down or away is looked for while somebody receives on it.
// A packet socket tells when an interface goes and not when it comes.
const returnPeriod = 100 * time.Millisecond

// Socket is a packet socket on one interface. Its methods may be called from any goroutine; Receive from one.
type Socket struct {
	name     string
	protocol uint16 // in network byte order
	conn     *packet.Conn
	raw      syscall.RawConn
	closed   chan struct{}
	closing  sync.Once

	mu    sync.Mutex // guards bound, and that one binds at a time
	bound int        // index of the interface that the socket is on
}

// Open opens a socket on the interface for frames of the EtherType, in the network namespace of the calling
// thread; it needs CAP_NET_RAW. With EtherType 0 it sends only. The caller closes it. The error wraps
// [ErrNoInterface] or [ErrNotEthernet] where that is the reason.
func Open(iface string, etherType uint16) (*Socket, error) {
	found, err := net.InterfaceByName(iface)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w: %w", iface, ErrNoInterface, err)
	}
	if len(found.HardwareAddr) != addressBytes {
		return nil, fmt.Errorf("interface %s: %w: hardware address %q", iface, ErrNotEthernet, found.HardwareAddr)
	}
	conn, err := packet.Listen(found, packet.Raw, int(etherType), nil)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket on %s (it needs CAP_NET_RAW): %w", iface, err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Socket{
		name: iface, protocol: networkOrder(etherType), conn: conn, raw: raw,
		closed: make(chan struct{}), bound: found.Index,
	}, nil
}

// networkOrder is htons(3).
func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// Close closes the socket; a Receive that waits ends. Closing twice is no error.
func (s *Socket) Close() error {
	var err error
	s.closing.Do(func() {
		close(s.closed)
		err = s.conn.Close()
	})
	return err
}

// Send sends a whole frame, its header included. It does not wait for a full queue of the interface: the error
// then wraps ENOBUFS. While the interface is down it wraps ENETDOWN, while there is none [ErrNoInterface].
func (s *Socket) Send(frame []byte) error {
	if _, err := s.Index(); err != nil {
		return err
	}
	var sent error
	err := s.raw.Write(func(fd uintptr) bool {
		_, sent = unix.Write(int(fd), frame)
		return !errors.Is(sent, unix.EAGAIN)
	})
	if err = errors.Join(err, sent); err != nil {
		s.unbind()
		return fmt.Errorf("send a frame on %s: %w", s.name, err)
	}
	return nil
}

// Receive waits for a frame and returns its length. While the interface is down or away it waits for it to
// come back. The only error is that the socket was closed: net.ErrClosed.
func (s *Socket) Receive(buffer []byte) (int, error) {
	for {
		length, _, err := s.conn.ReadFrom(buffer)
		if err == nil {
			return length, nil
		}
		if !s.comeBack() {
			return 0, net.ErrClosed
		}
	}
}

// comeBack waits until there is an interface of the name and binds to it: the socket tells no second time that
// one is away. False if the socket was closed.
func (s *Socket) comeBack() bool {
	s.unbind()
	for s.pause() {
		if _, err := s.Index(); err == nil {
			return true
		}
	}
	return false
}

// unbind makes the next Index bind anew, even if the interface that came back has the old index.
func (s *Socket) unbind() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bound = 0
}

// pause waits a little; false if the socket was closed.
func (s *Socket) pause() bool {
	t := time.NewTimer(returnPeriod)
	defer t.Stop()
	select {
	case <-s.closed:
		return false
	case <-t.C:
		return true
	}
}

// Index is the interface's index now. The error wraps [ErrNoInterface] if there is none.
func (s *Socket) Index() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	index := 0
	err := s.control(func(fd int) (err error) {
		if index, err = indexOf(fd, s.name); err != nil || index == s.bound {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: s.protocol, Ifindex: index})
	})
	if errors.Is(err, unix.ENODEV) {
		// Whatever comes next is another one, even if it should get the same index.
		s.bound = 0
		return 0, fmt.Errorf("interface %s: %w", s.name, ErrNoInterface)
	}
	if err != nil {
		return 0, fmt.Errorf("interface %s: %w", s.name, err)
	}
	s.bound = index
	return index, nil
}

// HardwareAddr is the interface's address now.
func (s *Socket) HardwareAddr() (net.HardwareAddr, error) {
	if _, err := s.Index(); err != nil {
		return nil, err
	}
	var own net.HardwareAddr
	err := s.control(func(fd int) error {
		// The kernel fills the name of a packet socket with the interface's present address.
		name, err := unix.Getsockname(fd)
		if link, ok := name.(*unix.SockaddrLinklayer); ok && link.Halen == addressBytes {
			own = append(own, link.Addr[:addressBytes]...)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("hardware address of %s: %w", s.name, err)
	}
	if own == nil {
		return nil, fmt.Errorf("interface %s: %w", s.name, ErrNotEthernet)
	}
	return own, nil
}

func (s *Socket) control(f func(fd int) error) error {
	var inner error
	if err := s.raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func indexOf(fd int, name string) (int, error) {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request); err != nil {
		return 0, err
	}
	return int(request.Uint32()), nil
}
