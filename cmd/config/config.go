// Package config turns headgate.yaml, HEADGATE_… variables and flags into one Config, or into a list of
// errors that name the place, the key and what to write instead. It knows every key and its range; it never
// looks at the network, the cluster or the proxy. cmd/headgate calls it once, at the start.
//
// viper merges the three sources and nothing else. Two of its habits shape this package: it lower-cases the
// keys of maps, so no key of the configuration is chosen by the user (lists of objects take their place),
// and it sees a variable without a default only with ExperimentalBindStruct.
package config

import (
	"net/netip"
	"slices"
	"time"
)

// DefaultFile is read when --config names no other file.
const DefaultFile = "/etc/headgate/headgate.yaml"

// EnvPrefix begins the name of every environment variable that is read: HEADGATE_PROXY_MODE is proxy.mode.
const EnvPrefix = "HEADGATE"

// Config is the administrator's configuration, complete and checked. Keys lists what each field means.
type Config struct {
	Kubeconfig string   `mapstructure:"kubeconfig"`
	Manifests  []string `mapstructure:"manifests"`
	Namespaces []string `mapstructure:"namespaces"`

	IngressClass             string   `mapstructure:"ingressClass"`
	ControllerNames          []string `mapstructure:"controllerNames"`
	TakeOverIngressNginx     bool     `mapstructure:"takeOverIngressNginx"`
	WatchIngressWithoutClass bool     `mapstructure:"watchIngressWithoutClass"`
	AnnotationsPrefix        string   `mapstructure:"annotationsPrefix"`

	Listeners Listeners `mapstructure:"listeners"`
	Proxy     Proxy     `mapstructure:"proxy"`

	TrustedProxies         []netip.Prefix `mapstructure:"trustedProxies"`
	UseForwardedHeaders    bool           `mapstructure:"useForwardedHeaders"`
	SSLRedirect            bool           `mapstructure:"sslRedirect"`
	NoTLSRedirectLocations []string       `mapstructure:"noTLSRedirectLocations"`
	HSTS                   HSTS           `mapstructure:"hsts"`
	DefaultCertificate     string         `mapstructure:"defaultCertificate"`
	MaxBodySize            Size           `mapstructure:"maxBodySize"`

	Publish      Publish      `mapstructure:"publish"`
	Upstreams    Upstreams    `mapstructure:"upstreams"`
	Status       Status       `mapstructure:"status"`
	DNS          DNS          `mapstructure:"dns"`
	HealthChecks HealthChecks `mapstructure:"healthChecks"`
	LossGuard    LossGuard    `mapstructure:"lossGuard"`
	Metrics      Metrics      `mapstructure:"metrics"`
	AccessLog    AccessLog    `mapstructure:"accessLog"`

	Gossip Gossip `mapstructure:"gossip"`
	VIP    VIP    `mapstructure:"vip"`

	StateDir   string    `mapstructure:"stateDir"`
	RuntimeDir string    `mapstructure:"runtimeDir"`
	Log        Log       `mapstructure:"log"`
	Reconcile  Reconcile `mapstructure:"reconcile"`
}

// Listeners are the addresses that the proxy accepts on; no address stands in both lists.
type Listeners struct {
	HTTP  []netip.AddrPort `mapstructure:"http"`
	HTTPS []netip.AddrPort `mapstructure:"https"`
	HTTP2 bool             `mapstructure:"http2"`
}

// ProxyMode says who runs nginx.
type ProxyMode string

// The proxy modes: External is a unit of its own that systemd runs, Managed a child of the daemon.
const (
	External ProxyMode = "external"
	Managed  ProxyMode = "managed"
)

// Proxy describes the nginx or OpenResty that serves.
type Proxy struct {
	Mode              ProxyMode `mapstructure:"mode"`
	StopWithDaemon    bool      `mapstructure:"stopWithDaemon"`
	Binary            string    `mapstructure:"binary"`
	Modules           []string  `mapstructure:"modules"`
	LuaPath           string    `mapstructure:"luaPath"`
	LuaCPath          string    `mapstructure:"luaCPath"`
	User              string    `mapstructure:"user"`
	WorkerProcesses   int       `mapstructure:"workerProcesses"`
	WorkerConnections int       `mapstructure:"workerConnections"`
	StateMemory       Size      `mapstructure:"stateMemory"`
}

// HSTS is the Strict-Transport-Security header (RFC 6797).
type HSTS struct {
	Enabled           bool     `mapstructure:"enabled"`
	MaxAge            Duration `mapstructure:"maxAge"`
	IncludeSubdomains bool     `mapstructure:"includeSubdomains"`
	Preload           bool     `mapstructure:"preload"`
}

// Publish is what clients are told about where the edge is.
type Publish struct {
	Addresses   []string `mapstructure:"addresses"`
	ClearOnStop bool     `mapstructure:"clearOnStop"`
	HTTPSPort   int      `mapstructure:"httpsPort"`
}

// Upstreams says which addresses may be proxied to, and how where no annotation says otherwise.
type Upstreams struct {
	AllowLoopback bool           `mapstructure:"allowLoopback"`
	Allow         []netip.Prefix `mapstructure:"allow"`
	Deny          []netip.Prefix `mapstructure:"deny"`

	LoadBalance     string `mapstructure:"loadBalance"`
	ServiceUpstream bool   `mapstructure:"serviceUpstream"`

	ConnectTimeout Duration `mapstructure:"connectTimeout"`
	SendTimeout    Duration `mapstructure:"sendTimeout"`
	ReadTimeout    Duration `mapstructure:"readTimeout"`

	StrictAnswers bool `mapstructure:"strictAnswers"`

	NextUpstream        string   `mapstructure:"nextUpstream"`
	NextUpstreamTries   int      `mapstructure:"nextUpstreamTries"`
	NextUpstreamTimeout Duration `mapstructure:"nextUpstreamTimeout"`
	RetryBudget         string   `mapstructure:"retryBudget"`

	Eject         bool     `mapstructure:"eject"`
	EjectFailures int      `mapstructure:"ejectFailures"`
	EjectTime     Duration `mapstructure:"ejectTime"`
	EjectMaxTime  Duration `mapstructure:"ejectMaxTime"`
}

// Status says who writes status.loadBalancer and Events, and under which Lease.
type Status struct {
	Enabled        bool   `mapstructure:"enabled"`
	LeaseNamespace string `mapstructure:"leaseNamespace"`
	LeaseName      string `mapstructure:"leaseName"`
}

// DNS resolves ExternalNames.
type DNS struct {
	Servers []netip.AddrPort `mapstructure:"servers"`
}

// HealthChecks says how active health checks are run; what is checked and how, annotations say.
type HealthChecks struct {
	Concurrency int `mapstructure:"concurrency"`
}

// LossGuard says which sudden loss of a troubled source is not believed, and when what is served is too old.
type LossGuard struct {
	Share   int      `mapstructure:"share"` // percent
	Minimum int      `mapstructure:"minimum"`
	Window  Duration `mapstructure:"window"`
	Hold    Duration `mapstructure:"hold"`
	MaxAge  Duration `mapstructure:"maxAge"` // 0: any age
}

// Metrics is the read-only Prometheus listener; an empty Listen turns it off. Requests tells whether the proxy
// counts requests for it.
type Metrics struct {
	Listen   string `mapstructure:"listen"`
	Requests bool   `mapstructure:"requests"`
}

// AccessLogFormat is how a line of the access log looks.
type AccessLogFormat string

// The formats: Combined is ingress-nginx's, JSONLines one object a line.
const (
	Combined  AccessLogFormat = "combined"
	JSONLines AccessLogFormat = "json"
)

// AccessLog is a line for each request; an empty Path writes none.
type AccessLog struct {
	Path   string          `mapstructure:"path"`
	Format AccessLogFormat `mapstructure:"format"`
}

// LogLevel is the least severe level that is written.
type LogLevel string

// The log levels.
const (
	Debug LogLevel = "debug"
	Info  LogLevel = "info"
	Warn  LogLevel = "warn"
	Error LogLevel = "error"
)

// LogFormat is how a line of the log looks.
type LogFormat string

// The log formats. Journal writes fields to systemd's journal.
const (
	Text    LogFormat = "text"
	JSON    LogFormat = "json"
	Journal LogFormat = "journal"
)

// Log says what is logged and how.
type Log struct {
	Level  LogLevel  `mapstructure:"level"`
	Format LogFormat `mapstructure:"format"`
}

// Reconcile says how bursts of changes coalesce.
type Reconcile struct {
	Window   Duration `mapstructure:"window"`
	MaxDelay Duration `mapstructure:"maxDelay"`
}

// Host is what the defaults depend on, and what a configuration may not ask of this host. The zero value is a
// host that lacks nothing.
type Host struct {
	// NoIPv6 tells that the kernel has no IPv6 at all: nginx refuses a configuration with such a listener.
	NoIPv6 bool
}

// defaults is Default on this host: without IPv6 the default listeners are those of IPv4.
func (h Host) defaults() Config {
	c := Default()
	if h.NoIPv6 {
		is6 := func(a netip.AddrPort) bool { return a.Addr().Is6() }
		c.Listeners.HTTP = slices.DeleteFunc(c.Listeners.HTTP, is6)
		c.Listeners.HTTPS = slices.DeleteFunc(c.Listeners.HTTPS, is6)
	}
	return c
}

// Default gives the configuration of an empty file. It has no source: Load asks for one.
func Default() Config {
	return Config{
		IngressClass:      "headgate",
		ControllerNames:   []string{"headgate.io/ingress"},
		AnnotationsPrefix: "nginx.ingress.kubernetes.io",
		Listeners: Listeners{
			HTTP:  []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:80"), netip.MustParseAddrPort("[::]:80")},
			HTTPS: []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:443"), netip.MustParseAddrPort("[::]:443")},
			HTTP2: true,
		},
		Proxy:                  Proxy{Mode: External, WorkerConnections: 16384, StateMemory: 32 * MiB},
		SSLRedirect:            true,
		NoTLSRedirectLocations: []string{"/.well-known/acme-challenge"},
		HSTS:                   HSTS{Enabled: true, MaxAge: Duration(31536000 * time.Second), IncludeSubdomains: true},
		MaxBodySize:            MiB,
		Publish:                Publish{HTTPSPort: 443},
		Upstreams: Upstreams{
			LoadBalance:    "round_robin",
			ConnectTimeout: Duration(5 * time.Second), SendTimeout: Duration(60 * time.Second), ReadTimeout: Duration(60 * time.Second),
			NextUpstream: "error timeout", NextUpstreamTries: 3, RetryBudget: "20%",
			Eject: true, EjectFailures: 3, EjectTime: Duration(5 * time.Second), EjectMaxTime: Duration(300 * time.Second),
		},
		Status:       Status{Enabled: true, LeaseNamespace: "headgate-system", LeaseName: "edge-status"},
		Metrics:      Metrics{Listen: "127.0.0.1:9790", Requests: true},
		AccessLog:    AccessLog{Format: Combined},
		HealthChecks: HealthChecks{Concurrency: 512},
		LossGuard: LossGuard{
			Share: 50, Minimum: 10, Window: Duration(5 * time.Second), Hold: Duration(10 * time.Minute), MaxAge: Duration(24 * time.Hour),
		},
		Gossip:     defaultGossip(),
		VIP:        defaultVIP(),
		StateDir:   "/var/lib/headgate",
		RuntimeDir: "/run/headgate",
		Log:        Log{Level: Info, Format: Text},
		Reconcile:  Reconcile{Window: Duration(20 * time.Millisecond), MaxDelay: Duration(100 * time.Millisecond)},
	}
}
