package nginxconf

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"headgate/gateway/model"
)

// profile is a model.Profile whose parts were found and can be written.
type profile struct {
	model.Profile
	identity *identity // nil: nothing is shown to peers, nothing asked of them
	fastcgi  fastcgi
}

// compareProfiles orders by name.
func compareProfiles(a, b profile) int { return strings.Compare(a.Name(), b.Name()) }

// parts are what profiles name, by ID.
type parts struct {
	identities map[model.IdentityID]*model.Identity
	fastcgi    map[model.FastCGIID]*model.FastCGI
	tlsDir     path
}

// newParts collects the parts of the model and those that are kept; the model's go first.
func newParts(m *model.Model, l Layout, tlsDir path) parts {
	p := parts{identities: map[model.IdentityID]*model.Identity{}, fastcgi: map[model.FastCGIID]*model.FastCGI{}, tlsDir: tlsDir}
	for _, i := range slices.Concat(l.KeepIdentities, m.Identities) {
		p.identities[i.ID] = i
	}
	for _, f := range slices.Concat(l.KeepFastCGI, m.FastCGI) {
		p.fastcgi[f.ID] = f
	}
	return p
}

// resolve makes a profile that can be written; the error says which of its parts is missing or cannot be.
func (ps parts) resolve(p model.Profile) (profile, error) {
	r := profile{Profile: p}
	switch p.Protocol {
	case "", model.ProtocolHTTP, model.ProtocolGRPC:
		return r, nil
	case model.ProtocolHTTPS, model.ProtocolGRPCS:
		if p.Identity == "" {
			return r, nil
		}
		i, ok := ps.identities[p.Identity]
		if !ok {
			return r, fmt.Errorf("its TLS identity %q is missing", p.Identity)
		}
		var err error
		r.identity, err = newIdentity(i, ps.tlsDir)
		return r, err
	case model.ProtocolFastCGI:
		if p.FastCGI == "" {
			return r, nil
		}
		f, ok := ps.fastcgi[p.FastCGI]
		if !ok {
			return r, fmt.Errorf("its FastCGI parameters %q are missing", p.FastCGI)
		}
		var err error
		r.fastcgi, err = newFastCGI(f)
		return r, err
	case model.ProtocolTCP:
	}
	return r, fmt.Errorf("no request is proxied over %q", p.Protocol)
}

// collectProfiles gives the profiles that need a location, sorted by name, each once, and why those of the model
// that are not among them are not. What is kept and cannot be written any more is left out silently.
func collectProfiles(m *model.Model, keep []model.Profile, ps parts) (profiles []profile, refused map[string]string) {
	byName := map[string]profile{}
	refused = map[string]string{}
	add := func(p model.Profile) error {
		if p == m.Settings.DefaultProfile {
			return nil
		}
		r, err := ps.resolve(p)
		if err == nil {
			byName[p.Name()] = r
		}
		return err
	}
	for _, p := range keep {
		_ = add(p)
	}
	for _, p := range profilesOf(m) {
		if err := add(p); err != nil {
			refused[p.Name()] = err.Error()
		}
	}
	profiles = make([]profile, 0, len(byName))
	for _, p := range byName {
		profiles = append(profiles, p)
	}
	slices.SortFunc(profiles, compareProfiles)
	return profiles, refused
}

// profilesOf gives the profiles of the routes, each once.
func profilesOf(m *model.Model) []model.Profile {
	if m.Profiles != nil {
		return m.Profiles
	}
	var all []model.Profile
	seen := map[model.Profile]struct{}{}
	for _, h := range m.Hosts {
		for _, r := range h.Routes {
			if _, done := seen[r.Profile]; !done {
				seen[r.Profile] = struct{}{}
				all = append(all, r.Profile)
			}
		}
	}
	return all
}

// profile writes a named location.
func (c conf) profile(w *writer, p profile) {
	w.block(func() { c.directives(w, p) }, "location", literal("@"+p.Name()))
}

// directives writes what a location says. client_max_body_size counts for bodies of unknown length in every
// location, but for a Content-Length only where nginx itself chose the location: the router checks
// the length for the named ones.
func (c conf) directives(w *writer, p profile) {
	switch p.Protocol {
	case model.ProtocolGRPC, model.ProtocolGRPCS:
		c.grpc(w, p)
	case model.ProtocolFastCGI:
		c.fastCGI(w, p)
	case "", model.ProtocolHTTP, model.ProtocolHTTPS, model.ProtocolTCP:
		c.proxied(w, p)
	}
}

// proxied speaks HTTP/1 to the peer, in the clear or over TLS.
func (c conf) proxied(w *writer, p profile) {
	if p.HTTP10 {
		w.lines("proxy_http_version 1.0;")
	}
	if p.PeerHost {
		requestHeaders(w, c.peerHeadersOf(p)) // a level that sets one header inherits none
	}
	buffering(w, "proxy", p)
	requestBody(w, p)
	nextUpstream(w, "proxy", p)
	if p.Protocol != model.ProtocolHTTPS {
		w.lines("proxy_pass http://$hg_pool;")
		return
	}
	p.identity.directives(w, "proxy")
	w.directive("proxy_pass", join{literal("https://"), p.pool()})
}

// pool is the name of the profile's pool: a constant where it has one of its own, so that nginx need not look for it.
func (p profile) pool() value {
	switch {
	case p.identity != nil:
		return p.identity.pool(p.Protocol)
	case p.Protocol == model.ProtocolFastCGI:
		return fastCGIPool
	}
	return literal("$hg_pool")
}

// grpc speaks HTTP/2 to the peer. There is no Upgrade in it, and nginx passes bodies on as they come.
func (c conf) grpc(w *writer, p profile) {
	if size := kib(p.BufferSize); size != defaultBufferKiB {
		w.directive("grpc_buffer_size", join{size, literal("k")})
	}
	w.lines("grpc_ignore_headers X-Accel-Redirect;")
	timeouts(w, "grpc")
	requestBody(w, p)
	nextUpstream(w, "grpc", p)
	for _, h := range c.peerHeadersOf(p) {
		w.directive("grpc_set_header", h.name, h.value)
	}
	if p.Protocol == model.ProtocolGRPC {
		w.directive("grpc_pass", join{literal("grpc://"), p.pool()})
		return
	}
	p.identity.directives(w, "grpc")
	w.directive("grpc_pass", join{literal("grpcs://"), p.pool()})
}

// timeouts writes those that hold where a route names none, for modules whose defaults differ from ours.
func timeouts(w *writer, module literal) {
	w.lines(module+"_connect_timeout 5s;", module+"_send_timeout 60s;", module+"_read_timeout 60s;")
}

// The defaults of nginx.conf: what a profile need not repeat.
const (
	defaultBufferKiB = number(4)
	defaultBuffers   = number(4)
	defaultTempMiB   = number(1024)
	defaultBodyKiB   = number(8)
	kibPerMiB        = 1024
)

func kib(size uint16) number { return cmp.Or(number(size), defaultBufferKiB) }

// buffering writes the buffers of the answer. nginx refuses the whole file when they do not fit together, so what is
// out of proportion is brought into it: two buffers at least, a busy part between one buffer and all but one, a
// temporary file not below one buffer (ngx_http_proxy_module.c, ngx_http_proxy_merge_loc_conf).
func buffering(w *writer, module literal, p profile) {
	w.lines(onOff(module+"_buffering", p.Buffering), onOff(module+"_request_buffering", !p.RequestUnbuffered))
	size, count := kib(p.BufferSize), max(2, cmp.Or(number(p.Buffers), defaultBuffers))
	if size != defaultBufferKiB || count != defaultBuffers || module != "proxy" {
		w.directive(module+"_buffer_size", join{size, literal("k")})
		w.directive(module+"_buffers", count, join{size, literal("k")})
	}
	busy := cmp.Or(number(p.BusyBuffers), 2*size)
	if busy = min(max(busy, size), (count-1)*size); busy != 2*size {
		w.directive(module+"_busy_buffers_size", join{busy, literal("k")})
	}
	temp := cmp.Or(number(p.MaxTempFile), defaultTempMiB)
	if temp < 0 {
		w.lines(module + "_max_temp_file_size 0;")
		return
	}
	if temp = max(temp, (2*size+kibPerMiB-1)/kibPerMiB); temp != defaultTempMiB {
		w.directive(module+"_max_temp_file_size", join{temp, literal("m")})
	}
}

// nextUpstream writes when another peer is tried. FastCGI knows neither of 502 and 504.
func nextUpstream(w *writer, module literal, p profile) {
	on := cmp.Or(p.RetryOn, model.RetryError|model.RetryTimeout)
	if on&model.RetryNever != 0 {
		w.lines(module + "_next_upstream off;")
		return
	}
	var conditions []value
	for _, c := range []struct {
		bit     model.RetryOn
		word    literal
		fastCGI bool
	}{
		{model.RetryError, "error", true}, {model.RetryTimeout, "timeout", true}, {model.RetryInvalidHeader, "invalid_header", true},
		{model.Retry500, "http_500", true}, {model.Retry502, "http_502", false}, {model.Retry503, "http_503", true},
		{model.Retry504, "http_504", false}, {model.Retry403, "http_403", true}, {model.Retry404, "http_404", true}, {model.Retry429, "http_429", true},
	} {
		if on&c.bit != 0 && (c.fastCGI || module != "fastcgi") {
			conditions = append(conditions, c.word)
		}
	}
	if len(conditions) == 0 {
		w.lines(module + "_next_upstream off;")
		return
	}
	if p.RetryNonIdempotent {
		conditions = append(conditions, literal("non_idempotent"))
	}
	w.directive(module+"_next_upstream", conditions...)
}

// requestBody writes how much body there may be, and how much of it is kept in memory.
func requestBody(w *writer, p profile) {
	w.lines(bodyCap(p.BodyClass))
	if size := cmp.Or(number(p.BodyBuffer), defaultBodyKiB); size != defaultBodyKiB {
		w.directive("client_body_buffer_size", join{size, literal("k")})
	}
}

func bodyCap(c model.BodyClass) literal {
	switch c {
	case model.Body16M:
		return "client_max_body_size 16m;"
	case model.Body256M:
		return "client_max_body_size 256m;"
	case model.BodyUnlimited:
		return "client_max_body_size 0;"
	case model.Body1M:
	}
	return "client_max_body_size 1m;"
}

func onOff(name literal, on bool) literal { //nolint:revive // flag-parameter: a directive is on or off
	if on {
		return name + " on;"
	}
	return name + " off;"
}

// fastcgi are checked parameters.
type fastcgi struct {
	index  name
	params []param
}

type param struct {
	name  name
	value value
}

// newFastCGI checks what build has checked, and writes nothing that does not pass.
func newFastCGI(f *model.FastCGI) (fastcgi, error) {
	var out fastcgi
	if f.Index != "" {
		index, err := model.ParseFastCGIIndex(f.Index)
		if err != nil {
			return out, err
		}
		out.index = name(index)
	}
	for _, p := range f.Params {
		text := p.Value
		if p.Variable != "" {
			text = "$" + p.Variable
		}
		parsed, err := model.ParseFastCGIParam(p.Name, text)
		if err != nil {
			return out, err
		}
		var v value = quoted(parsed.Value)
		if parsed.Variable != "" {
			v = join{literal("$"), name(parsed.Variable)}
		}
		out.params = append(out.params, param{name(parsed.Name), v})
	}
	return out, nil
}

func (f fastcgi) sets(n name) bool {
	return slices.ContainsFunc(f.params, func(p param) bool { return p.name == n })
}

// fastCGIPool is the one pool of FastCGI: a connection ends with its request, as in ingress-nginx. To keep it would
// hold one of the few processes of a PHP-FPM busy with nothing.
const fastCGIPool = literal("headgate_fastcgi")

// fastCGI speaks FastCGI to the peer. A request header of a client reaches it as HTTP_…, unless a parameter of that
// name is set here: so the headers that tell who the client is, and "Proxy", are.
func (c conf) fastCGI(w *writer, p profile) {
	buffering(w, "fastcgi", p)
	w.lines("fastcgi_ignore_headers X-Accel-Redirect;")
	timeouts(w, "fastcgi")
	requestBody(w, p)
	nextUpstream(w, "fastcgi", p)
	if p.fastcgi.index != "" {
		w.directive("fastcgi_index", p.fastcgi.index)
	}
	standard := func(n name, v value, flags ...value) {
		if !p.fastcgi.sets(n) {
			w.directive("fastcgi_param", append([]value{n, v}, flags...)...)
		}
	}
	scheme, https := literal("$scheme"), literal("$https")
	if c.trusts() {
		scheme, https = "$headgate_scheme", "$headgate_https"
	}
	for _, s := range []struct {
		name  name
		value literal
	}{
		{"QUERY_STRING", "$query_string"}, {"REQUEST_METHOD", "$request_method"}, {"CONTENT_TYPE", "$content_type"},
		{"CONTENT_LENGTH", "$content_length"}, {"SCRIPT_NAME", "$fastcgi_script_name"}, {"REQUEST_URI", "$request_uri"},
		{"DOCUMENT_URI", "$document_uri"}, {"DOCUMENT_ROOT", "$document_root"}, {"SERVER_PROTOCOL", "$server_protocol"},
		{"REQUEST_SCHEME", scheme}, {"GATEWAY_INTERFACE", "CGI/1.1"}, {"SERVER_SOFTWARE", "nginx"}, {"REMOTE_ADDR", "$remote_addr"},
		{"REMOTE_PORT", "$remote_port"}, {"SERVER_ADDR", "$server_addr"}, {"SERVER_PORT", "$server_port"}, {"SERVER_NAME", "$host"},
		{"REDIRECT_STATUS", "200"}, // PHP asks for it when it was built with --enable-force-cgi-redirect
	} {
		standard(s.name, s.value)
	}
	standard("HTTPS", https, literal("if_not_empty"))
	for _, h := range c.peerHeadersOf(p) {
		standard(name("HTTP_"+strings.ReplaceAll(strings.ToUpper(string(h.name)), "-", "_")), h.value, literal("if_not_empty"))
	}
	for _, each := range p.fastcgi.params {
		w.directive("fastcgi_param", each.name, each.value)
	}
	w.directive("fastcgi_pass", p.pool())
}

// identity is a checked model.Identity.
type identity struct {
	id          name
	certificate *path // nil: none is shown
	key         path
	ca          *path // nil: nothing is verified
	depth       number
	host        name
	serverName  bool
	protocols   []value
	ciphers     name
	files       []File
}

// File is a file that nginx.conf names: it must lie there before nginx reads the configuration.
type File struct {
	Path    string
	Content model.Secret // PEM
}

var (
	errIdentityID = errors.New("the ID of its TLS identity is no hash")
	errNoTLSDir   = errors.New("there is no folder for its PEM files")
)

// newIdentity checks what build has checked, and writes nothing that does not pass. The PEM itself is read by nginx.
func newIdentity(i *model.Identity, dir path) (*identity, error) {
	out := &identity{id: name(i.ID), depth: max(1, number(i.Depth)), serverName: i.ServerName}
	if i.ID == "" || strings.Trim(string(i.ID), "0123456789abcdef") != "" {
		return nil, errIdentityID
	}
	if dir.text == "" {
		return nil, errNoTLSDir
	}
	file := func(suffix string, content []byte) path {
		p := path{dir.text + "/" + string(i.ID) + suffix}
		out.files = append(out.files, File{Path: p.text, Content: content})
		return p
	}
	if len(i.Certificate) > 0 {
		certificate := file(".pem", i.Certificate)
		out.certificate, out.key = &certificate, file(".key", i.Key)
	}
	if i.Verify {
		ca := file(".ca", i.CA)
		out.ca = &ca
	}
	if host, err := model.ParseHostName(string(i.Name)); err != nil || strings.HasPrefix(string(host), "*") {
		return nil, fmt.Errorf("the name of its TLS identity is none: %.80q", i.Name)
	}
	out.host = name(i.Name)
	if i.Ciphers != "" {
		ciphers, err := model.ParseCiphers(i.Ciphers)
		if err != nil {
			return nil, err
		}
		out.ciphers = name(ciphers)
	}
	for _, p := range i.Protocols {
		if !slices.Contains([]string{"TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"}, p) {
			return nil, fmt.Errorf("%.20q is no version of TLS; write TLSv1, TLSv1.1, TLSv1.2 or TLSv1.3", p)
		}
		out.protocols = append(out.protocols, name(p))
	}
	return out, nil
}

func (i *identity) pool(p model.Protocol) value {
	return join{literal("headgate_"), name(p), literal("_"), i.id}
}

// directives writes how a peer is spoken to over TLS; module is "proxy" or "grpc". nginx 1.22 leaves TLS 1.3 out of
// its default versions.
func (i *identity) directives(w *writer, module literal) {
	protocols := []value{literal("TLSv1.2"), literal("TLSv1.3")}
	if i != nil && len(i.protocols) > 0 {
		protocols = i.protocols
	}
	w.directive(module+"_ssl_protocols", protocols...)
	if i == nil {
		return
	}
	if i.ciphers != "" {
		w.directive(module+"_ssl_ciphers", i.ciphers)
	}
	if i.host != "" {
		w.directive(module+"_ssl_name", i.host)
	}
	if i.serverName {
		w.lines(module + "_ssl_server_name on;")
	}
	if i.ca != nil {
		w.lines(module + "_ssl_verify on;")
		w.directive(module+"_ssl_verify_depth", i.depth)
		w.directive(module+"_ssl_trusted_certificate", *i.ca)
	}
	if i.certificate != nil {
		w.directive(module+"_ssl_certificate", *i.certificate)
		w.directive(module+"_ssl_certificate_key", i.key)
	}
}
