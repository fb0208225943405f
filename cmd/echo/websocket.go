package echo

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // RFC 6455 asks for SHA-1; it protects nothing
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// acceptGUID is the constant of RFC 6455 section 1.3.
const acceptGUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

// The opcodes of RFC 6455 section 5.2 that matter here.
const (
	opClose = 0x8
	opPing  = 0x9
	opPong  = 0xA
)

// maxFrame bounds the payload of one frame.
const maxFrame = 1 << 20

// idle is how long a WebSocket may be silent; longer than any test holds one open.
const idle = 10 * time.Minute

var errFrame = errors.New("a frame that no client may send")

func accept(key string) string {
	sum := sha1.Sum([]byte(key + acceptGUID)) //nolint:gosec // see the import
	return base64.StdEncoding.EncodeToString(sum[:])
}

func serveWebSocket(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Sec-WebSocket-Key")
	if key == "" {
		http.Error(w, "Sec-WebSocket-Key is missing", http.StatusBadRequest)
		return
	}
	conn, stream, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "this connection cannot be upgraded", http.StatusHTTPVersionNotSupported)
		return
	}
	defer func() { _ = conn.Close() }()
	head := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Echo-Name: " +
		w.Header().Get("X-Echo-Name") + "\r\nSec-WebSocket-Accept: " + accept(key) + "\r\n\r\n"
	if _, err := io.WriteString(conn, head); err != nil {
		return
	}
	_ = echoFrames(conn, stream.Reader)
}

// echoFrames sends every frame back until the peer closes, falls silent or breaks the protocol.
func echoFrames(conn net.Conn, from *bufio.Reader) error {
	for {
		if err := conn.SetDeadline(time.Now().Add(idle)); err != nil {
			return fmt.Errorf("set deadline: %w", err)
		}
		head, payload, err := readFrame(from)
		if err != nil {
			return err
		}
		switch head & 0x0F {
		case opPing:
			head = head&0xF0 | opPong
		case opPong:
			continue
		}
		if err := writeFrame(conn, head, payload); err != nil {
			return err
		}
		if head&0x0F == opClose {
			return nil
		}
	}
}

// readFrame reads a frame of a client and unmasks it (RFC 6455 sections 5.2, 5.3). The first result holds
// FIN and the opcode.
func readFrame(from io.Reader) (byte, []byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, nil, fmt.Errorf("read frame: %w", err)
	}
	if head[1]&0x80 == 0 {
		return 0, nil, fmt.Errorf("%w: it is not masked", errFrame)
	}
	size := uint64(head[1] & 0x7F)
	if extra := map[uint64]int{126: 2, 127: 8}[size]; extra > 0 {
		var long [8]byte
		if _, err := io.ReadFull(from, long[8-extra:]); err != nil {
			return 0, nil, fmt.Errorf("read length of frame: %w", err)
		}
		size = binary.BigEndian.Uint64(long[:])
	}
	if size > maxFrame {
		return 0, nil, fmt.Errorf("%w: %d bytes", errFrame, size)
	}
	masked := make([]byte, 4+size)
	if _, err := io.ReadFull(from, masked); err != nil {
		return 0, nil, fmt.Errorf("read payload of frame: %w", err)
	}
	payload := masked[4:]
	for i := range payload {
		payload[i] ^= masked[i%4]
	}
	return head[0], payload, nil
}

// writeFrame writes a frame of a server: never masked (RFC 6455 section 5.1).
func writeFrame(to io.Writer, head byte, payload []byte) error {
	frame := []byte{head}
	switch n := len(payload); {
	case n < 126:
		frame = append(frame, byte(n))
	case n <= 0xFFFF:
		frame = binary.BigEndian.AppendUint16(append(frame, 126), uint16(n)) //nolint:gosec // compared just before
	default:
		frame = binary.BigEndian.AppendUint64(append(frame, 127), uint64(n)) //nolint:gosec // a length is not negative
	}
	if _, err := to.Write(append(frame, payload...)); err != nil {
		return fmt.Errorf("write frame: %w", err)
	}
	return nil
}
