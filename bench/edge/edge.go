// Package edge runs the product for a benchmark as its user does: the headgate binary with a managed proxy of
// its own, on the stage of the benchmark. It decides nothing of what is measured.
package edge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"headgate/bench/stage"
	"headgate/sync/admin"
)

const (
	statusTimeout = 5 * time.Second
	readyTimeout  = 60 * time.Second
)

// Config says what to run.
type Config struct {
	// Name tells this gateway from others on the stage; it is short (paths of sockets are).
	Name string
	// Binary is the headgate to run.
	Binary string
	// Kubeconfig of a cluster, or Manifests, a folder.
	Kubeconfig, Manifests string
	// HTTP and HTTPS are the listeners, "address:port".
	HTTP, HTTPS string
	// Workers is the number of nginx workers, ≥ 1.
	Workers int
}

// Gateway is a running headgate.
type Gateway struct {
	config  Config
	dir     string
	process *stage.Process
}

// Start starts the gateway and waits until complete is satisfied by its status and every worker has caught up
// with the generation that is served.
func Start(ctx context.Context, s *stage.Stage, c Config, complete func(admin.Status) error) (*Gateway, error) {
	dir, err := s.Folder(c.Name)
	if err != nil {
		return nil, err
	}
	g := &Gateway{config: c, dir: dir}
	file := filepath.Join(dir, "headgate.yaml")
	if err := os.WriteFile(file, g.text(), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	// Asked when the stage closes: then ctx has perhaps ended.
	leaves := func() []int { return g.proxyProcesses(context.WithoutCancel(ctx)) }
	g.process, err = s.Start(ctx, c.Name, leaves, c.Binary, "run", "--config", file)
	if err != nil {
		return nil, err
	}
	ready := func(ctx context.Context) error {
		status, err := g.Status(ctx)
		if err != nil {
			return err
		}
		if !status.Ready {
			return errors.New("it is not ready: " + status.Error)
		}
		return complete(status)
	}
	return g, g.process.Await(ctx, readyTimeout, ready)
}

// text is the packaged default but for addresses, folders, workers and who runs the proxy. Writing status and
// Events would need RBAC objects and is no part of the path that is measured.
func (g *Gateway) text() []byte {
	source := fmt.Sprintf("kubeconfig: %q", g.config.Kubeconfig)
	if g.config.Manifests != "" {
		source = fmt.Sprintf("manifests: [%q]", g.config.Manifests)
	}
	lines := []string{
		source,
		fmt.Sprintf("listeners: {http: [%q], https: [%q]}", g.config.HTTP, g.config.HTTPS),
		fmt.Sprintf("proxy: {mode: managed, stopWithDaemon: true, workerProcesses: %d}", g.config.Workers),
		"status: {enabled: false}",
		`metrics: {listen: ""}`,
		fmt.Sprintf("stateDir: %q", filepath.Join(g.dir, "state")),
		fmt.Sprintf("runtimeDir: %q", g.runtimeDir()),
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

func (g *Gateway) runtimeDir() string { return filepath.Join(g.dir, "run") }

// Status asks the daemon.
func (g *Gateway) Status(ctx context.Context) (admin.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return admin.Ask(ctx, g.runtimeDir()) //nolint:wrapcheck // it says whom it asked
}

// PID is that of the daemon.
func (g *Gateway) PID() int { return g.process.PID() }

// Conf is the nginx.conf that is served.
func (g *Gateway) Conf() (string, error) {
	b, err := os.ReadFile(filepath.Join(g.runtimeDir(), "nginx.conf"))
	if err != nil {
		return "", fmt.Errorf("read the proxy's configuration: %w", err)
	}
	return string(b), nil
}

// Workers gives the process IDs of the proxy's workers as they are now.
func (g *Gateway) Workers(ctx context.Context) ([]int, error) {
	status, err := g.Status(ctx)
	if err != nil {
		return nil, err
	}
	return stage.Children(status.Proxy.MasterPID)
}

// Reloads sums the reloads so far over their reasons.
func Reloads(s admin.Status) uint64 {
	var sum uint64
	for _, n := range s.Reloads {
		sum += n
	}
	return sum
}

// proxyProcesses are those that the daemon started in a session of their own. Without a word from the daemon
// there is nothing that could be named.
func (g *Gateway) proxyProcesses(ctx context.Context) []int {
	status, err := g.Status(ctx)
	if err != nil || status.Proxy.MasterPID == 0 {
		return nil
	}
	workers, err := stage.Children(status.Proxy.MasterPID)
	if err != nil {
		return nil
	}
	return append(workers, status.Proxy.MasterPID)
}
