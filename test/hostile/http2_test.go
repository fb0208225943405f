package hostile

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// field is one header field as it goes into a HEADERS frame: order, case and doubles as written.
type field [2]string

// stream is a request of HTTP/2 and all that may come of it, as with probe.
type stream struct {
	name   string
	fields []field
	body   string
	// trailer is sent behind the body in a HEADERS frame of its own.
	trailer []field
	wants   []string
	sni     string // "" is one.test
}

func pseudo(method, authority, target string, more ...field) []field {
	return append([]field{{":method", method}, {":scheme", "https"}, {":authority", authority}, {":path", target}}, more...)
}

func streams() []stream {
	const reset = "reset → "
	refused := []string{"400 → ", reset, "closed → "}
	inner := "GET /admin HTTP/1.1\r\nHost: one.test\r\n\r\n"
	large := field{"x", strings.Repeat("x", 64<<10)}
	return []stream{
		{name: "plain", fields: pseudo("GET", "one.test", "/x"), wants: []string{"200 one → one /x"}},
		{name: "no path", fields: []field{{":method", "GET"}, {":scheme", "https"}, {":authority", "one.test"}}, wants: refused},
		{name: "no method", fields: []field{{":path", "/"}, {":scheme", "https"}, {":authority", "one.test"}}, wants: refused},
		{name: "no scheme", fields: []field{{":method", "GET"}, {":path", "/"}, {":authority", "one.test"}}, wants: refused},
		{name: "no authority", fields: []field{{":method", "GET"}, {":scheme", "https"}, {":path", "/"}}, wants: refused},
		{name: "host in place of authority", fields: []field{{":method", "GET"}, {":scheme", "https"}, {":path", "/only"}, {"host", "two.test"}}, wants: []string{"200 two → two /only"}},
		{name: "nothing at all", fields: nil, wants: refused},
		{name: "authority twice", fields: pseudo("GET", "two.test", "/only", field{":authority", "one.test"}), wants: refused},
		{name: "path twice", fields: pseudo("GET", "one.test", "/", field{":path", "/admin"}), wants: refused},
		{name: "method twice", fields: pseudo("GET", "one.test", "/", field{":method", "POST"}), wants: refused},
		{name: "scheme twice", fields: pseudo("GET", "one.test", "/", field{":scheme", "http"}), wants: refused},
		{name: "an unknown pseudo-header", fields: pseudo("GET", "one.test", "/", field{":protocol", "websocket"}), wants: refused},
		{name: "a pseudo-header behind a header", fields: []field{{":method", "GET"}, {":scheme", "https"}, {":authority", "one.test"}, {"x", "y"}, {":path", "/"}}, wants: append(refused, "200 one → one /")},
		{name: "status in a request", fields: pseudo("GET", "one.test", "/", field{":status", "200"}), wants: refused},
		{name: "authority against host", fields: pseudo("GET", "two.test", "/only", field{"host", "one.test"}), wants: append(refused, "200 two → two /only")},
		{name: "host twice", fields: pseudo("GET", "two.test", "/only", field{"host", "two.test"}, field{"host", "one.test"}), wants: append(refused, "200 two → two /only")},
		{name: "authority with a path", fields: pseudo("GET", "two.test/admin", "/only"), wants: refused},
		{name: "authority with a user", fields: pseudo("GET", "one.test@two.test", "/only"), wants: append(refused, "404 → ")},
		{name: "authority with a line end", fields: pseudo("GET", "two.test\r\nX: y", "/only"), wants: refused},
		{name: "authority with a NUL", fields: pseudo("GET", "two.test\x00", "/only"), wants: refused},
		{name: "authority in capitals", fields: pseudo("GET", "TWO.test.:443", "/only"), wants: []string{"200 two → two /only"}},
		{name: "authority is empty", fields: pseudo("GET", "", "/only"), wants: refused},
		{name: "path is empty", fields: pseudo("GET", "one.test", ""), wants: refused},
		{name: "path is an asterisk", fields: pseudo("OPTIONS", "one.test", "*"), wants: refused},
		{name: "path is absolute", fields: pseudo("GET", "one.test", "https://two.test/only"), wants: refused},
		{name: "path without a slash", fields: pseudo("GET", "one.test", "admin"), wants: refused},
		{name: "path with a space", fields: pseudo("GET", "one.test", "/x HTTP/1.1\r\nHost: two.test"), wants: refused},
		{name: "path with a line end", fields: pseudo("GET", "one.test", "/x\r\n\r\n"+inner), wants: refused},
		{name: "path with a bare LF", fields: pseudo("GET", "one.test", "/x\nHost: two.test"), wants: refused},
		{name: "path with a NUL", fields: pseudo("GET", "one.test", "/admin\x00"), wants: refused},
		{name: "path with dots", fields: pseudo("GET", "one.test", "/x/%2e%2e/admin"), wants: []string{"200 admin → admin /x/%2e%2e/admin"}},
		{name: "path with two slashes", fields: pseudo("GET", "one.test", "//admin"), wants: []string{"200 admin → admin //admin"}},
		{name: "path with a fragment", fields: pseudo("GET", "one.test", "/x#/admin"), wants: append(refused, "200 one → one /x", "200 one → one /x#/admin")},
		{name: "method with a line end", fields: pseudo("GET / HTTP/1.1\r\nHost: one.test\r\n\r\nGET", "one.test", "/"), wants: refused},
		{name: "method with a space", fields: pseudo("GET /admin", "one.test", "/"), wants: refused},
		{name: "method in lower case", fields: pseudo("get", "one.test", "/"), wants: refused},
		{name: "method is empty", fields: pseudo("", "one.test", "/"), wants: refused},
		{name: "CONNECT", fields: []field{{":method", "CONNECT"}, {":authority", "one.test:443"}}, wants: append(refused, "405 → ")},
		{name: "CONNECT with a path", fields: pseudo("CONNECT", "one.test", "/admin"), wants: append(refused, "405 → ")},
		{name: "extended CONNECT", fields: pseudo("CONNECT", "one.test", "/ws", field{":protocol", "websocket"}), wants: append(refused, "405 → ")},
		{name: "TRACE", fields: pseudo("TRACE", "one.test", "/"), wants: append(refused, "405 → ")},
		{name: "scheme http", fields: []field{{":method", "GET"}, {":scheme", "http"}, {":authority", "tls.test"}, {":path", "/x"}}, wants: append(refused, "200 tls → tls /x")},
		{name: "scheme with a line end", fields: []field{{":method", "GET"}, {":scheme", "https://one.test/admin\r\nX: y"}, {":authority", "one.test"}, {":path", "/x"}}, wants: refused},
		{name: "scheme is a URL", fields: []field{{":method", "GET"}, {":scheme", "http://one.test/admin?"}, {":authority", "one.test"}, {":path", "/x"}}, wants: append(refused, "200 one → one /x")},
		{name: "a name in capitals", fields: pseudo("GET", "one.test", "/", field{"X-Big", "y"}), wants: append(refused, "200 one → one /")},
		{name: "a name with a colon", fields: pseudo("GET", "one.test", "/", field{"transfer-encoding: chunked\r\nx", "y"}), wants: append(refused, "200 one → one /")},
		{name: "a name with a space", fields: pseudo("GET", "one.test", "/", field{"x y", "z"}), wants: append(refused, "200 one → one /")},
		{name: "a name that is empty", fields: pseudo("GET", "one.test", "/", field{"", "z"}), wants: append(refused, "200 one → one /")},
		{name: "a value with a line end", fields: pseudo("GET", "one.test", "/", field{"x", "y\r\nTransfer-Encoding: chunked"}), wants: refused},
		{name: "a value with a bare CR", fields: pseudo("GET", "one.test", "/", field{"x", "y\rz"}), wants: refused},
		{name: "a value with a NUL", fields: pseudo("GET", "one.test", "/", field{"x", "y\x00z"}), wants: refused},
		{name: "transfer-encoding", fields: pseudo("POST", "one.test", "/", field{"transfer-encoding", "chunked"}), body: "0\r\n\r\n" + inner, wants: append(refused, "200 one → one /")},
		{name: "transfer-encoding and content-length", fields: pseudo("POST", "one.test", "/", field{"content-length", "5"}, field{"transfer-encoding", "chunked"}), body: "0\r\n\r\n", wants: append(refused, "200 one → one /")},
		{name: "content-length too short", fields: pseudo("POST", "one.test", "/", field{"content-length", "0"}), body: inner, wants: refused},
		{name: "content-length too long", fields: pseudo("POST", "one.test", "/", field{"content-length", "5000"}), body: inner, wants: refused},
		{name: "content-length twice", fields: pseudo("POST", "one.test", "/", field{"content-length", "3"}, field{"content-length", "43"}), body: "abc", wants: refused},
		{name: "content-length without a body", fields: pseudo("GET", "one.test", "/", field{"content-length", "43"}), wants: refused},
		{name: "a body of unknown length", fields: pseudo("POST", "one.test", "/x"), body: inner, wants: []string{"200 one → one /x"}},
		{name: "a body for nobody", fields: pseudo("POST", "nobody.test", "/x"), body: inner, wants: []string{"404 → "}},
		{name: "a trailer", fields: pseudo("POST", "one.test", "/x"), body: "abc", trailer: []field{{"x", "y"}}, wants: append(refused, "200 one → one /x")},
		{name: "a trailer with a pseudo-header", fields: pseudo("POST", "one.test", "/x"), body: "abc", trailer: []field{{":path", "/admin"}}, wants: append(refused, "200 one → one /x")},
		{name: "connection", fields: pseudo("GET", "one.test", "/", field{"connection", "close"}), wants: append(refused, "200 one → one /")},
		{name: "upgrade h2c", fields: pseudo("GET", "one.test", "/", field{"connection", "upgrade"}, field{"upgrade", "h2c"}), wants: append(refused, "200 one → one /")},
		{name: "upgrade websocket", fields: pseudo("GET", "one.test", "/ws", field{"connection", "upgrade"}, field{"upgrade", "websocket"}), wants: append(refused, "200 one → one /ws", "502 → one /ws")},
		{name: "upgrade websocket and a body", fields: pseudo("POST", "one.test", "/ws", field{"upgrade", "websocket"}), body: "hello\n" + inner, wants: append(refused, "200 one → one /ws", "502 → one /ws")},
		{name: "te", fields: pseudo("GET", "one.test", "/", field{"te", "gzip, chunked"}), wants: append(refused, "200 one → one /")},
		{name: "expect", fields: pseudo("POST", "one.test", "/", field{"expect", "100-continue"}), body: "abc", wants: append(refused, "200 one → one /")},
		{name: "many cookies", fields: pseudo("GET", "one.test", "/", cookies(100)...), wants: []string{"200 one → one /"}},
		{name: "a header of 64 KiB", fields: pseudo("GET", "one.test", "/", large), wants: append(refused, "431 → ", "494 → ")},
		{name: "a path of 64 KiB", fields: pseudo("GET", "one.test", "/"+large[1]), wants: append(refused, "414 → ", "431 → ")},
		{name: "SNI of another host", fields: pseudo("GET", "two.test", "/only"), sni: "tls.test", wants: []string{"200 two → two /only", "421 → "}},
		{name: "SNI of nobody", fields: pseudo("GET", "two.test", "/only"), sni: "nobody.test", wants: []string{"200 two → two /only", "421 → "}},
		{name: "SNI is a wildcard", fields: pseudo("GET", "two.test", "/only"), sni: "*.wild.test", wants: []string{"200 two → two /only", "421 → ", "handshake → "}},
		{name: "SNI is long", fields: pseudo("GET", "two.test", "/only"), sni: strings.Repeat("a.", 1500) + "test", wants: []string{"200 two → two /only", "handshake → "}},
		{name: "SNI is bytes", fields: pseudo("GET", "two.test", "/only"), sni: "a\xff;{}$x", wants: []string{"200 two → two /only", "handshake → "}},
	}
}

func cookies(n int) []field {
	var list []field
	for i := range n {
		list = append(list, field{"cookie", fmt.Sprintf("c%d=%d", i, i)})
	}
	return list
}

func TestHTTP2(t *testing.T) {
	t.Parallel()
	g := start(t, "")
	site(t, g)
	defer g.stillWell(t, "one.test", "200 one")
	for _, s := range streams() {
		t.Run(s.name, func(t *testing.T) {
			got := g.streamOutcome(t, s)
			for _, want := range s.wants {
				if got == want {
					return
				}
			}
			t.Errorf("%q\ngot  %s\nwant one of %q", cut(fmt.Sprint(s.fields), 300), cut(got, 1000), s.wants)
		})
	}
	t.Run("floods", func(t *testing.T) { floods(t, g) })
}

// h2 is a client that sends what it is told, not what is right.
type h2 struct {
	conn   net.Conn
	framer *http2.Framer
	block  bytes.Buffer
	hpack  *hpack.Encoder
}

func (g *gateway) dialHTTP2(sni string) (*h2, error) {
	raw, err := net.DialTimeout("tcp", g.https, patience)
	if err != nil {
		return nil, err
	}
	_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
	conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, ServerName: sni, NextProtos: []string{"h2"}}) //nolint:gosec // the certificate does not matter here
	if err := conn.Handshake(); err != nil {
		_ = raw.Close()
		return nil, err
	}
	c := &h2{conn: conn, framer: http2.NewFramer(conn, conn)}
	c.encode()
	c.framer.AllowIllegalWrites = true
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return nil, err
	}
	return c, c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
}

func (c *h2) encode() { c.hpack = hpack.NewEncoder(&c.block) }

// headers sends fields as HEADERS and CONTINUATION frames.
func (c *h2) headers(id uint32, fields []field, end bool) error {
	c.block.Reset()
	for _, f := range fields {
		if err := c.hpack.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return err
		}
	}
	const most = 16 << 10
	first := c.block.Next(most)
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: c.block.Len() == 0})
	for err == nil && c.block.Len() > 0 {
		err = c.framer.WriteContinuation(id, c.block.Len() <= most, c.block.Next(most))
	}
	return err
}

// request sends a whole stream.
func (c *h2) request(id uint32, s stream) error {
	if err := c.headers(id, s.fields, s.body == "" && s.trailer == nil); err != nil {
		return err
	}
	if s.body != "" {
		if err := c.framer.WriteData(id, s.trailer == nil, []byte(s.body)); err != nil {
			return err
		}
	}
	if s.trailer != nil {
		return c.headers(id, s.trailer, true)
	}
	return nil
}

// answer reads frames until the stream has ended.
func (c *h2) answer(id uint32) (answer, error) {
	var a answer
	decoder := hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == ":status" {
			_, _ = fmt.Sscan(f.Value, &a.status)
		}
	})
	var body bytes.Buffer
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return a, err
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = c.framer.WriteSettingsAck()
			}
		case *http2.GoAwayFrame:
			return a, io.EOF
		case *http2.RSTStreamFrame:
			if frame.StreamID == id && a.status == 0 {
				return a, errReset
			}
		case *http2.HeadersFrame:
			if _, err := decoder.Write(frame.HeaderBlockFragment()); err != nil {
				return a, err
			}
		case *http2.DataFrame:
			body.Write(frame.Data())
		}
		if h := frame.Header(); h.StreamID == id && h.Flags.Has(http2.FlagDataEndStream) && (h.Type == http2.FrameHeaders || h.Type == http2.FrameData) {
			if bytes.HasPrefix(body.Bytes(), []byte(`{"backend"`)) {
				return a, json.Unmarshal(body.Bytes(), &a.seen)
			}
			return a, nil
		}
	}
}

var errReset = errors.New("reset")

func (g *gateway) streamOutcome(t *testing.T, s stream) string {
	t.Helper()
	for _, b := range g.backends {
		b.requests()
	}
	sni := s.sni
	if sni == "" {
		sni = "one.test"
	}
	c, err := g.dialHTTP2(sni)
	if err != nil {
		return "handshake → "
	}
	defer func() { _ = c.conn.Close() }()
	if err := c.request(1, s); err != nil {
		return "closed → " + strings.Join(g.reached(false), ", ")
	}
	a, err := c.answer(1)
	got := a.String()
	switch {
	case errors.Is(err, errReset):
		got = "reset"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "waits → "
	case err != nil:
		return "closed → " + strings.Join(g.reached(false), ", ")
	}
	// The connection lives: another stream gets its own answer.
	follow := stream{fields: pseudo("GET", "sentinel.test", "/sentinel")}
	err = c.request(3, follow)
	if err == nil {
		a, err = c.answer(3)
	}
	alive := err == nil
	if alive && a.String() != "200 sentinel" {
		got += ", sentinel got " + a.String()
	}
	return got + " → " + strings.Join(g.reached(alive), ", ")
}

// floods are streams that ask for work without end: the connection may be closed for it, others are served.
func floods(t *testing.T, g *gateway) {
	for name, flood := range map[string]func(*h2, uint32) error{
		"rapid reset": func(c *h2, id uint32) error {
			if err := c.headers(id, pseudo("GET", "one.test", "/x"), true); err != nil {
				return err
			}
			return c.framer.WriteRSTStream(id, http2.ErrCodeCancel)
		},
		"settings": func(c *h2, _ uint32) error { return c.framer.WriteSettings() },
		"pings":    func(c *h2, _ uint32) error { return c.framer.WritePing(false, [8]byte{}) },
		"empty data": func(c *h2, id uint32) error {
			if id == 1 {
				return c.headers(1, pseudo("POST", "one.test", "/x"), false)
			}
			return c.framer.WriteData(1, false, nil)
		},
		"continuations": func(c *h2, id uint32) error {
			if id == 1 {
				return c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndStream: true})
			}
			return c.framer.WriteContinuation(1, false, nil)
		},
		"priorities": func(c *h2, id uint32) error {
			return c.framer.WritePriority(id, http2.PriorityParam{StreamDep: id, Weight: 1})
		},
		"window updates": func(c *h2, _ uint32) error { return c.framer.WriteWindowUpdate(0, 1<<31-1) },
	} {
		t.Run(name, func(t *testing.T) {
			c, err := g.dialHTTP2("one.test")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.conn.Close() }()
			go func() { _, _ = io.Copy(io.Discard, c.conn) }()
			for i := range uint32(2000) {
				if flood(c, 2*i+1) != nil {
					break
				}
			}
			g.wants("one.test", "/", "200 one")
			if name == "rapid reset" {
				g.await("the streams are counted", func() bool {
					s, err := g.scrape()
					return err == nil && s.sum("headgate_proxy_requests_total", `host="one.test"`, `status="499"`) > 0
				})
			}
		})
	}
}
