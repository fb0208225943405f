package main

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/sync/luapush"
	"headgate/sync/nginxproc"
	"headgate/sync/reconcile"
)

// proxyUnit runs nginx when proxy.mode is external.
const proxyUnit = "headgate-proxy.service"

func newProxy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Run, restart and upgrade nginx without losing a request",
		Long: `headgate-proxy.service runs nginx with these commands. Of use to people are 'headgate proxy upgrade', and 'systemctl
reload' and 'systemctl restart' of the unit, which refuse nobody either.

They are for proxy.mode external. A managed proxy is the daemon's.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError(fmt.Errorf("write what to do; see '%s --help'", cmd.CommandPath()))
		},
	}
	cmd.AddCommand(newProxyBootstrap(), newProxyStart(), newProxyReload(), newProxyStop(), newProxyUpgrade())
	return cmd
}

// stopTimeout is how long open requests may take when the proxy is stopped. The unit's TimeoutStopSec is longer.
const stopTimeout = 10 * time.Second

// proxyCommand makes a command of the unit.
func proxyCommand(cmd *cobra.Command, run func(*cobra.Command, *unitProxy) error) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		u, err := newUnitProxy(cmd)
		if err != nil {
			return err
		}
		defer u.control.Close()
		if err := run(cmd, u); err != nil {
			return &exitError{exitFailed, err}
		}
		return nil
	}
	configFlags(cmd, "state-dir", "runtime-dir", "log-level", "log-format")
	return cmd
}

// unitProxy is the nginx of the unit.
type unitProxy struct {
	config  config.Config
	paths   assemble.Paths
	found   nginxproc.Installation
	control *luapush.Client
	proxy   *nginxproc.Proxy
	log     *slog.Logger
	// refused is what is wrong with the configuration that the administrator wrote, and config is another one; nil: it is that.
	refused error
}

func newUnitProxy(cmd *cobra.Command) (*unitProxy, error) {
	c, refused, err := unitConfig(cmd)
	if err != nil {
		return nil, err
	}
	if c.Proxy.Mode != config.External {
		return nil, usageError(fmt.Errorf("proxy.mode is %s: the daemon runs nginx; write external, or nothing, for %s to do it", c.Proxy.Mode, proxyUnit))
	}
	log, _, err := newLogger(c.Log, cmd.ErrOrStderr())
	if err != nil {
		return nil, usageError(err)
	}
	if err := assemble.CheckBinary(c.Proxy.Binary); err != nil {
		return nil, usageError(err)
	}
	p := c.Proxy
	found, err := nginxproc.Detect(cmd.Context(), nginxproc.Search{Binary: p.Binary, Modules: p.Modules, LuaPath: p.LuaPath, LuaCPath: p.LuaCPath})
	if err != nil {
		return nil, &exitError{exitFailed, err}
	}
	u := &unitProxy{config: c, refused: refused, paths: assemble.PathsOf(c), found: found, log: room(log, "nginxproc")}
	u.control = luapush.New(luapush.Config{Socket: u.paths.ControlSocket})
	u.proxy = nginxproc.New(nginxproc.Config{
		Binary: found.Binary, Prefix: c.RuntimeDir, Conf: u.paths.Conf, FilesDir: u.paths.TLS, PIDFile: u.paths.PID, Candidate: u.paths.Conf + ".boot",
		Sockets: assemble.Layout(c, u.paths, assemble.Machine{}).Sockets(), StopTimeout: stopTimeout, Unit: proxyUnit, Observer: u.control, Log: u.log,
	})
	return u, nil
}

func newProxyBootstrap() *cobra.Command {
	return proxyCommand(&cobra.Command{
		Use:   "bootstrap",
		Short: "Write an nginx.conf before the daemon does (for ExecStartPre, as the daemon's user)",
		Long: `bootstrap writes what nginx needs to start, unless it lies there and nginx accepts it: the configuration that was
applied last, so that a host serves the last known good state although its cluster is away and no daemon runs; or, where there was none,
one without listeners that waits for the daemon. It also removes sockets that a killed nginx left. A mistake in the configuration
does not keep it from that: then the one counts that the daemon has taken last.`,
		Example: `  ExecStartPre=+/usr/bin/setpriv --reuid=headgate --regid=headgate --init-groups --inh-caps=+net_bind_service \
      --ambient-caps=+net_bind_service /usr/bin/headgate proxy bootstrap`,
	}, bootstrap)
}

func bootstrap(cmd *cobra.Command, u *unitProxy) error {
	ctx := cmd.Context()
	tellRefused(u.log, u.refused)
	machine, err := assemble.Prepare(u.config, u.paths, u.found, time.Now())
	if err != nil {
		return err
	}
	if err := u.proxy.ClearSockets(ctx); err != nil {
		return err
	}
	if err := u.proxy.Check(ctx); err == nil {
		return nil // it lies there already
	}
	cfg := reconcile.Config{
		Layout: assemble.Layout(u.config, u.paths, machine), Settings: assemble.Settings(u.config),
		Listeners: assemble.Listeners(u.config), MemoryFile: u.paths.Applied,
	}
	conf, known, err := reconcile.LastApplied(cfg)
	if err == nil {
		err = u.proxy.Install(ctx, conf)
	}
	switch {
	case err == nil && known:
		u.log.Info("nginx.conf is the one that was applied last")
		return nil
	case err == nil:
		u.log.Info("nginx.conf has no listeners: nothing was ever applied, and the daemon writes them")
		return nil
	}
	u.log.Error("the configuration that was applied last cannot be used: the proxy listens once the daemon has written another", "err", err)
	cfg.MemoryFile = ""
	if conf, _, err = reconcile.LastApplied(cfg); err != nil {
		return err
	}
	return u.proxy.Install(ctx, conf)
}

func newProxyStart() *cobra.Command {
	return proxyCommand(&cobra.Command{
		Use:   "start",
		Short: "Start nginx in the background (for ExecStart)",
		Long: `start starts nginx and returns once it serves. Workers whose master was killed serve on until then, and hand their
listeners over: no connection is refused.`,
		Example: `  ExecStart=/usr/bin/headgate proxy start`,
	}, func(cmd *cobra.Command, u *unitProxy) error {
		if err := nginxproc.OwnFolder(u.paths.Temp); err != nil {
			return err
		}
		return launch(cmd.Context(), u)
	})
}

func newProxyReload() *cobra.Command {
	return proxyCommand(&cobra.Command{
		Use:   "reload",
		Short: "Have nginx read its configuration, once that is checked (for ExecReload)",
		Long: `reload has nginx check the configuration that lies on disk, and then read it. The daemon does so by itself whenever
there is a new one.`,
		Example: `  systemctl reload headgate-proxy`,
	}, func(cmd *cobra.Command, u *unitProxy) error { return u.proxy.HangUp(cmd.Context()) })
}

func newProxyStop() *cobra.Command {
	return proxyCommand(&cobra.Command{
		Use:   "stop",
		Short: "Stop nginx (for ExecStop)",
		Long: `stop lets open requests finish for ten seconds, and ends nginx. When systemd is about to start it again, in a restart or
because the master has died, the workers are left serving: 'headgate proxy start' takes their listeners over.`,
		Example: `  ExecStop=/usr/bin/headgate proxy stop`,
	}, func(cmd *cobra.Command, u *unitProxy) error {
		stop, err := nginxproc.Stopping(cmd.Context(), proxyUnit)
		if err != nil {
			u.log.Warn("taken for a stop, because systemd cannot be asked", "err", err)
		}
		if stop || err != nil {
			return u.proxy.Quit(cmd.Context())
		}
		return u.proxy.Abandon(cmd.Context())
	})
}

func newProxyUpgrade() *cobra.Command {
	return proxyCommand(&cobra.Command{
		Use:   "upgrade",
		Short: "Replace the running nginx by the one on disk, without losing a request",
		Long: `upgrade has the running nginx start its successor, on the same listeners, from the binary and the modules that lie on
disk now. The old one takes no more requests once the new one serves, and ends with its last connection. The package runs it when
nginx or one of its modules was upgraded. Run it as root.

Exit codes:
  0  done, or nginx does not run
  1  not done, and the old one serves on; the reason is printed
  3  wrong usage or configuration`,
		Example: `  headgate proxy upgrade`,
	}, func(cmd *cobra.Command, u *unitProxy) error {
		lingers, err := u.proxy.Upgrade(cmd.Context())
		if errors.Is(err, nginxproc.ErrNotRunning) {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "nginx does not run: nothing to upgrade")
			return err
		}
		if err != nil {
			return err
		}
		if lingers {
			// systemd follows the new master when the old one ends, or after a reload of the unit.
			if err := nginxproc.ReloadUnit(cmd.Context(), proxyUnit); err != nil {
				u.log.Warn("systemd follows the new nginx only when the old one has ended", "err", err)
			}
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "nginx was replaced: PID %d serves\n", u.proxy.Condition().MasterPID)
		return err
	})
}
