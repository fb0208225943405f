package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"headgate/bench/cluster"
	"headgate/bench/stage"
)

// nginx is the hand-written rival: a server and an upstream for each service, and a reload for each change.
type nginx struct {
	bed     *bed
	file    string
	process *stage.Process
	size    int
	moved   []bool
}

const nginxHead = `daemon off;
user root;
worker_processes %d;
pid nginx.pid;
error_log stderr crit;
events { worker_connections 16384; multi_accept on; }
http {
    access_log off;
    keepalive_requests 1000;
    server_names_hash_max_size 65536;
    server_names_hash_bucket_size 128;
    proxy_http_version 1.1;
    proxy_set_header Host $http_host;
    proxy_set_header Connection "";
    proxy_buffering off;
    proxy_next_upstream error timeout;
    proxy_next_upstream_tries 3;
    server {
        listen %s default_server backlog=4096;
        return 404;
    }
`

func startNginx(ctx context.Context, s *stage.Stage, b *bed) (*nginx, error) {
	dir, err := s.Folder("nginx")
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	n := &nginx{bed: b, file: filepath.Join(dir, "nginx.conf"), size: many, moved: make([]bool, b.plan.upstreams)}
	if err := n.write(); err != nil {
		return nil, err
	}
	n.process, err = s.Start(ctx, "nginx", nil, "nginx", "-p", dir, "-c", n.file, "-e", "stderr")
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	return n, n.process.Await(ctx, 30*time.Second, stage.Listens(nginxAddress)) //nolint:wrapcheck // likewise
}

func (n *nginx) write() error {
	var b strings.Builder
	fmt.Fprintf(&b, nginxHead, runtime.NumCPU(), nginxAddress)
	n.service(&b, churning, churners(n.size))
	for i := range n.moved {
		// The same endpoints as headgate's, in the state that nginx's own changes left.
		was := n.bed.moved[i]
		n.bed.moved[i] = n.moved[i]
		n.service(&b, name(i), n.bed.peers(i))
		n.bed.moved[i] = was
	}
	b.WriteString("}\n")
	if err := os.WriteFile(n.file, []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("write nginx.conf: %w", err)
	}
	return nil
}

func (n *nginx) service(b *strings.Builder, name string, peers []string) {
	fmt.Fprintf(b, "    upstream %s {\n        keepalive 320;\n", name)
	for _, p := range peers {
		fmt.Fprintf(b, "        server %s:%d;\n", p, cluster.BackendPort)
	}
	fmt.Fprintf(b, "    }\n    server {\n        listen %s;\n        server_name %s.test;\n        location / { proxy_pass http://%s; }\n    }\n",
		nginxAddress, name, name)
}

// change changes the file as headgate's cluster is changed, and reloads. Twenty reloads a second would leave a
// hundred dying workers; nginx gets one a second, with all changes of that second in it.
func (n *nginx) change(_ context.Context, what change) error {
	if what == moveOne {
		i := n.bed.random.IntN(n.bed.plan.upstreams)
		n.moved[i] = !n.moved[i]
		return nil
	}
	n.size = few + many - n.size
	if err := n.write(); err != nil {
		return err
	}
	if err := syscall.Kill(n.process.PID(), syscall.SIGHUP); err != nil {
		return fmt.Errorf("reload nginx: %w", err)
	}
	return nil
}
