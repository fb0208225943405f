package nginxconf

import (
	"path/filepath"
	"slices"

	"headgate/gateway/model"
)

// ExplainSocket is where `headgate explain` asks what becomes of requests that a listener of that scheme gets.
// It speaks as the listener does (TLS included), after a header of the PROXY protocol that names client
// and listener.
func (l Layout) ExplainSocket(s model.Scheme) string {
	name := "explain.sock"
	if s == model.HTTPS {
		name = "explain-https.sock"
	}
	return filepath.Join(filepath.Dir(l.ControlSocket), name)
}

// explainedSocket is the peer of every request that is explained: it tells what a real one would get.
const explainedSocket = "explained.sock"

// explainServers write the listeners' twins. What decides about a request is the same text as theirs: the
// router's phase, the certificate's, the caps of the profiles. Only the peer is another one, and nobody
// waits for a body that is announced and not sent.
func (c conf) explainServers(w *writer) {
	w.block(func() {
		w.directive("server", path{"unix:" + c.explained.text}, literal("max_fails=0"))
	}, "upstream headgate_explained")
	for _, s := range []model.Scheme{model.HTTP, model.HTTPS} {
		if s == model.HTTP || slices.ContainsFunc(c.listeners, func(l model.Listener) bool { return l.Scheme == s }) {
			c.explainServer(w, s)
		}
	}
	w.block(func() {
		w.directive("listen", path{"unix:" + c.explained.text})
		w.lines(
			"access_log off;",
			"keepalive_timeout 0;",
			"client_max_body_size 0;",
			"# A rewrite may lengthen what the client sent.",
			"large_client_header_buffers 4 64k;",
			"# What nginx would refuse as a peer, another peer might take.",
			"error_page 400 = /;",
			"location / {",
			`    content_by_lua_block { headgate.explained() }`,
			"}",
		)
	}, "server")
}

func (c conf) explainServer(w *writer, s model.Scheme) {
	w.block(func() {
		if s == model.HTTPS {
			w.directive("listen", path{"unix:" + c.explainHTTPS.text}, literal("ssl proxy_protocol"))
			c.certificates(w)
		} else {
			w.directive("listen", path{"unix:" + c.explainHTTP.text}, literal("proxy_protocol"))
		}
		w.lines(
			`server_name "";`,
			"access_log off;",
			"keepalive_timeout 0;",
			"add_header X-Headgate-Explain $headgate_explain always;",
			cookieHeader,
			c.router("explain", s),
			"proxy_request_buffering off;",
			"proxy_buffering off;",
			"proxy_buffer_size 64k;",
			"proxy_buffers 4 64k;",
			"proxy_next_upstream off;",
		)
		const peer = "proxy_pass http://headgate_explained;"
		w.block(func() { w.lines(bodyCap(c.settings.DefaultProfile.BodyClass), peer) }, "location /")
		for _, p := range c.profiles {
			w.block(func() {
				if p.PeerHost {
					requestHeaders(w, c.peerHeadersOf(p))
				}
				w.lines(bodyCap(p.BodyClass), peer)
			}, "location", literal("@"+p.Name()))
		}
	}, "server")
}
