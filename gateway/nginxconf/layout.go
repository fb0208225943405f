package nginxconf

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"headgate/gateway/model"
)

// ErrLayout is what every error about a field of Layout wraps.
var ErrLayout = errors.New("layout")

// Layout is what nginx.conf needs to know of the machine. Its values come from the administrator or
// from detection, never from objects of the cluster. Paths are absolute and hold no control
// character and none of "'\;{}$` — Render refuses others.
type Layout struct {
	// NginxVersion decides how directives are spelled ("1.22.1"; from 1.25.1 on http2 is a
	// directive). Required.
	NginxVersion string
	// Modules are the .so files to load; none where nginx has Lua built in (OpenResty). ndk is moved
	// before lua, which needs it.
	Modules []string
	// User and Group become nginx's "user" directive; empty leaves it out (nginx does not run as root).
	User, Group string
	// Daemon lets nginx detach itself. False: the supervisor keeps it in the foreground.
	Daemon bool
	// OpenFiles is worker_rlimit_nofile; 0 leaves the limit that nginx inherits.
	OpenFiles int

	// PIDFile and TempDir (bodies and answers too large for memory) lie in the runtime directory.
	// nginx creates the sub-directories of TempDir. PIDFile is "" where nginx gets it on its command line.
	PIDFile, TempDir string
	// ControlSocket lies in a directory of mode 0750: nginx makes its sockets world-writable. Further
	// sockets lie beside it; see Sockets.
	ControlSocket string
	// ErrorLog is a file or "stderr". AccessLog is a file; "" turns it off.
	ErrorLog, AccessLog string
	// AccessLogFormat says how lines of AccessLog look.
	AccessLogFormat AccessLogFormat
	// StateLog is read when nginx starts with an empty shared dict; "" reads nothing.
	StateLog string

	// LuaDir is the folder that holds "headgate/…" of LuaBuild (package lua).
	LuaDir, LuaBuild string
	// LuaPath and LuaCPath find lua-resty-core, lua-resty-lrucache and cjson, as in lua_package_path:
	// absolute patterns with a "?", joined by ";". Empty means what nginx was built with.
	LuaPath, LuaCPath string

	// DefaultCertificate and DefaultKey are PEM files that nginx reads at start: the certificate of
	// handshakes for which no other one is found. Required with a listener of scheme https.
	DefaultCertificate, DefaultKey string

	// KeepProfiles are rendered besides those that the model uses. Handing in the ProfileList of the
	// configuration that is running keeps routes of the old state served between a reload and the
	// push that follows it.
	KeepProfiles []model.Profile
	// KeepIdentities and KeepFastCGI are what KeepProfiles name; the model's own go first.
	KeepIdentities []*model.Identity
	KeepFastCGI    []*model.FastCGI
	// TLSDir is the folder of Config.Files. A profile with a TLS identity is refused without one.
	TLSDir string
	// KeepLogPhase writes the phase at the end of requests though the model has no need of it: the configuration
	// that is running has it (Config.LogPhase).
	KeepLogPhase bool
	// Private leaves the model's listeners out of the text: nobody reaches this nginx but through its
	// sockets. For `headgate explain --manifests`.
	Private bool
}

// AccessLogFormat is how a line of the access log looks.
type AccessLogFormat string

// The formats. The zero value is ingress-nginx's.
const (
	AccessLogCombined AccessLogFormat = ""
	AccessLogJSON     AccessLogFormat = "json" // one object a line
)

// Sockets are the unix sockets that nginx makes. Where nginx was killed they stay behind, and
// whoever starts it must remove them first.
func (l Layout) Sockets() []string {
	beside := func(name string) string { return filepath.Join(filepath.Dir(l.ControlSocket), name) }
	return []string{
		l.ControlSocket, beside(unavailableSocket), beside(unavailableHTTP2Socket), beside(unavailableTLSSocket),
		l.ExplainSocket(model.HTTP), l.ExplainSocket(model.HTTPS), beside(explainedSocket),
	}
}

// unavailableSocket is where requests go whose upstream lost its last peer between the router and
// the balancer: a server that answers 503. The balancer itself can only say 500.
const (
	unavailableSocket      = "unavailable.sock"
	unavailableHTTP2Socket = "unavail-h2.sock"
	unavailableTLSSocket   = "unavail-tls.sock"
)

// Limits of settings; minStateBytes is what lua_shared_dict accepts with room for an empty state.
const (
	minStateBytes = 1 << 20
	maxStateBytes = 1 << 40
	// maxSocketBytes is sun_path without its final zero.
	maxSocketBytes = 107
)

// conf is a checked Layout and the parts of the model that the text depends on.
type conf struct {
	settings  model.Settings
	listeners []model.Listener
	profiles  []profile
	standard  profile // the default one

	version                           version
	modules                           []path
	user, group                       name
	daemon                            bool
	openFiles                         int
	pidFile, tempDir                  path
	control, unavailable              path
	unavailableHTTP2, unavailableTLS  path
	explainHTTP, explainHTTPS         path
	explained                         path
	errorLog, accessLog, stateLog     path
	luaDir, tlsDir                    path
	luaBuild                          name
	luaPath, luaCPath                 path
	certificate, key                  path
	accessLogFormat                   AccessLogFormat
	stderr, hasAccessLog, hasStateLog bool
	hasPIDFile                        bool
	private, logPhase                 bool
	listener                          *model.Listener // whose server is being written; nil for any other text
}

// check turns the layout into values that can be written.
func (l Layout) check(m *model.Model) (conf, error) {
	c := conf{daemon: l.Daemon, openFiles: l.OpenFiles, private: l.Private}
	var errs []error
	set := func(field, value string, to *path) {
		p, err := parsePath(value)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: %s: %w", ErrLayout, field, err))
		}
		*to = p
	}
	optional := func(field, value string, to *path) bool {
		if value != "" {
			set(field, value, to)
		}
		return value != ""
	}

	c.hasPIDFile = optional("PIDFile", l.PIDFile, &c.pidFile)
	set("TempDir", l.TempDir, &c.tempDir)
	set("LuaDir", l.LuaDir, &c.luaDir)
	set("ControlSocket", l.ControlSocket, &c.control)
	for i, to := range []*path{&c.unavailable, &c.unavailableHTTP2, &c.unavailableTLS, &c.explainHTTP, &c.explainHTTPS, &c.explained} {
		set("ControlSocket", l.Sockets()[i+1], to)
	}
	c.stderr = l.ErrorLog == "stderr"
	if !c.stderr {
		set("ErrorLog", l.ErrorLog, &c.errorLog)
	}
	c.hasAccessLog = optional("AccessLog", l.AccessLog, &c.accessLog)
	if c.accessLogFormat = l.AccessLogFormat; c.accessLogFormat != AccessLogCombined && c.accessLogFormat != AccessLogJSON {
		errs = append(errs, fmt.Errorf("%w: AccessLogFormat: %q; write json, or nothing for ingress-nginx's", ErrLayout, l.AccessLogFormat))
	}
	c.hasStateLog = optional("StateLog", l.StateLog, &c.stateLog)
	optional("TLSDir", l.TLSDir, &c.tlsDir)
	for i, module := range orderModules(l.Modules) {
		c.modules = append(c.modules, path{})
		set("Modules", module, &c.modules[i])
	}
	https := slices.ContainsFunc(m.Listeners, func(li model.Listener) bool { return li.Scheme == model.HTTPS })
	if https || l.DefaultCertificate != "" || l.DefaultKey != "" {
		set("DefaultCertificate", l.DefaultCertificate, &c.certificate)
		set("DefaultKey", l.DefaultKey, &c.key)
	}
	if longest := c.explainHTTPS.text; len(longest) > maxSocketBytes {
		errs = append(errs, fmt.Errorf("%w: ControlSocket: %q is too long for a unix socket; choose a runtime directory with a shorter name",
			ErrLayout, longest))
	}
	errs = append(errs, c.checkLua(l), c.checkNames(l), checkSettings(m))
	return c, errors.Join(errs...)
}

func (c *conf) checkLua(l Layout) error {
	var err, cerr error
	c.luaPath, err = parseSearchPath(l.LuaPath)
	c.luaCPath, cerr = parseSearchPath(l.LuaCPath)
	if err != nil {
		err = fmt.Errorf("%w: LuaPath: %w", ErrLayout, err)
	}
	if cerr != nil {
		cerr = fmt.Errorf("%w: LuaCPath: %w", ErrLayout, cerr)
	}
	return errors.Join(err, cerr)
}

func (c *conf) checkNames(l Layout) error {
	var errs []error
	set := func(field, value string, to *name) {
		n, err := parseName(value)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: %s: %w", ErrLayout, field, err))
		}
		*to = n
	}
	set("LuaBuild", l.LuaBuild, &c.luaBuild)
	if l.User != "" {
		set("User", l.User, &c.user)
		if l.Group != "" {
			set("Group", l.Group, &c.group)
		}
	}
	var err error
	if c.version, err = parseVersion(l.NginxVersion); err != nil {
		errs = append(errs, fmt.Errorf("%w: NginxVersion: %w", ErrLayout, err))
	}
	if l.OpenFiles < 0 {
		errs = append(errs, fmt.Errorf("%w: OpenFiles: %d is negative; write 0 to inherit the limit", ErrLayout, l.OpenFiles))
	}
	return errors.Join(errs...)
}

func checkSettings(m *model.Model) error {
	s := m.Settings
	var errs []error
	if s.StateMemoryBytes < minStateBytes || s.StateMemoryBytes > maxStateBytes {
		errs = append(errs, fmt.Errorf("state memory of %d bytes: write %d to %d", s.StateMemoryBytes, minStateBytes, int64(maxStateBytes)))
	}
	if s.WorkerConnections < 16 {
		errs = append(errs, fmt.Errorf("%d worker connections: write 16 or more", s.WorkerConnections))
	}
	if s.WorkerProcesses < 0 {
		errs = append(errs, fmt.Errorf("%d worker processes: write 1 or more, or 0 for one a core", s.WorkerProcesses))
	}
	if s.HSTS.Enabled && s.HSTS.MaxAge < 0 {
		errs = append(errs, fmt.Errorf("HSTS max-age %s: write 0s or more", s.HSTS.MaxAge))
	}
	for _, p := range s.TrustedProxies {
		if !p.IsValid() {
			errs = append(errs, errors.New("trusted proxies: an invalid network; write a CIDR such as 10.0.0.0/8"))
		}
	}
	for _, l := range m.Listeners {
		if !l.Address.IsValid() || l.Address.Port() == 0 || l.Address.Addr().Zone() != "" {
			errs = append(errs, fmt.Errorf("listener %s: write an address with a port, without a zone", l.Address))
		}
		if l.Scheme != model.HTTP && l.Scheme != model.HTTPS {
			errs = append(errs, fmt.Errorf("listener %s: scheme %q; write http or https", l.Address, l.Scheme))
		}
	}
	return errors.Join(errs...)
}

// orderModules puts the Nginx Development Kit first: the Lua module needs its symbols.
func orderModules(modules []string) []string {
	ordered := slices.Clone(modules)
	rank := func(m string) int {
		if strings.HasPrefix(filepath.Base(m), "ndk_") {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(ordered, func(a, b string) int { return rank(a) - rank(b) })
	return ordered
}

// version is an nginx version: 1.22.1 is {1, 22, 1}.
type version [3]int

func parseVersion(s string) (version, error) {
	var v version
	parts := strings.Split(s, ".")
	if len(parts) < 2 {
		return v, fmt.Errorf("%q: write it as nginx -v prints it, such as 1.22.1", s)
	}
	for i, p := range parts[:min(3, len(parts))] {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return v, fmt.Errorf("%q: write it as nginx -v prints it, such as 1.22.1", s)
		}
		v[i] = int(n)
	}
	return v, nil
}

func (v version) atLeast(o version) bool { return slices.Compare(v[:], o[:]) >= 0 }
