package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"headgate/bench/figure"
	"headgate/bench/stage"
)

// Requests over HTTP/2: connections of one side, and streams of one connection that are under way at a time.
const h2Connections, h2Streams = 4, 8

// http2Requests asks over kept HTTP/2 connections, as fast as it is answered.
func http2Requests(ctx context.Context, _ *stage.Stage, a side, d time.Duration) (load, error) {
	end := time.Now().Add(d)
	var mu sync.Mutex
	var times []time.Duration
	g, ctx := errgroup.WithContext(ctx)
	for range h2Connections {
		client := http2Client(a)
		for range h2Streams {
			g.Go(func() error {
				var mine []time.Duration
				for time.Now().Before(end) {
					start := time.Now()
					if err := getOver2(ctx, client, a); err != nil {
						return err
					}
					mine = append(mine, time.Since(start))
				}
				mu.Lock()
				defer mu.Unlock()
				times = append(times, mine...)
				return nil
			})
		}
		defer client.CloseIdleConnections()
	}
	err := g.Wait()
	return load{requests: len(times), p50: figure.Percentile(times, 0.5), p99: figure.Percentile(times, 0.99)}, err //nolint:wrapcheck // getOver2 did
}

func http2Client(a side) *http.Client {
	protocols := &http.Protocols{}
	protocols.SetHTTP2(true)
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		Protocols:       protocols,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: a.site.host(0)}, //nolint:gosec // the benchmark's own certificate
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, a.address)
		},
	}}
}

func getOver2(ctx context.Context, client *http.Client, a side) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+a.site.host(0)+"/", nil)
	if err != nil {
		return fmt.Errorf("make a request: %w", err)
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask over HTTP/2: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return fmt.Errorf("read over HTTP/2: %w", err)
	}
	if res.StatusCode != http.StatusOK || res.ProtoMajor != 2 {
		return fmt.Errorf("asked over HTTP/2: %s %s", res.Proto, res.Status)
	}
	return nil
}
