package nginxproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"headgate/sync/luapush"
)

// ReloadError tells that nginx accepted a configuration in nginx -t and yet no worker reported it.
type ReloadError struct {
	// Doing is "start" or "reload".
	Doing string
	// Tail is what nginx wrote into its error log meanwhile.
	Tail string
	// Taken are the addresses that nginx could not listen on because another process does.
	Taken []Taken
	// Cause is the deadline, or how the process ended.
	Cause error
}

// Error implements error.
func (e *ReloadError) Error() string {
	if len(e.Taken) > 0 {
		words := make([]string, len(e.Taken))
		for i, t := range e.Taken {
			words[i] = t.String()
		}
		return fmt.Sprintf("%s nginx: %s, or listen elsewhere", e.Doing, strings.Join(words, "; "))
	}
	s := fmt.Sprintf("%s nginx: no worker of the new generation reported: %v", e.Doing, e.Cause)
	if e.Tail != "" {
		s += "; nginx says: " + e.Tail
	}
	return s
}

// Unwrap gives Cause.
func (e *ReloadError) Unwrap() error { return e.Cause }

// failed makes the error of a start or reload from what nginx wrote meanwhile, and from who listens now.
func (p *Proxy) failed(doing string, logs *tails, cause error) *ReloadError {
	tail := logs.text()
	e := &ReloadError{Doing: doing, Tail: tail, Taken: p.occupied(logs.binds), Cause: cause}
	for _, address := range taken(tail) {
		if !slices.ContainsFunc(e.Taken, func(t Taken) bool { return t.Address == address }) {
			e.Taken = append(e.Taken, Taken{Address: address}) // by somebody who has gone meanwhile
		}
	}
	return e
}

// bindFailed is what nginx writes for an address in use (EADDRINUSE), once for each of five tries.
var bindFailed = regexp.MustCompile(`bind\(\) to (\S+) failed \(98: `)

// taken lists those addresses, each once.
func taken(log string) []string {
	var all []string
	for _, m := range bindFailed.FindAllStringSubmatch(log, -1) {
		if !slices.Contains(all, m[1]) {
			all = append(all, m[1])
		}
	}
	return all
}

var (
	errExited = errors.New("the master ended")
	errGaveUp = errors.New("nginx gave up the new configuration")
)

// reload signals the master and waits for the generation. binds are the addresses that it did not listen on before.
func (p *Proxy) reload(ctx context.Context, generation string, binds []netip.AddrPort) error {
	logs := p.openTails(binds)
	if err := p.hangUp(ctx); err != nil {
		return err
	}
	if err := p.await(ctx, logs, func(s luapush.State) bool { return reported(s, generation) }); err != nil {
		return p.failed("reload", logs, err)
	}
	return nil
}

// hangUp has the master read its configuration. The signal goes first: it costs nothing, and needs nobody else.
func (p *Proxy) hangUp(ctx context.Context) error {
	err := p.signalReload(p.master)
	if p.cfg.ReloadUnit == nil || !errors.Is(err, os.ErrPermission) {
		return err
	}
	return p.cfg.ReloadUnit(ctx)
}

// reported: a worker runs the generation. Without a generation any report counts.
func reported(s luapush.State, generation string) bool {
	for _, w := range s.Workers {
		if generation == "" || w.Generation == generation {
			return true
		}
	}
	return false
}

// start starts a master in a session of its own, so that it outlives the daemon however that ends, and
// waits until a worker reports. What a dead master left is cleared away: its workers serve until the new
// ones have their listeners, if those can be handed over.
func (p *Proxy) start(ctx context.Context, generation string) error {
	inherited := p.inherit()
	defer inherited.close()
	if inherited.none() {
		if err := p.clear(ctx); err != nil {
			return err
		}
	}
	out, err := os.OpenFile(p.cfg.Output, os.O_WRONLY|os.O_CREATE|os.O_APPEND, confMode)
	if err != nil {
		return fmt.Errorf("open the output of nginx: %w", err)
	}
	defer func() { _ = out.Close() }() // the child has its own
	logs := p.openTails(p.binds())
	cmd := exec.CommandContext(context.WithoutCancel(ctx), p.cfg.Binary, p.arguments(p.cfg.Conf)...) //nolint:gosec // the administrator's own binary
	cmd.Env = append(environment(), inherited.environment()...)
	cmd.ExtraFiles = inherited.files
	cmd.Dir = p.cfg.Prefix
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start nginx: %w", err)
	}
	inherited.close() // or connections would wait here for nobody, should all workers end
	pid := cmd.Process.Pid
	m, ok := inspect(pid)
	if !ok {
		m = process{pid: pid}
	}
	if !inherited.none() {
		if err := p.relieve(ctx, logs, m, inherited.from); err != nil {
			return errors.Join(p.failed("start", logs, err), p.discard(ctx, cmd.Process, m))
		}
	}
	err = p.await(ctx, logs, func(s luapush.State) bool { return s.MasterPID == pid && reported(s, generation) }, m)
	if err != nil {
		return errors.Join(p.failed("start", logs, err), p.discard(ctx, cmd.Process, m))
	}
	m, _ = inspect(pid) // now with the title that nginx gave itself
	p.cfg.Log.Info("proxy started", "pid", pid)
	p.watch(m, cmd.Process)
	return nil
}

// discard ends a master that did not come up, with its workers. Where the master has died by itself its
// workers may serve already: they are left to the next one, as any orphans.
func (p *Proxy) discard(ctx context.Context, child *os.Process, m process) error {
	if !m.alive() {
		_, _ = child.Wait() // why it failed is told by its error log
		return nil
	}
	// Its workers are in its process group, and nobody else is: it was made a session of its own.
	err := unix.Kill(-m.pid, unix.SIGTERM)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if m.wait(ctx) != nil {
		err = errors.Join(err, unix.Kill(-m.pid, unix.SIGKILL))
	}
	_, _ = child.Wait() // why it failed is told by its error log
	if errors.Is(err, unix.ESRCH) {
		err = nil
	}
	return err
}

// bindPatience is longer than nginx tries to listen: five times, with half a second between
// (ngx_open_listening_sockets).
const bindPatience = 3 * time.Second

// await polls the proxy's state until done says yes, the deadline passes, nginx logs that it gave up (or must have, because
// an address is another's), or one of the processes ends.
func (p *Proxy) await(ctx context.Context, logs *tails, done func(luapush.State) bool, living ...process) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ReloadTimeout)
	defer cancel()
	var broken error
	late := time.Now().Add(bindPatience)
	err := poll(ctx, 10*time.Millisecond, func() bool {
		for _, l := range living {
			if !l.alive() {
				broken = errExited
				return true
			}
		}
		// Nobody may be left who answers.
		asking, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		s, err := p.cfg.Observer.State(asking)
		if err == nil && done(s) {
			return true
		}
		if gaveUp(logs.text()) {
			broken = errGaveUp
			return true
		}
		if time.Now().After(late) {
			late = late.Add(bindPatience)
			if len(p.occupied(logs.binds)) > 0 {
				broken = errGaveUp
				return true
			}
		}
		return false
	})
	return errors.Join(broken, err)
}

// gaveUp saves the wait for the deadline in the two ways in which nginx drops a configuration that
// passed nginx -t.
func gaveUp(log string) bool {
	return strings.Contains(log, "[emerg]") || strings.Contains(log, "init_by_lua error")
}

// clear ends orphans and removes dead sockets: both would keep a new master from starting.
func (p *Proxy) clear(ctx context.Context) error {
	if err := p.endOrphans(ctx); err != nil {
		return err
	}
	for _, s := range p.cfg.Sockets {
		if err := removeDeadSocket(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// removeDeadSocket removes a socket that nobody listens on. One that is alive is an error: somebody
// else's proxy runs there.
func removeDeadSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at socket %s: %w", path, err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s is no socket: move it away, the proxy makes its socket there", path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("another process listens on %s: stop it, or choose another runtimeDir", path), conn.Close())
	}
	return removeIfThere(path)
}

// endOrphans ends workers whose master died: first as nginx does it itself (they close their
// listeners at once and finish open requests), then less kindly.
func (p *Proxy) endOrphans(ctx context.Context) error {
	return p.endThese(ctx, func(process) bool { return true })
}

// endThese ends those orphans.
func (p *Proxy) endThese(ctx context.Context, these func(process) bool) error {
	left := func() ([]process, error) {
		lost, err := p.lost()
		return slices.DeleteFunc(lost, func(o process) bool { return !these(o) }), err
	}
	for _, step := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGQUIT, 3 * time.Second}, {unix.SIGTERM, time.Second}, {unix.SIGKILL, 5 * time.Second}} {
		lost, err := left()
		if err != nil || len(lost) == 0 {
			return err
		}
		p.cfg.Log.Warn("ending workers whose master is gone", "workers", len(lost), "signal", unix.SignalName(step.signal))
		for _, o := range lost {
			if err := o.signal(step.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return err
			}
		}
		waiting, cancel := context.WithTimeout(ctx, step.wait)
		_ = poll(waiting, 5*time.Millisecond, func() bool { // too long: the next step follows
			lost, err = left()
			return err != nil || len(lost) == 0
		})
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	lost, err := left()
	if err == nil && len(lost) > 0 {
		err = fmt.Errorf("process %d, a worker whose master is gone, does not end", lost[0].pid)
	}
	return err
}

func (p *Proxy) lost() ([]process, error) {
	hs, err := holders(p.cfg.Sockets[0])
	return orphans(hs), err
}

// stop ends the master gracefully, then less so, and removes what is left of it.
func (p *Proxy) stop(ctx context.Context) error {
	var errs []error
	// There are two while the binary is being upgraded; with the second one gone the first takes up work.
	for range 2 {
		if !p.find(ctx) {
			break
		}
		errs = append(errs, p.stopMaster(ctx))
	}
	errs = append(errs, p.endOrphans(ctx))
	for _, f := range p.files() {
		errs = append(errs, removeIfThere(f))
	}
	return errors.Join(errs...)
}

// stopMaster ends the known master, whatever it takes.
func (p *Proxy) stopMaster(ctx context.Context) error {
	var errs []error
	for _, step := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGQUIT, p.cfg.StopTimeout}, {unix.SIGTERM, 2 * time.Second}, {unix.SIGKILL, 2 * time.Second}} {
		if err := p.master.signal(step.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
		waiting, cancel := context.WithTimeout(ctx, step.wait)
		err := p.master.wait(waiting)
		cancel()
		if err == nil {
			break
		}
	}
	p.cfg.Log.Info("proxy stopped", "pid", p.master.pid)
	p.forget()
	return errors.Join(errs...)
}

// tails reads what is added to nginx's logs from a moment on.
type tails struct {
	paths   []string
	offsets []int64
	// binds are the addresses that nginx listens on from then on: in external mode no log tells where it cannot.
	binds []netip.AddrPort
}

// binds are the addresses of the configuration on disk.
func (p *Proxy) binds() []netip.AddrPort {
	text, err := os.ReadFile(p.cfg.Conf)
	if err != nil {
		return nil // nginx says so, too
	}
	return addresses(text)
}

func (p *Proxy) openTails(binds []netip.AddrPort) *tails {
	t := &tails{binds: binds}
	for _, path := range []string{p.cfg.ErrorLog, p.cfg.Output} {
		if path == "" {
			continue
		}
		var size int64
		if info, err := os.Stat(path); err == nil {
			size = info.Size()
		}
		t.paths, t.offsets = append(t.paths, path), append(t.offsets, size)
	}
	return t
}

// text gives the last lines of what was added, on one line. A log that cannot be read adds nothing.
func (t *tails) text() string {
	const most = 2048
	var all []string
	for i, path := range t.paths {
		f, err := os.Open(path) //nolint:gosec // the administrator's own path
		if err != nil {
			continue
		}
		info, err := f.Stat()
		if err == nil && info.Size() > t.offsets[i] {
			from := max(t.offsets[i], info.Size()-most)
			b, err := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
			if err == nil {
				all = append(all, strings.Split(strings.TrimSpace(string(b)), "\n")...)
			}
		}
		_ = f.Close() // only read from
	}
	return strings.Join(all, " | ")
}
