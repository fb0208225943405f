package luapush

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestView(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query().Get("upstream"); r.URL.Path != "/v1/peers" || got != "shop/web/80#1" {
			t.Errorf("asked %s for %q", r.URL.Path, got)
		}
		_, _ = io.WriteString(w, `{"upstream":"shop/web/80#1","revision":7,"pool":"headgate_3","algorithm":"ewma","panic":true,"queued":2,"peers":[
			{"address":"10.0.0.1:80","weight":1,"draining":false,"down":false,"ejectedMs":4200,"ejections":3,"failures":5,"inFlight":1,"share":1,"ewmaMs":1.5},
			{"address":"[2001:db8::1]:80","weight":2,"draining":true,"down":true,"ejectedMs":0,"ejections":0,"failures":0,"inFlight":0,"share":0.25},
			{"address":"10.0.0.3:80","weight":1}]}`)
	})
	got, err := c.View(t.Context(), "shop/web/80#1")
	if err != nil {
		t.Fatal(err)
	}
	want := UpstreamPeers{
		Upstream: "shop/web/80#1", Revision: 7, Pool: "headgate_3", Algorithm: "ewma", Panic: true, Queued: 2,
		Peers: []PeerView{
			{Address: "10.0.0.1:80", Weight: 1, EjectedMs: 4200, Ejections: 3, Failures: 5, InFlight: 1, Share: 1, EWMAMs: 1.5},
			{Address: "[2001:db8::1]:80", Weight: 2, Draining: true, Down: true, Share: 0.25},
			{Address: "10.0.0.3:80", Weight: 1, Share: 1},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestViewOfNothing(t *testing.T) {
	c := serve(t, answerWith(200, `{"upstream":"n/s/80","peers":{}}`)) // cjson's empty list
	if got, err := c.View(t.Context(), "n/s/80"); err != nil || len(got.Peers) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	c = serve(t, answerWith(404, `{"error":"unknown"}`))
	var r *Refused
	if _, err := c.View(t.Context(), "x"); !errors.As(err, &r) || r.Status != http.StatusNotFound {
		t.Error(err)
	}
	c = serve(t, answerWith(200, `{"peers":[{"weight":"x"}]}`))
	if _, err := c.View(t.Context(), "x"); err == nil {
		t.Error("no error for a weight that is no number")
	}
}

func TestOverview(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RequestURI() != "/v1/peers" {
			t.Errorf("asked %s", r.URL.RequestURI())
		}
		_, _ = io.WriteString(w, `{"revision":7,"upstreams":[{"upstream":"n/s/80","peers":3,"down":1,"ejected":1,"inFlight":9,"panic":true}]}`)
	})
	want := Overview{7, []UpstreamSummary{{Upstream: "n/s/80", Peers: 3, Down: 1, Ejected: 1, InFlight: 9, Panic: true}}}
	if got, err := c.Overview(t.Context()); err != nil || !cmp.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	c = serve(t, answerWith(200, `{"revision":7,"upstreams":{}}`))
	if got, err := c.Overview(t.Context()); err != nil || len(got.Upstreams) != 0 || got.Revision != 7 {
		t.Errorf("%+v, %v", got, err)
	}
}
