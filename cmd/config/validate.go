package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"headgate/gateway/annotations"
	"headgate/gateway/model"
)

// What names may look like. Values that reach nginx.conf (paths, the user) are kept to bytes that mean
// nothing to nginx.
var (
	dnsLabel   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	dnsName    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`)
	controller = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9/_.-]+$`)
	className  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	safePath   = regexp.MustCompile(`^/[A-Za-z0-9/._+-]*$`)
	userName   = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	luaSearch  = regexp.MustCompile(`^[A-Za-z0-9/._+?;-]+$`)
	urlPath    = regexp.MustCompile(`^/[!-~]*$`)
)

// maxRuntimeDir leaves room for "/proxy/control.sock" within the 107 bytes of a unix socket's path (unix(7)),
// also for the temporary names beside it.
const maxRuntimeDir = 80

// checker collects what is wrong.
type checker struct{ errs []*FieldError }

func (v *checker) fail(key, format string, args ...any) {
	v.errs = append(v.errs, &FieldError{Key: key, Message: fmt.Sprintf(format, args...)})
}

func (v *checker) match(key, value string, pattern *regexp.Regexp, want string) {
	if !pattern.MatchString(value) {
		v.fail(key, "%q is not %s", value, want)
	}
}

func (v *checker) each(key string, values []string, pattern *regexp.Regexp, want string) {
	for i, value := range values {
		v.match(fmt.Sprintf("%s[%d]", key, i), value, pattern, want)
		if slices.Index(values, value) < i {
			v.fail(fmt.Sprintf("%s[%d]", key, i), "%q is listed twice: keep one", value)
		}
	}
}

func within[T int | Size | Duration](v *checker, key string, value, low, high T) {
	if value < low || value > high {
		v.fail(key, "%v is out of range: write a value from %v to %v", value, low, high)
	}
}

func oneOf[T ~string](v *checker, key string, value T, allowed ...T) {
	if !slices.Contains(allowed, value) {
		words := make([]string, len(allowed))
		for i, a := range allowed {
			words[i] = string(a)
		}
		v.fail(key, "%q is not known: write %s", value, strings.Join(words, " or "))
	}
}

// validate checks every value of c by itself and against its neighbours, and fills in what a value implies
// (port 53 of a name server, absolute manifest paths).
func validate(c *Config) []*FieldError {
	v := &checker{}
	v.sources(c)
	v.classes(c)
	v.listeners(&c.Listeners)
	v.proxy(&c.Proxy)
	v.http(c)
	v.publish(&c.Publish)
	v.upstreams(&c.Upstreams)
	v.status(&c.Status)
	v.dns(&c.DNS)
	within(v, "healthChecks.concurrency", c.HealthChecks.Concurrency, 1, 65536)
	v.lossGuard(&c.LossGuard)
	v.metrics(&c.Metrics)
	v.accessLog(&c.AccessLog)
	v.gossip(&c.Gossip)
	v.vip(c)
	v.directories(c)
	oneOf(v, "log.level", c.Log.Level, Debug, Info, Warn, Error)
	oneOf(v, "log.format", c.Log.Format, Text, JSON, Journal)
	within(v, "reconcile.window", c.Reconcile.Window, Duration(time.Millisecond), Duration(time.Second))
	within(v, "reconcile.maxDelay", c.Reconcile.MaxDelay, c.Reconcile.Window, Duration(10*time.Second))
	return v.errs
}

func (v *checker) sources(c *Config) {
	for i, dir := range c.Manifests {
		key := fmt.Sprintf("manifests[%d]", i)
		if dir == "" {
			v.fail(key, "the path is empty: write a folder")
			continue
		}
		abs, err := filepath.Abs(dir)
		if err != nil {
			v.fail(key, "%q cannot be made absolute (%v): write an absolute path", dir, err)
			continue
		}
		if slices.Contains(c.Manifests[:i], abs) {
			v.fail(key, "%q is listed twice: keep one", dir)
		}
		c.Manifests[i] = abs
	}
	v.each("namespaces", c.Namespaces, dnsLabel, "a namespace: write a DNS label such as shop")
}

func (v *checker) classes(c *Config) {
	v.match("ingressClass", c.IngressClass, className, "a class name: write letters, digits, '-', '_' and '.', such as headgate")
	v.each("controllerNames", c.ControllerNames, controller, "a controller name: write domain/path, such as headgate.io/ingress")
	if len(c.ControllerNames) == 0 {
		v.fail("controllerNames", "the list is empty: write [headgate.io/ingress] or leave out the key")
	}
	v.match("annotationsPrefix", c.AnnotationsPrefix, dnsName, "a DNS name: write one without a slash, such as nginx.ingress.kubernetes.io")
}

func (v *checker) listeners(l *Listeners) {
	if len(l.HTTP)+len(l.HTTPS) == 0 {
		v.fail("listeners", "both lists are empty: write at least one address, such as http: [\"0.0.0.0:80\"]")
	}
	taken := map[netip.AddrPort]string{}
	check := func(key string, list []netip.AddrPort) {
		for i, a := range list {
			at := fmt.Sprintf("%s[%d]", key, i)
			if a.Port() == 0 {
				v.fail(at, "%s lacks a port from 1 to 65535: write %s", a.Addr(), netip.AddrPortFrom(a.Addr(), 8080))
			}
			if other, found := taken[a]; found {
				v.fail(at, "%s stands in %s already: keep one", a, other)
			}
			taken[a] = at
		}
	}
	check("listeners.http", l.HTTP)
	check("listeners.https", l.HTTPS)
}

// lacks names what c asks of a host that does not have it.
func (h Host) lacks(c *Config) []*FieldError {
	v := &checker{}
	check := func(key string, list []netip.AddrPort) {
		for i, a := range list {
			if h.NoIPv6 && a.Addr().Is6() {
				v.fail(fmt.Sprintf("%s[%d]", key, i), "%s is IPv6, which this host's kernel does not have: remove it, or boot without ipv6.disable=1", a)
			}
		}
	}
	check("listeners.http", c.Listeners.HTTP)
	check("listeners.https", c.Listeners.HTTPS)
	return v.errs
}

func (v *checker) proxy(p *Proxy) {
	oneOf(v, "proxy.mode", p.Mode, External, Managed)
	if p.StopWithDaemon && p.Mode == External {
		v.fail("proxy.stopWithDaemon", "true needs proxy.mode managed: an external proxy is stopped by systemd")
	}
	if p.Binary != "" {
		v.match("proxy.binary", p.Binary, safePath, "an absolute path of letters, digits and ._+-: write one such as /usr/sbin/nginx")
	}
	v.each("proxy.modules", p.Modules, safePath, "an absolute path of letters, digits and ._+-: write one such as /usr/lib/nginx/modules/ndk_http_module.so")
	const search = "a Lua search path: write patterns such as /usr/share/lua/5.1/?.lua, with ';' between them"
	if p.LuaPath != "" {
		v.match("proxy.luaPath", p.LuaPath, luaSearch, search)
	}
	if p.LuaCPath != "" {
		v.match("proxy.luaCPath", p.LuaCPath, luaSearch, search)
	}
	if p.User != "" {
		v.match("proxy.user", p.User, userName, "a user name: write one such as www-data")
	}
	within(v, "proxy.workerProcesses", p.WorkerProcesses, 0, 1024)
	within(v, "proxy.workerConnections", p.WorkerConnections, 64, 1<<20)
	within(v, "proxy.stateMemory", p.StateMemory, MiB, 16*GiB)
}

func (v *checker) http(c *Config) {
	v.each("noTLSRedirectLocations", c.NoTLSRedirectLocations, urlPath, "a path prefix: write one that begins with '/' and has no spaces")
	within(v, "hsts.maxAge", c.HSTS.MaxAge, 0, Duration(315360000*time.Second))
	if time.Duration(c.HSTS.MaxAge)%time.Second != 0 {
		v.fail("hsts.maxAge", "%s is not in whole seconds (RFC 6797): write one such as 31536000s", c.HSTS.MaxAge)
	}
	if c.DefaultCertificate != "" {
		namespace, name, found := strings.Cut(c.DefaultCertificate, "/")
		if !found || !dnsLabel.MatchString(namespace) || !dnsName.MatchString(name) {
			v.fail("defaultCertificate", "%q does not name a Secret: write namespace/name", c.DefaultCertificate)
		}
	}
	within(v, "maxBodySize", c.MaxBodySize, 0, 1024*GiB)
}

func (v *checker) publish(p *Publish) {
	for i, a := range p.Addresses {
		key := fmt.Sprintf("publish.addresses[%d]", i)
		if addr, err := netip.ParseAddr(a); err == nil {
			if addr.Zone() != "" || addr.IsUnspecified() {
				v.fail(key, "%q is no address that clients can reach: write the one they use", a)
			}
			continue
		}
		v.match(key, a, dnsName, "an IP address or a DNS name in lower case, without a port: write one such as 192.0.2.10")
	}
	within(v, "publish.httpsPort", p.HTTPSPort, 1, 65535)
}

func (v *checker) upstreams(u *Upstreams) {
	oneOf(v, "upstreams.loadBalance", model.Algorithm(u.LoadBalance),
		model.RoundRobin, model.LeastConnections, model.PowerOfTwo, model.EWMA, model.Random)
	const longest = 576 * time.Hour // nginx counts milliseconds in 31 bits
	within(v, "upstreams.connectTimeout", u.ConnectTimeout, Duration(time.Millisecond), Duration(time.Hour))
	within(v, "upstreams.sendTimeout", u.SendTimeout, Duration(time.Millisecond), Duration(longest))
	within(v, "upstreams.readTimeout", u.ReadTimeout, Duration(time.Millisecond), Duration(longest))
	if _, _, err := annotations.ParseNextUpstream(u.NextUpstream); err != nil {
		v.fail("upstreams.nextUpstream", "%v", err)
	}
	within(v, "upstreams.nextUpstreamTries", u.NextUpstreamTries, 0, 100)
	within(v, "upstreams.nextUpstreamTimeout", u.NextUpstreamTimeout, 0, Duration(time.Hour))
	if _, err := annotations.ParseRetryBudget(u.RetryBudget); err != nil {
		v.fail("upstreams.retryBudget", "%v", err)
	}
	within(v, "upstreams.ejectFailures", u.EjectFailures, 1, 1000)
	within(v, "upstreams.ejectTime", u.EjectTime, Duration(100*time.Millisecond), Duration(time.Hour))
	within(v, "upstreams.ejectMaxTime", u.EjectMaxTime, u.EjectTime, Duration(24*time.Hour))
}

func (v *checker) status(s *Status) {
	v.match("status.leaseNamespace", s.LeaseNamespace, dnsLabel, "a namespace: write a DNS label such as headgate-system")
	v.match("status.leaseName", s.LeaseName, dnsName, "a name of a Lease: write a DNS name such as edge-status")
}

func (v *checker) dns(d *DNS) {
	for i, a := range d.Servers {
		if a.Port() == 0 {
			d.Servers[i] = netip.AddrPortFrom(a.Addr(), dnsPort)
		}
	}
}

func (v *checker) lossGuard(g *LossGuard) {
	const maxHold, year = 10 * time.Minute, 8760 * time.Hour
	within(v, "lossGuard.share", g.Share, 1, 100)
	within(v, "lossGuard.minimum", g.Minimum, 1, 1_000_000)
	within(v, "lossGuard.window", g.Window, Duration(100*time.Millisecond), Duration(maxHold))
	within(v, "lossGuard.hold", g.Hold, Duration(time.Second), Duration(maxHold))
	if g.MaxAge != 0 {
		within(v, "lossGuard.maxAge", g.MaxAge, Duration(time.Minute), Duration(year))
	}
}

// metrics keeps the listener on loopback: the numbers tell names of hosts and services, and the listener
// asks nobody who they are.
func (v *checker) metrics(m *Metrics) {
	if m.Listen == "" {
		return
	}
	a, err := netip.ParseAddrPort(m.Listen)
	if err != nil {
		v.fail("metrics.listen", "%q is not address:port: write 127.0.0.1:9790, or \"\" to turn metrics off", m.Listen)
		return
	}
	if !a.Addr().IsLoopback() {
		v.fail("metrics.listen", "%s is not a loopback address: write 127.0.0.1:%d; to scrape from elsewhere put a proxy with authentication in front", m.Listen, a.Port())
	}
}

func (v *checker) accessLog(a *AccessLog) {
	oneOf(v, "accessLog.format", a.Format, Combined, JSONLines)
	if a.Path != "" {
		v.match("accessLog.path", a.Path, safePath, "an absolute path of letters, digits and ._+-: write one such as /var/log/headgate/access.log")
	}
}

func (v *checker) directories(c *Config) {
	for _, d := range []struct{ key, path string }{{"stateDir", c.StateDir}, {"runtimeDir", c.RuntimeDir}} {
		v.match(d.key, d.path, safePath, "an absolute path of letters, digits and ._+-: write one such as /var/lib/headgate")
	}
	c.StateDir, c.RuntimeDir = filepath.Clean(c.StateDir), filepath.Clean(c.RuntimeDir)
	if len(c.RuntimeDir) > maxRuntimeDir {
		v.fail("runtimeDir", "the path has %d bytes, and the sockets in it leave room for %d: write a shorter one", len(c.RuntimeDir), maxRuntimeDir)
	}
	for _, d := range []struct{ key, path string }{{"stateDir", c.StateDir}, {"runtimeDir", c.RuntimeDir}} {
		if d.path == "/" {
			v.fail(d.key, "the root folder cannot be used: write a folder of its own")
		}
	}
	if c.StateDir == c.RuntimeDir {
		v.fail("runtimeDir", "it is the same folder as stateDir: write another; one survives a reboot, the other must not")
	}
}
