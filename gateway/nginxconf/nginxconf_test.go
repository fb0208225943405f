package nginxconf

import (
	"bytes"
	"errors"
	"flag"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/gateway/model"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func testLayout() Layout {
	return Layout{
		NginxVersion:  "1.22.1",
		Modules:       []string{"/usr/lib/nginx/modules/ngx_http_lua_module.so", "/usr/lib/nginx/modules/ndk_http_module.so"},
		PIDFile:       "/run/headgate/nginx.pid",
		TempDir:       "/run/headgate/temp",
		ControlSocket: "/run/headgate/proxy/control.sock",
		ErrorLog:      "stderr",
		LuaDir:        "/run/headgate/lua/0123456789abcdef", LuaBuild: "0123456789abcdef",
		DefaultCertificate: "/var/lib/headgate/default.crt", DefaultKey: "/var/lib/headgate/default.key",
	}
}

func testSettings() model.Settings {
	return model.Settings{
		WorkerConnections: 16384, StateMemoryBytes: 32 << 20, RedirectPort: 443,
		HSTS: model.HSTS{Enabled: true, MaxAge: 365 * 24 * time.Hour, IncludeSubdomains: true},
	}
}

func httpListener(s string) model.Listener {
	return model.Listener{Address: netip.MustParseAddrPort(s), Scheme: model.HTTP}
}

func httpsListener(s string) model.Listener {
	return model.Listener{Address: netip.MustParseAddrPort(s), Scheme: model.HTTPS, HTTP2: true}
}

func routeOf(p model.Profile) *model.Route {
	return &model.Route{Match: model.Match{Path: model.PathMatch{Type: model.PathExact, Value: "/"}}, Profile: p}
}

type goldenCase struct {
	name   string // of the file in testdata, which says in its first line what it shows
	model  model.Model
	layout func(*Layout)
}

func goldenCases() []goldenCase {
	standard := []model.Listener{httpListener("0.0.0.0:80"), httpListener("[::]:80"), httpsListener("0.0.0.0:443"), httpsListener("[::]:443")}
	trusting := testSettings()
	trusting.UseForwardedHeaders = true
	trusting.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.1.2.3/8"), netip.MustParsePrefix("2001:db8::/32")}
	tuned := testSettings()
	tuned.WorkerProcesses, tuned.HSTS = 4, model.HSTS{Enabled: true, MaxAge: time.Hour, Preload: true}
	tuned.DefaultProfile = model.Profile{Buffering: true, BodyClass: model.Body16M}
	plain := testSettings()
	plain.HSTS.Enabled = false
	counted := testSettings()
	counted.RequestMetrics, counted.StrictAnswers = true, true
	return []goldenCase{
		{name: "protocols", model: protocolModel(testSettings()), layout: func(l *Layout) { l.TLSDir = "/run/headgate/tls" }},
		{name: "protocols-forwarded", model: protocolModel(trusting), layout: func(l *Layout) { l.TLSDir = "/run/headgate/tls" }},
		{name: "buffers", model: bufferModel()},
		{name: "metrics-and-json-log", model: model.Model{Settings: counted, Listeners: standard[2:3]}, layout: func(l *Layout) {
			l.AccessLog, l.AccessLogFormat = "/var/log/headgate/access.log", AccessLogJSON
		}},
		{name: "http-only", model: model.Model{Settings: plain, Listeners: []model.Listener{httpListener("127.0.0.1:8080")}}},
		{name: "standard", model: model.Model{Settings: testSettings(), Listeners: standard}},
		{name: "http2-directive", model: model.Model{Settings: testSettings(), Listeners: standard[2:3]}, layout: func(l *Layout) {
			l.NginxVersion, l.Modules = "1.27.1", nil
		}},
		{name: "forwarded", model: model.Model{Settings: trusting, Listeners: standard[:1]}},
		{
			name: "profiles",
			model: model.Model{Settings: tuned, Listeners: []model.Listener{httpListener("0.0.0.0:80")}, Hosts: []*model.Host{{
				Name: "a.test", Routes: []*model.Route{
					routeOf(model.Profile{}), routeOf(tuned.DefaultProfile), routeOf(model.Profile{RequestUnbuffered: true, BodyClass: model.BodyUnlimited}),
					routeOf(model.Profile{}), routeOf(model.Profile{BodyClass: model.Body256M, RetryNonIdempotent: true}),
				},
			}}},
		},
		{
			name: "whole-layout", model: model.Model{Settings: testSettings(), Listeners: standard[:1]},
			layout: func(l *Layout) {
				l.User, l.Group, l.Daemon, l.OpenFiles = "www-data", "headgate", true, 65536
				l.ErrorLog, l.AccessLog = "/var/log/headgate/error.log", "/var/log/headgate/access.log"
				l.StateLog = "/var/lib/headgate/state.log"
				l.LuaPath, l.LuaCPath = "/usr/share/lua/5.1/?.lua;/usr/share/lua/5.1/?/init.lua", "/usr/lib/x86_64-linux-gnu/lua/5.1/?.so"
				l.KeepProfiles = []model.Profile{{BodyClass: model.Body16M}}
			},
		},
	}
}

// protocolModel has a route for each protocol and each way of speaking it.
func protocolModel(s model.Settings) model.Model {
	pem := []byte("-----BEGIN CERTIFICATE-----")
	m := model.Model{
		Settings: s, Listeners: []model.Listener{httpsListener("0.0.0.0:443")},
		Identities: []*model.Identity{
			{ID: "0123456789ab", Verify: true, CA: pem, Name: "a.internal"},
			{
				ID: "abcdef012345", Certificate: pem, Key: model.Secret("key"), CA: pem, Verify: true, Depth: 3, Name: "b.internal", ServerName: true,
				Protocols: []string{"TLSv1.2"}, Ciphers: "HIGH:!aNULL",
			},
			{ID: "bcdef0123456", CA: pem, Name: "c.internal", ServerName: true}, // asks for a name, verifies nothing
		},
		FastCGI: []*model.FastCGI{{ID: "cdef01234567", Index: "index.php", Params: []model.FastCGIParam{
			{Name: "EVIL", Value: `a"b\c';{}#`}, {Name: "SCRIPT_FILENAME", Value: "/var/www/index.php"}, {Name: "SERVER_NAME", Variable: "host"},
		}}},
	}
	h := &model.Host{Name: "a.test"}
	for _, p := range []model.Profile{
		{Protocol: model.ProtocolHTTP, HTTP10: true},
		{PeerHost: true, BodyBuffer: 1024},
		{Protocol: model.ProtocolGRPC, PeerHost: true, BodyBuffer: 16384},
		{Protocol: model.ProtocolFastCGI, PeerHost: true, BodyBuffer: 8},
		{Protocol: model.ProtocolHTTPS},
		{Protocol: model.ProtocolHTTPS, Identity: "0123456789ab"},
		{Protocol: model.ProtocolHTTPS, Identity: "0123456789ab", Buffering: true}, // the same pool
		{Protocol: model.ProtocolHTTPS, Identity: "bcdef0123456"},
		{Protocol: model.ProtocolGRPC, BufferSize: 8, RetryOn: model.RetryError | model.Retry502 | model.Retry504},
		{Protocol: model.ProtocolGRPCS},
		{Protocol: model.ProtocolGRPCS, Identity: "abcdef012345"},
		{Protocol: model.ProtocolHTTPS, Identity: "abcdef012345"},
		{Protocol: model.ProtocolFastCGI},
		{Protocol: model.ProtocolFastCGI, FastCGI: "cdef01234567", Buffering: true, RetryOn: model.RetryTimeout | model.Retry502 | model.Retry503},
	} {
		h.Routes = append(h.Routes, routeOf(p))
	}
	m.Hosts = []*model.Host{h}
	return m
}

// bufferModel has sizes and conditions at their ends.
func bufferModel() model.Model {
	h := &model.Host{Name: "a.test"}
	all := model.RetryError | model.RetryTimeout | model.RetryInvalidHeader | model.Retry500 | model.Retry502 | model.Retry503 | model.Retry504 |
		model.Retry403 | model.Retry404 | model.Retry429
	for _, p := range []model.Profile{
		{Buffering: true, BufferSize: 8, Buffers: 4, BusyBuffers: 16, MaxTempFile: 64, RetryOn: all, RetryNonIdempotent: true},
		{Buffering: true, BufferSize: 65535, Buffers: 1, MaxTempFile: 1, RetryOn: model.RetryNever | model.RetryError},
		{Buffering: true, BufferSize: 16, Buffers: 65535, BusyBuffers: 1, MaxTempFile: -1},
		{Protocol: model.ProtocolFastCGI, Buffering: true, BufferSize: 16, Buffers: 2, BusyBuffers: 65535, RetryOn: model.Retry502},
	} {
		h.Routes = append(h.Routes, routeOf(p))
	}
	return model.Model{Settings: testSettings(), Listeners: []model.Listener{httpListener("0.0.0.0:80")}, Hosts: []*model.Host{h}}
}

func TestGolden(t *testing.T) {
	for _, c := range goldenCases() {
		t.Run(c.name, func(t *testing.T) {
			l := testLayout()
			if c.layout != nil {
				c.layout(&l)
			}
			config, err := Render(&c.model, l)
			if err != nil {
				t.Fatal(err)
			}
			shuffled := c.model
			shuffled.Listeners = slices.Clone(shuffled.Listeners)
			rand.Shuffle(len(shuffled.Listeners), func(i, j int) {
				shuffled.Listeners[i], shuffled.Listeners[j] = shuffled.Listeners[j], shuffled.Listeners[i]
			})
			again, err := Render(&shuffled, l)
			if err != nil || !bytes.Equal(again.Text, config.Text) {
				t.Errorf("the order of the listeners changes the text (%v)", err)
			}
			if bytes.Count(config.Text, []byte(config.Generation)) != 1 {
				t.Errorf("the generation %s does not stand in the text once", config.Generation)
			}
			file := filepath.Join("testdata", c.name+".conf")
			if *update {
				if err := os.WriteFile(file, config.Text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(config.Text)); diff != "" {
				t.Errorf("-want +got (rewrite with -update):\n%s", diff)
			}
		})
	}
}

// TestNothingFromObjectsIsWritten: whatever stands in objects, the text stays the same.
func TestNothingFromObjectsIsWritten(t *testing.T) {
	build := func(evil func(string) string) *model.Model {
		r := routeOf(model.Profile{Buffering: true})
		r.Match.Path.Value = evil("/")
		r.Unavailable = evil("reason")
		r.Backends = []model.Backend{{Upstream: model.UpstreamID(evil("d/a/80")), Weight: 1}}
		r.Filters = []model.Filter{model.RewritePath{Parts: []model.RewritePart{{Literal: evil("/")}}}}
		r.Source = model.Source{Kind: evil("Ingress"), Namespace: evil("d"), Name: evil("a"), Service: evil("a"), Port: evil("80")}
		s := testSettings()
		s.NoTLSRedirectPrefixes = []string{evil("/x")}
		s.DefaultCertificate = model.CertificateID(evil("d/c"))
		return &model.Model{
			Settings: s, Listeners: []model.Listener{httpListener("127.0.0.1:80")},
			Hosts:        []*model.Host{{Name: model.HostName(evil("a.test")), Routes: []*model.Route{r}, Certificate: model.CertificateID(evil("d/c"))}},
			Upstreams:    []*model.Upstream{{ID: model.UpstreamID(evil("d/a/80")), Algorithm: model.Algorithm(evil("round_robin"))}},
			Certificates: []*model.Certificate{{ID: model.CertificateID(evil("d/c")), Key: model.Secret(evil("key"))}},
		}
	}
	want, err := Render(build(func(s string) string { return s }), testLayout())
	if err != nil {
		t.Fatal(err)
	}
	for _, evil := range []string{
		"; } } server { listen 1; }", "\n}\nload_module /tmp/x.so;\n", "${host}$1", `"'\`, "#", "{{.}}", "\x00\x7f\xff", "*/", "`id`", "{ content_by_lua_block { } }",
	} {
		got, err := Render(build(func(s string) string { return s + evil }), testLayout())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Text, want.Text) || got.Globals != want.Globals || !cmp.Equal(got.Profiles, want.Profiles) {
			t.Errorf("%q changes the text", evil)
		}
	}
}

func TestFacts(t *testing.T) {
	base := func() (*model.Model, Layout) {
		return &model.Model{Settings: testSettings(), Listeners: []model.Listener{httpListener("0.0.0.0:80")}}, testLayout()
	}
	render := func(change func(*model.Model, *Layout)) Config {
		m, l := base()
		change(m, &l)
		c, err := Render(m, l)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	was := render(func(*model.Model, *Layout) {})
	for name, c := range map[string]struct {
		change                       func(*model.Model, *Layout)
		listeners, profiles, globals bool
		text                         bool
	}{
		"a host": {change: func(m *model.Model, _ *Layout) {
			m.Hosts = []*model.Host{{Name: "a.test", Routes: []*model.Route{routeOf(model.Profile{})}}}
		}},
		"a listener": {listeners: true, text: true, change: func(m *model.Model, _ *Layout) {
			m.Listeners = append(m.Listeners, httpsListener("0.0.0.0:443"))
		}},
		"a profile": {profiles: true, text: true, change: func(m *model.Model, _ *Layout) {
			m.Hosts = []*model.Host{{Routes: []*model.Route{routeOf(model.Profile{Buffering: true})}}}
		}},
		"other Lua files": {text: true, change: func(_ *model.Model, l *Layout) {
			l.LuaDir, l.LuaBuild = "/run/headgate/lua/f", "f"
		}},
		"a larger state":                       {text: true, change: func(m *model.Model, _ *Layout) { m.Settings.StateMemoryBytes *= 2 }},
		"an upstream that needs the log phase": {text: true, change: func(m *model.Model, _ *Layout) { m.Upstreams = []*model.Upstream{{}} }},
		"a log phase that is kept":             {text: true, change: func(_ *model.Model, l *Layout) { l.KeepLogPhase = true }},
		"an upstream that does not": {change: func(m *model.Model, _ *Layout) {
			m.Upstreams = []*model.Upstream{{Ejection: model.Ejection{Off: true}}}
		}},
		"counting":        {text: true, globals: true, change: func(m *model.Model, _ *Layout) { m.Settings.RequestMetrics = true }},
		"HSTS":            {text: true, globals: true, change: func(m *model.Model, _ *Layout) { m.Settings.HSTS.Preload = true; m.Listeners[0].Scheme = model.HTTPS }, listeners: true},
		"more workers":    {text: true, globals: true, change: func(m *model.Model, _ *Layout) { m.Settings.WorkerProcesses = 7 }},
		"another log":     {text: true, globals: true, change: func(_ *model.Model, l *Layout) { l.AccessLog = "/var/log/a" }},
		"default profile": {text: true, globals: true, change: func(m *model.Model, _ *Layout) { m.Settings.DefaultProfile.Buffering = true }},
	} {
		got := render(c.change)
		for what, changed := range map[string][2]bool{
			"Listeners":  {!slices.Equal(got.Listeners, was.Listeners), c.listeners},
			"Profiles":   {!cmp.Equal(got.Profiles, was.Profiles), c.profiles},
			"Globals":    {got.Globals != was.Globals, c.globals},
			"Text":       {!bytes.Equal(got.Text, was.Text), c.text},
			"Generation": {got.Generation != was.Generation, c.text},
		} {
			if changed[0] != changed[1] {
				t.Errorf("%s: %s changed: %v, want %v", name, what, changed[0], changed[1])
			}
		}
	}
}

func TestLogPhase(t *testing.T) {
	m := &model.Model{Settings: testSettings(), Listeners: []model.Listener{httpListener("0.0.0.0:80")}}
	for name, c := range map[string]struct {
		change func(*Layout)
		want   bool
	}{
		"nobody needs it": {func(*Layout) {}, false},
		"it is kept":      {func(l *Layout) { l.KeepLogPhase = true }, true},
		"an upstream's":   {func(*Layout) { m.Upstreams = []*model.Upstream{{}} }, true},
	} {
		m.Upstreams = nil
		l := testLayout()
		c.change(&l)
		config, err := Render(m, l)
		if err != nil {
			t.Fatal(err)
		}
		if in := bytes.Contains(config.Text, []byte("log_by_lua_block")); in != c.want || config.LogPhase != c.want {
			t.Errorf("%s: in the text %v, told %v", name, in, config.LogPhase)
		}
	}
}

// TestRefusedProfiles: what a profile lacks costs that profile; one that is only kept is left out without a word.
func TestRefusedProfiles(t *testing.T) {
	good := &model.Identity{ID: "0123456789ab", Verify: true, CA: []byte("ca"), Name: "a.test"}
	with := func(change func(*model.Identity)) *model.Identity {
		i := *good
		change(&i)
		return &i
	}
	https := model.Profile{Protocol: model.ProtocolHTTPS, Identity: good.ID}
	fcgi := model.Profile{Protocol: model.ProtocolFastCGI, FastCGI: "0123456789ab"}
	for name, c := range map[string]struct {
		profile  model.Profile
		identity *model.Identity
		fastcgi  *model.FastCGI
		noDir    bool
		want     string
	}{
		"good":                {profile: https, identity: good},
		"missing identity":    {profile: https, want: "is missing"},
		"no folder":           {profile: https, identity: good, noDir: true, want: "no folder"},
		"a wildcard name":     {profile: https, identity: with(func(i *model.Identity) { i.Name = "*.test" }), want: "name"},
		"a name that is none": {profile: https, identity: with(func(i *model.Identity) { i.Name = "a b" }), want: "name"},
		"ciphers":             {profile: https, identity: with(func(i *model.Identity) { i.Ciphers = "A;B" }), want: "cipher"},
		"a version":           {profile: https, identity: with(func(i *model.Identity) { i.Protocols = []string{"SSLv3"} }), want: "TLSv1.2"},
		"an ID":               {profile: model.Profile{Protocol: model.ProtocolGRPCS, Identity: "../x"}, identity: with(func(i *model.Identity) { i.ID = "../x" }), want: "hash"},
		"missing parameters":  {profile: fcgi, want: "are missing"},
		"a parameter":         {profile: fcgi, fastcgi: &model.FastCGI{ID: "0123456789ab", Params: []model.FastCGIParam{{Name: "A", Value: "$x"}}}, want: "variable"},
		"TCP":                 {profile: model.Profile{Protocol: model.ProtocolTCP}, want: "tcp"},
		"no protocol":         {profile: model.Profile{Protocol: "http; evil"}, want: "evil"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &model.Model{Settings: testSettings(), Hosts: []*model.Host{{Name: "a.test", Routes: []*model.Route{routeOf(c.profile)}}}}
			if c.identity != nil {
				m.Identities = []*model.Identity{c.identity}
			}
			if c.fastcgi != nil {
				m.FastCGI = []*model.FastCGI{c.fastcgi}
			}
			l := testLayout()
			if !c.noDir {
				l.TLSDir = "/run/headgate/tls"
			}
			config, err := Render(m, l)
			if err != nil {
				t.Fatal(err)
			}
			why, refused := config.Refused[c.profile.Name()]
			if refused != (c.want != "") || !strings.Contains(why, c.want) || (len(config.Profiles) == 0) != refused {
				t.Errorf("refused %v, profiles %v", config.Refused, config.Profiles)
			}
			l.KeepProfiles, l.KeepIdentities, l.KeepFastCGI = []model.Profile{c.profile}, m.Identities, m.FastCGI
			m.Hosts, m.Identities, m.FastCGI = nil, nil, nil
			kept, err := Render(m, l)
			if err != nil || len(kept.Refused) != 0 || (len(kept.Profiles) == 0) != refused {
				t.Errorf("kept: refused %v, profiles %v, %v", kept.Refused, kept.Profiles, err)
			}
		})
	}
}

// TestFilesOfIdentities: each file that the text names is among the files, once, and no other.
func TestFilesOfIdentities(t *testing.T) {
	m := protocolModel(testSettings())
	l := testLayout()
	l.TLSDir = "/run/headgate/tls"
	config, err := Render(&m, l)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, f := range config.Files {
		paths = append(paths, f.Path)
		if !bytes.Contains(config.Text, []byte(`"`+f.Path+`"`)) {
			t.Errorf("%s is written and not named", f.Path)
		}
	}
	want := []string{"0123456789ab.ca", "abcdef012345.ca", "abcdef012345.key", "abcdef012345.pem"}
	for i := range want {
		want[i] = "/run/headgate/tls/" + want[i]
	}
	if !slices.Equal(paths, want) || bytes.Count(config.Text, []byte(`"/run/headgate/tls/`)) < len(want) {
		t.Errorf("files %v", paths)
	}
	if len(config.Identities) != 3 || len(config.FastCGI) != 1 {
		t.Errorf("%d identities, %d sets of parameters", len(config.Identities), len(config.FastCGI))
	}
}

func TestHSTSIsPartOfGlobalsWithHTTPS(t *testing.T) {
	m := &model.Model{Settings: testSettings(), Listeners: []model.Listener{httpsListener("0.0.0.0:443")}}
	a, err := Render(m, testLayout())
	if err != nil {
		t.Fatal(err)
	}
	m.Settings.HSTS.Preload = true
	b, err := Render(m, testLayout())
	if err != nil {
		t.Fatal(err)
	}
	if a.Globals == b.Globals || !slices.Equal(a.Listeners, b.Listeners) {
		t.Errorf("globals %s and %s, listeners %v and %v", a.Globals, b.Globals, a.Listeners, b.Listeners)
	}
}

func TestLayoutIsChecked(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Layout)
		want   string
	}{
		"relative":            {func(l *Layout) { l.PIDFile = "run/pid" }, "PIDFile"},
		"missing":             {func(l *Layout) { l.TempDir = "" }, "TempDir"},
		"a quote":             {func(l *Layout) { l.ErrorLog = `/a"b` }, "ErrorLog"},
		"a newline":           {func(l *Layout) { l.AccessLog = "/a\nb" }, "AccessLog"},
		"a variable":          {func(l *Layout) { l.StateLog = "/a$b" }, "StateLog"},
		"a semicolon":         {func(l *Layout) { l.LuaDir = "/a;b" }, "LuaDir"},
		"a brace":             {func(l *Layout) { l.Modules = []string{"/a{b"} }, "Modules"},
		"a backslash":         {func(l *Layout) { l.DefaultKey = `/a\b` }, "DefaultKey"},
		"a backtick":          {func(l *Layout) { l.DefaultCertificate = "/a`b" }, "DefaultCertificate"},
		"a long socket":       {func(l *Layout) { l.ControlSocket = "/" + strings.Repeat("a", 100) + "/c" }, "too long"},
		"a bad user":          {func(l *Layout) { l.User = "root; daemon" }, "User"},
		"a bad group":         {func(l *Layout) { l.User, l.Group = "a", "-b" }, "Group"},
		"a bad build":         {func(l *Layout) { l.LuaBuild = "a b" }, "LuaBuild"},
		"no version":          {func(l *Layout) { l.NginxVersion = "" }, "NginxVersion"},
		"a bad version":       {func(l *Layout) { l.NginxVersion = "1.x" }, "NginxVersion"},
		"a pattern without ?": {func(l *Layout) { l.LuaPath = "/usr/share/lua" }, "LuaPath"},
		"a relative pattern":  {func(l *Layout) { l.LuaCPath = "./?.so" }, "LuaCPath"},
		"negative files":      {func(l *Layout) { l.OpenFiles = -1 }, "OpenFiles"},
	} {
		t.Run(name, func(t *testing.T) {
			l := testLayout()
			c.change(&l)
			_, err := Render(&model.Model{Settings: testSettings(), Listeners: []model.Listener{httpsListener("0.0.0.0:443")}}, l)
			if !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for name, change := range map[string]func(*model.Model){
		"state":       func(m *model.Model) { m.Settings.StateMemoryBytes = 1 },
		"connections": func(m *model.Model) { m.Settings.WorkerConnections = 0 },
		"processes":   func(m *model.Model) { m.Settings.WorkerProcesses = -1 },
		"max-age":     func(m *model.Model) { m.Settings.HSTS.MaxAge = -time.Second },
		"proxies":     func(m *model.Model) { m.Settings.TrustedProxies = []netip.Prefix{{}} },
		"listener":    func(m *model.Model) { m.Listeners[0].Address = netip.AddrPort{} },
		"zone":        func(m *model.Model) { m.Listeners[0].Address = netip.MustParseAddrPort("[fe80::1%a;b]:80") },
		"scheme":      func(m *model.Model) { m.Listeners[0].Scheme = "http; evil" },
	} {
		m := &model.Model{Settings: testSettings(), Listeners: []model.Listener{httpListener("0.0.0.0:80")}}
		change(m)
		if _, err := Render(m, testLayout()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzLayoutPath(f *testing.F) {
	for _, s := range []string{"/run/headgate", "/a b", `/a"; daemon on; #`, "/a\\", "/é", "/a\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l := testLayout()
		l.PIDFile, l.StateLog = s, s
		c, err := Render(&model.Model{Settings: testSettings()}, l)
		if err != nil {
			return
		}
		// What was accepted stands in quotes, and nothing in it ends them.
		if !bytes.Contains(c.Text, []byte(`pid "`+s+`";`)) || strings.ContainsAny(s, "\"'\\;{}$`\n\r") {
			t.Errorf("%q was written", s)
		}
	})
}
