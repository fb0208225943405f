package nginx_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"headgate/gateway/luastate"
	"headgate/gateway/nginxconf"
	"headgate/lua"
)

// TestGoldensPassNginxT: every golden configuration is accepted by the nginx of this machine. Only
// the folders differ: those of the goldens are moved below a folder of the test.
func TestGoldensPassNginxT(t *testing.T) {
	goldens, err := filepath.Glob("../../gateway/nginxconf/testdata/*.conf")
	if err != nil || len(goldens) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	for _, golden := range goldens {
		t.Run(filepath.Base(golden), func(t *testing.T) {
			text, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			l := dpLayout(t, dir)
			if err := lua.Write(dir + "/lua"); err != nil {
				t.Fatal(err)
			}
			conf := dpAdapt(t, string(text), dir, l)
			for _, d := range []string{"/run/proxy", "/run/temp", "/state", "/log"} {
				if err := os.MkdirAll(dir+d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			dpWriteCertificate(t, dir+"/state/default.crt", dir+"/state/default.key", "default.invalid")
			dpWriteIdentities(t, conf, dir+"/run/tls")
			if err := os.WriteFile(dir+"/nginx.conf", []byte(conf), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), "nginx", "-t", "-p", dir, "-c", dir+"/nginx.conf", "-e", dir+"/error.log").CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			if strings.Contains(string(out), "[warn]") && !strings.Contains(string(out), "open file resource limit") {
				t.Errorf("%s", out)
			}
		})
	}
}

// dpWriteIdentities makes the PEM files in dir that conf names.
func dpWriteIdentities(t *testing.T, conf, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(regexp.QuoteMeta(dir)+`/([0-9a-f]+)\.`).FindAllStringSubmatch(conf, -1) {
		name := dir + "/" + m[1]
		dpWriteCertificate(t, name+".pem", name+".key", "peer.invalid")
		dpWriteCertificate(t, name+".ca", name+".unused", "ca.invalid")
		if _, err := os.Stat(name + ".key"); err != nil {
			t.Fatal(err)
		}
		// Written anew for each mention: the pair that is there last fits together.
	}
}

// dpAdapt moves a golden's folders below dir and gives it this machine's modules and Lua paths. It
// takes out what this machine cannot check: a user that it does not have, and the http2 directive
// where nginx is too old for it.
func dpAdapt(t *testing.T, text, dir string, l nginxconf.Layout) string {
	t.Helper()
	conf := regexp.MustCompile(`(?m)^load_module .*\n`).ReplaceAllString(text, "")
	var head strings.Builder
	for _, m := range l.Modules {
		fmt.Fprintf(&head, "load_module %q;\n", m)
	}
	if _, err := user.Lookup("www-data"); err != nil || os.Geteuid() != 0 {
		conf = regexp.MustCompile(`(?m)^user .*\n`).ReplaceAllString(conf, "")
	} else if _, err := user.LookupGroup("headgate"); err != nil {
		conf = strings.ReplaceAll(conf, "user www-data headgate;", "user www-data;")
	}
	if strings.HasPrefix(l.NginxVersion, "1.22.") {
		conf = strings.ReplaceAll(conf, "    http2 on;\n", "")
	}
	conf = regexp.MustCompile(`lua_package_path .*;`).ReplaceAllString(conf, fmt.Sprintf("lua_package_path \"%s/?.lua;%s\";", l.LuaDir, l.LuaPath))
	conf = regexp.MustCompile(`lua_package_cpath .*;`).ReplaceAllString(conf, fmt.Sprintf("lua_package_cpath %q;", l.LuaCPath))
	for from, to := range map[string]string{"/run/headgate": "/run", "/var/lib/headgate": "/state", "/var/log/headgate": "/log"} {
		conf = strings.ReplaceAll(conf, `"`+from, `"`+dir+to)
		conf = strings.ReplaceAll(conf, "unix:"+from, "unix:"+dir+to)
	}
	return head.String() + conf
}

// TestNumbersAgree: Go, Lua and nginx.conf each hold the schema and the number of pools.
func TestNumbersAgree(t *testing.T) {
	for file, want := range map[string]string{
		"../../lua/headgate/schema.lua":                  fmt.Sprintf("NUMBER = %d ", luastate.Schema),
		"../../gateway/nginxconf/testdata/standard.conf": fmt.Sprintf("schema = %d,", luastate.Schema),
		"../../lua/headgate/balancer.lua":                fmt.Sprintf("POOLS = %d\n", nginxconf.Pools),
		"../../lua/headgate/record.lua":                  fmt.Sprintf("MAX_VALUE_BYTES = %d,", luastate.MaxValueBytes),
	} {
		b, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s does not hold %q: %v", file, want, err)
		}
	}
}
