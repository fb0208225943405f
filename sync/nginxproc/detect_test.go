package nginxproc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	debianVersion = `nginx version: nginx/1.22.1
built with OpenSSL 3.0.15 3 Sep 2024
TLS SNI support enabled
configure arguments: --with-cc-opt='-g -O2' --prefix=/usr/share/nginx --conf-path=/etc/nginx/nginx.conf --modules-path=/usr/lib/nginx/modules --with-http_ssl_module
`
	openRestyVersion = `nginx version: openresty/1.27.1.1
built with OpenSSL 3.0.15 3 Sep 2024
configure arguments: --prefix=/usr/local/openresty/nginx --with-cc-opt=-O2 --add-module=../ngx_devel_kit-0.3.3 --add-module=../echo-nginx-module-0.63 --add-module=../ngx_lua-0.10.27 --add-module=../ngx_lua_upstream-0.07
`
	rhelVersion = `nginx version: nginx/1.20.1
configure arguments: --prefix=/usr/share/nginx --modules-path=/usr/lib64/nginx/modules --with-compat
`
)

// tree makes a fake host; nginx binaries are scripts that print what they are.
func tree(t *testing.T, nginx map[string]string, files ...string) string {
	t.Helper()
	root := t.TempDir()
	write := func(path, content string, mode os.FileMode) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	for path, version := range nginx {
		write(path, "#!/bin/sh\ncat >&2 <<'END'\n"+version+"END\n", 0o755)
	}
	for _, f := range files {
		write(f, "", 0o644)
	}
	return root
}

func debianFiles() []string {
	return []string{
		"/usr/lib/nginx/modules/ndk_http_module.so",
		"/usr/lib/nginx/modules/ngx_http_lua_module.so",
		"/usr/share/lua/5.1/resty/core.lua",
		"/usr/share/lua/5.1/resty/lrucache.lua",
		"/usr/lib/x86_64-linux-gnu/lua/5.1/cjson.so",
	}
}

func openRestyFiles() []string {
	return []string{
		"/usr/local/openresty/lualib/resty/core.lua",
		"/usr/local/openresty/lualib/resty/lrucache.lua",
		"/usr/local/openresty/lualib/cjson.so",
	}
}

func TestDetect(t *testing.T) {
	const openResty = "/usr/local/openresty/nginx/sbin/nginx"
	for name, tc := range map[string]struct {
		nginx  map[string]string
		files  []string
		search Search
		want   Installation
	}{
		"Debian": {
			nginx: map[string]string{"/usr/sbin/nginx": debianVersion},
			files: debianFiles(),
			want: Installation{
				Binary: "ROOT/usr/sbin/nginx", Version: "1.22.1",
				Modules:  []string{"ROOT/usr/lib/nginx/modules/ndk_http_module.so", "ROOT/usr/lib/nginx/modules/ngx_http_lua_module.so"},
				LuaPath:  "ROOT/usr/share/lua/5.1/?.lua;ROOT/usr/share/lua/5.1/?/init.lua",
				LuaCPath: "ROOT/usr/lib/x86_64-linux-gnu/lua/5.1/?.so",
			},
		},
		"OpenResty": {
			nginx: map[string]string{openResty: openRestyVersion},
			files: openRestyFiles(),
			want: Installation{
				Binary: "ROOT" + openResty, Version: "1.27.1", OpenResty: true,
				LuaPath:  "ROOT/usr/local/openresty/lualib/?.lua;ROOT/usr/local/openresty/lualib/?/init.lua",
				LuaCPath: "ROOT/usr/local/openresty/lualib/?.so",
			},
		},
		"both: OpenResty with its own libraries": {
			nginx: map[string]string{openResty: openRestyVersion, "/usr/sbin/nginx": debianVersion},
			files: append(openRestyFiles(), debianFiles()...),
			want: Installation{
				Binary: "ROOT" + openResty, Version: "1.27.1", OpenResty: true,
				LuaPath:  "ROOT/usr/local/openresty/lualib/?.lua;ROOT/usr/local/openresty/lualib/?/init.lua",
				LuaCPath: "ROOT/usr/local/openresty/lualib/?.so",
			},
		},
		"both, Debian's chosen: not OpenResty's libraries": {
			nginx:  map[string]string{openResty: openRestyVersion, "/usr/sbin/nginx": debianVersion},
			files:  append(openRestyFiles(), debianFiles()...),
			search: Search{Binary: "ROOT/usr/sbin/nginx"},
			want: Installation{
				Binary: "ROOT/usr/sbin/nginx", Version: "1.22.1",
				Modules:  []string{"ROOT/usr/lib/nginx/modules/ndk_http_module.so", "ROOT/usr/lib/nginx/modules/ngx_http_lua_module.so"},
				LuaPath:  "ROOT/usr/share/lua/5.1/?.lua;ROOT/usr/share/lua/5.1/?/init.lua",
				LuaCPath: "ROOT/usr/lib/x86_64-linux-gnu/lua/5.1/?.so",
			},
		},
		"RHEL, libraries in two places": {
			nginx: map[string]string{"/usr/sbin/nginx": rhelVersion},
			files: []string{
				"/usr/lib64/nginx/modules/ndk_http_module.so",
				"/usr/lib64/nginx/modules/ngx_http_lua_module.so",
				"/usr/share/luajit-2.1/resty/core.lua",
				"/usr/share/lua/5.1/resty/lrucache.lua",
				"/usr/lib64/lua/5.1/cjson.so",
			},
			want: Installation{
				Binary: "ROOT/usr/sbin/nginx", Version: "1.20.1",
				Modules: []string{"ROOT/usr/lib64/nginx/modules/ndk_http_module.so", "ROOT/usr/lib64/nginx/modules/ngx_http_lua_module.so"},
				LuaPath: "ROOT/usr/share/luajit-2.1/?.lua;ROOT/usr/share/luajit-2.1/?/init.lua;" +
					"ROOT/usr/share/lua/5.1/?.lua;ROOT/usr/share/lua/5.1/?/init.lua",
				LuaCPath: "ROOT/usr/lib64/lua/5.1/?.so",
			},
		},
		"everything set": {
			nginx:  map[string]string{"/opt/nginx": debianVersion},
			files:  []string{"/opt/ndk.so", "/opt/lua.so"},
			search: Search{Binary: "ROOT/opt/nginx", Modules: []string{"ROOT/opt/ndk.so", "ROOT/opt/lua.so"}, LuaPath: "/l/?.lua", LuaCPath: "/c/?.so"},
			want: Installation{
				Binary: "ROOT/opt/nginx", Version: "1.22.1",
				Modules: []string{"ROOT/opt/ndk.so", "ROOT/opt/lua.so"}, LuaPath: "/l/?.lua", LuaCPath: "/c/?.so",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, tc.nginx, tc.files...)
			s := tc.search
			s.Root, s.Binary = root, strings.Replace(s.Binary, "ROOT", root, 1)
			for i, m := range s.Modules {
				s.Modules[i] = strings.Replace(m, "ROOT", root, 1)
			}
			got, err := Detect(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			unroot := func(s string) string { return strings.ReplaceAll(s, root, "ROOT") }
			got.Binary, got.LuaPath, got.LuaCPath = unroot(got.Binary), unroot(got.LuaPath), unroot(got.LuaCPath)
			for i, m := range got.Modules {
				got.Modules[i] = unroot(m)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestDetectTellsWhatIsMissing(t *testing.T) {
	nginx := map[string]string{"/usr/sbin/nginx": debianVersion}
	for name, tc := range map[string]struct {
		root   string
		search Search
		want   []string
	}{
		"nothing":       {root: tree(t, nil), want: []string{"no nginx found", "proxy.binary"}},
		"no lua at all": {root: tree(t, nginx), want: []string{"ndk_http_module.so", "ngx_http_lua_module.so", "proxy.modules", "resty/core.lua", "lua-resty-lrucache", "cjson.so", "proxy.luaCPath"}},
		"no cjson":      {root: tree(t, nginx, debianFiles()[:4]...), want: []string{"cjson.so is in none of", "install lua-cjson"}},
		"module set, missing": {root: tree(t, nginx, debianFiles()...), search: Search{Modules: []string{"/nowhere/lua.so"}},
			want: []string{"proxy.modules", "/nowhere/lua.so"}},
		"module set, relative": {root: tree(t, nginx, debianFiles()...), search: Search{Modules: []string{"lua.so"}},
			want: []string{"proxy.modules", "no absolute path"}},
		"not nginx": {root: tree(t, map[string]string{"/usr/sbin/nginx": "Apache/2.4\n"}), want: []string{"tells no nginx version"}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.search.Root = tc.root
			_, err := Detect(t.Context(), tc.search)
			for _, w := range tc.want {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("%q not in %v", w, err)
				}
			}
		})
	}
}

func TestParseTest(t *testing.T) {
	for name, tc := range map[string]struct {
		output string
		want   ConfError
	}{
		"directive": {
			"nginx: [emerg] unknown directive \"foo\" in /run/h/nginx.conf.new:12\nnginx: configuration file /run/h/nginx.conf.new test failed\n",
			ConfError{Message: `unknown directive "foo"`, Line: 12},
		},
		"with a time": {
			"2026/11/29 14:16:47 [emerg] 17374#17374: unknown directive \"foo\" in /run/h/nginx.conf.new:42\n",
			ConfError{Message: `unknown directive "foo"`, Line: 42},
		},
		"warning first": {
			"nginx: [warn] the \"user\" directive makes sense only if\nnginx: [emerg] bind() to 10.9.9.9:80 failed (99: Cannot assign requested address)\n",
			ConfError{Message: "bind() to 10.9.9.9:80 failed (99: Cannot assign requested address)"},
		},
		"other file": {
			"nginx: [emerg] unknown directive \"x\" in /etc/else.conf:3\n",
			ConfError{Message: `unknown directive "x" in /etc/else.conf:3`},
		},
		"nothing known": {"Segmentation fault\nmore", ConfError{Message: "Segmentation fault"}},
		"silence":       {"", ConfError{Message: "no reason given"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := *parseTest(tc.output, "/run/h/nginx.conf.new")
			tc.want.Output = strings.TrimSpace(tc.output)
			if got != tc.want {
				t.Errorf("got %+v\nwant %+v", got, tc.want)
			}
			if tc.want.Line > 0 && !strings.Contains(got.Error(), fmt.Sprintf("(line %d)", tc.want.Line)) {
				t.Error(got.Error())
			}
		})
	}
}

func FuzzParseTest(f *testing.F) {
	f.Add("nginx: [emerg] unknown directive \"foo\" in /c:12\n")
	f.Add("nginx: [emerg]  in /c:\n")
	f.Add("")
	f.Fuzz(func(t *testing.T, output string) {
		if e := parseTest(output, "/c"); e.Line < 0 && e.Message == "" {
			t.Error("nothing told")
		}
	})
}
