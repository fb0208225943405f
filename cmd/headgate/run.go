package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/cmd/difference"
	"headgate/cmd/loglevel"
	"headgate/cmd/notify"
	"headgate/cmd/peers"
	"headgate/cmd/stages"
	"headgate/sync/admin"
)

func newRun() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the gateway's daemon",
		Long: `run reads a cluster (--kubeconfig) or folders of manifests (--manifests), keeps the proxy on this host serving
what it reads, and writes status and Events back to the cluster. It runs until SIGTERM or SIGINT.

The configuration is ` + config.DefaultFile + `, then HEADGATE_… variables, then flags; the keys are listed below. A mistake
in it is refused at the start, with the place, the key and what to write.

The proxy is nginx with its Lua module, or OpenResty. With proxy.mode external systemd runs it; with managed this
daemon starts it. Either way it outlives the daemon: a stop, a crash or an upgrade drops no request, and the next
daemon takes the running proxy over. --stop-proxy-with-daemon ends a managed proxy with the daemon instead.

The configuration is read again by 'headgate reload', which refuses a bad one and says which keys need a restart. SIGHUP
changes nothing and is told in the log. With --stop-proxy-with-daemon it stops the daemon and the proxy, so that closing
the terminal leaves neither.

Exit codes:
  0  stopped by a signal
  1  something failed; it is printed
  3  wrong usage or configuration

Keys, and what each takes. proxy.mode is "proxy: {mode: …}" in the file, HEADGATE_PROXY_MODE in the environment, and
--set proxy.mode=… on the command line:
` + keyList(),
		Example: `  headgate run --kubeconfig /etc/headgate/kubeconfig
  headgate run --manifests ./site --proxy-mode managed --stop-proxy-with-daemon \
      --set listeners.http=127.0.0.1:8080 --set listeners.https=127.0.0.1:8443 \
      --state-dir /tmp/headgate/state --runtime-dir /tmp/headgate/run
  HEADGATE_LOG_LEVEL=debug headgate run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd, config.Source)
			if err != nil {
				return err
			}
			log, level, err := newLogger(c.Log, cmd.ErrOrStderr())
			if err != nil {
				return usageError(err)
			}
			growBy(whileLoading)
			if assemble.Host().NoIPv6 {
				log.Info("this kernel has no IPv6: the proxy listens on IPv4 only")
			}
			ctx, done := heedHangup(cmd.Context(), c.Proxy, log)
			defer done()
			d := makeDaemon(c, log)
			d.level = level
			if d.file, err = configFile(cmd); err != nil {
				return err
			}
			d.load = func() (config.Config, error) { return loadConfig(cmd, config.Source) }
			if err := d.open(ctx); err != nil {
				return &exitError{exitFailed, err}
			}
			d.keepAccepted()
			log.Info("headgate starts", "version", version, "source", d.source.kind, "proxy", c.Proxy.Mode)
			if err := d.run(ctx); err != nil {
				return &exitError{exitFailed, err}
			}
			log.Info("headgate stopped")
			return nil
		},
	}
	allConfigFlags(cmd)
	return cmd
}

// keyList gives a line for each key of the configuration.
func keyList() string {
	keys := config.Keys()
	width := 0
	for _, k := range keys {
		width = max(width, len(k.Name))
	}
	lines := make([]string, len(keys))
	for i, k := range keys {
		lines[i] = fmt.Sprintf("  %-*s  %s", width, k.Name, k.Values)
	}
	return strings.Join(lines, "\n")
}

// run starts everything and stops it in this order, each stage once the one before has ended:
//
//  1. the loop, so that nobody touches the proxy any more, and the word to systemd that we are stopping;
//  2. the status writer, which may take the addresses out of the Ingresses and needs the source for that;
//  3. what the loop works with: the source and its guard, the resolver, the health checks, the state log (a last fsync), the last good versions;
//  4. the proxy, which goes on serving until here and, unless told otherwise, beyond;
//  5. the admin socket and the metrics, so that a stop that hangs can be looked into.
//
// An error of one of them stops all, in the same order.
func (d *daemon) run(ctx context.Context) error {
	g, first := errgroup.WithContext(ctx)
	second, endSecond := context.WithCancel(context.WithoutCancel(ctx))
	third, endThird := context.WithCancel(context.WithoutCancel(ctx))
	fourth, endFourth := context.WithCancel(context.WithoutCancel(ctx))
	fifth, endFifth := context.WithCancel(context.WithoutCancel(ctx))
	defer endFifth()
	stages.Go(first, g, endSecond, d.loop.Run, d.tellSystemd, d.settleMemory)
	stages.Go(second, g, endThird, d.source.writer)
	stages.Go(third, g, endFourth, d.source.run, d.guard.Run, d.resolver.Run, d.checker.Run, d.stateLog.Run, d.lastGood.Run)
	stages.Go(fourth, g, endFifth, d.proxy.Run)
	stages.Go(fifth, g, func() {}, d.serveMetrics, d.serveAdmin)
	err := g.Wait()
	if closeErr := d.close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}

func (d *daemon) tellSystemd(ctx context.Context) error {
	return notify.Run(ctx, d.status, d.loop.Beats, notify.Send)
}

func (d *daemon) serveAdmin(ctx context.Context) error {
	return d.socket.Serve(ctx, admin.Answers{
		Status: d.status, Explain: d.explain, Applied: difference.Handler(d.applied),
		Peers: peers.Handler(d.control, d.upstreams), Accept: admin.AcceptHandler(d.accept),
		Reload: admin.ReloadHandler(d), LogLevel: loglevel.Handler(d.level, d.log),
	})
}

func (d *daemon) serveMetrics(ctx context.Context) error {
	if d.metricsListener == nil {
		return idle(ctx)
	}
	return d.metrics.Serve(ctx, d.metricsListener)
}
