package nginx_test

import (
	"context"
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
	"headgate/test/netns"
)

// TestPacketLoss: 1 % of the frames to and from the peers is lost. TCP sends them again: nobody gets an error, no peer is
// ejected for it, and what had to be tried again is counted.
func TestPacketLoss(t *testing.T) {
	edge, pods := netns.New(t), netns.New(t)
	s := netns.NewSwitch(t, 7)
	s.Join(t, edge, "eth0", netip.MustParsePrefix("192.0.2.1/24"))
	s.Join(t, pods, "eth0", netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("192.0.2.3/24"))
	one, other := netns.End{Namespace: edge, Interface: "eth0"}, netns.End{Namespace: pods, Interface: "eth0"}
	body := make([]byte, 64<<10)
	var peers []model.Peer
	for _, address := range []string{"192.0.2.2:80", "192.0.2.3:80"} {
		var l net.Listener
		if err := pods.Do(func() (err error) {
			l, err = net.Listen("tcp", address)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		server := &http.Server{ReadHeaderTimeout: dpDeadline, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = w.Write(body)
		})}
		go func() { _ = server.Serve(l) }()
		t.Cleanup(func() { _ = server.Close() })
		peers = append(peers, model.Peer{Address: netip.MustParseAddrPort(address), Weight: 1})
	}
	settings := dpSettings()
	settings.RequestMetrics = true
	p := dpStartIn(t, edge, settings)
	route := dpRoute(model.PathPrefix, "/", dpUpstreamID)
	p.model.Hosts = []*model.Host{dpHost("a.test", route)}
	p.setUpstream(&model.Upstream{Peers: peers})
	const clients, each = 8, 50
	faults := func(f netns.Fault) {
		s.Set(one, other, f)
		s.Set(other, one, f)
	}
	faults(netns.Fault{Loss: 0.01})
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range each {
				ctx, cancel := context.WithTimeout(t.Context(), dpDeadline)
				got, err := p.try(ctx, dpGet())
				cancel()
				if err != nil || got.status != 200 || len(got.body) != len(body) {
					t.Errorf("%d, %d bytes, %v", got.status, len(got.body), err)
				}
			}
		})
	}
	all.Wait()
	families := p.counted(clients * each)
	if got := dpSeries(families[dpRequestsTotal]); len(got) != 1 {
		t.Errorf("counted %v", got)
	}
	if got := p.peers().ejected(); got != 0 {
		t.Errorf("%d peers are ejected: %+v", got, p.peers())
	}
	// All is lost for a while: the client is told after the time-outs, which are counted, and all is well again after.
	faults(netns.Fault{Cut: true})
	slow := *route
	slow.Timeouts = model.Timeouts{Connect: 200 * time.Millisecond, Send: 200 * time.Millisecond, Read: 200 * time.Millisecond}
	p.model.Hosts = []*model.Host{dpHost("a.test", &slow)}
	p.push()
	if got := p.do(dpGet()); got.status != 504 && got.status != 502 {
		t.Errorf("with the cable cut: %d", got.status)
	}
	faults(netns.Fault{})
	p.eventually("all is well again", func() error {
		if got := p.do(dpGet()); got.status != 200 {
			return fmt.Errorf("%d", got.status)
		}
		return nil
	})
	p.eventually("the time-out is counted", func() error {
		families = p.metrics()
		failed := 0.0
		for series, n := range dpSeries(families[dpRequestsTotal]) {
			if strings.Contains(series, "status=50") {
				failed += n
			}
		}
		if retries := dpSum(families["headgate_proxy_retries_total"]); failed < 1 || retries < 1 {
			return fmt.Errorf("%v failed, %v retries", failed, retries)
		}
		return nil
	})
	if !strings.Contains(p.errorLog(), "upstream timed out") {
		t.Error("the error log does not tell of it")
	}
}
