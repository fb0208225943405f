package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/sync/admin"
	"headgate/sync/kubestatus"
	"headgate/sync/kubewatch"
	"headgate/sync/lossguard"
	"headgate/sync/manifests"
	"headgate/sync/reconcile"
)

// source is where the objects come from, and what goes back there.
type source struct {
	kind    string // "cluster" or "manifests"
	objects reconcile.Source
	run     func(context.Context) error
	// writer writes status and Events; it needs the source until it has ended.
	writer func(context.Context) error
	// health may be called from any goroutine; Synced is left to the loop.
	health func() admin.Source
	// tell is called by the loop after each pass that went all the way; it does not block.
	tell func(kubestatus.Desired)
	// publish replaces what is written to the status of Ingresses.
	publish func(config.Publish) error
	// apiServers are refused as upstream addresses.
	apiServers func() []netip.Addr
	// signs tell whether a loss may be none, and relist has everything read once more; it may be nil.
	signs  func() lossguard.Signs
	relist func()
	// secrets reads those that Ingresses name for TLS to peers; nil where all are read.
	secrets reconcile.Secrets
}

// guarded puts the guard in front of what is read.
func (s *source) guarded(c config.Config, file string, log *slog.Logger) *lossguard.Guard {
	return lossguard.New(lossguard.Config{
		Source: s.objects, Signs: s.signs, Relist: s.relist, Limits: assemble.LossGuard(c), MaxAge: time.Duration(c.LossGuard.MaxAge),
		File: file, Identity: assemble.Identity(c), Logger: room(log, "lossguard"),
	})
}

func newSource(c config.Config, log *slog.Logger) (source, error) {
	if c.Kubeconfig != "" {
		return newCluster(c, log)
	}
	return newFolders(c, log)
}

// newFolders reads manifests. They are unhealthy while a folder cannot be read as a whole; what is wrong with a file is
// a problem of its own.
func newFolders(c config.Config, log *slog.Logger) (source, error) {
	folders, err := manifests.New(manifests.Config{Folders: c.Manifests, StateDir: c.StateDir, Logger: room(log, "manifests")})
	if err != nil {
		return source{}, err
	}
	return source{
		kind: "manifests", objects: folders, run: folders.Run, writer: idle,
		health: func() admin.Source {
			h := folders.Health()
			return admin.Source{Kind: "manifests", Detail: strings.Join(c.Manifests, ", "), Healthy: h.Healthy, Since: h.Since, Error: h.Reason}
		},
		tell:       func(kubestatus.Desired) {},
		publish:    func(config.Publish) error { return nil },
		apiServers: func() []netip.Addr { return nil },
		signs:      func() lossguard.Signs { return assemble.FolderSigns(folders.Health()) },
	}, nil
}

// noticeDeadConnections has client-go ask a silent connection to the API server for a sign of life after 10 s, and
// give it up 5 s later: by default a watch whose other end vanished is missed after 45 s only. It reads these variables
// when it makes a transport; what the administrator has set stays.
func noticeDeadConnections() error {
	for name, seconds := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5"} {
		if _, set := os.LookupEnv(name); set {
			continue
		}
		if err := os.Setenv(name, seconds); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

func newCluster(c config.Config, log *slog.Logger) (source, error) {
	if err := noticeDeadConnections(); err != nil {
		return source{}, err
	}
	cluster, err := kubewatch.New(kubewatch.Config{
		Kubeconfig: c.Kubeconfig, Namespaces: c.Namespaces, Secrets: assemble.Secrets(c), Version: version, Logger: room(log, "kubewatch"),
	})
	if err != nil {
		return source{}, err
	}
	s := source{
		kind: "cluster", objects: cluster, run: cluster.Run, writer: idle,
		health:     func() admin.Source { return assemble.ClusterHealth(c.Kubeconfig, cluster.Health()) },
		tell:       func(kubestatus.Desired) {},
		publish:    func(config.Publish) error { return nil },
		apiServers: cluster.APIServers,
		signs:      func() lossguard.Signs { return assemble.ClusterSigns(cluster.Health()) },
		relist:     cluster.Relist,
		secrets:    cluster,
	}
	if !c.Status.Enabled {
		return s, nil
	}
	writer, err := kubestatus.New(kubestatus.Config{
		Client: cluster.Client, Addresses: c.Publish.Addresses, ClearOnStop: c.Publish.ClearOnStop,
		LeaseNamespace: c.Status.LeaseNamespace, LeaseName: c.Status.LeaseName, Logger: room(log, "kubestatus"),
	})
	if err != nil {
		return source{}, err
	}
	s.tell, s.writer = writer.Update, writer.Run
	s.publish = func(p config.Publish) error {
		return writer.Publish(kubestatus.Publishing{Addresses: p.Addresses, ClearOnStop: p.ClearOnStop})
	}
	return s, nil
}

// idle takes the place of a part that is switched off.
func idle(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
