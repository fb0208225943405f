package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/bench/figure"
)

func TestParseDone(t *testing.T) {
	for _, c := range []struct {
		name, out string
		want      load
		fault     string // in the error
	}{
		{"good", "Running 1s test\nDONE 12345 0 350 4210\n", load{12345, 350 * time.Microsecond, 4210 * time.Microsecond}, ""},
		{"failed requests", "DONE 10 3 1 1\n", load{}, "3 of 10"},
		{"nothing", "unable to connect\n", load{}, "unable to connect"},
		{"too little", "DONE 1 0\n", load{}, "said nothing"},
		{"no number", "DONE 1 0 x 2\n", load{}, "invalid syntax"},
	} {
		got, err := parseDone(c.out)
		if got != c.want || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

func TestComparable(t *testing.T) {
	nginx := "GET /headers HTTP/1.1\r\nHost: h0.test\r\nX-Request-ID: 0123456789abcdef0123456789abcdef\r\nX-Forwarded-Port: 8000\r\nX-Real-IP: 127.0.0.1\r\n\r\n"
	other := "GET /headers HTTP/1.1\r\nx-real-ip: 127.0.0.1\r\nhost: h0.test\r\nx-request-id: 01234567-89ab-cdef-0123-456789abcdef\r\nx-forwarded-port: 8001\r\n\r\n"
	if a, b := comparable(nginx), comparable(other); !slices.Equal(a, b) {
		t.Errorf("order, case and what must differ were told apart:\n%q\n%q", a, b)
	}
	for _, missing := range []string{"X-Real-IP: 127.0.0.1\r\n", "X-Request-ID: 0123456789abcdef0123456789abcdef\r\n"} {
		if slices.Equal(comparable(nginx), comparable(strings.Replace(nginx, missing, "", 1))) {
			t.Errorf("the missing %q was not seen", missing)
		}
	}
	if slices.Equal(comparable(nginx), comparable(strings.Replace(nginx, "IP: 127.0.0.1", "IP: 192.0.2.1", 1))) {
		t.Error("another value was not seen")
	}
}

func TestSite(t *testing.T) {
	s := site{hosts: 250, upstreams: 250, peers: 4}
	seen := map[string]bool{}
	for u := range s.upstreams {
		for i := range s.peers {
			seen[s.peer(u, i)] = true
		}
	}
	if len(seen) != 1000 {
		t.Errorf("%d addresses, want 1000", len(seen))
	}
	text, err := s.manifests()
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []struct{ Kind string } }
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, item := range list.Items {
		kinds[item.Kind]++
	}
	if kinds["Ingress"] != 250 || kinds["Service"] != 250 || kinds["EndpointSlice"] != 250 || kinds["IngressClass"] != 1 || kinds["Secret"] != 0 {
		t.Errorf("manifests hold %v", kinds)
	}
	conf := s.nginxServers("127.0.0.1:1")
	if servers, upstreams, peers := strings.Count(conf, "server_name "), strings.Count(conf, "upstream s"), strings.Count(conf, "server 10.244."); servers != 250 || upstreams != 250 || peers != 1000 {
		t.Errorf("static nginx has %d servers, %d upstreams, %d peers", servers, upstreams, peers)
	}
}

// The keys of RESULT are read by others.
func TestResultKeys(t *testing.T) {
	var b strings.Builder
	if err := figure.Result(&b, result{Static1: &figure.Spread{Min: 1, Median: 2, Max: 3}}); err != nil {
		t.Fatal(err)
	}
	const want = `RESULT {"static_1":{"min":1,"median":2,"max":3},"static_1000":null,"static_10000":null,"haproxy_1":null,"metrics_1":null,"upstreams_250":null,"tls_handshake":null,"tls_keepalive":null,"http2":null,"latency_1":null}` + "\n"
	if b.String() != want {
		t.Errorf("got %swant %s", b.String(), want)
	}
}

func TestScenariosHaveTheirKeys(t *testing.T) {
	list, err := scenarios()
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, s := range list {
		keys = append(keys, s.key)
	}
	if want := []string{"", "static_1", "metrics_1", "haproxy_1", "static_1000", "static_10000", "upstreams_250", "tls_keepalive", "http2", "tls_handshake"}; !slices.Equal(keys, want) {
		t.Errorf("scenarios %q, want %q", keys, want)
	}
}
