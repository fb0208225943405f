package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/gateway/luastate"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/plan"
	"headgate/lua"
	"headgate/sync/luapush"
	"headgate/sync/nginxproc"
	"headgate/test/product"
)

// mark stands in every hostile string.
const mark = "evil"

// hostileStrings look like syntax to somebody on the way: YAML, JSON, nginx, Lua, PCRE, HTTP, the shell, paths.
func hostileStrings() []string {
	return []string{
		"evil; } server { listen 1; location / { return 200 evil; } } #",
		"evil\" ; } load_module /tmp/evil.so; #", "evil'; }", "evil\\", "evil\\\"", "evil\\;", "evil$host", "evil${uri}", "evil$1", "evil$$",
		"evil\nlisten 1;", "evil\r\nX: y", "evil\t", "evil\x01\x1f\x7f", "evil%00", "evil%0a", "evil%", "evil%s%n",
		"../../evil", "../../../etc/passwd/evil", "./evil", "evil/..", "evil/.", "//evil", "evil//", "evil\\..\\",
		"*/evil/*", "evil#", "#evil", "evil//comment", "--evil", "evil]]", "[[evil", "[=[evil]=]", "evil\") os.execute(\"x\") --", "evil' .. os.execute('x') .. '",
		"evil{{.}}", "{{evil}}", "evil<%", "evil`id`", "evil$(id)", "evil|id", "evil&id", "evil>x", "~evil", "@evil", "=evil", "^~ evil",
		"evil.*", "(evil", "evil)", "[evil", "evil]", "evil{9}", "evil?", "evil+", "evil^$", "\\Qevil\\E", "(?i)evil", "(?#evil", "evil|",
		"evil*", "*evil", "*.evil", "evil.", ".evil", "evil..test", "-evil", "evil_x", "EVIL-evil", "evil:80", "[::evil]", "evil@test", "evil test",
		"evilé", "evil\u202e", "evil\u0000x", "evil\u212a", "evil\U0001f608", "evil\ufeff", "evil\u2028", "evil\xff\xfe", "evil\xc0\xaf", "evil\xed\xa0\x80",
		"evil: on", "evil: !!binary x", "&evil", "*evil", "!evil", "evil\\u0000", "evil\\n", "null evil", "{\"evil\":1}", "evil\":1,\"x\":\"",
		"host/evil", "setting/global/evil", "body/evil", strings.Repeat("evil", 900), strings.Repeat("/evil", 700), strings.Repeat("evil;", 700),
	}
}

// hostileModel gives every string of the model that comes from objects the same value.
func hostileModel(s string) *model.Model {
	id := model.UpstreamID("default/" + s + "/80")
	route := func(kind model.PathType, value string, filters ...model.Filter) *model.Route {
		return &model.Route{
			Match: model.Match{Path: model.PathMatch{Type: kind, Value: value}}, Filters: filters,
			Backends:     []model.Backend{{Upstream: id, Weight: 1}},
			Retry:        model.Retry{Tries: 3},
			MaxBodyBytes: 1 << 20,
			Profile:      model.Profile{BodyClass: model.BodyClass("?" + s)}, // never a class that there is
			Source:       model.Source{Kind: s, Namespace: s, Name: s, Service: s, Port: s},
		}
	}
	closed := route(model.PathExact, "/closed")
	closed.Unavailable = s
	return &model.Model{
		Hosts: []*model.Host{{
			Name: model.HostName(s), TLS: true, Certificate: model.CertificateID("default/" + s),
			Routes: []*model.Route{
				route(model.PathExact, "/"+s), closed, route(model.PathPrefix, "/p/"+s),
				route(model.PathPrefix, "/r", model.RedirectHTTPS{Status: 308}, model.RewritePath{Parts: []model.RewritePart{{Literal: "/" + s}, {Group: 1}}}),
			},
		}},
		Upstreams:    []*model.Upstream{{ID: id, Algorithm: model.Algorithm(s), Peers: []model.Peer{{Address: netip.MustParseAddrPort("127.0.0.1:1"), Weight: 1}}}},
		Certificates: []*model.Certificate{{ID: model.CertificateID("default/" + s), Chain: [][]byte{[]byte(s)}, Key: model.Secret(s)}},
	}
}

func settings() model.Settings {
	return model.Settings{WorkerProcesses: 1, WorkerConnections: 1024, StateMemoryBytes: 8 << 20, RedirectPort: 443}
}

// layout is where a proxy of a test lives.
func layout(tb testing.TB, dir string) (nginxconf.Layout, nginxproc.Installation) {
	tb.Helper()
	found, err := nginxproc.Detect(tb.Context(), nginxproc.Search{})
	if err != nil {
		tb.Fatal(err)
	}
	l := nginxconf.Layout{
		NginxVersion: found.Version, Modules: found.Modules, LuaPath: found.LuaPath, LuaCPath: found.LuaCPath,
		PIDFile: dir + "/nginx.pid", TempDir: dir + "/temp", ControlSocket: dir + "/control.sock", ErrorLog: dir + "/error.log",
		LuaDir: lua.Dir(dir + "/lua"), LuaBuild: lua.Build(),
	}
	if os.Geteuid() == 0 {
		l.User, l.Group = "root", "root" // the folder of a test belongs to root alone
	}
	return l, found
}

// confOf renders nginx.conf for a model.
func confOf(tb testing.TB, m *model.Model, l nginxconf.Layout) string {
	tb.Helper()
	m.Settings = settings()
	m.Listeners = []model.Listener{{Address: netip.MustParseAddrPort("127.0.0.1:8080"), Scheme: model.HTTP}}
	c, err := nginxconf.Render(m, l)
	if err != nil {
		tb.Fatal(err)
	}
	return string(c.Text)
}

var profileName = regexp.MustCompile(`headgate_profile_[0-9a-f]{32}`)

// sameBut compares two configurations whose profiles have other names, since names are hashes of contents, and
// therefore another generation.
func sameBut(a, b string) bool {
	generation := regexp.MustCompile(`generation = "[0-9a-f]{16}"`)
	flat := func(s string) string {
		return generation.ReplaceAllString(profileName.ReplaceAllString(s, "P"), "G")
	}
	return flat(a) == flat(b)
}

// Strings that never saw an API server or a parser of ours reach no line of nginx.conf: the text is the one of
// a harmless model.
func TestNoStringOfTheModelInTheConfiguration(t *testing.T) {
	l, _ := layout(t, product.PublicDir(t))
	tame := confOf(t, hostileModel("x"), l)
	for _, s := range hostileStrings() {
		text := confOf(t, hostileModel(s), l)
		if err := checkConf(text, mark); err != nil {
			t.Fatalf("%q: %v", cut(s, 80), err)
		}
		if !sameBut(text, tame) {
			t.Errorf("%q changes the configuration", cut(s, 80))
		}
		stateHolds(t, s)
	}
}

// stateHolds tells whether the pushed objects are JSON that holds the string as it is.
func stateHolds(tb testing.TB, s string) {
	tb.Helper()
	m := hostileModel(s)
	m.Settings = settings()
	state := luastate.NewEncoder().Encode(m)
	for _, o := range state.Objects {
		if !strings.HasPrefix(o.Pointer, "host/") {
			if !json.Valid(o.Body) {
				tb.Errorf("%q: the body of %q is not JSON", cut(s, 80), o.Pointer)
			}
			continue
		}
		var host struct {
			Name  string
			Exact map[string]int
		}
		if err := json.Unmarshal(o.Body, &host); err != nil {
			tb.Errorf("%q: %v", cut(s, 80), err)
			continue
		}
		// encoding/json replaces what is no UTF-8; Lua's decoder compares bytes.
		if want := strings.ToValidUTF8(s, "\ufffd"); strings.ToValidUTF8(host.Name, "\ufffd") != want && strings.ToValidUTF8(s, "") == s {
			tb.Errorf("%q became %q", s, host.Name)
		}
		if len(host.Exact) != 2 && s != "closed" {
			tb.Errorf("%q: %d exact paths, want 2", cut(s, 80), len(host.Exact))
		}
	}
	if !json.Valid(luastate.Redacted(state)) {
		tb.Errorf("%q: state.json is not JSON", cut(s, 80))
	}
}

func FuzzModelStrings(f *testing.F) {
	for _, s := range hostileStrings() {
		f.Add(s)
	}
	l, _ := layout(f, f.TempDir())
	tame := confOf(f, hostileModel("x"), l)
	f.Fuzz(func(t *testing.T, s string) {
		text := confOf(t, hostileModel(s), l)
		if !sameBut(text, tame) {
			t.Fatalf("%q changes the configuration", s)
		}
		stateHolds(t, s)
	})
}

// A scheme that is none is the one string of the model that Render itself must refuse; the layout's are the
// administrator's, and refused where they are not plain.
func TestLayoutRefusesSyntax(t *testing.T) {
	dir := product.PublicDir(t)
	good, _ := layout(t, dir)
	for _, s := range []string{`"`, "'", ";", "{", "}", "$host", "`", "\\", "\n", "\x00", "\x7f"} {
		for name, set := range map[string]func(*nginxconf.Layout){
			"PIDFile": func(l *nginxconf.Layout) { l.PIDFile += s }, "TempDir": func(l *nginxconf.Layout) { l.TempDir += s },
			"ControlSocket": func(l *nginxconf.Layout) { l.ControlSocket = "/run" + s + "/c.sock" }, "ErrorLog": func(l *nginxconf.Layout) { l.ErrorLog += s },
			"AccessLog": func(l *nginxconf.Layout) { l.AccessLog = "/a" + s }, "StateLog": func(l *nginxconf.Layout) { l.StateLog = "/a" + s },
			"LuaDir": func(l *nginxconf.Layout) { l.LuaDir += s }, "LuaBuild": func(l *nginxconf.Layout) { l.LuaBuild += s },
			"User": func(l *nginxconf.Layout) { l.User = "a" + s }, "Group": func(l *nginxconf.Layout) { l.User, l.Group = "a", "a"+s },
			"Modules":      func(l *nginxconf.Layout) { l.Modules = append(slices.Clone(l.Modules), "/m"+s+".so") },
			"NginxVersion": func(l *nginxconf.Layout) { l.NginxVersion += s }, "DefaultKey": func(l *nginxconf.Layout) { l.DefaultCertificate, l.DefaultKey = "/a", "/k"+s },
			"LuaPath": func(l *nginxconf.Layout) {
				if s != ";" { // parts of a search path
					l.LuaPath = "/x" + s + "/?.lua"
					return
				}
				l.LuaPath = "x/?.lua"
			},
		} {
			l := good
			set(&l)
			_, err := nginxconf.Render(&model.Model{Settings: settings()}, l)
			if !errors.Is(err, nginxconf.ErrLayout) {
				t.Errorf("%s with %q: %v", name, s, err)
			}
		}
	}
	for _, scheme := range []model.Scheme{"evil", "http; evil", ""} {
		m := &model.Model{Settings: settings(), Listeners: []model.Listener{{Address: netip.MustParseAddrPort("127.0.0.1:1"), Scheme: scheme}}}
		if _, err := nginxconf.Render(m, good); err == nil {
			t.Errorf("scheme %q is accepted", scheme)
		}
	}
}

// proxy is an nginx that gets its model from the test, without daemon, API server or checks between.
type proxy struct {
	gateway // for exchange
	client  *luapush.Client
	encoder *luastate.Encoder
}

func startProxy(t *testing.T) *proxy {
	t.Helper()
	dir := product.PublicDir(t)
	l, found := layout(t, dir)
	p := &proxy{gateway: gateway{t: t, dir: dir, http: product.FreeAddress(t)}, encoder: luastate.NewEncoder()}
	m := &model.Model{Settings: settings(), Listeners: []model.Listener{{Address: netip.MustParseAddrPort(p.http), Scheme: model.HTTP}}}
	config, err := nginxconf.Render(m, l)
	if err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "nginx.conf")
	for _, err := range []error{lua.Write(dir + "/lua"), os.Mkdir(l.TempDir, 0o755), os.WriteFile(conf, config.Text, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), found.Binary, "-t", "-p", dir, "-c", conf, "-e", dir+"/error.log").CombinedOutput()
	if err != nil {
		t.Fatalf("nginx -t: %v\n%s", err, out)
	}
	//nolint:usetesting // it is ended by stop, in the right order and with SIGTERM
	p.cmd = exec.CommandContext(context.Background(), found.Binary, "-p", dir, "-c", conf, "-e", dir+"/error.log")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	product.Run(t, p.cmd, dir)
	p.client = luapush.New(luapush.Config{Socket: l.ControlSocket, Timeout: patience})
	t.Cleanup(p.client.Close)
	deadline := time.Now().Add(patience)
	for {
		_, err := p.client.State(t.Context())
		if err == nil {
			return p
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond) // nginx tells nobody that it is up
	}
}

// push makes a model the proxy's state.
func (p *proxy) push(m *model.Model) {
	p.t.Helper()
	m.Settings = settings()
	keys, err := p.client.Keys(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	bodies := map[string]int{}
	for _, b := range keys.Bodies {
		bodies[b] = 1
	}
	revision := uint64(p.marks.Add(1))
	records := plan.Changes(keys.Pointers, bodies, p.encoder.Encode(m)).Records(revision)
	if _, err := p.client.Push(p.t.Context(), luapush.Push{AnyBase: true, Revision: revision, Records: records}); err != nil {
		p.t.Fatal(err)
	}
}

// encoded is a path with every byte but slashes in its escaped form: nothing in it is syntax of HTTP.
func encoded(path string) string {
	var b strings.Builder
	for i := range len(path) {
		if path[i] == '/' {
			b.WriteByte('/')
			continue
		}
		fmt.Fprintf(&b, "%%%02X", path[i])
	}
	return b.String()
}

// reachable says that a request for the path can name it: nginx refuses NUL, and resolves dots and double slashes.
func reachable(path string) bool {
	if strings.ContainsRune(path, 0) || strings.Contains(path, "//") || len(path) > 2500 {
		return false
	}
	for element := range strings.SplitSeq(path, "/") {
		if element == "." || element == ".." {
			return false
		}
	}
	return true
}

// A path is compared, never read: whatever stands in it, the request for these very bytes finds its route, one
// with a byte more or less does not, and nobody else's route is touched.
func TestHostilePathsAreLiteral(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	b := startBackend(t, "echo")
	up := &model.Upstream{ID: "default/evil;\"\\n/80", Algorithm: model.RoundRobin, Peers: []model.Peer{{Address: netip.MustParseAddrPort(b.address), Weight: 1}}}
	route := func(kind model.PathType, value string) *model.Route {
		return &model.Route{Match: model.Match{Path: model.PathMatch{Type: kind, Value: value}}, Backends: []model.Backend{{Upstream: up.ID, Weight: 1}}, Retry: model.Retry{Tries: 1}}
	}
	kinds := map[model.PathType]string{model.PathExact: "exact.test", model.PathPrefix: "prefix.test", model.PathRegex: "regex.test"}
	m := &model.Model{Upstreams: []*model.Upstream{up}}
	for kind, name := range kinds {
		host := &model.Host{Name: model.HostName(name), Regex: kind == model.PathRegex}
		for _, s := range hostileStrings() {
			value := "/" + s
			if kind == model.PathRegex && strings.ContainsRune(s, 0) {
				continue // ends a pattern of PCRE; build refuses control bytes in paths
			}
			if kind == model.PathRegex {
				value = regexp.QuoteMeta(value) + "$"
			}
			host.Routes = append(host.Routes, route(kind, value))
		}
		m.Hosts = append(m.Hosts, host)
	}
	slices.SortFunc(m.Hosts, func(a, b *model.Host) int { return strings.Compare(string(a.Name), string(b.Name)) })
	p.push(m)
	all := hostileStrings()
	for _, s := range all {
		path := "/" + s
		if !reachable(path) {
			continue
		}
		// QuoteMeta leaves bytes that are no UTF-8 alone; PCRE compares bytes, in either case of letters.
		for kind, host := range kinds {
			want := "200 echo"
			if got := p.get(host, encoded(path)); got != want {
				t.Errorf("%s %q: got %s, want %s", kind, cut(path, 80), got, want)
			}
			if other := path + "x"; kind != model.PathPrefix && !slices.Contains(all, other[1:]) {
				if got := p.get(host, encoded(other)); got != "404" {
					t.Errorf("%s %q: got %s, want 404", kind, cut(other, 80), got)
				}
			}
		}
		if got := p.get("prefix.test", encoded(path)+"/below"); got != "200 echo" && !strings.HasSuffix(path, "/") {
			t.Errorf("below %q: got %s", cut(path, 80), got)
		}
	}
	for _, target := range []string{"/", "/x", "/evix", "/server", "/%0a"} {
		for _, host := range kinds {
			if got := p.get(host, target); got != "404" {
				t.Errorf("%s%s: got %s, want 404", host, target, got)
			}
		}
	}
}

// Names of hosts, upstreams and certificates, whatever they hold, are keys of a table.
func TestHostileNamesAreKeys(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	b := startBackend(t, "echo")
	m := &model.Model{}
	for i, s := range hostileStrings() {
		if strings.ContainsAny(s, " \n\r") {
			continue // could not be listed; ParseHostName and the API server refuse them
		}
		up := &model.Upstream{ID: model.UpstreamID("default/" + s + "/80"), Algorithm: model.RoundRobin, Peers: []model.Peer{{Address: netip.MustParseAddrPort(b.address), Weight: 1}}}
		m.Upstreams = append(m.Upstreams, up)
		good := model.HostName(fmt.Sprintf("h%d.test", i))
		for _, name := range []model.HostName{good, model.HostName(s)} {
			m.Hosts = append(m.Hosts, &model.Host{Name: name, Routes: []*model.Route{{
				Match: model.Match{Path: model.PathMatch{Type: model.PathPrefix, Value: "/"}}, Backends: []model.Backend{{Upstream: up.ID, Weight: 1}}, Retry: model.Retry{Tries: 1},
			}}})
		}
	}
	p.push(m)
	for i, s := range hostileStrings() {
		if strings.ContainsAny(s, " \n\r") {
			continue
		}
		if got := p.get(fmt.Sprintf("h%d.test", i), "/"); got != "200 echo" {
			t.Errorf("the host of upstream %q: got %s", cut(s, 80), got)
		}
		a, err := p.exchange(get("/", "Host: "+s, "Connection: close"), "GET")
		if err == nil && a.String() != "200 echo" && a.status != 400 && a.status != 404 {
			t.Errorf("Host %q: got %s", cut(s, 80), a)
		}
	}
}

// The way in that people have: manifests. The configuration on disk does not change by a byte, nothing is
// reloaded, what cannot be served is told, and every path that could be served is matched letter by letter.
func TestHostileManifests(t *testing.T) {
	t.Parallel()
	g := start(t, "")
	goodSite(g)
	conf := filepath.Join(g.dir, "run", "nginx.conf")
	before, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	var served []string
	for i, s := range hostileStrings() {
		if !utf8Text(s) {
			continue // cannot stand in YAML
		}
		b.WriteString(ingress(fmt.Sprintf("p%d", i), fmt.Sprintf("p%d.test", i), exact("/"+s, "good"), prefix("/p/"+s, "good"), prefix("/good", "good")))
		b.WriteString(ingress(fmt.Sprintf("r%d", i), fmt.Sprintf("r%d.test", i), free("/"+s, "good"), free("/good", "good"), annotated("use-regex", "true")))
		b.WriteString(ingress(fmt.Sprintf("h%d", i), s, prefix("/", "good")))
		b.WriteString(ingress(fmt.Sprintf("s%d", i), fmt.Sprintf("s%d.test", i), prefix("/", s), prefix("/good", "good")))
		b.WriteString(ingress(fmt.Sprintf("t%d", i), fmt.Sprintf("t%d.test", i), prefix("/", "good"), withTLS(s, fmt.Sprintf("t%d.test", i), s), annotated("ssl-redirect", "false")))
		b.WriteString(ingress(fmt.Sprintf("c%d", i), fmt.Sprintf("c%d.test", i), prefix("/", "good"), more{spec: "  ingressClassName: " + quote(s) + "\n"}))
		b.WriteString(ingress(fmt.Sprintf("k%d", i), fmt.Sprintf("k%d.test", i), prefix("/", "good"), annotated("kubernetes.io/ingress.class", s)))
		for j, name := range []string{"rewrite-target", "use-regex", "ssl-redirect", "force-ssl-redirect", "configuration-snippet", "server-snippet", "auth-url", "proxy-body-size", s} {
			if len(name) > 500 {
				continue // YAML has no such keys
			}
			b.WriteString(ingress(fmt.Sprintf("a%d-%d", i, j), fmt.Sprintf("a%d-%d.test", i, j), prefix("/", "good"), annotated(name, s)))
		}
		b.WriteString(ingress(s, "n.test", prefix("/"+fmt.Sprint(i), "good")))
		b.WriteString(secret(s, []byte(s), []byte(s)))
		if path := "/" + s; reachable(path) && !strings.ContainsFunc(path, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
			served = append(served, fmt.Sprintf("p%d.test %s", i, encoded(path)), fmt.Sprintf("p%d.test /p%s/x", i, encoded(path)))
		}
	}
	g.write("evil.yaml", b.String())
	g.settle()
	g.wants("good.test", "/", "200 good")
	for _, p := range g.status().Problems {
		if p.Name == "" && strings.HasPrefix(p.Origin, "evil.yaml") {
			t.Fatalf("the file as a whole: %s %s", p.Origin, p.Message)
		}
	}
	for _, s := range served {
		host, target, _ := strings.Cut(s, " ")
		g.wants(host, target, "200 good")
		g.wants(host, "/good", "200 good")
		g.wants(host, target+"%78", map[bool]string{true: "200 good", false: "404"}[strings.HasSuffix(target, "/x")])
	}
	for i, s := range hostileStrings() {
		if !utf8Text(s) {
			continue
		}
		for _, host := range []string{"p", "r", "s"} {
			g.wants(fmt.Sprintf("%s%d.test", host, i), "/good", "200 good")
		}
		g.wants(fmt.Sprintf("t%d.test", i), "/", "200 good")
	}
	after, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	if string(after) != string(before) {
		t.Error("nginx.conf is another one")
	}
	if err := checkConf(string(after), mark); err != nil {
		t.Error(err)
	}
	s := g.status()
	if n := len(s.Reloads); n != 1 || s.Reloads["first-start"] != 1 {
		t.Errorf("reloads: %v", s.Reloads)
	}
	if len(s.Problems) < 100 {
		t.Errorf("only %d problems are told", len(s.Problems))
	}
	g.stillWell(t, "good.test", "200 good")
}

func utf8Text(s string) bool { return strings.ToValidUTF8(s, "") == s && !strings.ContainsRune(s, 0) }

// Queries and paths that a rewrite makes from an annotation reach the backend as one request line.
func TestHostileRewrites(t *testing.T) {
	t.Parallel()
	g := start(t, "")
	goodSite(g)
	var b strings.Builder
	n := 0
	for _, s := range hostileStrings() {
		if !utf8Text(s) {
			continue
		}
		for _, target := range []string{"/" + s, "/x?" + s, "/x?a=$1&" + s, "/$1" + s} {
			b.WriteString(ingress(fmt.Sprintf("w%d", n), fmt.Sprintf("w%d.test", n), free("/(.*)", "good"), annotated("rewrite-target", target)))
			n++
		}
	}
	g.write("rewrite.yaml", b.String())
	g.settle()
	for i := range n {
		host := fmt.Sprintf("w%d.test", i)
		for _, target := range []string{"/a", "/%20%0d%0aX:y%3f%23", "/a?b=c%20d", "/\xff?\xfe"} {
			// An annotation that is refused costs its Ingress; the backend itself refuses what is no request.
			if got := g.get(host, target); got != "200 good" && got != "503" && got != "404" {
				t.Errorf("%s %q: got %s; %v", host, target, got, g.problemsOf(host))
			}
		}
	}
	g.stillWell(t, "good.test", "200 good")
}

func (g *gateway) problemsOf(host string) []string {
	var list []string
	for _, p := range g.status().Problems {
		if p.Name == strings.TrimSuffix(host, ".test") {
			list = append(list, p.Message)
		}
	}
	return list
}
