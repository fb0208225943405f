package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"headgate/bench/stage"
)

const (
	// probeEvery is the resolution of the clock for the first fineProbes questions; a change that takes longer is
	// not asked for so often: the proxy ends a connection after 1,000 requests.
	probeEvery, fineProbes = time.Millisecond, 200
	probeSlowly            = 10 * time.Millisecond
	probeTimeout           = 5 * time.Second
	// wornAfter requests a connection is replaced between two events.
	wornAfter = 200
)

// probe is a kept connection to one worker of the proxy.
type probe struct {
	conn   net.Conn
	reader *bufio.Reader
	worker int
	asked  int
}

// answer is what a worker said.
type answer struct {
	status int
	body   string
}

func (a answer) String() string { return strings.TrimSpace(fmt.Sprintf("%d %s", a.status, a.body)) }

// ask sends a request to a host and waits for the answer.
func (p *probe) ask(host string) (answer, error) {
	if err := p.conn.SetDeadline(time.Now().Add(probeTimeout)); err != nil {
		return answer{}, fmt.Errorf("set the deadline: %w", err)
	}
	if _, err := fmt.Fprintf(p.conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host); err != nil {
		return answer{}, fmt.Errorf("ask worker %d: %w", p.worker, err)
	}
	p.asked++
	a, err := readAnswer(p.reader)
	if err != nil {
		return answer{}, fmt.Errorf("the answer of worker %d: %w", p.worker, err)
	}
	return a, nil
}

// readAnswer reads one answer that has a Content-Length. It is lean: the probes share cores with what they probe.
func readAnswer(r *bufio.Reader) (answer, error) {
	status, err := r.ReadSlice('\n')
	if err != nil {
		return answer{}, err //nolint:wrapcheck // ask does
	}
	fields := bytes.Fields(status)
	if len(fields) < 2 {
		return answer{}, fmt.Errorf("a status line %q", status)
	}
	a := answer{}
	if a.status, err = strconv.Atoi(string(fields[1])); err != nil {
		return answer{}, fmt.Errorf("a status line %q", status)
	}
	length := 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return answer{}, err //nolint:wrapcheck // ask does
		}
		name, value, isHeader := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		if !isHeader {
			break
		}
		if bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return answer{}, fmt.Errorf("a header %q", line)
			}
		}
	}
	body := make([]byte, length)
	for read := 0; read < length; {
		n, err := r.Read(body[read:])
		if err != nil {
			return answer{}, err //nolint:wrapcheck // ask does
		}
		read += n
	}
	a.body = string(body)
	return a, nil
}

// connect opens a connection to each worker. A worker accepts what comes while the others are stopped, so
// they are, for a moment.
func connect(ctx context.Context, address string, workers []int) ([]*probe, error) {
	var probes []*probe
	for _, worker := range workers {
		p, err := connectTo(ctx, address, worker, workers)
		if err != nil {
			return nil, errors.Join(err, closeAll(probes))
		}
		probes = append(probes, p)
	}
	return probes, nil
}

// renew replaces connections that have few requests left.
func renew(ctx context.Context, address string, probes []*probe) error {
	workers := make([]int, len(probes))
	for i, p := range probes {
		workers[i] = p.worker
	}
	for i, p := range probes {
		if p.asked < wornAfter {
			continue
		}
		fresh, err := connectTo(ctx, address, p.worker, workers)
		if err != nil {
			return err
		}
		_ = p.conn.Close() // the proxy may have been faster
		probes[i] = fresh
	}
	return nil
}

func closeAll(probes []*probe) error {
	var errs []error
	for _, p := range probes {
		errs = append(errs, p.conn.Close())
	}
	return errors.Join(errs...)
}

func connectTo(ctx context.Context, address string, worker int, workers []int) (*probe, error) {
	for _, other := range workers {
		if other == worker {
			continue
		}
		if err := syscall.Kill(other, syscall.SIGSTOP); err != nil {
			return nil, fmt.Errorf("stop worker %d: %w", other, err)
		}
		defer func() { _ = syscall.Kill(other, syscall.SIGCONT) }() // one that is gone needs none
		if err := stopped(ctx, other); err != nil {
			return nil, err
		}
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	p := &probe{conn: conn, reader: bufio.NewReader(conn), worker: worker}
	// An answer proves that the connection was accepted; whose it is, the kernel tells.
	if _, err := p.ask("nobody.test"); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := belongs(conn, worker); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return p, nil
}

// stopped waits until a process has stopped: before, a new connection could still wake it, and it alone.
func stopped(ctx context.Context, pid int) error {
	end := time.Now().Add(probeTimeout)
	for time.Now().Before(end) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return fmt.Errorf("look at worker %d: %w", pid, err)
		}
		if bytes.Contains(stat, []byte(") T ")) {
			return nil
		}
		if err := stage.Wait(ctx, probeEvery); err != nil {
			return err
		}
	}
	return fmt.Errorf("worker %d does not stop", pid)
}

// belongs looks for the other end of a connection among the open files of a process.
func belongs(conn net.Conn, pid int) error {
	near, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return fmt.Errorf("the connection's own address: %w", err)
	}
	inode, err := inodeOf(conn.RemoteAddr().String(), near.String())
	if err != nil {
		return err
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return fmt.Errorf("list the files of worker %d: %w", pid, err)
	}
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil && target == "socket:["+inode+"]" {
			return nil
		}
	}
	return fmt.Errorf("the connection is not worker %d's", pid)
}

// inodeOf finds a socket of this network namespace by its addresses.
func inodeOf(local, remote string) (string, error) {
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		return "", fmt.Errorf("list connections: %w", err)
	}
	near, far := procAddress(local), procAddress(remote)
	for line := range strings.Lines(string(table)) {
		// sl local remote st tx:rx tr:when retrnsmt uid timeout inode
		if f := strings.Fields(line); len(f) > 9 && f[1] == near && f[2] == far {
			return f[9], nil
		}
	}
	return "", fmt.Errorf("no connection from %s to %s", local, remote)
}

// procAddress writes an IPv4 address and port as /proc/net/tcp does: bytes of the address in reverse.
func procAddress(s string) string {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return s // found in no line
	}
	b := a.Addr().As4()
	return fmt.Sprintf("%02X%02X%02X%02X:%04X", b[3], b[2], b[1], b[0], a.Port())
}

// await asks a worker until it answers as wanted, and gives the time of that; answers in between must be old.
func (p *probe) await(ctx context.Context, host string, old func(answer) bool, want func(answer) bool) (time.Time, error) {
	end := time.Now().Add(probeTimeout)
	for n := 0; ; n++ {
		a, err := p.ask(host)
		switch {
		case err != nil:
			return time.Time{}, err
		case want(a):
			return time.Now(), nil
		case !old(a):
			return time.Time{}, fmt.Errorf("worker %d answers %q for %s", p.worker, a, host)
		case time.Now().After(end):
			return time.Time{}, fmt.Errorf("worker %d still answers %q for %s after %s", p.worker, a, host, probeTimeout)
		}
		pause := probeEvery
		if n >= fineProbes {
			pause = probeSlowly
		}
		if err := stage.Wait(ctx, pause); err != nil {
			return time.Time{}, err
		}
	}
}

// workersOf waits until the proxy has n workers, and gives them.
func workersOf(ctx context.Context, list func(context.Context) ([]int, error), n int) ([]int, error) {
	end := time.Now().Add(probeTimeout)
	for {
		workers, err := list(ctx)
		if err == nil && len(workers) == n {
			return workers, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%d workers, want %d: %w", len(workers), n, err)
		}
		if err := stage.Wait(ctx, stage.Poll); err != nil {
			return nil, err
		}
	}
}
