package main

import (
	"bufio"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"headgate/bench/figure"
)

func TestReadAnswer(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       answer
		fault      bool
	}{
		{"body", "HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1", answer{200, "abc"}, false},
		{"no body", "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", answer{404, ""}, false},
		{"cut in the head", "HTTP/1.1 200 OK\r\nServer", answer{}, true},
		{"cut in the body", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", answer{}, true},
		{"no status", "HTTP/1.1\r\n\r\n", answer{}, true},
		{"odd status", "HTTP/1.1 abc\r\n\r\n", answer{}, true},
		{"odd length", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", answer{}, true},
		{"empty", "", answer{}, true},
	} {
		got, err := readAnswer(bufio.NewReader(strings.NewReader(c.text)))
		if got != c.want || (err != nil) != c.fault {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

func TestProcAddress(t *testing.T) {
	if got := procAddress("127.0.0.1:8000"); got != "0100007F:1F40" {
		t.Errorf("%s, want 0100007F:1F40", got)
	}
}

// The other end of a connection within this process is found, and found to be this process's.
func TestBelongs(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	conn, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = accepted.Close() }()
	if err := belongs(conn, os.Getpid()); err != nil {
		t.Error(err)
	}
	if err := belongs(conn, os.Getppid()); err == nil {
		t.Error("the connection was said to be another process's")
	}
}

// The keys of RESULT are read by others.
func TestResultKeys(t *testing.T) {
	var b strings.Builder
	ms := time.Millisecond
	r := result{Routes: 10000, Endpoint: of([]time.Duration{2 * ms, 3 * ms, 4 * ms}), Ingress: of([]time.Duration{5 * ms}), Reloads: 1, Errors: 2}
	if err := figure.Result(&b, r); err != nil {
		t.Fatal(err)
	}
	const want = `RESULT {"routes":10000,"endpoint_ms":{"p50":3,"p99":4},"ingress_ms":{"p50":5,"p99":5},"reloads":1,"errors":2}` + "\n"
	if b.String() != want {
		t.Errorf("got %swant %s", b.String(), want)
	}
}

func TestRowTellsAMissedBudget(t *testing.T) {
	s := series{served: []time.Duration{21 * time.Millisecond}, api: []time.Duration{time.Millisecond}, errors: 1}
	line := strings.Join(row(10000, "endpoint change", s, budget{10000, 20, 100}), "|")
	if want := "10000|endpoint change|21.0|21.0|21.0|21.0|20 / 100 MISSED|1.0|2|1"; line != want {
		t.Errorf("%s, want %s", line, want)
	}
	if cells := row(3000, "endpoint change", s, budget{10000, 20, 100}); cells[6] != "–" {
		t.Errorf("a budget of another size: %q", cells[6])
	}
}
