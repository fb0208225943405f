package nginxproc

import (
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// hold opens a connection to a worker of the present load, with a request that lasts as long as it does.
func (b *bench) hold() net.Conn {
	b.t.Helper()
	conn, err := net.Dial("unix", b.path("held.sock"))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
	if err != nil {
		b.t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	begun := make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))
	if _, err := io.ReadFull(conn, begun); err != nil {
		b.t.Fatal(err)
	}
	return conn
}

// count tells how many workers have a title.
func count(p *Proxy, title string) int {
	n := 0
	for _, c := range children(p.Condition().MasterPID) {
		if c.title == title {
			n++
		}
	}
	return n
}

// TestOldLoadsAreBounded: requests that last keep the workers of old loads, the youngest ones; what begins while there are
// many of them is served.
func TestOldLoadsAreBounded(t *testing.T) {
	b := newBench(t)
	p := New(b.config())
	extra := fmt.Sprintf("server { listen unix:%s; location / { content_by_lua_block { ngx.req.read_body() ngx.print(ngx.req.get_body_data()) } } }", b.path("held.sock"))
	var held []net.Conn
	const loads = oldLoads + 3
	for n := range loads {
		b.apply(p, b.conf(fmt.Sprintf("g%d", n), "", extra))
		b.eventually("the new generation", b.serves(fmt.Sprintf("g%d", n)))
		b.eventually("the old worker shuts down", func() bool { return count(p, workerTitle) == 1 })
		held = append(held, b.hold())
	}
	b.eventually("old workers end", func() bool { return count(p, workerTitle+" is shutting down") == oldLoads })
	var served []bool
	for _, conn := range held {
		_, err := io.WriteString(conn, "x")
		answer := make([]byte, len("HTTP/1.1 200 OK"))
		if err == nil {
			_, err = io.ReadFull(conn, answer)
		}
		served = append(served, err == nil && string(answer) == "HTTP/1.1 200 OK")
	}
	cut := loads - 1 - oldLoads
	want := slices.Concat(slices.Repeat([]bool{false}, cut), slices.Repeat([]bool{true}, loads-cut))
	if !slices.Equal(served, want) {
		t.Errorf("served %v, want %v", served, want)
	}
}
