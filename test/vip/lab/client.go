package lab

import (
	"bytes"
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

// Attempt is one new TCP connection with one request.
type Attempt struct {
	Began, Ended time.Time
	Error        string // "" for an answer
}

// Client opens a new connection in each interval and waits for a line of the proxy, whatever becomes of the
// others. It ends with the test.
type Client struct {
	to       unix.Sockaddr
	domain   int
	interval time.Duration
	stop     chan struct{}
	ended    chan struct{}

	mu       sync.Mutex // guards attempts and failure
	attempts []Attempt
	failure  error // of the client itself

	// Owned by the goroutine.
	epoll int
	open  map[int]*connection
	queue []*connection // the oldest first; done ones, too
}

type connection struct {
	fd    int
	began time.Time
	sent  bool
	done  bool
}

// What an attempt ends with that took too long.
const (
	noAnswer     = "no answer"
	noConnection = "no connection"
)

// attemptLimit is how long an attempt may take.
const attemptLimit = 300 * time.Millisecond

const (
	request = "GET / HTTP/1.1\r\nHost: lab.test\r\nConnection: close\r\n\r\n"
	answer  = "HTTP/1.1 404"
)

// NewClient begins to ask port 80 of an address from a namespace, every interval.
func NewClient(t testing.TB, n *netns.Namespace, ip netip.Addr, interval time.Duration) *Client {
	t.Helper()
	const port = 80
	c := &Client{interval: interval, stop: make(chan struct{}), ended: make(chan struct{}), open: map[int]*connection{}}
	if ip.Is4() {
		c.domain, c.to = unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: ip.As4()}
	} else {
		c.domain, c.to = unix.AF_INET6, &unix.SockaddrInet6{Port: port, Addr: ip.As16()}
	}
	go func() {
		defer close(c.ended)
		if err := n.Do(c.run); err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.failure = err
		}
	}()
	t.Cleanup(func() {
		close(c.stop)
		<-c.ended
	})
	return c
}

// Cut gives all attempts that ended since the last Cut, in the order of their ends.
func (c *Client) Cut(t testing.TB) []Attempt {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != nil {
		t.Fatalf("the client: %v", c.failure)
	}
	all := c.attempts
	c.attempts = nil
	return all
}

// Flying is how long an attempt may be under way; a Cut after that has all that began before.
const Flying = attemptLimit + 50*time.Millisecond

func (c *Client) run() error {
	var err error
	if c.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	defer func() {
		for fd := range c.open {
			_ = unix.Close(fd)
		}
		_ = unix.Close(c.epoll)
	}()
	events := make([]unix.EpollEvent, 64)
	for next := time.Now(); ; {
		select {
		case <-c.stop:
			return nil
		default:
		}
		if now := time.Now(); !now.Before(next) {
			if err := c.begin(now); err != nil {
				return err
			}
			next = next.Add(c.interval)
			if now.Sub(next) > attemptLimit { // this thread did not run: what it missed is not made up for
				next = now
			}
		}
		n, err := unix.EpollWait(c.epoll, events, wait(next))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("epoll: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			if conn := c.open[int(e.Fd)]; conn != nil {
				c.progress(conn)
			}
		}
		c.expire()
	}
}

// wait is the timeout of epoll, in milliseconds.
func wait(next time.Time) int {
	if time.Until(next) > 0 {
		return 1
	}
	return 0
}

func (c *Client) begin(now time.Time) error {
	fd, err := unix.Socket(c.domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	conn := &connection{fd: fd, began: now}
	c.open[fd] = conn
	c.queue = append(c.queue, conn)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil { // no TIME_WAIT: ports would run out
		return fmt.Errorf("SO_LINGER: %w", err)
	}
	if err := unix.Connect(fd, c.to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		c.end(conn, err.Error())
		return nil
	}
	event := unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(fd)} //nolint:gosec // a file descriptor fits
	if err := unix.EpollCtl(c.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

func (c *Client) progress(conn *connection) {
	if !conn.sent {
		c.send(conn)
		return
	}
	var b [256]byte
	n, err := unix.Read(conn.fd, b[:])
	switch {
	case errors.Is(err, unix.EAGAIN):
	case err != nil:
		c.end(conn, "read: "+err.Error())
	case bytes.HasPrefix(b[:n], []byte(answer)):
		c.end(conn, "")
	default:
		line, _, _ := bytes.Cut(b[:n], []byte("\r\n"))
		c.end(conn, fmt.Sprintf("answered %q", line))
	}
}

func (c *Client) send(conn *connection) {
	if code, err := unix.GetsockoptInt(conn.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
		c.end(conn, "connect: "+unix.Errno(code).Error())
		return
	}
	if _, err := unix.Write(conn.fd, []byte(request)); err != nil {
		c.end(conn, "write: "+err.Error())
		return
	}
	conn.sent = true
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(conn.fd)} //nolint:gosec // a file descriptor fits
	if err := unix.EpollCtl(c.epoll, unix.EPOLL_CTL_MOD, conn.fd, &event); err != nil {
		c.end(conn, "epoll: "+err.Error())
	}
}

func (c *Client) expire() {
	for len(c.queue) > 0 {
		oldest := c.queue[0]
		if !oldest.done {
			if time.Since(oldest.began) < attemptLimit {
				return
			}
			what := noAnswer
			if !oldest.sent {
				what = noConnection
			}
			c.end(oldest, what)
		}
		c.queue = c.queue[1:]
	}
}

func (c *Client) end(conn *connection, why string) {
	conn.done = true
	delete(c.open, conn.fd)
	_ = unix.Close(conn.fd)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempts = append(c.attempts, Attempt{conn.began, time.Now(), why})
}

// Damage is what a client noticed.
type Damage struct {
	Attempts, Failed int
	// Refused are those of Failed that were not just without an answer for too long, as a busy machine's may be.
	Refused int
	// Outage runs from the beginning of the first attempt that failed to the end of the first success that began after
	// the last failure had begun; 0 without a failure. Where nothing succeeded any more it runs to the end, and Lasting is true.
	Outage  time.Duration
	Lasting bool
	First   string // error
}

// Assess sums attempts up.
func Assess(attempts []Attempt) Damage {
	d := Damage{Attempts: len(attempts)}
	var first, last, end time.Time
	for _, a := range attempts {
		if a.Ended.After(end) {
			end = a.Ended
		}
		if a.Error == "" {
			continue
		}
		d.Failed++
		if a.Error != noAnswer && a.Error != noConnection {
			d.Refused++
		}
		if first.IsZero() || a.Began.Before(first) {
			first, d.First = a.Began, a.Error
		}
		if a.Began.After(last) {
			last = a.Began
		}
	}
	if d.Failed == 0 {
		return d
	}
	var back time.Time
	for _, a := range attempts {
		if a.Error == "" && a.Began.After(last) && (back.IsZero() || a.Ended.Before(back)) {
			back = a.Ended
		}
	}
	d.Lasting = back.IsZero()
	if d.Lasting {
		back = end
	}
	d.Outage = back.Sub(first)
	return d
}

// Flows are connections that stay open, with a request on each now and then.
type Flows struct {
	stop  chan struct{}
	wait  sync.WaitGroup
	mu    sync.Mutex // guards dead and asked
	dead  []string   // why, one for each that is cut
	asked map[int]time.Time
	n     int
}

const (
	// flowPause is between two requests of one connection.
	flowPause = 100 * time.Millisecond
	// flowLimit is how long an answer may take: TCP sends again meanwhile.
	flowLimit = 5 * time.Second
)

// OpenFlows opens n connections from a namespace to port 80 of an address. They are closed when the test ends.
func OpenFlows(t testing.TB, from *netns.Namespace, ip netip.Addr, n int) *Flows {
	t.Helper()
	f := &Flows{stop: make(chan struct{}), asked: map[int]time.Time{}, n: n}
	conns := Open(t, from, ip, n)
	t.Cleanup(f.Close)
	for i, conn := range conns {
		f.wait.Go(func() { f.run(i, conn) })
	}
	return f
}

// Open opens n connections from a namespace to port 80 of an address, and says nothing on them. They are closed when the
// test ends.
func Open(t testing.TB, from *netns.Namespace, ip netip.Addr, n int) []net.Conn {
	t.Helper()
	var conns []net.Conn
	t.Cleanup(func() {
		for _, conn := range conns {
			_ = conn.Close() // its user may have done it
		}
	})
	if err := from.Do(func() error {
		for range n {
			conn, err := (&net.Dialer{Timeout: flowLimit}).DialContext(t.Context(), "tcp", netip.AddrPortFrom(ip, 80).String())
			if err != nil {
				return err
			}
			conns = append(conns, conn)
		}
		return nil
	}); err != nil {
		t.Fatalf("open connections: %v", err)
	}
	return conns
}

// Answered sends a request on each of some connections and says how many get an answer, and why the first one of the
// others gets none.
func Answered(conns []net.Conn) (int, string) {
	answered, why := 0, ""
	for _, conn := range conns {
		if err := ask(conn); err == nil {
			answered++
		} else if why == "" {
			why = err.Error()
		}
	}
	return answered, why
}

// Close ends them; twice is no error.
func (f *Flows) Close() {
	f.mu.Lock()
	select {
	case <-f.stop:
	default:
		close(f.stop)
	}
	f.mu.Unlock()
	f.wait.Wait()
}

func (f *Flows) run(i int, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	ticker := time.NewTicker(flowPause)
	defer ticker.Stop()
	for {
		began := time.Now()
		if err := ask(conn); err != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.dead = append(f.dead, err.Error())
			return
		}
		f.mu.Lock()
		f.asked[i] = began
		f.mu.Unlock()
		select {
		case <-f.stop:
			return
		case <-ticker.C:
		}
	}
}

// ask sends one request and reads to the end of the answer, which has no more than one packet.
func ask(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(flowLimit)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: lab.test\r\n\r\n")); err != nil {
		return err
	}
	var b [1024]byte
	n, err := conn.Read(b[:])
	if err == nil && !bytes.HasPrefix(b[:n], []byte(answer)) {
		err = fmt.Errorf("answered %q", b[:n])
	}
	return err
}

// Survivors waits until every connection was cut or has got the answer to a request that was sent after the moment, and
// counts those that live. The text is why the first one was cut.
func (f *Flows) Survivors(t testing.TB, since time.Time) (int, string) {
	t.Helper()
	for deadline := time.Now().Add(2 * flowLimit); ; rest() {
		f.mu.Lock()
		alive, dead := 0, len(f.dead)
		for _, at := range f.asked {
			if at.After(since) {
				alive++
			}
		}
		why := ""
		if dead > 0 {
			why = f.dead[0]
		}
		f.mu.Unlock()
		if alive+dead >= f.n {
			return alive, why
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d connections live, %d are cut, and the others say nothing", alive, f.n, dead)
		}
	}
}
