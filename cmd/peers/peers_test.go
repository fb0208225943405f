package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headgate/gateway/model"
	"headgate/sync/luapush"
)

// fakeProxy has what it is told.
type fakeProxy struct {
	views    map[string]luapush.UpstreamPeers
	overview luapush.Overview
	away     error
}

func (p *fakeProxy) View(_ context.Context, upstream string) (luapush.UpstreamPeers, error) {
	v, ok := p.views[upstream]
	if p.away == nil && !ok {
		return v, &luapush.Refused{Status: http.StatusNotFound, Detail: "unknown"}
	}
	return v, p.away
}

func (p *fakeProxy) Overview(context.Context) (luapush.Overview, error) { return p.overview, p.away }

func known() []*model.Upstream {
	peer := func(a string, draining, down bool) model.Peer {
		return model.Peer{Address: netip.MustParseAddrPort(a), Weight: 1, Draining: draining, Down: down}
	}
	return []*model.Upstream{
		{ID: "blog/web/80"},
		{ID: "shop/web/80", Peers: []model.Peer{peer("10.0.0.1:80", false, true), peer("10.0.0.2:80", true, false)}},
		{ID: "shop/web/80#0a1b", Peers: []model.Peer{peer("10.0.0.1:80", false, false)}},
		{ID: "shop/web2/80", Peers: []model.Peer{peer("10.0.0.9:80", false, true)}}, // that no worker has used yet
	}
}

func TestHandler(t *testing.T) {
	proxy := &fakeProxy{
		views:    map[string]luapush.UpstreamPeers{"shop/web2/80": {Upstream: "shop/web2/80", Peers: []luapush.PeerView{{Address: "10.0.0.9:80", Share: 1}}}},
		overview: luapush.Overview{Revision: 5, Upstreams: []luapush.UpstreamSummary{{Upstream: "shop/web/80", Ejected: 1, InFlight: 3, Panic: true}, {Upstream: "gone/x/1"}}},
	}
	h := Handler(proxy, known)
	ask := func(query string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/peers"+query, nil))
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	_, body := ask("")
	var got List
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	want := List{5, []Upstream{
		{Upstream: "blog/web/80"},
		{Upstream: "shop/web/80", Peers: 2, Draining: 1, Down: 1, Ejected: 1, InFlight: 3, Panic: true},
		{Upstream: "shop/web/80#0a1b", Peers: 1}, {Upstream: "shop/web2/80", Peers: 1, Down: 1},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, c := range []struct {
		query  string
		status int
		want   string
	}{
		{"?upstream=shop/web2", 200, `"upstream":"shop/web2/80"`},
		{"?upstream=shop/web2/80", 200, `"address":"10.0.0.9:80"`},
		{"?upstream=shop/web", 400, "stands for several; write one of shop/web/80, shop/web/80#0a1b"},
		{"?upstream=shop/we", 400, `no such upstream: "shop/we"; write one of those that ` + "`headgate peers` lists"},
		{"?upstream=shop/web/80", 400, "shop/web/80 is not pushed yet; ask again"},
	} {
		if status, body := ask(c.query); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.query, status, body, c.status, c.want)
		}
	}
	proxy.away = errors.New("nobody answers")
	for _, query := range []string{"", "?upstream=shop/web2"} {
		if status, body := ask(query); status != http.StatusBadGateway || body != "nobody answers" {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
}

func TestText(t *testing.T) {
	var out bytes.Buffer
	if err := WriteList(&out, List{5, []Upstream{
		{Upstream: "a/b/80"}, {Upstream: "shop/web/80", Peers: 12, Ejected: 7, InFlight: 3, Panic: true},
		{Upstream: "shop/web/81", Peers: 2, Draining: 1, Down: 1}, {Upstream: "shop/web/82", Peers: 2},
	}}); err != nil {
		t.Fatal(err)
	}
	if err := WriteUpstream(&out, luapush.UpstreamPeers{Upstream: "shop/web/80", Revision: 7, Algorithm: "p2c", Panic: true, Queued: 2, Peers: []luapush.PeerView{
		{Address: "10.0.0.1:80", Weight: 1, Share: 1},
		{Address: "10.0.0.2:80", Weight: 100, EjectedMs: 4230, Ejections: 3, Failures: 5, InFlight: 12, Share: 1},
		{Address: "10.0.0.3:80", Weight: 1, Draining: true, Share: 1},
		{Address: "[2001:db8::1]:80", Weight: 1, Draining: true, Down: true, EjectedMs: 600_000, Ejections: 1, Share: 0.254},
	}}); err != nil {
		t.Fatal(err)
	}
	if err := WriteUpstream(&out, luapush.UpstreamPeers{Upstream: "a/b/80", Algorithm: "round_robin"}); err != nil {
		t.Fatal(err)
	}
	const want = `UPSTREAM     PEERS  DRAINING  DOWN  EJECTED  IN FLIGHT  NOTE
a/b/80       0      0         0     0        0          no peers: 503
shop/web/80  12     0         0     7        3          PANIC: too many are out, all are used
shop/web/81  2      1         1     0        0          all are down: they are used all the same
shop/web/82  2      0         0     0        0          -
shop/web/80: p2c, 4 peers, revision 7; PANIC: too many are out, all are used; 2 requests wait for a peer
ADDRESS           WEIGHT  STATE                                      IN FLIGHT  FAILURES  SHARE
10.0.0.1:80       1       up                                         0          0         100%
10.0.0.2:80       100     ejected for 4.2s (3 so far)                12         5         100%
10.0.0.3:80       1       draining                                   0          0         100%
[2001:db8::1]:80  1       draining, down, ejected for 10m0s (1 so far)  0          0         25%
a/b/80: round_robin, 0 peers, revision 0
`
	if d := cmp.Diff(strings.Join(strings.Fields(want), " "), strings.Join(strings.Fields(out.String()), " ")); d != "" {
		t.Errorf("(-want +got):\n%s\n%s", d, out.String())
	}
}
