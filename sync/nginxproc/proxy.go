// Package nginxproc keeps the local nginx running the configuration that it is given: it finds the
// binary, its modules and Lua files, writes nginx.conf (temporary file, nginx -t, rename), starts or
// reloads the master and waits until a worker reports the new generation; where that fails the last
// good file comes back. In managed mode it also starts, adopts, restarts and stops the master; in
// external mode somebody else (systemd) does. It knows nothing of what the configuration means.
package nginxproc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"headgate/sync/luapush"
)

// Mode says whose child nginx is.
type Mode string

// The modes.
const (
	// External: somebody else starts and restarts nginx; it is only reloaded. The zero value.
	External Mode = ""
	// Managed: nginx is started, adopted, restarted and, with StopWithDaemon, stopped.
	Managed Mode = "managed"
)

// StopMode says what becomes of a managed nginx when Run ends.
type StopMode string

// The stop modes.
const (
	// KeepRunning leaves nginx serving; the next daemon adopts it. The zero value.
	KeepRunning StopMode = ""
	// StopWithDaemon ends it gracefully and removes what it left in the runtime directory.
	StopWithDaemon StopMode = "stop"
)

// Config says which nginx is kept and where its files lie. Paths are absolute.
type Config struct {
	Mode Mode
	Stop StopMode
	// Binary is nginx (Installation.Binary).
	Binary string
	// Prefix is nginx's -p, a folder that exists.
	Prefix string
	// Conf is the configuration file. Conf+".last" lies beside it.
	Conf string
	// Candidate is where a configuration lies while nginx checks it; "" is Conf+".new". No two processes share one.
	Candidate string
	// FilesDir is the folder of Conf.Files, which belongs to the Proxy alone; "" when no configuration has any.
	FilesDir string
	// Sockets are the unix sockets that the configuration makes, the control socket first.
	Sockets []string
	// ErrorLog is the configuration's error log, for the reason when a reload fails; "" when it is
	// standard error.
	ErrorLog string
	// Output gets standard output and error of a managed nginx; it is appended to. Required in
	// managed mode.
	Output string
	// ReloadTimeout is how long a worker of the new generation may take to report; 0 means 10 s.
	ReloadTimeout time.Duration
	// StopTimeout is how long open requests may take when nginx is stopped; 0 means 5 s.
	StopTimeout time.Duration
	// PIDFile is where nginx writes its process ID, given on its command line because the configuration names none:
	// then whoever may not write that file can have nginx check a configuration all the same. "" when the
	// configuration names it.
	PIDFile string
	// ReloadUnit has an external nginx reloaded by whoever runs it, where this process may not signal it because
	// it is another user's; UnitReloader makes one. nil: there is nobody to ask.
	ReloadUnit func(context.Context) error
	// Unit is that of systemd in which nginx runs; what its processes listen on is our own. "" where there is none.
	Unit string
	// Observer reads the control socket; *luapush.Client does.
	Observer Observer
	// Log may be nil.
	Log *slog.Logger
}

// Observer asks the proxy for its state.
type Observer interface {
	State(ctx context.Context) (luapush.State, error)
}

// ErrNotRunning tells that no nginx runs with our configuration, in external mode: it was written and
// waits for somebody to start nginx.
var ErrNotRunning = errors.New("nginx is not running: start it (in external mode its unit does), or set proxy.mode: managed")

// ErrSocketGone tells that nginx runs and its control socket was removed, in external mode. No reload
// brings it back: nginx keeps the listeners that it has.
var ErrSocketGone = errors.New("systemctl restart headgate-proxy, or restart nginx in whatever way it was started")

// Proxy is the local nginx. Its methods are safe for concurrent use; Apply, Test, Resume and a
// restart by Run happen one after the other.
type Proxy struct {
	cfg     Config
	changed chan struct{} // capacity 1: master came or went
	wake    chan struct{} // capacity 1: there is a new master to watch

	condition atomic.Pointer[Condition] // so that nobody who only asks waits for a reload

	mu      sync.Mutex // guards the master and the files
	master  process    // zero when none is known
	child   *os.Process
	former  []*os.Process      // children of ours that handed over and have not ended yet
	unwatch context.CancelFunc // makes Run watch another master; nil before it watches one
	known   Condition          // what condition shows next
	tidied  bool               // what a dead process left was removed
}

// New makes a Proxy; it starts nothing.
func New(cfg Config) *Proxy {
	if cfg.Candidate == "" {
		cfg.Candidate = cfg.Conf + ".new"
	}
	if cfg.ReloadTimeout <= 0 {
		cfg.ReloadTimeout = 10 * time.Second
	}
	if cfg.StopTimeout <= 0 {
		cfg.StopTimeout = 5 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{cfg: cfg, changed: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	p.publish()
	return p
}

// Changed receives when a master was found dead, or was started or adopted.
func (p *Proxy) Changed() <-chan struct{} { return p.changed }

// Condition is what is known of the process.
type Condition struct {
	// MasterPID is 0 when none is known.
	MasterPID int
	// Restarts counts how often a managed master was started again after it had died.
	Restarts int
	// Err is why the last start or restart failed; nil when it did not.
	Err error
}

// Condition tells how the process is. It never waits.
func (p *Proxy) Condition() Condition { return *p.condition.Load() }

func (p *Proxy) publish() {
	c := p.known
	c.MasterPID = p.master.pid
	p.condition.Store(&c)
}

// Adopt takes over a proxy that runs already and can be spoken to. It starts none. The first call removes what a process left
// that was killed while it made a configuration.
func (p *Proxy) Adopt(ctx context.Context) (running bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tidy()
	return p.find(ctx) && !p.unheard()
}

// Resume takes over a proxy that runs already. In managed mode, where none runs (or only orphans of
// a dead master do, or one whose control socket was removed) and a configuration lies on disk, it starts
// one with that. running is false when there is no proxy now that can be spoken to.
func (p *Proxy) Resume(ctx context.Context) (running bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	running, err = p.usable(ctx)
	if running || errors.Is(err, ErrSocketGone) {
		return running, nil
	}
	if err != nil || p.cfg.Mode != Managed {
		return false, err
	}
	if _, err := os.Stat(p.cfg.Conf); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return false, p.clear(ctx)
		}
		return false, fmt.Errorf("look for the last good configuration: %w", err)
	}
	if err := p.start(ctx, ""); err != nil {
		return false, err
	}
	return true, nil
}

// Apply makes nginx run c: write, nginx -t, rename, then reload (or, in managed mode, start), then
// wait until a worker reports c.Generation. The error is a *ConfError when nginx does not accept c,
// a *ReloadError when it did not come up, ErrNotRunning in external mode when there is no nginx (within a *ReloadError where
// others hold its addresses),
// ErrSocketGone when there is one that cannot be spoken to; after these two c lies ready.
// After a *ConfError or *ReloadError the configuration before is in place and, if it ran, runs.
func (p *Proxy) Apply(ctx context.Context, c Conf) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.apply(ctx, c)
	if pruneErr := p.pruneFiles(); pruneErr != nil {
		p.cfg.Log.Warn("certificates for peers that nobody uses stay", "err", pruneErr)
	}
	return err
}

func (p *Proxy) apply(ctx context.Context, c Conf) error {
	if err := p.writeCandidate(ctx, c); err != nil {
		return err
	}
	before, err := os.ReadFile(p.cfg.Conf)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the configuration that is there: %w", err)
	}
	if err := p.install(); err != nil {
		return err
	}
	running, err := p.usable(ctx)
	if err != nil {
		return err
	}
	switch {
	case running:
		err = p.reload(ctx, c.Generation, newIn(c.Text, before))
	case p.cfg.Mode == Managed:
		err = p.start(ctx, c.Generation)
	default:
		return p.notRunning(c)
	}
	if err == nil {
		return nil
	}
	// The way back must work also when the daemon is being stopped.
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.ReloadTimeout)
	defer cancel()
	return errors.Join(err, p.fallBack(back))
}

// notRunning is ErrNotRunning, and says so where others hold what nginx would listen on: that keeps its unit from starting it.
func (p *Proxy) notRunning(c Conf) error {
	if held := p.occupied(addresses(c.Text)); len(held) > 0 {
		return &ReloadError{Doing: "start", Taken: held, Cause: ErrNotRunning}
	}
	return ErrNotRunning
}

// fallBack puts the last good configuration in place and has nginx run it.
func (p *Proxy) fallBack(ctx context.Context) error {
	ok, err := p.restore()
	if !ok || err != nil {
		return err
	}
	if p.master.alive() {
		// The master may have dropped the new configuration or run it with broken workers: either
		// way it is told to go back.
		return p.hangUp(ctx)
	}
	if p.cfg.Mode == Managed {
		return p.start(ctx, "")
	}
	return nil
}

// find makes sure that p.master is the living master of our configuration.
func (p *Proxy) find(ctx context.Context) bool {
	if p.master.pid != 0 && p.master.alive() {
		return true
	}
	if p.master.pid != 0 {
		p.cfg.Log.Error("proxy master ended", "pid", p.master.pid)
	}
	p.forget()
	m, ok := p.byState(ctx)
	if !ok {
		m, ok = p.bySocket()
	}
	if !ok {
		return false
	}
	p.cfg.Log.Info("proxy adopted", "pid", m.pid)
	p.watch(m, nil)
	return true
}

// usable finds the living master, and tells whether it can be spoken to. One whose control socket was
// removed is of no use: a managed one is ended, and its workers serve on until the master that takes
// its place has their listeners.
func (p *Proxy) usable(ctx context.Context) (bool, error) {
	if !p.find(ctx) {
		return false, nil
	}
	if !p.unheard() {
		return true, nil
	}
	if p.cfg.Mode != Managed {
		return false, fmt.Errorf("the control socket %s is gone: %w", p.cfg.Sockets[0], ErrSocketGone)
	}
	p.cfg.Log.Warn("the control socket of the proxy is gone: another master takes over", "socket", p.cfg.Sockets[0], "formerPid", p.master.pid)
	// Not gently: at its end a master would remove the sockets of its successor, which have its names.
	if err := p.master.signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return false, err
	}
	ending, cancel := context.WithTimeout(ctx, lastRestart)
	defer cancel()
	if err := p.master.wait(ending); err != nil {
		return false, fmt.Errorf("end master %d: %w", p.master.pid, err)
	}
	p.forget()
	p.known.Restarts++
	return false, nil
}

// unheard tells whether somebody listens on the control socket and its file is not there any more. (A
// master that shuts down has closed the socket as well.)
func (p *Proxy) unheard() bool {
	if !removed(p.cfg.Sockets[0]) {
		return false
	}
	inodes, err := socketInodes(p.cfg.Sockets[0])
	return err == nil && len(inodes) > 0
}

func removed(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

// byState asks the control socket who the master is. A worker that outlived its master answers, too:
// then the process is not there, or not ours.
func (p *Proxy) byState(ctx context.Context) (process, bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := p.cfg.Observer.State(ctx)
	if err != nil || s.MasterPID <= 0 {
		return process{}, false
	}
	m, ok := inspect(s.MasterPID)
	return m, ok && p.ours(m)
}

// bySocket finds the master by the control socket that it holds, for one whose Lua does not answer.
func (p *Proxy) bySocket() (process, bool) {
	hs, err := holders(p.cfg.Sockets[0])
	if err != nil {
		p.cfg.Log.Warn("cannot look for a running proxy", "err", err)
		return process{}, false
	}
	for _, h := range hs {
		// A worker that was forked a moment ago still has its master's title.
		if parent, ok := inspect(h.parent); p.ours(h) && (!ok || !p.ours(parent)) {
			return h, true
		}
	}
	return process{}, false
}

func (p *Proxy) ours(m process) bool {
	if p.cfg.Mode == Managed {
		return m.runs(p.cfg.Conf)
	}
	return m.isMaster() // its unit may give the file by other means
}

func (p *Proxy) watch(m process, child *os.Process) {
	p.master, p.child, p.known.Err = m, child, nil
	p.publish()
	poke(p.wake)
	poke(p.changed)
}

// forget drops a dead master, and reaps it when it was our child.
func (p *Proxy) forget() {
	if p.child != nil {
		_, _ = p.child.Wait() // it has ended: how is told by its error log
	}
	p.master, p.child = process{}, nil
	p.publish()
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run watches the master until ctx ends, and in managed mode starts it again when it dies. At the
// end it stops the master or leaves it running, as Config.Stop says.
func (p *Proxy) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		m, watching, cancel := p.watched(ctx)
		if m.pid == 0 {
			select {
			case <-ctx.Done():
			case <-p.wake:
			}
			cancel()
			continue
		}
		err := m.wait(watching)
		cancel()
		if err != nil {
			continue // the end, or another master to watch
		}
		p.buried(m)
		if p.cfg.Mode == Managed {
			p.restart(ctx)
		}
	}
	return p.end(context.WithoutCancel(ctx))
}

// watched gives the master to watch, and a context that ends when there is another one.
func (p *Proxy) watched(ctx context.Context) (process, context.Context, context.CancelFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, p.unwatch = context.WithCancel(ctx)
	return p.master, ctx, p.unwatch
}

func (p *Proxy) buried(m process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.master == m { // else it was followed by another one already, which is told
		p.cfg.Log.Error("proxy master ended", "pid", m.pid)
		p.forget()
	}
	poke(p.changed)
}

// The back-off of restarts.
const (
	firstRestart = 50 * time.Millisecond
	lastRestart  = 10 * time.Second
)

// restart starts the master until it runs. The first attempt is made at once: every millisecond is
// without service.
func (p *Proxy) restart(ctx context.Context) {
	for wait := firstRestart; ; wait = min(2*wait, lastRestart) {
		err := p.startAgain(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		p.cfg.Log.Error("proxy not restarted", "err", err, "retryIn", wait)
		if pause(ctx, wait) != nil {
			return
		}
	}
}

func (p *Proxy) startAgain(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.find(ctx) {
		return nil // Apply was faster, or it was one of two masters
	}
	p.known.Restarts++
	err := p.start(ctx, "")
	p.known.Err = err
	p.publish()
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (p *Proxy) end(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cfg.Mode == Managed && p.cfg.Stop == StopWithDaemon {
		return p.stop(ctx)
	}
	if p.child != nil {
		return p.child.Release()
	}
	return nil
}

func (p *Proxy) files() []string {
	return append([]string{p.candidate(), p.lastGood()}, p.cfg.Sockets...)
}

func (p *Proxy) arguments(conf string, more ...string) []string {
	return append([]string{"-p", filepath.Clean(p.cfg.Prefix) + "/", "-c", conf}, more...)
}

// pidArgument names a PID file to an nginx whose configuration names none. (A second "pid" is refused.)
func pidArgument(path string) []string { return []string{"-g", `pid "` + path + `";`} }
