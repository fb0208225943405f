package nginx_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"headgate/gateway/model"
)

const afUpstream = model.UpstreamID("d/a/80")

// afBackends starts n backends, named by letters, and gives them sorted by address, as the model has its peers.
func afBackends(t *testing.T, n int) []*dpBackend {
	t.Helper()
	var out []*dpBackend
	for i := range n {
		out = append(out, dpNewBackend(t, string(rune('a'+i))))
	}
	slices.SortFunc(out, func(x, y *dpBackend) int { return x.address.Compare(y.address) })
	return out
}

// afServe serves a.test by an upstream of backends.
func afServe(t *testing.T, u *model.Upstream, hosts ...*model.Host) *dpProxy {
	t.Helper()
	p := dpStart(t, dpSettings())
	if len(hosts) == 0 {
		hosts = []*model.Host{dpHost("a.test", dpRoute(model.PathPrefix, "/", u.ID))}
	}
	p.model.Upstreams, p.model.Hosts = []*model.Upstream{u}, hosts
	p.push()
	return p
}

// change pushes an upstream made of the present one.
func (p *dpProxy) change(edit func(*model.Upstream)) {
	p.t.Helper()
	u := *p.model.Upstreams[0]
	edit(&u)
	p.model.Upstreams = []*model.Upstream{&u}
	p.push()
}

func afPeers(backends []*dpBackend) []model.Peer { return dpUpstream("", backends...).Peers }

// afClient is a browser: it keeps the cookie that it was given.
type afClient struct {
	cookie string
	header map[string]string
	tls    bool
	// set is the Set-Cookie of the last answer, peer who gave it.
	set, peer string
}

func (c *afClient) get(p *dpProxy, path string) string {
	p.t.Helper()
	header := map[string]string{}
	maps.Copy(header, c.header)
	if c.cookie != "" {
		header["Cookie"] = "other=1; " + c.cookie
	}
	got := p.do(dpRequest{host: "a.test", path: path, header: header, tls: c.tls})
	if got.seen == nil {
		p.t.Fatalf("%d %s", got.status, got.body)
	}
	set := got.header.Values("Set-Cookie")
	if len(set) > 1 {
		p.t.Fatalf("set %d times: %q", len(set), set)
	}
	c.set = strings.Join(set, "")
	if c.set != "" {
		c.cookie, _, _ = strings.Cut(c.set, ";")
	}
	c.peer = got.seen.Backend
	return c.peer
}

// afRound lets every client make a request: how many each peer got, and how many clients moved.
func afRound(p *dpProxy, clients []*afClient) (map[string]int, int) {
	p.t.Helper()
	count, moved := map[string]int{}, 0
	for _, c := range clients {
		before := c.peer
		count[c.get(p, "/")]++
		if before != "" && c.peer != before {
			moved++
		}
	}
	return count, moved
}

func afClients(n int) []*afClient {
	var out []*afClient
	for range n {
		out = append(out, &afClient{})
	}
	return out
}

// afNear tells whether n is what chance gives for want, within five standard deviations of it and slack.
func afNear(n int, want, slack float64) bool {
	return math.Abs(float64(n)-want) <= 5*math.Sqrt(want)+slack*want
}

// TestStickyCookie: both modes over growth, draining and loss.
func TestStickyCookie(t *testing.T) {
	for name, cookie := range map[string]model.Cookie{
		"balanced": {}, "persistent": {Persistent: true, Key: "0123456789abcdef0123456789abcdef"},
	} {
		t.Run(name, func(t *testing.T) {
			backends := afBackends(t, 5)
			u := dpUpstream(afUpstream, backends[:2]...)
			u.Cookie = &cookie
			p := afServe(t, u)
			clients := afClients(150)
			afRound(p, clients)
			value := regexp.MustCompile(`^INGRESSCOOKIE=[0-9A-Za-z+/]{16}; Path=/; HttpOnly$`)
			for _, c := range clients {
				if !value.MatchString(c.set) {
					t.Fatalf("Set-Cookie: %q", c.set)
				}
			}
			if _, moved := afRound(p, clients); moved != 0 {
				t.Errorf("%d clients moved without a change", moved)
			}
			for _, c := range clients {
				if c.set != "" {
					t.Fatalf("a client that has its cookie gets %q", c.set)
				}
			}
			p.change(func(u *model.Upstream) { u.Peers = afPeers(backends) })
			count, moved := afRound(p, clients)
			if cookie.Persistent && moved != 0 || !cookie.Persistent && !afNear(moved, 150*3.0/5, 0.2) {
				t.Errorf("from 2 peers to 5: %d of 150 clients moved", moved)
			}
			if !cookie.Persistent {
				for _, b := range backends {
					if !afNear(count[b.name], 30, 0.2) {
						t.Errorf("%s serves %d of 150 clients", b.name, count[b.name])
					}
				}
			}
			if fresh, _ := afRound(p, afClients(100)); len(fresh) != 5 {
				t.Errorf("new clients: %v", fresh)
			}
			first := afNamed(t, backends, clients[0].peer)
			afDrain(t, p, first, clients)
			afLeave(t, p, first, clients)
		})
	}
}

// afDrain makes a peer drain: its sessions stay, and no other comes.
func afDrain(t *testing.T, p *dpProxy, first *dpBackend, clients []*afClient) {
	t.Helper()
	p.change(func(u *model.Upstream) {
		u.Peers = slices.Clone(u.Peers)
		for i := range u.Peers {
			u.Peers[i].Draining = u.Peers[i].Address == first.address
		}
	})
	if _, moved := afRound(p, clients); moved != 0 {
		t.Errorf("draining: %d clients moved", moved)
	}
	if fresh, _ := afRound(p, afClients(60)); fresh[first.name] != 0 {
		t.Errorf("a draining peer gets %d new clients", fresh[first.name])
	}
}

// afLeave takes a peer away: its clients spread over the others, and nobody else moves.
func afLeave(t *testing.T, p *dpProxy, first *dpBackend, clients []*afClient) {
	t.Helper()
	own := 0
	for _, c := range clients {
		if c.peer == first.name {
			own++
		}
	}
	p.change(func(u *model.Upstream) {
		u.Peers = slices.DeleteFunc(slices.Clone(u.Peers), func(x model.Peer) bool { return x.Address == first.address })
	})
	before := map[*afClient]string{}
	for _, c := range clients {
		before[c] = c.peer
	}
	_, moved := afRound(p, clients)
	heirs := map[string]bool{}
	for _, c := range clients {
		if before[c] == first.name {
			heirs[c.peer] = true
		}
	}
	if moved != own || heirs[first.name] || len(heirs) < 3 {
		t.Errorf("one of 5 leaves: %d clients moved, of %d that were its own, to %v", moved, own, heirs)
	}
	if _, moved := afRound(p, clients); moved != 0 {
		t.Errorf("afterwards %d moved again", moved)
	}
}

// afNamed finds the backend of that name.
func afNamed(t *testing.T, backends []*dpBackend, name string) *dpBackend {
	t.Helper()
	i := slices.IndexFunc(backends, func(b *dpBackend) bool { return b.name == name })
	if i < 0 {
		t.Fatalf("no peer is called %s", name)
	}
	return backends[i]
}

func TestStickyCookieAttributes(t *testing.T) {
	b := dpNewBackend(t, "a")
	no, yes := false, true
	route := dpRoute(model.PathPrefix, "/", afUpstream)
	shop := dpRoute(model.PathPrefix, "/shop", afUpstream)
	shop.CookiePath = "/shop"
	odd := dpRoute(model.PathPrefix, "/odd", afUpstream)
	odd.CookiePath = "/odd;\r\nX-Evil: 1"
	u := dpUpstream(afUpstream, b)
	u.Cookie = &model.Cookie{}
	p := afServe(t, u, dpHost("a.test", route, shop, odd))
	ios12 := map[string]string{"User-Agent": "Mozilla/5.0 (iPhone; CPU iPhone OS 12_4 like Mac OS X) AppleWebKit/605.1.15"}
	expires := regexp.MustCompile(`; Expires=([^;]+)`)
	for _, c := range []struct {
		name   string
		cookie model.Cookie
		path   string
		tls    bool
		header map[string]string
		want   string
	}{
		{"plain", model.Cookie{}, "/", false, nil, "INGRESSCOOKIE=V; Path=/; HttpOnly"},
		{"https", model.Cookie{}, "/", true, nil, "INGRESSCOOKIE=V; Path=/; Secure; HttpOnly"},
		{"never secure", model.Cookie{Secure: &no}, "/", true, nil, "INGRESSCOOKIE=V; Path=/; HttpOnly"},
		{"always secure", model.Cookie{Secure: &yes}, "/", false, nil, "INGRESSCOOKIE=V; Path=/; Secure; HttpOnly"},
		{"the rule's path", model.Cookie{}, "/shop/x", false, nil, "INGRESSCOOKIE=V; Path=/shop; HttpOnly"},
		{"its own path", model.Cookie{Path: "/own"}, "/shop/x", false, nil, "INGRESSCOOKIE=V; Path=/own; HttpOnly"},
		{"a path that would break out", model.Cookie{}, "/odd", false, nil, "INGRESSCOOKIE=V; Path=/; HttpOnly"},
		{"name, domain, age", model.Cookie{Name: "Route-1.x", Domain: "a.test", MaxAge: time.Hour}, "/", false, nil,
			"Route-1.x=V; Max-Age=3600; Domain=a.test; Path=/; HttpOnly"},
		{"expires", model.Cookie{Expires: time.Hour}, "/", false, nil, "INGRESSCOOKIE=V; Expires=T; Path=/; HttpOnly"},
		{"strict", model.Cookie{SameSite: model.SameSiteStrict}, "/", false, nil, "INGRESSCOOKIE=V; Path=/; HttpOnly; SameSite=Strict"},
		{"none", model.Cookie{SameSite: model.SameSiteNone, Secure: &yes}, "/", false, ios12,
			"INGRESSCOOKIE=V; Path=/; Secure; HttpOnly; SameSite=None"},
		{"none for a client that knows it", model.Cookie{SameSite: model.SameSiteNone, ConditionalSameSiteNone: true}, "/", false, nil,
			"INGRESSCOOKIE=V; Path=/; HttpOnly; SameSite=None"},
		{"none for a client that misreads it", model.Cookie{SameSite: model.SameSiteNone, ConditionalSameSiteNone: true}, "/", false, ios12,
			"INGRESSCOOKIE=V; Path=/; HttpOnly"},
	} {
		for _, persistent := range []bool{false, true} {
			cookie := c.cookie
			cookie.Persistent = persistent
			p.change(func(u *model.Upstream) { u.Cookie = &cookie })
			client := &afClient{tls: c.tls, header: c.header}
			client.get(p, c.path)
			got := regexp.MustCompile(`=[0-9A-Za-z+/]{16};`).ReplaceAllString(client.set, "=V;")
			if m := expires.FindStringSubmatch(got); m != nil {
				at, err := time.Parse(http.TimeFormat, m[1])
				if in := time.Until(at); err != nil || in < 59*time.Minute || in > time.Hour {
					t.Errorf("%s: expires at %s: in %s, %v", c.name, m[1], in, err)
				}
				got = expires.ReplaceAllString(got, "; Expires=T")
			}
			if got != c.want {
				t.Errorf("%s, persistent %t: %q, want %q", c.name, persistent, got, c.want)
			}
			if first := client.set; first != "" {
				if client.get(p, c.path); client.set != "" {
					t.Errorf("%s, persistent %t: %q is not taken again: %q", c.name, persistent, first, client.set)
				}
			}
		}
	}
}

// TestStickyCookieBesideOthers: the cookies of the peer stay, and HSTS.
func TestStickyCookieBesideOthers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: dpDeadline, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "own", Value: "1"})
		if r.URL.Path == "/missing" {
			w.WriteHeader(http.StatusNotFound)
		}
	})}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(l) }()
	u := &model.Upstream{ID: afUpstream, Cookie: &model.Cookie{Persistent: true}, Peers: []model.Peer{
		{Address: netip.MustParseAddrPort(l.Addr().String()), Weight: 1},
	}}
	p := afServe(t, u)
	for path, status := range map[string]int{"/": 200, "/missing": 404} {
		got := p.do(dpRequest{host: "a.test", path: path, tls: true})
		set := got.header.Values("Set-Cookie")
		if got.status != status || len(set) != 2 || len(got.header.Values("Strict-Transport-Security")) != 1 {
			t.Errorf("%s: %d %v", path, got.status, got.header)
		}
	}
	// What the proxy itself answers binds nobody.
	p.change(func(u *model.Upstream) { u.Peers = nil })
	if got := p.get("a.test", "/"); got.status != 503 || got.header.Get("Set-Cookie") != "" {
		t.Errorf("%d %v", got.status, got.header)
	}
}

// TestStickyCookieHostile: whatever stands in the cookie, the request is served, and nothing of it comes back.
func TestStickyCookieHostile(t *testing.T) {
	backends := afBackends(t, 3)
	for _, persistent := range []bool{false, true} {
		u := dpUpstream(afUpstream, backends...)
		u.Cookie = &model.Cookie{Persistent: persistent}
		p := afServe(t, u)
		for _, value := range []string{
			"INGRESSCOOKIE=", "INGRESSCOOKIE", "INGRESSCOOKIE=evil-" + strings.Repeat("x", 7000), "INGRESSCOOKIE=evil-\x80\xff\xfe",
			"INGRESSCOOKIE=evil-%0d%0aX-Evil:1", `INGRESSCOOKIE="evil-"`, "ingresscookie=evil-", "INGRESSCOOKIE=evil-$host{}`;",
			"INGRESSCOOKIE=" + backends[0].address.String(), strings.Repeat("INGRESSCOOKIE=evil-; ", 300),
			"=; ;;; INGRESSCOOKIE==evil-;", "\tINGRESSCOOKIE=evil-\t",
		} {
			got := p.raw("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nCookie: " + value + "\r\nCookie: " + "INGRESSCOOKIE=second\r\n\r\n")
			head, _, _ := strings.Cut(got, "\r\n\r\n")
			if !strings.HasPrefix(head, "HTTP/1.1 200 ") || strings.Contains(head, "evil") || strings.Contains(head, "X-Evil") {
				t.Errorf("persistent %t, %.60q: %q", persistent, value, head)
			}
			if n := strings.Count(head, "Set-Cookie:"); n > 1 || persistent && n != 1 {
				t.Errorf("persistent %t, %.60q: %d cookies", persistent, value, n)
			}
		}
	}
}

// TestStickyCookieFailure: the peer of a session dies without leaving.
func TestStickyCookieFailure(t *testing.T) {
	for _, c := range []struct {
		name   string
		cookie model.Cookie
	}{
		{"balanced", model.Cookie{}}, {"persistent", model.Cookie{Persistent: true}},
		{"balanced, change on failure", model.Cookie{ChangeOnFailure: true}},
		{"persistent, change on failure", model.Cookie{Persistent: true, ChangeOnFailure: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			backends := afBackends(t, 3)
			u := dpUpstream(afUpstream, backends...)
			u.Cookie, u.Ejection.Off, u.Budget.Unlimited = &c.cookie, true, true
			p := afServe(t, u)
			clients := afClients(30)
			afRound(p, clients)
			dead := afNamed(t, backends, clients[0].peer)
			first := map[*afClient]string{}
			for _, client := range clients {
				first[client] = client.peer
			}
			dead.server.CloseClientConnections()
			dead.server.Close()
			count, _ := afRound(p, clients)
			if count[dead.name] != 0 {
				t.Fatalf("a dead peer answered")
			}
			for _, client := range clients {
				if changed := client.set != ""; changed != (c.cookie.ChangeOnFailure && first[client] == dead.name) {
					t.Errorf("a client of %s, %s being dead, gets %q", first[client], dead.name, client.set)
				}
			}
			if _, moved := afRound(p, clients); c.cookie.ChangeOnFailure && moved != 0 {
				t.Errorf("%d clients moved again", moved)
			}
			// A session that begins at the dead peer ends up at one that answers, and stays there.
			fresh := afClients(20)
			afRound(p, fresh)
			for _, client := range fresh {
				answered, cookie := client.peer, client.cookie
				if cookie == "" || client.get(p, "/") != answered || client.set != "" {
					t.Errorf("a new client: from %s to %s, set again %q", answered, client.peer, client.set)
				}
			}
			afRevive(t, p, dead, clients, first)
		})
	}
}

// afRevive brings the dead peer back at its address: it gets the clients back that were not bound anew.
func afRevive(t *testing.T, p *dpProxy, dead *dpBackend, clients []*afClient, first map[*afClient]string) {
	t.Helper()
	l, err := net.Listen("tcp", dead.address.String())
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: dpDeadline, Handler: dead}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(l) }()
	now := map[*afClient]string{}
	for _, client := range clients {
		now[client] = client.peer
	}
	afRound(p, clients)
	for _, client := range clients {
		want := first[client]
		if p.model.Upstreams[0].Cookie.ChangeOnFailure {
			want = now[client]
		}
		if client.peer != want {
			t.Errorf("a client of %s is at %s after the return of %s", first[client], client.peer, dead.name)
		}
	}
}

// afAddresses are clients at addresses of the loopback network, or of a trusted proxy's telling.
func afAddresses(n int, format string) []*afClient {
	var out []*afClient
	for i := range n {
		out = append(out, &afClient{header: map[string]string{"X-Forwarded-For": fmt.Sprintf(format, i+1)}})
	}
	return out
}

func TestClientIPAffinity(t *testing.T) {
	backends := afBackends(t, 5)
	settings := dpSettings()
	settings.UseForwardedHeaders = true
	settings.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	p := dpStart(t, settings)
	u := dpUpstream(afUpstream, backends[:2]...)
	u.ClientIP = 3 * time.Hour
	p.model.Upstreams = []*model.Upstream{u}
	p.model.Hosts = []*model.Host{dpHost("a.test", dpRoute(model.PathPrefix, "/", u.ID))}
	p.push()
	clients := append(afAddresses(60, "192.0.2.%d"), afAddresses(60, "2001:db8::%x")...)
	count, _ := afRound(p, clients)
	for _, b := range backends[:2] {
		if !afNear(count[b.name], 60, 0.2) {
			t.Errorf("%s serves %d of 120 clients", b.name, count[b.name])
		}
	}
	if _, moved := afRound(p, clients); moved != 0 || clients[0].set != "" {
		t.Errorf("%d moved, cookie %q", moved, clients[0].set)
	}
	// New peers take new clients, and no known ones: any worker knows them.
	p.change(func(u *model.Upstream) { u.Peers = afPeers(backends) })
	if _, moved := afRound(p, clients); moved != 0 {
		t.Errorf("from 2 peers to 5: %d moved", moved)
	}
	if fresh, _ := afRound(p, afAddresses(60, "198.51.100.%d")); len(fresh) != 5 {
		t.Errorf("new clients: %v", fresh)
	}
	old := p.workerPIDs()
	p.model.Settings.WorkerConnections = 512
	p.reload()
	p.settle(old)
	if _, moved := afRound(p, clients); moved != 0 {
		t.Errorf("a reload moved %d", moved)
	}
	first := afNamed(t, backends, clients[0].peer)
	afDrain(t, p, first, clients)
	p.change(func(u *model.Upstream) { u.Peers = afPeers(backends) })
	afLeave(t, p, first, clients)
}

// TestClientIPEnds: a client that was idle for the time may be bound anew, and no other one is.
func TestClientIPEnds(t *testing.T) {
	const timeout = 2 * time.Second
	backends := afBackends(t, 2)
	settings := dpSettings()
	settings.UseForwardedHeaders = true
	settings.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	p := dpStart(t, settings)
	u := dpUpstream(afUpstream, backends[0])
	u.ClientIP = timeout
	p.model.Upstreams = []*model.Upstream{u}
	p.model.Hosts = []*model.Host{dpHost("a.test", dpRoute(model.PathPrefix, "/", u.ID))}
	p.push()
	clients := afAddresses(800, "2001:db8::%x")
	last := make([]time.Time, len(clients))
	for i, c := range clients {
		c.get(p, "/")
		last[i] = time.Now()
	}
	p.change(func(u *model.Upstream) { u.Peers = afPeers(backends) })
	// Each client is asked once: a request renews the binding. The last ones that came are asked first.
	next := len(clients)
	p.eventually("some binding ends", func() error {
		if next--; next < 0 {
			t.Fatal("no binding ended")
		}
		idle := time.Since(last[next])
		if clients[next].get(p, "/") == backends[0].name {
			return fmt.Errorf("client %d stays after %s", next, idle)
		}
		if now := time.Since(last[next]); now < timeout {
			t.Errorf("client %d moved after %s", next, now)
		}
		return nil
	})
}

// TestConsistentHash: requests with one key meet one peer, and a peer that comes or goes moves its share.
func TestConsistentHash(t *testing.T) {
	backends := afBackends(t, 5)
	u := dpUpstream(afUpstream, backends...)
	u.Algorithm = model.ConsistentHash
	p := afServe(t, u)
	for _, c := range []struct {
		name string
		hash []model.HashPart
		make func(i int) dpRequest
	}{
		{"variable", []model.HashPart{{Kind: model.HashVariable, Name: "request_uri"}}, func(i int) dpRequest {
			return dpRequest{path: fmt.Sprintf("/%d?x", i)}
		}},
		{"header", []model.HashPart{{Kind: model.HashHeader, Name: "x-user-id"}}, func(i int) dpRequest {
			return dpRequest{path: "/", header: map[string]string{"X-User-ID": fmt.Sprint(i)}}
		}},
		{"cookie", []model.HashPart{{Kind: model.HashCookie, Name: "user"}}, func(i int) dpRequest {
			return dpRequest{path: "/", header: map[string]string{"Cookie": fmt.Sprintf("a=1; user=%d", i)}}
		}},
		{"argument and literal", []model.HashPart{{Kind: model.HashLiteral, Name: "v1-"}, {Kind: model.HashArgument, Name: "user"}},
			func(i int) dpRequest { return dpRequest{path: fmt.Sprintf("/?a=%d&user=%d", 1000-i, i)} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.t = t
			round := func() map[int]string {
				out := map[int]string{}
				for i := range 120 {
					r := c.make(i)
					r.host = "a.test"
					out[i] = p.do(r).seen.Backend
				}
				return out
			}
			p.change(func(u *model.Upstream) { u.Hash, u.Peers = c.hash, afPeers(backends) })
			all, count := round(), map[string]int{}
			for _, name := range all {
				count[name]++
			}
			for _, b := range backends {
				if !afNear(count[b.name], 24, 0.2) {
					t.Errorf("%s gets %d of 120 keys", b.name, count[b.name])
				}
			}
			if again := round(); !maps.Equal(all, again) {
				t.Error("keys move without a change")
			}
			p.change(func(u *model.Upstream) { u.Peers = afPeers(backends[1:]) })
			for i, name := range round() {
				if all[i] != backends[0].name && all[i] != name {
					t.Errorf("key %d moved from %s to %s when %s left", i, all[i], name, backends[0].name)
				}
			}
		})
	}
	p.t = t
	p.change(func(u *model.Upstream) {
		u.Hash, u.Peers = []model.HashPart{{Kind: model.HashHeader, Name: "x-none"}}, afPeers(backends)
	})
	if count, _ := afRound(p, afClients(80)); len(count) != 5 {
		t.Errorf("requests without a key: %v", count)
	}
	p.change(func(u *model.Upstream) {
		u.Hash, u.Subset = []model.HashPart{{Kind: model.HashVariable, Name: "request_uri"}}, 3
	})
	if count, _ := afRound(p, afClients(80)); len(count) != 3 {
		t.Errorf("a group of 3: %v", count)
	}
}

// TestAlgorithms: each spreads, and changing from any to any is a push: no worker is replaced, no request fails.
func TestAlgorithms(t *testing.T) {
	backends := afBackends(t, 4)
	p := afServe(t, dpUpstream(afUpstream, backends...))
	workers, generation := p.workerPIDs(), p.state().Generation
	all := []model.Algorithm{model.RoundRobin, model.LeastConnections, model.PowerOfTwo, model.EWMA, model.Random, model.ConsistentHash}
	for _, from := range all {
		for _, to := range all {
			for _, algorithm := range []model.Algorithm{from, to} {
				p.change(func(u *model.Upstream) {
					u.Algorithm, u.Hash = algorithm, nil
					if algorithm == model.ConsistentHash {
						u.Hash = []model.HashPart{{Kind: model.HashArgument, Name: "n"}}
					}
				})
				count := map[string]int{}
				for i := range 32 {
					count[p.get("a.test", fmt.Sprintf("/?n=%d", i)).seen.Backend]++
				}
				if len(count) < 3 {
					t.Errorf("%s to %s, at %s: %v", from, to, algorithm, count)
				}
			}
		}
	}
	if s := p.state(); s.Generation != generation || !slices.Equal(p.workerPIDs(), workers) {
		t.Errorf("generation %s, was %s; workers %v, were %v", s.Generation, generation, p.workerPIDs(), workers)
	}
	for _, w := range p.state().Workers {
		if len(w.Errors) > 0 {
			t.Errorf("%v", w.Errors)
		}
	}
}

// TestBindingsAndCountersSurvivePushes: with a push before every request, nobody moves and nobody is favoured.
func TestBindingsAndCountersSurvivePushes(t *testing.T) {
	settings := dpSettings()
	settings.WorkerProcesses = 1 // a round is one worker's
	backends := afBackends(t, 3)
	p := dpStart(t, settings)
	u := dpUpstream(afUpstream, backends...)
	p.model.Upstreams = []*model.Upstream{u, dpUpstream("d/b/80", backends...)}
	p.model.Upstreams[1].Cookie = &model.Cookie{Persistent: true}
	p.model.Hosts = []*model.Host{
		dpHost("rr.test", dpRoute(model.PathPrefix, "/", afUpstream)), dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/b/80")),
	}
	p.push()
	clients, count := afClients(9), map[string]int{}
	afRound(p, clients)
	extra := dpNewBackend(t, "x")
	for i := range 60 {
		peers := afPeers(backends)
		if i%2 == 0 {
			peers = append(peers, model.Peer{Address: extra.address, Weight: 1})
			slices.SortFunc(peers, func(a, b model.Peer) int { return a.Address.Compare(b.Address) })
		}
		one, two := *p.model.Upstreams[0], *p.model.Upstreams[1]
		one.Peers, two.Peers = peers, peers
		p.model.Upstreams = []*model.Upstream{&one, &two}
		p.push()
		count[p.get("rr.test", "/").seen.Backend]++
		c := clients[i%len(clients)]
		if before := c.peer; c.get(p, "/") != before || c.set != "" {
			t.Errorf("push %d: from %s to %s, %q", i, before, c.peer, c.set)
		}
	}
	for _, b := range backends {
		for _, other := range backends {
			if d := count[b.name] - count[other.name]; d > 1 || d < -1 {
				t.Errorf("round robin over pushes: %v", count)
			}
		}
	}
}

// TestEWMAPrefersTheFaster: what was learned survives a push.
func TestEWMAPrefersTheFaster(t *testing.T) {
	settings := dpSettings()
	settings.WorkerProcesses = 1
	fast := dpNewBackend(t, "fast")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	slow := &http.Server{ReadHeaderTimeout: dpDeadline, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-time.After(300 * time.Millisecond): // how slow it is
		case <-r.Context().Done():
		}
		w.Header().Set("X-Echo", "1")
		_, _ = io.WriteString(w, `{"Backend":"slow"}`)
	})}
	t.Cleanup(func() { _ = slow.Close() })
	go func() { _ = slow.Serve(l) }()
	p := dpStart(t, settings)
	u := dpUpstream(afUpstream, fast)
	u.Algorithm = model.EWMA
	u.Peers = append(u.Peers, model.Peer{Address: netip.MustParseAddrPort(l.Addr().String()), Weight: 1})
	slices.SortFunc(u.Peers, func(a, b model.Peer) int { return a.Address.Compare(b.Address) })
	p.model.Upstreams = []*model.Upstream{u}
	p.model.Hosts = []*model.Host{dpHost("a.test", dpRoute(model.PathPrefix, "/", u.ID))}
	p.model.Settings = settings
	old := p.workerPIDs()
	p.reload() // nginx.conf gets the log phase, which measures
	p.settle(old)
	p.push()
	seen := map[string]int{}
	for seen["slow"] == 0 {
		seen[p.get("a.test", "/").seen.Backend]++
		if seen["fast"] > 200 {
			t.Fatalf("the slow peer is never tried: %v", seen)
		}
	}
	for range 3 {
		p.change(func(*model.Upstream) {})
		count, _ := afRound(p, afClients(20))
		if count["fast"] < 18 {
			t.Errorf("%v", count)
		}
	}
	close(release)
}

// TestEWMAAvoidsWhoFailsFast: one peer refuses connections, one answers 503 at once. Neither looks fast.
func TestEWMAAvoidsWhoFailsFast(t *testing.T) {
	settings := dpSettings()
	settings.WorkerProcesses = 1
	good := dpNewBackend(t, "good")
	var failing atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: dpDeadline, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		failing.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	})}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(l) }()
	for name, bad := range map[string]netip.AddrPort{
		"refuses": dpFreePort(t), "answers 503": netip.MustParseAddrPort(l.Addr().String()),
	} {
		p := dpStart(t, settings)
		u := dpUpstream(afUpstream, good)
		u.Algorithm, u.Ejection.Off, u.Budget.Unlimited = model.EWMA, true, true
		u.Peers = append(u.Peers, model.Peer{Address: bad, Weight: 1})
		slices.SortFunc(u.Peers, func(a, b model.Peer) int { return a.Address.Compare(b.Address) })
		p.model.Upstreams = []*model.Upstream{u}
		p.model.Hosts = []*model.Host{dpHost("a.test", dpRoute(model.PathPrefix, "/", u.ID))}
		old := p.workerPIDs()
		p.reload() // nginx.conf gets the log phase, which measures
		p.settle(old)
		p.push()
		average := func() map[string]float64 {
			var answer struct {
				Peers []struct {
					Address string
					EwmaMs  float64
				}
			}
			a := p.must(http.MethodGet, "/v1/peers?upstream="+string(afUpstream), nil, nil)
			if err := json.Unmarshal(a.body, &answer); err != nil {
				t.Fatalf("%s: %v", a.body, err)
			}
			out := map[string]float64{}
			for _, peer := range answer.Peers {
				out[peer.Address] = peer.EwmaMs
			}
			return out
		}
		p.eventually(name+": the failing peer has the higher average", func() error {
			p.get("a.test", "/")
			if a := average(); a[bad.String()] <= a[good.address.String()] {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
		before := good.requests.Load()
		for range 50 {
			p.get("a.test", "/")
		}
		if n := good.requests.Load() - before; n < 48 {
			t.Errorf("%s: the good peer got %d of 50 requests", name, n)
		}
	}
	if failing.Load() == 0 {
		t.Error("the failing peer was never asked")
	}
}

// TestAffinityErrorsAreToldOf: an upstream that Lua cannot use is an error of its own, not of the worker.
func TestAffinityErrorsAreToldOf(t *testing.T) {
	settings := dpSettings()
	settings.WorkerProcesses = 1 // only a worker that used the good version has it
	p := dpStart(t, settings)
	p.model.Upstreams = []*model.Upstream{dpUpstream(afUpstream, dpNewBackend(t, "a"))}
	p.model.Hosts = []*model.Host{dpHost("a.test", dpRoute(model.PathPrefix, "/", afUpstream))}
	p.push()
	p.get("a.test", "/")
	p.change(func(u *model.Upstream) { u.Hash = []model.HashPart{{Kind: "magic", Name: "x"}} })
	if got := p.get("a.test", "/"); got.status != 200 {
		t.Errorf("the last good version serves: %d", got.status)
	}
	p.eventually("it is told of", func() error {
		for _, w := range p.state().Workers {
			for _, e := range w.Errors {
				if strings.Contains(e, "upstream/d/a/80: ") && strings.Contains(e, "unknown kind") {
					return nil
				}
			}
		}
		return os.ErrNotExist
	})
}
