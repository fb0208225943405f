package hostile

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestExpectContinue: a client that asks before it sends its body (RFC 9110 section 10.1.1) is told at once what will not be
// taken, as far as its header says so: too large a body, nobody's host, a redirect. Of a chunked body the size is not known
// before it came: that client is asked to send, and told 413 in the middle of it.
func TestExpectContinue(t *testing.T) {
	g := start(t, "")
	site(t, g)
	g.write("limits.yaml",
		ingress("small", "small.test", prefix("/", "one"), annotated("proxy-body-size", "1k"))+
			ingress("stream", "stream.test", prefix("/", "one"), annotated("proxy-body-size", "1k", "proxy-request-buffering", "off"))+
			ingress("gone", "gone.test", prefix("/", "nobody")))
	g.settle()
	const chunks = "Transfer-Encoding: chunked\r\n"
	length := func(n int) string { return fmt.Sprintf("Content-Length: %d\r\n", n) }
	for _, c := range []struct {
		name, host, framing, version, expect string
		body                                 string // sent when the client was asked to go on
		want                                 string // statuses, in order
		reaches                              bool
	}{
		{name: "a body that fits", host: "one.test", framing: length(4), body: "body", want: "100 200", reaches: true},
		{name: "a chunked body that fits", host: "one.test", framing: chunks, body: "4\r\nbody\r\n0\r\n\r\n", want: "100 200", reaches: true},
		{name: "the default limit", host: "one.test", framing: length(1<<20 + 1), want: "413"},
		{name: "the limit of a route", host: "small.test", framing: length(1<<10 + 1), want: "413"},
		{name: "the limit of a route that does not buffer", host: "stream.test", framing: length(1<<10 + 1), want: "413"},
		{name: "a body of exactly the limit", host: "small.test", framing: length(1 << 10), body: strings.Repeat("b", 1<<10), want: "100 200", reaches: true},
		{name: "chunks above the default limit", host: "one.test", framing: chunks, body: strings.Repeat("10000\r\n"+strings.Repeat("b", 1<<16)+"\r\n", 20), want: "100 413"},
		{name: "one chunk above the limit, announced alone", host: "one.test", framing: chunks, body: "fffffff\r\nb", want: "100 413"},
		{name: "nobody's host", host: "nobody.test", framing: length(4), body: "GET ", want: "404"},
		{name: "a redirect", host: "tls.test", framing: length(4), body: "GET ", want: "308"},
		{name: "no peers", host: "gone.test", framing: length(4), body: "GET ", want: "503"},
		{name: "HTTP/1.0 knows no 100", host: "one.test", framing: length(4), version: "1.0", body: "body", want: "200", reaches: true},
		{name: "an expectation of nobody", host: "one.test", framing: length(4), expect: "200-ok", body: "body", want: "200", reaches: true},
		{name: "two expectations", host: "one.test", framing: "Expect: 100-continue\r\n" + length(4), want: "400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g.backends["one"].requests()
			got := g.expecting(t, fmt.Sprintf("POST /x HTTP/%s\r\nHost: %s\r\nExpect: %s\r\n%s\r\n",
				cmp.Or(c.version, "1.1"), c.host, cmp.Or(c.expect, "100-continue"), c.framing), c.body)
			if got != c.want {
				t.Errorf("the client read %q, want %q", got, c.want)
			}
			if reached := len(g.backends["one"].requests()) > 0; reached != c.reaches {
				t.Errorf("the request reached the peer: %v, want %v", reached, c.reaches)
			}
		})
	}
	g.stillWell(t, "one.test", "200 one")
}

// expecting sends a head, sends the body once it was asked to (or at once, where HTTP/1.0 cannot ask, or when it was answered
// unasked), and gives the statuses that came. The connection must then either be closed or serve a request of its own.
func (g *gateway) expecting(t *testing.T, head, body string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", g.http, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	asks := !strings.Contains(head, "HTTP/1.0") && strings.Contains(head, "100-continue")
	if !asks {
		head += body
	}
	if _, err := io.WriteString(conn, head); err != nil {
		t.Fatal(err)
	}
	var statuses []string
	for r := bufio.NewReader(conn); ; {
		res, err := http.ReadResponse(r, &http.Request{Method: http.MethodPost})
		if err != nil {
			return strings.Join(append(statuses, err.Error()), " ")
		}
		statuses = append(statuses, fmt.Sprint(res.StatusCode))
		if res.StatusCode == http.StatusContinue {
			go func() { _, _ = io.WriteString(conn, body) }() // the gateway may stop to read
			continue
		}
		_, err = io.Copy(io.Discard, res.Body)
		if err != nil {
			return strings.Join(append(statuses, err.Error()), " ")
		}
		if res.Close {
			return strings.Join(statuses, " ")
		}
		if asks && len(statuses) == 1 { // it may send the body all the same, which must not be taken for a request
			if _, err := io.WriteString(conn, body); err != nil {
				return strings.Join(append(statuses, err.Error()), " ")
			}
		}
		if _, err := io.WriteString(conn, sentinel); err != nil {
			return strings.Join(append(statuses, err.Error()), " ")
		}
		if a, err := readAnswer(r, "GET"); err != nil || a.String() != "200 sentinel" {
			return strings.Join(append(statuses, fmt.Sprint("sentinel got ", a, err)), " ")
		}
		return strings.Join(statuses, " ")
	}
}
