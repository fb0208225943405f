package nginxproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"

	"golang.org/x/sys/unix"

	"headgate/sync/luapush"
)

// The smallest configuration that reports as the real one does: boot, generation, master, workers.
var stand = template.Must(template.New("").Parse(`
{{range .Modules}}load_module {{.}};
{{end}}daemon off;
worker_processes 1;
pid {{.Dir}}/nginx.pid;
error_log {{.Dir}}/error.log;
events { worker_connections 64; }
http {
    access_log off;
    client_body_temp_path {{.Dir}}/t1; proxy_temp_path {{.Dir}}/t2; fastcgi_temp_path {{.Dir}}/t3;
    uwsgi_temp_path {{.Dir}}/t4; scgi_temp_path {{.Dir}}/t5;
    lua_package_path "{{.LuaPath}};;";
    lua_package_cpath "{{.LuaCPath}};;";
    lua_shared_dict meta 1m;
    init_by_lua_block {
        require("ffi").cdef("int getppid(void);")
        ngx.shared.meta:safe_add("boot", tostring(ngx.now()))
        {{.Init}}
    }
    init_worker_by_lua_block { ngx.shared.meta:set("w/" .. ngx.worker.pid(), "{{.Generation}}") }
    server {
        listen unix:{{.Dir}}/control.sock;
        location /v1/state {
            content_by_lua_block {
                local workers = {}
                for _, k in ipairs(ngx.shared.meta:get_keys(0)) do
                    if k:sub(1, 2) == "w/" then
                        workers[#workers + 1] = { pid = tonumber(k:sub(3)), generation = ngx.shared.meta:get(k) }
                    end
                end
                ngx.say(require("cjson").encode({ boot = ngx.shared.meta:get("boot"),
                    masterPid = require("ffi").C.getppid(), workers = workers }))
            }
        }
    }
    server {
        listen 127.0.0.1:{{.Port}};
        location / { return 200 "{{.Generation}}"; }
        location /slow { content_by_lua_block { ngx.sleep(0.5) ngx.say("slow") } }
    }
    {{.Extra}}
}
`))

type bench struct {
	t      *testing.T
	dir    string
	inst   Installation
	port   int
	client *luapush.Client
}

func newBench(t *testing.T) *bench {
	t.Helper()
	inst, err := Detect(t.Context(), Search{})
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("no proxy on this machine: %v", err) // an editor's machine; CI has one
	}
	dir, err := os.MkdirTemp("", "hg") //nolint:usetesting // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, dir: dir, inst: inst, port: l.Addr().(*net.TCPAddr).Port}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b.client = luapush.New(luapush.Config{Socket: b.path("control.sock"), Timeout: time.Second})
	t.Cleanup(func() {
		b.client.Close()
		hs, err := holders(b.path("control.sock"))
		if err != nil {
			t.Error(err)
		}
		for _, h := range hs {
			_ = unix.Kill(h.pid, unix.SIGKILL)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) conf(generation, init, extra string) Conf {
	b.t.Helper()
	var text bytes.Buffer
	err := stand.Execute(&text, map[string]any{
		"Modules": b.inst.Modules, "LuaPath": b.inst.LuaPath, "LuaCPath": b.inst.LuaCPath,
		"Dir": b.dir, "Port": b.port, "Generation": generation, "Init": init, "Extra": extra,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return Conf{Text: text.Bytes(), Generation: generation}
}

func (b *bench) config() Config {
	return Config{
		Mode: Managed, Binary: b.inst.Binary, Prefix: b.dir, Conf: b.path("nginx.conf"),
		Sockets: []string{b.path("control.sock")}, ErrorLog: b.path("error.log"), Output: b.path("output.log"),
		ReloadTimeout: 5 * time.Second, Observer: b.client,
		Log: slog.New(slog.NewTextHandler(b.t.Output(), nil)),
	}
}

// run runs p as the daemon does, and gives the function that ends it.
func (b *bench) run(p *Proxy) (stop func() error) {
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	var once error
	ended := false
	stop = func() error {
		cancel()
		if !ended {
			once, ended = <-done, true
		}
		return once
	}
	b.t.Cleanup(func() {
		if err := stop(); err != nil {
			b.t.Error(err)
		}
	})
	return stop
}

// startElsewhere starts nginx as a daemon before us did, which has ended since: as long as its first
// parent lives, nginx takes no USR2.
func (b *bench) startElsewhere(c Conf) {
	b.t.Helper()
	if err := os.WriteFile(b.path("nginx.conf"), c.Text, confMode); err != nil {
		b.t.Fatal(err)
	}
	parent := exec.CommandContext(b.t.Context(), "/bin/sh", "-c", `"$0" "$@" >/dev/null 2>&1 & read end`,
		b.inst.Binary, "-p", b.dir+"/", "-c", b.path("nginx.conf"))
	parent.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := parent.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.eventually("nginx", b.serves(c.Generation))
	_ = in.Close()
	_ = parent.Wait() // read has met the end: that is no success
}

// get asks the proxy, on a fresh connection.
func (b *bench) get(path string) (string, error) {
	c := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Get(fmt.Sprintf("http://127.0.0.1:%d%s", b.port, path))
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(res.Body)
	return string(body), errors.Join(err, res.Body.Close())
}

// eventually polls: nginx gives no signal for what is waited for here.
func (b *bench) eventually(what string, done func() bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
	defer cancel()
	if err := poll(ctx, 10*time.Millisecond, done); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

func (b *bench) serves(generation string) func() bool {
	return func() bool {
		got, err := b.get("/")
		return err == nil && got == generation
	}
}

func (b *bench) apply(p *Proxy, c Conf) {
	b.t.Helper()
	if err := p.Apply(b.t.Context(), c); err != nil {
		b.t.Fatal(err)
	}
}

func TestStartReloadStop(t *testing.T) {
	b := newBench(t)
	cfg := b.config()
	cfg.Stop = StopWithDaemon
	p := New(cfg)
	stop := b.run(p)
	if running, err := p.Resume(t.Context()); running || err != nil {
		t.Fatalf("resume: %v, %v", running, err)
	}
	b.apply(p, b.conf("one", "", ""))
	if got, err := b.get("/"); got != "one" {
		t.Fatalf("%q, %v", got, err)
	}
	pid := p.Condition().MasterPID
	slow := make(chan string, 1)
	go func() {
		got, err := b.get("/slow")
		slow <- fmt.Sprint(got, err)
	}()
	b.apply(p, b.conf("two", "", ""))
	b.eventually("the new generation", b.serves("two"))
	if got := <-slow; got != "slow\n<nil>" {
		t.Errorf("a request over the reload: %s", got)
	}
	if p.Condition().MasterPID != pid {
		t.Error("the master changed")
	}
	// setsid: a session and group of its own, not ours.
	if pgid, err := unix.Getpgid(pid); err != nil || pgid != pid {
		t.Errorf("process group %d of master %d, %v", pgid, pid, err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, ok := inspect(pid); ok {
		t.Error("the master runs on")
	}
	for _, f := range []string{"control.sock", "nginx.conf.new", "nginx.conf.last", "nginx.pid"} {
		if _, err := os.Stat(b.path(f)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s left behind (%v)", f, err)
		}
	}
}

func TestBrokenConfKeepsLastGood(t *testing.T) {
	b := newBench(t)
	p := New(b.config())
	b.run(p)
	good := b.conf("good", "", "")
	b.apply(p, good)

	for name, tc := range map[string]struct {
		conf Conf
		want string
	}{
		"syntax":       {b.conf("bad", "", "no_such_directive on;"), `unknown directive "no_such_directive"`},
		"Lua at start": {b.conf("bad", `error("as if a module were missing")`, ""), "as if a module were missing"},
		"never reports": {b.conf("bad", `ngx.shared.meta:set("lie", 1)`, `init_worker_by_lua_block { }
			`), "is duplicate"},
	} {
		t.Run(name, func(t *testing.T) {
			err := p.Apply(t.Context(), tc.conf)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v", err)
			}
			if b, err := os.ReadFile(b.path("nginx.conf")); err != nil || !bytes.Equal(b, good.Text) {
				t.Errorf("the last good file is not in place (%v)", err)
			}
			b.eventually("the last good generation", b.serves("good"))
			if name == "syntax" {
				var refused *ConfError
				if !errors.As(err, &refused) || refused.Line == 0 {
					t.Errorf("%T %v", err, err)
				}
			}
		})
	}
	// And it still takes a good one.
	b.apply(p, b.conf("better", "", ""))
	b.eventually("the better generation", b.serves("better"))
}

// A configuration whose workers run other Lua than they should: the generation tells.
func TestReloadThatNobodyReports(t *testing.T) {
	b := newBench(t)
	cfg := b.config()
	cfg.ReloadTimeout = 700 * time.Millisecond
	p := New(cfg)
	b.run(p)
	b.apply(p, b.conf("good", "", ""))
	c := b.conf("other", "", "")
	c.Generation = "expected"
	err := p.Apply(t.Context(), c)
	var failed *ReloadError
	if !errors.As(err, &failed) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	b.eventually("the last good generation", b.serves("good"))
}

func TestFirstStartFails(t *testing.T) {
	b := newBench(t)
	p := New(b.config())
	b.run(p)
	err := p.Apply(t.Context(), b.conf("bad", `error("broken")`, ""))
	var failed *ReloadError
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), "broken") {
		t.Fatalf("error %v", err)
	}
	if _, err := os.Stat(b.path("nginx.conf")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a configuration that never ran is in place: %v", err)
	}
	b.apply(p, b.conf("good", "", ""))
}

func TestMasterKilled(t *testing.T) {
	b := newBench(t)
	p := New(b.config())
	b.run(p)
	b.apply(p, b.conf("one", "", ""))
	for range 2 {
		old := p.Condition().MasterPID
		before, err := b.client.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(old, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		b.eventually("another master", func() bool {
			c := p.Condition()
			return c.MasterPID != 0 && c.MasterPID != old
		})
		if got, err := b.get("/"); got != "one" {
			t.Fatalf("%q, %v", got, err)
		}
		for _, w := range before.Workers {
			b.eventually("the end of the orphan", func() bool { _, ok := inspect(w.PID); return !ok })
		}
	}
	if n := p.Condition().Restarts; n != 2 {
		t.Errorf("%d restarts", n)
	}
}

// A new master takes the listeners of the workers that its predecessor left: nobody is refused.
func TestMasterKilledUnderLoad(t *testing.T) {
	b := newBench(t)
	b.startElsewhere(b.conf("one", "", ""))
	p := New(b.config())
	b.run(p)
	if running, err := p.Resume(t.Context()); !running || err != nil {
		t.Fatalf("resume: %v, %v", running, err)
	}
	old := p.Condition().MasterPID
	if err := unix.Kill(old, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.eventually("another master", func() bool {
		if got, err := b.get("/"); got != "one" {
			t.Fatalf("%q, %v", got, err)
		}
		c := p.Condition()
		return c.MasterPID != 0 && c.MasterPID != old
	})
	for range 100 {
		if got, err := b.get("/"); got != "one" {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

// nginx's own upgrade: the workers of the old master are retired, the new master is the one that is
// kept; when that dies the old one is taken back.
func TestHandOver(t *testing.T) {
	b := newBench(t)
	b.startElsewhere(b.conf("one", "", ""))
	p := New(b.config())
	b.run(p)
	if running, err := p.Resume(t.Context()); !running || err != nil {
		t.Fatalf("resume: %v, %v", running, err)
	}
	old := p.Condition().MasterPID
	if over, err := p.HandOver(t.Context()); over || err != nil {
		t.Fatalf("handed over without a successor: %v, %v", over, err)
	}
	if err := unix.Kill(old, unix.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	b.eventually("the successor", func() bool {
		over, err := p.HandOver(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return over
	})
	next := p.Condition().MasterPID
	if next == old || next == 0 {
		t.Fatalf("master %d, was %d", next, old)
	}
	b.eventually("the new master's answer", func() bool {
		s, err := b.client.State(t.Context())
		return err == nil && s.MasterPID == next
	})
	if over, err := p.HandOver(t.Context()); over || err != nil {
		t.Fatalf("handed over twice: %v, %v", over, err)
	}
	if err := unix.Kill(next, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.eventually("a master that serves", func() bool {
		got, err := b.get("/")
		c := p.Condition()
		return err == nil && got == "one" && c.MasterPID != next && c.MasterPID != 0
	})
}

// The daemon restarts: nginx serves on, the next daemon adopts it and reloads it.
func TestAdopt(t *testing.T) {
	b := newBench(t)
	first := New(b.config())
	stop := b.run(first)
	b.apply(first, b.conf("one", "", ""))
	pid := first.Condition().MasterPID
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got, err := b.get("/"); got != "one" {
		t.Fatalf("%q, %v", got, err)
	}
	second := New(b.config())
	b.run(second)
	if running, err := second.Resume(t.Context()); !running || err != nil {
		t.Fatalf("resume: %v, %v", running, err)
	}
	if got := second.Condition().MasterPID; got != pid {
		t.Errorf("adopted %d, want %d", got, pid)
	}
	b.apply(second, b.conf("two", "", ""))
	b.eventually("the new generation", b.serves("two"))
	// The adopted master is no child of the second daemon (here it is one of the test): its death is
	// seen all the same.
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.eventually("another master", func() bool {
		c := second.Condition()
		return c.MasterPID != 0 && c.MasterPID != pid
	})
	b.eventually("the last configuration", b.serves("two"))
}

// Daemon and master die; the workers live on. The next daemon ends them and starts a master.
func TestOrphansAtStart(t *testing.T) {
	b := newBench(t)
	first := New(b.config())
	stop := b.run(first)
	b.apply(first, b.conf("one", "", ""))
	pid := first.Condition().MasterPID
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.eventually("the end of the master", func() bool { _, ok := inspect(pid); return !ok })
	if got, err := b.get("/"); got != "one" {
		t.Fatalf("the orphan does not serve: %q, %v", got, err)
	}
	second := New(b.config())
	b.run(second)
	if running, err := second.Resume(t.Context()); !running || err != nil {
		t.Fatalf("resume: %v, %v", running, err)
	}
	if got := second.Condition().MasterPID; got == pid || got == 0 {
		t.Errorf("master %d", got)
	}
	b.eventually("service", b.serves("one"))
}

func TestDeadAndLivingSockets(t *testing.T) {
	b := newBench(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.path("control.sock")})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	p := New(b.config())
	b.run(p)
	err = p.Apply(t.Context(), b.conf("one", "", ""))
	if err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a living foreign socket: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b.apply(p, b.conf("one", "", ""))
}

func TestExternal(t *testing.T) {
	b := newBench(t)
	cfg := b.config()
	cfg.Mode = External
	p := New(cfg)
	b.run(p)
	if running, err := p.Resume(t.Context()); running || err != nil {
		t.Fatalf("resume: %v, %v", running, err)
	}
	if err := p.Apply(t.Context(), b.conf("one", "", "")); !errors.Is(err, ErrNotRunning) {
		t.Fatalf("error %v", err)
	}
	// Somebody else starts it.
	cmd := exec.CommandContext(t.Context(), b.inst.Binary, "-p", b.dir, "-c", b.path("nginx.conf"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b.eventually("the start", b.serves("one"))
	b.apply(p, b.conf("two", "", ""))
	b.eventually("the new generation", b.serves("two"))
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	b.eventually("the death to be seen", func() bool { return p.Condition().MasterPID == 0 })
	if p.Condition().Restarts != 0 {
		t.Error("restarted a proxy that is not ours to start")
	}
}

// A stale pid file, or a process that got the ID of a dead master, is never taken for the proxy.
func TestForeignProcessIsNotAdopted(t *testing.T) {
	b := newBench(t)
	self := strconv.Itoa(os.Getpid())
	if err := os.WriteFile(b.path("nginx.pid"), []byte(self), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := b.config()
	cfg.Observer = liar{os.Getpid()}
	p := New(cfg)
	if running, err := p.Resume(t.Context()); running || err != nil {
		t.Fatalf("resume: %v, %v", running, err)
	}
}

type liar struct{ pid int }

func (l liar) State(context.Context) (luapush.State, error) {
	return luapush.State{MasterPID: l.pid}, nil
}

func TestProcessWait(t *testing.T) {
	for name, wait := range map[string]func(process, context.Context) error{
		"pidfd": process.wait, "polling": process.waitPolling,
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "sleep", "60")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			p, ok := inspect(cmd.Process.Pid)
			if !ok {
				t.Fatal("not there")
			}
			short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if err := wait(p, short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("wait for a living process: %v", err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := wait(p, t.Context()); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait()
			if err := wait(p, t.Context()); err != nil {
				t.Error(err)
			}
			if err := p.signal(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
				t.Error(err)
			}
		})
	}
}

// The control socket of a living master is removed: another master takes its place, makes the socket
// anew, and nobody is refused meanwhile.
func TestSocketRemoved(t *testing.T) {
	for name, child := range map[string]bool{"our child": true, "adopted": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			p := New(b.config())
			b.run(p)
			if child {
				b.apply(p, b.conf("one", "", ""))
			} else {
				b.startElsewhere(b.conf("one", "", ""))
				if running, err := p.Resume(t.Context()); !running || err != nil {
					t.Fatalf("resume: %v, %v", running, err)
				}
			}
			old := p.Condition().MasterPID
			for range 2 {
				if err := os.Remove(b.path("control.sock")); err != nil {
					t.Fatal(err)
				}
				if p.Adopt(t.Context()) {
					t.Error("adopted a proxy that cannot be spoken to")
				}
				ended := make(chan struct{})
				refused := make(chan error, 1)
				go func() {
					for {
						if got, err := b.get("/"); got != "one" {
							refused <- fmt.Errorf("%q, %w", got, err)
							return
						}
						select {
						case <-ended:
							refused <- nil
							return
						default:
						}
					}
				}()
				running, err := p.Resume(t.Context())
				close(ended)
				if !running || err != nil {
					t.Fatalf("resume: %v, %v", running, err)
				}
				if err := <-refused; err != nil {
					t.Errorf("a request meanwhile: %v", err)
				}
				now := p.Condition().MasterPID
				if s, err := b.client.State(t.Context()); err != nil || s.MasterPID != now || now == old {
					t.Errorf("state %+v, %v; master %d, was %d", s, err, now, old)
				}
				b.eventually("the end of the old master", func() bool { _, ok := inspect(old); return !ok })
				old = now
			}
			b.apply(p, b.conf("two", "", ""))
			b.eventually("the new generation", b.serves("two"))
			if got := p.Condition(); got.MasterPID != old || got.Restarts != 2 {
				t.Errorf("condition %+v", got)
			}
		})
	}
}

// In external mode only whoever runs nginx can bring the socket back.
func TestSocketRemovedExternal(t *testing.T) {
	b := newBench(t)
	cfg := b.config()
	cfg.Mode = External
	b.startElsewhere(b.conf("one", "", ""))
	for name, known := range map[string]bool{"known": true, "found": false} {
		t.Run(name, func(t *testing.T) {
			p := New(cfg)
			if known {
				if running, err := p.Resume(t.Context()); !running || err != nil {
					t.Fatalf("resume: %v, %v", running, err)
				}
				if err := os.Remove(b.path("control.sock")); err != nil {
					t.Fatal(err)
				}
			} else if err := os.Remove(b.path("control.sock")); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if running, err := p.Resume(t.Context()); running || err != nil {
				t.Errorf("resume: %v, %v", running, err)
			}
			err := p.Apply(t.Context(), b.conf("one", "", ""))
			if !errors.Is(err, ErrSocketGone) || !strings.Contains(err.Error(), b.path("control.sock")+" is gone: systemctl restart headgate-proxy") {
				t.Errorf("error %v", err)
			}
			if s, err := os.ReadFile(b.path("error.log")); err != nil || bytes.Contains(s, []byte("signal 1 (SIGHUP)")) {
				t.Errorf("reloaded for nothing (%v): %s", err, s)
			}
			if got, err := b.get("/"); got != "one" {
				t.Errorf("%q, %v", got, err)
			}
			b.startedAgain(p)
		})
	}
}

// startedAgain restarts nginx as a unit does, and leaves it running with its sockets.
func (b *bench) startedAgain(p *Proxy) {
	b.t.Helper()
	master, err := os.ReadFile(b.path("nginx.pid"))
	if err != nil {
		b.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(master)))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		b.t.Fatal(err)
	}
	b.eventually("the end", func() bool { _, ok := inspect(pid); return !ok })
	b.startElsewhere(b.conf("one", "", ""))
	b.eventually("the proxy that can be spoken to", func() bool {
		running, err := p.Resume(b.t.Context())
		return running && err == nil
	})
}

func TestAddressTaken(t *testing.T) {
	b := newBench(t)
	p := New(b.config())
	b.run(p)
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port))
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	err = p.Apply(t.Context(), b.conf("one", "", ""))
	var failure *ReloadError
	if !errors.As(err, &failure) || len(failure.Taken) != 1 || failure.Taken[0].Address != address || failure.Taken[0].By.PID != os.Getpid() {
		t.Errorf("error %v", err)
	}
	pid := strconv.Itoa(os.Getpid())
	if text := fmt.Sprint(err); !strings.HasPrefix(text, "start nginx: "+address+" is taken by ") || !strings.Contains(text, "PID "+pid) || strings.Count(text, address) != 1 {
		t.Errorf("error %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b.apply(p, b.conf("one", "", ""))
}

func TestTaken(t *testing.T) {
	const line = "2026/11/29 15:00:00 [emerg] 7#7: bind() to 127.0.0.1:80 failed (98: Address already in use) | "
	for name, tc := range map[string]struct {
		log  string
		want []string
	}{
		"nothing":      {"", nil},
		"five tries":   {strings.Repeat(line, 5) + "still could not bind()", []string{"127.0.0.1:80"}},
		"two":          {line + "nginx: [emerg] bind() to [::]:443 failed (98: Address already in use) | " + line, []string{"127.0.0.1:80", "[::]:443"}},
		"other reason": {"bind() to 0.0.0.0:80 failed (13: Permission denied)", nil},
	} {
		if got := taken(tc.log); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
