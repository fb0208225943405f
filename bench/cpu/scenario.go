package main

import (
	"context"
	"fmt"

	"headgate/bench/stage"
)

// firstPort is that of the first side; each has one of its own.
const firstPort = 8000

// scenarios are the rows of the table.
func scenarios() ([]scenario, error) {
	id, err := newIdentity(site{}.host(0))
	if err != nil {
		return nil, err
	}
	one := func(hosts int) site { return site{hosts: hosts, upstreams: 1, peers: 1} }
	secure := one(1)
	secure.tls = id
	return []scenario{
		{"", "control: static nginx against a copy of itself", one(1), static, static, requests},
		{"static_1", "headgate, 1 host", one(1), static, headgate, requests},
		{"metrics_1", "headgate, 1 host, metrics and passive health on (the packaged default)", one(1), static, headgatePackaged, requests},
		{"haproxy_1", "HAProxy, 1 host", one(1), static, haproxy, requests},
		{"static_1000", "headgate, 1,000 hosts", one(1000), static, headgate, requests},
		{"static_10000", "headgate, 10,000 hosts", one(10000), static, headgate, requests},
		{"upstreams_250", "headgate, 1,000 endpoints in 250 upstreams", site{hosts: 250, upstreams: 250, peers: 4}, static, headgate, requests},
		{"tls_keepalive", "headgate, https over kept connections", secure, static, headgate, requests},
		{"http2", "headgate, HTTP/2 over kept connections", secure, static, headgate, http2Requests},
		{"tls_handshake", "headgate, TLS handshakes", secure, static, headgate, handshakes},
	}, nil
}

// setUp starts both sides of every scenario.
func setUp(ctx context.Context, s *stage.Stage, p plan) ([]*match, error) {
	list, err := scenarios()
	if err != nil {
		return nil, err
	}
	core, _, err := stage.Cores()
	if err != nil {
		return nil, err
	}
	var matches []*match
	for i, sc := range list {
		if p.only != "" && p.only != sc.key {
			continue
		}
		m := &match{scenario: sc, stage: s, core: core}
		for j, start := range []func(context.Context, *stage.Stage, side) (worker, error){sc.base, sc.candidate} {
			m.sides[j] = side{
				name: fmt.Sprintf("%d%c", i, "bc"[j]), site: sc.site, plan: p,
				address: fmt.Sprintf("127.0.0.1:%d", firstPort+2*i+j),
			}
			if m.workers[j], err = start(ctx, s, m.sides[j]); err != nil {
				return nil, fmt.Errorf("%s: %w", sc.what, err)
			}
		}
		if err := equal(ctx, m.sides); err != nil {
			return nil, fmt.Errorf("%s: %w", sc.what, err)
		}
		matches = append(matches, m)
	}
	if len(matches) == 0 {
		return nil, fmt.Errorf("no scenario is called %q", p.only)
	}
	return matches, nil
}
