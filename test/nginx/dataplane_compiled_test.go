package nginx_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"headgate/gateway/model"
)

// watcher has LuaJIT write to a file where a trace began that it gave up, and why and where it did.
const watcher = `do
    local reasons, info = dofile(%q).traceerr, require("jit.util").funcinfo
    local from
    require("jit").attach(function(what, _, func, pc, code)
        if what == "start" then
            from = info(func, pc)
        elseif what == "abort" then
            local file = assert(io.open(%q, "a"))
            file:write(("%%s:%%s %%s at %%s\n"):format(from.source, from.currentline, reasons[code],
                info(func, pc).loc or "a built-in"))
            file:close()
        end
    end, "trace")
end
`

// TestHotPathIsCompiled: LuaJIT compiles all that a request runs. A function that ends in a call of a built-in cannot be
// compiled when a trace starts in it; by chance that happens in some workers, often enough that it is given up for ever
// ("blacklisted"), and with it whatever calls it. Those workers then need up to a third more CPU time for each request.
func TestHotPathIsCompiled(t *testing.T) {
	names, err := filepath.Glob("/usr/*/luajit*/jit/vmdef.lua")
	if more, _ := filepath.Glob("/usr/local/openresty/luajit/share/luajit*/jit/vmdef.lua"); err != nil || len(names)+len(more) == 0 {
		t.Fatalf("LuaJIT's vmdef.lua, which names the reasons: not found (%v)", err)
	} else if len(names) == 0 {
		names = more
	}
	settings := dpSettings()
	settings.RequestMetrics = true
	p, _ := dpServe(t, settings, dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")), dpHost("b.test", dpRoute(model.PathPrefix, "/b", "d/a/80")))
	file, told := filepath.Join(p.layout.LuaDir, "headgate/load.lua"), filepath.Join(p.dir, "aborts")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = append(fmt.Appendf(nil, watcher, names[0], told), text...)
	if err := os.WriteFile(file, text, 0o644); err != nil { //nolint:gosec // nginx reads it
		t.Fatal(err)
	}
	bad := regexp.MustCompile(`(?:headgate/|ngx/|resty/core/(?:base|var|request|time|misc))\S* (?:blacklisted at .*|leaving loop in root trace at a built-in)$`)
	for range 4 { // LuaJIT draws lots: each start is another game
		p.kill()
		p.run()
		p.push()
		p.ask(3000, "a.test", "b.test")
	}
	list, err := os.ReadFile(told)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		line = strings.TrimSpace(line)
		if bad.MatchString(line) {
			t.Errorf("LuaJIT gave up: %s", line)
		}
	}
}

// ask sends requests to hosts in turn over one kept connection.
func (p *dpProxy) ask(n int, hosts ...string) {
	p.t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	for i := range n {
		req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+p.http.String()+"/b", http.NoBody)
		if err != nil {
			p.t.Fatal(err)
		}
		req.Host = hosts[i%len(hosts)]
		res, err := client.Do(req)
		if err != nil {
			p.t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, res.Body)
		if _ = res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
			p.t.Fatalf("%s: %d, %v", req.Host, res.StatusCode, err)
		}
	}
}
