package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/sync/nginxproc"
)

// packages are Debian's, all that a proxy needs.
const packages = "nginx libnginx-mod-http-lua lua-resty-core lua-resty-lrucache lua-cjson"

// proxy looks for nginx and has it try the configuration that it would start with.
func (r *run) proxy(ctx context.Context) {
	p := r.Config.Proxy
	if err := assemble.CheckBinary(p.Binary); err != nil {
		r.fail(r.install(), "%v", err)
		return
	}
	found, err := nginxproc.Detect(ctx, nginxproc.Search{
		Root: r.Host.Root, Binary: p.Binary, Modules: p.Modules, LuaPath: p.LuaPath, LuaCPath: p.LuaCPath,
	})
	if err != nil {
		r.fail(r.install(), "%v", err)
		return
	}
	name := "nginx"
	if found.OpenResty {
		name = "OpenResty"
	}
	modules := "with Lua built in"
	if len(found.Modules) > 0 {
		modules = "with " + strings.Join(found.Modules, ", ")
	}
	r.ok("%s %s (%s) %s; Lua files in %s and %s", name, found.Version, found.Binary, modules, found.LuaPath, found.LuaCPath)
	r.stockService()
	r.replacedFiles()

	err = try(ctx, r.Config, found, r.Host)
	var refused *nginxproc.ConfError
	switch {
	case err == nil:
		r.ok("nginx accepts the configuration that it would start with")
	case errors.As(err, &refused) && r.Host.UID != 0 && strings.Contains(refused.Message, "Permission denied") && strings.Contains(refused.Message, "bind()"):
		// Whether that is bad depends on who starts nginx: see listeners.
		r.warn("run headgate check as root", "nginx was not asked for the whole configuration: this user may not take its ports")
	case errors.As(err, &refused):
		r.fail(r.adviceOn(refused.Message), "%v", err)
	default:
		r.fail("see whether there is room in "+os.TempDir()+" and "+found.Binary+" -V runs", "trying the configuration: %v", err)
	}
}

// install is the command that brings a proxy.
func (r *run) install() string {
	if _, err := os.Stat(r.path("/usr/bin/apt-get")); err == nil {
		return "apt-get install " + packages
	}
	return "install OpenResty, or nginx with its Lua module, lua-resty-core, lua-resty-lrucache and lua-cjson; where they lie elsewhere, " +
		"set proxy.binary, proxy.modules, proxy.luaPath and proxy.luaCPath"
}

// adviceOn knows the complaints of nginx whose cure is not in them.
func (r *run) adviceOn(complaint string) string {
	switch {
	case strings.Contains(complaint, "is not binary compatible"):
		return "the module was built for another nginx: " + r.install()
	case strings.Contains(complaint, "dlopen()"):
		return r.install()
	case strings.Contains(complaint, "bind()"):
		return "see the lines on listeners"
	}
	return ""
}

// try renders what the daemon would render without any object, into a temporary folder, and asks nginx -t.
func try(ctx context.Context, c config.Config, found nginxproc.Installation, host Host) (err error) {
	parent := os.TempDir()
	if len(parent) > 40 {
		parent = "/tmp" // sockets are made in it, and their paths have a limit
	}
	dir, err := os.MkdirTemp(parent, "headgate-check-")
	if err != nil {
		return fmt.Errorf("make a temporary folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the workers' user passes through
		return fmt.Errorf("open the temporary folder: %w", err)
	}
	c.StateDir, c.RuntimeDir = dir+"/state", dir+"/run"
	paths := assemble.PathsOf(c)
	machine, err := assemble.Prepare(c, paths, found, host.Now())
	if err != nil {
		return err
	}
	layout := assemble.Layout(c, paths, machine)
	conf, err := nginxconf.Render(&model.Model{Settings: assemble.Settings(c), Listeners: assemble.Listeners(c)}, layout)
	if err != nil {
		return err
	}
	proxy := nginxproc.New(nginxproc.Config{
		Binary: found.Binary, Prefix: c.RuntimeDir, Conf: paths.Conf, Sockets: layout.Sockets(), Output: paths.Output,
	})
	return proxy.Test(ctx, nginxproc.Conf{Text: conf.Text})
}

// replacedFiles tells of programs and libraries that the running nginx has loaded and that an upgrade has replaced on disk:
// what they mend is not in force yet, and modules that nginx loads at a reload may not fit it any more.
func (r *run) replacedFiles() {
	if r.Config.Proxy.Mode != config.External {
		return // a managed nginx is the daemon's
	}
	pid, err := os.ReadFile(assemble.PathsOf(r.Config).PID)
	if err != nil {
		return // none runs
	}
	id := strings.TrimSpace(string(pid))
	maps, err := os.ReadFile(r.path("/proc/" + id + "/maps"))
	if err != nil {
		return // another user's
	}
	if old := deleted(string(maps)); len(old) > 0 {
		r.warn("headgate proxy upgrade", "the running nginx (PID %s) uses files that were replaced on disk since it was started: %s", id, strings.Join(old, ", "))
	}
}

// deleted reads /proc/PID/maps (proc(5)): what is executed and is not on disk any more, each once.
func deleted(maps string) []string {
	const mode = 1
	var all []string
	for line := range strings.Lines(maps) {
		fields := strings.Fields(line)
		at := strings.IndexByte(line, '/')
		if len(fields) <= mode || at < 0 || !strings.Contains(fields[mode], "x") {
			continue
		}
		if name, gone := strings.CutSuffix(strings.TrimSpace(line[at:]), " (deleted)"); gone && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// stockService tells of the distribution's own nginx, which its package starts and enables. Our package has a drop-in that
// keeps it off.
func (r *run) stockService() {
	const name, dropIn = "nginx.service", "/systemd/system/nginx.service.d/50-headgate.conf"
	enabled, err := os.Lstat(r.path("/etc/systemd/system/multi-user.target.wants/" + name))
	if err != nil || enabled == nil {
		return
	}
	_, kept := os.Stat(r.path("/usr/lib" + dropIn))
	if _, masked := os.Lstat(r.path("/etc" + dropIn)); kept == nil && masked != nil {
		return
	}
	for _, l := range assemble.Listeners(r.Config) {
		if l.Address.Port() == stockPort {
			r.warn("systemctl disable --now "+name, "%s, the distribution's own nginx, is enabled and takes port %d when this host boots", name, stockPort)
			return
		}
	}
}

// stockPort is what the distributions' nginx listens on.
const stockPort = 80
