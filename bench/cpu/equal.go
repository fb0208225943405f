package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// equal proves that both sides do the same work: for the same request the backend sees the same request from
// both, and the client the same headers from both.
func equal(ctx context.Context, sides [2]side) error {
	var seen [2]exchange
	for i, a := range sides {
		var err error
		if seen[i], err = ask(ctx, a); err != nil {
			return fmt.Errorf("ask %s: %w", a.name, err)
		}
	}
	if !slices.Equal(seen[0].request, seen[1].request) {
		return fmt.Errorf("not the same work: the backend sees from %s\n%s\nand from %s\n%s",
			sides[0].name, strings.Join(seen[0].request, "\n"), sides[1].name, strings.Join(seen[1].request, "\n"))
	}
	if !slices.Equal(seen[0].answer, seen[1].answer) {
		return fmt.Errorf("not the same work: %s answers with the headers %q, %s with %q", sides[0].name, seen[0].answer, sides[1].name, seen[1].answer)
	}
	return nil
}

// exchange is what is compared: sorted lines, and names alone where values must differ.
type exchange struct{ request, answer []string }

func ask(ctx context.Context, a side) (exchange, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var dial interface {
		DialContext(ctx context.Context, network, address string) (net.Conn, error)
	} = new(net.Dialer)
	if a.site.tls != nil {
		dial = &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, ServerName: a.site.host(0)}} //nolint:gosec // the benchmark's own certificate
	}
	conn, err := dial.DialContext(ctx, "tcp", a.address)
	if err != nil {
		return exchange{}, fmt.Errorf("dial: %w", err)
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return exchange{}, fmt.Errorf("set the deadline: %w", err)
	}
	const request = "GET /headers HTTP/1.1\r\nHost: %s\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Host: other.test\r\nProxy: evil\r\nAccept: */*\r\n\r\n"
	if _, err := fmt.Fprintf(conn, request, a.site.host(0)); err != nil {
		return exchange{}, fmt.Errorf("send: %w", err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return exchange{}, fmt.Errorf("read the answer: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return exchange{}, fmt.Errorf("read the answer: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return exchange{}, fmt.Errorf("status %d: %s", res.StatusCode, body)
	}
	return exchange{request: comparable(string(body)), answer: names(res.Header)}, nil
}

// comparable sorts the lines of a request, lower-cases the names (HAProxy sends them so) and leaves out values
// that are each side's own.
func comparable(request string) []string {
	var lines []string
	for line := range strings.Lines(request) {
		name, value, isHeader := strings.Cut(strings.TrimSpace(line), ":")
		name = strings.ToLower(name)
		switch {
		case !isHeader:
		case name == "x-request-id":
			value = fmt.Sprintf(" %d characters", len(strings.TrimSpace(value))/8*8)
		case name == "x-forwarded-port":
			value = " its own"
		}
		if name != "" {
			lines = append(lines, name+":"+value)
		}
	}
	slices.Sort(lines)
	return lines
}

// names leaves out what a proxy tells of itself.
func names(h http.Header) []string {
	var list []string
	for name := range h {
		if !slices.Contains([]string{"Server", "Date", "Connection", "Transfer-Encoding", "Content-Length"}, name) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}
