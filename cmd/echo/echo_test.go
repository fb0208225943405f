package echo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAnswers(t *testing.T) {
	server := httptest.NewServer(Handler{Name: "web-1"})
	defer server.Close()
	for _, c := range []struct {
		path   string
		status int
		name   string
	}{
		{"/", 200, "web-1"},
		{"/a%2Fb//c?x=%20", 200, "web-1"},
		{"/status/418", 418, "web-1"},
		{"/status/204", 204, ""},
		{"/status/99", 400, ""},
		{"/status/x", 400, ""},
		{"/delay?ms=1", 200, "web-1"},
		{"/delay?ms=60001", 400, ""},
		{"/delay", 400, ""},
	} {
		t.Run(c.path, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("X-Test", "yes")
			request.Host = "shop.example"
			res, err := http.DefaultTransport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			if res.StatusCode != c.status {
				t.Errorf("status %d, want %d", res.StatusCode, c.status)
			}
			if c.name == "" {
				return
			}
			var got Answer
			if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
				t.Fatal(err)
			}
			if got.Name != c.name || got.URI != c.path || got.Host != "shop.example" || got.Method != "GET" || got.Header.Get("X-Test") != "yes" {
				t.Errorf("answer %+v", got)
			}
		})
	}
}

// TestAccept is the example of RFC 6455 section 1.3.
func TestAccept(t *testing.T) {
	if got, want := accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="; got != want {
		t.Errorf("accept = %s, want %s", got, want)
	}
}

// masked makes a client's frame with an all-zero masking key, so that the payload reads as it stands.
func masked(head byte, payload string) []byte {
	var frame bytes.Buffer
	if err := writeFrame(&frame, head, []byte(payload)); err != nil {
		panic(err)
	}
	b := frame.Bytes()
	b[1] |= 0x80
	at := len(b) - len(payload)
	return append(append(append([]byte{}, b[:at]...), 0, 0, 0, 0), payload...)
}

func TestWebSocket(t *testing.T) {
	server := httptest.NewServer(Handler{Name: "ws"})
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("response %v, %v", res, err)
	}
	for _, c := range []struct {
		send byte
		text string
		want byte
	}{
		{0x81, "hello", 0x81},
		{0x82, strings.Repeat("x", 300), 0x82},
		{0x82, strings.Repeat("y", 70000), 0x82},
		{0x89, "ping", 0x8A},
		{0x88, "", 0x88},
	} {
		if _, err := conn.Write(masked(c.send, c.text)); err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer
		_ = writeFrame(&want, c.want, []byte(c.text))
		got := make([]byte, want.Len())
		if _, err := io.ReadFull(reader, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want.Bytes()) {
			t.Errorf("frame %x of %d bytes came back wrong", c.send, len(c.text))
		}
	}
	if _, err := reader.ReadByte(); err != io.EOF {
		t.Errorf("after close: %v, want EOF", err)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(masked(0x81, "hello"))
	f.Add(masked(0x82, strings.Repeat("x", 300)))
	f.Add([]byte{0x81, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF})
	f.Fuzz(func(t *testing.T, data []byte) {
		_, payload, err := readFrame(bytes.NewReader(data))
		if err == nil && len(payload) > len(data) {
			t.Errorf("%d bytes gave a payload of %d", len(data), len(payload))
		}
	})
}
