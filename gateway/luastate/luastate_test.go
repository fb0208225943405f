package luastate

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/gateway/model"
)

func route(kind model.PathType, path string) *model.Route {
	return &model.Route{
		Match:    model.Match{Path: model.PathMatch{Type: kind, Value: path}},
		Backends: []model.Backend{{Upstream: "d/a/80", Weight: 1}}, MaxBodyBytes: 1 << 20,
		Source: model.Source{Kind: "Ingress", Namespace: "d", Name: "a", Service: "a", Port: "80"},
	}
}

func peerOf(s string, weight uint16) model.Peer {
	return model.Peer{Address: netip.MustParseAddrPort(s), Weight: weight}
}

func TestBodies(t *testing.T) {
	const source = `"source":["Ingress","d","a","a","80"]`
	tuned := route(model.PathExact, "/x")
	tuned.Backends = []model.Backend{{Upstream: "d/a/80", Weight: 1}, {Upstream: "d/b/80", Weight: 3}, {Upstream: "d/none/80"}}
	tuned.Filters = []model.Filter{
		model.RedirectHTTPS{Status: 308, KeepTrailingSlash: true},
		model.RewritePath{Parts: []model.RewritePart{{Literal: "/new/"}, {Group: 2}}},
	}
	tuned.Timeouts = model.Timeouts{Connect: time.Second, Read: 90 * time.Second}
	tuned.Retry = model.Retry{Tries: 2, Total: 1500 * time.Millisecond}
	tuned.CookiePath, tuned.NoAccessLog = "/x", true
	tuned.MaxBodyBytes = 5 << 20
	tuned.Profile = model.Profile{BodyClass: model.Body16M, Protocol: model.ProtocolHTTPS, Identity: "0123456789ab"}
	broken := route(model.PathExact, "/x")
	broken.Unavailable = "its service is gone"
	for name, c := range map[string]struct {
		host *model.Host
		want string
	}{
		"paths": {
			&model.Host{Name: "a.test", Routes: []*model.Route{
				route(model.PathExact, "/foo"), route(model.PathPrefix, "/foo/bar/"), route(model.PathPrefix, "/foo/bar"), route(model.PathPrefix, "/"),
			}},
			`{"name":"a.test","exact":{"/foo":1},"prefix":{"":4,"/foo/bar":2},"lengths":[8,0],"routes":[` +
				strings.Repeat(`{"backends":["d/a/80"],`+source+`},`, 3) + `{"backends":["d/a/80"],` + source + `}]}`,
		},
		"regexes": {
			&model.Host{Name: "a.test", Regex: true, Routes: []*model.Route{route(model.PathRegex, `/a(/|$)"\`)}},
			`{"name":"a.test","regex":[["/a(/|$)\"\\",1]],"routes":[{"backends":["d/a/80"],` + source + `}]}`,
		},
		"everything a route can say": {
			&model.Host{Name: "", Routes: []*model.Route{tuned}},
			`{"name":"","exact":{"/x":1},"routes":[{"backends":["d/a/80","d/b/80"],"weights":[1,3],"redirect":{"status":308,"keepSlash":true},` +
				`"rewrite":["/new/",2],"policy":"1000,60000,90000,2,1500","profile":"` + tuned.Profile.Name() + `","pool":"headgate_https_0123456789ab",` +
				`"maxBody":5242880,"cookiePath":"/x","noLog":true,` + source + `}]}`,
		},
		"unavailable": {
			&model.Host{Name: "", Routes: []*model.Route{broken, {Match: broken.Match}}},
			`{"name":"","exact":{"/x":1},"routes":[{"unavailable":true,` + source + `},{"unavailable":true,"source":["","","","",""]}]}`,
		},
		"no routes": {&model.Host{Name: "a.test"}, `{"name":"a.test","routes":[]}`},
	} {
		t.Run(name, func(t *testing.T) {
			got := string(hostBody(c.host, newProfileNames(model.Profile{})))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if !json.Valid([]byte(got)) {
				t.Errorf("no JSON: %s", got)
			}
		})
	}
	upstreams := map[string]*model.Upstream{
		`{"peers":["10.0.0.1:80","[2001:db8::1]:80"]}`: {Algorithm: model.RoundRobin, Peers: []model.Peer{peerOf("10.0.0.1:80", 1), peerOf("[2001:db8::1]:80", 1)}},
		`{"peers":["10.0.0.1:80"],"weights":[5]}`:      {Peers: []model.Peer{peerOf("[::ffff:10.0.0.1]:80", 5)}},
		`{"peers":[],"draining":["10.0.0.1:80"]}`:      {Peers: []model.Peer{{Address: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 2, Draining: true}}},
		`{"algorithm":"ewma","peers":[]}`:              {Algorithm: "ewma"},
		`{"algorithm":"chash","hash":[["variable","request_uri"],["literal","-"],["header","x-user"]],"subset":3,"peers":[]}`: {
			Algorithm: model.ConsistentHash, Subset: 3,
			Hash: []model.HashPart{{Kind: model.HashVariable, Name: "request_uri"}, {Kind: model.HashLiteral, Name: "-"}, {Kind: model.HashHeader, Name: "x-user"}},
		},
		`{"cookie":{},"clientIP":10800,"peers":[]}`: {Cookie: &model.Cookie{}, ClientIP: 3 * time.Hour},
		`{"cookie":{"name":"c","persistent":true,"key":"k","path":"/p","domain":"a.test","expires":172800,"maxAge":60,"sameSite":"None",` +
			`"conditionalNone":true,"secure":false,"changeOnFailure":true},"peers":[]}`: {Cookie: &model.Cookie{
			Name: "c", Persistent: true, Key: "k", Path: "/p", Domain: "a.test", Expires: 48 * time.Hour, MaxAge: time.Minute,
			SameSite: model.SameSiteNone, ConditionalSameSiteNone: true, Secure: new(bool), ChangeOnFailure: true,
		}},
		`{"limits":{"peer":5,"queue":7,"queueMs":250,"requests":9},"slowStartMs":30000,"peers":[]}`: {
			Limits: model.Limits{PeerRequests: 5, Queue: 7, QueueTimeout: 250 * time.Millisecond, Requests: 9}, SlowStart: 30 * time.Second,
		},
		`{"ejection":{"off":true},"budget":{"unlimited":true},"peers":[]}`: {
			Ejection: model.Ejection{Off: true, Failures: 9}, Budget: model.RetryBudget{Unlimited: true, Percent: 9},
		},
		`{"ejection":{"failures":2,"baseMs":1000,"maxMs":60000,"statuses":[502,504]},"budget":{"percent":50,"min":1},"peers":[]}`: {
			Ejection: model.Ejection{Failures: 2, Base: time.Second, Max: time.Minute, Statuses: []uint16{502, 504}},
			Budget:   model.RetryBudget{Percent: 50, MinPerSecond: 1},
		},
		`{"peers":["10.0.0.1:80"],"draining":["10.0.0.2:80"],"down":["10.0.0.1:80","10.0.0.2:80"]}`: {Peers: []model.Peer{
			{Address: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 1, Down: true},
			{Address: netip.MustParseAddrPort("10.0.0.2:80"), Weight: 1, Down: true, Draining: true},
		}},
		// A duration below the unit is not the default that zero means.
		`{"clientIP":1,"slowStartMs":1,"peers":[]}`: {ClientIP: time.Millisecond, SlowStart: time.Microsecond},
	}
	for want, u := range upstreams {
		if got := string(encodeUpstream(u)); got != want || !json.Valid([]byte(got)) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	settings := model.Settings{RedirectPort: 8443, NoTLSRedirectPrefixes: []string{"/x"}, DefaultCertificate: "d/c"}
	if got := string(encodeSettings(settings)); got != `{"redirectPort":8443,"noTLSRedirect":["/x"],"defaultCertificate":"d/c"}` {
		t.Error(got)
	}
	if got := string(encodeSettings(model.Settings{RedirectPort: 443})); got != `{}` {
		t.Error(got)
	}
}

func TestStringsAreData(t *testing.T) {
	for in, want := range map[string]string{
		"a\"\\/\n\x00\x7f": `"a\"\\/\u000a\u0000\u007f"`,
		"\xff\xfeé":        "\"\xff\xfeé\"",
	} {
		var j jsonWriter
		j.text(in)
		if string(j.buf) != want {
			t.Errorf("%q: %q, want %q", in, j.buf, want)
		}
	}
}

func testModel(hosts int) *model.Model {
	m := &model.Model{Settings: model.Settings{RedirectPort: 443}}
	for i := range hosts {
		h := &model.Host{Name: model.HostName(fmt.Sprintf("h%d.test", i)), TLS: true, Certificate: "d/c", Routes: []*model.Route{route(model.PathPrefix, "/")}}
		m.Hosts = append(m.Hosts, h)
	}
	m.Upstreams = []*model.Upstream{{ID: "d/a/80", Peers: []model.Peer{peerOf("10.0.0.1:80", 1)}}}
	m.Certificates = []*model.Certificate{
		{ID: "d/c", Chain: [][]byte{[]byte("leaf"), []byte("ca")}, Key: model.Secret("very secret")}, {ID: "d/kept", Keep: true},
	}
	return m
}

func TestEncode(t *testing.T) {
	m := testModel(2)
	m.Hosts[1].Certificate = ""
	var got []string
	for _, o := range NewEncoder().Encode(m).Objects {
		got = append(got, o.Pointer)
		if !o.Keep && (o.Hash != Hash(o.Body) || len(o.Hash) != 32) {
			t.Errorf("%s: hash %q", o.Pointer, o.Hash)
		}
		if o.Keep != (o.Pointer == "cert/d/kept") || o.Keep != (o.Hash == "") {
			t.Errorf("%s: %+v", o.Pointer, o.Keep)
		}
	}
	want := []string{"cert/d/c", "cert/d/kept", "host/h0.test", "host/h1.test", "setting/global", "sni/h0.test", "upstream/d/a/80"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestReferring(t *testing.T) {
	for pointer, want := range map[string]bool{"host/a": true, "host/": true, "sni/a": true, "upstream/host/sni": false, "cert/a": false, "setting/global": false} {
		if Referring(pointer) != want {
			t.Errorf("%s", pointer)
		}
	}
}

// TestIncrementalEqualsFromScratch: whatever changed from one model to the next, and in whatever
// order the lists stand, a remembering encoder gives what a new one gives.
func TestIncrementalEqualsFromScratch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := NewEncoder()
		m := testModel(rapid.IntRange(0, 8).Draw(t, "hosts"))
		for range rapid.IntRange(1, 8).Draw(t, "edits") {
			next := *m
			next.Hosts, next.Upstreams, next.Certificates = slices.Clone(m.Hosts), slices.Clone(m.Upstreams), slices.Clone(m.Certificates)
			switch rapid.IntRange(0, 4).Draw(t, "edit") {
			case 0:
				next.Hosts = append(next.Hosts, &model.Host{Name: model.HostName(rapid.StringMatching(`[a-z]{1,3}`).Draw(t, "name"))})
			case 1:
				next.Hosts = next.Hosts[:len(next.Hosts)/2]
			case 2:
				next.Settings.DefaultProfile.Buffering = !next.Settings.DefaultProfile.Buffering
			case 3:
				next.Upstreams[0] = &model.Upstream{ID: "d/a/80", Peers: []model.Peer{peerOf("10.0.0.2:80", rapid.Uint16Range(1, 3).Draw(t, "weight"))}}
			case 4:
				next.Certificates[0] = &model.Certificate{ID: "d/c", Keep: rapid.Bool().Draw(t, "keep")}
			}
			m = &next
			if diff := cmp.Diff(NewEncoder().Encode(m), e.Encode(m)); diff != "" {
				t.Fatalf("-from scratch +incremental\n%s", diff)
			}
		}
	})
}

func TestOrderOfListsDoesNotMatter(t *testing.T) {
	m := testModel(20)
	want := NewEncoder().Encode(m)
	rand.Shuffle(len(m.Hosts), func(i, j int) { m.Hosts[i], m.Hosts[j] = m.Hosts[j], m.Hosts[i] })
	slices.Reverse(m.Certificates)
	if diff := cmp.Diff(want, NewEncoder().Encode(m)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestRedacted(t *testing.T) {
	s := NewEncoder().Encode(testModel(1))
	got := string(Redacted(s))
	if !json.Valid([]byte(got)) {
		t.Fatalf("no JSON: %s", got)
	}
	for _, secret := range []string{"very secret", "dmVyeSBzZWNyZXQ=", "PRIVATE KEY"} {
		if strings.Contains(got, secret) {
			t.Errorf("holds %q", secret)
		}
	}
	for _, want := range []string{`"cert/d/c"`, `"key": "sha256:`, `"keep": true`, `"host/h0.test"`, `BEGIN CERTIFICATE`} {
		if !strings.Contains(got, want) {
			t.Errorf("does not hold %s:\n%s", want, got)
		}
	}
	sticky := &model.Model{Upstreams: []*model.Upstream{{
		ID: "d/s/80", Cookie: &model.Cookie{Name: "key", Persistent: true, Key: `a "very" {secret} key`, Path: "/"},
	}}}
	got = string(Redacted(NewEncoder().Encode(sticky)))
	if strings.Contains(got, "{secret}") || !strings.Contains(got, `"key": "sha256:`) || !strings.Contains(got, `"name": "key"`) {
		t.Errorf("the key of a cookie: %s", got)
	}
	for _, body := range []string{`{"cookie":{"key":"very secret"`, `{"cookie": {"key": "very secret"}}`} {
		if got := string(Redacted(State{Objects: []*Object{{Pointer: "upstream/x", Body: []byte(body)}}})); strings.Contains(got, "secret") {
			t.Errorf("shows %s as %s", body, got)
		}
	}
	damaged := State{Objects: []*Object{{Pointer: "cert/x", Body: []byte("PRIVATE KEY")}}}
	if got := string(Redacted(damaged)); strings.Contains(got, "PRIVATE") {
		t.Errorf("shows a certificate that it cannot read: %s", got)
	}
}

func BenchmarkEncode(b *testing.B) {
	m := testModel(10000)
	b.Run("from scratch", func(b *testing.B) {
		for b.Loop() {
			NewEncoder().Encode(m)
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		e := NewEncoder()
		for b.Loop() {
			e.Encode(m)
		}
	})
}

// TestPropertyRememberedEqualsFresh proves that what an Encoder remembers changes nothing, whatever came, went, changed or was
// moved in between, also in lists that are not sorted.
func TestPropertyRememberedEqualsFresh(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := NewEncoder()
		hosts, upstreams, certificates := map[int]*model.Host{}, map[int]*model.Upstream{}, map[int]*model.Certificate{}
		for range rapid.IntRange(1, 12).Draw(t, "models") {
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				n := rapid.IntRange(0, 90).Draw(t, "which")
				secure := rapid.Bool().Draw(t, "tls")
				hosts[n] = &model.Host{
					Name: model.HostName(fmt.Sprintf("h%d.test", n)), TLS: secure, Certificate: model.CertificateID(fmt.Sprintf("d/c%d", n)),
					Regex: rapid.Bool().Draw(t, "regex"), Routes: []*model.Route{{Unavailable: "x", MaxBodyBytes: rapid.Int64Range(0, 2).Draw(t, "body")}},
				}
				upstreams[n] = &model.Upstream{ID: model.UpstreamID(fmt.Sprintf("u%d", n)), Subset: rapid.IntRange(0, 2).Draw(t, "subset")}
				certificates[n] = &model.Certificate{ID: model.CertificateID(fmt.Sprintf("d/c%d", n)), Keep: rapid.Bool().Draw(t, "keep"), Key: model.Secret("key")}
				gone := rapid.IntRange(0, 90).Draw(t, "gone")
				delete(hosts, gone)
				delete(upstreams, gone)
				delete(certificates, gone)
			}
			m := &model.Model{Settings: model.Settings{NoTLSRedirectPrefixes: rapid.SampledFrom([][]string{nil, {"/x"}}).Draw(t, "prefixes")}}
			shuffled := rapid.IntRange(0, 5).Draw(t, "shuffled") == 0
			m.Hosts = listOf(t, hosts, shuffled, func(h *model.Host) string { return string(h.Name) })
			m.Upstreams = listOf(t, upstreams, shuffled, func(u *model.Upstream) string { return string(u.ID) })
			m.Certificates = listOf(t, certificates, shuffled, func(c *model.Certificate) string { return string(c.ID) })
			if rapid.IntRange(0, 4).Draw(t, "profile") == 0 {
				m.Settings.DefaultProfile.Buffering = true
			}
			got := e.Encode(m)
			if want := NewEncoder().Encode(m); !reflect.DeepEqual(got, want) { // cmp takes seconds for that many
				t.Fatalf("remembered (-fresh +remembered):\n%s", cmp.Diff(want, got))
			}
			if again := e.Encode(m); len(again.Objects) != len(got.Objects) || &again.Objects[0] != &got.Objects[0] {
				t.Fatal("the same model gives another list")
			}
		}
	})
}

func listOf[T any](t *rapid.T, parts map[int]*T, shuffled bool, name func(*T) string) []*T {
	list := slices.SortedFunc(maps.Values(parts), func(a, b *T) int { return strings.Compare(name(a), name(b)) })
	if shuffled {
		list = rapid.Permutation(list).Draw(t, "order")
	}
	return list
}

// A list that is changed in place is another one.
func TestEncoderKeepsItsOwnLists(t *testing.T) {
	m := &model.Model{Upstreams: []*model.Upstream{{ID: "a"}, {ID: "b"}}}
	e := NewEncoder()
	first := e.Encode(m)
	m.Upstreams[1] = &model.Upstream{ID: "b", Peers: []model.Peer{peerOf("10.0.0.1:80", 1)}}
	second := e.Encode(m)
	if diff := cmp.Diff(NewEncoder().Encode(m), second); diff != "" {
		t.Error(diff)
	}
	if cmp.Equal(first, second) {
		t.Error("the change is not seen")
	}
}
