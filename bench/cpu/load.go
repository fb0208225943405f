package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"headgate/bench/figure"
	"headgate/bench/stage"
)

// handshakers is how many handshakes of one side are made at a time.
const handshakers = 4

// The hosts are asked in one shuffled order, again and again: each equally often, none while its entries are
// still in a cache of the processor if there are many.
const wrkScript = `local hosts, at, requests = %d, 0, {}
function init(args)
    math.randomseed(1)
    for i = 1, hosts do
        requests[i] = wrk.format("GET", "/", { Host = "h" .. (i - 1) .. ".test" })
    end
    for i = hosts, 2, -1 do
        local j = math.random(i)
        requests[i], requests[j] = requests[j], requests[i]
    end
end
function request()
    at = at %% hosts + 1
    return requests[at]
end
function done(summary, latency, _)
    local e = summary.errors
    io.write(string.format("DONE %%d %%d %%d %%d\n", summary.requests,
        e.connect + e.read + e.write + e.status + e.timeout, latency:percentile(50), latency:percentile(99)))
end
`

// requests has wrk ask for / of all hosts over kept connections, as fast as it is answered.
func requests(ctx context.Context, s *stage.Stage, a side, d time.Duration) (load, error) {
	script := filepath.Join(s.Dir, a.name+".wrk.lua")
	if err := os.WriteFile(script, fmt.Appendf(nil, wrkScript, a.site.hosts), 0o600); err != nil {
		return load{}, fmt.Errorf("write the script of wrk: %w", err)
	}
	cmd := exec.CommandContext(ctx, "wrk", "-t", "1", "-c", strconv.Itoa(a.plan.connections), "-d", fmt.Sprintf("%ds", int(d.Seconds())), //nolint:gosec // our own arguments
		"-s", script, a.scheme()+"://"+a.address+"/")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return load{}, fmt.Errorf("wrk: %w\n%s", err, out)
	}
	return parseDone(string(out))
}

// parseDone reads what the script of wrk says at the end: requests, errors and microseconds.
func parseDone(out string) (load, error) {
	_, last, _ := strings.Cut(out, "DONE ")
	var n [4]int
	fields := strings.Fields(last)
	if len(fields) != len(n) {
		return load{}, fmt.Errorf("wrk said nothing of its result:\n%s", out)
	}
	for i, field := range fields {
		var err error
		if n[i], err = strconv.Atoi(field); err != nil {
			return load{}, fmt.Errorf("wrk's result %q: %w", last, err)
		}
	}
	if n[1] != 0 {
		return load{}, fmt.Errorf("%d of %d requests failed:\n%s", n[1], n[0], out)
	}
	return load{requests: n[0], p50: time.Duration(n[2]) * time.Microsecond, p99: time.Duration(n[3]) * time.Microsecond}, nil
}

// handshakes makes full TLS 1.3 handshakes and nothing else: no session is resumed, no request sent.
func handshakes(ctx context.Context, _ *stage.Stage, a side, d time.Duration) (load, error) {
	end := time.Now().Add(d)
	config := &tls.Config{InsecureSkipVerify: true, ServerName: a.site.host(0), MinVersion: tls.VersionTLS13} //nolint:gosec // the benchmark's own certificate
	var mu sync.Mutex
	var times []time.Duration
	g, ctx := errgroup.WithContext(ctx)
	for range handshakers {
		g.Go(func() error {
			var mine []time.Duration
			for time.Now().Before(end) {
				took, err := handshake(ctx, a, config)
				if err != nil {
					return err
				}
				mine = append(mine, took)
			}
			mu.Lock()
			defer mu.Unlock()
			times = append(times, mine...)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return load{}, err
	}
	// The server ends the last ones after their clients did.
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Millisecond):
	}
	return load{requests: len(times), p50: figure.Percentile(times, 0.5), p99: figure.Percentile(times, 0.99)}, nil
}

func handshake(ctx context.Context, a side, config *tls.Config) (time.Duration, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", a.address)
	if err != nil {
		return 0, fmt.Errorf("dial: %w", err)
	}
	defer func() { _ = raw.Close() }()
	start := time.Now()
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return 0, fmt.Errorf("handshake: %w", err)
	}
	took := time.Since(start)
	state := conn.ConnectionState()
	if names := state.PeerCertificates[0].DNSNames; len(names) != 1 || names[0] != a.site.host(0) {
		return 0, fmt.Errorf("the certificate is for %q, want %s", names, a.site.host(0))
	}
	if state.DidResume {
		return 0, errors.New("a session was resumed")
	}
	_ = conn.Close() // the server may have been faster
	return took, nil
}
