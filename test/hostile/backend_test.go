package hostile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// seen is one request as a backend got it.
type seen struct {
	Backend string `json:"backend"`
	// Head is the request line and the header, byte by byte, without the empty line.
	Head string `json:"head"`
	Body string `json:"body"`
}

// target is the request target of the request line.
func (s seen) target() string {
	_, rest, _ := strings.Cut(s.Head, " ")
	target, _, _ := strings.Cut(rest, " HTTP/")
	return target
}

// header gives the values of a field, in order.
func (s seen) header(name string) []string {
	var values []string
	for line := range strings.SplitSeq(s.Head, "\r\n") {
		if n, v, ok := strings.Cut(line, ":"); ok && strings.EqualFold(n, name) {
			values = append(values, strings.TrimSpace(v))
		}
	}
	return values
}

// backend reads HTTP/1.1 as literally as a server can, and keeps what it read: each request that it sees
// counts, wherever its bytes came from. It forgives nothing, so that a proxy that hands on what is ambiguous
// shows.
type backend struct {
	name     string
	address  string
	listener net.Listener

	mu     sync.Mutex // guards the rest
	seen   []seen
	faults []string // what no careful proxy sends
}

func (g *gateway) backend(name string) *backend {
	if g.backends[name] == nil {
		g.backends[name] = startBackend(g.t, name)
	}
	return g.backends[name]
}

func startBackend(t *testing.T, name string) *backend { return startBackendAt(t, name, "127.0.0.1:0") }

func startBackendAt(t *testing.T, name, address string) *backend {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{name: name, address: listener.Addr().String(), listener: listener}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			// The proxy closes its connections when it ends, which is before the backends do.
			go b.serve(conn)
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		open.Wait()
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, f := range b.faults {
			t.Errorf("backend %s got what a proxy must not send: %s", name, f)
		}
	})
	return b
}

// requests gives all that came since the last call.
func (b *backend) requests() []seen {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.seen
	b.seen = nil
	return list
}

func (b *backend) fault(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, fmt.Sprintf(format, args...))
}

func (b *backend) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	r := bufio.NewReaderSize(conn, 1<<20)
	for {
		one, err := b.read(conn, r)
		if err != nil {
			return
		}
		b.mu.Lock()
		b.seen = append(b.seen, one)
		b.mu.Unlock()
		if up := one.header("Upgrade"); len(up) > 0 {
			b.tunnel(conn, r, up[0])
			return
		}
		text, err := json.Marshal(one)
		if err != nil {
			return
		}
		if strings.HasPrefix(one.Head, "HEAD ") {
			text = nil
		}
		_, err = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		if err != nil {
			return
		}
	}
}

// tunnel answers 101 and sends each line back.
func (b *backend) tunnel(conn net.Conn, r *bufio.Reader, protocol string) {
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\n\r\n", protocol)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if _, err := fmt.Fprintf(conn, "%s:%s\n", b.name, lines.Text()); err != nil {
			return
		}
	}
}

var errFraming = errors.New("framing")

// read reads one request. Its error ends the connection.
func (b *backend) read(conn net.Conn, r *bufio.Reader) (seen, error) {
	var head []byte
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		line, err := r.ReadSlice('\n')
		if err != nil {
			if len(head)+len(line) > 0 && !errors.Is(err, net.ErrClosed) && errors.Is(err, bufio.ErrBufferFull) {
				b.fault("a header line without end: %.200q", line)
			}
			return seen{}, err
		}
		head = append(head, line...)
		if !bytes.HasSuffix(line, []byte("\r\n")) {
			b.fault("a bare LF: %.300q", head)
			return seen{}, errFraming
		}
	}
	one := seen{Backend: b.name, Head: string(head[:len(head)-4])}
	if why := suspicious(one); why != "" {
		b.fault("%s: %.500q", why, one.Head)
		return one, nil
	}
	if len(one.header("Expect")) > 0 {
		_, _ = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n")
	}
	body, err := readBody(one, r)
	if err != nil {
		return seen{}, err
	}
	one.Body = string(body)
	return one, nil
}

// suspicious says what two servers could read in two ways.
func suspicious(s seen) string {
	lines := strings.Split(s.Head, "\r\n")
	if strings.Count(lines[0], " ") != 2 || !strings.HasSuffix(lines[0], " HTTP/1.1") {
		return "not a request line"
	}
	for _, line := range lines[1:] {
		name, _, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t") || strings.ContainsAny(line, "\r\n\x00") {
			return "not a header line"
		}
	}
	lengths, codings := s.header("Content-Length"), s.header("Transfer-Encoding")
	switch {
	case len(s.header("Host")) != 1:
		return "not one Host"
	case len(lengths)+len(codings) > 1:
		return "framed twice"
	case len(codings) == 1 && codings[0] != "chunked":
		return "an unknown transfer coding"
	}
	return ""
}

func readBody(s seen, r *bufio.Reader) ([]byte, error) {
	if codings := s.header("Transfer-Encoding"); len(codings) == 1 {
		body, err := io.ReadAll(newChunkedReader(r))
		return body, err
	}
	lengths := s.header("Content-Length")
	if len(lengths) == 0 {
		return nil, nil
	}
	n, err := strconv.Atoi(lengths[0])
	if err != nil {
		return nil, err
	}
	body := make([]byte, n)
	_, err = io.ReadFull(r, body)
	return body, err
}

// newChunkedReader reads a chunked body and its trailer.
func newChunkedReader(r *bufio.Reader) io.Reader { return &chunked{r: textproto.NewReader(r)} }

type chunked struct {
	r    *textproto.Reader
	left int64
	done bool
}

func (c *chunked) Read(p []byte) (int, error) {
	if c.done {
		return 0, io.EOF
	}
	if c.left == 0 {
		line, err := c.r.ReadLine()
		if err != nil {
			return 0, err
		}
		if c.left, err = strconv.ParseInt(line, 16, 63); err != nil {
			return 0, err
		}
		if c.left == 0 {
			c.done = true
			_, err := c.r.ReadMIMEHeader()
			if err != nil && !errors.Is(err, io.EOF) {
				return 0, err
			}
			return 0, io.EOF
		}
	}
	n, err := c.r.R.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if c.left == 0 && err == nil {
		_, err = c.r.ReadLine()
	}
	return n, err
}

// answer is what came back to the client.
type answer struct {
	status int
	header http.Header
	body   string
	seen   seen // zero unless a backend answered
	last   bool // the gateway closes the connection behind it
}

// String gives "status backend", or the status alone where no backend answered.
func (a answer) String() string {
	if a.seen.Backend == "" {
		return strconv.Itoa(a.status)
	}
	return fmt.Sprintf("%d %s", a.status, a.seen.Backend)
}

// readAnswer reads one answer to a request of that method. Interim answers are skipped.
func readAnswer(r *bufio.Reader, method string) (answer, error) {
	for {
		res, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			return answer{}, fmt.Errorf("read the answer: %w", err)
		}
		if res.StatusCode == http.StatusContinue {
			continue
		}
		a := answer{status: res.StatusCode, header: res.Header, last: res.Close}
		if res.StatusCode == http.StatusSwitchingProtocols {
			return a, nil
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return answer{}, fmt.Errorf("read the body of a %d: %w", res.StatusCode, err)
		}
		a.body = string(body)
		if strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") && len(body) > 0 {
			if err := json.Unmarshal(body, &a.seen); err != nil {
				return answer{}, fmt.Errorf("decode the echo: %w", err)
			}
		}
		return a, nil
	}
}
