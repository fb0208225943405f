package gossip

import (
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// transport is memberlist's own, with a look at what comes in: packets and streams of another cluster are told with
// their sender, and our control streams are taken out.
type transport struct {
	*memberlist.NetTransport
	label   string
	note    func(Kind, string, string)
	serve   func(net.Conn)
	packets chan *memberlist.Packet
	streams chan net.Conn
	slots   chan struct{} // bounds the streams that are looked at, hence more than 1
	done    chan struct{}
	closing sync.Once
	running sync.WaitGroup
}

const (
	maxLooks    = 32
	lookTimeout = time.Second
)

func newTransport(cfg Config, logger *log.Logger) (*transport, error) { //nolint:forbidigo // the type that memberlist asks for
	inner, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
		BindAddrs: []string{cfg.Bind.Addr().String()}, BindPort: int(cfg.Bind.Port()), Logger: logger,
	})
	if err != nil {
		return nil, bindError(cfg, err)
	}
	return &transport{
		NetTransport: inner, label: cfg.Cluster,
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
		slots: make(chan struct{}, maxLooks), done: make(chan struct{}),
	}, nil
}

// bindError says what to do; memberlist hands on the words of the kernel only.
func bindError(cfg Config, err error) error {
	err = fmt.Errorf("listen for gossip on %s (TCP and UDP): %w", cfg.Bind, err)
	switch {
	case strings.Contains(err.Error(), "address already in use"):
		return fmt.Errorf("%w: another process has the port; stop it, or write another port on all hosts", err)
	case strings.Contains(err.Error(), "cannot assign requested address"):
		return fmt.Errorf("%w: this host does not have the address", err)
	}
	return err
}

// start begins to pass on what comes in.
func (t *transport) start(note func(Kind, string, string), serve func(net.Conn)) {
	t.note, t.serve = note, serve
	t.running.Go(t.passPackets)
	t.running.Go(t.passStreams)
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements memberlist.Transport. What comes in is passed on or dropped until the listeners have ended, so
// that they never wait.
func (t *transport) Shutdown() error {
	var err error
	t.closing.Do(func() {
		err = t.NetTransport.Shutdown()
		close(t.done)
		t.running.Wait()
	})
	return err
}

func (t *transport) passPackets() {
	for {
		select {
		case <-t.done:
			return
		case p := <-t.NetTransport.PacketCh():
			if !t.ours(p) {
				continue
			}
			select {
			case t.packets <- p:
			case <-t.done:
				return
			}
		}
	}
}

// ours looks at the label of a packet.
func (t *transport) ours(p *memberlist.Packet) bool {
	label := labelOf(p.Buf)
	if label == t.label {
		return true
	}
	t.note(OtherCluster, hostOf(p.From.String()), t.otherLabel(label))
	return false
}

func (t *transport) otherLabel(label string) string {
	if label == "" {
		return "something comes to the gossip port that bears no name of a cluster: its sender is no headgate"
	}
	return fmt.Sprintf("gossip of the cluster %q comes to this one, which is %q: write the same gossip.cluster, or keep the clusters apart", label, t.label)
}

func (t *transport) passStreams() {
	for {
		select {
		case <-t.done:
			return
		case conn := <-t.NetTransport.StreamCh():
			select {
			case t.slots <- struct{}{}:
				t.running.Go(func() {
					defer func() { <-t.slots }()
					t.look(conn)
				})
			default:
				_ = conn.Close() // a flood; an honest peer tries again
			}
		}
	}
}

// labelByte begins what memberlist sends under a label; the length and the label follow.
const labelByte = 244

// look reads the first bytes of a stream, and passes it to whom it belongs.
func (t *transport) look(conn net.Conn) {
	finished := make(chan struct{})
	defer close(finished)
	t.running.Go(func() {
		select {
		case <-t.done:
			_ = conn.Close() // unblocks look
		case <-finished:
		}
	})
	head, err := readHead(conn)
	if err != nil {
		_ = conn.Close() // a port scan, or a peer that went
		return
	}
	if string(head) == controlMagic {
		t.serve(conn)
		return
	}
	if label := labelOf(head); label != t.label {
		t.note(OtherCluster, hostOf(conn.RemoteAddr().String()), t.otherLabel(label))
		_ = conn.Close()
		return
	}
	select {
	case t.streams <- &looked{Conn: conn, head: head}:
	case <-t.done:
		_ = conn.Close()
	}
}

// readHead reads our magic, or a whole label.
func readHead(conn net.Conn) ([]byte, error) {
	if err := conn.SetReadDeadline(time.Now().Add(lookTimeout)); err != nil {
		return nil, fmt.Errorf("set a deadline: %w", err)
	}
	head := make([]byte, len(controlMagic))
	if _, err := io.ReadFull(conn, head); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if rest := 2 + int(head[1]) - len(head); head[0] == labelByte && rest > 0 {
		more := make([]byte, rest)
		if _, err := io.ReadFull(conn, more); err != nil {
			return nil, fmt.Errorf("read: %w", err)
		}
		head = append(head, more...)
	}
	return head, nil
}

// labelOf gives the label that the bytes begin with; "" where there is none, which is never ours.
func labelOf(head []byte) string {
	if len(head) < 2 || head[0] != labelByte || len(head) < 2+int(head[1]) {
		return ""
	}
	return string(head[2 : 2+int(head[1])])
}

// looked is a stream with the bytes that were read of it put back.
type looked struct {
	net.Conn
	head []byte
}

// Read implements net.Conn.
func (l *looked) Read(b []byte) (int, error) {
	if len(l.head) > 0 {
		n := copy(b, l.head)
		l.head = l.head[n:]
		return n, nil
	}
	return l.Conn.Read(b)
}
