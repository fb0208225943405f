package acceptance

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"headgate/test/product"
)

// rpc answers as a gRPC server does: metadata, messages, trailers.
func rpc(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
	w.Header().Set("X-Metadata", r.Proto+" "+r.Header.Get("X-Metadata")+" "+r.Header.Get("Te"))
	_, _ = io.Copy(w, r.Body)
	w.Header().Set("Grpc-Status", "0")
	w.Header().Set("Grpc-Message", "well")
}

// startGRPC is a peer of HTTP/2 in the clear, or over TLS where there is a configuration for that.
func startGRPC(t *testing.T, name string, over *tls.Config) *echo {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(rpc))
	server.Config.ReadHeaderTimeout = 10 * time.Second
	server.Config.Protocols = new(http.Protocols)
	if over == nil {
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		server.Start()
	} else {
		server.Config.Protocols.SetHTTP2(true)
		server.TLS, server.EnableHTTP2 = over, true
		server.StartTLS()
	}
	t.Cleanup(server.Close)
	return &echo{name: name, address: server.Listener.Addr().String()}
}

// call makes one call of gRPC over h2 TLS.
func (g *gateway) call(host, message string) (*http.Response, string, error) {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, g.https)
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: host}, //nolint:gosec // the certificate is not what is looked at
		Protocols:       protocols,
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, "https://"+host+"/pkg.Service/Method", strings.NewReader(message))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	req.Header.Set("X-Metadata", "mine")
	res, err := transport.RoundTrip(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return res, string(body), err
}

// Row S14: backend-protocol GRPC and GRPCS, a call over h2 TLS, with trailers and metadata.
func TestGRPCBackend(t *testing.T) {
	g := start(t, "")
	g.echoes["rpc"] = startGRPC(t, "rpc", nil)
	g.echoes["rpcs"] = startGRPC(t, "rpcs", &tls.Config{MinVersion: tls.VersionTLS12})
	g.apply(join(g.service("rpc"), ingress("rpc", "rpc.test", "/", "Prefix", "rpc", annotations("backend-protocol", "GRPC")),
		g.service("rpcs"), ingress("rpcs", "rpcs.test", "/", "Prefix", "rpcs", annotations("backend-protocol", "GRPCS"))))
	g.settled()
	const message = "\x00\x00\x00\x00\x05hello"
	for _, host := range []string{"rpc.test", "rpcs.test"} {
		res, body, err := g.call(host, message)
		if err != nil {
			t.Errorf("%s: %v", host, err)
			continue
		}
		if res.StatusCode != 200 || body != message || res.Header.Get("X-Metadata") != "HTTP/2.0 mine trailers" ||
			res.Trailer.Get("Grpc-Status") != "0" || res.Trailer.Get("Grpc-Message") != "well" {
			t.Errorf("%s: %d %q, header %v, trailer %v", host, res.StatusCode, body, res.Header, res.Trailer)
		}
	}
}

// scrape asks the daemon; a series is named by its family and labels, a histogram counts its observations.
func scrape(t *testing.T, address string) (text []byte, series map[string]float64) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if text, err = io.ReadAll(res.Body); err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	series = map[string]float64{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			key := name
			for _, l := range m.GetLabel() {
				key += " " + l.GetName() + "=" + l.GetValue()
			}
			series[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return text, series
}

// Row I08, under our names: after traffic the daemon tells requests by host, Ingress, service and status; hosts without
// an Ingress have no labels of their own.
func TestMetricsAfterTraffic(t *testing.T) {
	address := product.FreeAddress(t)
	t.Setenv("HEADGATE_METRICS_LISTEN", address)
	log := filepath.Join(product.PublicDir(t), "access.log")
	g := start(t, fmt.Sprintf("accessLog: {path: %q, format: json}\n", log))
	g.apply(join(g.service("shop"), ingress("shop", "shop.test", "/", "Prefix", "shop"),
		ingress("quiet", "quiet.test", "/", "Prefix", "shop", annotations("enable-access-log", "false"))))
	for range 3 {
		g.wants("http://shop.test/cart?token=s3cret", "200 shop")
		g.wants("http://quiet.test/", "200 shop")
	}
	for i := range 10 {
		g.wants(fmt.Sprintf("http://unknown%d.test/", i), "404")
	}
	const shop = "headgate_proxy_requests_total host=shop.test ingress=default/shop method=GET port=80 service=shop status=200"
	const unknown = "headgate_proxy_requests_total host= ingress= method=GET port= service= status=404"
	var text []byte
	var series map[string]float64
	g.await("the requests are counted", func() bool {
		text, series = scrape(t, address)
		return series[shop] >= 3 && series[unknown] >= 10
	}, &series)
	if series[shop] != 3 || series["headgate_proxy_up"] != 1 || series["headgate_reconcile_ready"] != 1 {
		t.Errorf("%v, up %v, ready %v", series[shop], series["headgate_proxy_up"], series["headgate_reconcile_ready"])
	}
	if n := strings.Count(string(text), "unknown1.test"); n != 0 {
		t.Errorf("names that clients chose stand in the metrics %d times", n)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		t.Error(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "headgate_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	g.logged(log, "shop.test", 3)
}

// logged waits until the access log has so many lines of a host, and none of what must not be in it.
func (g *gateway) logged(path, host string, n int) {
	g.t.Helper()
	var text []byte
	g.await("the requests are logged", func() bool {
		var err error
		if text, err = os.ReadFile(path); err != nil {
			g.t.Fatal(err)
		}
		return strings.Count(string(text), `"host":"`+host+`"`) == n
	})
	for line := range strings.Lines(string(text)) {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			g.t.Errorf("%v: %q", err, line)
		}
	}
	if bytes.Contains(text, []byte("s3cret")) || bytes.Contains(text, []byte("quiet.test")) {
		g.t.Errorf("it holds what it must not: %s", text)
	}
}
