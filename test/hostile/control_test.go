package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"headgate/gateway/luastate"
	"headgate/gateway/model"
)

// call speaks to the control socket as nobody should.
func (p *proxy) call(method, target string, header map[string]string, body []byte) (int, string, error) {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", p.dir+"/control.sock")
		},
	}}
	req, err := http.NewRequestWithContext(p.t.Context(), method, "http://control"+target, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

func (p *proxy) serveOne(address string) {
	p.t.Helper()
	p.push(&model.Model{
		Upstreams: []*model.Upstream{{ID: "a/b/80", Peers: []model.Peer{{Address: netip.MustParseAddrPort(address), Weight: 1}}}},
		Hosts: []*model.Host{{Name: "one.test", Routes: []*model.Route{{
			Match: model.Match{Path: model.PathMatch{Type: model.PathPrefix, Value: "/"}}, Backends: []model.Backend{{Upstream: "a/b/80", Weight: 1}}, Retry: model.Retry{Tries: 1},
		}}}},
	})
}

// What comes over the control socket is refused unless it is whole and right; the state that is served stays.
func TestHostileControl(t *testing.T) {
	p := startProxy(t)
	p.serveOne(startBackend(t, "echo").address)
	record := func(op luastate.Op, key, value string) []byte {
		return luastate.AppendRecord(nil, luastate.Record{Op: op, Key: key, Value: []byte(value)})
	}
	hash := luastate.Hash([]byte("{}"))
	push := func(more ...string) map[string]string {
		h := map[string]string{"X-Headgate-Schema": "1", "X-Headgate-Pusher": "x", "X-Headgate-Revision": "99", "X-Headgate-Base": "*"}
		for i := 0; i+1 < len(more); i += 2 {
			h[more[i]] = more[i+1]
		}
		return h
	}
	put := func(header map[string]string, parts ...[]byte) (int, string, error) {
		return p.call(http.MethodPut, "/v1/state", header, bytes.Join(parts, nil))
	}
	for name, c := range map[string]struct {
		header map[string]string
		body   []byte
	}{
		"no headers":                  {nil, record('R', "", "99")},
		"no records":                  {push(), nil},
		"garbage":                     {push(), []byte("\x00\x01\x02evil")},
		"half a record":               {push(), []byte("B\x00\x20\x00\x00")},
		"a length beyond the end":     {push(), []byte("B\xff\xff\xff\xff\xff\xffabc")},
		"an unknown operation":        {push(), record('Z', "a", "b")},
		"no commit":                   {push(), record('B', hash, "{}")},
		"two commits":                 {push(), append(record('R', "", "99"), record('R', "", "99")...)},
		"another commit":              {push(), record('R', "", "98")},
		"a commit that is no number":  {push(), record('R', "", "99evil")},
		"a pointer to nothing":        {push(), append(record('P', "host/one.test", strings.Repeat("0", 32)), record('R', "", "99")...)},
		"a pointer of another kind":   {push(), append(record('P', "boot", hash), record('R', "", "99")...)},
		"a pointer into the bodies":   {push(), append(record('P', "body/x", hash), record('R', "", "99")...)},
		"a body that is no hash":      {push(), append(record('B', "host/one.test", "{}"), record('R', "", "99")...)},
		"a delete before the commit":  {push(), append(record('D', "host/one.test", ""), record('R', "", "99")...)},
		"a delete of what is ours":    {push("X-Headgate-Revision", "97"), append(record('R', "", "98"), record('D', "boot", "")...)},
		"schema of tomorrow":          {push("X-Headgate-Schema", "2"), record('R', "", "99")},
		"schema in a record":          {push(), append(record('B', "schema", "2"), record('R', "", "99")...)},
		"a revision in the past":      {push("X-Headgate-Revision", "1"), record('R', "", "1")},
		"a revision beyond numbers":   {push("X-Headgate-Revision", strings.Repeat("9", 30)), record('R', "", strings.Repeat("9", 30))},
		"a revision below zero":       {push("X-Headgate-Revision", "-1"), record('R', "", "-1")},
		"another base":                {push("X-Headgate-Base", "77"), record('R', "", "99")},
		"part 0":                      {push("X-Headgate-Part", "0/1"), record('R', "", "99")},
		"part 2 of 1":                 {push("X-Headgate-Part", "2/1"), record('R', "", "99")},
		"a part in the middle":        {push("X-Headgate-Part", "2/3"), record('R', "", "99")},
		"a pusher with a line end":    {push("X-Headgate-Pusher", "a b;{}"), record('R', "", "99")},
		"a part that is too large":    {push(), bytes.Repeat([]byte("x"), 3<<20)},
		"a record that is too large":  {push(), append([]byte("B\x00\x01\x00\x20\x00\x00x"), bytes.Repeat([]byte("x"), 1<<20)...)},
		"a body larger than the dict": {push(), bytes.Repeat(record('B', hash, "{}"), 40_000)},
	} {
		t.Run(name, func(t *testing.T) {
			status, text, err := put(c.header, c.body)
			if err == nil && (status < 400 || status == 500) {
				t.Errorf("%d %s", status, cut(text, 300))
			}
			if got := p.get("one.test", "/"); got != "200 echo" {
				t.Errorf("one.test: %s", got)
			}
		})
	}
	for _, c := range []struct{ method, target, body string }{
		{"GET", "/v1/peers?upstream=" + strings.Repeat("x", 3000), ""}, {"GET", "/v1/peers", ""}, {"GET", "/v1/peers?upstream=a&upstream=b", ""},
		{"DELETE", "/v1/state", ""}, {"GET", "/v1/../evil", ""}, {"GET", "/", ""}, {"POST", "/v1/regex", ""}, {"POST", "/v1/regex", "{"}, {"POST", "/v1/regex", "[1]"},
		{"POST", "/v1/regex", `{"a":"b"}`}, {"POST", "/v1/regex", strings.Repeat("[", 10_000)}, {"POST", "/v1/regex", `[["a"]]`}, {"POST", "/v1/regex", "null"}, {"POST", "/v1/regex", `"a"`},
	} {
		status, text, err := p.call(c.method, c.target, nil, []byte(c.body))
		if err != nil || status == 500 || strings.Contains(text, "traceback") {
			t.Errorf("%s %s %q: %d %s %v", c.method, cut(c.target, 80), cut(c.body, 80), status, cut(text, 300), err)
		}
	}
	p.marks.Store(1000) // some of what was refused had committed its revision before
	p.serveOne(startBackend(t, "other").address)
	if got := p.get("one.test", "/"); got != "200 other" {
		t.Errorf("after it all: %s", got)
	}
}

// The regexes that take longest to compile are checked in turns: requests of the same worker go on between.
func TestRegexesThatCompileLong(t *testing.T) {
	p := startProxy(t)
	p.serveOne(startBackend(t, "echo").address)
	var patterns []string
	for i := range 300 {
		patterns = append(patterns, fmt.Sprintf("/%d(?:(a|b|c|d){1,60}){1,30}[^%d]", i, i))
	}
	done := make(chan error, 1)
	began := time.Now()
	go func() {
		verdicts, err := p.client.CheckRegexes(t.Context(), patterns)
		for _, v := range verdicts {
			if v != "" && err == nil {
				err = errors.New("a pattern that should be a hard one is refused: " + v)
			}
		}
		done <- err
	}()
	worst := time.Duration(0)
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			t.Logf("%d patterns took %s; the slowest request beside them %s", len(patterns), time.Since(began), worst)
			if worst > 2*time.Second {
				t.Errorf("a request took %s beside the check of regexes", worst)
			}
			return
		default:
			one := time.Now()
			if got := p.get("one.test", "/"); got != "200 echo" {
				t.Fatalf("got %s", got)
			}
			worst = max(worst, time.Since(one))
		}
	}
}
