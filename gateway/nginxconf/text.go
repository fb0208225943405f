package nginxconf

import (
	"slices"
	"strings"

	"headgate/gateway/model"
)

// Pools is the number of upstream keepalive pools. nginx scans a pool linearly: with all peers in one
// pool a request costs up to three times as much (1,000 endpoints), with 64 nothing can be measured.
const Pools = 64

// poolLengths is how many lengths the names of pools have.
const poolLengths = 8

// The sizes of the dicts beside the state. A peer that was used costs them about 250 bytes: 10,000 peers take a
// quarter of peersBytes. The metrics of a route that was used take 1.5 KiB: metricsBytes holds those of 40,000 routes.
// What does not fit is counted as dropped and breaks no request.
const (
	peersBytes   = literal("16m")
	metricsBytes = literal("64m")
	// clientsBytes holds the peers of 60,000 client addresses that are bound to one.
	clientsBytes = literal("16m")
)

// The body of control requests: a part of a push is at most one record of 1 MiB and its header.
const controlBody = literal("2m")

// text writes the whole file.
func (c conf) text(generation name) []byte {
	w := &writer{}
	w.lines("# Written by headgate. A change here is lost with the next reload.")
	c.main(w)
	w.block(func() {
		w.directive("worker_connections", number(c.settings.WorkerConnections))
		w.lines("multi_accept on;")
	}, "events")
	w.block(func() {
		c.lua(w, generation)
		c.base(w)
		c.tls(w)
		c.maps(w)
		requestHeaders(w, c.peerHeaders())
		w.lines("")
		c.pools(w)
		if !c.private {
			for _, l := range c.listeners {
				c.server(w, l)
			}
		}
		c.controlServer(w)
		c.unavailableServers(w)
		c.explainServers(w)
	}, "http")
	return w.bytes()
}

func (c conf) main(w *writer) {
	for _, m := range c.modules {
		w.directive("load_module", m)
	}
	switch {
	case c.user != "" && c.group != "":
		w.directive("user", c.user, c.group)
	case c.user != "":
		w.directive("user", c.user)
	}
	if c.daemon {
		w.lines("daemon on;")
	} else {
		w.lines("daemon off;")
	}
	if c.settings.WorkerProcesses == 0 {
		w.lines("worker_processes auto;")
	} else {
		w.directive("worker_processes", number(c.settings.WorkerProcesses))
	}
	if c.openFiles > 0 {
		w.directive("worker_rlimit_nofile", number(c.openFiles))
	}
	if c.hasPIDFile {
		w.directive("pid", c.pidFile)
	}
	if c.stderr {
		w.lines("error_log stderr notice;")
	} else {
		w.directive("error_log", c.errorLog, literal("notice"))
	}
	w.lines("pcre_jit on;")
}

// lua writes what the Lua code needs. Inline blocks hold one call each: nginx -t does not even
// parse Lua, so everything else lives in files that tests compile.
func (c conf) lua(w *writer, generation name) {
	separator := ";"
	if strings.HasPrefix(c.luaPath.text, separator) {
		separator = ""
	}
	w.directive("lua_package_path", path{c.luaDir.text + "/?.lua" + separator + c.luaPath.text})
	w.directive("lua_package_cpath", c.luaCPath)
	w.directive("lua_shared_dict headgate_state", number(c.settings.StateMemoryBytes))
	w.lines(
		"lua_shared_dict headgate_meta 1m;",
		"lua_shared_dict headgate_peers "+peersBytes+";",
		"lua_shared_dict headgate_metrics "+metricsBytes+";",
		"lua_shared_dict headgate_clients "+clientsBytes+";",
		"lua_regex_match_limit 100000;",
		"lua_regex_cache_max_entries 65536;",
	)
	w.block(func() {
		w.block(func() {
			w.lines("schema = 1,")
			c.assign(w, "build", c.luaBuild)
			c.assign(w, "generation", generation)
			c.countListeners(w)
			if c.settings.RequestMetrics {
				w.lines("metrics = true,")
			}
			if c.hasAccessLog {
				w.lines("access_log = true,")
			}
			if c.hasStateLog {
				w.indent()
				w.buf = append(w.buf, "state_log = "...)
				w.buf = c.stateLog.appendTo(w.buf)
				w.buf = append(w.buf, ",\n"...)
			}
			w.block(func() {
				for _, p := range c.profiles {
					w.indent()
					w.buf = append(w.buf, '"')
					w.buf = append(w.buf, p.Name()...)
					w.buf = append(w.buf, "\",\n"...)
				}
			}, "profiles =")
		}, `require("headgate.load")`)
	}, "init_by_lua_block")
	w.lines(`init_worker_by_lua_block { headgate.start() }`, "")
}

// countListeners lets the proxy tell whether it has any: before its first reload it has none, and a VIP must not lead to it.
func (c conf) countListeners(w *writer) {
	listeners := number(len(c.listeners))
	if c.private {
		listeners = 0
	}
	w.indent()
	w.buf = append(w.buf, "listeners = "...)
	w.buf = listeners.appendTo(w.buf)
	w.buf = append(w.buf, ",\n"...)
}

func (c conf) assign(w *writer, key literal, n name) {
	w.indent()
	w.buf = append(w.buf, key...)
	w.buf = append(w.buf, ` = "`...)
	w.buf = n.appendTo(w.buf)
	w.buf = append(w.buf, "\",\n"...)
}

// base writes the settings that hold for every server, with ingress-nginx's defaults.
func (c conf) base(w *writer) {
	for _, kind := range []literal{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		w.directive(kind+"_temp_path", path{c.tempDir.text + "/" + string(kind)})
	}
	w.lines(
		"server_tokens off;",
		"sendfile on;",
		"tcp_nopush on;",
		"tcp_nodelay on;",
		"reset_timedout_connection on;",
		"keepalive_timeout 75s;",
		"keepalive_requests 1000;",
		"client_header_buffer_size 1k;",
		"client_header_timeout 60s;",
		"large_client_header_buffers 4 8k;",
		"client_body_buffer_size 8k;",
		"client_body_timeout 60s;",
		"http2_max_concurrent_streams 128;",
		"variables_hash_bucket_size 256;",
		"variables_hash_max_size 2048;",
		"map_hash_bucket_size 64;",
		"",
		"proxy_http_version 1.1;",
		"proxy_connect_timeout 5s;",
		"proxy_send_timeout 60s;",
		"proxy_read_timeout 60s;",
		"proxy_buffer_size 4k;",
		"proxy_buffers 4 4k;",
		"proxy_max_temp_file_size 1024m;",
		"proxy_redirect off;",
		"proxy_intercept_errors off;",
		"# A peer must not send a request on into another location, past the router.",
		"proxy_ignore_headers X-Accel-Redirect;",
		"proxy_next_upstream_timeout 0;",
		"# The balancer limits the tries, route by route.",
		"proxy_next_upstream_tries 0;",
		"",
	)
	c.accessLogs(w)
}

// accessLogs writes ingress-nginx's format, or JSON. Queries are left out, of the request and of the referer:
// they carry tokens, codes and addresses. Requests of a route that asks for it are left out by $headgate_log.
func (c conf) accessLogs(w *writer) {
	if !c.hasAccessLog {
		w.lines("access_log off;", "")
		return
	}
	w.lines(
		`map $request_uri $headgate_logged_uri {`,
		`    default $request_uri;`,
		`    "~^(?<headgate_logged_path>[^?]*)\?" $headgate_logged_path;`,
		`}`,
		`map $http_referer $headgate_logged_referer {`,
		`    default $http_referer;`,
		`    "~^(?<headgate_logged_page>[^?]*)\?" $headgate_logged_page;`,
		`}`,
	)
	if c.accessLogFormat == AccessLogJSON {
		jsonFormat(w)
	} else {
		w.lines(
			`log_format headgate '$remote_addr - $remote_user [$time_local] "$request_method $headgate_logged_uri $server_protocol" '`,
			`    '$status $body_bytes_sent "$headgate_logged_referer" "$http_user_agent" $request_length $request_time '`,
			`    '[$headgate_upstream] [] $upstream_addr $upstream_response_length $upstream_response_time '`,
			`    '$upstream_status $headgate_request_id';`,
		)
	}
	w.directive("access_log", c.accessLog, literal("headgate buffer=64k flush=1s if=$headgate_log"))
	w.lines("")
}

// jsonFormat writes one object a line. What nginx always has as a number stands without quotes; what it tells of
// peers is a list as text where there were several tries.
func jsonFormat(w *writer) {
	w.lines(
		`# HTTP/0.9 has no status: nginx writes 009, which is no number in JSON.`,
		`map $status $headgate_logged_status { default $status; "~^0" 0; }`,
		`log_format headgate escape=json '{"time":"$time_iso8601","requestID":"$headgate_request_id","remoteAddress":"$remote_addr",'`,
		`    '"remoteUser":"$remote_user","scheme":"$scheme","protocol":"$server_protocol","tls":"$ssl_protocol","method":"$request_method",'`,
		`    '"host":"$host","path":"$headgate_logged_uri","status":$headgate_logged_status,"requestBytes":$request_length,"sentBytes":$bytes_sent,'`,
		`    '"bodyBytes":$body_bytes_sent,"seconds":$request_time,"referer":"$headgate_logged_referer","userAgent":"$http_user_agent",'`,
		`    '"upstream":"$headgate_upstream","upstreamAddress":"$upstream_addr","upstreamStatus":"$upstream_status",'`,
		`    '"upstreamSeconds":"$upstream_response_time","upstreamBytes":"$upstream_response_length"}';`,
	)
}

func (c conf) tls(w *writer) {
	w.lines(
		"ssl_protocols TLSv1.2 TLSv1.3;",
		"ssl_prefer_server_ciphers on;",
		"ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:"+
			"ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:"+
			"ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:"+
			"DHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384;",
		"ssl_ecdh_curve auto;",
		"ssl_session_cache shared:headgate_tls:10m;",
		"ssl_session_timeout 10m;",
		"ssl_session_tickets off;",
		"ssl_buffer_size 4k;",
		"",
	)
}

// trusts tells whether anybody's X-Forwarded-* headers are believed.
func (c conf) trusts() bool {
	return c.settings.UseForwardedHeaders && len(c.settings.TrustedProxies) > 0
}

// maps declares the variables. nginx computes a map only when its variable is read. Those that Lua
// sets are declared here and not by "set", which would run anew, and reset them, in subrequests.
func (c conf) maps(w *writer) {
	w.lines(
		`# Set by the router for the balancer and the log; the last map only makes them known to nginx. The two`,
		`# that it sets for each request have short names: nginx hashes them letter by letter each time.`,
		`map "" $hg_pool { default 00_http; }`,
		`map "" $headgate_upstream { default ""; }`,
		`map "" $headgate_policy { default ""; }`,
		`map "" $headgate_cookie { default ""; }`,
		`map "" $headgate_cookie_path { default ""; }`,
		`map "" $headgate_peer { default ""; }`,
		`map "" $headgate_peer_host { default ""; }`,
		`map "" $headgate_log { default 1; }`,
		`# The router sets these two where it knows better.`,
		`map "" $headgate_host { default $http_host; }`,
		`map "" $hg_id { default $request_id; }`,
		`map "$hg_pool$headgate_upstream$headgate_policy$headgate_host$hg_id$headgate_cookie"`,
		`    $headgate_declared { default "$headgate_cookie_path$headgate_peer$headgate_peer_host$headgate_log$headgate_server_addr"; }`,
		``,
		`# HTTP/2 in the clear is no protocol to upgrade to (RFC 9113 section 3.1): behind such a tunnel, a`,
		`# client would choose paths and hosts of the peer that no router has seen.`,
		`map $http_upgrade $headgate_upgrade { default $headgate_upgrade_of_1; "" ""; "~*(?:^|[\s,])h2c(?:[\s,/;]|$)" ""; }`,
		`# HTTP/2 has no Upgrade (RFC 9113 section 8.2.2): after a 101, nginx 1.22 takes the stream for a`,
		`# connection of its own, and it hangs.`,
		`map $server_protocol $headgate_upgrade_of_1 { default ""; HTTP/1.1 $http_upgrade; }`,
		`map $headgate_upgrade $headgate_connection { default upgrade; "" ""; }`,
		`map $http_x_request_id $headgate_request_id { default $http_x_request_id; "" $hg_id; }`,
		`map $server_addr $headgate_server_addr { default $server_addr; "~:" "[$server_addr]"; }`,
		`# Set for headgate explain only.`,
		`map "" $headgate_explain { default ""; }`,
	)
	if !c.trusts() {
		w.lines("")
		return
	}
	for _, p := range c.settings.TrustedProxies {
		w.directive("set_real_ip_from", prefix(p))
	}
	w.lines("real_ip_header X-Forwarded-For;", "real_ip_recursive on;")
	for _, geo := range []literal{"geo $realip_remote_addr $headgate_trusted", "geo $proxy_protocol_addr $headgate_explain_trusted"} {
		w.block(func() {
			w.lines("default 0;")
			for _, p := range c.settings.TrustedProxies {
				w.directive(literal(""), prefix(p), literal("1"))
			}
		}, geo)
	}
	w.lines(
		`map $http_x_forwarded_proto $headgate_forwarded_scheme { default $http_x_forwarded_proto; "" $scheme; }`,
		`map $http_x_forwarded_port $headgate_forwarded_port { default $http_x_forwarded_port; "" $server_port; }`,
		`map $http_x_forwarded_host $headgate_forwarded_host {`,
		`    default $headgate_host;`,
		`    "~^\s*(?<headgate_first_host>[^,\s]+)" $headgate_first_host;`,
		`}`,
		`map $headgate_trusted $headgate_scheme { default $scheme; 1 $headgate_forwarded_scheme; }`,
		`map $headgate_scheme $headgate_https { default ""; https on; }`,
		`map $headgate_trusted $headgate_port { default $server_port; 1 $headgate_forwarded_port; }`,
		`map $headgate_trusted $headgate_best_host { default $headgate_host; 1 $headgate_forwarded_host; }`,
		``,
	)
}

// header is a request header that the peer gets.
type header struct {
	name  name
	value value
}

// peerHeaders are what the peer gets over any protocol, as ingress-nginx has it.
func (c conf) peerHeaders() []header {
	host, scheme, port := literal("$headgate_host"), literal("$scheme"), value(literal("$server_port"))
	switch {
	case c.trusts():
		host, scheme, port = "$headgate_best_host", "$headgate_scheme", literal("$headgate_port")
	case c.listener != nil:
		// What is known here need not be looked up for each request.
		scheme, port = schemeOf(c.listener.Scheme), number(c.listener.Address.Port())
	}
	return []header{
		{"Host", host},
		{"X-Request-ID", literal("$headgate_request_id")}, {"X-Real-IP", literal("$remote_addr")}, {"X-Forwarded-For", literal("$remote_addr")},
		{"X-Forwarded-Host", host}, {"X-Forwarded-Port", port}, {"X-Forwarded-Proto", scheme}, {"X-Forwarded-Scheme", scheme},
		{"X-Scheme", scheme}, {"X-Original-Forwarded-For", literal("$http_x_forwarded_for")},
		{"X-Original-Forwarded-Host", literal("$http_x_forwarded_host")}, {"Proxy", literal(`""`)},
	}
}

// peerHeadersOf are those that a profile sends.
func (c conf) peerHeadersOf(p profile) []header {
	headers := c.peerHeaders()
	if p.PeerHost {
		headers[0].value = literal("$headgate_peer_host")
	}
	return headers
}

// requestHeaders writes what the peer gets over HTTP/1.
func requestHeaders(w *writer, headers []header) {
	headers = slices.Insert(headers, 1, header{"Upgrade", literal("$headgate_upgrade")},
		header{"Connection", literal("$headgate_connection")})
	for _, h := range headers {
		w.directive("proxy_set_header", h.name, h.value)
	}
}

// pools writes the upstreams. The router picks one by a hash of the model's upstream, so that the
// connections of one service stay together. The server is where a request goes for which the
// balancer has no peer.
func (c conf) pools(w *writer) {
	for i := range Pools {
		keptPool(w, poolName(i), c.unavailable)
	}
	for _, p := range []struct {
		protocol model.Protocol
		suffix   literal
		instead  path
	}{
		{model.ProtocolHTTPS, "_https", c.unavailableTLS}, {model.ProtocolGRPC, "_grpc", c.unavailableHTTP2},
		{model.ProtocolGRPCS, "_grpcs", c.unavailableTLS},
	} {
		if slices.ContainsFunc(c.profiles, func(used profile) bool { return used.Protocol == p.protocol && used.identity == nil }) {
			c.shardedPools(w, p.suffix, p.instead)
		}
	}
	c.ownPools(w)
}

// poolName is what balancer.lua calls the i-th pool. For each request nginx compares the name with those of all
// upstreams in turn, the lengths first: they differ, so that most comparisons end there (1 % of a request). Names are
// short because nginx goes through each letter several times.
func poolName(i int) value {
	return join{number(i / 10), number(i % 10), literal("_http"), literal(strings.Repeat("_", i%poolLengths))}
}

func (c conf) shardedPools(w *writer, suffix literal, instead path) {
	for i := range Pools {
		keptPool(w, join{number(i / 10), number(i % 10), suffix}, instead)
	}
}

// ownPools writes the pools of identities, each once, and that of FastCGI.
func (c conf) ownPools(w *writer) {
	type own struct {
		protocol model.Protocol
		id       model.IdentityID
	}
	seen := map[own]bool{}
	for _, p := range c.profiles {
		key := own{p.Protocol, p.Identity}
		switch {
		case p.identity != nil && !seen[key]:
			seen[key] = true
			keptPool(w, p.pool(), c.unavailableTLS)
		case p.Protocol == model.ProtocolFastCGI && !seen[own{p.Protocol, ""}]:
			seen[own{p.Protocol, ""}] = true
			w.block(func() { picked(w, c.unavailable) }, "upstream", fastCGIPool)
		}
	}
}

func picked(w *writer, instead path) {
	w.directive("server", path{"unix:" + instead.text}, literal("max_fails=0"))
	w.lines(`balancer_by_lua_block { headgate.balance() }`)
}

func keptPool(w *writer, name value, instead path) {
	w.block(func() {
		picked(w, instead)
		w.lines("keepalive 320;", "keepalive_time 1h;", "keepalive_timeout 60s;", "keepalive_requests 10000;")
	}, "upstream", name)
}

func (c conf) server(w *writer, l model.Listener) {
	c.listener = &l
	w.block(func() {
		c.listen(w, l)
		w.lines(`server_name "";`)
		if l.Scheme == model.HTTPS {
			c.certificates(w)
			c.hsts(w)
		}
		w.lines(cookieHeader, c.router("route", l.Scheme))
		if c.logPhase {
			w.lines(`log_by_lua_block { headgate.log() }`)
		}
		if c.settings.StrictAnswers {
			w.lines(`header_filter_by_lua_block { headgate.check_answer() }`)
		}
		w.lines("error_page 502 = @headgate_refused;")
		if !c.trusts() {
			requestHeaders(w, c.peerHeaders())
		}
		w.block(func() { c.directives(w, c.standard) }, "location /")
		for _, p := range c.profiles {
			c.profile(w, p)
		}
		refusedRetry(w)
	}, "server")
}

// refusedRetry gives the client the error that there was: where the balancer refuses a retry, nginx knows none but 502
// (ngx_http_upstream_connect, NGX_BUSY). The balancer marks those that followed a time-out (peers.lua, TIMED_OUT).
func refusedRetry(w *writer) {
	w.block(func() {
		w.lines(
			`if ($headgate_peer ~ "t-$") {`,
			"    return 504;",
			"}",
			"return 502;",
		)
	}, "location @headgate_refused")
}

// cookieHeader sends the cookie of a sticky session; where there is none it is empty, and nginx leaves an empty
// header out. A level that adds a header inherits none from above: this stands wherever one is added.
const cookieHeader = literal("add_header Set-Cookie $headgate_cookie always;")

func (c conf) certificates(w *writer) {
	w.directive("ssl_certificate", c.certificate)
	w.directive("ssl_certificate_key", c.key)
	w.lines(`ssl_certificate_by_lua_block { headgate.choose_certificate() }`)
}

// router is the one phase that every request enters. server_rewrite is the cheapest one (1.07 of static
// nginx, as access; rewrite and set cost 1.09) and runs before nginx chooses the location, so that
// a request for the default profile just goes on into "location /".
func (c conf) router(phase literal, s model.Scheme) literal {
	scheme := schemeOf(s)
	if c.trusts() {
		scheme = "forwarded"
	}
	return `server_rewrite_by_lua_block { headgate.` + phase + `("` + scheme + `") }`
}

func schemeOf(s model.Scheme) literal {
	if s == model.HTTPS {
		return "https"
	}
	return "http"
}

// http2Directive tells that http2 is a directive, and no longer a word of listen.
func (c conf) http2Directive() bool { return c.version.atLeast(version{1, 25, 1}) }

func (c conf) listen(w *writer, l model.Listener) {
	values := []value{address(l.Address), literal("default_server")}
	if l.Scheme == model.HTTPS {
		values = append(values, literal("ssl"))
		if l.HTTP2 && !c.http2Directive() {
			values = append(values, literal("http2"))
		}
	}
	w.directive("listen", append(values, literal("backlog=4096"))...)
	if l.Scheme == model.HTTPS && l.HTTP2 && c.http2Directive() {
		w.lines("http2 on;")
	}
}

// hsts is native, so that it costs no Lua phase and stands on errors and redirects too.
func (c conf) hsts(w *writer) {
	h := c.settings.HSTS
	if !h.Enabled {
		return
	}
	v := join{literal(`"max-age=`), seconds(h.MaxAge)}
	if h.IncludeSubdomains {
		v = append(v, literal("; includeSubDomains"))
	}
	if h.Preload {
		v = append(v, literal("; preload"))
	}
	w.lines("proxy_hide_header Strict-Transport-Security;")
	w.directive("add_header Strict-Transport-Security", append(v, literal(`"`)), literal("always"))
}

// controlServer is how the daemon talks to Lua. Private keys pass through it: its buffer holds the
// largest part, so that none is ever written to a temporary file.
func (c conf) controlServer(w *writer) {
	w.block(func() {
		w.directive("listen", path{"unix:" + c.control.text})
		w.lines("access_log off;")
		w.directive("client_max_body_size", controlBody)
		w.directive("client_body_buffer_size", controlBody)
		w.lines(
			"client_body_in_single_buffer on;",
			"# A kept connection would stay with a worker that a reload has retired.",
			"keepalive_timeout 0;",
			"location / {",
			`    content_by_lua_block { headgate.control() }`,
			"}",
		)
	}, "server")
}

// unavailableServers answer for peers that are not there, in each of the protocols in which that can be said.
func (c conf) unavailableServers(w *writer) {
	c.unavailableServer(w, c.unavailable)
	uses := func(protocols ...model.Protocol) bool {
		return slices.ContainsFunc(c.profiles, func(p profile) bool { return slices.Contains(protocols, p.Protocol) })
	}
	http2 := literal("http2")
	if c.http2Directive() {
		http2 = ""
	}
	if uses(model.ProtocolGRPC) {
		c.unavailableServer(w, c.unavailableHTTP2, http2)
	}
	if uses(model.ProtocolHTTPS, model.ProtocolGRPCS) && c.certificate.text != "" {
		c.unavailableServer(w, c.unavailableTLS, "ssl", http2)
	}
}

func (c conf) unavailableServer(w *writer, socket path, options ...literal) {
	w.block(func() {
		listen := []value{path{"unix:" + socket.text}}
		for _, o := range options {
			if o != "" {
				listen = append(listen, o)
			}
		}
		w.directive("listen", listen...)
		if len(options) > 0 && c.http2Directive() {
			w.lines("http2 on;")
		}
		if slices.Contains(options, "ssl") {
			w.directive("ssl_certificate", c.certificate)
			w.directive("ssl_certificate_key", c.key)
		}
		w.lines(
			"access_log off;",
			"client_max_body_size 0;",
			"default_type text/plain;",
			"location / {",
			`    return 503 "503 Service Temporarily Unavailable\n";`,
			"}",
		)
	}, "server")
}
