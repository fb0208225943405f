package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"headgate/bench/edge"
	"headgate/bench/stage"
	"headgate/sync/admin"
)

const startTimeout = 30 * time.Second

// The modules are Debian's or OpenResty's own; what the backend needs Lua for is the echo of /headers alone.
const backendConf = `daemon off;
user root;
worker_processes 1;
pid nginx.pid;
error_log stderr crit;
%s
events { worker_connections 16384; multi_accept on; }
http {
    access_log off;
    keepalive_requests 1000000000;
    default_type text/plain;
    server {
        listen 0.0.0.0:%d backlog=4096;
        location / { return 200 "%s"; }
        location = /headers { content_by_lua_block { ngx.print(ngx.req.raw_header()) } }
    }
}
`

// startBackend starts what answers every request: 1 KiB from memory; under /headers the request as it arrived.
func startBackend(ctx context.Context, s *stage.Stage) error {
	modules := ""
	for _, name := range []string{"ndk_http_module.so", "ngx_http_lua_module.so"} {
		// Debian's; where they are absent (OpenResty), Lua is built in.
		if path := filepath.Join("/usr/lib/nginx/modules", name); exists(path) {
			modules += "load_module " + path + ";\n"
		}
	}
	_, err := startNginx(ctx, s, "backend", fmt.Sprintf(backendConf, modules, backendPort, strings.Repeat("x", 1024)),
		fmt.Sprintf("127.0.0.1:%d", backendPort))
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// startNginx starts an nginx with one worker and waits until it listens.
func startNginx(ctx context.Context, s *stage.Stage, name, conf, address string) (worker, error) {
	dir, err := s.Folder(name)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil { //nolint:gosec // no secret in it
		return nil, fmt.Errorf("write nginx.conf: %w", err)
	}
	p, err := s.Start(ctx, name, nil, "nginx", "-p", dir, "-c", file, "-e", "stderr")
	if err != nil {
		return nil, err
	}
	if err := p.Await(ctx, startTimeout, stage.Listens(address)); err != nil {
		return nil, err
	}
	return func(context.Context) (int, error) {
		return only(stage.Children(p.PID()))
	}, nil
}

func only(pids []int, err error) (int, error) {
	if err == nil && len(pids) != 1 {
		err = fmt.Errorf("%d workers, want one", len(pids))
	}
	if err != nil {
		return 0, err
	}
	return pids[0], nil
}

// The directives are those that headgate's own nginx.conf has for the same work; what a request looks like at
// the backend is compared before anything is measured.
const staticConf = `daemon off;
user root;
worker_processes 1;
pid nginx.pid;
error_log stderr crit;
pcre_jit on;
events { worker_connections 16384; multi_accept on; }
http {
    access_log off;
    server_tokens off;
    sendfile on;
    tcp_nopush on;
    tcp_nodelay on;
    reset_timedout_connection on;
    keepalive_timeout 75s;
    keepalive_requests 1000;
    client_max_body_size 1m;
    server_names_hash_max_size 65536;
    server_names_hash_bucket_size 128;
    proxy_http_version 1.1;
    proxy_connect_timeout 5s;
    proxy_send_timeout 60s;
    proxy_read_timeout 60s;
    proxy_buffering off;
    proxy_buffer_size 4k;
    proxy_buffers 4 4k;
    proxy_redirect off;
    proxy_next_upstream error timeout;
    proxy_next_upstream_tries 3;
    map $http_upgrade $connection_upgrade { default upgrade; "" ""; }
    map $http_x_request_id $kept_request_id { default $http_x_request_id; "" $request_id; }
    proxy_set_header Host $http_host;
    proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection $connection_upgrade;
    proxy_set_header X-Request-ID $kept_request_id;
    proxy_set_header X-Real-IP $remote_addr;
    proxy_set_header X-Forwarded-For $remote_addr;
    proxy_set_header X-Forwarded-Host $http_host;
    proxy_set_header X-Forwarded-Port $server_port;
    proxy_set_header X-Forwarded-Proto $scheme;
    proxy_set_header X-Forwarded-Scheme $scheme;
    proxy_set_header X-Scheme $scheme;
    proxy_set_header X-Original-Forwarded-For $http_x_forwarded_for;
    proxy_set_header X-Original-Forwarded-Host $http_x_forwarded_host;
    proxy_set_header Proxy "";
%s}
`

// The settings are headgate's.
const staticTLS = `    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_prefer_server_ciphers on;
    ssl_ecdh_curve auto;
    ssl_session_cache shared:tls:10m;
    ssl_session_timeout 10m;
    ssl_session_tickets off;
    ssl_buffer_size 4k;
    proxy_hide_header Strict-Transport-Security;
    add_header Strict-Transport-Security "max-age=31536000; includeSubDomains" always;
    ssl_certificate "%s";
    ssl_certificate_key "%s";
`

// static starts plain nginx with a server block for each host.
func static(ctx context.Context, s *stage.Stage, a side) (worker, error) {
	listen, extra := a.address, ""
	if id := a.site.tls; id != nil {
		dir, err := s.Folder(a.name)
		if err != nil {
			return nil, err
		}
		certificate, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
		if err := errors.Join(os.WriteFile(certificate, id.certificate, 0o600), os.WriteFile(key, id.key, 0o600)); err != nil {
			return nil, fmt.Errorf("write the certificate: %w", err)
		}
		listen += " ssl http2"
		extra = fmt.Sprintf(staticTLS, certificate, key)
	}
	return startNginx(ctx, s, a.name, fmt.Sprintf(staticConf, extra+a.site.nginxServers(listen)), a.address)
}

// flavour is how headgate is configured.
type flavour string

const (
	// plain counts no requests and ejects no peers: what static nginx does.
	plain flavour = "without metrics and passive health"
	// packaged is the default of the package.
	packaged flavour = "with metrics and passive health"
)

func (f flavour) watched() bool { return f == packaged }

// headgate starts the product, without what static nginx does not do either.
func headgate(ctx context.Context, s *stage.Stage, a side) (worker, error) {
	return product(ctx, s, a, plain)
}

// headgatePackaged starts the product as it is installed.
func headgatePackaged(ctx context.Context, s *stage.Stage, a side) (worker, error) {
	return product(ctx, s, a, packaged)
}

// product starts headgate with a folder of manifests.
func product(ctx context.Context, s *stage.Stage, a side, p flavour) (worker, error) {
	folder, err := s.Folder(a.name + "-manifests")
	if err != nil {
		return nil, err
	}
	text, err := a.site.manifests()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(folder, "site.json"), text, 0o600); err != nil {
		return nil, fmt.Errorf("write manifests: %w", err)
	}
	// The listener that the scenario does not use stands aside.
	http, https := a.address, "127.0.0.2"+a.address[strings.LastIndex(a.address, ":"):]
	if a.site.tls != nil {
		http, https = https, http
	}
	config := edge.Config{Name: a.name, Binary: a.plan.binary, Manifests: folder, HTTP: http, HTTPS: https, Workers: 1}
	if p.watched() {
		// Without a listener for metrics nothing is counted.
		config.Metrics = "127.0.0.3" + a.address[strings.LastIndex(a.address, ":"):]
	} else {
		config.MetricsOfRequests = edge.Off
		config.More = []string{"upstreams: {eject: false}"}
	}
	g, err := edge.Start(ctx, s, config, func(status admin.Status) error {
		if status.Counts.Hosts != a.site.hosts || len(status.Problems) > 0 {
			return fmt.Errorf("%d of %d hosts, problems: %v", status.Counts.Hosts, a.site.hosts, status.Problems)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	conf, err := g.Conf()
	if err != nil {
		return nil, err
	}
	for _, sign := range []string{"log_by_lua", "metrics = true"} {
		if strings.Contains(conf, sign) != p.watched() {
			return nil, fmt.Errorf("headgate %s, but that nginx.conf has %q is %t", p, sign, !p.watched())
		}
	}
	return func(ctx context.Context) (int, error) { return only(g.Workers(ctx)) }, nil
}

// One thread; the headers that headgate and static nginx set, too.
const haproxyConf = `global
    nbthread 1
    maxconn 4096
defaults
    mode http
    timeout connect 5s
    timeout client 75s
    timeout server 60s
    timeout http-keep-alive 75s
    retries 2
    http-reuse always
frontend in
    bind %s
    http-request set-header X-Request-ID %%[uuid] unless { req.hdr(X-Request-ID) -m found }
    http-request set-header X-Original-Forwarded-For %%[req.hdr(X-Forwarded-For)] if { req.hdr(X-Forwarded-For) -m found }
    http-request set-header X-Original-Forwarded-Host %%[req.hdr(X-Forwarded-Host)] if { req.hdr(X-Forwarded-Host) -m found }
    http-request set-header X-Real-IP %%[src]
    http-request set-header X-Forwarded-For %%[src]
    http-request set-header X-Forwarded-Host %%[req.hdr(Host)]
    http-request set-header X-Forwarded-Port %%[dst_port]
    http-request set-header X-Forwarded-Proto http
    http-request set-header X-Forwarded-Scheme http
    http-request set-header X-Scheme http
    http-request del-header Proxy
%s`

// haproxy starts HAProxy with a backend for each upstream and a map of hosts.
func haproxy(ctx context.Context, s *stage.Stage, a side) (worker, error) {
	dir, err := s.Folder(a.name)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for i := range a.site.hosts {
		fmt.Fprintf(&b, "    use_backend s%d if { req.hdr(host) -m str %s }\n", i%a.site.upstreams, a.site.host(i))
	}
	for u := range a.site.upstreams {
		fmt.Fprintf(&b, "backend s%d\n", u)
		for i := range a.site.peers {
			fmt.Fprintf(&b, "    server p%d %s:%d\n", i, a.site.peer(u, i), backendPort)
		}
	}
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, fmt.Appendf(nil, haproxyConf, a.address, b.String()), 0o600); err != nil {
		return nil, fmt.Errorf("write haproxy.cfg: %w", err)
	}
	p, err := s.Start(ctx, a.name, nil, "haproxy", "-db", "-f", file)
	if err != nil {
		return nil, err
	}
	if err := p.Await(ctx, startTimeout, stage.Listens(a.address)); err != nil {
		return nil, err
	}
	return func(context.Context) (int, error) { return p.PID(), nil }, nil
}

// identity is a certificate and its key in PEM.
type identity struct{ certificate, key []byte }

// newIdentity makes a self-signed ECDSA certificate (P-256).
func newIdentity(name string) (*identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return &identity{
		certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}, nil
}
