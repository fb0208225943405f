package nginxproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"headgate/sync/luapush"
)

// What follows is for the commands of a unit of systemd that runs nginx (docs/design/0006): each is a short-lived
// process of nginx's user, or of root, and nginx detaches itself ("daemon on"). They need Config.PIDFile.

// Install writes c as the configuration, once nginx has checked it, and reloads nothing. The error is a
// *ConfError when nginx does not accept c; then nothing has changed.
func (p *Proxy) Install(ctx context.Context, c Conf) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.writeCandidate(ctx, c); err != nil {
		return err
	}
	return p.install()
}

// Check has nginx check the configuration that lies on disk. The error is a *ConfError when it does not accept
// it, and wraps os.ErrNotExist when there is none.
func (p *Proxy) Check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := os.Stat(p.cfg.Conf); err != nil {
		return fmt.Errorf("look at the configuration: %w", err)
	}
	return p.test(ctx, p.cfg.Conf)
}

// ClearSockets removes the sockets that nobody listens on. One that is alive stays: workers of a master that
// died hold it, and the next master takes it over with the other listeners.
func (p *Proxy) ClearSockets(ctx context.Context) error {
	var errs []error
	for _, s := range p.cfg.Sockets {
		inodes, err := socketInodes(s)
		if err == nil && len(inodes) == 0 {
			err = removeDeadSocket(ctx, s)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ErrRunning tells that there is a master already.
var ErrRunning = errors.New("nginx runs already")

// Launch starts a master that detaches itself, and returns once one of its workers reports. Workers whose master
// is gone go on serving until then, and hand their listeners over. The error wraps ErrRunning when a master
// lives; it is a *ReloadError when the new one did not come up.
func (p *Proxy) Launch(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.find(ctx) {
		return fmt.Errorf("%w: PID %d", ErrRunning, p.master.pid)
	}
	inherited := p.inherit()
	defer inherited.close()
	if inherited.none() {
		if err := p.clear(ctx); err != nil {
			return err
		}
	}
	if err := removeIfThere(p.cfg.PIDFile); err != nil {
		return err
	}
	logs := &tails{binds: p.binds()}
	child, err := p.detach(ctx, &inherited)
	if err != nil {
		return p.failed("start", logs, err)
	}
	inherited.close() // or connections would wait here for nobody, should all workers end
	m, err := p.launched(ctx, child)
	if err != nil {
		return p.failed("start", logs, err)
	}
	if err := p.endThese(ctx, func(o process) bool { return among(inherited.from, o) }); err != nil {
		return err
	}
	if err := p.await(ctx, logs, func(s luapush.State) bool { return s.MasterPID == m.pid && reported(s, "") }, m); err != nil {
		// Nobody knows yet that it is there: it must not hold the ports.
		return errors.Join(p.failed("start", logs, err), m.signal(unix.SIGTERM))
	}
	p.watch(m, nil)
	return nil
}

func among(list []process, one process) bool {
	for _, p := range list {
		if p.same(one) {
			return true
		}
	}
	return false
}

// detach starts nginx so that it outlives this process, and gives the master, or the zero process where nginx has gone
// into the background by itself: with listeners that it is handed it does not. What it says goes where our own
// standard error goes.
func (p *Proxy) detach(ctx context.Context, inherited *listeners) (process, error) {
	arguments := p.arguments(p.cfg.Conf, pidArgument(p.cfg.PIDFile)...)
	cmd := exec.CommandContext(context.WithoutCancel(ctx), p.cfg.Binary, arguments...) //nolint:gosec // the administrator's own binary
	cmd.Env = append(environment(), inherited.environment()...)
	cmd.ExtraFiles = inherited.files
	cmd.Dir = p.cfg.Prefix
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if inherited.none() {
		return process{}, cmd.Run()
	}
	if err := cmd.Start(); err != nil {
		return process{}, err
	}
	m, ok := inspect(cmd.Process.Pid)
	if !ok {
		return process{}, errExited
	}
	return m, nil
}

// launched waits for the master that PIDFile names, and for its first worker. child is that master where it is known.
func (p *Proxy) launched(ctx context.Context, child process) (process, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ReloadTimeout)
	defer cancel()
	var m process
	var died error
	err := poll(ctx, 5*time.Millisecond, func() bool {
		if child.pid != 0 && !child.alive() {
			died = errExited
			return true
		}
		var ok bool
		m, ok = p.named()
		return ok && accepts(m)
	})
	return m, errors.Join(died, err)
}

// named is the living master whose process ID stands in PIDFile. A stale file names none: another process that
// has the number by now is no nginx.
func (p *Proxy) named() (process, bool) {
	text, err := os.ReadFile(p.cfg.PIDFile)
	if err != nil {
		return process{}, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return process{}, false
	}
	m, ok := inspect(pid)
	return m, ok && m.runs(p.cfg.Conf)
}

// HangUp has the master read the configuration that lies on disk, once nginx has checked it. The error is a
// *ConfError when it does not accept it, ErrNotRunning when there is no master.
func (p *Proxy) HangUp(ctx context.Context) error {
	if err := p.Check(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.named()
	if !ok {
		return ErrNotRunning
	}
	return p.signalReload(m)
}

// Quit ends the master and its workers: gracefully for Config.StopTimeout, then less so. Where none runs, workers
// whose master is gone are ended.
func (p *Proxy) Quit(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	// There are two while the binary is being upgraded; with the second one gone the first takes up work.
	for range 2 {
		if !p.find(ctx) {
			break
		}
		errs = append(errs, p.stopMaster(ctx))
	}
	return errors.Join(append(errs, p.endOrphans(ctx))...)
}

// Abandon ends the master alone: its workers serve on, and the master that Launch starts next takes their
// listeners. That is a restart which refuses nobody and cuts no request off.
func (p *Proxy) Abandon(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.find(ctx) {
		return nil
	}
	// Not gently: it would end its workers.
	if err := p.master.signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	ending, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := p.master.wait(ending); err != nil {
		return fmt.Errorf("end master %d: %w", p.master.pid, err)
	}
	p.forget()
	return nil
}

// Upgrade replaces the running master by one of the binary and modules that lie on disk now
// (https://nginx.org/en/docs/control.html#upgrade), without refusing a connection: the new one starts on the same
// listeners and loads the state log, and the old one takes no more requests from then on, and ends when its last
// connection does. It returns once the new one serves alone, and tells whether the old one still has connections.
// The error is a *ConfError when the new binary does not accept the configuration, a *ReloadError when it did not
// come up (the old one serves on then), ErrNotRunning when there is no master.
func (p *Proxy) Upgrade(ctx context.Context) (lingers bool, err error) {
	if err := p.Check(ctx); err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before, ok := p.named()
	if !ok {
		return false, ErrNotRunning
	}
	if err := before.signal(unix.SIGUSR2); err != nil {
		return false, err
	}
	after, err := p.successor(ctx, before)
	if err != nil {
		return false, p.failed("upgrade", &tails{}, err)
	}
	if err := p.succeed(ctx, before, after); err != nil {
		return false, err
	}
	p.watch(after, nil)
	ending, cancel := context.WithTimeout(ctx, lingering)
	defer cancel()
	return before.wait(ending) != nil, nil
}

// lingering is how long Upgrade waits for the end of the old master: with idle connections alone it ends at once.
const lingering = time.Second

// successor waits until the master that before has started has a worker that takes requests. The control socket
// is shared, and who answers there is not for us to choose: it is asked once the old workers are gone.
func (p *Proxy) successor(ctx context.Context, before process) (process, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ReloadTimeout)
	defer cancel()
	var after process
	gone := false
	err := poll(ctx, 5*time.Millisecond, func() bool {
		m, ok := p.named()
		if ok && !m.same(before) && accepts(m) {
			after = m
			return true
		}
		gone = !before.alive()
		return gone
	})
	if gone {
		err = errExited
	}
	return after, err
}

// succeed has after serve alone, and ends before. Should after not answer, before takes up its work again.
func (p *Proxy) succeed(ctx context.Context, before, after process) error {
	if err := before.signal(unix.SIGWINCH); err != nil {
		return err
	}
	retiring, cancel := context.WithTimeout(ctx, p.cfg.ReloadTimeout)
	defer cancel()
	err := poll(retiring, 5*time.Millisecond, func() bool { return !accepts(before) })
	if err == nil {
		err = p.await(ctx, &tails{}, func(s luapush.State) bool { return s.MasterPID == after.pid && reported(s, "") }, after)
	}
	if err != nil {
		return errors.Join(p.failed("upgrade", &tails{}, err), before.signal(unix.SIGHUP), after.signal(unix.SIGQUIT))
	}
	if err := before.signal(unix.SIGQUIT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// OwnFolder makes dir and empties it of folders that are not this user's: nginx -t, run by the daemon before nginx was
// ever started, makes nginx's temporary folders as the daemon's own, and no worker could write to them.
func OwnFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o770); err != nil { //nolint:gosec // the daemon's nginx -t makes folders in it
		return fmt.Errorf("make the folder of temporary files: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look at the folder of temporary files: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var s unix.Stat_t
		if err := unix.Lstat(path, &s); err != nil || int(s.Uid) == os.Geteuid() {
			continue
		}
		if err := removeIfThere(path); err != nil {
			return err
		}
	}
	return nil
}
