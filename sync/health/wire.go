package health

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"headgate/gateway/model"
)

// The bounds of what is read of an answer: a peer gone mad must not eat the daemon's memory or time.
const (
	readBuffer     = 4 << 10 // a status line is no longer
	maxHeaderBytes = 64 << 10
)

// Why a check failed, in words for people.
var (
	errTimeout  = errors.New("no answer in time")
	errRefused  = errors.New("connection refused")
	errClosed   = errors.New("the connection was closed before the answer")
	errNotHTTP  = errors.New("the answer is not HTTP/1")
	errTooLong  = errors.New("the head of the answer is too long")
	errNoMeans  = errors.New("this host lacks the means for a check") // says nothing of the peer
	errShutdown = errors.New("checks end")
)

// wire makes checks over the network. net/http costs three times as much for what is one line to write and one to read.
type wire struct{ readers sync.Pool }

func newWire() *wire {
	return &wire{sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readBuffer) }}}
}

// check asks address once; nil means that it is well. It ends at the policy's time-out, or with ctx.
func (w *wire) check(ctx context.Context, address netip.AddrPort, p *policy) error {
	deadline := time.Now().Add(p.Timeout)
	err := w.try(ctx, address, p, deadline)
	if err != nil && ctx.Err() != nil {
		return errShutdown
	}
	return err
}

func (w *wire) try(ctx context.Context, address netip.AddrPort, p *policy, deadline time.Time) error {
	dialer := net.Dialer{Deadline: deadline, KeepAlive: -1}
	conn, err := dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, address)
	if err != nil {
		return words(err)
	}
	defer func() {
		_ = conn.SetLinger(0) // a reset: thousands of checks a minute leave no TIME_WAIT behind
		_ = conn.Close()
	}()
	if p.Protocol == model.ProtocolTCP {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.SetDeadline(deadline); err != nil {
		return words(err)
	}
	if p.tls == nil {
		return w.exchange(conn, address, p)
	}
	secure := tls.Client(conn, p.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		return words(err)
	}
	return w.exchange(secure, address, p)
}

// exchange sends one request and judges the status of the final answer. Redirects are a status like any other.
func (w *wire) exchange(conn io.ReadWriter, address netip.AddrPort, p *policy) error {
	if _, err := io.WriteString(conn, p.request(address)); err != nil {
		return words(err)
	}
	from, _ := w.readers.Get().(*bufio.Reader)
	from.Reset(conn)
	status, err := readStatus(from)
	from.Reset(nil)
	w.readers.Put(from)
	if err != nil {
		return words(err)
	}
	return p.well(status)
}

// readStatus reads the head of an answer to its end. Interim ones are skipped (RFC 9110 section 15.2); 101 was not asked for and is final.
func readStatus(from *bufio.Reader) (int, error) {
	left := maxHeaderBytes
	for {
		line, err := readLine(from, &left)
		if err != nil {
			return 0, err
		}
		status, ok := parseStatusLine(line)
		if !ok {
			return 0, errNotHTTP
		}
		if err := skipFields(from, &left); err != nil {
			return 0, err
		}
		if status >= 200 || status == 101 {
			return status, nil
		}
	}
}

// skipFields reads field lines up to the empty line that ends them (RFC 9112 section 5).
func skipFields(from *bufio.Reader, left *int) error {
	for {
		line, err := readLine(from, left)
		if err != nil || len(line) == 0 {
			return err
		}
		if folded := line[0] == ' ' || line[0] == '\t'; !folded && bytes.IndexByte(line, ':') <= 0 {
			return errNotHTTP
		}
	}
}

// readLine gives a line without its end. Of one that is longer than the buffer only the beginning is looked at.
func readLine(from *bufio.Reader, left *int) ([]byte, error) {
	line, err := from.ReadSlice('\n')
	*left -= len(line)
	if errors.Is(err, bufio.ErrBufferFull) {
		line = bytes.Clone(line)
	}
	for errors.Is(err, bufio.ErrBufferFull) && *left > 0 {
		var more []byte
		more, err = from.ReadSlice('\n')
		*left -= len(more)
	}
	if *left < 0 || errors.Is(err, bufio.ErrBufferFull) {
		return nil, errTooLong
	}
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), nil
}

// parseStatusLine reads "HTTP/1.1 200 OK" (RFC 9112 section 4); the reason and the space before it may be missing.
func parseStatusLine(line []byte) (int, bool) {
	const form = "HTTP/1.x 200"
	if len(line) < len(form) || string(line[:7]) != "HTTP/1." || line[7] < '0' || line[7] > '9' || line[8] != ' ' {
		return 0, false
	}
	if len(line) > len(form) && line[len(form)] != ' ' {
		return 0, false
	}
	digits := line[9:len(form)]
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, false
		}
	}
	status, err := strconv.Atoi(string(digits))
	return status, err == nil && status >= 100
}

// words turns an error of the network into one that says the same each time.
func words(err error) error {
	var timed interface{ Timeout() bool }
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.As(err, &timed) && timed.Timeout():
		return errTimeout
	case errors.Is(err, syscall.ECONNREFUSED):
		return errRefused
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return errClosed
	}
	for _, own := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, own) {
			return fmt.Errorf("%w: %w", errNoMeans, own)
		}
	}
	var number syscall.Errno
	if errors.As(err, &number) {
		return number // "no route to host", without addresses and ports that differ each time
	}
	return err
}
