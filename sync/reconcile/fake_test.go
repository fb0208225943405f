package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"headgate/gateway/build"
	"headgate/gateway/luastate"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/snapshot"
	"headgate/sync/luapush"
	"headgate/sync/nginxproc"
	"headgate/sync/statelog"
)

// fakeNginx is a proxy that keeps state: a process with a configuration, and a shared dict behind a
// control socket. It answers as the contract says.
type fakeNginx struct {
	mu      sync.Mutex
	changed chan struct{}
	logPath string // the state log that it loads
	// external refuses to be started by Apply or Resume.
	external bool

	running    bool
	onDisk     string           // generation of the configuration on disk
	files      []nginxproc.File // of the configuration that was applied last
	generation string
	luaBuild   string
	capacity   int64
	boots      int
	dict       dict
	pusher     string
	busy       string
	noMemory   bool // refuse every push
	deaf       bool // the control socket does not answer
	gone       bool // its file was removed, too; external
	late       int  // after a reload, this many answers come from workers of the load before
	staying    int  // after a reload, so many answers tell of a worker of the load before that takes connections
	before     luapush.State
	loseAcks   int // this many pushes are done and not answered

	refuse map[string]string // text in nginx.conf → complaint of nginx -t
	broken string            // a reload to a text with this does not come up
	slow   time.Duration     // what nginx -t takes when nothing is loaded
	pair   []string          // nginx -t accepts each of these texts, and not all together

	reloads, tests int
	events         []string
	pushes         []time.Time
}

type dict struct {
	pointers map[string]string
	bodies   map[string]string
	revision uint64
}

func newDict() dict { return dict{pointers: map[string]string{}, bodies: map[string]string{}} }

var sizeInText = regexp.MustCompile(`lua_shared_dict headgate_state (\d+)`)

func (n *fakeNginx) Changed() <-chan struct{} { return n.changed }

func (n *fakeNginx) HandOver(context.Context) (bool, error) { return false, nil }

func (n *fakeNginx) Adopt(context.Context) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.running && !n.gone
}

func (n *fakeNginx) Resume(context.Context) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.running && !n.external && n.onDisk != "" {
		n.boot(n.onDisk)
	}
	return n.running && !n.gone, nil
}

func (n *fakeNginx) boot(generation string) {
	n.running, n.generation = true, generation
	n.fresh()
}

// fresh makes a new dict and loads the state log into it.
func (n *fakeNginx) fresh() {
	n.boots++
	n.dict, n.pusher = newDict(), ""
	if _, err := os.Stat(n.logPath); err != nil {
		return
	}
	l, _ := statelog.Open(statelog.Config{Path: n.logPath}) // locked by the daemon: only read
	defer func() { _ = l.Close() }()
	n.dict.revision = l.Revision()
	pointers, bodies := l.Held()
	n.dict.pointers = pointers
	for hash := range bodies {
		b, err := l.Body(hash)
		if err != nil {
			panic(err)
		}
		n.dict.bodies[hash] = string(b)
	}
}

func (n *fakeNginx) Test(ctx context.Context, c nginxproc.Conf) error {
	n.mu.Lock()
	slow := n.slow
	n.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(slow):
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.test(c.Text)
}

func (n *fakeNginx) test(text []byte) error {
	n.tests++
	missing := func(part string) bool { return !strings.Contains(string(text), part) }
	if len(n.pair) > 0 && !slices.ContainsFunc(n.pair, missing) {
		return &nginxproc.ConfError{Message: "not together"}
	}
	for bad, complaint := range n.refuse {
		if strings.Contains(string(text), bad) {
			return &nginxproc.ConfError{Message: complaint, Line: 1}
		}
	}
	return nil
}

func (n *fakeNginx) Apply(_ context.Context, c nginxproc.Conf) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.test(c.Text); err != nil {
		return err
	}
	if n.broken != "" && strings.Contains(string(c.Text), n.broken) {
		n.events = append(n.events, "failed reload")
		return &nginxproc.ReloadError{Doing: "reload", Cause: context.DeadlineExceeded}
	}
	n.onDisk, n.files = c.Generation, c.Files
	if n.gone {
		return fmt.Errorf("the control socket is gone: %w", nginxproc.ErrSocketGone)
	}
	n.before = luapush.State{LuaBuild: n.luaBuild, Generation: n.generation}
	if !n.running && n.external {
		return nginxproc.ErrNotRunning
	}
	n.reloads++
	size := int64(0)
	if m := sizeInText.FindSubmatch(c.Text); m != nil {
		size, _ = strconv.ParseInt(string(m[1]), 10, 64)
	}
	n.luaBuild = n.layoutBuild(c.Text)
	switch {
	case !n.running:
		n.capacity = size
		n.boot(c.Generation)
	case n.capacity != size:
		n.capacity = size
		n.fresh()
	}
	n.generation = c.Generation
	n.events = append(n.events, "reload")
	return nil
}

func (n *fakeNginx) layoutBuild(text []byte) string {
	for _, b := range []string{"build1", "build2"} {
		if strings.Contains(string(text), b) {
			return b
		}
	}
	return ""
}

func (n *fakeNginx) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.running = false
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// session is the control socket as one daemon sees it.
type session struct {
	*fakeNginx
	name string
}

func (s session) Pusher() string { return s.name }

func (s session) up() error {
	if !s.running || s.deaf {
		return luapush.ErrUnreachable
	}
	return nil
}

func (s session) State(context.Context) (luapush.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late > 0 && s.before.Generation != "" {
		s.late--
		return luapush.State{
			Boot: fmt.Sprint("boot-", s.boots), Schema: luastate.Schema, LuaBuild: s.before.LuaBuild,
			Generation: s.before.Generation, Revision: s.dict.revision, MasterPID: 1, Pusher: s.pusher,
			Dict: luapush.Dict{Capacity: s.capacity},
		}, s.up()
	}
	workers := []luapush.Worker{{PID: 2, Generation: s.generation, Revision: s.dict.revision}}
	if s.before.Generation != "" {
		workers = append(workers, luapush.Worker{PID: 3, Generation: s.before.Generation, Leaving: s.staying == 0})
		s.staying = max(0, s.staying-1)
	}
	return luapush.State{
		Boot: fmt.Sprint("boot-", s.boots), Schema: luastate.Schema, LuaBuild: s.luaBuild, Generation: s.generation,
		Revision: s.dict.revision, MasterPID: 1, Dict: luapush.Dict{Capacity: s.capacity}, Pusher: s.pusher, Workers: workers,
	}, s.up()
}

func (s session) Keys(context.Context) (luapush.Keys, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return luapush.Keys{Pointers: maps.Clone(s.dict.pointers), Bodies: slices.Collect(maps.Keys(s.dict.bodies))}, s.up()
}

func (s session) CheckRegexes(_ context.Context, patterns []string) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	verdicts := map[string]string{}
	for _, p := range patterns {
		if strings.Contains(p, "(") {
			verdicts[p] = "missing )"
		} else {
			verdicts[p] = ""
		}
	}
	return verdicts, s.up()
}

func (s session) Push(_ context.Context, p luapush.Push) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.up(); err != nil {
		return 0, err
	}
	switch {
	case s.busy != "":
		return 0, &luapush.Refused{Kind: luapush.ErrBusy, Status: 409, Pusher: s.busy}
	case p.Revision <= s.dict.revision:
		return 0, &luapush.Refused{Kind: luapush.ErrStale, Status: 409}
	case !p.AnyBase && p.Base != s.dict.revision:
		return 0, &luapush.Refused{Kind: luapush.ErrBase, Status: 409}
	case s.noMemory || s.size(p.Records) > s.capacity:
		return 0, &luapush.Refused{Kind: luapush.ErrMemory, Status: 507}
	}
	for _, r := range p.Records {
		switch r.Op {
		case luastate.OpBody:
			s.dict.bodies[r.Key] = string(r.Value)
		case luastate.OpPointer:
			if _, ok := s.dict.bodies[string(r.Value)]; !ok {
				return 0, fmt.Errorf("pointer %s to no body", r.Key)
			}
			s.dict.pointers[r.Key] = string(r.Value)
		case luastate.OpRevision:
			s.dict.revision, s.pusher = p.Revision, s.name
		case luastate.OpDelete:
			delete(s.dict.pointers, r.Key)
		case luastate.OpDrop:
			delete(s.dict.bodies, r.Key)
		}
	}
	s.events = append(s.events, "push")
	s.pushes = append(s.pushes, time.Now())
	if s.loseAcks > 0 {
		s.loseAcks--
		return 0, luapush.ErrUnreachable
	}
	return p.Revision, nil
}

// size of the dict after records, in a measure of its own.
func (s session) size(records []luastate.Record) int64 {
	var n int64
	for _, b := range s.dict.bodies {
		n += int64(len(b))
	}
	for _, r := range records {
		n += int64(len(r.Value))
	}
	return n
}

// fakeBuilder makes a host of each Ingress. The name says what is special: "big-…" has a profile of
// its own, "regex(…)" a regular expression, "keep-…" a certificate whose Secret is broken.
type fakeBuilder struct {
	settings  model.Settings
	listeners []model.Listener
	verdicts  map[string]string
	mu        *sync.Mutex // guards rejected, also of the builders that a change of the configuration makes of this one
	rejected  map[string]string
	builds    int
	names     []string                 // ExternalNames
	upstreams map[string]string        // host → name of the Service that it goes to, of one peer
	profiles  map[string]model.Profile // host → profile, in place of what its name says
}

func (b *fakeBuilder) LearnRegexes(v map[string]string) { maps.Copy(b.verdicts, v) }
func (b *fakeBuilder) RejectProfile(name, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rejected[name] = why
}

// refusals are the rejected profiles, and why.
func (b *fakeBuilder) refusals() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.rejected)
}

func special(body model.BodyClass, buffering bool) model.Profile {
	return model.Profile{BodyClass: body, Buffering: buffering}
}

func (b *fakeBuilder) Build(s *snapshot.Snapshot, _ time.Time) *build.Result {
	b.builds++
	r := &build.Result{Model: &model.Model{Settings: b.settings, Listeners: b.listeners}, ExternalNames: b.names}
	for _, i := range s.Ingresses {
		route := &model.Route{
			Match:    model.Match{Path: model.PathMatch{Type: model.PathPrefix, Value: "/" + strings.Repeat("x", int(i.Generation))}},
			Timeouts: model.Timeouts{Connect: time.Second, Send: time.Second, Read: time.Second}, Retry: model.Retry{Tries: 1},
		}
		host := &model.Host{Name: model.HostName(i.Name), Routes: []*model.Route{route}}
		switch {
		case strings.HasPrefix(i.Name, "regex"):
			if verdict, known := b.verdicts[i.Name]; !known {
				r.UnknownRegexes = append(r.UnknownRegexes, i.Name)
				route.Unavailable = "not validated"
			} else if verdict != "" {
				route.Unavailable = verdict
			}
		case strings.HasPrefix(i.Name, "big-16m"):
			route.Profile = special(model.Body16M, false)
		case strings.HasPrefix(i.Name, "big-256m"):
			route.Profile = special(model.Body256M, false)
		case strings.HasPrefix(i.Name, "tls-"):
			id := fakeIdentity(i.Name)
			route.Profile = model.Profile{Protocol: model.ProtocolHTTPS, Identity: id.ID}
			if !strings.HasPrefix(i.Name, "tls-lost") {
				r.Model.Identities = append(r.Model.Identities, id)
			}
		case strings.HasPrefix(i.Name, "buffered"):
			route.Profile = special("", true)
		case strings.HasPrefix(i.Name, "keep-"):
			r.Model.Certificates = append(r.Model.Certificates, &model.Certificate{ID: model.CertificateID("ns/" + i.Name), Keep: true})
		case strings.HasPrefix(i.Name, "cert-"):
			name := strings.Replace(i.Name, "cert-", "keep-", 1)
			r.Model.Certificates = append(r.Model.Certificates, &model.Certificate{
				ID: model.CertificateID("ns/" + name), Chain: [][]byte{[]byte("chain")}, Key: model.Secret("key")})
		}
		if p, other := b.profiles[i.Name]; other {
			route.Profile = p
		}
		if service := b.upstreams[i.Name]; service != "" {
			u := fakeUpstream(service, i.Generation)
			route.Backends = []model.Backend{{Upstream: u.ID, Weight: 1}}
			r.Model.Upstreams = append(r.Model.Upstreams, u)
		}
		if why, no := b.refusals()[nginxconf.ProfileName(route.Profile)]; no {
			route.Profile, route.Unavailable = model.Profile{}, why
		}
		r.Model.Hosts = append(r.Model.Hosts, host)
	}
	return r
}

// fakeUpstream is a Service of one peer, whose address ends in n. One that is named by an address has that peer.
func fakeUpstream(service string, n int64) *model.Upstream {
	address, err := netip.ParseAddrPort(service)
	if err != nil {
		address = netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:80", n))
	}
	return &model.Upstream{
		ID: model.UpstreamID("ns/" + service + "/80"), Ejection: model.Ejection{Off: true},
		Peers: []model.Peer{{Address: address, Weight: 1}},
	}
}

// fakeIdentity has an ID of the length of its name. "tls-cipher…" has ciphers that no OpenSSL knows, and no certificate.
func fakeIdentity(name string) *model.Identity {
	if strings.HasPrefix(name, "tls-cipher") {
		return &model.Identity{ID: model.IdentityID(strings.Repeat("a", len(name))), Ciphers: "NO-SUCH-CIPHER"}
	}
	return &model.Identity{
		ID: model.IdentityID(strings.Repeat("a", len(name))), Certificate: []byte("certificate of " + name), Key: model.Secret("key of " + name),
		CA: []byte("ca"), Verify: true, Name: "peer.test",
	}
}

type fakeSource struct {
	changed  chan struct{}
	mu       sync.Mutex
	snap     *snapshot.Snapshot
	complete bool
}

func (s *fakeSource) Changed() <-chan struct{} { return s.changed }

func (s *fakeSource) Snapshot() (*snapshot.Snapshot, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snap, s.complete
}

// set gives the next snapshot: an Ingress a name; "name*3" makes its host three bytes larger.
func (s *fakeSource) set(names ...string) {
	snap := &snapshot.Snapshot{}
	slices.Sort(names)
	for _, n := range names {
		name, size, _ := strings.Cut(n, "*")
		bytes, _ := strconv.ParseInt(size, 10, 64)
		snap.Ingresses = append(snap.Ingresses, &snapshot.Ingress{Meta: snapshot.Meta{Key: snapshot.Key{Name: name}, Generation: bytes}})
	}
	s.mu.Lock()
	s.snap, s.complete = snap, true
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// world is a loop with all around it, in a synctest bubble.
type world struct {
	t       testing.TB
	dir     string
	nginx   *fakeNginx
	builder *fakeBuilder
	source  *fakeSource
	log     *statelog.Log
	loop    *Loop
	passes  []Pass
	cfg     Config
	stop    func()
}

func newWorld(t testing.TB) *world {
	dir := t.TempDir()
	w := &world{t: t, dir: dir, nginx: &fakeNginx{
		changed: make(chan struct{}, 1), logPath: filepath.Join(dir, "state.log"), luaBuild: "build1",
	}}
	w.daemon("me")
	return w
}

// daemon makes the daemon's part anew, over what the one before left on disk.
func (w *world) daemon(name string) {
	w.builder = &fakeBuilder{mu: new(sync.Mutex), verdicts: map[string]string{}, rejected: map[string]string{}}
	w.builder.settings = model.Settings{WorkerConnections: 512, StateMemoryBytes: 1 << 20}
	w.builder.listeners = []model.Listener{{Address: netip.MustParseAddrPort("0.0.0.0:80"), Scheme: model.HTTP}}
	w.source = &fakeSource{changed: make(chan struct{}, 1), snap: &snapshot.Snapshot{}}
	w.log, _ = statelog.Open(statelog.Config{Path: filepath.Join(w.dir, "state.log")})
	w.cfg = Config{
		Source: w.source, Builder: w.builder, Proxy: w.nginx, Control: session{w.nginx, name}, StateLog: w.log,
		Layout: nginxconf.Layout{
			NginxVersion: "1.22.1", PIDFile: "/run/h/pid", TempDir: "/run/h/temp", ControlSocket: "/run/h/c.sock",
			ErrorLog: "stderr", StateLog: "/var/h/state.log", LuaDir: "/run/h/lua/build1", LuaBuild: "build1", TLSDir: "/run/h/tls",
		},
		Settings: w.builder.settings, Listeners: w.builder.listeners, MemoryFile: filepath.Join(w.dir, "applied.json"),
		Applied: func(p Pass) { w.passes = append(w.passes, p) },
		Log:     slog.New(slog.NewTextHandler(w.t.Output(), nil)),
	}
}

func (w *world) start() {
	w.t.Helper()
	w.loop = New(w.cfg)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.loop.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		if err := w.log.Close(); err != nil {
			w.t.Error(err)
		}
	})
	synctest.Wait()
}

// serve starts the loop over a proxy that serves nothing, and has it serve these Ingresses.
func (w *world) serve(names string) {
	w.t.Helper()
	w.start()
	w.follow(names, "reload", "push")
}

// follow gives the source these Ingresses, as set names them, and wants them served after these events.
func (w *world) follow(names string, events ...string) {
	w.t.Helper()
	list := strings.Fields(names)
	w.source.set(list...)
	w.settle()
	for i, name := range list {
		list[i], _, _ = strings.Cut(name, "*")
	}
	slices.Sort(list)
	w.want(strings.Join(list, " "), events...)
}

// healthy wants nothing to be wrong.
func (w *world) healthy() {
	w.t.Helper()
	if s := w.loop.Status(); s.Err != nil || !s.Ready {
		w.t.Errorf("status %+v", s)
	}
}

// settle lets the time pass that debouncing and one retry take.
func (w *world) settle() {
	w.wait(150 * time.Millisecond)
}

func (w *world) wait(d time.Duration) {
	time.Sleep(d) // of the bubble's clock
	synctest.Wait()
}

func (w *world) change(f func(*fakeNginx)) {
	w.nginx.mu.Lock()
	defer w.nginx.mu.Unlock()
	f(w.nginx)
}

// hosts that the proxy serves.
func (w *world) hosts() string {
	w.nginx.mu.Lock()
	defer w.nginx.mu.Unlock()
	var hs []string
	for p := range w.nginx.dict.pointers {
		if h, ok := strings.CutPrefix(p, "host/"); ok {
			hs = append(hs, h)
		}
	}
	slices.Sort(hs)
	return strings.Join(hs, " ")
}

func (w *world) want(hosts string, events ...string) {
	w.t.Helper()
	if got := w.hosts(); got != hosts {
		w.t.Errorf("the proxy serves %q, want %q (status: %v)", got, hosts, w.loop.Status().Err)
	}
	w.nginx.mu.Lock()
	defer w.nginx.mu.Unlock()
	if !slices.Equal(w.nginx.events, events) {
		w.t.Errorf("events %q, want %q", w.nginx.events, events)
	}
	w.nginx.events = nil
}
