package nginx_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/gateway/model"
)

// dpScript treats one request, of which the head was read, byte by byte, and tells whether the connection goes on.
type dpScript func(conn net.Conn, r *bufio.Reader, head string) bool

// dpScripted starts a peer that does what script says.
func dpScripted(t *testing.T, script dpScript) model.Peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex // guards open
	var open []net.Conn
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			all.Go(func() {
				defer conn.Close()
				for r := bufio.NewReader(conn); ; {
					head, err := dpHead(r)
					if err != nil || !script(conn, r, head) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return model.Peer{Address: netip.MustParseAddrPort(l.Addr().String()), Weight: 1}
}

// dpHead reads up to the empty line.
func dpHead(r *bufio.Reader) (string, error) {
	var head strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil || line == "\r\n" {
			return head.String(), err
		}
		head.WriteString(line)
	}
}

// dpSays reads the body that was announced, and sends text.
func dpSays(text string, goesOn bool) dpScript {
	return func(conn net.Conn, r *bufio.Reader, head string) bool {
		var n int64
		for line := range strings.Lines(head) {
			_, _ = fmt.Sscanf(line, "Content-Length: %d", &n)
		}
		if _, err := io.CopyN(io.Discard, r, n); err != nil {
			return false
		}
		_, err := io.WriteString(conn, text)
		return err == nil && goesOn
	}
}

// dpHostilePeer is a peer that breaks the rules, and what comes of two requests that a client sends at once.
type dpHostilePeer struct {
	script dpScript
	// answers are what the client reads, "status body" each; "broken" is an answer without its end.
	answers string
	// statuses are those that are counted, of both requests.
	statuses map[int]int
	failures int    // in a row, that the peer is charged with
	tells    string // stands in the error log
}

func dpHostilePeers() map[string]dpHostilePeer {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"
	head := func(lines string) string { return "HTTP/1.1 200 OK\r\n" + lines + "\r\n\r\n" }
	twice := func(s string) string { return s + ", " + s }
	return map[string]dpHostilePeer{
		"garbage behind the answer": {script: dpSays(ok+"GARBAGE", true), answers: twice("200 ok"), statuses: map[int]int{200: 2},
			tells: "upstream sent more data than specified"},
		"a second answer behind the first": {script: dpSays(ok+strings.Replace(ok, "ok\n", "no\n", 1), true), answers: twice("200 ok"),
			statuses: map[int]int{200: 2}, tells: "upstream sent more data than specified"},
		"an answer behind one without a body": {script: dpSays("HTTP/1.1 204 No Content\r\n\r\n"+ok, true), answers: twice("204 "), statuses: map[int]int{204: 2},
			tells: "upstream sent more data than specified"},
		"length and chunks at once": {script: dpSays(head("Content-Length: 3\r\nTransfer-Encoding: chunked")+"3\r\nok\n\r\n0\r\n\r\n", true), answers: twice("200 ok"),
			statuses: map[int]int{200: 2}},
		"garbage in place of a chunk": {script: dpSays(head("Transfer-Encoding: chunked")+"xyz\r\nok\n\r\n0\r\n\r\n", true), answers: "broken", statuses: map[int]int{200: 1},
			tells: "upstream sent invalid chunked response"},
		"the end in the middle of chunks": {script: dpSays(head("Transfer-Encoding: chunked")+"3\r\nok\n\r\n", false), answers: "broken", statuses: map[int]int{200: 1},
			tells: "upstream prematurely closed connection"},
		"the end in the middle of a body": {script: dpSays(head("Content-Length: 5")+"ok\n", false), answers: "broken", statuses: map[int]int{200: 1},
			tells: "upstream prematurely closed connection"},
		"silence in the middle of a body": {script: dpSays(head("Content-Length: 5")+"ok\n", true), answers: "broken", statuses: map[int]int{200: 1},
			tells: "upstream timed out"},
		"the end in the middle of a head": {script: dpSays("HTTP/1.1 200 OK\r\nContent-Le", false), answers: twice("502 "), statuses: map[int]int{502: 2}, failures: 2,
			tells: "upstream prematurely closed connection while reading response header"},
		"the end at once": {script: dpSays("", false), answers: twice("502 "), statuses: map[int]int{502: 2}, failures: 2,
			tells: "upstream prematurely closed connection while reading response header"},
		"silence": {script: dpSays("", true), answers: twice("504 "), statuses: map[int]int{504: 2}, failures: 2, tells: "upstream timed out"},
		"a head of 64 KiB": {script: dpSays(head("X: "+strings.Repeat("x", 64<<10)), true), answers: twice("502 "), statuses: map[int]int{502: 2}, failures: 2,
			tells: "upstream sent too big header"},
		"a NUL in the head": {script: dpSays(head("X: a\x00b\r\nContent-Length: 0"), true), answers: twice("502 "), statuses: map[int]int{502: 2}, failures: 2,
			tells: "upstream sent invalid header"},
		// nginx takes what is no HTTP/1 for HTTP/0.9, which has neither status nor head: 9 stands for it.
		"no HTTP": {script: dpSays("hello\r\n\r\n", false), answers: "broken", statuses: map[int]int{9: 2}, failures: 2, tells: "upstream sent no valid HTTP/1.0 header"},
	}
}

// TestHostilePeers: what a peer sends beside an answer never becomes an answer to somebody, each failure is counted with
// its status and charged to the peer, and the error log tells which one it was and what it did.
func TestHostilePeers(t *testing.T) {
	settings := dpSettings()
	settings.RequestMetrics = true
	p := dpStart(t, settings)
	cases := dpHostilePeers()
	addresses := map[string]model.Peer{}
	for name, c := range cases {
		host := model.HostName(strings.ReplaceAll(strings.ToLower(name), " ", "-") + ".test")
		addresses[name] = dpScripted(t, c.script)
		route := dpRoute(model.PathPrefix, "/", model.UpstreamID("d/"+host+"/80"))
		dpQuick(1)(route)
		p.model.Hosts = append(p.model.Hosts, dpHost(host, route))
		p.model.Upstreams = append(p.model.Upstreams, &model.Upstream{ID: "d/" + model.UpstreamID(host) + "/80", Peers: []model.Peer{addresses[name]}})
	}
	p.push()
	for name, c := range cases {
		host := strings.ReplaceAll(strings.ToLower(name), " ", "-") + ".test"
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(p.pipelined(t, host), ", "); got != c.answers {
				t.Errorf("the client read %q, want %q", got, c.answers)
			}
			p.eventually("the requests are counted", func() error {
				got := map[int]int{}
				for series, n := range dpSeries(p.metrics()[dpRequestsTotal]) {
					var status int
					if strings.HasPrefix(series, "host="+host+",") {
						_, _ = fmt.Sscanf(series[strings.LastIndex(series, "=")+1:], "%d", &status)
						got[status] += int(n)
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(c.statuses) {
					return fmt.Errorf("%v, want %v", got, c.statuses)
				}
				return nil
			})
			if got := p.peersOf("d/" + host + "/80").Peers[0].Failures; got != c.failures {
				t.Errorf("%d failures are told of the peer, want %d", got, c.failures)
			}
			told := false
			for line := range strings.Lines(p.errorLog()) {
				told = told || strings.Contains(line, c.tells) && strings.Contains(line, addresses[name].Address.String()) && strings.Contains(line, host)
			}
			if c.tells != "" && !told {
				t.Errorf("no line of the error log says %q of %s and %s", c.tells, addresses[name].Address, host)
			}
		})
	}
}

// pipelined sends a POST and a GET at once and gives what is read.
func (p *dpProxy) pipelined(t *testing.T, host string) []string {
	t.Helper()
	conn, err := net.Dial("tcp", p.http.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(dpDeadline))
	_, err = fmt.Fprintf(conn, "POST /1 HTTP/1.1\r\nHost: %[1]s\r\nContent-Length: 4\r\n\r\nbodyGET /2 HTTP/1.1\r\nHost: %[1]s\r\nConnection: close\r\n\r\n", host)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := bufio.NewReader(conn); ; {
		res, err := http.ReadResponse(r, nil)
		if errors.Is(err, io.ErrUnexpectedEOF) && len(got) > 0 {
			return got
		}
		if err != nil {
			_, _ = io.Copy(io.Discard, conn) // whoever leaves early is counted as 499
			return append(got, "broken")
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return append(got, "broken")
		}
		if res.StatusCode >= 500 {
			body = nil // nginx's own page
		}
		got = append(got, fmt.Sprintf("%d %s", res.StatusCode, strings.TrimSpace(string(body))))
	}
}

// dpUnframed are answers whose status is none (RFC 9110 section 15): nginx passes them on, and what follows has no framing. smuggled
// stands in each of them where a client would look for the next answer.
func dpUnframed() map[string]string {
	const smuggled = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsmuggled"
	return map[string]string{
		"000":               "HTTP/1.1 000 Zero\r\n\r\n" + smuggled,
		"000 with a length": "HTTP/1.1 000 Zero\r\nContent-Length: 3\r\n\r\nok\n",
		"099":               "HTTP/1.1 099 Low\r\n\r\n" + smuggled,
		"100":               "HTTP/1.1 100 Continue\r\n\r\n" + smuggled + smuggled,
		"101 unasked":       "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n" + smuggled,
		"103":               "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + smuggled + smuggled,
		"199":               "HTTP/1.1 199 High\r\nContent-Length: 3\r\n\r\nok\n" + smuggled,
		"no HTTP":           "hello\r\n" + smuggled,
		"two digits":        "HTTP/1.1 20 OK\r\nContent-Length: 3\r\n\r\nok\n" + smuggled,
		"four digits":       "HTTP/1.1 2000 OK\r\nContent-Length: 3\r\n\r\nok\n" + smuggled,
	}
}

// TestStrictAnswers: where it is asked for, an answer without framing becomes 502, or nothing where nginx can send no head any more,
// and the end of the connection; no byte of it reaches the client. Each is counted, and the error log names the peer. Answers that
// are odd and whole stay as they are.
func TestStrictAnswers(t *testing.T) {
	settings := dpSettings()
	settings.RequestMetrics, settings.StrictAnswers = true, true
	p := dpStart(t, settings)
	texts := dpUnframed()
	texts["999"] = "HTTP/1.1 999 High\r\n\r\nok\n"
	texts["204 with a body"] = "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nok\n"
	texts["a list of codings"] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nok\n\r\n0\r\n\r\n"
	hosts, peers := map[string]string{}, map[string]model.Peer{}
	add := func(name string, peer model.Peer) {
		host := model.HostName(strings.ReplaceAll(strings.ToLower(name), " ", "-") + ".test")
		hosts[name], peers[name] = string(host), peer
		route := dpRoute(model.PathPrefix, "/", model.UpstreamID("d/"+host+"/80"))
		dpQuick(1)(route)
		p.model.Hosts = append(p.model.Hosts, dpHost(host, route))
		p.model.Upstreams = append(p.model.Upstreams, &model.Upstream{
			ID: "d/" + model.UpstreamID(host) + "/80", Peers: []model.Peer{peer}, Ejection: model.Ejection{Off: true},
		})
	}
	for name, text := range texts {
		add(name, dpScripted(t, dpSays(text, false)))
	}
	add("sentinel", dpScripted(t, dpSays("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsentinel", true)))
	p.push()
	for name := range texts {
		t.Run(name, func(t *testing.T) {
			got := p.raw(fmt.Sprintf("GET /1 HTTP/1.1\r\nHost: %s\r\n\r\nGET /2 HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", hosts[name], hosts["sentinel"]))
			if strings.Contains(got, "smuggled") || strings.Contains(got, "hello") {
				t.Errorf("the client read %q", got)
			}
			first, _, _ := strings.Cut(got, "\r\n")
			count := func() float64 {
				return dpSeries(p.metrics()[dpRequestsTotal])["host="+hosts[name]+",ingress=,method=GET,port=,service=,status=502"]
			}
			switch _, refused := dpUnframed()[name]; {
			case !refused:
				if strings.HasPrefix(first, "HTTP/1.1 502") || !strings.HasSuffix(got, "sentinel") {
					t.Errorf("the client read %q", got)
				}
				return
			case name == "no HTTP" || strings.HasSuffix(name, "digits"):
				if got != "" {
					t.Errorf("the client read %q, want the end of the connection", got)
				}
			case first != "HTTP/1.1 502 Bad Gateway" || strings.Count(got, "HTTP/1.1 ") != 1 || !strings.HasSuffix(got, "</html>\r\n"):
				t.Errorf("the client read %q, want 502 and the end of the connection", got)
			default:
				p.eventually("it is counted", func() error {
					if n := count(); n != 1 {
						return fmt.Errorf("%v", n)
					}
					return nil
				})
			}
			if want := fmt.Sprintf("peer %s of d/%s/80 answers with status", peers[name].Address, hosts[name]); !strings.Contains(p.errorLog(), want) {
				t.Errorf("the error log does not tell: %s", want)
			}
		})
	}
	for name := range dpUnframed() {
		t.Run("HTTP/2 "+name, func(t *testing.T) {
			res, err := p.try(t.Context(), dpRequest{host: hosts[name], path: "/", tls: true, http2: true})
			if err == nil && res.status != 502 || err != nil && !strings.Contains(err.Error(), "stream error") {
				t.Errorf("%d %q %v, want 502 or the end of the stream", res.status, res.body, err)
			}
		})
	}
	if workers := p.state().Workers; len(workers) != 2 {
		t.Errorf("workers %+v", workers)
	}
}

// TestStrictAnswersKeepTunnels: a WebSocket that the client asked for is one.
func TestStrictAnswersKeepTunnels(t *testing.T) {
	settings := dpSettings()
	settings.StrictAnswers = true
	p := dpStart(t, settings)
	peer := dpScripted(t, dpSays("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nthrough the tunnel", false))
	p.model.Hosts = []*model.Host{dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80"))}
	p.model.Upstreams = []*model.Upstream{{ID: "d/a/80", Peers: []model.Peer{peer}}}
	p.push()
	got := p.raw("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 101 ") || !strings.HasSuffix(got, "through the tunnel") {
		t.Errorf("the client read %q", got)
	}
}

// TestLateContinue: a peer that sends 100 (Continue) late, which nobody asked it for, or 103 (Early Hints), serves its own
// client, and nobody else through the connections that were used.
func TestLateContinue(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"
	for name, text := range map[string]string{"100": "HTTP/1.1 100 Continue\r\n\r\n", "103": "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			late := func(conn net.Conn, r *bufio.Reader, head string) bool {
				if strings.HasPrefix(head, "POST") {
					return dpSays(text+ok, true)(conn, r, head)
				}
				return dpSays(ok, true)(conn, r, head)
			}
			p := dpServeUpstream(t, &model.Upstream{Peers: []model.Peer{dpScripted(t, late)}}, dpQuick(1))
			for range 4 {
				got := p.do(dpRequest{host: "a.test", path: "/", method: http.MethodPost, body: strings.NewReader("body"), header: map[string]string{"Expect": "100-continue"}})
				if got.status != 200 || got.body != "ok\n" {
					t.Errorf("the client that it was for: %d %q", got.status, got.body)
				}
				if got := p.get("a.test", "/"); got.status != 200 || got.body != "ok\n" {
					t.Errorf("another client: %d %q", got.status, got.body)
				}
			}
		})
	}
}

// TestManyPeersThatRefuse: a request does not go through all of them, or each would hold its worker for seconds.
func TestManyPeersThatRefuse(t *testing.T) {
	const n, most = 500, 16
	u := &model.Upstream{}
	for i := range n {
		u.Peers = append(u.Peers, model.Peer{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), 1), Weight: 1})
	}
	p := dpServeUpstream(t, u, dpQuick(3))
	const requests = 5
	for range requests {
		if got := p.do(dpGet()); got.status != 502 {
			t.Errorf("%d", got.status)
		}
	}
	if tried := strings.Count(p.errorLog(), "connect() failed"); tried > requests*most {
		t.Errorf("%d requests tried %d of %d peers, want at most %d each", requests, tried, n, most)
	}
}
