package chaos

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// echoWebSocket agrees to the upgrade and sends back what comes. The frames of RFC 6455 are none of the gateway's
// business: after the 101 it carries bytes.
func echoWebSocket(w http.ResponseWriter, r *http.Request) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\n\r\n", r.Header.Get("Upgrade"))
	if err == nil {
		_, _ = io.Copy(conn, buffered)
	}
}

// webSocket is an open one.
type webSocket struct {
	conn   net.Conn
	answer *bufio.Reader
}

func openWebSocket(t *testing.T, address, host string) *webSocket {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", host)
	if err != nil {
		t.Fatal(err)
	}
	s := &webSocket{conn, bufio.NewReader(conn)}
	res, err := http.ReadResponse(s.answer, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the answer to the upgrade is %d", res.StatusCode)
	}
	return s
}

// says sends a line and wants it back.
func (s *webSocket) says(line string) error {
	if _, err := fmt.Fprintln(s.conn, line); err != nil {
		return err
	}
	got, err := s.answer.ReadString('\n')
	if err == nil && got != line+"\n" {
		err = fmt.Errorf("got %q back, want %q", got, line)
	}
	return err
}
