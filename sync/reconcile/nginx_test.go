package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/plan"
	"headgate/gateway/snapshot"
	"headgate/lua"
	"headgate/sync/luapush"
	"headgate/sync/nginxproc"
	"headgate/sync/statelog"
)

// site is a loop with a real nginx, its real Lua and a real state log. Routes have no backends: a
// host that is served answers 503, any other 404.
type site struct {
	t       *testing.T
	dir     string
	address netip.AddrPort
	layout  nginxconf.Layout
	binary  string

	log     logText
	builder *fakeBuilder
	source  *fakeSource
	control *luapush.Client
	proxy   *nginxproc.Proxy
	loop    *Loop
	stop    func()
}

// logText is what was logged.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newSite(t *testing.T) *site {
	t.Helper()
	inst, err := nginxproc.Detect(t.Context(), nginxproc.Search{})
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
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	// The workers run as another user where the test runs as root.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().(*net.TCPAddr).AddrPort()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := lua.Write(filepath.Join(dir, "lua")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "temp"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &site{t: t, dir: dir, address: address, binary: inst.Binary, layout: nginxconf.Layout{
		NginxVersion: inst.Version, Modules: inst.Modules, LuaPath: inst.LuaPath, LuaCPath: inst.LuaCPath,
		PIDFile: filepath.Join(dir, "nginx.pid"), TempDir: filepath.Join(dir, "temp"),
		ControlSocket: filepath.Join(dir, "control.sock"), ErrorLog: filepath.Join(dir, "error.log"),
		StateLog: filepath.Join(dir, "state.log"), LuaDir: lua.Dir(filepath.Join(dir, "lua")), LuaBuild: lua.Build(),
		TLSDir: filepath.Join(dir, "tls"),
	}}
}

// daemon starts everything that one process of headgate has.
func (s *site) daemon(stop nginxproc.StopMode) {
	s.t.Helper()
	logger := slog.New(slog.NewTextHandler(io.MultiWriter(s.t.Output(), &s.log), nil))
	s.builder = &fakeBuilder{mu: new(sync.Mutex), verdicts: map[string]string{}, rejected: map[string]string{}}
	s.builder.settings = model.Settings{WorkerProcesses: 2, WorkerConnections: 64, StateMemoryBytes: 1 << 20}
	s.builder.listeners = []model.Listener{{Address: s.address, Scheme: model.HTTP}}
	s.source = &fakeSource{changed: make(chan struct{}, 1), snap: &snapshot.Snapshot{}}
	s.control = luapush.New(luapush.Config{Socket: s.layout.ControlSocket})
	log, _ := statelog.Open(statelog.Config{Path: s.layout.StateLog, Log: logger})
	s.proxy = nginxproc.New(nginxproc.Config{
		Mode: nginxproc.Managed, Stop: stop, Binary: s.binary, Prefix: s.dir, Conf: filepath.Join(s.dir, "nginx.conf"),
		Sockets: s.layout.Sockets(), FilesDir: s.layout.TLSDir, ErrorLog: s.layout.ErrorLog, Output: filepath.Join(s.dir, "output.log"),
		Observer: s.control, Log: logger,
	})
	s.loop = New(Config{
		Source: s.source, Builder: s.builder, Proxy: s.proxy, Control: s.control, StateLog: log, Layout: s.layout,
		Settings: s.builder.settings, Listeners: s.builder.listeners, MemoryFile: filepath.Join(s.dir, "applied.json"),
		Log: logger,
	})
	ctx, cancel := context.WithCancel(s.t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{s.loop.Run, s.proxy.Run, log.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				s.t.Error(err)
			}
		})
	}
	s.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		s.control.Close()
		if err := log.Close(); err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(s.stop)
}

func (s *site) status(host string) int {
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.address.String()+"/", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Host = host
	c := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Do(r)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode
}

// eventually polls: what is waited for happens in other processes.
func (s *site) eventually(what string, done func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: did not come; status %+v", what, s.loop.Status())
		}
		time.Sleep(5 * time.Millisecond) // see above
	}
}

func (s *site) applied(names ...string) {
	s.t.Helper()
	before := s.loop.Status().Passes
	s.source.set(names...)
	s.eventually(fmt.Sprint("pass with ", names), func() bool {
		st := s.loop.Status()
		return st.Passes > before && st.Ready && len(st.Result.Model.Hosts) == len(names)
	})
}

// serves asks twice as often as there are workers: an acknowledged push holds for all of them.
func (s *site) serves(want map[string]int) {
	s.t.Helper()
	for range 4 {
		for host, code := range want {
			if got := s.status(host); got != code {
				s.t.Errorf("%s answers %d, want %d", host, got, code)
			}
		}
	}
}

func (s *site) reloads(want ...plan.Reason) {
	s.t.Helper()
	var got []plan.Reason
	for _, r := range plan.Reasons() {
		for range s.loop.Status().Reloads[r] {
			got = append(got, r)
		}
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("reloads %v, want %v", got, want)
	}
}

func TestRealProxy(t *testing.T) {
	s := newSite(t)
	s.daemon(nginxproc.KeepRunning)
	s.applied("a.test")
	s.serves(map[string]int{"a.test": 503, "b.test": 404})
	s.applied("a.test", "b.test")
	s.serves(map[string]int{"a.test": 503, "b.test": 503})
	s.applied("b.test")
	s.serves(map[string]int{"a.test": 404, "b.test": 503})
	s.reloads(plan.FirstStart)
	s.applied("b.test", "big-16m.test")
	s.reloads(plan.FirstStart, plan.NewProfile)

	// The proxy's PCRE says which patterns compile.
	s.applied("b.test", "big-16m.test", "regex-a.test", "regex(.test")
	if v := s.builder.verdicts; v["regex-a.test"] != "" || !strings.Contains(v["regex(.test"], "missing") {
		t.Errorf("verdicts %v", v)
	}

	// A large push: many parts, and a larger dict first.
	names := []string{"b.test"}
	for i := range 40 {
		names = append(names, fmt.Sprintf("h%d.test*60000", i))
	}
	s.applied(names...)
	s.serves(map[string]int{"b.test": 503, "h39.test": 404}) // its path is longer than "/"
	s.reloads(plan.FirstStart, plan.NewProfile, plan.Resize)
	keys, err := s.control.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := keys.Pointers["host/h39.test"]; !ok || len(keys.Bodies) < 41 {
		t.Errorf("%d pointers, %d bodies", len(keys.Pointers), len(keys.Bodies))
	}

	// kill -9 of the master: a new one serves the same from the state log, and nothing is pushed.
	pushes := s.loop.Status().Pushes
	old := s.proxy.Condition().MasterPID
	if err := unix.Kill(old, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.eventually("another master", func() bool {
		pid := s.proxy.Condition().MasterPID
		return pid != 0 && pid != old
	})
	s.serves(map[string]int{"b.test": 503, "a.test": 404})
	boot := s.loop.Status().Proxy.Boot
	s.eventually("the loop to see it", func() bool {
		st := s.loop.Status()
		return st.ProxyErr == nil && st.Ready && (st.Proxy.Boot != boot || st.Proxy.Loaded.From == "log")
	})
	if got := s.loop.Status(); got.Pushes != pushes {
		t.Errorf("%d pushes after the restart from the log", got.Pushes-pushes)
	}

	// The daemon restarts: adopted, no reload, no push, then one more push.
	s.stop()
	s.serves(map[string]int{"b.test": 503})
	s.daemon(nginxproc.StopWithDaemon)
	s.applied(names...)
	s.reloads()
	if got := s.loop.Status(); got.Pushes != 0 {
		t.Errorf("%d pushes of what is there", got.Pushes)
	}
	s.applied("z.test")
	s.serves(map[string]int{"z.test": 503, "b.test": 404})
	s.reloads()

	s.stop()
	for _, f := range append(s.layout.Sockets(), s.layout.PIDFile) {
		if _, err := os.Stat(f); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", f, err)
		}
	}
	if got := s.status("z.test"); got != 0 {
		t.Errorf("the proxy still answers %d", got)
	}
}

// A boot of the host with the cluster away: the state log alone gives the service back, in less than
// the 2 s of the budget.
func TestRealProxyStartsFromTheLog(t *testing.T) {
	s := newSite(t)
	s.daemon(nginxproc.StopWithDaemon)
	s.applied("a.test", "big-16m.test")
	s.stop()
	if err := os.Remove(filepath.Join(s.dir, "nginx.conf")); err != nil { // /run is empty
		t.Fatal(err)
	}
	start := time.Now()
	s.daemon(nginxproc.StopWithDaemon)
	s.eventually("service", func() bool { return s.status("a.test") == 503 })
	t.Logf("served after %v", time.Since(start))
	s.serves(map[string]int{"a.test": 503, "big-16m.test": 503, "b.test": 404})
	s.eventually("the word", func() bool { return s.loop.Status().LastKnownGood })
	s.applied("a.test", "big-16m.test")
	s.reloads(plan.FirstStart)
	if got := s.loop.Status(); got.Pushes != 0 {
		t.Errorf("%d pushes of what is there", got.Pushes)
	}
}

// Two daemons: the second one's push makes the first step back and say who it was.
func TestRealProxyTwoPushers(t *testing.T) {
	s := newSite(t)
	s.daemon(nginxproc.StopWithDaemon)
	s.applied("a.test")
	other := luapush.New(luapush.Config{Socket: s.layout.ControlSocket, Pusher: "other"})
	defer other.Close()
	st, err := other.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := plan.Delta{Delete: []string{"host/a.test"}}
	push := luapush.Push{Base: st.Revision, Revision: st.Revision + 1, Records: d.Records(st.Revision + 1)}
	if _, err := other.Push(t.Context(), push); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Push(t.Context(), push); !errors.Is(err, luapush.ErrStale) {
		t.Errorf("the same revision twice: %v", err)
	}
	push.Revision += 9
	push.Records = d.Records(push.Revision)
	if _, err := other.Push(t.Context(), push); !errors.Is(err, luapush.ErrBase) {
		t.Errorf("another base: %v", err)
	}
	s.eventually("the rival to be named", func() bool { return s.loop.Status().Rival == "other" })
	s.eventually("the truce to end", func() bool { st := s.loop.Status(); return st.Rival == "" && st.Ready })
	s.serves(map[string]int{"a.test": 503})
}

// Another build of the Lua files: one reload and no error, whichever worker answers meanwhile.
func TestRealProxyLuaUpgrade(t *testing.T) {
	s := newSite(t)
	s.daemon(nginxproc.KeepRunning)
	s.applied("a.test")
	first := s.layout.LuaDir
	for i := range 4 {
		s.stop()
		s.layout.LuaBuild = fmt.Sprint("build", i)
		s.layout.LuaDir = filepath.Join(s.dir, "lua", s.layout.LuaBuild)
		if err := os.CopyFS(s.layout.LuaDir, os.DirFS(first)); err != nil {
			t.Fatal(err)
		}
		if i == 3 {
			s.daemon(nginxproc.StopWithDaemon)
		} else {
			s.daemon(nginxproc.KeepRunning)
		}
		s.applied("a.test", fmt.Sprint("b", i, ".test"), fmt.Sprint("regex-", i, ".test"))
		s.serves(map[string]int{"a.test": 503, fmt.Sprint("b", i, ".test"): 503})
		s.reloads(plan.LuaVersion)
		if st := s.loop.Status(); st.Failures != 0 || st.Proxy.LuaBuild != s.layout.LuaBuild {
			t.Errorf("status %+v", st)
		}
	}
	if text := s.log.String(); strings.Contains(text, "level=ERROR") {
		t.Error("logged an error")
	}
}

// The proxy's sockets are removed under it: another master takes over, nothing is reloaded or pushed.
func TestRealProxySocketsRemoved(t *testing.T) {
	s := newSite(t)
	s.daemon(nginxproc.StopWithDaemon)
	s.applied("a.test")
	before := s.loop.Status()
	var sockets []string // some are made for HTTPS only
	for _, socket := range s.layout.Sockets() {
		err := os.Remove(socket)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		sockets = append(sockets, socket)
	}
	s.eventually("another proxy", func() bool {
		if got := s.status("a.test"); got != 503 {
			t.Fatalf("answered %d", got)
		}
		st := s.loop.Status()
		return st.Ready && st.ProxyErr == nil && st.Proxy.Boot != before.Proxy.Boot
	})
	s.serves(map[string]int{"a.test": 503, "b.test": 404})
	s.reloads(plan.FirstStart)
	if st := s.loop.Status(); st.Pushes != before.Pushes || st.Proxy.MasterPID == before.Proxy.MasterPID {
		t.Errorf("status %+v", st)
	}
	for _, socket := range sockets {
		if _, err := os.Stat(socket); err != nil {
			t.Error(err)
		}
	}
	s.applied("a.test", "big-16m.test")
	s.reloads(plan.FirstStart, plan.NewProfile)
}

// Another process has the port: what to do comes first, and once it is free the service is there.
func TestRealProxyAddressTaken(t *testing.T) {
	s := newSite(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", s.address.String())
	if err != nil {
		t.Fatal(err)
	}
	s.daemon(nginxproc.StopWithDaemon)
	s.source.set("a.test")
	program, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%s is taken by %s (PID %d", s.address, strings.TrimSpace(string(program)), os.Getpid())
	s.eventually("the word", func() bool {
		st := s.loop.Status()
		return st.Err != nil && strings.HasPrefix(st.Err.Error(), want)
	})
	s.eventually("the word for Status", func() bool {
		st := s.loop.Status()
		return st.ProxyErr != nil && strings.HasPrefix(st.ProxyErr.Error(), want)
	})
	text := s.loop.Status().Err.Error()
	if !strings.Contains(text, "): free it (") || !strings.HasSuffix(text, ") or change listeners.http") || strings.Count(text, s.address.String()) != 1 {
		t.Errorf("not what to do, once: %s", text)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s.eventually("service", func() bool { return s.status("a.test") == 503 && s.loop.Status().Ready })
}

// A worker that was killed is not told of any more.
func TestRealProxyWorkersThatLive(t *testing.T) {
	s := newSite(t)
	s.daemon(nginxproc.StopWithDaemon)
	s.applied("a.test")
	victim := s.loop.Status().Proxy.Workers[0].PID
	if err := unix.Kill(victim, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	s.eventually("its end to be seen", func() bool {
		st, err := s.control.State(t.Context())
		return err == nil && !slices.ContainsFunc(st.Workers, func(w luapush.Worker) bool { return w.PID == victim })
	})
	if took := time.Since(killed); took > 5*time.Second {
		t.Errorf("after %v: by the age of its report", took)
	}
}

// Twenty lists of ciphers that nginx's OpenSSL does not know, and a certificate that it cannot load: what needs no reload is
// served while nginx says so of one after the other.
func TestRealProxyRefusesManyProfiles(t *testing.T) {
	s := newSite(t)
	s.daemon(nginxproc.StopWithDaemon)
	s.applied("a.test")
	names := []string{"a.test"}
	for i := range 20 {
		names = append(names, "tls-cipher"+strings.Repeat("4", i))
	}
	names = append(names, "tls-4")
	begun := time.Now()
	s.source.set(names...)
	s.eventually("the search", func() bool { return strings.Contains(s.log.String(), "hosts that need new profiles wait") })
	for i := 0; len(s.builder.refusals()) == 0; i++ {
		host := fmt.Sprint("n", i, ".test")
		names = append(names, host)
		pushed := time.Now()
		s.source.set(names...)
		s.eventually(host, func() bool { return s.status(host) == http.StatusServiceUnavailable })
		if took := time.Since(pushed); took > 2*time.Second {
			t.Errorf("%s served after %v", host, took)
		}
	}
	s.eventually("all of them", func() bool { return len(s.builder.refusals()) == 21 })
	t.Logf("all found after %v, with %d pushes meanwhile", time.Since(begun), s.loop.Status().Pushes)
	s.serves(map[string]int{"a.test": 503, "n0.test": 503})
	for _, why := range s.builder.refusals() {
		if !strings.Contains(why, "no cipher match") && !strings.Contains(why, "cannot load certificate") {
			t.Errorf("rejected for %s", why)
		}
	}
	s.reloads(plan.FirstStart)
}

// A host speaks TLS to its peers in another way, which nginx.conf must be reloaded for: no worker of the load before, which
// does not know how, answers for the host.
func TestRealProxyNewProfile(t *testing.T) {
	s := newSite(t)
	peer := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	peer.StartTLS()
	defer peer.Close()
	s.daemon(nginxproc.StopWithDaemon)
	s.builder.upstreams = map[string]string{"a.test": peer.Listener.Addr().String()}
	s.builder.profiles = map[string]model.Profile{"a.test": {Protocol: model.ProtocolHTTPS}}
	s.applied("a.test")
	s.serves(map[string]int{"a.test": http.StatusNoContent})
	for i := range 4 {
		s.builder.profiles = map[string]model.Profile{"a.test": {Protocol: model.ProtocolHTTPS, BufferSize: uint16(8 + i)}}
		reloads := s.loop.Status().ReloadCount
		s.source.set("a.test")
		s.eventually("the reload", func() bool {
			if got := s.status("a.test"); got != http.StatusNoContent {
				t.Errorf("change %d: answered %d", i, got)
			}
			return s.loop.Status().ReloadCount > reloads
		})
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
			if got := s.status("a.test"); got != http.StatusNoContent {
				t.Errorf("change %d: answered %d after the reload", i, got)
			}
		}
	}
}
