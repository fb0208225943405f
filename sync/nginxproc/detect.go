package nginxproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Search says what to look for and where. The zero value searches this host.
type Search struct {
	// Root stands before every path that is searched; "" means "/".
	Root string
	// Binary is the nginx to use; "" searches OpenResty's folder, then the distributions'.
	Binary string
	// Modules are the .so files to load, ndk before lua; empty searches them.
	Modules []string
	// LuaPath and LuaCPath are the values for lua_package_path and lua_package_cpath without our own
	// files; "" searches the folders of lua-resty-core, lua-resty-lrucache and lua-cjson.
	LuaPath, LuaCPath string
}

// Installation is a proxy that can run our configuration.
type Installation struct {
	// Binary is the path of nginx.
	Binary string
	// Version is nginx's own, such as "1.22.1"; OpenResty's fourth number is not part of it.
	Version string
	// OpenResty tells that the binary is OpenResty's.
	OpenResty bool
	// Modules are absolute paths, ndk before lua; empty where both are built in.
	Modules []string
	// LuaPath and LuaCPath are lua_package_path and lua_package_cpath without our own files and
	// without a trailing ";;".
	LuaPath, LuaCPath string
}

// The places where distributions put things; "*" stands for the architecture. The first one wins.
func binaryPlaces() []string {
	return []string{
		"/usr/local/openresty/nginx/sbin/nginx",
		"/usr/sbin/nginx",
		"/usr/bin/nginx",
		"/usr/local/nginx/sbin/nginx",
		"/usr/local/sbin/nginx",
	}
}

func modulePlaces() []string {
	return []string{
		"/usr/lib/nginx/modules",   // Debian, Ubuntu
		"/usr/lib64/nginx/modules", // RHEL family
		"/usr/share/nginx/modules",
		"/usr/local/nginx/modules",
	}
}

func luaPlaces() []string {
	return []string{
		"/usr/local/openresty/lualib",
		"/usr/share/lua/5.1",       // Debian, Ubuntu; Fedora's LuaJIT
		"/usr/share/luajit-2.1",    // RHEL family
		"/usr/local/share/lua/5.1", // luarocks
		"/usr/local/lib/lua",       // make install of lua-resty-core
	}
}

func luaCPlaces() []string {
	return []string{
		"/usr/local/openresty/lualib",
		"/usr/lib/*-linux-gnu*/lua/5.1", // Debian, Ubuntu
		"/usr/lib64/lua/5.1",            // RHEL family
		"/usr/lib/lua/5.1",
		"/usr/local/lib/lua/5.1", // luarocks
	}
}

// Detect finds a proxy that can run our configuration. The error names everything that is missing
// and the package or setting that brings it.
func Detect(ctx context.Context, s Search) (Installation, error) {
	inst := Installation{Binary: s.Binary, Modules: s.Modules, LuaPath: s.LuaPath, LuaCPath: s.LuaCPath}
	if inst.Binary == "" {
		inst.Binary = s.firstFile(binaryPlaces())
	}
	if inst.Binary == "" {
		return Installation{}, errors.New("no nginx found: install nginx with libnginx-mod-http-lua, or OpenResty, or set proxy.binary")
	}
	b, err := askVersion(ctx, inst.Binary)
	if err != nil {
		return Installation{}, err
	}
	inst.Version, inst.OpenResty = b.version, b.openResty
	var errs []error
	if len(inst.Modules) == 0 {
		inst.Modules, err = s.modules(b)
		errs = append(errs, err)
	} else {
		errs = append(errs, checkModules(inst.Modules))
	}
	errs = append(errs, s.lua(&inst, b))
	if err := errors.Join(errs...); err != nil {
		return Installation{}, fmt.Errorf("proxy %s: %w", inst.Binary, err)
	}
	return inst, nil
}

// build is what "nginx -V" tells.
type build struct {
	version     string
	openResty   bool
	modulesPath string
	hasLua      bool // built in
	hasNDK      bool // built in
}

var versionLine = regexp.MustCompile(`(?m)^nginx version: ([a-zA-Z-]+)/(\d+\.\d+\.\d+)`)

func parseVersion(text string) (build, error) {
	m := versionLine.FindStringSubmatch(text)
	if m == nil {
		return build{}, fmt.Errorf("%.100q tells no nginx version", text)
	}
	b := build{version: m[2], openResty: strings.EqualFold(m[1], "openresty")}
	for arg := range strings.FieldsSeq(text) {
		if path, ok := strings.CutPrefix(arg, "--modules-path="); ok {
			b.modulesPath = strings.Trim(path, "'")
		}
		if module, ok := strings.CutPrefix(arg, "--add-module="); ok {
			name := filepath.Base(strings.Trim(module, "'"))
			b.hasLua = b.hasLua || strings.HasPrefix(name, "ngx_lua-") || strings.HasPrefix(name, "lua-nginx-module") || name == "ngx_lua"
			b.hasNDK = b.hasNDK || strings.HasPrefix(name, "ngx_devel_kit")
		}
	}
	return b, nil
}

func askVersion(ctx context.Context, binary string) (build, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-V") //nolint:gosec // the administrator's own binary
	cmd.Env = environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return build{}, fmt.Errorf("run %s -V: %w: %.200s", binary, err, out)
	}
	b, err := parseVersion(string(out))
	if err != nil {
		return build{}, fmt.Errorf("run %s -V: %w", binary, err)
	}
	return b, nil
}

// environment of every nginx that we run: nothing of the daemon's own (NGINX would make nginx take
// over file descriptors; a kubeconfig is nobody's business).
func environment() []string {
	return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
}

func (s Search) modules(b build) ([]string, error) {
	if b.hasLua {
		return nil, nil
	}
	places := modulePlaces()
	if b.modulesPath != "" {
		places = slices.Insert(places, 0, b.modulesPath)
	}
	var found []string
	var errs []error
	for _, name := range []string{"ndk_http_module.so", "ngx_http_lua_module.so"} {
		if name == "ndk_http_module.so" && b.hasNDK {
			continue
		}
		if dir := s.folderWith(places, name); dir != "" {
			found = append(found, filepath.Join(dir, name))
			continue
		}
		errs = append(errs, fmt.Errorf("module %s is in none of %s: install libnginx-mod-http-lua, or set proxy.modules",
			name, strings.Join(places, ", ")))
	}
	return found, errors.Join(errs...)
}

func checkModules(files []string) error {
	var errs []error
	for _, f := range files {
		if !filepath.IsAbs(f) {
			errs = append(errs, fmt.Errorf("proxy.modules: %q is no absolute path", f))
			continue
		}
		if _, err := os.Stat(f); err != nil {
			errs = append(errs, fmt.Errorf("proxy.modules: %w", err))
		}
	}
	return errors.Join(errs...)
}

// lua fills in the search paths that are not set.
func (s Search) lua(inst *Installation, b build) error {
	places, cPlaces := luaPlaces(), luaCPlaces()
	if !b.openResty {
		// OpenResty's lualib is made for its own version of the module; another nginx takes it last.
		rotate := func(l []string) []string { return append(slices.Clone(l[1:]), l[0]) }
		places, cPlaces = rotate(places), rotate(cPlaces)
	}
	var errs []error
	if inst.LuaPath == "" {
		var dirs []string
		for _, file := range []string{"resty/core.lua", "resty/lrucache.lua"} {
			dir := s.folderWith(places, file)
			if dir == "" {
				errs = append(errs, fmt.Errorf("%s is in none of %s: install lua-resty-core and lua-resty-lrucache, or set proxy.luaPath",
					file, strings.Join(places, ", ")))
			} else if !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
		var patterns []string
		for _, d := range dirs {
			patterns = append(patterns, d+"/?.lua", d+"/?/init.lua")
		}
		inst.LuaPath = strings.Join(patterns, ";")
	}
	if inst.LuaCPath == "" {
		dir := s.folderWith(cPlaces, "cjson.so")
		if dir == "" {
			errs = append(errs, fmt.Errorf("cjson.so is in none of %s: install lua-cjson, or set proxy.luaCPath",
				strings.Join(cPlaces, ", ")))
		}
		inst.LuaCPath = dir + "/?.so"
	}
	return errors.Join(errs...)
}

func (s Search) firstFile(paths []string) string {
	for _, p := range paths {
		p = filepath.Join(s.root(), p)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() {
			return p
		}
	}
	return ""
}

// folderWith gives the first of places that holds the file, or "".
func (s Search) folderWith(places []string, file string) string {
	for _, place := range places {
		matches, err := filepath.Glob(filepath.Join(s.root(), place, file))
		if err != nil { // only for a pattern of ours that is malformed: nothing is found there
			continue
		}
		if len(matches) > 0 {
			return strings.TrimSuffix(matches[0], "/"+file)
		}
	}
	return ""
}

func (s Search) root() string {
	if s.Root == "" {
		return "/"
	}
	return s.Root
}
