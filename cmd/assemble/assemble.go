// Package assemble translates the administrator's configuration into what each room wants to be told: paths,
// settings of the model, options of the build, the layout of nginx.conf; and what the rooms tell of themselves
// into one status. It decides where things lie and nothing else; cmd/headgate hands its results around.
package assemble

import (
	"path/filepath"
	"strings"
	"time"

	"headgate/cmd/config"
	"headgate/gateway/annotations"
	"headgate/gateway/build"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/snapshot"
	"headgate/sync/kubewatch"
	"headgate/sync/lossguard"
	"headgate/sync/manifests"
)

// Paths are the files of one daemon and its proxy (docs/design/0001-seams.md, Directories).
type Paths struct {
	StateLog string // pushed state; holds keys
	Applied  string // which nginx.conf was applied last
	Guard    string // how much was served
	LastGood string // versions that are served in place of a newer, broken one

	Conf          string // nginx.conf
	PID           string
	Temp          string // folder for bodies too large for memory
	ProxyDir      string // 0750 folder of the proxy's sockets
	ControlSocket string
	ErrorLog      string // a file, or "stderr"
	Output        string // standard output and error of a managed nginx
	Lua           string // folder of the builds of the Lua files
	TLS           string // 0750 folder of the certificates that nginx shows to, and verifies, peers with
}

// PathsOf places everything below the two folders of c.
func PathsOf(c config.Config) Paths {
	run := func(name ...string) string { return filepath.Join(append([]string{c.RuntimeDir}, name...)...) }
	p := Paths{
		StateLog: filepath.Join(c.StateDir, "state.log"),
		Applied:  filepath.Join(c.StateDir, "applied.json"),
		LastGood: filepath.Join(c.StateDir, "last-good.json"),
		Guard:    filepath.Join(c.StateDir, "lossguard.json"),
		Conf:     run("nginx.conf"), PID: run("nginx.pid"), Temp: run("temp"),
		ProxyDir: run("proxy"), ControlSocket: run("proxy", "control.sock"),
		ErrorLog: run("error.log"), Output: run("nginx.out"),
		Lua: run("lua"), TLS: run("tls"),
	}
	if c.Proxy.Mode == config.External {
		p.ErrorLog = "stderr" // which systemd leads to the journal of the proxy's own unit
		p.PID = run("proxy", "nginx.pid")
	}
	return p
}

// Settings are those of the whole proxy.
func Settings(c config.Config) model.Settings {
	return model.Settings{
		WorkerProcesses:     c.Proxy.WorkerProcesses,
		WorkerConnections:   c.Proxy.WorkerConnections,
		StateMemoryBytes:    int64(c.Proxy.StateMemory),
		TrustedProxies:      c.TrustedProxies,
		UseForwardedHeaders: c.UseForwardedHeaders,
		HSTS: model.HSTS{
			Enabled: c.HSTS.Enabled, MaxAge: time.Duration(c.HSTS.MaxAge),
			IncludeSubdomains: c.HSTS.IncludeSubdomains, Preload: c.HSTS.Preload,
		},
		RedirectPort:          uint16(c.Publish.HTTPSPort), //nolint:gosec // config keeps it within 1–65535
		NoTLSRedirectPrefixes: c.NoTLSRedirectLocations,
		RequestMetrics:        c.Metrics.Requests && c.Metrics.Listen != "",
		StrictAnswers:         c.Upstreams.StrictAnswers,
		DefaultCertificate:    model.CertificateID(c.DefaultCertificate),
		DefaultProfile:        profile(c.Upstreams),
	}
}

// profile is that of routes that ask for nothing else. config has parsed what stands in u.
func profile(u config.Upstreams) model.Profile {
	on, nonIdempotent, err := annotations.ParseNextUpstream(u.NextUpstream)
	if err != nil || on == model.RetryError|model.RetryTimeout {
		on = 0
	}
	return model.Profile{RetryOn: on, RetryNonIdempotent: nonIdempotent}
}

// defaults are what the configuration says for upstreams and routes; what is the model's default is left zero, so that
// it takes no room in the state.
func defaults(u config.Upstreams) build.Defaults {
	d := build.Defaults{
		Algorithm:       model.Algorithm(u.LoadBalance),
		ServiceUpstream: u.ServiceUpstream,
		Timeouts: model.Timeouts{
			Connect: time.Duration(u.ConnectTimeout), Send: time.Duration(u.SendTimeout), Read: time.Duration(u.ReadTimeout),
		},
		Retry: model.Retry{Tries: u.NextUpstreamTries, Total: time.Duration(u.NextUpstreamTimeout)},
	}
	if u.NextUpstreamTries == 0 {
		d.Retry.Tries = annotations.UnlimitedTries
	}
	usual := config.Default().Upstreams
	if budget, err := annotations.ParseRetryBudget(u.RetryBudget); err == nil && u.RetryBudget != usual.RetryBudget {
		d.Budget = budget
	}
	if !u.Eject {
		d.Ejection.Off = true
		return d
	}
	if u.EjectFailures != usual.EjectFailures {
		d.Ejection.Failures = uint16(u.EjectFailures) //nolint:gosec // config keeps it within 1–1000
	}
	if u.EjectTime != usual.EjectTime || u.EjectMaxTime != usual.EjectMaxTime {
		d.Ejection.Base, d.Ejection.Max = time.Duration(u.EjectTime), time.Duration(u.EjectMaxTime)
	}
	return d
}

// Listeners are the addresses to accept on.
func Listeners(c config.Config) []model.Listener {
	var all []model.Listener
	for _, a := range c.Listeners.HTTP {
		all = append(all, model.Listener{Address: a, Scheme: model.HTTP})
	}
	for _, a := range c.Listeners.HTTPS {
		all = append(all, model.Listener{Address: a, Scheme: model.HTTPS, HTTP2: c.Listeners.HTTP2})
	}
	return all
}

// LossGuard says which loss is absurd.
func LossGuard(c config.Config) lossguard.Limits {
	g := c.LossGuard
	return lossguard.Limits{Share: g.Share, Minimum: g.Minimum, Window: time.Duration(g.Window), Hold: time.Duration(g.Hold)}
}

// Identity names what is read: what was served of something else says nothing about it.
func Identity(c config.Config) string {
	if c.Kubeconfig != "" {
		return "cluster " + c.Kubeconfig + " " + strings.Join(c.Namespaces, ",")
	}
	return "manifests " + strings.Join(c.Manifests, ",")
}

// FolderSigns says how folders of manifests are, in the words of the guard.
func FolderSigns(h manifests.Health) lossguard.Signs {
	return lossguard.Signs{Healthy: h.Healthy, Trouble: h.Troubled, What: h.Trouble, Listed: h.Listed}
}

// ClusterSigns says how a cluster is, in the words of the guard.
func ClusterSigns(h kubewatch.Health) lossguard.Signs {
	return lossguard.Signs{Healthy: h.Healthy && h.Kubeconfig == "", Elsewhere: true, Trouble: h.Troubled, What: h.Trouble, Listed: h.Listed}
}

// Secrets are those that are read whatever the namespaces: the default certificate.
func Secrets(c config.Config) []snapshot.Key {
	namespace, name, found := strings.Cut(c.DefaultCertificate, "/")
	if !found {
		return nil
	}
	return []snapshot.Key{{Namespace: namespace, Name: name}}
}

// Build gives the options of the translation. The addresses that are refused because they are the host's own
// or the API server's change, and are not among them: Builder.RefuseAddresses.
func Build(c config.Config) build.Options {
	return build.Options{
		IngressClass:        c.IngressClass,
		ControllerNames:     c.ControllerNames,
		TakeOver:            c.TakeOverIngressNginx,
		WatchWithoutClass:   c.WatchIngressWithoutClass,
		AnnotationPrefix:    c.AnnotationsPrefix,
		SSLRedirect:         c.SSLRedirect,
		AllowLoopback:       c.Upstreams.AllowLoopback,
		Deny:                c.Upstreams.Deny,
		Allow:               c.Upstreams.Allow,
		Settings:            Settings(c),
		Listeners:           Listeners(c),
		DefaultMaxBodyBytes: int64(c.MaxBodySize),
		Defaults:            defaults(c.Upstreams),
		ProfileName:         nginxconf.ProfileName,
	}
}
