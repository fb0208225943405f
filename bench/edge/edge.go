// Package edge runs the product for a benchmark as its user does: the headgate binary with a managed proxy of
// its own, on the stage of the benchmark. It decides nothing of what is measured.
package edge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"headgate/bench/stage"
	"headgate/sync/admin"
)

const (
	statusTimeout = 5 * time.Second
	readyTimeout  = 60 * time.Second
)

// The ranks are those of the units: headgate-proxy.service has Nice=-10 (and its session, and the slice of stage.First, by
// 'headgate proxy start'), headgate.service has none.
const (
	proxyRank  = stage.First
	daemonRank = stage.Beside
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
	// KeepProxy leaves the proxy when the daemon ends, as on an edge host.
	KeepProxy bool
	// Metrics is metrics.listen, "address:port"; "" turns it off.
	Metrics string
	// MetricsOfRequests is metrics.requests; "" is the default, on.
	MetricsOfRequests Switch
	// More are further lines of the configuration.
	More []string
	// Within is how long the daemon may take to become ready; 0 means a minute.
	Within time.Duration
}

// Switch turns something off.
type Switch string

// Off is the one that is not the default.
const Off Switch = "off"

// Gateway is a running headgate.
type Gateway struct {
	config  Config
	dir     string
	stage   *stage.Stage
	process *stage.Process
}

// Start starts the gateway and waits until complete is satisfied by its status and every worker has caught up
// with the generation that is served.
func Start(ctx context.Context, s *stage.Stage, c Config, complete func(admin.Status) error) (*Gateway, error) {
	dir, err := s.Folder(c.Name)
	if err != nil {
		return nil, err
	}
	g := &Gateway{config: c, dir: dir, stage: s}
	if err := os.WriteFile(g.file(), g.text(), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	if err := g.Run(ctx); err != nil {
		return nil, err
	}
	return g, g.Await(ctx, complete)
}

func (g *Gateway) file() string { return filepath.Join(g.dir, "headgate.yaml") }

// Run starts the daemon (again).
func (g *Gateway) Run(ctx context.Context) (err error) {
	// Asked when the stage closes: then ctx has perhaps ended.
	leaves := func() []int { return g.proxyProcesses(context.WithoutCancel(ctx)) }
	g.process, err = g.stage.StartAt(ctx, daemonRank, g.config.Name, leaves, g.config.Binary, "run", "--config", g.file())
	return err
}

// Kill sends a signal to the daemon and waits for its end.
func (g *Gateway) Kill(ctx context.Context, sig syscall.Signal) error {
	return g.process.Kill(ctx, sig)
}

// KillAll kills the daemon and its proxy with -9 and waits until both are gone: as after a power cut.
func (g *Gateway) KillAll(ctx context.Context) error { return g.end(ctx, syscall.SIGKILL) }

// End ends the daemon and its proxy.
func (g *Gateway) End(ctx context.Context) error { return g.end(ctx, syscall.SIGTERM) }

func (g *Gateway) end(ctx context.Context, sig syscall.Signal) error {
	left := g.proxyProcesses(ctx)
	if err := g.Kill(ctx, sig); err != nil {
		return err
	}
	for _, pid := range left {
		_ = syscall.Kill(pid, sig) // it may have ended with another
	}
	for _, pid := range left {
		for syscall.Kill(pid, 0) == nil {
			if err := stage.Wait(ctx, stage.Poll); err != nil {
				return fmt.Errorf("wait for the end of process %d: %w", pid, err)
			}
		}
	}
	return nil
}

// Await waits until the daemon is ready and complete is satisfied. The proxy has its rank then.
func (g *Gateway) Await(ctx context.Context, complete func(admin.Status) error) error {
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
	if err := g.process.Await(ctx, cmp.Or(g.config.Within, readyTimeout), ready); err != nil {
		return err
	}
	return g.rank(ctx)
}

// rank gives the proxy, which the daemon has started in a session of its own, the rank that its unit gives it.
func (g *Gateway) rank(ctx context.Context) error {
	for _, pid := range g.proxyProcesses(ctx) {
		if err := stage.Put(pid, proxyRank); err != nil {
			return err
		}
	}
	return nil
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
		fmt.Sprintf("proxy: {mode: managed, stopWithDaemon: %t, workerProcesses: %d}", !g.config.KeepProxy, g.config.Workers),
		"status: {enabled: false}",
		fmt.Sprintf("metrics: {listen: %q, requests: %t}", g.config.Metrics, g.config.MetricsOfRequests != Off),
		fmt.Sprintf("stateDir: %q", filepath.Join(g.dir, "state")),
		fmt.Sprintf("runtimeDir: %q", g.runtimeDir()),
	}
	return []byte(strings.Join(append(lines, g.config.More...), "\n") + "\n")
}

func (g *Gateway) runtimeDir() string { return filepath.Join(g.dir, "run") }

// Status asks the daemon.
func (g *Gateway) Status(ctx context.Context) (admin.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return admin.Ask(ctx, g.runtimeDir()) //nolint:wrapcheck // it says whom it asked
}

// Peers are the addresses, without ports, that the proxy holds for an upstream, by its own word.
func (g *Gateway) Peers(ctx context.Context, upstream string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var answer struct {
		Peers []struct {
			Address netip.AddrPort `json:"address"`
		} `json:"peers"`
	}
	if err := g.Control(ctx, "/v1/peers?upstream="+url.QueryEscape(upstream), &answer); err != nil {
		return nil, err
	}
	var list []string
	for _, p := range answer.Peers {
		list = append(list, p.Address.Addr().String())
	}
	return list, nil
}

// Control asks the proxy's control socket and decodes its JSON.
func (g *Gateway) Control(ctx context.Context, path string, into any) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(g.runtimeDir(), "proxy", "control.sock"))
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://proxy"+path, nil)
	if err != nil {
		return fmt.Errorf("ask the proxy: %w", err)
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask the proxy: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the proxy answers %s to %s", res.Status, path)
	}
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		return fmt.Errorf("read the proxy's answer: %w", err)
	}
	return nil
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

// proxyProcesses are those that the daemon started in a session of their own.
func (g *Gateway) proxyProcesses(ctx context.Context) []int {
	master := g.master(ctx)
	if master == 0 {
		return nil
	}
	workers, err := stage.Children(master)
	if err != nil {
		return nil
	}
	return append(workers, master)
}

// master asks the daemon and, where it does not tell (yet), nginx's own file. 0: there is none.
func (g *Gateway) master(ctx context.Context) int {
	if status, err := g.Status(ctx); err == nil && status.Proxy.MasterPID != 0 {
		return status.Proxy.MasterPID
	}
	text, err := os.ReadFile(filepath.Join(g.dir, "run", "nginx.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return pid
}
