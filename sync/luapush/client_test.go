package luapush

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/gateway/luastate"
)

// serve answers on a unix socket and gives the client for it.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	c := New(Config{Socket: socket, Pusher: "me", Timeout: time.Second})
	t.Cleanup(func() {
		c.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return c
}

func answerWith(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestState(t *testing.T) {
	c := serve(t, answerWith(200, `{"boot":"b","schema":1,"luaBuild":"l","generation":"g","revision":41,
		"nginxVersion":"1.22.1","masterPid":7,"workers":[{"pid":8,"generation":"g","revision":40,"seenMs":12,"errors":{}},
		{"pid":9,"generation":"f","revision":39,"seenMs":5,"errors":["host/x: no JSON"]}],
		"dict":{"capacity":100,"free":50},"loaded":{"from":"log","revision":3,"error":""},"pusher":"me"}`))
	got, err := c.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := State{
		Boot: "b", Schema: 1, LuaBuild: "l", Generation: "g", Revision: 41, NginxVersion: "1.22.1", MasterPID: 7,
		Workers: []Worker{{PID: 8, Generation: "g", Revision: 40, SeenMs: 12},
			{PID: 9, Generation: "f", Revision: 39, SeenMs: 5, Errors: []string{"host/x: no JSON"}}},
		Dict: Dict{Capacity: 100, Free: 50}, Loaded: Loaded{From: "log", Revision: 3}, Pusher: "me",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestStateWithoutWorkers(t *testing.T) {
	for _, workers := range []string{`{}`, `[]`, `null`} {
		c := serve(t, answerWith(200, `{"boot":"b","workers":`+workers+`}`))
		if s, err := c.State(t.Context()); err != nil || len(s.Workers) != 0 || s.Boot != "b" {
			t.Errorf("%s: %+v, %v", workers, s, err)
		}
	}
}

func TestKeys(t *testing.T) {
	c := serve(t, answerWith(200, "host/ h0\nhost/a.example h1\nbody/h0\nbody/h1\nbody/orphan\n"))
	got, err := c.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := Keys{Pointers: map[string]string{"host/": "h0", "host/a.example": "h1"}, Bodies: []string{"h0", "h1", "orphan"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	c = serve(t, answerWith(200, "host/a h1\nhost/b\n"))
	if _, err := c.Keys(t.Context()); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a broken line: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		body   string
		want   error
		text   string
	}{
		"stale":      {409, `{"error":"stale","revision":9}`, ErrStale, "(revision 9)"},
		"base":       {409, `{"error":"base","revision":9,"pusher":"other"}`, ErrBase, "(pusher other)"},
		"busy":       {409, `{"error":"busy","revision":9,"pusher":"other"}`, ErrBusy, "(pusher other)"},
		"schema":     {409, `{"error":"schema","revision":9}`, ErrSchema, "schema"},
		"memory":     {507, `{"error":"memory","revision":9}`, ErrMemory, "full"},
		"bad record": {400, `{"error":"record","message":"a second commit"}`, nil, "the proxy answered 400: record: a second commit"},
		"not ours":   {502, "<html>\nBad", nil, "the proxy answered 502: <html>"},
	} {
		t.Run(name, func(t *testing.T) {
			c := serve(t, answerWith(tc.status, tc.body))
			_, err := c.Push(t.Context(), Push{Revision: 10, Records: []luastate.Record{{Op: luastate.OpRevision, Value: []byte("10")}}})
			var r *Refused
			if !errors.As(err, &r) || r.Status != tc.status {
				t.Fatalf("%v", err)
			}
			if tc.want != nil && !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestPush(t *testing.T) {
	var parts [][]byte
	var headers []http.Header
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		parts, headers = append(parts, b), append(headers, r.Header.Clone())
		k, n, _ := strings.Cut(r.Header.Get("X-Headgate-Part"), "/")
		if k == n {
			_, _ = io.WriteString(w, `{"revision":42}`)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"revision":41}`)
	})
	var records []luastate.Record
	for i := range 40 {
		records = append(records, luastate.Record{Op: luastate.OpBody, Key: strconv.Itoa(i), Value: bytes.Repeat([]byte{byte(i)}, 20<<10)})
	}
	records = append(records, luastate.Record{Op: luastate.OpBody, Key: "huge", Value: make([]byte, luastate.MaxValueBytes)},
		luastate.Record{Op: luastate.OpRevision, Value: []byte("42")}, luastate.Record{Op: luastate.OpDrop, Key: "old"})
	got, err := c.Push(t.Context(), Push{Base: 41, Revision: 42, Records: records})
	if err != nil || got != 42 {
		t.Fatalf("%d, %v", got, err)
	}
	var back []luastate.Record
	for i, p := range parts {
		if len(p) > PartBytes && p[0] != byte(luastate.OpBody) || len(p) > PartBytes && len(p) < luastate.MaxValueBytes {
			t.Errorf("part %d has %d bytes", i+1, len(p))
		}
		for len(p) > 0 {
			r, rest, err := luastate.ParseRecord(p)
			if err != nil {
				t.Fatalf("part %d: %v", i+1, err)
			}
			back, p = append(back, r), rest
		}
		h := headers[i]
		for name, want := range map[string]string{
			"X-Headgate-Schema": strconv.Itoa(luastate.Schema), "X-Headgate-Pusher": "me", "X-Headgate-Revision": "42",
			"X-Headgate-Base": "41", "X-Headgate-Part": fmt.Sprintf("%d/%d", i+1, len(parts)),
		} {
			if h.Get(name) != want {
				t.Errorf("part %d: %s is %q, want %q", i+1, name, h.Get(name), want)
			}
		}
	}
	if d := cmp.Diff(len(records), len(back)); d != "" {
		t.Error(d)
	}
	for i := range back {
		if back[i].Key != records[i].Key || !bytes.Equal(back[i].Value, records[i].Value) {
			t.Fatalf("record %d differs", i)
		}
	}
	headers = nil
	if _, err := c.Push(t.Context(), Push{AnyBase: true, Revision: 42, Records: records[41:]}); err != nil {
		t.Fatal(err)
	}
	if got := headers[0].Get("X-Headgate-Base"); got != "*" {
		t.Errorf("base %q", got)
	}
}

func TestWrongAcknowledgement(t *testing.T) {
	for _, body := range []string{`{"revision":41}`, `{`, ``} {
		c := serve(t, answerWith(200, body))
		if _, err := c.Push(t.Context(), Push{Revision: 42, Records: []luastate.Record{{Op: luastate.OpRevision}}}); err == nil {
			t.Errorf("%q was taken as an acknowledgement of 42", body)
		}
	}
}

func TestCheckRegexes(t *testing.T) {
	var bodies []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		bodies = append(bodies, string(b))
		if len(bodies) == 1 {
			_, _ = io.WriteString(w, `[null,"unmatched brackets",""]`)
			return
		}
		_, _ = io.WriteString(w, `[null]`)
	})
	long := strings.Repeat("a", 100<<10)
	got, err := c.CheckRegexes(t.Context(), []string{"/a", "/(", "/x", long})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"/a": "", "/(": "unmatched brackets", "/x": "does not compile", long: ""}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if len(bodies) != 2 {
		t.Errorf("%d requests", len(bodies))
	}
	if got, err := c.CheckRegexes(t.Context(), nil); err != nil || len(got) != 0 || len(bodies) != 2 {
		t.Errorf("nothing asked: %v, %v", got, err)
	}
	c = serve(t, answerWith(200, `[]`))
	if _, err := c.CheckRegexes(t.Context(), []string{"/a"}); err == nil {
		t.Error("an answer without a verdict was taken")
	}
}

func TestUnreachable(t *testing.T) {
	c := New(Config{Socket: filepath.Join(t.TempDir(), "none")})
	if _, err := c.State(t.Context()); !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
	if c.Pusher() == "" || c.Pusher() == New(Config{}).Pusher() {
		t.Errorf("pusher %q", c.Pusher())
	}
}

func TestDeadline(t *testing.T) {
	block := make(chan struct{})
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-block:
		case <-r.Context().Done():
		}
	})
	defer close(block)
	c.timeout = 30 * time.Millisecond
	if _, err := c.State(t.Context()); !errors.Is(err, ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestPeers(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query().Get("upstream"); got != "shop/cart & co/80" {
			t.Errorf("asked for %q", got)
		}
		_, _ = io.WriteString(w, `{"peers":[]}`)
	})
	if got, err := c.Peers(t.Context(), "shop/cart & co/80"); err != nil || string(got) != `{"peers":[]}` {
		t.Errorf("%s, %v", got, err)
	}
	c = serve(t, answerWith(404, `{"error":"unknown"}`))
	var r *Refused
	if _, err := c.Peers(t.Context(), "x"); !errors.As(err, &r) || r.Status != 404 {
		t.Error(err)
	}
}

func FuzzParseKeys(f *testing.F) {
	f.Add("host/a h\nbody/h\n")
	f.Add(" \n")
	f.Add("body/")
	f.Fuzz(func(t *testing.T, text string) {
		k, err := parseKeys(text)
		if err != nil {
			return
		}
		for p, h := range k.Pointers {
			if h == "" || strings.HasPrefix(p, bodyPrefix) {
				t.Errorf("%q → %q", p, h)
			}
		}
	})
}

func FuzzRefusal(f *testing.F) {
	f.Add(409, []byte(`{"error":"busy","pusher":"x"}`))
	f.Add(502, []byte("<html>"))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if refusal(answer{status: status, body: body}).Error() == "" {
			t.Error("nothing told")
		}
	})
}

// A worker on its way out has done nothing: every call asks again, with its whole body.
func TestRetiredWorkersAreAskedAgain(t *testing.T) {
	var refusals, bodies atomic.Int32
	h := func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodPut && len(b) > 0 {
			bodies.Add(1)
		}
		if refusals.Add(1)%3 != 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":"exiting","revision":1,"message":"an old worker answered; ask again"}`)
			return
		}
		switch r.Method {
		case http.MethodPost:
			_, _ = io.WriteString(w, `[null]`)
		default:
			_, _ = io.WriteString(w, `{"revision":2,"luaBuild":"new"}`)
		}
	}
	c := serve(t, h)
	if s, err := c.State(t.Context()); err != nil || s.LuaBuild != "new" {
		t.Errorf("%+v, %v", s, err)
	}
	if v, err := c.CheckRegexes(t.Context(), []string{"a"}); err != nil || v["a"] != "" {
		t.Errorf("%v, %v", v, err)
	}
	records := []luastate.Record{{Op: luastate.OpRevision, Value: []byte("2")}}
	if n, err := c.Push(t.Context(), Push{Base: 1, Revision: 2, Records: records}); err != nil || n != 2 || bodies.Load() != 3 {
		t.Errorf("%d, %v, %d bodies", n, err, bodies.Load())
	}
}

// Where nobody else is left, the deadline ends the asking.
func TestRetiredWorkersOnly(t *testing.T) {
	c := serve(t, answerWith(http.StatusServiceUnavailable, `{"error":"exiting"}`))
	c.timeout = 50 * time.Millisecond
	_, err := c.State(t.Context())
	if err == nil || !strings.Contains(err.Error(), "exiting") {
		t.Errorf("error %v", err)
	}
}
