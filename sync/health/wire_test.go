package health

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"headgate/gateway/model"
)

// answering serves each connection with answer, and gives the address and the requests that came.
func answering(t *testing.T, answer func(conn net.Conn)) (netip.AddrPort, <-chan string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	requests := make(chan string, 1)
	ended := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-ended })
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			head := ""
			for r := bufio.NewReader(conn); !strings.HasSuffix(head, "\r\n\r\n"); {
				line, err := r.ReadString('\n')
				if err != nil {
					break
				}
				head += line
			}
			select {
			case requests <- head:
			default:
			}
			answer(conn)
			_ = conn.Close()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String()), requests
}

func text(s string) func(net.Conn) {
	return func(conn net.Conn) { _, _ = io.WriteString(conn, s) }
}

func mustPolicy(t *testing.T, c model.HealthCheck) *policy {
	t.Helper()
	p, err := newPolicy(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name, answer, want string
		statuses           []model.StatusRange
	}{
		{name: "well", answer: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		{name: "HTTP/1.0, no reason, bare line feeds", answer: "HTTP/1.0 204\n\n"},
		{name: "a redirect is well and not followed", answer: "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n"},
		{name: "interim answers are not the answer", answer: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 500 No\r\n\r\n", want: "status 500, expected 200-399"},
		{name: "ill", answer: "HTTP/1.1 503 Service Unavailable\r\n\r\n", want: "status 503, expected 200-399"},
		{name: "expected otherwise", answer: "HTTP/1.1 401 Unauthorized\r\n\r\n", statuses: []model.StatusRange{{From: 204, To: 204}, {From: 401, To: 403}}},
		{name: "200 is not among those", answer: "HTTP/1.1 200 OK\r\n\r\n", statuses: []model.StatusRange{{From: 204, To: 204}, {From: 401, To: 403}}, want: "status 200, expected 204, 401-403"},
		{name: "a long body is not waited for", answer: "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nx"},
		{name: "a long line of a header", answer: "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", 3*readBuffer) + "\r\n\r\n"},
		{name: "a folded header", answer: "HTTP/1.1 200 OK\r\nA: b\r\n\tc\r\n\r\n"},
		{name: "nothing", answer: "", want: errClosed.Error()},
		{name: "half a status line", answer: "HTTP/1.1 20", want: errClosed.Error()},
		{name: "half a head", answer: "HTTP/1.1 200 OK\r\nA: b\r\n", want: errClosed.Error()},
		{name: "another protocol", answer: "SSH-2.0-OpenSSH_9.2\r\n", want: errNotHTTP.Error()},
		{name: "HTTP/2", answer: "HTTP/2 200\r\n\r\n", want: errNotHTTP.Error()},
		{name: "two digits", answer: "HTTP/1.1 20 OK\r\n\r\n", want: errNotHTTP.Error()},
		{name: "four digits", answer: "HTTP/1.1 2000 OK\r\n\r\n", want: errNotHTTP.Error()},
		{name: "no number", answer: "HTTP/1.1 2+0 OK\r\n\r\n", want: errNotHTTP.Error()},
		{name: "below 100", answer: "HTTP/1.1 099 OK\r\n\r\n", want: errNotHTTP.Error()},
		{name: "no header", answer: "HTTP/1.1 200 OK\r\nwhat\r\n\r\n", want: errNotHTTP.Error()},
		{name: "a header without a name", answer: "HTTP/1.1 200 OK\r\n: x\r\n\r\n", want: errNotHTTP.Error()},
		{name: "headers without an end", answer: "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", maxHeaderBytes/6+1), want: errTooLong.Error()},
		{name: "a line without an end", answer: "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", 2*maxHeaderBytes), want: errTooLong.Error()},
		{name: "interim answers without an end", answer: strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxHeaderBytes/25+1), want: errTooLong.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			address, requests := answering(t, text(c.answer))
			p := mustPolicy(t, model.HealthCheck{Protocol: model.ProtocolHTTP, Path: "/healthz?full=1", Statuses: c.statuses, Timeout: 10 * time.Second})
			if got := told(newWire().check(t.Context(), address, p)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			want := "GET /healthz?full=1 HTTP/1.1\r\nUser-Agent: headgate-health\r\nAccept: */*\r\nConnection: close\r\nHost: " + address.String() + "\r\n\r\n"
			if got := <-requests; got != want {
				t.Errorf("sent %q, want %q", got, want)
			}
		})
	}
}

func told(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestConnections(t *testing.T) {
	w := newWire()
	silent, _ := answering(t, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) })
	quick := 200 * time.Millisecond
	gone := netip.MustParseAddrPort(closedPort(t))
	for _, c := range []struct {
		name     string
		protocol model.Protocol
		address  netip.AddrPort
		want     error
	}{
		{"TCP", model.ProtocolTCP, silent, nil},
		{"TCP refused", model.ProtocolTCP, gone, errRefused},
		{"HTTP refused", model.ProtocolHTTP, gone, errRefused},
		{"HTTP silent", model.ProtocolHTTP, silent, errTimeout},
		{"HTTPS silent", model.ProtocolHTTPS, silent, errTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := mustPolicy(t, model.HealthCheck{Protocol: c.protocol, Timeout: quick})
			if err := w.check(t.Context(), c.address, p); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	t.Run("the end of the daemon ends a check", func(t *testing.T) {
		address, requests := answering(t, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) })
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-requests; cancel() }()
		err := w.check(ctx, address, mustPolicy(t, model.HealthCheck{Protocol: model.ProtocolHTTP, Interval: time.Hour, Timeout: time.Hour}))
		if !errors.Is(err, errShutdown) {
			t.Errorf("got %v", err)
		}
	})
}

// closedPort gives an address on which nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestHTTPS(t *testing.T) {
	var name, host string
	status := http.StatusOK
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, host = r.TLS.ServerName, r.Host
		w.WriteHeader(status)
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS() // with a certificate that nobody would trust
	defer server.Close()
	address := netip.MustParseAddrPort(server.Listener.Addr().String())
	for _, c := range []struct{ host, wantName, wantHost string }{
		{"", "", address.String()},
		{"shop.example", "shop.example", "shop.example"},
		{"shop.example:8443", "shop.example", "shop.example:8443"},
		{"192.0.2.1", "", "192.0.2.1"},
		{"[2001:db8::1]:443", "", "[2001:db8::1]:443"},
		{"[2001:db8::1]", "", "[2001:db8::1]"},
	} {
		p := mustPolicy(t, model.HealthCheck{Protocol: model.ProtocolHTTPS, Host: c.host, Timeout: 10 * time.Second})
		if err := newWire().check(t.Context(), address, p); err != nil {
			t.Errorf("host %q: %v", c.host, err)
		}
		if name != c.wantName || host != c.wantHost {
			t.Errorf("host %q: SNI %q and Host %q, want %q and %q", c.host, name, host, c.wantName, c.wantHost)
		}
	}
	status = http.StatusInternalServerError
	p := mustPolicy(t, model.HealthCheck{Protocol: model.ProtocolHTTPS, Timeout: 10 * time.Second})
	if err := newWire().check(t.Context(), address, p); told(err) != "status 500, expected 200-399" {
		t.Errorf("got %v", err)
	}
}

func TestPolicies(t *testing.T) {
	p := mustPolicy(t, model.HealthCheck{Protocol: model.ProtocolHTTP})
	if p.Path != "/" || p.Interval != 10*time.Second || p.Timeout != time.Second || p.Rise != 2 || p.Fall != 3 {
		t.Errorf("defaults %+v", p.HealthCheck)
	}
	if p := mustPolicy(t, model.HealthCheck{Protocol: model.ProtocolTCP, Interval: time.Second, Timeout: time.Minute}); p.Timeout != time.Second {
		t.Errorf("a time-out of %s within an interval of 1s", p.Timeout)
	}
	for _, c := range []struct {
		check model.HealthCheck
		want  string
	}{
		{model.HealthCheck{Protocol: model.ProtocolHTTP, Path: "healthz"}, `path "healthz" must begin with "/"`},
		{model.HealthCheck{Protocol: model.ProtocolHTTP, Path: "/ HTTP/1.1\r\nX: y"}, "visible ASCII only"},
		{model.HealthCheck{Protocol: model.ProtocolHTTP, Host: "a\r\nX: y"}, "visible ASCII only"},
		{model.HealthCheck{Protocol: "gopher"}, `protocol "gopher" is none of`},
		{model.HealthCheck{}, `protocol "" is none of`},
	} {
		if _, err := newPolicy(c.check); !errors.Is(err, errPolicy) || !strings.Contains(told(err), c.want) {
			t.Errorf("%+v: %v, want %q", c.check, err, c.want)
		}
	}
}

// FuzzReadStatus: whatever a peer answers, little is read of it, and a status is one.
func FuzzReadStatus(f *testing.F) {
	for _, seed := range []string{"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 100 \r\n\r\nHTTP/1.0 503\n\n", "HTTP/1.1 200 OK\r\n a\r\n", "HTTP/1.x 200"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		source := strings.NewReader(answer)
		status, err := readStatus(bufio.NewReaderSize(source, readBuffer))
		if err == nil && (status < 101 || status > 999) {
			t.Errorf("status %d", status)
		}
		if err != nil && status != 0 {
			t.Errorf("status %d with %v", status, err)
		}
		if read := len(answer) - source.Len(); read > maxHeaderBytes+2*readBuffer {
			t.Errorf("%d bytes read", read)
		}
		if err == nil && !strings.Contains(answer, fmt.Sprintf(" %03d", status)) {
			t.Errorf("status %d is nowhere in it", status)
		}
	})
}
