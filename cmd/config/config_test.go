package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "headgate.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func compare(t *testing.T, want, got Config) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

// TestGoodValues sets each key to a value that is not its default.
func TestGoodValues(t *testing.T) {
	for _, c := range []struct {
		yaml string
		set  func(*Config)
	}{
		{"", func(*Config) {}},
		{"# nothing but a comment\n", func(*Config) {}},
		{"kubeconfig: /etc/k", func(c *Config) { c.Kubeconfig = "/etc/k" }},
		{"manifests: [/a, /b/]", func(c *Config) { c.Manifests = []string{"/a", "/b"} }},
		{"namespaces: [shop, blog]", func(c *Config) { c.Namespaces = []string{"shop", "blog"} }},
		{"namespaces: []", func(c *Config) { c.Namespaces = []string{} }},
		{"ingressClass: edge", func(c *Config) { c.IngressClass = "edge" }},
		{"controllerNames: [example.com/edge]", func(c *Config) { c.ControllerNames = []string{"example.com/edge"} }},
		{"takeOverIngressNginx: true", func(c *Config) { c.TakeOverIngressNginx = true }},
		{"watchIngressWithoutClass: true", func(c *Config) { c.WatchIngressWithoutClass = true }},
		{"annotationsPrefix: example.com", func(c *Config) { c.AnnotationsPrefix = "example.com" }},
		{`listeners: {http: ["127.0.0.1:8080"]}`, func(c *Config) {
			c.Listeners.HTTP = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8080")}
		}},
		{`listeners: {https: [], http2: false}`, func(c *Config) {
			c.Listeners.HTTPS, c.Listeners.HTTP2 = []netip.AddrPort{}, false
		}},
		{"proxy: {mode: managed, stopWithDaemon: true}", func(c *Config) { c.Proxy.Mode, c.Proxy.StopWithDaemon = Managed, true }},
		{"proxy: {binary: /usr/sbin/nginx}", func(c *Config) { c.Proxy.Binary = "/usr/sbin/nginx" }},
		{"proxy: {modules: [/a/ndk.so, /a/lua.so]}", func(c *Config) { c.Proxy.Modules = []string{"/a/ndk.so", "/a/lua.so"} }},
		{"proxy: {luaPath: \"/a/?.lua;/b/?.lua\", luaCPath: \"/c/?.so\"}", func(c *Config) { c.Proxy.LuaPath, c.Proxy.LuaCPath = "/a/?.lua;/b/?.lua", "/c/?.so" }},
		{"proxy: {user: www-data}", func(c *Config) { c.Proxy.User = "www-data" }},
		{"proxy: {workerProcesses: 4, workerConnections: 1024}", func(c *Config) { c.Proxy.WorkerProcesses, c.Proxy.WorkerConnections = 4, 1024 }},
		{"proxy: {stateMemory: 64MiB}", func(c *Config) { c.Proxy.StateMemory = 64 * MiB }},
		{`trustedProxies: [10.0.0.0/8, "2001:db8::/32"]`, func(c *Config) {
			c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
		}},
		{"useForwardedHeaders: true", func(c *Config) { c.UseForwardedHeaders = true }},
		{"sslRedirect: false", func(c *Config) { c.SSLRedirect = false }},
		{"noTLSRedirectLocations: [/x]", func(c *Config) { c.NoTLSRedirectLocations = []string{"/x"} }},
		{"hsts: {enabled: false, maxAge: 5m, includeSubdomains: false, preload: true}", func(c *Config) {
			c.HSTS = HSTS{MaxAge: Duration(5 * time.Minute), Preload: true}
		}},
		{"defaultCertificate: edge/default-tls", func(c *Config) { c.DefaultCertificate = "edge/default-tls" }},
		{"maxBodySize: 0", func(c *Config) { c.MaxBodySize = 0 }},
		{"maxBodySize: 8MiB", func(c *Config) { c.MaxBodySize = 8 * MiB }},
		{`publish: {addresses: [192.0.2.1, "2001:db8::1", edge.example.com], clearOnStop: true, httpsPort: 8443}`, func(c *Config) {
			c.Publish = Publish{Addresses: []string{"192.0.2.1", "2001:db8::1", "edge.example.com"}, ClearOnStop: true, HTTPSPort: 8443}
		}},
		{"upstreams: {allowLoopback: true, allow: [192.0.2.0/24], deny: [10.96.0.0/12]}", func(c *Config) {
			c.Upstreams.AllowLoopback, c.Upstreams.Allow = true, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			c.Upstreams.Deny = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
		}},
		{"upstreams: {loadBalance: p2c, serviceUpstream: true, connectTimeout: 1ms, sendTimeout: 2m, readTimeout: 576h}", func(c *Config) {
			c.Upstreams.LoadBalance, c.Upstreams.ServiceUpstream = "p2c", true
			c.Upstreams.ConnectTimeout = Duration(time.Millisecond)
			c.Upstreams.SendTimeout, c.Upstreams.ReadTimeout = Duration(2*time.Minute), Duration(576*time.Hour)
		}},
		{"upstreams: {nextUpstream: off, nextUpstreamTries: 0, nextUpstreamTimeout: 10s, retryBudget: off}", func(c *Config) {
			c.Upstreams.NextUpstream, c.Upstreams.NextUpstreamTries = "off", 0
			c.Upstreams.NextUpstreamTimeout, c.Upstreams.RetryBudget = Duration(10*time.Second), "off"
		}},
		{"upstreams: {eject: false, ejectFailures: 5, ejectTime: 1s, ejectMaxTime: 1s, retryBudget: 5%}", func(c *Config) {
			c.Upstreams.Eject, c.Upstreams.EjectFailures, c.Upstreams.RetryBudget = false, 5, "5%"
			c.Upstreams.EjectTime, c.Upstreams.EjectMaxTime = Duration(time.Second), Duration(time.Second)
		}},
		{"upstreams: {strictAnswers: true}", func(c *Config) { c.Upstreams.StrictAnswers = true }},
		{"metrics: {requests: false}", func(c *Config) { c.Metrics.Requests = false }},
		{"status: {enabled: false, leaseNamespace: edge, leaseName: writer}", func(c *Config) {
			c.Status = Status{LeaseNamespace: "edge", LeaseName: "writer"}
		}},
		{`dns: {servers: [10.0.0.53, "[2001:db8::53]:5353"]}`, func(c *Config) {
			c.DNS.Servers = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.53:53"), netip.MustParseAddrPort("[2001:db8::53]:5353")}
		}},
		{`metrics: {listen: ""}`, func(c *Config) { c.Metrics.Listen = "" }},
		{`metrics: {listen: "[::1]:9000"}`, func(c *Config) { c.Metrics.Listen = "[::1]:9000" }},
		{"stateDir: /srv/state\nruntimeDir: /srv/run", func(c *Config) { c.StateDir, c.RuntimeDir = "/srv/state", "/srv/run" }},
		{"log: {level: debug, format: json}", func(c *Config) { c.Log = Log{Level: Debug, Format: JSON} }},
		{"reconcile: {window: 1ms, maxDelay: 1s}", func(c *Config) {
			c.Reconcile = Reconcile{Window: Duration(time.Millisecond), MaxDelay: Duration(time.Second)}
		}},
	} {
		t.Run(c.yaml, func(t *testing.T) {
			want := Default()
			c.set(&want)
			got, err := Load(write(t, c.yaml), nil, NoSource)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, want, got)
		})
	}
}

// TestBadValues holds the whole message: it is what the administrator has to go by.
func TestBadValues(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"manifest: [/a]", "F:1: manifest: unknown key: did you mean manifests?"},
		{"INGRESSCLASS: x", "F:1: INGRESSCLASS: unknown key: write ingressClass"},
		{"mode: managed", "F:1: mode: unknown key: write proxy.mode"},
		{"proxy.mode: managed", "F:1: proxy.mode: unknown key: write proxy.mode"},
		{"\nproxy:\n  mdoe: managed", "F:3: proxy.mdoe: unknown key: did you mean proxy.mode?"},
		{"xyzzy: 1", "F:1: xyzzy: unknown key: 'headgate run --help' lists the keys"},
		{"sslRedirect: true\nsslRedirect: false", "F:2: sslRedirect: written twice (first in line 1): keep one"},
		{"a: b: c", "F:1: not YAML: mapping values are not allowed in this context"},
		{"manifests: [m]\nproxy:\n\tmode: managed\n", "F:3: not YAML: found character that cannot start any token"},
		{"stateDir: /s\nproxy: {mode: managed\nlog: {}\n", "F:2: not YAML: did not find expected ',' or '}'"},
		{"a: [", "F:1: not YAML: did not find expected node content"},
		{"stateDir: /s\nproxy: mode: managed\n", "F:2: not YAML: mapping values are not allowed in this context"},
		{"sslRedirect: true\n---\nsslRedirect: false", "F:2: more than one YAML document: keep one, without ---"},
		{"- a", "F:1: a list where keys are expected: write {kubeconfig: …}"},
		{"proxy: managed", `F:1: proxy: "managed" where keys are expected: write {mode: …}`},
		{"manifests: /a", `F:1: manifests: "/a" where a list is expected: write [/a]`},
		{"manifests:", "F:1: manifests: no value: remove the key to get the default, or write [] or a list"},
		{"manifests: [\"\"]", "F:1: manifests[0]: the path is empty: write a folder"},
		{"manifests: [/a, /a/]", `F:1: manifests[1]: "/a/" is listed twice: keep one`},
		{"kubeconfig: 5", `F:1: kubeconfig: "5" where text (in quotes, such as "x") is expected`},
		{"kubeconfig: [a]", `F:1: kubeconfig: a list where text (in quotes, such as "x") is expected`},
		{"namespaces: [Shop]", `F:1: namespaces[0]: "Shop" is not a namespace: write a DNS label such as shop`},
		{"ingressClass: \"\"", `F:1: ingressClass: "" is not a class name: write letters, digits, '-', '_' and '.', such as headgate`},
		{"controllerNames: []", "F:1: controllerNames: the list is empty: write [headgate.io/ingress] or leave out the key"},
		{"controllerNames: [headgate]", `F:1: controllerNames[0]: "headgate" is not a controller name: write domain/path, such as headgate.io/ingress`},
		{"annotationsPrefix: a.io/", `F:1: annotationsPrefix: "a.io/" is not a DNS name: write one without a slash, such as nginx.ingress.kubernetes.io`},
		{"sslRedirect: \"yes\"", `F:1: sslRedirect: "yes" where true or false is expected`},
		{"listeners: {http: [], https: []}", "F:1: listeners: both lists are empty: write at least one address, such as http: [\"0.0.0.0:80\"]"},
		{"listeners: {http: [\":80\"]}", `F:1: listeners.http[0]: ":80" lacks the address: write 0.0.0.0:80 for IPv4, [::]:80 for IPv6`},
		{"listeners: {http: [\"localhost:80\"]}", `F:1: listeners.http[0]: "localhost:80" is not address:port: write one such as 0.0.0.0:80 or [::]:80`},
		{"listeners: {http: [\"127.0.0.1:70000\"]}", `F:1: listeners.http[0]: "127.0.0.1:70000" is not address:port: write one such as 0.0.0.0:80 or [::]:80`},
		{"listeners: {http: [127.0.0.1]}", "F:1: listeners.http[0]: 127.0.0.1 lacks a port from 1 to 65535: write 127.0.0.1:8080"},
		{"listeners: {http: [\"0.0.0.0:443\"]}", "F:1: listeners.https[0]: 0.0.0.0:443 stands in listeners.http[0] already: keep one"},
		{"listeners: {http: [\"[fe80::1%eth0]:80\"]}", `F:1: listeners.http[0]: "[fe80::1%eth0]:80" has a zone: write an address without %`},
		{"proxy: {mode: auto}", `F:1: proxy.mode: "auto" is not known: write external or managed`},
		{"proxy: {stopWithDaemon: true}", "F:1: proxy.stopWithDaemon: true needs proxy.mode managed: an external proxy is stopped by systemd"},
		{"proxy: {binary: nginx}", `F:1: proxy.binary: "nginx" is not an absolute path of letters, digits and ._+-: write one such as /usr/sbin/nginx`},
		{"proxy: {modules: [\"/a;b.so\"]}", `F:1: proxy.modules[0]: "/a;b.so" is not an absolute path of letters, digits and ._+-: write one such as /usr/lib/nginx/modules/ndk_http_module.so`},
		{"proxy: {luaPath: \"/a b\"}", `F:1: proxy.luaPath: "/a b" is not a Lua search path: write patterns such as /usr/share/lua/5.1/?.lua, with ';' between them`},
		{"proxy: {luaCPath: \"/a'\"}", `F:1: proxy.luaCPath: "/a'" is not a Lua search path: write patterns such as /usr/share/lua/5.1/?.lua, with ';' between them`},
		{"proxy: {user: \"a b\"}", `F:1: proxy.user: "a b" is not a user name: write one such as www-data`},
		{"proxy: {workerProcesses: auto}", `F:1: proxy.workerProcesses: "auto" where a whole number is expected`},
		{"proxy: {workerProcesses: -1}", "F:1: proxy.workerProcesses: -1 is out of range: write a value from 0 to 1024"},
		{"proxy: {workerConnections: 10}", "F:1: proxy.workerConnections: 10 is out of range: write a value from 64 to 1048576"},
		{"proxy: {stateMemory: 32MB}", `F:1: proxy.stateMemory: "32MB" is not a size: write a whole number and KiB, MiB or GiB, such as 32MiB`},
		{"proxy: {stateMemory: 33554432}", `F:1: proxy.stateMemory: "33554432" where a size such as 32MiB is expected`},
		{"proxy: {stateMemory: 1KiB}", "F:1: proxy.stateMemory: 1KiB is out of range: write a value from 1MiB to 16GiB"},
		{"trustedProxies:\n- 10.0.0.0/8\n- 10.0.0.1/8", `F:3: trustedProxies[1]: "10.0.0.1/8" has bits beyond its length: write 10.0.0.0/8 for the network, or 10.0.0.1/32 for the address`},
		{"trustedProxies: [10.0.0.1]", `F:1: trustedProxies[0]: "10.0.0.1" is an address: write 10.0.0.1/32 for this one, or a network such as 10.0.0.0/8`},
		{"trustedProxies: [all]", `F:1: trustedProxies[0]: "all" is not a CIDR: write one such as 10.0.0.0/8 or 2001:db8::/32`},
		{"trustedProxies: [\"::ffff:10.0.0.0/104\"]", `F:1: trustedProxies[0]: "::ffff:10.0.0.0/104" mixes IPv4 and IPv6: write the IPv4 network`},
		{"useForwardedHeaders: 1", `F:1: useForwardedHeaders: "1" where true or false is expected`},
		{"noTLSRedirectLocations: [x]", `F:1: noTLSRedirectLocations[0]: "x" is not a path prefix: write one that begins with '/' and has no spaces`},
		{"hsts: {maxAge: 31536000}", `F:1: hsts.maxAge: "31536000" where a duration such as 20ms or 60s is expected`},
		{"hsts: {maxAge: 1500ms}", "F:1: hsts.maxAge: 1.5s is not in whole seconds (RFC 6797): write one such as 31536000s"},
		{"hsts: {maxAge: -1s}", `F:1: hsts.maxAge: "-1s" is not a duration: write a number and ms, s, m or h, such as 20ms`},
		{"defaultCertificate: tls", `F:1: defaultCertificate: "tls" does not name a Secret: write namespace/name`},
		{"maxBodySize: 1m", `F:1: maxBodySize: "1m" is not a size: write a whole number and KiB, MiB or GiB, such as 32MiB`},
		{"publish: {addresses: [\"a:80\"]}", `F:1: publish.addresses[0]: "a:80" is not an IP address or a DNS name in lower case, without a port: write one such as 192.0.2.10`},
		{"publish: {addresses: [0.0.0.0]}", `F:1: publish.addresses[0]: "0.0.0.0" is no address that clients can reach: write the one they use`},
		{"publish: {httpsPort: 0}", "F:1: publish.httpsPort: 0 is out of range: write a value from 1 to 65535"},
		{"upstreams: {allow: [x]}", `F:1: upstreams.allow[0]: "x" is not a CIDR: write one such as 10.0.0.0/8 or 2001:db8::/32`},
		{"upstreams: {loadBalance: ip_hash}", `F:1: upstreams.loadBalance: "ip_hash" is not known: write round_robin or least_conn or p2c or ewma or random`},
		{"upstreams: {readTimeout: 0s}", "F:1: upstreams.readTimeout: 0s is out of range: write a value from 1ms to 2073600s"},
		{"upstreams: {nextUpstream: sometimes}", `F:1: upstreams.nextUpstream: "sometimes" is no condition; write words such as "error timeout http_502", or "off"`},
		{"upstreams: {nextUpstreamTries: 101}", "F:1: upstreams.nextUpstreamTries: 101 is out of range: write a value from 0 to 100"},
		{"upstreams: {retryBudget: lots}", `F:1: upstreams.retryBudget: "lots" is no budget; write a percentage from "1%" to "100%", or "off"`},
		{"upstreams: {ejectTime: 10m}", "F:1: upstreams.ejectMaxTime: 300s is out of range: write a value from 600s to 86400s"},
		{"status: {leaseNamespace: \"\"}", `F:1: status.leaseNamespace: "" is not a namespace: write a DNS label such as headgate-system`},
		{"status: {leaseName: A}", `F:1: status.leaseName: "A" is not a name of a Lease: write a DNS name such as edge-status`},
		{"dns: {servers: [ns.example.com]}", `F:1: dns.servers[0]: "ns.example.com" is not address:port: write one such as 0.0.0.0:80 or [::]:80`},
		{"healthChecks: {concurrency: 0}", "F:1: healthChecks.concurrency: 0 is out of range: write a value from 1 to 65536"},
		{"lossGuard: {share: 101}", "F:1: lossGuard.share: 101 is out of range: write a value from 1 to 100"},
		{"lossGuard: {minimum: 0}", "F:1: lossGuard.minimum: 0 is out of range: write a value from 1 to 1000000"},
		{"lossGuard: {window: 1ms}", "F:1: lossGuard.window: 1ms is out of range: write a value from 100ms to 600s"},
		{"lossGuard: {hold: 1h}", "F:1: lossGuard.hold: 3600s is out of range: write a value from 1s to 600s"},
		{"lossGuard: {maxAge: 1s}", "F:1: lossGuard.maxAge: 1s is out of range: write a value from 60s to 31536000s"},
		{"metrics: {listen: \":9790\"}", `F:1: metrics.listen: ":9790" is not address:port: write 127.0.0.1:9790, or "" to turn metrics off`},
		{"metrics: {listen: \"0.0.0.0:9790\"}", "F:1: metrics.listen: 0.0.0.0:9790 is not a loopback address: write 127.0.0.1:9790; to scrape from elsewhere put a proxy with authentication in front"},
		{"stateDir: var", `F:1: stateDir: "var" is not an absolute path of letters, digits and ._+-: write one such as /var/lib/headgate`},
		{"stateDir: /x/\nruntimeDir: /x", "F:2: runtimeDir: it is the same folder as stateDir: write another; one survives a reboot, the other must not"},
		{"stateDir: /", "F:1: stateDir: the root folder cannot be used: write a folder of its own"},
		{"runtimeDir: /" + strings.Repeat("r", 80), "F:1: runtimeDir: the path has 81 bytes, and the sockets in it leave room for 80: write a shorter one"},
		{"log: {level: verbose}", `F:1: log.level: "verbose" is not known: write debug or info or warn or error`},
		{"log: {format: xml}", `F:1: log.format: "xml" is not known: write text or json or journal`},
		{"reconcile: {window: 2s, maxDelay: 5s}", "F:1: reconcile.window: 2s is out of range: write a value from 1ms to 1s"},
		{"reconcile: {window: 0s}", "F:1: reconcile.window: 0s is out of range: write a value from 1ms to 1s"},
		{"reconcile: {maxDelay: 1ms}", "F:1: reconcile.maxDelay: 1ms is out of range: write a value from 20ms to 10s"},
		{"sslRedirect: 1\nhttp: x", "F:1: sslRedirect: \"1\" where true or false is expected\nF:2: http: unknown key: write listeners.http"},
	} {
		t.Run(c.yaml, func(t *testing.T) {
			file := write(t, c.yaml)
			_, err := Load(file, nil, NoSource)
			if err == nil {
				t.Fatal("no error")
			}
			if got := strings.ReplaceAll(err.Error(), file, "F"); got != c.want {
				t.Errorf("error:\n%s\nwant:\n%s", got, c.want)
			}
		})
	}
}

// TestOrder: a flag wins over a variable, a variable over the file, the file over the default.
func TestOrder(t *testing.T) {
	file := write(t, "ingressClass: file\nproxy: {workerProcesses: 1, user: file}\ntrustedProxies: [10.0.0.0/8]\n")
	t.Setenv("HEADGATE_INGRESSCLASS", "variable")
	t.Setenv("HEADGATE_PROXY_WORKERPROCESSES", "2")
	t.Setenv("HEADGATE_TRUSTEDPROXIES", "192.0.2.0/24, 198.51.100.0/24")
	t.Setenv("HEADGATE_HSTS_MAXAGE", "5s")
	t.Setenv("HEADGATE_METRICS_LISTEN", "")
	t.Setenv("HEADGATE_LISTENERS_HTTPS", "")
	t.Setenv("HEADGATE_TEST_ANYTHING", "is the tests' own affair")
	got, err := Load(file, []Override{
		{"--set", "proxy.workerProcesses", "3"},
		{"--manifests", "manifests", []string{"/with,comma", "/b"}},
		{"--set", "maxBodySize", "2MiB"},
	}, Source)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.IngressClass = "variable"
	want.Proxy.WorkerProcesses, want.Proxy.User = 3, "file"
	want.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24")}
	want.HSTS.MaxAge = Duration(5 * time.Second)
	want.Metrics.Listen = ""
	want.Listeners.HTTPS = []netip.AddrPort{}
	want.Manifests = []string{"/with,comma", "/b"}
	want.MaxBodySize = 2 * MiB
	compare(t, want, got)
}

func TestPlaces(t *testing.T) {
	for name, c := range map[string]struct {
		env, key, value, want string
	}{
		"bad variable":     {env: "HEADGATE_PROXY_MODE", value: "auto", want: `HEADGATE_PROXY_MODE: proxy.mode: "auto" is not known: write external or managed`},
		"number":           {env: "HEADGATE_PROXY_WORKERPROCESSES", value: "", want: `HEADGATE_PROXY_WORKERPROCESSES: proxy.workerProcesses: "" is not a number: write a whole number`},
		"boolean":          {env: "HEADGATE_SSLREDIRECT", value: "yes", want: `HEADGATE_SSLREDIRECT: sslRedirect: "yes" is neither true nor false`},
		"entry of a list":  {env: "HEADGATE_TRUSTEDPROXIES", value: "10.0.0.0/8,x", want: `HEADGATE_TRUSTEDPROXIES: trustedProxies[1]: "x" is not a CIDR: write one such as 10.0.0.0/8 or 2001:db8::/32`},
		"unknown variable": {env: "HEADGATE_PROXYMODE", value: "x", want: "environment: HEADGATE_PROXYMODE: unknown variable: did you mean HEADGATE_PROXY_MODE?"},
		"flag":             {key: "log.level", value: "loud", want: `--set: log.level: "loud" is not known: write debug or info or warn or error`},
		"unknown --set":    {key: "proxy", value: "x", want: "--set: proxy: unknown key: 'headgate run --help' lists the keys"},
	} {
		t.Run(name, func(t *testing.T) {
			var overrides []Override
			if c.env != "" {
				t.Setenv(c.env, c.value)
			} else {
				overrides = []Override{{"--set", c.key, c.value}}
			}
			_, err := Load(write(t, ""), overrides, NoSource)
			if err == nil || err.Error() != c.want {
				t.Errorf("error: %v\nwant:  %s", err, c.want)
			}
		})
	}
}

func TestSources(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no.yaml")
	if _, err := Load(missing, nil, Source); err == nil || !strings.Contains(err.Error(), "does not exist: create it") {
		t.Errorf("missing --config: %v", err)
	}
	if _, err := Load(write(t, ""), nil, Source); err == nil || !strings.Contains(err.Error(), "no source of objects: write \"kubeconfig: FILE\"") {
		t.Errorf("neither: %v", err)
	}
	both := write(t, "kubeconfig: /k\nmanifests: [/m]")
	_, err := Load(both, nil, Source)
	want := both + ":2: manifests: kubeconfig is set as well, and there is one source only: remove kubeconfig (" + both + ":1) or manifests (" + both + ":2)"
	if err == nil || err.Error() != want {
		t.Errorf("both: %v\nwant: %s", err, want)
	}
	filtered := write(t, "manifests: [/m]\nnamespaces: [shop]")
	if _, err := Load(filtered, nil, Source); err == nil || !strings.HasPrefix(err.Error(), filtered+":2: namespaces: ") {
		t.Errorf("namespaces of manifests: %v", err)
	}
	if _, err := Load(t.TempDir(), nil, Source); err == nil {
		t.Error("a folder as configuration file: no error")
	}
	if _, err := os.Stat(DefaultFile); err == nil {
		// Only an edge host has it, and there the default file is what it is.
		t.Skipf("%s exists on this machine: the rest needs it to be missing", DefaultFile)
	}
	if _, err := Load("", nil, Source); err == nil || !strings.Contains(err.Error(), DefaultFile+" does not exist: give --kubeconfig") {
		t.Errorf("no default file, no source: %v", err)
	}
	if _, err := Load("", []Override{{"--manifests", "manifests", []string{"/m"}}}, Source); err != nil {
		t.Errorf("no default file, but --manifests: %v", err)
	}
}

// TestKeys holds the table for people equal to the struct that is decoded.
func TestKeys(t *testing.T) {
	var fields []string
	var walk func(reflect.Type, string)
	walk = func(section reflect.Type, prefix string) {
		for i := range section.NumField() {
			f := section.Field(i)
			name := prefix + f.Tag.Get("mapstructure")
			if isSection(f.Type) {
				walk(f.Type, name+".")
				continue
			}
			fields = append(fields, name)
		}
	}
	walk(reflect.TypeFor[Config](), "")
	if diff := cmp.Diff(fields, keyNames()); diff != "" {
		t.Errorf("fields of Config (-) and Keys (+):\n%s", diff)
	}
	for _, k := range Keys() {
		if k.Doc == "" || k.Values == "" {
			t.Errorf("%s: Doc or Values is empty", k.Name)
		}
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "1B": 1, "1KiB": KiB, "1536KiB": 1536 * KiB, "32MiB": 32 * MiB, "2GiB": 2 * GiB} {
		got, err := ParseSize(text)
		if err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
		if got.String() != text {
			t.Errorf("%q is printed as %q", text, got)
		}
	}
	for _, text := range []string{"", "1", "-1MiB", "+1MiB", "1.5GiB", "1 MiB", "1mib", "MiB", "9223372036854775807GiB", "8589934592GiB"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %d; want an error", text, got)
		}
	}
}

// FuzzLoad: any file gives a configuration that holds its ranges, or an error that says something; never a panic.
func FuzzLoad(f *testing.F) {
	for _, k := range Keys() {
		section, leaf, nested := strings.Cut(k.Name, ".")
		if nested {
			f.Add(section + ": {" + leaf + ": " + k.Example + "}")
		} else {
			f.Add(k.Name + ": " + k.Example)
		}
	}
	f.Add("a: &a [*a]")
	f.Add("<<: {kubeconfig: x}")
	f.Add("? [a]\n: b")
	f.Add("proxy: &p {mode: managed}\nhsts: *p")
	f.Add("manifests: !!binary aGk=")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Load(write(t, text), nil, NoSource)
		if err != nil {
			if strings.TrimSpace(err.Error()) == "" {
				t.Error("an error without words")
			}
			return
		}
		if again := validate(&c); len(again) > 0 {
			t.Errorf("accepted, yet: %v", again)
		}
	})
}

// FuzzSize: what is read is printed so that it reads the same again.
func FuzzSize(f *testing.F) {
	for _, seed := range []string{"0", "1B", "32MiB", "1m", "9223372036854775807B"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		size, err := ParseSize(text)
		if err != nil {
			return
		}
		if again, err := ParseSize(size.String()); err != nil || again != size {
			t.Errorf("%q → %s → %d, %v", text, size, again, err)
		}
	})
}

// TestAHostWithoutIPv6 leaves out what nobody wrote, and refuses what somebody did.
func TestAHostWithoutIPv6(t *testing.T) {
	host := Host{NoIPv6: true}
	c, err := host.Load(write(t, ""), nil, NoSource)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Listeners.HTTP, want.Listeners.HTTPS = want.Listeners.HTTP[:1], want.Listeners.HTTPS[:1]
	compare(t, want, c)

	for _, c := range []struct{ yaml, want string }{
		{`listeners: {http: ["[::]:80"]}`, ":1: listeners.http[0]: [::]:80 is IPv6, which this host's kernel does not have"},
		{`listeners: {https: ["0.0.0.0:443", "[2001:db8::1]:443"]}`, ":1: listeners.https[1]: [2001:db8::1]:443 is IPv6"},
	} {
		file := write(t, c.yaml)
		if _, err := host.Load(file, nil, NoSource); err == nil || !strings.HasPrefix(err.Error(), file+c.want) {
			t.Errorf("%s: %v", c.yaml, err)
		}
		if _, err := Load(file, nil, NoSource); err != nil {
			t.Errorf("%s on a host with IPv6: %v", c.yaml, err)
		}
	}
}

// TestAllMistakesAtOnce: those of the file's shape, of values and of ranges, and none that only follows from another.
func TestFieldErrorNamesTheKeyOnce(t *testing.T) {
	for _, c := range []struct{ place, key, want string }{
		{"--manifests", "manifests", "--manifests: m"},
		{"--state-dir", "stateDir", "--state-dir: m"},
		{"--set", "stateDir", "--set: stateDir: m"},
		{"--proxy-mode", "proxy.mode", "--proxy-mode: proxy.mode: m"},
		{"--manifests", "manifests[1]", "--manifests: manifests[1]: m"},
		{"HEADGATE_STATEDIR", "stateDir", "HEADGATE_STATEDIR: stateDir: m"},
		{"f.yaml:3", "stateDir", "f.yaml:3: stateDir: m"},
		{"", "stateDir", "stateDir: m"},
		{"f.yaml", "", "f.yaml: m"},
	} {
		if got := (&FieldError{Place: c.place, Key: c.key, Message: "m"}).Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	file := write(t, "typo: 1\nproxy: {mode: auto, workerConnections: many}\nlisteners: {http: [foo], https: []}\nstateDir: here\n")
	_, err := Load(file, []Override{{Flag: "--manifests", Key: "manifests", Value: []string{"m"}}}, Source)
	if err == nil {
		t.Fatal("no error")
	}
	var got []string
	for line := range strings.Lines(err.Error()) {
		place, message, _ := strings.Cut(strings.TrimPrefix(line, file+":"), ": ")
		key, _, _ := strings.Cut(message, ": ")
		got = append(got, place+" "+key)
	}
	want := []string{"1 typo", "2 proxy.workerConnections", "3 listeners.http[0]", "2 proxy.mode", "4 stateDir"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestChangesNameTheKeys(t *testing.T) {
	old, next := Default(), Default()
	if got := old.Changes(next); len(got) != 0 {
		t.Errorf("%v changed", got)
	}
	next.Kubeconfig, next.Log.Level, next.VIP.Interface = "/other", Debug, "eth0"
	next.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	next.Upstreams.EjectFailures = 7
	var names []string
	for _, k := range old.Changes(next) {
		names = append(names, k.Name+" by "+string(k.Change))
	}
	want := []string{
		"kubeconfig by restart", "trustedProxies by reload", "upstreams.ejectFailures by reload",
		"vip.interface by restart of headgate-vip", "log.level by reload",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	got := old.Reloaded(next)
	if left := got.Changes(next); len(left) != 1 || left[0].Name != "kubeconfig" {
		t.Errorf("after a reload %v differ", left)
	}
	if got.Kubeconfig != "" || got.Log.Level != Debug || len(old.TrustedProxies) != 0 {
		t.Errorf("%+v", got)
	}
	for _, k := range Keys() {
		switch k.Change {
		case ByReload, ByRestart, ByVIPRestart:
		default:
			t.Errorf("%s: Change is %q", k.Name, k.Change)
		}
		_ = old.Value(k.Name) // panics where the key has no field
	}
}

func TestRuntimeDirIsFoundInARefusedFile(t *testing.T) {
	for _, c := range []struct {
		text      string
		overrides []Override
		want      string
		found     bool
	}{
		{"runtimeDir: /run/x\nlog: {level: loud}\n", nil, "/run/x", true},
		{"log: {level: loud}\n", nil, "/run/headgate", true},
		{"no: [yaml", nil, "/run/headgate", true},
		{"runtimeDir: /run/x\n", []Override{{Flag: "--runtime-dir", Key: "runtimeDir", Value: "/run/y"}}, "/run/y", true},
		{"runtimeDir: relative\n", nil, "", false},
		{"runtimeDir: [list]\n", nil, "/run/headgate", true},
	} {
		got, found := RuntimeDirOf(write(t, c.text), c.overrides)
		if got != c.want || found != c.found {
			t.Errorf("%q: %q, %v", c.text, got, found)
		}
	}
	if got, found := RuntimeDirOf("", nil); got != "/run/headgate" || !found {
		t.Errorf("no file: %q, %v", got, found)
	}
	if got, found := StateDirOf(write(t, "stateDir: /srv/state\nruntimeDir: /run/x\ntypo: 1\n"), nil); got != "/srv/state" || !found {
		t.Errorf("stateDir: %q, %v", got, found)
	}
	if got, found := StateDirOf("", []Override{{Flag: "--state-dir", Key: "stateDir", Value: "relative"}}); found {
		t.Errorf("a relative stateDir: %q", got)
	}
}
