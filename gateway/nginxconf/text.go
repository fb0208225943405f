package nginxconf

import (
	"strings"

	"headgate/gateway/model"
)

// Pools is the number of upstream keepalive pools. nginx scans a pool linearly: with all peers in one
// pool a request costs up to three times as much (1,000 endpoints), with 64 nothing can be measured.
const Pools = 64

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
		c.requestHeaders(w)
		c.pools(w)
		if !c.private {
			for _, l := range c.listeners {
				c.server(w, l)
			}
		}
		c.controlServer(w)
		c.unavailableServer(w)
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
	w.directive("pid", c.pidFile)
	if c.stderr {
		w.lines("error_log stderr notice;")
	} else {
		w.directive("error_log", c.errorLog, literal("notice"))
	}
	w.lines("pcre_jit on;")
}

// lua writes what the Lua code needs. Inline blocks hold one require each: nginx -t does not even
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
		"lua_regex_match_limit 100000;",
		"lua_regex_cache_max_entries 65536;",
	)
	w.block(func() {
		w.block(func() {
			w.lines("schema = 1,")
			c.assign(w, "build", c.luaBuild)
			c.assign(w, "generation", generation)
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
		}, `require("headgate.phase.init")`)
	}, "init_by_lua_block")
	w.lines(`init_worker_by_lua_block { require("headgate.phase.init_worker")() }`, "")
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
		"proxy_next_upstream_timeout 0;",
		"# The balancer limits the tries, route by route.",
		"proxy_next_upstream_tries 0;",
		"",
	)
	c.accessLogs(w)
}

// accessLogs writes ingress-nginx's format. Queries are left out, of the request and of the referer:
// they carry tokens, codes and addresses.
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
		`log_format headgate '$remote_addr - $remote_user [$time_local] "$request_method $headgate_logged_uri $server_protocol" '`,
		`    '$status $body_bytes_sent "$headgate_logged_referer" "$http_user_agent" $request_length $request_time '`,
		`    '[$headgate_upstream] [] $upstream_addr $upstream_response_length $upstream_response_time '`,
		`    '$upstream_status $headgate_request_id';`,
	)
	w.directive("access_log", c.accessLog, literal("headgate buffer=64k flush=1s"))
	w.lines("")
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
		`# Set by the router for the balancer and the log; the last map only makes them known to nginx.`,
		`map "" $headgate_pool { default 00_headgate_pool; }`,
		`map "" $headgate_upstream { default ""; }`,
		`map "" $headgate_policy { default ""; }`,
		`map "$headgate_pool$headgate_upstream$headgate_policy$headgate_host" $headgate_declared { default ""; }`,
		``,
		`# HTTP/2 in the clear is no protocol to upgrade to (RFC 9113 section 3.1): behind such a tunnel, a`,
		`# client would choose paths and hosts of the peer that no router has seen.`,
		`map $http_upgrade $headgate_upgrade { default $headgate_upgrade_of_1; "" ""; "~*(?:^|[\s,])h2c(?:[\s,/;]|$)" ""; }`,
		`# HTTP/2 has no Upgrade (RFC 9113 section 8.2.2): after a 101, nginx 1.22 takes the stream for a`,
		`# connection of its own, and it hangs.`,
		`map $server_protocol $headgate_upgrade_of_1 { default ""; HTTP/1.1 $http_upgrade; }`,
		`map $headgate_upgrade $headgate_connection { default upgrade; "" ""; }`,
		`map $http_x_request_id $headgate_request_id { default $http_x_request_id; "" $request_id; }`,
		`# Requests of HTTP/1.0 may lack a Host; an address names the server then.`,
		`map $server_addr $headgate_server_addr { default $server_addr; "~:" "[$server_addr]"; }`,
		`map $http_host $headgate_host { default $http_host; "" $headgate_server_addr; }`,
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
		`map $headgate_trusted $headgate_port { default $server_port; 1 $headgate_forwarded_port; }`,
		`map $headgate_trusted $headgate_best_host { default $headgate_host; 1 $headgate_forwarded_host; }`,
		``,
	)
}

// requestHeaders writes what the peer gets, as ingress-nginx does.
func (c conf) requestHeaders(w *writer) {
	host, scheme, port := literal("$headgate_host"), literal("$scheme"), literal("$server_port")
	if c.trusts() {
		host, scheme, port = "$headgate_best_host", "$headgate_scheme", "$headgate_port"
	}
	w.directive("proxy_set_header Host", host)
	w.lines(
		"proxy_set_header Upgrade $headgate_upgrade;",
		"proxy_set_header Connection $headgate_connection;",
		"proxy_set_header X-Request-ID $headgate_request_id;",
		"proxy_set_header X-Real-IP $remote_addr;",
		"proxy_set_header X-Forwarded-For $remote_addr;",
	)
	w.directive("proxy_set_header X-Forwarded-Host", host)
	w.directive("proxy_set_header X-Forwarded-Port", port)
	w.directive("proxy_set_header X-Forwarded-Proto", scheme)
	w.directive("proxy_set_header X-Forwarded-Scheme", scheme)
	w.directive("proxy_set_header X-Scheme", scheme)
	w.lines(
		"proxy_set_header X-Original-Forwarded-For $http_x_forwarded_for;",
		"proxy_set_header X-Original-Forwarded-Host $http_x_forwarded_host;",
		`proxy_set_header Proxy "";`,
		"",
	)
}

// pools writes the upstreams. The router picks one by a hash of the model's upstream, so that the
// connections of one service stay together. Their names differ at the start: nginx looks one up by
// comparing it with each. The server is where a request goes for which the
// balancer has no peer.
func (c conf) pools(w *writer) {
	for i := range Pools {
		w.block(func() {
			w.directive("server", path{"unix:" + c.unavailable.text}, literal("max_fails=0"))
			w.lines(
				`balancer_by_lua_block { require("headgate.phase.balancer")() }`,
				"keepalive 320;",
				"keepalive_time 1h;",
				"keepalive_timeout 60s;",
				"keepalive_requests 10000;",
			)
		}, "upstream", join{number(i / 10), number(i % 10), literal("_headgate_pool")})
	}
}

func (c conf) server(w *writer, l model.Listener) {
	w.block(func() {
		c.listen(w, l)
		w.lines(`server_name "";`)
		if l.Scheme == model.HTTPS {
			c.certificates(w)
			c.hsts(w)
		}
		w.lines(c.router("route", l.Scheme))
		w.block(func() { c.directives(w, c.settings.DefaultProfile) }, "location /")
		for _, p := range c.profiles {
			c.profile(w, p)
		}
	}, "server")
}

func (c conf) certificates(w *writer) {
	w.directive("ssl_certificate", c.certificate)
	w.directive("ssl_certificate_key", c.key)
	w.lines(`ssl_certificate_by_lua_block { require("headgate.phase.certificate")() }`)
}

// router is the one phase that every request enters. server_rewrite is the cheapest one (1.07 of static
// nginx, as access; rewrite and set cost 1.09) and runs before nginx chooses the location, so that
// a request for the default profile just goes on into "location /".
func (c conf) router(phase literal, s model.Scheme) literal {
	scheme := literal("http")
	switch {
	case c.trusts():
		scheme = "forwarded"
	case s == model.HTTPS:
		scheme = "https"
	}
	return `server_rewrite_by_lua_block { require("headgate.phase.` + phase + `")("` + scheme + `") }`
}

func (c conf) listen(w *writer, l model.Listener) {
	values := []value{address(l.Address), literal("default_server")}
	http2Directive := c.version.atLeast(version{1, 25, 1})
	if l.Scheme == model.HTTPS {
		values = append(values, literal("ssl"))
		if l.HTTP2 && !http2Directive {
			values = append(values, literal("http2"))
		}
	}
	w.directive("listen", append(values, literal("backlog=4096"))...)
	if l.Scheme == model.HTTPS && l.HTTP2 && http2Directive {
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

func (c conf) profile(w *writer, p model.Profile) {
	w.block(func() { c.directives(w, p) }, "location", literal("@"+p.Name()))
}

// directives writes a profile. client_max_body_size counts for bodies of unknown length in every
// location, but for a Content-Length only where nginx itself chose the location: the router checks
// the length for the named ones.
func (c conf) directives(w *writer, p model.Profile) {
	w.lines(onOff("proxy_buffering", p.Buffering), onOff("proxy_request_buffering", !p.RequestUnbuffered))
	w.lines(bodyCap(p.BodyClass))
	if p.RetryNonIdempotent {
		w.lines("proxy_next_upstream error timeout non_idempotent;")
	} else {
		w.lines("proxy_next_upstream error timeout;")
	}
	w.lines("proxy_pass http://$headgate_pool;")
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
			`    content_by_lua_block { require("headgate.phase.control")() }`,
			"}",
		)
	}, "server")
}

func (c conf) unavailableServer(w *writer) {
	w.block(func() {
		w.directive("listen", path{"unix:" + c.unavailable.text})
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
