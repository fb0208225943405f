// Package preview renders folders of manifests the way the daemon would, without a proxy: one read, one
// build, nginx.conf and the objects to push as text with secrets as hashes. `headgate render` prints it.
package preview

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/cmd/defaultcert"
	"headgate/gateway/build"
	"headgate/gateway/luastate"
	"headgate/gateway/nginxconf"
	"headgate/lua"
	"headgate/sync/admin"
	"headgate/sync/manifests"
	"headgate/sync/nginxproc"
)

// Page is what was rendered.
type Page struct {
	NginxConf string          `json:"nginxConf"`
	State     json.RawMessage `json:"state"`
	Problems  []admin.Problem `json:"problems"`
	// NotValidated are regular expressions that only the proxy can check.
	NotValidated []string `json:"notValidated"`
	// NotResolved are names of ExternalName services.
	NotResolved []string `json:"notResolved"`

	hosts, routes int
}

// Errors counts the problems that are more than warnings.
func (p Page) Errors() int {
	n := 0
	for _, problem := range p.Problems {
		if !problem.Warning {
			n++
		}
	}
	return n
}

// Summary is one line.
func (p Page) Summary() string {
	return fmt.Sprintf("%s, %s", count(p.hosts, "host"), count(p.routes, "route"))
}

// Notes are the problems and what could not be checked, a line each.
func (p Page) Notes() []string {
	var lines []string
	for _, problem := range p.Problems {
		lines = append(lines, problem.Line())
	}
	if n := len(p.NotValidated); n > 0 {
		lines = append(lines, fmt.Sprintf("%s not validated, for want of a proxy: %q", count(n, "regular expression"), p.NotValidated))
	}
	if n := len(p.NotResolved); n > 0 {
		lines = append(lines, fmt.Sprintf("%s not resolved: %q", count(n, "external name"), p.NotResolved))
	}
	return lines
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Render reads c.Manifests once. The error is one that keeps everything from being rendered; whatever is
// wrong with one object is a problem of the page.
func Render(ctx context.Context, c config.Config) (Page, error) {
	snapshot, err := manifests.Read(manifests.Config{Folders: c.Manifests}, time.Now())
	if err != nil {
		return Page{}, err
	}
	builder := build.New(assemble.Build(c))
	result := builder.Build(snapshot, time.Now())
	unknown := result.UnknownRegexes
	if len(unknown) > 0 {
		// They are taken for good, so that their routes are shown.
		verdicts := make(map[string]string, len(unknown))
		for _, pattern := range unknown {
			verdicts[pattern] = ""
		}
		builder.LearnRegexes(verdicts)
		result = builder.Build(snapshot, time.Now())
	}
	conf, err := nginxconf.Render(result.Model, layout(ctx, c))
	if err != nil {
		return Page{}, err
	}
	page := Page{
		NginxConf: string(conf.Text), State: luastate.Redacted(luastate.NewEncoder().Encode(result.Model)),
		Problems: []admin.Problem{}, NotValidated: unknown, NotResolved: result.ExternalNames, hosts: len(result.Model.Hosts),
	}
	for _, host := range result.Model.Hosts {
		page.routes += len(host.Routes)
	}
	for _, problem := range result.Problems {
		page.Problems = append(page.Problems, assemble.Problem(problem))
	}
	return page, nil
}

// layout is that of this host, as far as it has a proxy; else that of Debian.
func layout(ctx context.Context, c config.Config) nginxconf.Layout {
	p := assemble.PathsOf(c)
	m := assemble.Machine{
		NginxVersion: "1.22.1", LuaPath: "/usr/share/lua/5.1/?.lua", LuaCPath: "/usr/lib/x86_64-linux-gnu/lua/5.1/?.so",
		Modules: []string{"/usr/lib/nginx/modules/ndk_http_module.so", "/usr/lib/nginx/modules/ngx_http_lua_module.so"},
		LuaDir:  lua.Dir(p.Lua), LuaBuild: lua.Build(),
		Certificate: defaultcert.Files{Certificate: filepath.Join(c.StateDir, "default.crt"), Key: filepath.Join(c.StateDir, "default.key")},
	}
	search := nginxproc.Search{Binary: c.Proxy.Binary, Modules: c.Proxy.Modules, LuaPath: c.Proxy.LuaPath, LuaCPath: c.Proxy.LuaCPath}
	if found, err := nginxproc.Detect(ctx, search); err == nil {
		m.NginxVersion, m.Modules, m.LuaPath, m.LuaCPath = found.Version, found.Modules, found.LuaPath, found.LuaCPath
	}
	if worker, err := assemble.Worker(c); err == nil {
		m.Worker = worker
	}
	return assemble.Layout(c, p, m)
}
