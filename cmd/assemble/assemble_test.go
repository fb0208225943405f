package assemble

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/cmd/config"
	"headgate/cmd/defaultcert"
	"headgate/gateway/annotations"
	"headgate/gateway/build"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/snapshot"
)

func configured(t *testing.T) config.Config {
	t.Helper()
	c := config.Default()
	c.StateDir, c.RuntimeDir = filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "run")
	c.Proxy.Mode = config.Managed
	return c
}

func TestEveryPathLiesInOneOfTheFolders(t *testing.T) {
	c := configured(t)
	p := PathsOf(c)
	for _, path := range []string{p.StateLog, p.Applied, p.LastGood} {
		if filepath.Dir(path) != c.StateDir {
			t.Errorf("%s does not lie in %s", path, c.StateDir)
		}
	}
	for _, path := range []string{p.Conf, p.PID, p.Temp, p.ProxyDir, p.ControlSocket, p.ErrorLog, p.Output, p.Lua} {
		if !strings.HasPrefix(path, c.RuntimeDir+"/") {
			t.Errorf("%s does not lie below %s", path, c.RuntimeDir)
		}
	}
	c.Proxy.Mode = config.External
	if got := PathsOf(c).ErrorLog; got != "stderr" {
		t.Errorf("error log of an external proxy: %s", got)
	}
}

// TestDefaultsRender: what config accepts by default, nginxconf accepts, too.
func TestDefaultsRender(t *testing.T) {
	c := configured(t)
	m := &model.Model{Settings: Settings(c), Listeners: Listeners(c)}
	layout := Layout(c, PathsOf(c), Machine{
		NginxVersion: "1.22.1", LuaDir: "/lua", LuaBuild: "abc", Worker: Account{User: "www-data", Group: "www-data"},
		Certificate: defaultcert.Files{Certificate: "/c", Key: "/k"},
	})
	rendered, err := nginxconf.Render(m, layout)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"listen 0.0.0.0:80", "listen [::]:443 ", "user www-data www-data;"} {
		if !strings.Contains(string(rendered.Text), want) {
			t.Errorf("nginx.conf does not hold %q", want)
		}
	}
}

// TestTheLongestRuntimeDirRenders: config's limit keeps every socket within what the kernel takes.
func TestTheLongestRuntimeDirRenders(t *testing.T) {
	c := configured(t)
	c.RuntimeDir = "/" + strings.Repeat("r", 79)
	layout := Layout(c, PathsOf(c), Machine{NginxVersion: "1.22.1", LuaDir: "/lua", LuaBuild: "abc", Certificate: defaultcert.Files{Certificate: "/c", Key: "/k"}})
	if _, err := nginxconf.Render(&model.Model{Settings: Settings(c), Listeners: Listeners(c)}, layout); err != nil {
		t.Error(err)
	}
	for _, socket := range layout.Sockets() {
		if len(socket) > 107 {
			t.Errorf("%s has %d bytes", socket, len(socket))
		}
	}
}

func TestBuild(t *testing.T) {
	c := configured(t)
	c.TakeOverIngressNginx, c.WatchIngressWithoutClass, c.SSLRedirect = true, true, false
	c.Upstreams.AllowLoopback, c.MaxBodySize = true, 8*config.MiB
	o := Build(c)
	if !o.TakeOver || !o.WatchWithoutClass || o.SSLRedirect || !o.AllowLoopback || o.DefaultMaxBodyBytes != 8<<20 ||
		o.ProfileName == nil ||
		o.IngressClass != "headgate" || !slices.Equal(o.ControllerNames, []string{"headgate.io/ingress"}) {
		t.Errorf("options %+v", o)
	}
	if len(o.Listeners) != 4 || o.Listeners[0].HTTP2 || !o.Listeners[3].HTTP2 {
		t.Errorf("listeners %+v", o.Listeners)
	}
}

func TestSecrets(t *testing.T) {
	c := configured(t)
	if got := Secrets(c); got != nil {
		t.Errorf("without a default certificate: %v", got)
	}
	c.DefaultCertificate = "edge/tls"
	if got := Secrets(c); !slices.Equal(got, []snapshot.Key{{Namespace: "edge", Name: "tls"}}) {
		t.Errorf("secrets %v", got)
	}
}

func TestWorker(t *testing.T) {
	c := configured(t)
	c.Proxy.Mode = config.External // so that the result does not depend on who runs the test
	worker, err := Worker(c)
	if err != nil || worker.User == "" || worker.Group == "" || worker.UID == 0 {
		t.Errorf("detected %+v, %v", worker, err)
	}
	c.Proxy.User = "no-such-user"
	if _, err := Worker(c); err == nil || !strings.Contains(err.Error(), `no user "no-such-user"`) {
		t.Errorf("a user that does not exist: %v", err)
	}
	if os.Geteuid() != 0 {
		c.Proxy.Mode = config.Managed
		if worker, err := Worker(c); err != nil || worker != (Account{}) {
			t.Errorf("without root: %+v, %v", worker, err)
		}
	}
}

func TestMakeFolders(t *testing.T) {
	c := configured(t)
	p := PathsOf(c)
	worker, err := Worker(c)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := MakeFolders(c, p, worker); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]os.FileMode{c.StateDir: 0o750, c.RuntimeDir: 0o755, p.ProxyDir: 0o750, p.Temp: 0o700, p.Lua: 0o755} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	c.StateDir = filepath.Join(p.Conf, "below-a-file")
	if err := os.WriteFile(p.Conf, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var pathError *os.PathError
	if err := MakeFolders(c, p, worker); !errors.As(err, &pathError) {
		t.Errorf("a folder below a file: %v", err)
	}
}

func TestFoldersThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ state, run, want string }{
		{file, t.TempDir(), "stateDir: the folder " + file + " cannot be made"},
		{t.TempDir(), file + "/run", "runtimeDir: the folder " + file + "/run cannot be made"},
	} {
		conf := config.Default()
		conf.StateDir, conf.RuntimeDir = c.state, c.run
		if err := MakeFolders(conf, PathsOf(conf), Account{}); err == nil || !strings.HasPrefix(err.Error(), c.want) || !strings.Contains(err.Error(), "write the path") {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
}

func TestCheckBinary(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"program": 0o700, "text": 0o600} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"": "", filepath.Join(dir, "program"): "",
		filepath.Join(dir, "text"):       "is no program that this user may run",
		dir:                              "is no program that this user may run",
		filepath.Join(dir, "none"):       "does not exist",
		filepath.Join(dir, "text/nginx"): "does not exist",
	} {
		err := CheckBinary(path)
		if want == "" && err == nil {
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), "proxy.binary: "+path+" "+want) || !strings.Contains(err.Error(), "leave out the key") {
			t.Errorf("%q: %v, want %q", path, err, want)
		}
	}
}

func TestOwnAddresses(t *testing.T) {
	own, err := OwnAddresses()
	if err != nil || slices.Contains(own, netip.MustParseAddr("127.0.0.1")) {
		t.Errorf("own addresses %v, %v; loopback has a rule of its own", own, err)
	}
}

func TestOpenFiles(t *testing.T) {
	c := configured(t)
	if n := OpenFiles(c); n <= 0 || n > 2*c.Proxy.WorkerConnections+spareFiles {
		t.Errorf("limit %d", n)
	}
	c.Proxy.Mode = config.External
	if n := OpenFiles(c); n != 0 {
		t.Errorf("limit of an external proxy %d", n)
	}
}

// TestUpstreamDefaults: what the configuration says by default is what the model means by zero.
func TestUpstreamDefaults(t *testing.T) {
	c := configured(t)
	usual := build.Defaults{
		Algorithm: model.RoundRobin,
		Timeouts:  model.Timeouts{Connect: 5 * time.Second, Send: time.Minute, Read: time.Minute}, Retry: model.Retry{Tries: 3},
	}
	if diff := cmp.Diff(usual, Build(c).Defaults); diff != "" {
		t.Errorf("of an empty file (-want +got):\n%s", diff)
	}
	if p := Build(c).Settings.DefaultProfile; p != (model.Profile{}) {
		t.Errorf("default profile %+v", p)
	}
	u := &c.Upstreams
	u.LoadBalance, u.ServiceUpstream, u.RetryBudget = "p2c", true, "5%"
	u.EjectFailures, u.EjectTime = 9, config.Duration(time.Second)
	u.NextUpstream, u.NextUpstreamTries, u.NextUpstreamTimeout = "error http_503 non_idempotent", 0, config.Duration(4*time.Second)
	u.ReadTimeout = config.Duration(time.Hour)
	want := build.Defaults{
		Algorithm: model.PowerOfTwo, ServiceUpstream: true, Budget: model.RetryBudget{Percent: 5},
		Ejection: model.Ejection{Failures: 9, Base: time.Second, Max: 5 * time.Minute},
		Timeouts: model.Timeouts{Connect: 5 * time.Second, Send: time.Minute, Read: time.Hour},
		Retry:    model.Retry{Tries: annotations.UnlimitedTries, Total: 4 * time.Second},
	}
	if diff := cmp.Diff(want, Build(c).Defaults); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if p := Build(c).Settings.DefaultProfile; p != (model.Profile{RetryOn: model.RetryError | model.Retry503, RetryNonIdempotent: true}) {
		t.Errorf("profile %+v", p)
	}
	if Build(c).Settings.StrictAnswers {
		t.Error("answers are checked though nobody asked for it")
	}
	u.StrictAnswers = true
	if !Build(c).Settings.StrictAnswers {
		t.Error("answers are not checked though it was asked for")
	}
	u.Eject = false
	if e := Build(c).Defaults.Ejection; !cmp.Equal(e, model.Ejection{Off: true}) {
		t.Errorf("ejection %+v although it is off", e)
	}
}
