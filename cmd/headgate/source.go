package main

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/sync/admin"
	"headgate/sync/kubestatus"
	"headgate/sync/kubewatch"
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
	// apiServers are refused as upstream addresses.
	apiServers func() []netip.Addr
}

func newSource(c config.Config, log *slog.Logger) (source, error) {
	if c.Kubeconfig != "" {
		return newCluster(c, log)
	}
	return newFolders(c, log)
}

// newFolders reads manifests. They cannot be unhealthy: what cannot be read is a problem of its own, and its
// last good version stays.
func newFolders(c config.Config, log *slog.Logger) (source, error) {
	folders, err := manifests.New(manifests.Config{Folders: c.Manifests, StateDir: c.StateDir, Logger: room(log, "manifests")})
	if err != nil {
		return source{}, err
	}
	since := time.Now()
	return source{
		kind: "manifests", objects: folders, run: folders.Run, writer: idle,
		health: func() admin.Source {
			return admin.Source{Kind: "manifests", Detail: strings.Join(c.Manifests, ", "), Healthy: true, Since: since}
		},
		tell:       func(kubestatus.Desired) {},
		apiServers: func() []netip.Addr { return nil },
	}, nil
}

func newCluster(c config.Config, log *slog.Logger) (source, error) {
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
		apiServers: cluster.APIServers,
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
	return s, nil
}

// idle takes the place of a part that is switched off.
func idle(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
