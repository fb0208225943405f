package nginxproc

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/sync/luapush"
)

// detached is a configuration for the commands of a unit: in the background, with the PID file on the command line.
func (b *bench) detached(generation, init string) Conf {
	b.t.Helper()
	c := b.conf(generation, init, "")
	text := strings.Replace(string(c.Text), "daemon off;", "daemon on;", 1)
	c.Text = []byte(strings.Replace(text, "pid "+b.path("nginx.pid")+";", "", 1))
	return c
}

// unit makes what one command of the unit is: it knows of no master, and ends with the command.
func (b *bench) unit() *Proxy {
	cfg := b.config()
	cfg.Mode, cfg.PIDFile, cfg.Candidate = External, b.path("nginx.pid"), b.path("nginx.conf.boot")
	cfg.StopTimeout = 5 * time.Second
	return New(cfg)
}

// launch installs a configuration, and starts a master with it.
func (b *bench) launch(c Conf) process {
	b.t.Helper()
	if err := b.unit().Install(b.t.Context(), c); err != nil {
		b.t.Fatal(err)
	}
	return b.launchAgain()
}

// launcher names the folder of the nginx that TestHelperLaunch starts.
const launcher = "HEADGATE_TEST_LAUNCH"

// launchAgain starts a master from another process, as the unit does: nginx heeds USR2 only when that has ended.
func (b *bench) launchAgain() process {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), os.Args[0], "-test.run=^TestHelperLaunch$")
	cmd.Env = append(os.Environ(), launcher+"="+b.dir)
	cmd.Stderr = os.Stderr // not a pipe: nginx would keep it open
	if err := cmd.Run(); err != nil {
		b.t.Fatal(err)
	}
	m, ok := b.unit().named()
	if !ok {
		b.t.Fatal("no master after Launch has returned")
	}
	return m
}

func TestHelperLaunch(t *testing.T) {
	dir := os.Getenv(launcher)
	if dir == "" {
		return // a helper of the other tests, which run it in a process of its own
	}
	inst, err := Detect(t.Context(), Search{})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, dir: dir, inst: inst, client: luapush.New(luapush.Config{Socket: filepath.Join(dir, "control.sock"), Timeout: time.Second})}
	defer b.client.Close()
	if err := b.unit().Launch(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// unbroken opens fresh connections all the time until the test calls the result, which fails the test when one was
// refused or got no answer.
func (b *bench) unbroken() (end func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	failed := make(chan error, 1)
	go func() {
		client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		for ctx.Err() == nil {
			response, err := client.Get(b.url())
			if err != nil {
				failed <- err
				return
			}
			_ = response.Body.Close()
		}
		failed <- nil
	}()
	return func() {
		b.t.Helper()
		cancel()
		if err := <-failed; err != nil {
			b.t.Errorf("a request failed: %v", err)
		}
	}
}

func (b *bench) url() string { return "http://127.0.0.1:" + strconv.Itoa(b.port) + "/" }

func TestLaunchStartsOneMaster(t *testing.T) {
	b := newBench(t)
	m := b.launch(b.detached("one", ""))
	if !b.serves("one")() {
		t.Error("it does not serve after Launch has returned")
	}
	if err := b.unit().Launch(t.Context()); !errors.Is(err, ErrRunning) {
		t.Errorf("a second start: %v", err)
	}
	if parent, ok := inspect(m.parent); ok && parent.pid == os.Getpid() {
		t.Error("nginx is our child, and ignores USR2")
	}
	if err := b.unit().Quit(t.Context()); err != nil {
		t.Error(err)
	}
	if m.alive() {
		t.Error("the master lives after Quit")
	}
}

func TestLaunchTellsThatNginxEnded(t *testing.T) {
	b := newBench(t)
	if err := b.unit().Install(t.Context(), b.detached("one", `error("no")`)); err != nil {
		t.Fatal(err)
	}
	var failure *ReloadError
	if err := b.unit().Launch(t.Context()); !errors.As(err, &failure) {
		t.Errorf("error %v", err)
	}
}

// TestNobodyNoticesANewMaster: it is killed, or restarted, or upgraded several times in all orders.
func TestNobodyNoticesANewMaster(t *testing.T) {
	b := newBench(t)
	m := b.launch(b.detached("one", ""))
	end := b.unbroken()
	for i, replace := range []func() error{
		func() error { return m.signal(unix.SIGKILL) },
		func() error { return b.unit().Abandon(t.Context()) },
		nil, nil,
		func() error { return b.unit().Abandon(t.Context()) },
		nil,
	} {
		before := m
		if replace == nil {
			p := b.unit()
			if _, err := p.Upgrade(t.Context()); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			m = p.master
		} else {
			if err := replace(); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			b.eventually("the end of the master", func() bool { return !before.alive() })
			m = b.launchAgain()
		}
		if m.same(before) || !m.alive() {
			t.Fatalf("step %d: the master is %d, before %d", i, m.pid, before.pid)
		}
	}
	end()
	if err := b.unit().Quit(t.Context()); err != nil {
		t.Error(err)
	}
	if hs, err := holders(b.path("control.sock")); err != nil || len(hs) > 0 {
		t.Errorf("%d processes are left, %v", len(hs), err)
	}
}

func TestUpgradeOfNothing(t *testing.T) {
	b := newBench(t)
	if err := b.unit().Install(t.Context(), b.detached("one", "")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.unit().Upgrade(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("error %v", err)
	}
	if err := b.unit().HangUp(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("error %v", err)
	}
}

// TestUpgradeThatFails: the new master does not come up, and the old one serves on.
func TestUpgradeThatFails(t *testing.T) {
	b := newBench(t)
	m := b.launch(b.detached("one", ""))
	if err := b.unit().Install(t.Context(), b.detached("two", `error("no")`)); err != nil {
		t.Fatal(err)
	}
	cfg := b.unit().cfg
	cfg.ReloadTimeout = time.Second
	if _, err := New(cfg).Upgrade(t.Context()); err == nil {
		t.Fatal("an upgrade to what does not start has succeeded")
	}
	if !m.alive() || !b.serves("one")() {
		t.Error("the old one does not serve on")
	}
}

func TestHangUp(t *testing.T) {
	b := newBench(t)
	b.launch(b.detached("one", ""))
	if err := os.WriteFile(b.path("nginx.conf"), []byte("nonsense;"), 0o600); err != nil {
		t.Fatal(err)
	}
	var refused *ConfError
	if err := b.unit().HangUp(t.Context()); !errors.As(err, &refused) {
		t.Errorf("error %v", err)
	}
	if err := b.unit().Install(t.Context(), b.detached("two", "")); err != nil {
		t.Fatal(err)
	}
	if err := b.unit().HangUp(t.Context()); err != nil {
		t.Error(err)
	}
	b.eventually("the new generation", b.serves("two"))
}

// TestTheUnitIsAskedWhereASignalIsNotPermitted: the daemon is another user than nginx.
func TestTheUnitIsAskedWhereASignalIsNotPermitted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	b := newBench(t)
	asked := 0
	cfg := b.config()
	cfg.Mode, cfg.PIDFile = External, b.path("nginx.pid")
	cfg.ReloadUnit = func(context.Context) error { asked++; return nil }
	p := New(cfg)
	b.launch(b.detached("one", ""))
	if !p.Adopt(t.Context()) {
		t.Fatal("not adopted")
	}
	if err := p.hangUp(t.Context()); err != nil || asked != 0 {
		t.Errorf("%v; the unit was asked %d times although a signal is permitted", err, asked)
	}
	as := func(f func() error) error {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			const nobody = 65534
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
				done <- errno
				return
			}
			done <- f()
		}()
		return <-done
	}
	if err := as(func() error { return p.hangUp(t.Context()) }); err != nil || asked != 1 {
		t.Errorf("%v; the unit was asked %d times, want once", err, asked)
	}
	p.cfg.ReloadUnit = nil
	if err := as(func() error { return p.hangUp(t.Context()) }); !errors.Is(err, os.ErrPermission) {
		t.Errorf("with nobody to ask: %v", err)
	}
}

func TestClearSockets(t *testing.T) {
	b := newBench(t)
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.path("control.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := b.unit().ClearSockets(t.Context()); err != nil {
		t.Fatal(err)
	}
	if removed(b.path("control.sock")) {
		t.Error("a socket that is listened on was removed")
	}
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.unit().ClearSockets(t.Context()); err != nil || !removed(b.path("control.sock")) {
		t.Errorf("a dead socket is still there, %v", err)
	}
}

// TestOwnFolder: what another user's nginx -t has left goes, our own stays.
func TestOwnFolder(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving a folder away needs root")
	}
	dir := t.TempDir()
	for _, name := range []string{"mine", "foreign"} {
		if err := os.Mkdir(dir+"/"+name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const nobody = 65534
	if err := os.Chown(dir+"/foreign", nobody, nobody); err != nil {
		t.Fatal(err)
	}
	if err := OwnFolder(dir); err != nil {
		t.Fatal(err)
	}
	if removed(dir+"/mine") || !removed(dir+"/foreign") {
		t.Error("the wrong folder was removed")
	}
}
