package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/cmd/lastgood"
	"headgate/gateway/build"
	"headgate/sync/admin"
	"headgate/sync/externalname"
	"headgate/sync/kubestatus"
	"headgate/sync/luapush"
	"headgate/sync/nginxproc"
	"headgate/sync/reconcile"
	"headgate/sync/statelog"
)

// daemon holds the rooms of one `headgate run`.
type daemon struct {
	config  config.Config
	paths   assemble.Paths
	log     *slog.Logger
	base    admin.Status
	account account

	// private lets nobody reach the proxy but through its sockets.
	private bool

	socket          *admin.Socket
	metrics         *admin.Metrics
	metricsListener net.Listener // nil when metrics are off

	source   source
	resolver *externalname.Resolver
	control  *luapush.Client
	stateLog *statelog.Log
	lastGood *lastgood.Keeper
	proxy    *nginxproc.Proxy
	loop     *reconcile.Loop
	explain  *explainService
}

// newDaemon builds every room and starts none.
func newDaemon(ctx context.Context, c config.Config, log *slog.Logger) (*daemon, error) {
	d := makeDaemon(c, log)
	return d, d.open(ctx)
}

func makeDaemon(c config.Config, log *slog.Logger) *daemon {
	return &daemon{config: c, paths: assemble.PathsOf(c), log: log, base: assemble.Base(version, os.Getpid(), time.Now())}
}

// open builds every room. What it opened is closed again when it fails.
func (d *daemon) open(ctx context.Context) error {
	if err := d.build(ctx); err != nil {
		return errors.Join(err, d.close())
	}
	return nil
}

func (d *daemon) build(ctx context.Context) error {
	var err error
	if d.socket, err = admin.Open(ctx, d.config.RuntimeDir); err != nil {
		return err
	}
	machine, binary, err := d.prepareMachine(ctx)
	if err != nil {
		return err
	}
	if err := d.openMetrics(ctx); err != nil {
		return err
	}
	if d.source, err = newSource(d.config, d.log); err != nil {
		return err
	}
	d.resolver = externalname.New(externalname.Config{Servers: d.config.DNS.Servers, Logger: room(d.log, "externalname")})
	d.control = luapush.New(luapush.Config{Socket: d.paths.ControlSocket})
	d.openStateLog()
	d.lastGood = lastgood.New(d.paths.LastGood, room(d.log, "lastgood"))
	d.buildLoop(machine, binary)
	return nil
}

func room(log *slog.Logger, name string) *slog.Logger { return log.With("room", name) }

// prepareMachine finds nginx and puts on disk what it needs before it can start.
func (d *daemon) prepareMachine(ctx context.Context) (assemble.Machine, string, error) {
	var m assemble.Machine
	p := d.config.Proxy
	if err := assemble.CheckBinary(p.Binary); err != nil {
		return m, "", err
	}
	found, err := nginxproc.Detect(ctx, nginxproc.Search{Binary: p.Binary, Modules: p.Modules, LuaPath: p.LuaPath, LuaCPath: p.LuaCPath})
	if err != nil {
		return m, "", err
	}
	if m, err = assemble.Prepare(d.config, d.paths, found, time.Now()); err != nil {
		return m, "", err
	}
	if refused := m.Certificate.Refused; refused != nil {
		d.log.Warn("a new default certificate was made: the one that was there cannot be used", "err", refused)
	}
	d.base.Certificates = []admin.Certificate{{ID: "default", NotAfter: m.Certificate.NotAfter}}
	return m, found.Binary, nil
}

func (d *daemon) openMetrics(ctx context.Context) error {
	d.metrics = admin.NewMetrics(d.status)
	if d.config.Metrics.Listen == "" {
		return nil
	}
	var err error
	if d.metricsListener, err = new(net.ListenConfig).Listen(ctx, "tcp", d.config.Metrics.Listen); err != nil {
		return fmt.Errorf("listen for metrics (write another metrics.listen, or \"\" to do without): %w", err)
	}
	d.log.Info("metrics are served", "address", d.metricsListener.Addr().String())
	return nil
}

func (d *daemon) openStateLog() {
	var found statelog.Recovery
	d.stateLog, found = statelog.Open(statelog.Config{Path: d.paths.StateLog, Log: room(d.log, "statelog")})
	d.log.Debug("state log opened", "revision", found.Revision, "cutBytes", found.CutBytes)
}

func (d *daemon) buildLoop(machine assemble.Machine, binary string) {
	layout := assemble.Layout(d.config, d.paths, machine)
	layout.Private = d.private
	d.proxy = nginxproc.New(d.processConfig(binary, layout.Sockets()))
	options := assemble.Build(d.config)
	d.account = account{options, layout}
	builder := &loopBuilder{Builder: build.New(options), apiServers: d.source.apiServers, observe: d.metrics.ObserveBuild, log: d.log}
	builder.Remember(d.lastGood.Load())
	d.explain = newExplainService(d, layout, options)
	problems := kubestatus.NewProblemLog(room(d.log, "build"))
	if d.config.UseForwardedHeaders && len(d.config.TrustedProxies) == 0 {
		d.log.Warn("useForwardedHeaders is on and trustedProxies is empty: nobody's X-Forwarded-* headers are believed")
	}
	d.loop = reconcile.New(reconcile.Config{
		Source: d.source.objects, Resolver: d.resolver, Proxy: d.proxy, StateLog: d.stateLog,
		Builder: builder,
		Control: timedControl{d.control, d.metrics.ObservePush},
		Layout:  layout, Settings: options.Settings, Listeners: options.Listeners, MemoryFile: d.paths.Applied,
		Window: time.Duration(d.config.Reconcile.Window), MaxDelay: time.Duration(d.config.Reconcile.MaxDelay),
		Applied: func(p reconcile.Pass) {
			problems.Observe(p.Result.Problems)
			d.lastGood.Keep(builder.LastGood())
			d.explain.built.Store(builder.built)
			d.source.tell(kubestatus.Desired{Snapshot: builder.built, Served: p.Result.Served, Problems: p.Result.Problems})
		},
		Log: room(d.log, "reconcile"),
	})
}

func (d *daemon) processConfig(binary string, sockets []string) nginxproc.Config {
	c := nginxproc.Config{
		Binary: binary, Prefix: d.config.RuntimeDir, Conf: d.paths.Conf, Sockets: sockets,
		Output: d.paths.Output, Observer: d.control, Log: room(d.log, "nginxproc"),
	}
	if d.paths.ErrorLog != "stderr" {
		c.ErrorLog = d.paths.ErrorLog
	}
	if d.config.Proxy.Mode == config.Managed {
		c.Mode = nginxproc.Managed
	}
	if d.config.Proxy.StopWithDaemon {
		c.Stop = nginxproc.StopWithDaemon
	}
	return c
}

// status may be called from any goroutine once the daemon is built.
func (d *daemon) status() admin.Status {
	base := d.base
	base.Time = time.Now()
	base.Proxy.Mode = string(d.config.Proxy.Mode)
	base.Source = d.source.health()
	told := assemble.Told{Loop: d.loop.Status(), Process: d.proxy.Condition(), LogRevision: d.stateLog.Revision()}
	if info, err := os.Stat(d.paths.StateLog); err == nil {
		told.LogBytes = info.Size()
	}
	return assemble.Status(base, told)
}

// close gives up what was opened; nothing runs any more.
func (d *daemon) close() error {
	var errs []error
	if d.control != nil {
		d.control.Close()
	}
	if d.stateLog != nil {
		errs = append(errs, d.stateLog.Close())
	}
	if d.metricsListener != nil {
		if err := d.metricsListener.Close(); !errors.Is(err, net.ErrClosed) { // Serve closed it when it ran
			errs = append(errs, err)
		}
	}
	if d.socket != nil {
		errs = append(errs, d.socket.Close())
	}
	return errors.Join(errs...)
}
