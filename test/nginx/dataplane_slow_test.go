package nginx_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// impatient loads the configuration with time-outs of a second for clients, so that a test need not wait for the real ones.
func (p *dpProxy) impatient() {
	p.t.Helper()
	file := p.dir + "/nginx.conf"
	text, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	short := regexp.MustCompile(`(client_(?:header|body)_timeout|send_timeout) \d+s;`).ReplaceAll(text, []byte("$1 1s;"))
	if bytes.Equal(short, text) {
		p.t.Fatal("nginx.conf has no time-outs for clients")
	}
	if err := os.WriteFile(file, short, 0o600); err != nil {
		p.t.Fatal(err)
	}
	old := p.workerPIDs()
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		p.t.Fatal(err)
	}
	p.settle(old)
}

// TestSlowClientsAreTold: while clients are slow, the connections tell so; when nginx has waited long enough, each of them
// that had begun a request is one with status 408, by host as far as that was known. Who leaves by itself is 400 before its
// header was whole, and 499 afterwards.
func TestSlowClientsAreTold(t *testing.T) {
	p, _ := dpCounted(t, dpSettings())
	p.impatient()
	const each = 5
	var conns []net.Conn
	open := func(text string) {
		t.Helper()
		for range each {
			conn, err := net.Dial("tcp", p.http.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			_ = conn.SetDeadline(time.Now().Add(dpDeadline))
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
		}
	}
	open("GET /x HTTP/1.1\r\nHost: a.test\r\nX:")
	open("POST /x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000\r\n\r\nb")
	open("GE")
	open("")
	p.eventually("the connections are told", func() error {
		state := dpSeries(p.metrics()["headgate_proxy_connections"])
		// The scrape is one that writes.
		if state["state=active"] < 4*each || state["state=waiting"] < each || state["state=reading"] < each || state["state=writing"] < each {
			return fmt.Errorf("%v", state)
		}
		return nil
	})
	if n := p.metrics()["headgate_proxy_connections_accepted_total"].GetMetric()[0].GetCounter().GetValue(); n < 4*each {
		t.Errorf("%v connections were accepted, at least %d were made", n, 4*each)
	}
	if n := p.metrics()["headgate_proxy_connections_dropped_total"].GetMetric()[0].GetCounter().GetValue(); n != 0 {
		t.Errorf("%v connections were dropped", n)
	}
	for _, conn := range conns {
		if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("the gateway does not end a slow client: %v", err)
		}
	}
	want := map[string]float64{
		"host=,ingress=,method=GET,port=,service=,status=408":                each,
		"host=a.test,ingress=d/one,method=POST,port=80,service=a,status=408": each,
		"host=,ingress=,method=OTHER,port=,service=,status=408":              each,
	}
	p.eventually("each is counted", func() error {
		got := dpSeries(p.metrics()[dpRequestsTotal])
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}
