package acceptance

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestBalancing runs the cases about the way to a backend against one gateway, each replacing the configuration of
// the one before.
func TestBalancing(t *testing.T) {
	g := start(t, "")
	for name, run := range map[string]func(*testing.T, *gateway){
		"S01 a sticky cookie leads back to its pod":         stickyCookie,
		"S02 attributes of a sticky cookie":                 cookieAttributes,
		"S05 a sticky cookie is Secure over https":          cookieSecure,
		"S07 a persistent session outlives new pods":        persistentSession,
		"S08 one value of a hash reaches one pod, or three": hashBy,
		"S11 service-upstream asks the Service itself":      serviceUpstream,
		"E04 largest bodies":                                bodySize,
		"W15 the Host that peers are asked for":             peerHost,
		"bodies are kept in as much memory as asked for":    bodyBuffer,
		"E07 another pod answers for one that cannot":       nextUpstream,
		"S15 a backend over TLS is verified":                verifiedBackend,
		"a Service chooses the algorithm":                   serviceAlgorithm,
	} {
		t.Run(name, func(t *testing.T) {
			outer := g.t
			g.t = t
			defer func() { g.t = outer }()
			run(t, g)
		})
	}
}

// pods is a Service NAME:80 with a slice of its own for each of its pods.
func (g *gateway) pods(name string, more string, pods ...string) string {
	all := []string{fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s%s}\nspec: {clusterIP: 10.96.0.10, ports: [{name: web, port: 80}]}\n", name, more)}
	for _, pod := range pods {
		all = append(all, slice(name+"-"+pod, name, g.expand(endpoint(pod, ""))))
	}
	return join(all...)
}

// cookieOf gives the one cookie that an answer sets, or nil.
func cookieOf(t *testing.T, a answer) *http.Cookie {
	t.Helper()
	cookies := (&http.Response{Header: a.header}).Cookies()
	switch len(cookies) {
	case 0:
		return nil
	case 1:
		return cookies[0]
	}
	t.Fatalf("cookies %v, want one", cookies)
	return nil
}

func (g *gateway) withCookie(url string, c *http.Cookie) answer {
	g.t.Helper()
	return g.ask(request{url: url, header: []string{"Cookie: " + c.Name + "=" + c.Value}})
}

// binds asks with the cookie of a first answer again and again: it must lead to the same pod and set no other.
func (g *gateway) binds(t *testing.T, url string) (*http.Cookie, string) {
	t.Helper()
	first := g.ask(request{url: url})
	c := cookieOf(t, first)
	if c == nil {
		t.Fatalf("no cookie in %v", first.header)
	}
	for range 10 {
		again := g.withCookie(url, c)
		if again.echoed.Name != first.echoed.Name {
			t.Fatalf("the cookie of %s leads to %q", first.echoed.Name, again.echoed.Name)
		}
		if other := cookieOf(t, again); other != nil {
			t.Fatalf("a new cookie %v for one that is good", other)
		}
	}
	return c, first.echoed.Name
}

func stickyCookie(t *testing.T, g *gateway) {
	g.apply(join(ingress("one", "h.test", "/shop", "Prefix", "svc", annotations("affinity", "cookie", "load-balance", "random")), g.pods("svc", "", "pod1")))
	c, _ := g.binds(t, "http://h.test/shop/cart")
	if c.Name != "INGRESSCOOKIE" || c.Path != "/shop" || !c.HttpOnly || c.Secure || c.Domain != "" || c.MaxAge != 0 || !c.Expires.IsZero() {
		t.Errorf("cookie %v", c)
	}
	g.apply(join(ingress("one", "h.test", "/shop", "Prefix", "svc", annotations("affinity", "cookie")), g.pods("svc", "", "pod1", "pod2", "pod3")))
	seen := map[string]bool{}
	for range 30 {
		a := g.ask(request{url: "http://h.test/shop"})
		seen[a.echoed.Name] = true
		if again := g.withCookie("http://h.test/shop", cookieOf(t, a)); again.echoed.Name != a.echoed.Name {
			t.Fatalf("the cookie of %s leads to %q", a.echoed.Name, again.echoed.Name)
		}
	}
	if len(seen) != 3 {
		t.Errorf("30 new clients met the pods %v, want all three", seen)
	}
}

func cookieAttributes(t *testing.T, g *gateway) {
	g.apply(join(ingress("one", "h.foo.bar", "/foo", "Prefix", "svc", annotations(
		"affinity", "cookie", "session-cookie-name", "SERVERID", "session-cookie-expires", "172800", "session-cookie-max-age", "259200",
		"session-cookie-domain", "foo.bar", "session-cookie-path", "/foo/bar", "session-cookie-samesite", "Lax")), g.pods("svc", "", "pod1", "pod2")))
	before := time.Now().Truncate(time.Second)
	c := cookieOf(t, g.ask(request{url: "http://h.foo.bar/foo/bar"}))
	if c == nil || c.Name != "SERVERID" || c.MaxAge != 259200 || c.Domain != "foo.bar" || c.Path != "/foo/bar" || c.SameSite != http.SameSiteLaxMode || !c.HttpOnly {
		t.Fatalf("cookie %v", c)
	}
	expires, err := time.Parse(http.TimeFormat, c.RawExpires) // RFC 6265 section 4.1.1: a year of four digits
	const seconds = 172800 * time.Second
	if err != nil || expires.Before(before.Add(seconds-time.Second)) || expires.After(time.Now().Add(seconds+time.Second)) {
		t.Errorf("it expires at %q (%v), want %s from now", c.RawExpires, err, seconds)
	}
}

func cookieSecure(t *testing.T, g *gateway) {
	secure := func(url string) bool {
		c := cookieOf(t, g.ask(request{url: url}))
		if c == nil {
			t.Fatalf("%s sets no cookie", url)
		}
		return c.Secure
	}
	g.apply(join(ingress("one", "h.test", "/", "Prefix", "svc", annotations("affinity", "cookie")), g.pods("svc", "", "pod1", "pod2")))
	if !secure("https://h.test/") || secure("http://h.test/") {
		t.Error("a cookie must be Secure over https, and over https only")
	}
	g.apply(join(ingress("one", "h.test", "/", "Prefix", "svc", annotations("affinity", "cookie", "session-cookie-secure", "true")), g.pods("svc", "", "pod1", "pod2")))
	if !secure("http://h.test/") {
		t.Error("session-cookie-secure does not hold over http")
	}
	g.apply(join(ingress("one", "h.test", "/", "Prefix", "svc", annotations("affinity", "cookie", "session-cookie-secure", "false")), g.pods("svc", "", "pod1", "pod2")))
	if secure("https://h.test/") {
		t.Error("session-cookie-secure false does not hold over https")
	}
}

func persistentSession(t *testing.T, g *gateway) {
	rules := ingress("one", "h.test", "/", "Prefix", "svc", annotations("affinity", "cookie", "affinity-mode", "persistent"))
	g.apply(join(rules, g.pods("svc", "", "pod1", "pod2")))
	sessions := map[*http.Cookie]string{}
	for range 8 {
		c, pod := g.binds(t, "http://h.test/")
		sessions[c] = pod
	}
	g.apply(join(rules, g.pods("svc", "", "pod1", "pod2", "pod3", "pod4", "pod5")))
	for c, pod := range sessions {
		a := g.withCookie("http://h.test/", c)
		if a.echoed.Name != pod || cookieOf(t, a) != nil {
			t.Errorf("a session of %s went to %q when pods were added", pod, a.echoed.Name)
		}
	}
}

func hashBy(t *testing.T, g *gateway) {
	pods := g.pods("svc", "", "pod1", "pod2", "pod3", "pod4", "pod5")
	reached := func(url string, times int) map[string]bool {
		seen := map[string]bool{}
		for range times {
			seen[g.ask(request{url: url}).echoed.Name] = true
		}
		return seen
	}
	g.apply(join(ingress("one", "h.test", "/", "Prefix", "svc", annotations("upstream-hash-by", "$request_uri")), pods))
	all := map[string]bool{}
	for i := range 30 {
		seen := reached(fmt.Sprintf("http://h.test/page-%d?x=%d", i, i), 4)
		if len(seen) != 1 {
			t.Errorf("one URI reached %v", seen)
		}
		for pod := range seen {
			all[pod] = true
		}
	}
	if len(all) < 4 {
		t.Errorf("30 URIs reached only %v", all)
	}
	if seen := reached("http://h.test/same", 100); len(seen) != 1 {
		t.Errorf("100 requests for one URI reached %v", seen)
	}
	g.apply(join(ingress("one", "h.test", "/", "Prefix", "svc", annotations(
		"upstream-hash-by", "$request_uri", "upstream-hash-by-subset", "true", "upstream-hash-by-subset-size", "3")), pods))
	if seen := reached("http://h.test/same", 100); len(seen) != 3 {
		t.Errorf("100 requests for one URI reached %v, want three pods", seen)
	}
}

func serviceUpstream(_ *testing.T, g *gateway) {
	service := g.expand(`
apiVersion: v1
kind: Service
metadata: {name: svc}
spec: {clusterIP: 127.0.0.1, ports: [{name: web, port: @port(cluster)}]}
`)
	backend := func(more ...string) string {
		return strings.ReplaceAll(ingress("one", "h.test", "/", "Prefix", "svc", more...), "{number: 80}", "{name: web}")
	}
	pod := slice("s1", "svc", g.expand(endpoint("pod1", "")))
	g.apply(join(backend(), service, pod))
	g.wants("http://h.test/", "200 pod1")
	g.apply(join(backend(annotations("service-upstream", "true")), service, pod))
	g.wants("http://h.test/", "200 cluster")
	g.apply(join(backend(annotations("service-upstream", "false")), service, pod))
	g.wants("http://h.test/", "200 pod1")
}

// TestServiceUpstreamSetting is the other half of row S11: the setting asks Services, an annotation "false" goes before it.
func TestServiceUpstreamSetting(t *testing.T) {
	t.Setenv("HEADGATE_UPSTREAMS_SERVICEUPSTREAM", "true")
	g := start(t, "")
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: svc}\nspec: {clusterIP: 127.0.0.1, ports: [{name: web, port: @port(cluster)}]}\n"
	backend := func(name string, more ...string) string {
		return strings.ReplaceAll(ingress(name, name+".test", "/", "Prefix", "svc", more...), "{number: 80}", "{name: web}")
	}
	g.apply(join(backend("usual"), backend("pods", annotations("service-upstream", "false")), service,
		slice("s1", "svc", g.expand(endpoint("pod1", "")))))
	g.wants("http://usual.test/", "200 cluster")
	g.wants("http://pods.test/", "200 pod1")
}

func bodySize(t *testing.T, g *gateway) {
	post := func(host string, bytes int, want int) {
		t.Helper()
		if status := g.upload(host, bytes); status != want {
			t.Errorf("POST of %d bytes to %s: %d, want %d", bytes, host, status, want)
		}
	}
	g.apply(join(
		ingress("small", "small.test", "/", "Prefix", "echo", annotations("proxy-body-size", "1k")),
		ingress("large", "large.test", "/", "Prefix", "echo", annotations("proxy-body-size", "8m")),
		ingress("free", "free.test", "/", "Prefix", "echo", annotations("proxy-body-size", "0")),
		ingress("usual", "usual.test", "/", "Prefix", "echo"), g.service("echo")))
	g.settled()
	post("small.test", 1024, http.StatusOK)
	post("small.test", 2048, http.StatusRequestEntityTooLarge)
	post("usual.test", 1<<20, http.StatusOK)
	post("usual.test", 1<<20+1, http.StatusRequestEntityTooLarge)
	post("large.test", 8<<20, http.StatusOK)
	post("large.test", 8<<20+1, http.StatusRequestEntityTooLarge)
	post("free.test", 9<<20, http.StatusOK)
	// Nobody knows how long a body in chunks will be: it is cut off at the next class of sizes.
	for host, want := range map[string]int{"usual.test": http.StatusRequestEntityTooLarge, "small.test": http.StatusRequestEntityTooLarge, "free.test": http.StatusOK} {
		if status := g.send(host, "Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", 2<<20, strings.Repeat("x", 2<<20))); status != want {
			t.Errorf("POST of 2 MiB in chunks to %s: %d, want %d", host, status, want)
		}
	}
}

// bodyBuffer looks at where the proxy keeps the body of a request: its log tells of each that goes to a file.
func bodyBuffer(t *testing.T, g *gateway) {
	g.apply(join(
		ingress("usual", "usual.test", "/", "Prefix", "echo"),
		ingress("large", "large.test", "/", "Prefix", "echo", annotations("client-body-buffer-size", "64k")),
		ingress("small", "small.test", "/", "Prefix", "echo", annotations("client-body-buffer-size", "1k")), g.service("echo")))
	g.settled()
	for _, c := range []struct {
		host  string
		bytes int
		filed bool
	}{{"usual.test", 32 << 10, true}, {"usual.test", 4 << 10, false}, {"large.test", 32 << 10, false}, {"large.test", 100 << 10, true}, {"small.test", 4 << 10, true}} {
		before := g.filedBodies(c.host)
		if status := g.upload(c.host, c.bytes); status != http.StatusOK {
			t.Errorf("POST of %d bytes to %s: %d", c.bytes, c.host, status)
		}
		if filed := g.filedBodies(c.host) > before; filed != c.filed {
			t.Errorf("POST of %d bytes to %s: a file %v, want %v", c.bytes, c.host, filed, c.filed)
		}
	}
}

// filedBodies counts the bodies of requests to a host that went to a file so far. nginx logs that before it asks a peer.
func (g *gateway) filedBodies(host string) int {
	n := 0
	for line := range strings.Lines(g.errorLog()) {
		if strings.Contains(line, "a client request body is buffered to a temporary file") && strings.Contains(line, `host: "`+host+`"`) {
			n++
		}
	}
	return n
}

// peerHost is row W15.
func peerHost(t *testing.T, g *gateway) {
	rule := func(name, vhost string, more ...string) string {
		return ingress(name, name+".test", "/", "Prefix", "echo", annotations(append([]string{"upstream-vhost", vhost}, more...)...))
	}
	before := g.reloads()
	g.apply(join(rule("fixed", "upstreamvhost.bar.com"), rule("named", "$service_name.$namespace.svc:$service_port"), rule("bad", "$host"),
		ingress("usual", "usual.test", "/", "Prefix", "echo"), g.service("echo")))
	g.settled()
	for name, want := range map[string]string{"fixed": "upstreamvhost.bar.com", "named": "echo.default.svc:80", "usual": "usual.test"} {
		a := g.wants("http://"+name+".test/x?y=z", "200 echo")
		if a.echoed.Host != want || a.echoed.URI != "/x?y=z" {
			t.Errorf("the peer of %s was asked for %q, %q, want %q", name, a.echoed.Host, a.echoed.URI, want)
		}
		_, port, _ := net.SplitHostPort(g.http)
		expectHeaders(t, a, map[string]string{
			"X-Forwarded-Host": name + ".test", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Port": port, "X-Forwarded-Proto": "http", "Proxy": "",
		})
	}
	g.wants("http://bad.test/", "503")
	if told := g.problemsOf("bad"); len(told) != 1 || told[0].reason != "InvalidAnnotation" || !strings.Contains(told[0].message, "$service_name") {
		t.Errorf("a variable that is none is told as %+v", told)
	}
	// The host is data: another one needs no reload.
	after := g.reloads()
	if after > before+1 {
		t.Errorf("%v reloads for one profile", after-before)
	}
	g.apply(join(rule("fixed", "other.bar.com"), g.service("echo")))
	if a := g.wants("http://fixed.test/", "200 echo"); a.echoed.Host != "other.bar.com" {
		t.Errorf("the peer was asked for %q", a.echoed.Host)
	}
	if again := g.reloads(); again != after {
		t.Errorf("another host caused %v reloads", again-after)
	}
}

// uploadPatience is far beyond what the largest body needs.
const uploadPatience = 20 * time.Second

// upload posts so many bytes and gives the status. Unlike net/http's client, which takes the end of the connection for the
// answer when it is still sending, it reads while it writes: who is refused need not be read to the end.
func (g *gateway) upload(host string, bytes int) int {
	g.t.Helper()
	return g.send(host, fmt.Sprintf("Content-Length: %d", bytes), strings.Repeat("x", bytes))
}

// send posts a body as header describes it; see upload.
func (g *gateway) send(host, header, body string) int {
	g.t.Helper()
	conn, err := net.Dial("tcp", g.http)
	if err != nil {
		g.t.Fatal(err)
	}
	sent := make(chan error, 1)
	defer func() {
		_ = conn.Close() // ends the writing, too
		<-sent
	}()
	go func() {
		head := fmt.Sprintf("POST / HTTP/1.1\r\nHost: %s\r\n%s\r\nConnection: close\r\n\r\n", host, header)
		_, err := io.Copy(conn, strings.NewReader(head+body))
		sent <- err
	}()
	if err := conn.SetReadDeadline(time.Now().Add(uploadPatience)); err != nil {
		g.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		g.t.Fatalf("POST of %d bytes to %s: %v", len(body), host, err)
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		g.t.Fatalf("POST of %d bytes to %s: %d, and then %v", len(body), host, res.StatusCode, err)
	}
	return res.StatusCode
}

// startMute is a pod that reads the head of a request and closes the connection without an answer.
func startMute(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = http.ReadRequest(bufio.NewReader(conn))
			}()
		}
	}()
	return listener.Addr().String()
}

// refusing is an address that nothing listens on.
func refusing(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func nextUpstream(t *testing.T, g *gateway) {
	// Without ejection and with retries for all, so that each request may meet the bad pod.
	const always = `, annotations: {headgate.io/eject: "off", headgate.io/retry-budget: "off"}`
	with := func(bad string, more ...string) {
		host, port, _ := net.SplitHostPort(bad)
		g.apply(join(ingress("one", "h.test", "/", "Prefix", "svc", more...), g.pods("svc", always, "pod1"),
			slice("svc-bad", "svc", fmt.Sprintf("ports: [{name: web, port: %s, protocol: TCP}]\nendpoints: [{addresses: [%q]}]\n", port, host))))
		g.settled()
	}
	statuses := func(method string) map[int]int {
		counted := map[int]int{}
		for range 20 {
			counted[g.ask(request{url: "http://h.test/", method: method, body: "x"}).status]++
		}
		return counted
	}
	only := func(what string, got map[int]int, want ...int) {
		t.Helper()
		for _, status := range want {
			if got[status] == 0 {
				t.Errorf("%s: statuses %v, want some of %v", what, got, want)
			}
			delete(got, status)
		}
		if len(got) > 0 {
			t.Errorf("%s: besides %v there are %v", what, want, got)
		}
	}
	with(refusing(t))
	only("GET, a pod that refuses", statuses(http.MethodGet), http.StatusOK)
	only("POST, a pod that refuses", statuses(http.MethodPost), http.StatusOK)
	mute := startMute(t)
	with(mute)
	only("GET, a pod that hangs up", statuses(http.MethodGet), http.StatusOK)
	only("POST, a pod that hangs up", statuses(http.MethodPost), http.StatusOK, http.StatusBadGateway)
	with(mute, annotations("proxy-next-upstream", "error timeout non_idempotent"))
	only("POST, allowed", statuses(http.MethodPost), http.StatusOK)
	with(mute, annotations("proxy-next-upstream", "off"))
	only("GET, never", statuses(http.MethodGet), http.StatusOK, http.StatusBadGateway)
	with(mute, annotations("proxy-next-upstream-tries", "1"))
	only("GET, one try", statuses(http.MethodGet), http.StatusOK, http.StatusBadGateway)
}

func serviceAlgorithm(t *testing.T, g *gateway) {
	before := g.reloads()
	for _, algorithm := range []string{"least_conn", "p2c", "ewma", "random", "round_robin"} {
		g.apply(join(ingress("one", "h.test", "/", "Prefix", "svc"),
			g.pods("svc", fmt.Sprintf(`, annotations: {headgate.io/load-balance: %q}`, algorithm), "pod1", "pod2")))
		seen := map[string]int{}
		for range 40 {
			seen[g.ask(request{url: "http://h.test/"}).echoed.Name]++
		}
		if seen["pod1"]+seen["pod2"] != 40 || len(seen) == 0 {
			t.Errorf("%s: %v", algorithm, seen)
		}
		if algorithm != "ewma" && (seen["pod1"] == 0 || seen["pod2"] == 0) {
			t.Errorf("%s used one pod only: %v", algorithm, seen)
		}
	}
	if after := g.reloads(); after != before {
		t.Errorf("algorithms caused %v reloads, want none", after-before)
	}
}

// startTLS is a pod that speaks TLS with a certificate for one name, and the authority of that as a Secret's ca.crt.
func (g *gateway) startTLS(name, host string) (address, ca string) {
	g.t.Helper()
	backend := &echo{name: name}
	server := httptest.NewUnstartedServer(backend)
	secret := tlsSecret(g.t, "unused", host, host)
	decode := func(key string) []byte {
		_, rest, _ := strings.Cut(secret, key+": ")
		text, err := base64.StdEncoding.DecodeString(rest[:strings.IndexAny(rest, ",}")])
		if err != nil {
			g.t.Fatal(err)
		}
		return text
	}
	pair, err := tls.X509KeyPair(decode("tls.crt"), decode("tls.key"))
	if err != nil {
		g.t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // handshakes that the gateway ends
	server.StartTLS()
	g.t.Cleanup(server.Close)
	return server.Listener.Addr().String(), base64.StdEncoding.EncodeToString(decode("tls.crt"))
}

func verifiedBackend(t *testing.T, g *gateway) {
	address, ca := g.startTLS("pod1", "svc.default.svc")
	_, foreign := g.startTLS("other", "svc.default.svc")
	host, port, _ := net.SplitHostPort(address)
	service := join("apiVersion: v1\nkind: Service\nmetadata: {name: svc, annotations: {headgate.io/eject: \"off\"}}\nspec: {ports: [{name: web, port: 80}]}\n",
		slice("svc-1", "svc", fmt.Sprintf("ports: [{name: web, port: %s, protocol: TCP}]\nendpoints: [{addresses: [%q]}]\n", port, host)))
	secret := func(ca string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: peers}\ntype: Opaque\ndata: {ca.crt: %s}\n", ca)
	}
	serves := func(want, secret string, more ...string) {
		t.Helper()
		g.apply(join(ingress("one", "h.test", "/", "Prefix", "svc", annotations(append([]string{"backend-protocol", "HTTPS"}, more...)...)), service, secret))
		g.settled()
		g.wants("http://h.test/", want)
	}
	verify := []string{"proxy-ssl-secret", "default/peers", "proxy-ssl-verify", "on"}
	serves("200 pod1", secret(ca), verify...)
	serves("502", secret(foreign), verify...)
	serves("502", secret(ca), append(verify, "proxy-ssl-name", "another.name")...)
	serves("200 pod1", secret(foreign), "proxy-ssl-verify", "on") // without the Secret the others do nothing
	// A Secret that breaks keeps its last good version.
	serves("200 pod1", secret(ca), verify...)
	serves("200 pod1", secret("bm9uc2Vuc2U="), verify...)
	serves("200 pod1", "", verify...)
}
