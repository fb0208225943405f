package nginx_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net/http"
	"testing"
	"time"

	"headgate/gateway/model"
)

// TestRoutesOfWorkersOfTheLoadBefore: a client has connected when the configuration is loaded anew, and sends its request when the
// new routes are pushed. The worker that has its connection goes the former way, but never in the clear where TLS is wanted now.
func TestRoutesOfWorkersOfTheLoadBefore(t *testing.T) {
	ca := dpNewCA(t, "former")
	secure := &tls.Config{Certificates: []tls.Certificate{ca.keyPair("a.internal")}}
	id := &model.Identity{ID: "0123456789ab", CA: ca.pem, Verify: true, Name: "a.internal", ServerName: true}
	for name, c := range map[string]struct {
		peer         *tls.Config
		before, then model.Profile
		want         int
	}{
		"other buffers":       {before: model.Profile{}, then: model.Profile{BufferSize: 8}, want: 200},
		"other buffers still": {before: model.Profile{BufferSize: 8}, then: model.Profile{BufferSize: 16}, want: 200},
		"a certificate": {
			peer: secure, before: model.Profile{Protocol: model.ProtocolHTTPS},
			then: model.Profile{Protocol: model.ProtocolHTTPS, Identity: id.ID}, want: 200,
		},
		"other buffers over TLS": {
			peer: secure, before: model.Profile{Protocol: model.ProtocolHTTPS, Identity: id.ID},
			then: model.Profile{Protocol: model.ProtocolHTTPS, Identity: id.ID, BufferSize: 8}, want: 200,
		},
		"TLS": {peer: nil, before: model.Profile{}, then: model.Profile{Protocol: model.ProtocolHTTPS}, want: 503},
	} {
		t.Run(name, func(t *testing.T) {
			peer := dpNewPeer(t, c.peer, nil)
			route := dpProtocolRoute("/", "d/a/80", c.before)
			p := dpLoad(t, dpSettings(), model.Model{
				Identities: []*model.Identity{id}, Upstreams: []*model.Upstream{dpAddressed("d/a/80", peer.address)},
				Hosts: []*model.Host{dpHost("a.test", route)},
			})
			for _, w := range p.workerPIDs() { // each knows the host
				p.only(w, func() { p.do(dpGet()) })
			}
			conn, err := p.dial(t.Context(), p.http)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a.test\r\n"); err != nil {
				t.Fatal(err)
			}
			p.do(dpGet()) // connections are taken in their order
			seen := len(peer.seen())
			next := *route
			next.Profile = c.then
			p.layout.KeepProfiles = []model.Profile{c.before}
			p.model.Hosts = []*model.Host{dpHost("a.test", &next)}
			p.reload()
			p.push()
			if err := conn.SetDeadline(time.Now().Add(dpDeadline)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, "\r\n"); err != nil {
				t.Fatal(err)
			}
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			if answer.StatusCode != c.want {
				t.Errorf("answered %d, want %d", answer.StatusCode, c.want)
			}
			if got := len(peer.seen()) - seen; (got == 1) != (c.want == http.StatusOK) {
				t.Errorf("the peer got %d requests", got)
			}
		})
	}
}
