package hostile

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// oddities make requests and answers that no parser was written for. Its randomness is that of a seed.
type oddities struct{ *rand.Rand }

func (o oddities) of(list ...string) string { return list[o.IntN(len(list))] }

// once tells true in one of n cases.
func (o oddities) once(n int) bool { return o.IntN(n) == 0 }

func (o oddities) bytes(most int) string {
	b := make([]byte, o.IntN(most))
	for i := range b {
		b[i] = byte(o.IntN(256))
	}
	return string(b)
}

func (o oddities) number() string {
	return o.of("0", "1", "4", "00000000004", "1000", "65536", "1048577", "2147483648", "9223372036854775807", "9223372036854775808",
		"18446744073709551616", "-1", "+1", "0x10", " 4", "4 ", "4;x=y", "4\t", "", "1e3", "4,4", "٤")
}

func (o oddities) chunked() string {
	var b strings.Builder
	for range o.IntN(5) {
		data := o.bytes(200)
		size := fmt.Sprintf("%x", len(data))
		if o.once(4) {
			size = o.of("ffffffffffffffff", "7fffffffffffffff", "8000000000000000", "fffffffff", "-1", "0x4", "g", "", "00000000000000000004", size+";"+o.bytes(50), strings.Repeat("0", 5000)+size)
		}
		b.WriteString(size + o.of("\r\n", "\r\n", "\r\n", "\n", "\r", " \r\n") + data + o.of("\r\n", "\r\n", "\r\n", "\n", "", "x"))
	}
	return b.String() + o.of("0\r\n\r\n", "0\r\n\r\n", "0\r\nX: y\r\n\r\n", "0\r\nContent-Length: 5\r\n\r\n", "0\r\n", "0", "")
}

func (o oddities) header() string {
	switch o.IntN(22) {
	case 0:
		return "Content-Length: " + o.number() + "\r\n"
	case 1:
		return "Transfer-Encoding: " + o.of("chunked", "chunked", "gzip, chunked", "chunked, chunked", " chunked", "Chunked", "identity", "x", "\x0bchunked") + "\r\n"
	case 2:
		return "Connection: " + o.of("close", "keep-alive", "upgrade", "Upgrade, close", "Host", "Content-Length", "\xff") + "\r\n"
	case 3:
		return "Upgrade: " + o.of("websocket", "h2c", "TLS/1.2", "websocket, h2c", "\x00") + "\r\n"
	case 4:
		return "Expect: " + o.of("100-continue", "100-Continue", "200-ok", "") + "\r\n"
	case 5:
		return "Host: " + o.of("two.test", "one.test:80", "nobody.test", "", "[::1]", "*.wild.test", o.bytes(20)) + "\r\n"
	case 6:
		return "Range: bytes=" + o.of("0-", "-1", "0-0,1-1", strings.Repeat("0-,", 500), "9223372036854775808-", "x") + "\r\n"
	case 7:
		return "Cookie: " + o.bytes(300) + "\r\n"
	case 8:
		return "X-Forwarded-" + o.of("For", "Host", "Proto", "Port") + ": " + o.bytes(60) + "\r\n"
	case 9:
		return "X: " + strings.Repeat("x", o.IntN(70_000)) + "\r\n"
	case 10:
		return o.bytes(40) + ": " + o.bytes(40) + "\r\n"
	case 11:
		return o.of(" folded\r\n", "\tfolded\r\n", "X: a\n b\r\n", "no colon\r\n", ": no name\r\n", "X : y\r\n", "X:\r\n", "\x00: \x00\r\n")
	case 12:
		return strings.Repeat("Y: z\r\n", o.IntN(2000))
	case 13:
		return "TE: " + o.of("trailers", "deflate;q=0.5", "chunked") + "\r\n"
	case 14:
		return "Content-Type: " + o.of("application/grpc", "multipart/form-data; boundary="+o.bytes(30), o.bytes(30)) + "\r\n"
	case 15:
		return "X-Headgate-Explain: 1\r\nX-Accel-Redirect: /admin\r\n"
	case 16:
		return "If-None-Match: " + o.bytes(30) + "\r\nIf-Modified-Since: " + o.of("0", "Thu, 01 Jan 1970 00:00:00 GMT", o.bytes(20)) + "\r\n"
	}
	return "A-" + strconv.Itoa(o.IntN(9)) + ": b\r\n"
}

// request is one request, or what somebody took for it.
func (o oddities) request() string {
	if o.once(30) {
		return o.bytes(400)
	}
	var b strings.Builder
	method := o.of("GET", "GET", "POST", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "CONNECT", "TRACE", "PRI", "get", "", "X-\xff", strings.Repeat("M", 40))
	target := o.of("/", "/", "/x", "/admin", "//admin", "/../x", "/%2e%2e/x", "/%00", "/a%2fb?x", "http://two.test/only", "*", "", "/"+o.bytes(30), "/"+strings.Repeat("a", o.IntN(9000)))
	version := o.of("HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.2", "HTTP/11", "http/1.1", "")
	b.WriteString(method + o.of(" ", " ", " ", "  ", "\t") + target + o.of(" ", " ", " ", "  ", "") + version + o.of("\r\n", "\r\n", "\r\n", "\n"))
	if !o.once(10) {
		b.WriteString("Host: " + o.of("one.test", "odd.test", "odd.test", "grpc.test", "grpcs.test", "https.test", "fcgi.test", "two.test", "tls.test", "a.wild.test", "regex.test", "query.test") + "\r\n")
	}
	for range o.IntN(6) {
		b.WriteString(o.header())
	}
	text := b.String() + o.of("\r\n", "\r\n", "\r\n", "\r\n", "\n", "")
	switch o.IntN(4) {
	case 0:
		return text + o.chunked()
	case 1:
		return text + o.bytes(2000)
	}
	return text
}

// answer is what a peer of no good will sends.
func (o oddities) answer() string {
	if o.once(20) {
		return o.bytes(500)
	}
	status := o.of("200 OK", "200 OK", "204 No", "304 Not", "404 X", "500 X", "000 X", "099 X", "100 Continue", "101 Switching Protocols", "103 Early Hints", "999 X", "20 X", "2000 X", "-1 X", "")
	text := o.of("HTTP/1.1 ", "HTTP/1.1 ", "HTTP/1.1 ", "HTTP/1.0 ", "HTTP/2.0 ", "HTTP/0.9 ", "ICY ", "\r\nHTTP/1.1 ") + status + o.of("\r\n", "\r\n", "\n")
	for range o.IntN(5) {
		switch o.IntN(8) {
		case 0:
			text += "Content-Length: " + o.number() + "\r\n"
		case 1:
			text += "Transfer-Encoding: " + o.of("chunked", "gzip, chunked", "identity") + "\r\n"
		case 2:
			text += o.of("X-Accel-Redirect: /admin\r\n", "X-Accel-Buffering: yes\r\n", "X-Accel-Limit-Rate: 1000000\r\n", "X-Accel-Expires: @0\r\n", "X-Accel-Charset: \xff\r\n")
		case 3:
			text += "Set-Cookie: " + o.bytes(200) + "\r\n"
		case 4:
			text += o.of("Connection: upgrade\r\nUpgrade: websocket\r\n", "Connection: close\r\n", "Trailer: X\r\n", "Location: //evil\r\nRefresh: 0; url=x\r\n")
		case 5:
			text += "X: " + strings.Repeat("x", o.IntN(70_000)) + "\r\n"
		default:
			text += o.header()
		}
	}
	text += o.of("\r\n", "\r\n", "\r\n", "\n", "")
	return text + o.of(o.chunked(), o.bytes(3000), "body", "")
}

// oddPeer answers whatever comes with oddities: before it has read, in the middle of it, or never.
func oddPeer(t *testing.T, seed uint64) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	ended := make(chan struct{})
	t.Cleanup(func() {
		close(ended)
		_ = listener.Close()
		open.Wait()
	})
	open.Go(func() {
		for n := uint64(0); ; n++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				o := oddities{rand.New(rand.NewPCG(seed, n))}
				_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
				defer func() { _ = conn.Close() }()
				o.serve(conn)
			})
		}
	})
	return listener.Addr().String()
}

func (o oddities) serve(conn net.Conn) {
	r := bufio.NewReader(conn)
	for {
		if !o.once(5) { // else it answers early
			if _, err := r.ReadString('\n'); err != nil {
				return
			}
		}
		if o.once(12) {
			_ = conn.(*net.TCPConn).SetLinger(0)
			return
		}
		if _, err := io.WriteString(conn, o.answer()); err != nil {
			return
		}
		switch o.IntN(4) {
		case 0:
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, r) // and reads on
			return
		case 1:
			return
		}
		for r.Buffered() > 0 {
			_, _ = r.Discard(r.Buffered())
		}
	}
}

// disturb is one connection of a client of no good will.
func (o oddities) disturb(g *gateway) error {
	address := g.http
	secure := o.once(3)
	if secure {
		address = g.https
	}
	raw, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return err
	}
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(time.Now().Add(300 * time.Millisecond))
	conn := raw
	protocol := ""
	if secure {
		if o.once(8) {
			_, _ = io.WriteString(raw, "\x16\x03\x01"+o.bytes(600))
			return nil
		}
		client := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, ServerName: o.of("one.test", "tls.test", "nobody.test"), NextProtos: []string{o.of("h2", "http/1.1")}}) //nolint:gosec // the certificate does not matter here
		if client.Handshake() != nil {
			return nil // a machine that is busy; whether the gateway is well is asked elsewhere
		}
		conn, protocol = client, client.ConnectionState().NegotiatedProtocol
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	if protocol == "h2" {
		o.frames(conn)
		return nil
	}
	text := ""
	for range 1 + o.IntN(4) {
		text += o.request()
	}
	for len(text) > 0 {
		n := 1 + o.IntN(len(text))
		if _, err := io.WriteString(conn, text[:n]); err != nil {
			return nil // the gateway may close whenever it has seen enough
		}
		text = text[n:]
	}
	switch tcp := raw.(*net.TCPConn); o.IntN(3) {
	case 0:
		_ = tcp.CloseWrite()
		_, _ = io.Copy(io.Discard, raw)
	case 1:
		_ = tcp.SetLinger(0)
	}
	return nil
}

// frames sends frames of HTTP/2 in any order, some of which are whole requests.
func (o oddities) frames(conn net.Conn) {
	c := &h2{conn: conn, framer: http2.NewFramer(conn, nil)}
	c.framer.AllowIllegalWrites = true
	c.encode()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return
	}
	id := uint32(1)
	for range 2 + o.IntN(40) {
		var err error
		switch o.IntN(9) {
		case 0, 1, 2:
			err = c.headers(id, pseudo(o.of("GET", "POST", "CONNECT", ""), o.of("one.test", "odd.test", "grpc.test", "fcgi.test", "two.test", o.bytes(20)), o.of("/", "/x", "*", "", o.bytes(30)), field{o.of("x", "content-length", "te", "cookie", "upgrade", "expect", o.bytes(10)), o.of("100-continue", o.number(), o.bytes(100))}), o.once(2))
		case 3:
			err = c.framer.WriteData(id, o.once(2), []byte(o.bytes(2000)))
		case 4:
			err = c.framer.WriteRSTStream(id, http2.ErrCode(o.IntN(20)))
		case 5:
			err = c.framer.WriteWindowUpdate(id*uint32(o.IntN(2)), o.Uint32())
		case 6:
			err = c.framer.WriteSettings(http2.Setting{ID: http2.SettingID(o.IntN(12)), Val: o.Uint32()})
		default:
			err = c.framer.WriteRawFrame(http2.FrameType(o.IntN(12)), http2.Flags(o.IntN(256)), o.Uint32N(8), []byte(o.bytes(100))) //nolint:gosec // at most 255
		}
		if err != nil {
			return
		}
		id += 2 * o.Uint32N(2)
	}
}

// TestOddities: clients and a peer at random, which the gateway speaks each of its protocols to, for ten seconds or HEADGATE_HOSTILE,
// and all the time others are served as if nobody else was there. Whatever came, no worker ended, none of our Lua complained (stop looks for that), and nothing of it
// is left over: neither connections nor requests in flight. HEADGATE_HOSTILE_SEED repeats a run, as far as clocks allow.
func TestOddities(t *testing.T) {
	length, seed := 10*time.Second, uint64(time.Now().UnixNano())
	var err error
	if text := os.Getenv("HEADGATE_HOSTILE"); text != "" {
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("HEADGATE_HOSTILE: %v; write a duration such as 5m", err)
		}
	}
	if text := os.Getenv("HEADGATE_HOSTILE_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("HEADGATE_HOSTILE_SEED: %v; write the number that a run has printed", err)
		}
	}
	t.Logf("HEADGATE_HOSTILE_SEED=%d", seed)
	g := start(t, "", fmt.Sprintf("HEADGATE_UPSTREAMS_STRICTANSWERS=%t", seed%2 == 0))
	site(t, g)
	// The backends of the site are strict: what a proxy must not send them is a failure.
	odd := ingress("odd", "odd.test", prefix("/", "odd")) +
		serviceWith("odd", []string{"max-requests-per-peer: 30", "queue: 10", "eject: off"}, oddPeer(t, seed))
	for _, protocol := range []string{"GRPC", "GRPCS", "HTTPS", "FCGI"} {
		name := strings.ToLower(protocol)
		odd += ingress(name, name+".test", prefix("/", "odd"), annotated("backend-protocol", protocol, "ssl-redirect", "false"))
	}
	g.write("odd.yaml", odd)
	g.settle()
	workers := g.children()
	l := g.load("sentinel.test")
	end := time.Now().Add(length)
	var disturbing sync.WaitGroup
	for i := range uint64(4) {
		disturbing.Go(func() {
			for n := uint64(0); time.Now().Before(end); n++ {
				o := oddities{rand.New(rand.NewPCG(seed, n<<8|i))}
				if err := o.disturb(g); err != nil {
					t.Errorf("seed %d, client %d, connection %d: %v", seed, i, n, err)
					return
				}
			}
		})
	}
	disturbing.Wait()
	l.stop()
	if now := g.children(); !slices.Equal(now, workers) {
		t.Errorf("the workers were %v and are %v", workers, now)
	}
	g.await("nothing is in flight any more", func() bool {
		s, err := g.scrape()
		return err == nil && s.sum("headgate_proxy_upstream_requests", `upstream="default/odd/80"`) == 0 && s["headgate_proxy_websockets"] == 0
	})
	for range 20 {
		g.wants("two.test", "/only", "200 two")
	}
	g.stillWell(t, "one.test", "200 one")
}
