// Package golden carries the cases of gateway/build on to what nginx and Lua get: the objects of each case stand
// in its file as lua.json; the nginx.conf is one for all of them, and the few that differ have files of their own
// in testdata. The cases of testdata/folders start one room earlier, at a folder of manifests.
package golden

import (
	"bytes"
	"context"
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"headgate/gateway/build"
	"headgate/gateway/build/buildtest"
	"headgate/gateway/luastate"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/lua"
	"headgate/sync/manifests"
	"headgate/sync/nginxproc"
	"headgate/test/product"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// layout is a machine that does not exist: goldens are the same everywhere.
func layout() nginxconf.Layout {
	return nginxconf.Layout{
		NginxVersion: "1.22.1",
		Modules:      []string{"/usr/lib/nginx/modules/ndk_http_module.so", "/usr/lib/nginx/modules/ngx_http_lua_module.so"},
		PIDFile:      "/run/headgate/nginx.pid", TempDir: "/run/headgate/temp", ControlSocket: "/run/headgate/proxy/control.sock",
		ErrorLog: "/run/headgate/error.log", StateLog: "/var/lib/headgate/state.log", TLSDir: "/run/headgate/tls",
		LuaDir: "/run/headgate/lua/0123456789abcdef", LuaBuild: "0123456789abcdef",
		DefaultCertificate: "/var/lib/headgate/default.crt", DefaultKey: "/var/lib/headgate/default.key",
	}
}

func listeners(http, https string) []model.Listener {
	return []model.Listener{
		{Address: netip.MustParseAddrPort(http), Scheme: model.HTTP},
		{Address: netip.MustParseAddrPort(https), Scheme: model.HTTPS, HTTP2: true},
	}
}

// cases runs every case of gateway/build and hands each step's model on.
func cases(t *testing.T, visit func(t *testing.T, c *buildtest.Case, dir string, m *model.Model)) {
	t.Helper()
	root := os.DirFS("../../gateway/build")
	names, err := filepath.Glob("../../gateway/build/testdata/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			c, err := buildtest.Load(root, "testdata/"+filepath.Base(name))
			if err != nil {
				t.Fatal(err)
			}
			c.Options.Listeners = listeners("0.0.0.0:80", "0.0.0.0:443")
			for i, r := range c.Run(nil) {
				visit(t, c, c.Steps[i].Dir, r.Model)
			}
			if *update {
				if err := os.WriteFile(name, c.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestObjects(t *testing.T) {
	cases(t, func(t *testing.T, c *buildtest.Case, dir string, m *model.Model) {
		got := luastate.Redacted(luastate.NewEncoder().Encode(m))
		if *update {
			c.SetFile(dir+"lua.json", got)
		}
		if diff := cmp.Diff(string(c.File(dir+"lua.json")), string(got)); diff != "" {
			t.Errorf("%slua.json (-want +got):\n%s", dir, diff)
		}
	})
}

// TestConfigurations proves that no object ever changes nginx.conf but by the profiles that it needs: a case whose
// settings are the usual ones, and whose routes have the usual profile, gets the usual file to the byte. Of a case of
// several steps the first stands in a file of its own where it needs one.
func TestConfigurations(t *testing.T) {
	cases(t, func(t *testing.T, c *buildtest.Case, dir string, m *model.Model) {
		config, err := nginxconf.Render(m, layout())
		if err != nil {
			t.Fatal(err)
		}
		if len(config.Refused) > 0 {
			t.Errorf("profiles that build should not have made: %v", config.Refused)
		}
		file := "testdata/nginx.conf"
		usual := buildtest.Defaults()
		if !cmp.Equal(c.Options.Settings, usual.Settings) || c.Options.DefaultMaxBodyBytes != usual.DefaultMaxBodyBytes ||
			len(config.ProfileList) > 0 {
			file = "testdata/" + c.Name + ".conf"
		}
		if dir == "" || file == "testdata/nginx.conf" {
			compare(t, file, config.Text)
		}
	})
}

func compare(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("%s (-want +got):\n%s", file, cmp.Diff(string(want), string(got)))
	}
}

// TestNginxAccepts has the nginx of this machine judge the configuration of every case.
func TestNginxAccepts(t *testing.T) {
	found, err := nginxproc.Detect(t.Context(), nginxproc.Search{})
	if err != nil {
		if os.Getenv("CI") == "" {
			t.Skipf("needs nginx with its Lua module: %v", err)
		}
		t.Fatal(err)
	}
	judged := map[string]bool{}
	cases(t, func(t *testing.T, _ *buildtest.Case, _ string, m *model.Model) {
		config, err := nginxconf.Render(m, layout())
		if err != nil {
			t.Fatal(err)
		}
		if judged[config.Generation] {
			return
		}
		judged[config.Generation] = true
		judge(t, found, m)
	})
}

func judge(t *testing.T, found nginxproc.Installation, m *model.Model) {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"lua", "temp", "proxy", "tls"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := lua.Write(filepath.Join(dir, "lua")); err != nil {
		t.Fatal(err)
	}
	l := layout()
	l.NginxVersion, l.Modules, l.LuaPath, l.LuaCPath = found.Version, found.Modules, found.LuaPath, found.LuaCPath
	l.LuaDir, l.LuaBuild = lua.Dir(filepath.Join(dir, "lua")), lua.Build()
	l.PIDFile, l.TempDir, l.ControlSocket = filepath.Join(dir, "pid"), filepath.Join(dir, "temp"), filepath.Join(dir, "proxy/control.sock")
	l.ErrorLog, l.StateLog = filepath.Join(dir, "error.log"), filepath.Join(dir, "state.log")
	l.DefaultCertificate, l.DefaultKey = certificate(t, dir)
	l.TLSDir = filepath.Join(dir, "tls")
	// nginx -t binds the ports, and those of the goldens may be taken.
	here := *m
	here.Listeners = listeners(product.FreeAddress(t), product.FreeAddress(t))
	config, err := nginxconf.Render(&here, l)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range config.Files {
		if err := os.WriteFile(f.Path, f.Content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, config.Text, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, found.Binary, "-t", "-p", dir, "-c", conf, "-e", filepath.Join(dir, "error.log")).CombinedOutput(); err != nil {
		t.Errorf("nginx -t: %v\n%s", err, out)
	}
}

// certificate has openssl make the default certificate: any will do.
func certificate(t *testing.T, dir string) (crt, key string) {
	t.Helper()
	crt, key = filepath.Join(dir, "default.crt"), filepath.Join(dir, "default.key")
	out, err := exec.CommandContext(t.Context(), "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
		"-nodes", "-days", "1", "-subj", "/CN=default.invalid", "-keyout", key, "-out", crt).CombinedOutput()
	if err != nil {
		t.Fatalf("openssl: %v\n%s", err, out)
	}
	return crt, key
}

// TestFolders builds from folders of manifests. A case holds the files of the folder under in/, and what must come out.
func TestFolders(t *testing.T) {
	names, err := filepath.Glob("testdata/folders/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			want := map[string][]byte{}
			var inputs []txtar.File
			for _, f := range archive.Files {
				if in, ok := strings.CutPrefix(f.Name, "in/"); ok {
					inputs = append(inputs, f)
					if err := os.WriteFile(filepath.Join(dir, in), f.Data, 0o600); err != nil {
						t.Fatal(err)
					}
					continue
				}
				want[f.Name] = f.Data
			}
			objects, err := manifests.Read(manifests.Config{Folders: []string{dir}}, buildtest.Now())
			if err != nil {
				t.Fatal(err)
			}
			result := build.New(buildtest.Defaults()).Build(objects, buildtest.Now())
			got := []txtar.File{{Name: "model", Data: buildtest.Dump(result)}, {Name: "problems", Data: buildtest.Problems(result)}}
			if *update {
				archive.Files = append(inputs, got...)
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			for _, f := range got {
				if diff := cmp.Diff(string(want[f.Name]), string(f.Data)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", f.Name, diff)
				}
			}
		})
	}
}
