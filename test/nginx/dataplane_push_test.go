package nginx_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"headgate/gateway/luastate"
	"headgate/gateway/model"
)

func (a dpAnswer) reason() string {
	var e struct{ Error string }
	_ = json.Unmarshal(a.body, &e)
	return e.Error
}

func TestPushRefusals(t *testing.T) {
	p, _ := dpServe(t, dpSettings(), dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	commit := func(n string) []byte {
		return dpEncode([]luastate.Record{{Op: luastate.OpRevision, Value: []byte(n)}})
	}
	pointer := dpEncode([]luastate.Record{{Op: luastate.OpPointer, Key: "host/x", Value: []byte(strings.Repeat("0", 32))}})
	with := func(h map[string]string, key, value string) map[string]string {
		h[key] = value
		return h
	}
	for _, c := range []struct {
		name   string
		header map[string]string
		body   []byte
		status int
		reason string
	}{
		{"stale", dpHeaders(1, "1", "1/1"), commit("1"), 409, "stale"},
		{"other base", dpHeaders(9, "7", "1/1"), commit("9"), 409, "base"},
		{"a part whose beginning is unknown", dpHeaders(9, "1", "2/3"), commit("9"), 409, "base"},
		{"other schema", with(dpHeaders(9, "1", "1/1"), "X-Headgate-Schema", "2"), commit("9"), 409, "schema"},
		{"no pusher", with(dpHeaders(9, "1", "1/1"), "X-Headgate-Pusher", ""), commit("9"), 400, "record"},
		{"a revision that is no number", with(dpHeaders(9, "1", "1/1"), "X-Headgate-Revision", "1e3"), commit("9"), 400, "record"},
		{"part 2 of 1", dpHeaders(9, "1", "2/1"), commit("9"), 400, "record"},
		{"no commit", dpHeaders(9, "1", "1/1"), nil, 400, "record"},
		{"a commit of another revision", dpHeaders(9, "1", "1/1"), commit("8"), 400, "record"},
		{"garbage", dpHeaders(9, "1", "1/1"), []byte("hello"), 400, "record"},
		{"a record that is cut short", dpHeaders(9, "1", "1/1"), commit("9")[:6], 400, "record"},
		{"a pointer to nothing", dpHeaders(9, "1", "1/1"), append(pointer, commit("9")...), 400, "record"},
		{"a foreign key", dpHeaders(9, "1", "1/1"), dpEncode([]luastate.Record{{Op: luastate.OpPointer, Key: "boot", Value: []byte(strings.Repeat("0", 32))}}), 400, "record"},
		{"a delete before the commit", dpHeaders(9, "1", "1/1"), dpEncode([]luastate.Record{{Op: luastate.OpDelete, Key: "host/a.test"}}), 400, "record"},
	} {
		a := p.must(http.MethodPut, "/v1/state", c.header, c.body)
		if a.status != c.status || a.reason() != c.reason {
			t.Errorf("%s: %d %s, want %d %s", c.name, a.status, a.body, c.status, c.reason)
		}
	}
	if s := p.state(); s.Revision != 1 {
		t.Errorf("revision %d after refused pushes", s.Revision)
	}
	if got := p.get("a.test", "/"); got.status != 200 {
		t.Errorf("after refused pushes: %d", got.status)
	}
	if got := p.must(http.MethodGet, "/v1/other", nil, nil); got.status != 404 {
		t.Errorf("unknown call: %d", got.status)
	}
}

// TestPushCutHalfWay: a pusher that dies leaves the old state, keeps others out for the time of its
// lock, and may start again at once itself.
func TestPushCutHalfWay(t *testing.T) {
	p, _ := dpServe(t, dpSettings(), dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	p.model.Hosts = append(p.model.Hosts, dpHost("b.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	parts := dpParts(p.records(2), 1)
	if len(parts) < 3 {
		t.Fatalf("%d parts", len(parts))
	}
	n := len(parts)
	first := p.must(http.MethodPut, "/v1/state", dpHeaders(2, "1", fmt.Sprintf("1/%d", n)), parts[0])
	if first.status != http.StatusAccepted {
		t.Fatalf("first part: %d %s", first.status, first.body)
	}
	other := dpHeaders(2, "1", fmt.Sprintf("1/%d", n))
	other["X-Headgate-Pusher"] = "other"
	if a := p.must(http.MethodPut, "/v1/state", other, parts[0]); a.status != 409 || a.reason() != "busy" || !strings.Contains(string(a.body), `"pusher":"test"`) {
		t.Errorf("another pusher: %d %s", a.status, a.body)
	}
	if s := p.state(); s.Revision != 1 {
		t.Errorf("revision %d", s.Revision)
	}
	if got := p.get("a.test", "/"); got.status != 200 {
		t.Errorf("the old state: %d", got.status)
	}
	if a := p.must(http.MethodPut, "/v1/state", dpHeaders(2, "1", fmt.Sprintf("3/%d", n)), parts[2]); a.status != 409 || a.reason() != "base" {
		t.Errorf("a part is left out: %d %s", a.status, a.body)
	}
	for i, part := range parts {
		a := p.must(http.MethodPut, "/v1/state", dpHeaders(2, "1", fmt.Sprintf("%d/%d", i+1, n)), part)
		if want := map[bool]int{true: 200, false: 202}[i == n-1]; a.status != want {
			t.Fatalf("part %d of %d: %d %s", i+1, n, a.status, a.body)
		}
	}
	if got := p.get("b.test", "/"); got.status != 200 {
		t.Errorf("the new state: %d", got.status)
	}
}

// TestNoMemory: a push that does not fit is refused, and everything goes on as before.
func TestNoMemory(t *testing.T) {
	settings := dpSettings()
	settings.StateMemoryBytes = 1 << 20
	p, _ := dpServe(t, settings, dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	before, _ := p.keys()
	small := p.model.Hosts
	for i := range 100 {
		h := dpHost(model.HostName(fmt.Sprintf("h%d.test", i)))
		for k := range 200 {
			h.Routes = append(h.Routes, dpRoute(model.PathExact, fmt.Sprintf("/%d-%d", i, k), "d/a/80"))
		}
		p.model.Hosts = append(p.model.Hosts, h)
	}
	records := p.records(2)
	var last dpAnswer
	parts := dpParts(records, 256<<10)
	for i, part := range parts {
		last = p.must(http.MethodPut, "/v1/state", dpHeaders(2, "1", fmt.Sprintf("%d/%d", i+1, len(parts))), part)
		if last.status != http.StatusAccepted {
			break
		}
	}
	if last.status != 507 || last.reason() != "memory" {
		t.Fatalf("%d %s", last.status, last.body)
	}
	after, _ := p.keys()
	if len(after) != len(before) {
		t.Errorf("%d pointers, %d before", len(after), len(before))
	}
	if s := p.state(); s.Revision != 1 {
		t.Errorf("revision %d", s.Revision)
	}
	if got := p.get("a.test", "/"); got.status != 200 {
		t.Errorf("the old state: %d", got.status)
	}
	// A reload with a larger dict makes it anew; what was served goes on from the log.
	p.model.Hosts = small
	p.writeLog(1, p.fullRecords(1))
	p.model.Settings.StateMemoryBytes = 8 << 20
	boot, old := p.state().Boot, p.workerPIDs()
	p.reload()
	p.settle(old)
	s := p.state()
	if s.Boot == boot || s.Revision != 1 || s.Loaded.From != "log" || s.Dict.Capacity != 8<<20 {
		t.Errorf("after the resize: %+v", s)
	}
	if got := p.get("a.test", "/"); got.status != 200 {
		t.Errorf("after the resize: %d", got.status)
	}
}

// fullRecords is the whole state as one push, as compaction writes it.
func (p *dpProxy) fullRecords(revision uint64) []luastate.Record {
	rs := []luastate.Record{{Op: luastate.OpBody, Key: luastate.SchemaKey, Value: strconv.AppendInt(nil, luastate.Schema, 10)}}
	var pointers []luastate.Record
	seen := map[string]bool{}
	for _, o := range p.encoder.Encode(p.model).Objects {
		if !seen[o.Hash] {
			rs = append(rs, luastate.Record{Op: luastate.OpBody, Key: o.Hash, Value: o.Body})
		}
		seen[o.Hash] = true
		pointers = append(pointers, luastate.Record{Op: luastate.OpPointer, Key: o.Pointer, Value: []byte(o.Hash)})
	}
	rs = append(rs, pointers...)
	return append(rs, luastate.Record{Op: luastate.OpRevision, Value: strconv.AppendUint(nil, revision, 10)})
}

// dpBatch is one batch of a state log.
func dpBatch(flags uint32, revision uint64, payload []byte) []byte {
	head := binary.BigEndian.AppendUint32(nil, flags)
	head = binary.BigEndian.AppendUint64(head, revision)
	head = binary.BigEndian.AppendUint32(head, uint32(len(payload)))
	crc := crc32.Update(crc32.ChecksumIEEE(head), crc32.IEEETable, payload)
	b := append([]byte("HGB1"), head...)
	return append(binary.BigEndian.AppendUint32(b, crc), payload...)
}

// dpLog is a push as batches.
func dpLog(revision uint64, records []luastate.Record) []byte {
	var b []byte
	parts := dpParts(records, 1000)
	for i, part := range parts {
		flags := uint32(0)
		if i == len(parts)-1 {
			flags = 1
		}
		b = append(b, dpBatch(flags, revision, part)...)
	}
	return b
}

func (p *dpProxy) writeLog(revision uint64, records []luastate.Record) {
	p.t.Helper()
	if err := os.WriteFile(p.layout.StateLog, append([]byte("HGSTATE1"), dpLog(revision, records)...), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// TestStateLog: nginx serves the logged state before any daemon speaks to it, and refuses what it
// cannot trust.
func TestStateLog(t *testing.T) {
	p, _ := dpServe(t, dpSettings(), dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	full := p.fullRecords(5)
	p.model.Hosts = append(p.model.Hosts, dpHost("b.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	schema := full[:1]
	delta := append(schema[:1:1], p.records(6)...)
	good := append([]byte("HGSTATE1"), dpLog(5, full)...)
	both := append(good[:len(good):len(good)], dpLog(6, delta)...)
	bent := append([]byte(nil), both...)
	bent[len(bent)-1] ^= 1
	foreign := append([]byte("HGSTATE1"), dpLog(5, append([]luastate.Record{{Op: luastate.OpBody, Key: "schema", Value: []byte("2")}}, full[1:]...))...)

	for _, c := range []struct {
		name     string
		log      []byte
		from     string
		revision uint64
		err      bool
		a, b     int
	}{
		{"two pushes", both, "log", 6, false, 200, 200},
		{"the second is cut within a batch", both[:len(both)-3], "log", 5, true, 200, 404},
		{"the second is cut between batches", append(good[:len(good):len(good)], dpBatch(0, 6, dpEncode(schema))...), "log", 5, true, 200, 404},
		{"the second has a wrong checksum", bent, "log", 5, true, 200, 404},
		{"the first is cut", good[:len(good)-1], "empty", 0, true, 404, 404},
		{"only the magic", good[:8], "empty", 0, false, 404, 404},
		{"an empty file", nil, "empty", 0, true, 404, 404},
		{"other magic", append([]byte("HGSTATE2"), good[8:]...), "empty", 0, true, 404, 404},
		{"other schema", foreign, "empty", 0, true, 404, 404},
	} {
		p.kill()
		if err := os.WriteFile(p.layout.StateLog, c.log, 0o600); err != nil {
			t.Fatal(err)
		}
		p.run()
		s := p.state()
		if s.Loaded.From != c.from || s.Loaded.Revision != c.revision || s.Revision != c.revision || (s.Loaded.Error != "") != c.err {
			t.Errorf("%s: loaded %+v, revision %d", c.name, s.Loaded, s.Revision)
		}
		if a, b := p.get("a.test", "/").status, p.get("b.test", "/").status; a != c.a || b != c.b {
			t.Errorf("%s: %d and %d, want %d and %d", c.name, a, b, c.a, c.b)
		}
	}
	// A reload keeps the dict: the log is not read again.
	p.push()
	boot := p.state().Boot
	p.model.Settings.WorkerConnections = 512
	p.reload()
	if s := p.state(); s.Boot != boot || s.Revision != p.revision {
		t.Errorf("after a reload: %+v", s)
	}
	if got := p.get("b.test", "/"); got.status != 200 {
		t.Errorf("after a reload: %d", got.status)
	}
}

// TestWorkerRespawn: a worker that dies is replaced by one that serves and reports.
func TestWorkerRespawn(t *testing.T) {
	p, _ := dpServe(t, dpSettings(), dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	old := p.workerPIDs()
	for _, pid := range old {
		p.killed = append(p.killed, pid)
		if err := (&os.Process{Pid: pid}).Kill(); err != nil {
			t.Fatal(err)
		}
	}
	p.eventually("new workers report", func() error {
		for _, w := range p.state().Workers {
			if w.PID != old[0] && w.PID != old[1] && w.Revision == 1 {
				return nil
			}
		}
		return fmt.Errorf("%+v", p.state().Workers)
	})
	for _, w := range p.state().Workers {
		if slices.Contains(old, w.PID) {
			t.Errorf("worker %d is dead and told of", w.PID)
		}
	}
	if got := p.get("a.test", "/"); got.status != 200 {
		t.Errorf("%d", got.status)
	}
}

func TestRegexCheckAndPeers(t *testing.T) {
	p, a := dpServe(t, dpSettings())
	patterns := []string{"/ok(.*)", "/broken(", "", "/[z-a]", "/a{1,2}"}
	body, err := json.Marshal(patterns)
	if err != nil {
		t.Fatal(err)
	}
	var verdicts []*string
	answer := p.must(http.MethodPost, "/v1/regex", nil, body)
	if err := json.Unmarshal(answer.body, &verdicts); err != nil || len(verdicts) != len(patterns) {
		t.Fatalf("%s: %v", answer.body, err)
	}
	for i, broken := range []bool{false, true, false, true, false} {
		if (verdicts[i] != nil) != broken {
			t.Errorf("%q: %v", patterns[i], verdicts[i])
		}
	}
	if got := p.must(http.MethodPost, "/v1/regex", nil, []byte("[]")); string(got.body) != "[]" {
		t.Errorf("no patterns: %s", got.body)
	}
	if got := p.must(http.MethodPost, "/v1/regex", nil, []byte("nonsense")); got.status != 400 {
		t.Errorf("no JSON: %d", got.status)
	}
	var peers struct{ Peers []struct{ Address string } }
	answer = p.must(http.MethodGet, "/v1/peers?upstream=d/a/80", nil, nil)
	if err := json.Unmarshal(answer.body, &peers); err != nil || len(peers.Peers) != 1 || peers.Peers[0].Address != a.address.String() {
		t.Errorf("%s: %v", answer.body, err)
	}
	if got := p.must(http.MethodGet, "/v1/peers?upstream=none", nil, nil); got.status != 404 {
		t.Errorf("unknown upstream: %d", got.status)
	}
}

// dpDead is an address on loopback where nobody listens.
func dpDead(t *testing.T) netip.AddrPort {
	t.Helper()
	return dpFreePort(t)
}

func TestRetriesAndDraining(t *testing.T) {
	p, a := dpServe(t, dpSettings(), dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	u := p.model.Upstreams[0]
	drain := dpNewBackend(t, "drain")
	with := func(peers ...model.Peer) {
		p.model.Upstreams = []*model.Upstream{{
			ID: u.ID, Algorithm: model.RoundRobin, Budget: model.RetryBudget{Unlimited: true}, Peers: peers,
		}}
		p.push()
	}
	good := model.Peer{Address: a.address, Weight: 1}
	dead1, dead2 := model.Peer{Address: dpDead(t), Weight: 1}, model.Peer{Address: dpDead(t), Weight: 1}

	with(good, dead1, dead2)
	for range 12 {
		if got := p.get("a.test", "/"); got.status != 200 {
			t.Fatalf("two of three peers are dead: %d", got.status)
		}
	}
	before := a.requests.Load()
	with(good, model.Peer{Address: drain.address, Weight: 1, Draining: true})
	for range 6 {
		p.get("a.test", "/")
	}
	if drain.requests.Load() != 0 || a.requests.Load() != before+6 {
		t.Errorf("a draining peer got %d requests beside a ready one", drain.requests.Load())
	}
	with(dead1, model.Peer{Address: drain.address, Weight: 1, Draining: true})
	if got := p.get("a.test", "/"); got.status != 200 || got.seen.Backend != "drain" {
		t.Errorf("a retry does not reach the draining peer: %d", got.status)
	}
	with(model.Peer{Address: drain.address, Weight: 1, Draining: true})
	if got := p.get("a.test", "/"); got.status != 200 {
		t.Errorf("only a draining peer is left: %d", got.status)
	}
	with(dead1, dead2)
	if got := p.get("a.test", "/"); got.status != 502 {
		t.Errorf("all peers are dead: %d", got.status)
	}
	with()
	if got := p.get("a.test", "/"); got.status != 503 {
		t.Errorf("no peer: %d", got.status)
	}
}

// TestPeersGoneAtPick: the router still saw peers, the balancer sees none when it retries: the
// client gets 503.
func TestPeersGoneAtPick(t *testing.T) {
	// Two peers that take a connection, say nothing, and reset it when told to.
	hanging := make(chan struct{})
	taken := make(chan struct{}, 2)
	var peers []model.Peer
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		peers = append(peers, model.Peer{Address: netip.MustParseAddrPort(l.Addr().String()), Weight: 1})
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			taken <- struct{}{}
			<-hanging
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}()
	}
	p, _ := dpServe(t, dpSettings(), dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	p.model.Upstreams = []*model.Upstream{{ID: "d/a/80", Peers: peers}}
	p.push()
	type result struct {
		res dpResponse
		err error
	}
	done := make(chan result, 1)
	go func() {
		res, err := p.try(t.Context(), dpRequest{host: "a.test", path: "/"})
		done <- result{res, err}
	}()
	<-taken
	p.model.Upstreams = []*model.Upstream{{ID: "d/a/80"}}
	p.push()
	close(hanging)
	r := <-done
	if r.err != nil || r.res.status != 503 {
		t.Errorf("%d %q, %v; want 503", r.res.status, r.res.body, r.err)
	}
}

// TestDeletesInALaterPart: the part of a push that commits is asked about before the one that deletes arrives. From the
// acknowledgement on nobody is served what is gone, by whatever name it was found before: its own, a wildcard, or any.
func TestDeletesInALaterPart(t *testing.T) {
	p, _ := dpServe(t, dpSettings(), dpHost("", dpRoute(model.PathPrefix, "/", "d/a/80")), dpHost("*.w.test", dpRoute(model.PathPrefix, "/", "d/a/80")),
		dpHost("h.test", dpRoute(model.PathPrefix, "/", "d/a/80")), dpHost("stays.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	names := []string{"h.test", "x.w.test", "anything.test"}
	// Fresh connections reach both workers.
	each := func(want int) (odd string) {
		for range 30 {
			for _, name := range names {
				if got := p.get(name, "/").status; got != want {
					odd += fmt.Sprintf(" %s %d", name, got)
				}
			}
		}
		return odd
	}
	if odd := each(200); odd != "" {
		t.Fatalf("before: %s", odd)
	}
	p.revision++
	commit := []luastate.Record{{Op: luastate.OpRevision, Value: strconv.AppendUint(nil, p.revision, 10)}}
	deletes := []luastate.Record{
		{Op: luastate.OpDelete, Key: "host/"}, {Op: luastate.OpDelete, Key: "host/*.w.test"}, {Op: luastate.OpDelete, Key: "host/h.test"},
	}
	if a := p.must(http.MethodPut, "/v1/state", dpHeaders(p.revision, "*", "1/2"), dpEncode(commit)); a.status != http.StatusAccepted {
		t.Fatalf("first part: %d %s", a.status, a.body)
	}
	if odd := each(200); odd != "" {
		t.Errorf("between the parts: %s", odd)
	}
	if a := p.must(http.MethodPut, "/v1/state", dpHeaders(p.revision, "*", "2/2"), dpEncode(deletes)); a.status != http.StatusOK {
		t.Fatalf("second part: %d %s", a.status, a.body)
	}
	if odd := each(404); odd != "" {
		t.Errorf("after the acknowledgement: %s", odd)
	}
	if got := p.get("stays.test", "/").status; got != 200 {
		t.Errorf("a host that stays: %d", got)
	}
}

// TestPushesUnderLoadDropNothing: peers come and go by push; every request is served, and none
// reaches a peer after the acknowledgement of the push that removed it.
func TestPushesUnderLoadDropNothing(t *testing.T) {
	p, a := dpServe(t, dpSettings(), dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	b := dpNewBackend(t, "b")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var served [4]atomic.Int64 // by client: each sends one request after the other
	var failed atomic.Int64
	for i := range served {
		wg.Go(func() {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.http.String()+"/", nil)
				if err != nil {
					failed.Add(1)
					return
				}
				req.Host = "a.test"
				res, err := transport.RoundTrip(req)
				if err != nil {
					failed.Add(1)
					continue
				}
				_ = res.Body.Close()
				if res.StatusCode != http.StatusOK {
					failed.Add(1)
				}
				served[i].Add(1)
			}
		})
	}
	// twoEach waits until each client has had two more answers: the second request began after the call.
	twoEach := func() {
		var at [len(served)]int64
		for i := range served {
			at[i] = served[i].Load()
		}
		p.eventually("each client had two more answers", func() error {
			for i := range served {
				if n := served[i].Load() - at[i]; n < 2 {
					return fmt.Errorf("client %d: %d", i, n)
				}
			}
			return nil
		})
	}
	for i := range 60 {
		mine, gone := a, b
		if i%2 == 1 {
			mine, gone = b, a
		}
		p.model.Upstreams = []*model.Upstream{dpUpstream("d/a/80", mine)}
		p.push()
		twoEach() // requests that had picked their peer before the acknowledgement may still arrive
		before := gone.requests.Load()
		twoEach()
		if late := gone.requests.Load() - before; late != 0 {
			t.Errorf("push %d: %d requests to a peer that is gone", i, late)
		}
	}
	cancel()
	wg.Wait()
	if failed.Load() != 0 {
		t.Errorf("%d requests failed", failed.Load())
	}
}

// TestLargePush: 100,000 routes arrive while requests are served; none waits long.
func TestLargePush(t *testing.T) {
	settings := dpSettings()
	settings.StateMemoryBytes = 128 << 20
	p, _ := dpServe(t, settings, dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	for i := range 20000 {
		h := dpHost(model.HostName(fmt.Sprintf("h%05d.test", i)))
		for k := range 5 {
			h.Routes = append(h.Routes, dpRoute(model.PathExact, fmt.Sprintf("/path/%d", k), "d/a/80"))
		}
		p.model.Hosts = append(p.model.Hosts, h)
	}
	parts := dpParts(p.records(2), 256<<10)
	ctx, cancel := context.WithCancel(t.Context())
	worst := make(chan time.Duration, 1)
	go func() {
		slow := time.Duration(0)
		for ctx.Err() == nil {
			start := time.Now()
			if res, err := p.try(t.Context(), dpRequest{host: "a.test", path: "/"}); err != nil || res.status != 200 {
				t.Errorf("during the push: %d %v", res.status, err)
				break
			}
			slow = max(slow, time.Since(start))
		}
		worst <- slow
	}()
	start := time.Now()
	for i, part := range parts {
		if a := p.must(http.MethodPut, "/v1/state", dpHeaders(2, "1", fmt.Sprintf("%d/%d", i+1, len(parts))), part); a.status >= 300 {
			t.Fatalf("part %d: %d %s", i+1, a.status, a.body)
		}
	}
	took := time.Since(start)
	cancel()
	slow := <-worst
	t.Logf("%d parts in %s; slowest request meanwhile %s; dict %+v", len(parts), took, slow, p.state().Dict)
	if slow > 2*time.Second {
		t.Errorf("a request waited %s", slow)
	}
	if got := p.get("h19999.test", "/path/4"); got.status != 200 {
		t.Errorf("a host of the push: %d", got.status)
	}
}

// TestBrokenObjectKeepsTheOldOne: a body that Lua cannot use leaves what was served, and is told.
func TestBrokenObjectKeepsTheOldOne(t *testing.T) {
	p, _ := dpServe(t, dpSettings(), dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	p.model.Settings.WorkerProcesses = 1
	old := p.workerPIDs()
	p.reload()
	p.settle(old)
	if got := p.get("a.test", "/"); got.status != 200 {
		t.Fatal(got.status)
	}
	for n, body := range []string{"nonsense", `{"routes":[],"exact":{"/":3}}`, `[]`, `{}`} {
		hash := luastate.Hash([]byte(body))
		revision := uint64(2 + n)
		records := []luastate.Record{
			{Op: luastate.OpBody, Key: hash, Value: []byte(body)},
			{Op: luastate.OpPointer, Key: "host/a.test", Value: []byte(hash)},
			{Op: luastate.OpPointer, Key: "host/b.test", Value: []byte(hash)},
			{Op: luastate.OpRevision, Value: strconv.AppendUint(nil, revision, 10)},
		}
		if a := p.must(http.MethodPut, "/v1/state", dpHeaders(revision, strconv.FormatUint(revision-1, 10), "1/1"), dpEncode(records)); a.status != 200 {
			t.Fatalf("%s: %d %s", body, a.status, a.body)
		}
		if got := p.get("a.test", "/"); got.status != 200 {
			t.Errorf("%s: the old object: %d", body, got.status)
		}
		if got := p.get("b.test", "/"); got.status != 503 {
			t.Errorf("%s: an object that never could be used: %d", body, got.status)
		}
		p.eventually("the error is reported", func() error {
			for _, w := range p.state().Workers {
				if len(w.Errors) == 2 && strings.HasPrefix(w.Errors[0], "host/a.test: ") {
					return nil
				}
			}
			return fmt.Errorf("%+v", p.state().Workers)
		})
	}
}
