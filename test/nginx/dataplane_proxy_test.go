package nginx_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"headgate/gateway/luastate"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/lua"
	"headgate/test/netns"
	"headgate/test/product"
)

// dpDeadline bounds every wait of these tests. It is long: the machine may be busy.
const dpDeadline = 30 * time.Second

// dpProxy is a real nginx on loopback, with everything it writes in one folder.
type dpProxy struct {
	t        *testing.T
	dir      string
	layout   nginxconf.Layout
	model    *model.Model
	cmd      *exec.Cmd
	control  *http.Client
	encoder  *luastate.Encoder
	revision uint64
	killed   []int // workers that the test killed: nginx logs an alert of each
	http     netip.AddrPort
	https    netip.AddrPort
	inside   *netns.Namespace // where it runs; nil: where the test does
}

// dial connects to the proxy as a client on its host does.
func (p *dpProxy) dial(ctx context.Context, address netip.AddrPort) (conn net.Conn, err error) {
	connect := func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address.String())
		return err
	}
	if p.inside == nil {
		err = connect()
	} else {
		err = p.inside.Do(connect)
	}
	return conn, err
}

// dpLayout finds Debian's nginx as the daemon does, and puts every path below dir.
func dpLayout(t *testing.T, dir string) nginxconf.Layout {
	t.Helper()
	l := nginxconf.Layout{
		NginxVersion: dpNginxVersion(t),
		PIDFile:      dir + "/nginx.pid", TempDir: dir + "/temp",
		ControlSocket: dir + "/control.sock",
		ErrorLog:      dir + "/error.log", StateLog: dir + "/state.log",
		LuaDir: lua.Dir(dir + "/lua"), LuaBuild: lua.Build(),
		LuaPath: "/usr/share/lua/5.1/?.lua", LuaCPath: "/usr/lib/x86_64-linux-gnu/lua/5.1/?.so",
		DefaultCertificate: dir + "/default.crt", DefaultKey: dir + "/default.key", TLSDir: dir + "/tls",
	}
	for _, m := range []string{"ndk_http_module.so", "ngx_http_lua_module.so"} {
		l.Modules = append(l.Modules, "/usr/lib/nginx/modules/"+m)
	}
	if found, err := filepath.Glob("/usr/lib/*/lua/5.1/cjson.so"); err == nil && len(found) > 0 {
		l.LuaCPath = filepath.Dir(found[0]) + "/?.so"
	}
	if os.Geteuid() == 0 {
		// The folder of a test belongs to root alone.
		l.User, l.Group = "root", "root"
	}
	return l
}

func dpNginxVersion(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nginx", "-v").CombinedOutput()
	if err != nil {
		if os.Getenv("CI") == "" {
			t.Skipf("these tests need nginx with its Lua module: %v", err)
		}
		t.Fatalf("run nginx -v: %v", err)
	}
	_, v, _ := strings.Cut(string(out), "nginx/")
	return strings.Fields(v)[0]
}

// dpSettings are the settings of a small proxy.
func dpSettings() model.Settings {
	return model.Settings{
		WorkerProcesses: 2, WorkerConnections: 1024, StateMemoryBytes: 8 << 20, RedirectPort: 443,
		HSTS:                  model.HSTS{Enabled: true, MaxAge: 31536000 * time.Second, IncludeSubdomains: true},
		NoTLSRedirectPrefixes: []string{"/.well-known/acme-challenge"},
	}
}

// dpStart starts nginx with an empty state. The model's listeners are chosen here.
func dpStart(t *testing.T, settings model.Settings, profiles ...model.Profile) *dpProxy {
	t.Helper()
	return dpStartIn(t, nil, settings, profiles...)
}

// dpStartIn starts nginx in a network namespace; nil is that of the test.
func dpStartIn(t *testing.T, inside *netns.Namespace, settings model.Settings, profiles ...model.Profile) *dpProxy {
	t.Helper()
	dir := t.TempDir()
	p := &dpProxy{
		t: t, dir: dir, layout: dpLayout(t, dir), encoder: luastate.NewEncoder(),
		http: dpFreePort(t), https: dpFreePort(t), inside: inside,
	}
	p.layout.KeepProfiles = profiles
	p.model = &model.Model{Settings: settings, Listeners: []model.Listener{
		{Address: p.http, Scheme: model.HTTP}, {Address: p.https, Scheme: model.HTTPS, HTTP2: true},
	}}
	p.control = &http.Client{Timeout: dpDeadline, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", p.layout.ControlSocket)
		},
	}}
	if err := lua.Write(dir + "/lua"); err != nil {
		t.Fatal(err)
	}
	dpWriteCertificate(t, p.layout.DefaultCertificate, p.layout.DefaultKey, "default.invalid")
	p.writeConf()
	p.run()
	t.Cleanup(p.end)
	return p
}

// writeConf renders the model and returns the configuration.
func (p *dpProxy) writeConf() nginxconf.Config {
	p.t.Helper()
	c, err := nginxconf.Render(p.model, p.layout)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.MkdirAll(p.layout.TLSDir, 0o750); err != nil {
		p.t.Fatal(err)
	}
	for _, f := range c.Files {
		if err := os.WriteFile(f.Path, f.Content, 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := os.WriteFile(p.dir+"/nginx.conf", c.Text, 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.MkdirAll(p.layout.TempDir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	return c
}

// run starts nginx and waits until a worker answers.
func (p *dpProxy) run() {
	p.t.Helper()
	for _, s := range p.layout.Sockets() {
		_ = os.Remove(s)
	}
	p.cmd = exec.Command("nginx", "-p", p.dir, "-c", p.dir+"/nginx.conf", "-e", p.dir+"/error.log")
	p.cmd.Stdout, p.cmd.Stderr = os.Stderr, os.Stderr
	start := p.cmd.Start
	if p.inside != nil {
		start = func() error { return p.inside.Start(p.cmd) }
	} else { // the thread that enters a namespace ends at once, and with it would the process
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	}
	if err := start(); err != nil {
		p.t.Fatal(err)
	}
	p.eventually("nginx answers", func() error {
		_, err := p.call(http.MethodGet, "/v1/state", nil, nil)
		return err
	})
}

// end stops nginx and looks for complaints of our Lua code.
func (p *dpProxy) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait()
	p.control.CloseIdleConnections()
	log := p.errorLog()
	for line := range strings.Lines(log) {
		if p.tellsOfKilled(line) {
			continue
		}
		if strings.Contains(line, "[alert]") || strings.Contains(line, "[crit]") || strings.Contains(line, "[emerg]") ||
			strings.Contains(line, "lua entry thread aborted") || strings.Contains(line, "failed to run") {
			p.t.Errorf("error log: %s", line)
		}
	}
	if p.t.Failed() {
		p.t.Logf("error log:\n%s", log)
	}
}

// tellsOfKilled recognises nginx's alert of a worker that the test itself killed.
func (p *dpProxy) tellsOfKilled(line string) bool {
	return slices.ContainsFunc(p.killed, func(pid int) bool {
		return strings.HasSuffix(strings.TrimSpace(line), fmt.Sprintf(": worker process %d exited on signal 9", pid))
	})
}

// kill ends master and workers at once, as a crash does.
func (p *dpProxy) kill() {
	p.t.Helper()
	pids := append([]int{p.cmd.Process.Pid}, p.workerPIDs()...)
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = p.cmd.Wait()
	p.eventually("the workers are gone", func() error {
		for _, pid := range pids[1:] {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err == nil && !bytes.Contains(stat, []byte(") Z ")) {
				return fmt.Errorf("worker %d is still there", pid)
			}
		}
		return nil
	})
	p.control.CloseIdleConnections()
}

func (p *dpProxy) workerPIDs() []int {
	p.t.Helper()
	return product.Children(p.t, p.cmd.Process.Pid)
}

func (p *dpProxy) errorLog() string {
	b, err := os.ReadFile(p.dir + "/error.log")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// eventually waits until check has no complaint.
func (p *dpProxy) eventually(what string, check func() error) {
	p.t.Helper()
	end := time.Now().Add(dpDeadline)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s: %v\n%s", what, err, p.errorLog())
		}
		time.Sleep(5 * time.Millisecond) // nginx gives no signal that a test could wait for
	}
}

type dpAnswer struct {
	status int
	body   []byte
}

// call asks a worker; as the contract wants it, one that is on its way out is not the last that is asked.
func (p *dpProxy) call(method, path string, header map[string]string, body []byte) (dpAnswer, error) {
	for deadline := time.Now().Add(dpDeadline); ; {
		a, err := p.callOnce(method, path, header, body)
		retired := a.status == http.StatusServiceUnavailable && bytes.Contains(a.body, []byte(`"exiting"`))
		if err != nil || !retired || time.Now().After(deadline) {
			return a, err
		}
		time.Sleep(5 * time.Millisecond) // nothing tells when the old workers are gone
	}
}

func (p *dpProxy) callOnce(method, path string, header map[string]string, body []byte) (dpAnswer, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, "http://control"+path, bytes.NewReader(body))
	if err != nil {
		return dpAnswer{}, err
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	res, err := p.control.Do(req)
	if err != nil {
		return dpAnswer{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return dpAnswer{res.StatusCode, b}, err
}

func (p *dpProxy) must(method, path string, header map[string]string, body []byte) dpAnswer {
	p.t.Helper()
	a, err := p.call(method, path, header, body)
	if err != nil {
		p.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

type dpState struct {
	Boot, LuaBuild, Generation, NginxVersion, Pusher string
	Schema, MasterPid                                int
	Revision                                         uint64
	Workers                                          []struct {
		PID, SeenMs int
		Generation  string
		Revision    uint64
		Errors      []string
	}
	Dict   struct{ Capacity, Free int64 }
	Loaded struct {
		From, Error string
		Revision    uint64
	}
}

func (p *dpProxy) state() dpState {
	p.t.Helper()
	a := p.must(http.MethodGet, "/v1/state", nil, nil)
	var s dpState
	if err := json.Unmarshal(a.body, &s); err != nil {
		p.t.Fatalf("GET /v1/state: %v\n%s", err, a.body)
	}
	return s
}

// keys returns pointers with their hashes, and the bodies.
func (p *dpProxy) keys() (map[string]string, map[string]bool) {
	p.t.Helper()
	pointers, bodies := map[string]string{}, map[string]bool{}
	for line := range strings.Lines(string(p.must(http.MethodGet, "/v1/keys", nil, nil).body)) {
		key, hash, pointer := strings.Cut(strings.TrimSpace(line), " ")
		if pointer {
			pointers[key] = hash
		} else {
			bodies[strings.TrimPrefix(key, "body/")] = true
		}
	}
	return pointers, bodies
}

// records computes the push from what the proxy holds to the model.
func (p *dpProxy) records(revision uint64) []luastate.Record {
	p.t.Helper()
	pointers, bodies := p.keys()
	var add, set, late, del, drop []luastate.Record
	used := map[string]bool{}
	for _, o := range p.encoder.Encode(p.model).Objects {
		had, known := pointers[o.Pointer]
		delete(pointers, o.Pointer)
		if o.Keep {
			used[had] = true
			continue
		}
		if !bodies[o.Hash] && !used[o.Hash] {
			add = append(add, luastate.Record{Op: luastate.OpBody, Key: o.Hash, Value: o.Body})
		}
		used[o.Hash] = true
		if known && had == o.Hash {
			continue
		}
		r := luastate.Record{Op: luastate.OpPointer, Key: o.Pointer, Value: []byte(o.Hash)}
		if luastate.Referring(o.Pointer) {
			late = append(late, r)
		} else {
			set = append(set, r)
		}
	}
	for name := range pointers {
		del = append(del, luastate.Record{Op: luastate.OpDelete, Key: name})
	}
	for hash := range bodies {
		if !used[hash] {
			drop = append(drop, luastate.Record{Op: luastate.OpDrop, Key: hash})
		}
	}
	commit := luastate.Record{Op: luastate.OpRevision, Value: strconv.AppendUint(nil, revision, 10)}
	return slices.Concat(add, set, late, []luastate.Record{commit}, del, drop)
}

func dpEncode(records []luastate.Record) []byte {
	var b []byte
	for _, r := range records {
		b = luastate.AppendRecord(b, r)
	}
	return b
}

// dpParts encodes records in parts of about size bytes.
func dpParts(records []luastate.Record, size int) [][]byte {
	parts := [][]byte{nil}
	for _, r := range records {
		last := len(parts) - 1
		if n := len(parts[last]); n > 0 && n+r.Len() > size {
			parts = append(parts, nil)
			last++
		}
		parts[last] = luastate.AppendRecord(parts[last], r)
	}
	return parts
}

func dpHeaders(revision uint64, base, part string) map[string]string {
	return map[string]string{
		"X-Headgate-Schema": "1", "X-Headgate-Pusher": "test", "X-Headgate-Base": base,
		"X-Headgate-Revision": strconv.FormatUint(revision, 10), "X-Headgate-Part": part,
	}
}

// push brings the proxy to the model and returns the answer to the last part.
func (p *dpProxy) tryPush() dpAnswer {
	p.t.Helper()
	p.revision++
	parts := dpParts(p.records(p.revision), 256<<10)
	for i, part := range parts {
		a := p.must(http.MethodPut, "/v1/state", dpHeaders(p.revision, "*", fmt.Sprintf("%d/%d", i+1, len(parts))), part)
		if a.status != http.StatusAccepted || i == len(parts)-1 {
			return a
		}
	}
	return dpAnswer{}
}

func (p *dpProxy) push() {
	p.t.Helper()
	if a := p.tryPush(); a.status != http.StatusOK {
		p.t.Fatalf("push of revision %d: %d %s", p.revision, a.status, a.body)
	}
}

// reload loads the rendered model and waits for workers of the new generation.
func (p *dpProxy) reload() nginxconf.Config {
	p.t.Helper()
	c := p.writeConf()
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		p.t.Fatal(err)
	}
	p.eventually("workers of the new generation", func() error {
		s := p.state()
		n := 0
		for _, w := range s.Workers {
			if w.Generation == c.Generation {
				n++
			}
		}
		if n < p.model.Settings.WorkerProcesses || s.Generation != c.Generation {
			return fmt.Errorf("%d workers of generation %s: %+v", n, c.Generation, s)
		}
		return nil
	})
	return c
}

// settle waits until the workers of older generations are gone: for some 100 ms after a reload both
// kinds accept connections.
func (p *dpProxy) settle(old []int) {
	p.t.Helper()
	p.eventually("the old workers are gone", func() error {
		for _, pid := range p.workerPIDs() {
			if slices.Contains(old, pid) {
				return fmt.Errorf("worker %d is still there", pid)
			}
		}
		return nil
	})
}

// dpFreePort finds a port on loopback that is free now.
func dpFreePort(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String())
}

// dpCertificate makes a self-signed certificate for names; the model's certificate and its PEM forms.
func dpCertificate(t *testing.T, id model.CertificateID, names ...string) *model.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &model.Certificate{ID: id, Chain: [][]byte{der}, Key: pkcs8, NotAfter: template.NotAfter}
}

func dpWriteCertificate(t *testing.T, certificate, key string, names ...string) {
	t.Helper()
	c := dpCertificate(t, "default", names...)
	for path, block := range map[string]*pem.Block{
		certificate: {Type: "CERTIFICATE", Bytes: c.Chain[0]},
		key:         {Type: "PRIVATE KEY", Bytes: c.Key},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// dpRequest is one request through the proxy on a connection of its own.
type dpRequest struct {
	method, host, path string
	header             map[string]string
	body               io.Reader
	tls                bool
	sni                string // "" is host
	http2              bool
}

type dpResponse struct {
	status int
	header http.Header
	body   string
	peer   *x509.Certificate
	proto  string
	// seen is what the echo backend saw; nil when the answer is not its.
	seen *dpSeen
}

func (p *dpProxy) try(ctx context.Context, r dpRequest) (dpResponse, error) {
	scheme, address := "http", p.http
	if r.tls {
		scheme, address = "https", p.https
	}
	name := r.sni
	if name == "" {
		name = r.host
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!r.http2)
	protocols.SetHTTP2(r.http2)
	transport := &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx, address) },
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: name}, //nolint:gosec // the test looks at the certificate itself
		Protocols:       protocols, DisableCompression: true,
	}
	defer transport.CloseIdleConnections()
	method := r.method
	if method == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, method, scheme+"://"+address.String()+r.path, r.body)
	if err != nil {
		return dpResponse{}, err
	}
	req.Host = r.host
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return dpResponse{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return dpResponse{}, err
	}
	out := dpResponse{status: res.StatusCode, header: res.Header, body: string(b), proto: res.Proto}
	if res.TLS != nil {
		out.peer = res.TLS.PeerCertificates[0]
	}
	if res.Header.Get("X-Echo") != "" {
		out.seen = &dpSeen{}
		if err := json.Unmarshal(b, out.seen); err != nil {
			return dpResponse{}, err
		}
	}
	return out, nil
}

func (p *dpProxy) do(r dpRequest) dpResponse {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), dpDeadline)
	defer cancel()
	res, err := p.try(ctx, r)
	if err != nil {
		p.t.Fatalf("%s %s%s: %v", r.method, r.host, r.path, err)
	}
	return res
}

// get makes a plain request and returns the answer.
func (p *dpProxy) get(host, path string) dpResponse {
	p.t.Helper()
	return p.do(dpRequest{host: host, path: path})
}

// raw sends bytes on a connection and returns all that comes back.
func (p *dpProxy) raw(text string) string {
	p.t.Helper()
	conn, err := net.Dial("tcp", p.http.String())
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(dpDeadline))
	if _, err := io.WriteString(conn, text); err != nil {
		p.t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		p.t.Fatalf("%q: %v", text, err)
	}
	return string(b)
}
