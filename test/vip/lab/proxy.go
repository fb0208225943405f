package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Proxy is what a daemon made of no routes at all: nginx.conf, Lua and state log. Its listeners answer 404 to
// everybody. Each host gets a copy, so that no host needs a daemon.
type Proxy struct {
	dir    string // with run/ and state/
	binary string // nginx
}

// Assemble runs the daemon once, until the proxy has applied a complete revision.
func Assemble(t testing.TB, binary string) *Proxy {
	t.Helper()
	dir := folder(t)
	manifests := filepath.Join(dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil { //nolint:gosec // no secret in it
		t.Fatal(err)
	}
	file := filepath.Join(dir, "headgate.yaml")
	text := fmt.Sprintf(`manifests: [%q]
listeners: {http: ["0.0.0.0:80", "[::]:80"], https: []}
proxy: {mode: managed, stopWithDaemon: true, workerProcesses: 1}
metrics: {listen: ""}
status: {enabled: false}
stateDir: %q
runtimeDir: %q
`, manifests, filepath.Join(dir, "state"), filepath.Join(dir, "run"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &Proxy{dir: dir}
	p.run(t, binary, file)
	return p
}

// run runs the daemon in a namespace of its own, where port 80 is free.
func (p *Proxy) run(t testing.TB, binary, file string) {
	t.Helper()
	var log bytes.Buffer
	daemon := exec.CommandContext(context.WithoutCancel(t.Context()), binary, "run", "--config", file)
	daemon.Stdout, daemon.Stderr = &log, &log
	daemon.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1) // the goroutine must end
	go func() { ended <- daemon.Wait() }()
	defer func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		<-ended
	}()
	for deadline := time.Now().Add(Patience); ; rest() {
		out, _ := exec.CommandContext(t.Context(), binary, "status", "--config", file, "-o", "json").Output() // degraded for a while
		var status struct {
			Ready    bool
			Revision struct{ Applied uint64 }
			Proxy    struct{ MasterPID int }
		}
		if json.Unmarshal(out, &status) == nil && status.Ready && status.Revision.Applied > 0 {
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", status.Proxy.MasterPID))
			if err != nil {
				t.Fatal(err)
			}
			p.binary = exe
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the daemon is not ready:\n%s\n%s", out, log.String())
		}
	}
}

// copyTo gives a host its proxy; paths in the files become those of the host.
func (p *Proxy) copyTo(t testing.TB, dir string) {
	t.Helper()
	err := filepath.WalkDir(p.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(p.dir, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, rest)
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if err := os.MkdirAll(to, info.Mode().Perm()); err != nil {
				return err
			}
			return os.Chmod(to, info.Mode().Perm())
		}
		if !entry.Type().IsRegular() || strings.HasSuffix(path, ".pid") {
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // the lab's own
		if err != nil {
			return err
		}
		if filepath.Base(path) == "nginx.conf" {
			text = bytes.ReplaceAll(text, []byte(p.dir+"/"), []byte(dir+"/"))
		}
		return os.WriteFile(to, text, info.Mode().Perm())
	})
	if err != nil {
		t.Fatalf("copy the proxy: %v", err)
	}
}

// StartProxy starts nginx and waits until a worker serves.
func (h *Host) StartProxy(t testing.TB) {
	t.Helper()
	h.SpawnProxy(t)
	h.AwaitProxy(t)
}

// SpawnProxy starts nginx as a unit of its own does and returns at once. Its workers get the rights of nginx's
// user on what they need.
func (h *Host) SpawnProxy(t testing.TB) {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(h.dir, "run", "proxy", "*.sock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sockets { // of a master that was killed
		if err := os.Remove(s); err != nil {
			t.Fatal(err)
		}
	}
	prefix := filepath.Join(h.dir, "run")
	h.proxy = h.Run(t, "proxy", h.lab.config.Proxy.binary, "-p", prefix+"/", "-c", filepath.Join(prefix, "nginx.conf"))
}

// AwaitProxy waits until the proxy's control socket tells of a worker with a complete revision.
func (h *Host) AwaitProxy(t testing.TB) {
	t.Helper()
	why := error(nil)
	for deadline := time.Now().Add(Patience); ; rest() {
		if why = h.proxyServes(t.Context()); why == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the proxy of %s does not serve: %v\n%s", h.Name, why, h.proxy.Tail())
		}
	}
}

func (h *Host) proxyServes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	state, err := h.control.State(ctx)
	if err == nil && (state.Revision == 0 || len(state.Workers) == 0) {
		err = fmt.Errorf("revision %d, %d workers", state.Revision, len(state.Workers))
	}
	return err
}

// KillProxy kills nginx, all processes at once.
func (h *Host) KillProxy(t testing.TB) {
	t.Helper()
	h.proxy.Signal(t, syscall.SIGKILL)
	h.proxy.Wait(t)
}

// FreezeProxy stops nginx where it stands: it accepts and answers nobody.
func (h *Host) FreezeProxy(t testing.TB) { t.Helper(); h.proxy.Freeze(t) }

// ThawProxy lets it go on.
func (h *Host) ThawProxy(t testing.TB) { t.Helper(); h.proxy.Signal(t, syscall.SIGCONT) }
