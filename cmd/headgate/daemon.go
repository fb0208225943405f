package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/cmd/lastgood"
	"headgate/gateway/build"
	"headgate/sync/admin"
	"headgate/sync/externalname"
	"headgate/sync/health"
	"headgate/sync/kubestatus"
	"headgate/sync/lossguard"
	"headgate/sync/luapush"
	"headgate/sync/nginxproc"
	"headgate/sync/reconcile"
	"headgate/sync/statelog"
)

// daemon holds the rooms of one `headgate run`.
type daemon struct {
	config config.Config // as at the start, but for what a reload changes: see inForce
	paths  assemble.Paths
	log    *slog.Logger
	base   admin.Status

	// level is that of log, and load reads the configuration again.
	level *slog.LevelVar
	load  func() (config.Config, error)
	file  string // that load reads
	// machine is what was found on this host; it never changes.
	machine assemble.Machine
	// inForce is what the loop works with, replaced by a reload as a whole. reloading lets one reload at a time go on.
	inForce   atomic.Pointer[inForce]
	reloading sync.Mutex
	problems  *kubestatus.ProblemLog

	// private lets nobody reach the proxy but through its sockets.
	private bool

	socket          *admin.Socket
	metrics         *admin.Metrics
	metricsListener net.Listener // nil when metrics are off

	source   source
	guard    *lossguard.Guard
	resolver *externalname.Resolver
	checker  *health.Checker
	control  *luapush.Client
	stateLog *statelog.Log
	lastGood *lastgood.Keeper
	proxy    *nginxproc.Proxy
	loop     *reconcile.Loop
	explain  *explainService
	loaded   chan struct{} // capacity 1: full once a complete state is served
}

func makeDaemon(c config.Config, log *slog.Logger) *daemon {
	return &daemon{
		config: c, paths: assemble.PathsOf(c), log: log, base: assemble.Base(version, os.Getpid(), time.Now()),
		problems: kubestatus.NewProblemLog(room(log, "build")),
		level:    new(slog.LevelVar), load: func() (config.Config, error) { return c, nil },
		loaded: make(chan struct{}, 1),
	}
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
	var binary string
	d.machine, binary, err = d.prepareMachine(ctx)
	if err != nil {
		return err
	}
	if err := d.openMetrics(ctx); err != nil {
		return err
	}
	if d.source, err = newSource(d.config, d.log); err != nil {
		return err
	}
	d.checker = health.New(health.Config{Concurrency: d.config.HealthChecks.Concurrency, Logger: room(d.log, "health")})
	d.resolver = externalname.New(externalname.Config{Servers: d.config.DNS.Servers, Logger: room(d.log, "externalname")})
	d.control = luapush.New(luapush.Config{Socket: d.paths.ControlSocket})
	d.metrics.Follow(d.control.Metrics)
	d.openStateLog()
	d.guard = d.source.guarded(d.config, d.guardFile(), d.log)
	d.lastGood = lastgood.New(d.paths.LastGood, room(d.log, "lastgood"))
	d.buildLoop(binary)
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

func (d *daemon) buildLoop(binary string) {
	f := d.compose(d.config)
	d.inForce.Store(f)
	d.proxy = nginxproc.New(d.processConfig(binary, f.layout.Sockets()))
	builder := &loopBuilder{Builder: build.New(f.options), apiServers: d.source.apiServers, observe: d.metrics.ObserveBuild, log: d.log}
	builder.Remember(d.lastGood.Load())
	d.explain = newExplainService(d, f.layout)
	c := reconcile.Config{
		Source: d.guard, Resolver: d.resolver, Checker: d.checks(), Secrets: d.source.secrets, Proxy: d.proxy, StateLog: d.stateLog,
		Control: timedControl{d.control, d.metrics.ObservePush}, MemoryFile: d.paths.Applied, Log: room(d.log, "reconcile"),
	}
	d.configure(&c, f, builder)
	d.loop = reconcile.New(c)
}

func (d *daemon) processConfig(binary string, sockets []string) nginxproc.Config {
	c := nginxproc.Config{
		Binary: binary, Prefix: d.config.RuntimeDir, Conf: d.paths.Conf, FilesDir: d.paths.TLS, Sockets: sockets,
		Output: d.paths.Output, Observer: d.control, Log: room(d.log, "nginxproc"),
	}
	if d.paths.ErrorLog != "stderr" {
		c.ErrorLog = d.paths.ErrorLog
	}
	if d.config.Proxy.Mode == config.Managed {
		c.Mode = nginxproc.Managed
	} else {
		c.PIDFile, c.Unit, c.ReloadUnit = d.paths.PID, proxyUnit, nginxproc.UnitReloader(proxyUnit)
	}
	if d.config.Proxy.StopWithDaemon {
		c.Stop = nginxproc.StopWithDaemon
	}
	return c
}

// checks are run by a daemon that serves; one that only explains leaves the peers alone.
func (d *daemon) checks() reconcile.Checker {
	if d.private {
		return nil
	}
	return d.checker
}

// guardFile is where the guard remembers how much was served. With no state log to serve from instead, it may as well
// believe what it reads.
func (d *daemon) guardFile() string {
	if d.stateLog.Revision() == 0 {
		if err := os.Remove(d.paths.Guard); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Warn("what was served before is not forgotten, although the state log is empty", "err", err)
		}
	}
	return d.paths.Guard
}

// status may be called from any goroutine once the daemon is built.
func (d *daemon) status() admin.Status {
	base := d.base
	base.Time = time.Now()
	base.Proxy.Mode = string(d.config.Proxy.Mode)
	base.Source = d.source.health()
	told := assemble.Told{Loop: d.loop.Status(), Process: d.proxy.Condition(), LogRevision: d.stateLog.Revision(), Checks: d.checker.Stats(), Guard: d.guard.Condition()}
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
