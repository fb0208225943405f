package nginx_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/fcgi"
	"strings"
	"testing"

	"headgate/gateway/model"
)

// dpGRPCEcho answers each message of a stream with itself, as a gRPC server does, and ends with trailers.
func dpGRPCEcho(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("X-Saw", strings.Join([]string{r.Proto, r.Host, r.Header.Get("X-Metadata"), r.Header.Get("X-Forwarded-For"), r.Header.Get("Te")}, "|"))
	w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
	flush := http.NewResponseController(w).Flush
	for {
		message, err := dpReadGRPC(r.Body)
		if err != nil {
			break
		}
		_, _ = w.Write(dpGRPC(message))
		_ = flush()
	}
	w.Header().Set("Grpc-Status", "7")
	w.Header().Set("Grpc-Message", "done")
}

// dpGRPC frames a message (gRPC over HTTP2: Length-Prefixed-Message).
func dpGRPC(message string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	return append(b, message...)
}

func dpReadGRPC(r io.Reader) (string, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", err
	}
	b := make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err := io.ReadFull(r, b)
	return string(b), err
}

// dpGRPCCall holds a conversation over one stream and returns the end of it.
func dpGRPCCall(t *testing.T, p *dpProxy, host, path string, messages ...string) *http.Response {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", p.https.String())
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: host}, //nolint:gosec // the test is about what lies behind
		Protocols:       protocols,
	}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), dpDeadline)
	defer cancel()
	body, say := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+host+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	req.Header.Set("X-Metadata", "mine")
	req.Header.Set("X-Forwarded-For", "6.6.6.6")
	go func() { _, _ = say.Write(dpGRPC(messages[0])) }()
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		for i, m := range messages {
			if i > 0 { // only after the answer to the one before: nothing is held back on the way
				if _, err := say.Write(dpGRPC(m)); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := dpReadGRPC(res.Body); err != nil || got != m {
				t.Fatalf("message %d: %q, %v; want %q", i, got, err, m)
			}
		}
	}
	_ = say.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	return res
}

// TestGRPC is row S14 of the acceptance list: gRPC over h2 TLS to peers of h2c and of TLS, with trailers and
// metadata, message by message in both directions.
func TestGRPC(t *testing.T) {
	ca := dpNewCA(t, "grpc")
	open := dpNewPeer(t, nil, dpGRPCEcho)
	secure := dpNewPeer(t, &tls.Config{Certificates: []tls.Certificate{ca.keyPair("grpc.internal")}}, dpGRPCEcho)
	id := &model.Identity{ID: "0123456789ab", CA: ca.pem, Verify: true, Name: "grpc.internal", ServerName: true}
	p := dpLoad(t, dpSettings(), model.Model{
		Identities: []*model.Identity{id},
		Upstreams:  []*model.Upstream{dpAddressed("d/clear/80", open.address), dpAddressed("d/secure/80", secure.address), dpAddressed("d/none/80")},
		Hosts: []*model.Host{dpHost("g.test",
			dpProtocolRoute("/clear.Service", "d/clear/80", model.Profile{Protocol: model.ProtocolGRPC}),
			dpProtocolRoute("/secure.Service", "d/secure/80", model.Profile{Protocol: model.ProtocolGRPCS, Identity: id.ID}),
			dpProtocolRoute("/blind.Service", "d/secure/80", model.Profile{Protocol: model.ProtocolGRPCS}),
			dpProtocolRoute("/none.Service", "d/none/80", model.Profile{Protocol: model.ProtocolGRPC}),
		)},
	})
	for range 3 { // the later ones on kept connections
		for _, path := range []string{"/clear.Service/Talk", "/secure.Service/Talk", "/blind.Service/Talk"} {
			res := dpGRPCCall(t, p, "g.test", path, "one", "two", strings.Repeat("three", 10000))
			if res.StatusCode != 200 || res.Trailer.Get("Grpc-Status") != "7" || res.Trailer.Get("Grpc-Message") != "done" {
				t.Fatalf("%s: %d, trailers %v", path, res.StatusCode, res.Trailer)
			}
			if got, want := res.Header.Get("X-Saw"), "HTTP/2.0|g.test|mine|127.0.0.1|trailers"; got != want {
				t.Errorf("%s: the peer saw %q, want %q", path, got, want)
			}
		}
	}
	if res := dpGRPCCall(t, p, "g.test", "/none.Service/Talk", "one"); res.StatusCode != 503 {
		t.Errorf("without peers: %d", res.StatusCode)
	}
	sni := map[string]string{"/secure.Service/Talk": "grpc.internal", "/blind.Service/Talk": ""}
	for _, c := range secure.seen() {
		if c.sni != sni[c.path] {
			t.Errorf("%s asked for the name %q, want %q", c.path, c.sni, sni[c.path])
		}
	}
}

// TestHTTPS is row S15 of the acceptance list: a peer over TLS is verified against the CA and the name, and shown
// the client certificate that it asks for; whatever is wrong is a 502.
func TestHTTPS(t *testing.T) {
	good, other := dpNewCA(t, "good"), dpNewCA(t, "other")
	plain := dpNewPeer(t, &tls.Config{Certificates: []tls.Certificate{good.keyPair("api.internal")}}, nil)
	strict := dpNewPeer(t, &tls.Config{
		Certificates: []tls.Certificate{good.keyPair("api.internal")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: other.pool(),
		MaxVersion: tls.VersionTLS12, // in TLS 1.3 the refusal comes after the handshake, and nginx logs it as critical
	}, nil)
	only13 := dpNewPeer(t, &tls.Config{Certificates: []tls.Certificate{good.keyPair("api.internal")}, MinVersion: tls.VersionTLS13}, nil)
	certificate, key := other.issue("client")
	identities := []*model.Identity{
		{ID: "00000000000a", CA: good.pem, Verify: true, Name: "api.internal"},
		{ID: "00000000000b", CA: other.pem, Verify: true, Name: "api.internal"},
		{ID: "00000000000c", CA: good.pem, Verify: true, Name: "wrong.internal"},
		{ID: "00000000000d", CA: good.pem, Verify: true, Name: "api.internal", ServerName: true, Certificate: certificate, Key: key},
		{ID: "00000000000e", CA: other.pem, Name: "wrong.internal", ServerName: true}, // nothing is verified
		{ID: "00000000000f", CA: good.pem, Verify: true, Name: "api.internal", Protocols: []string{"TLSv1.2"}, Ciphers: "ECDHE+AESGCM"},
	}
	route := func(path string, upstream model.UpstreamID, id model.IdentityID) *model.Route {
		return dpProtocolRoute(path, upstream, model.Profile{Protocol: model.ProtocolHTTPS, Identity: id})
	}
	h := dpHost("t.test",
		route("/verified", "d/plain/443", "00000000000a"), route("/ca", "d/plain/443", "00000000000b"), route("/name", "d/plain/443", "00000000000c"),
		route("/blind", "d/plain/443", ""), route("/sni", "d/plain/443", "00000000000e"), route("/old", "d/plain/443", "00000000000f"),
		route("/client", "d/strict/443", "00000000000d"), route("/nobody", "d/strict/443", "00000000000a"),
		route("/new", "d/only13/443", ""), route("/mismatch", "d/only13/443", "00000000000f"),
	)
	p := dpLoad(t, dpSettings(), model.Model{
		Identities: identities, Hosts: []*model.Host{h},
		Upstreams: []*model.Upstream{
			dpAddressed("d/only13/443", only13.address), dpAddressed("d/plain/443", plain.address), dpAddressed("d/strict/443", strict.address),
		},
	})
	for _, c := range []struct {
		path   string
		status int
	}{
		{"/verified", 200}, {"/ca", 502}, {"/name", 502}, {"/blind", 200}, {"/sni", 200}, {"/old", 200},
		{"/client", 200}, {"/nobody", 502}, {"/new", 200}, {"/mismatch", 502},
	} {
		got := p.get("t.test", c.path)
		if got.status != c.status {
			t.Errorf("%s: %d, want %d", c.path, got.status, c.status)
		}
		if c.status == 200 && (got.seen == nil || got.seen.Host != "t.test" || got.seen.URI != c.path) {
			t.Errorf("%s: %+v", c.path, got.seen)
		}
	}
	for _, c := range strict.seen() {
		if c.path != "/client" || c.clientName != "client" || c.sni != "api.internal" {
			t.Errorf("the strict peer was asked for %s by %q", c.path, c.clientName)
		}
	}
}

// TestIdentitiesShareNoConnection: one address is spoken to under two names, with two certificates, with none, and in
// two protocols. On each connection the peer must see one of them alone, and connections must be kept.
func TestIdentitiesShareNoConnection(t *testing.T) {
	ca := dpNewCA(t, "ca")
	peer := dpNewPeer(t, &tls.Config{Certificates: []tls.Certificate{ca.keyPair("a.internal")}, ClientAuth: tls.RequestClientCert}, dpEchoAnything)
	open := dpNewPeer(t, nil, dpEchoAnything)
	m := model.Model{Upstreams: []*model.Upstream{dpAddressed("d/clear/80", open.address), dpAddressed("d/peer/443", peer.address)}}
	h := dpHost("k.test")
	want := map[string][3]string{} // path to protocol, name, certificate
	add := func(path string, upstream model.UpstreamID, pr model.Protocol, id *model.Identity) {
		profile := model.Profile{Protocol: pr}
		w := [3]string{"HTTP/1.1"}
		if pr == model.ProtocolGRPC || pr == model.ProtocolGRPCS {
			w[0] = "HTTP/2.0"
		}
		if id != nil {
			id.ID = model.IdentityID(fmt.Sprintf("%012x", len(m.Identities)+1))
			m.Identities = append(m.Identities, id)
			profile.Identity = id.ID
			if id.ServerName {
				w[1] = string(id.Name)
			}
			if len(id.Certificate) > 0 {
				w[2] = string(id.Name)
			}
		}
		want[path] = w
		h.Routes = append(h.Routes, dpProtocolRoute(path, upstream, profile))
	}
	shown := func(name string) *model.Identity {
		certificate, key := ca.issue(name)
		return &model.Identity{Name: model.HostName(name), Certificate: certificate, Key: key}
	}
	add("/name-a", "d/peer/443", model.ProtocolHTTPS, &model.Identity{Name: "a.internal", ServerName: true})
	add("/name-b", "d/peer/443", model.ProtocolHTTPS, &model.Identity{Name: "b.internal", ServerName: true})
	add("/shown-a", "d/peer/443", model.ProtocolHTTPS, shown("a.client"))
	add("/shown-b", "d/peer/443", model.ProtocolHTTPS, shown("b.client"))
	add("/nothing", "d/peer/443", model.ProtocolHTTPS, nil)
	add("/grpcs", "d/peer/443", model.ProtocolGRPCS, nil)
	add("/grpcs-a", "d/peer/443", model.ProtocolGRPCS, &model.Identity{Name: "a.internal", ServerName: true})
	add("/http", "d/clear/80", model.ProtocolHTTP, nil)
	add("/grpc", "d/clear/80", model.ProtocolGRPC, nil)
	m.Hosts = []*model.Host{h}
	settings := dpSettings()
	settings.WorkerProcesses = 1 // one pool, so that what could be shared would be
	p := dpLoad(t, settings, m)

	const rounds = 10
	for range rounds {
		for path := range want {
			if got := p.get("k.test", path); got.status != 200 {
				t.Fatalf("%s: %d %s", path, got.status, got.body)
			}
		}
	}
	paths, conns := map[net.Conn]string{}, map[string]map[net.Conn]bool{}
	for _, c := range append(peer.seen(), open.seen()...) {
		if got := [3]string{c.proto, c.sni, c.clientName}; got != want[c.path] {
			t.Errorf("%s came as %v, want %v", c.path, got, want[c.path])
		}
		if before, ok := paths[c.conn]; ok && before != c.path {
			t.Errorf("%s and %s shared a connection", before, c.path)
		}
		paths[c.conn] = c.path
		if conns[c.path] == nil {
			conns[c.path] = map[net.Conn]bool{}
		}
		conns[c.path][c.conn] = true
	}
	for path := range want {
		if n := len(conns[path]); n == 0 || n > 2 {
			t.Errorf("%s: %d connections for %d requests", path, n, rounds)
		}
	}
}

func dpEchoAnything(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = io.WriteString(w, "fine")
}

// TestProfileThatIsMissing: the default profile speaks HTTP in the clear. It must not stand in for one that does not.
func TestProfileThatIsMissing(t *testing.T) {
	open := dpNewPeer(t, nil, nil)
	p := dpStart(t, dpSettings())
	p.model.Upstreams = []*model.Upstream{dpAddressed("d/a/80", open.address)}
	p.model.Hosts = []*model.Host{dpHost("m.test",
		dpProtocolRoute("/tls", "d/a/80", model.Profile{Protocol: model.ProtocolHTTPS}),
		dpProtocolRoute("/buffered", "d/a/80", model.Profile{Buffering: true}),
	)}
	p.push() // without a reload
	if got := p.get("m.test", "/tls"); got.status != 503 {
		t.Errorf("another protocol: %d", got.status)
	}
	if got := p.get("m.test", "/buffered"); got.status != 200 {
		t.Errorf("the same protocol: %d", got.status)
	}
	if n := len(open.seen()); n != 1 {
		t.Errorf("the peer saw %d requests, want 1", n)
	}
}

// TestFastCGI: what a peer gets, what a client can and cannot say.
func TestFastCGI(t *testing.T) {
	address := dpNewFastCGI(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen := map[string]string{"METHOD": r.Method, "HOST": r.Host, "URI": r.URL.RequestURI(), "BODY": fmt.Sprint(len(body)), "REMOTE": strings.Split(r.RemoteAddr, ":")[0]}
		for name, value := range fcgi.ProcessEnv(r) {
			seen[name] = value
		}
		for name := range r.Header {
			seen["Header "+name] = r.Header.Get(name)
		}
		w.Header().Set("X-From", "fastcgi")
		if r.URL.Path == "/app/fail" {
			w.WriteHeader(http.StatusTeapot)
		}
		_ = json.NewEncoder(w).Encode(seen)
	}))
	value := `a"b\c';{}#`
	params := &model.FastCGI{ID: "0123456789ab", Index: "start.php", Params: []model.FastCGIParam{
		{Name: "APP_EVIL", Value: value}, {Name: "APP_HOST", Variable: "host"}, {Name: "APP_SCRIPT", Variable: "fastcgi_script_name"}, {Name: "SCRIPT_FILENAME", Value: "/var/www/index.php"},
		{Name: "SERVER_NAME", Value: "own.name"},
	}}
	p := dpLoad(t, dpSettings(), model.Model{
		FastCGI: []*model.FastCGI{params}, Upstreams: []*model.Upstream{dpAddressed("d/php/9000", address)},
		Hosts: []*model.Host{dpHost("f.test",
			dpProtocolRoute("/app", "d/php/9000", model.Profile{Protocol: model.ProtocolFastCGI, FastCGI: params.ID}),
			dpProtocolRoute("/bare", "d/php/9000", model.Profile{Protocol: model.ProtocolFastCGI, Buffering: true}),
		)},
	})
	ask := func(r dpRequest) (dpResponse, map[string]string) {
		t.Helper()
		got := p.do(r)
		seen := map[string]string{}
		if err := json.Unmarshal([]byte(got.body), &seen); err != nil {
			t.Fatalf("%d %q: %v", got.status, got.body, err)
		}
		return got, seen
	}
	got, seen := ask(dpRequest{
		method: http.MethodPost, host: "f.test", path: "/app/?q=1", body: bytes.NewReader(make([]byte, 100_000)),
		header: map[string]string{"Proxy": "http://evil", "X-Forwarded-For": "6.6.6.6", "X-Real-IP": "6.6.6.6", "X-Own": "mine"},
	})
	if got.status != 200 || got.header.Get("X-From") != "fastcgi" {
		t.Fatalf("%d %v", got.status, got.header)
	}
	for name, want := range map[string]string{
		"METHOD": "POST", "HOST": "f.test", "URI": "/app/?q=1", "BODY": "100000", "REMOTE": "127.0.0.1", "APP_EVIL": value, "APP_HOST": "f.test",
		"SCRIPT_FILENAME": "/var/www/index.php", "APP_SCRIPT": "/app/start.php", "SERVER_NAME": "own.name", "DOCUMENT_URI": "/app/",
		"GATEWAY_INTERFACE": "CGI/1.1", "REDIRECT_STATUS": "200", "REQUEST_SCHEME": "http", "Header X-Forwarded-For": "127.0.0.1",
		"Header X-Real-Ip": "127.0.0.1", "Header X-Original-Forwarded-For": "6.6.6.6", "Header X-Own": "mine", "Header X-Forwarded-Proto": "http",
		"Header Proxy": "", "HTTPS": "",
	} {
		if seen[name] != want {
			t.Errorf("%s: %q, want %q", name, seen[name], want)
		}
	}
	if got, seen = ask(dpRequest{host: "f.test", path: "/app/fail", tls: true, http2: true}); got.status != http.StatusTeapot || seen["REQUEST_SCHEME"] != "https" {
		t.Errorf("a status of the peer: %d, %v", got.status, seen)
	}
	if _, seen = ask(dpRequest{host: "f.test", path: "/bare/x.php"}); seen["URI"] != "/bare/x.php" || seen["SERVER_NAME"] != "f.test" {
		t.Errorf("without parameters: %v", seen)
	}
	// A request in chunks has no length: it is kept until its end, and then it has.
	if _, seen = ask(dpRequest{method: http.MethodPut, host: "f.test", path: "/app/x", body: io.MultiReader(bytes.NewReader(make([]byte, 70_000)))}); seen["BODY"] != "70000" {
		t.Errorf("chunks: %v", seen)
	}
}

// TestRetryConditions: what a profile names is tried again, and nothing else.
func TestRetryConditions(t *testing.T) {
	answer := func(status int) *dpPeer {
		return dpNewPeer(t, nil, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(status)
		})
	}
	ok, bad, gone := answer(200), answer(502), answer(404)
	both := func(id model.UpstreamID, sick *dpPeer) *model.Upstream {
		u := dpAddressed(id, sick.address, ok.address)
		u.Ejection.Off, u.Budget.Unlimited = true, true
		return u
	}
	route := func(path string, upstream model.UpstreamID, on model.RetryOn) *model.Route {
		return dpProtocolRoute(path, upstream, model.Profile{RetryOn: on})
	}
	p := dpLoad(t, dpSettings(), model.Model{
		Upstreams: []*model.Upstream{both("d/bad/80", bad), both("d/gone/80", gone)},
		Hosts: []*model.Host{dpHost("r.test",
			route("/502", "d/bad/80", model.RetryError|model.Retry502), route("/default", "d/bad/80", 0),
			route("/404", "d/gone/80", model.Retry404), route("/never", "d/gone/80", model.RetryNever),
		)},
	})
	for path, want := range map[string]map[int]bool{
		"/502": {200: true}, "/404": {200: true}, "/default": {200: true, 502: true}, "/never": {200: true, 404: true},
	} {
		got := map[int]bool{}
		for range 12 {
			got[p.get("r.test", path).status] = true
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: statuses %v, want %v", path, got, want)
		}
	}
}

// TestHTTP10ToPeers: the profile's version is what the peer gets.
func TestHTTP10ToPeers(t *testing.T) {
	peer := dpNewPeer(t, nil, nil)
	p := dpLoad(t, dpSettings(), model.Model{
		Upstreams: []*model.Upstream{dpAddressed("d/a/80", peer.address)},
		Hosts: []*model.Host{dpHost("v.test",
			dpProtocolRoute("/old", "d/a/80", model.Profile{HTTP10: true}), dpProtocolRoute("/new", "d/a/80", model.Profile{}))},
	})
	for range 2 {
		p.get("v.test", "/old")
		p.get("v.test", "/new")
	}
	for _, c := range peer.seen() {
		if want := map[string]string{"/old": "HTTP/1.0", "/new": "HTTP/1.1"}[c.path]; c.proto != want {
			t.Errorf("%s came as %s, want %s", c.path, c.proto, want)
		}
	}
}

// TestPeersCannotRedirectInside: X-Accel-Redirect would send a request on into the profile of another tenant, with its
// certificate, past the router.
func TestPeersCannotRedirectInside(t *testing.T) {
	target := model.Profile{Buffering: true}
	peer := dpNewPeer(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Accel-Redirect", r.Header.Get("X-Want"))
		_, _ = w.Write([]byte("the answer itself"))
	})
	p := dpLoad(t, dpSettings(), model.Model{
		Upstreams: []*model.Upstream{dpAddressed("d/a/80", peer.address)},
		Hosts:     []*model.Host{dpHost("x.test", dpProtocolRoute("/plain", "d/a/80", model.Profile{}), dpProtocolRoute("/named", "d/a/80", target))},
	})
	for _, path := range []string{"/plain", "/named"} {
		for _, want := range []string{"@" + target.Name(), "/named", "/nowhere"} {
			got := p.do(dpRequest{host: "x.test", path: path, header: map[string]string{"X-Want": want}})
			if got.status != 200 || got.body != "the answer itself" || got.header.Get("X-Accel-Redirect") != "" {
				t.Errorf("%s to %s: %d %q", path, want, got.status, got.body)
			}
		}
	}
}

// TestBuffersHoldLargeHeaders: an answer's head is as large as the profile's buffer.
func TestBuffersHoldLargeHeaders(t *testing.T) {
	peer := dpNewPeer(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Large", strings.Repeat("x", 20_000))
	})
	p := dpLoad(t, dpSettings(), model.Model{
		Upstreams: []*model.Upstream{dpAddressed("d/a/80", peer.address)},
		Hosts: []*model.Host{dpHost("b.test",
			dpProtocolRoute("/large", "d/a/80", model.Profile{BufferSize: 32, Buffers: 4}), dpProtocolRoute("/small", "d/a/80", model.Profile{}))},
	})
	if got := p.get("b.test", "/large"); got.status != 200 || len(got.header.Get("X-Large")) != 20_000 {
		t.Errorf("32 KiB: %d", got.status)
	}
	if got := p.get("b.test", "/small"); got.status != 502 {
		t.Errorf("4 KiB: %d", got.status)
	}
}
