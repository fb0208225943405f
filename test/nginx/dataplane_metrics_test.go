package nginx_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	prometheus "github.com/prometheus/common/model"

	"headgate/gateway/model"
	"headgate/lua"
)

// dpCounted is a model with a route for each kind of host, and requests counted.
func dpCounted(t *testing.T, settings model.Settings) (*dpProxy, *dpBackend) {
	t.Helper()
	a := dpNewBackend(t, "a")
	route := func(path, ingress string) *model.Route {
		r := dpRoute(model.PathPrefix, path, "d/a/80")
		r.Source = model.Source{Kind: "Ingress", Namespace: "d", Name: ingress, Service: "a", Port: "80"}
		return r
	}
	settings.RequestMetrics = true
	p := dpLoad(t, settings, model.Model{
		Upstreams: []*model.Upstream{dpUpstream("d/a/80", a)},
		Hosts:     []*model.Host{dpHost("*.wild.test", route("/", "wild")), dpHost("a.test", route("/x", "one"), route("/y", "two"))},
	})
	return p, a
}

// metrics gives what the proxy tells, parsed.
func (p *dpProxy) metrics() map[string]*dto.MetricFamily {
	p.t.Helper()
	a := p.must(http.MethodGet, "/v1/metrics", nil, nil)
	parser := expfmt.NewTextParser(prometheus.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(a.body))
	if err != nil || a.status != http.StatusOK {
		p.t.Fatalf("GET /v1/metrics: %d, %v\n%s", a.status, err, a.body)
	}
	return families
}

// dpSeries turns a family into its values by "label=value,…" in the order of the names of the labels; of a
// histogram it is the number of observations.
func dpSeries(f *dto.MetricFamily) map[string]float64 {
	all := map[string]float64{}
	for _, m := range f.GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetName()+"="+l.GetValue())
		}
		slices.Sort(labels)
		name := strings.Join(labels, ",")
		switch f.GetType() {
		case dto.MetricType_COUNTER:
			all[name] = m.GetCounter().GetValue()
		case dto.MetricType_HISTOGRAM:
			all[name] = float64(m.GetHistogram().GetSampleCount())
		default:
			all[name] = m.GetGauge().GetValue()
		}
	}
	return all
}

func dpSum(f *dto.MetricFamily) float64 {
	sum := 0.0
	for _, v := range dpSeries(f) {
		sum += v
	}
	return sum
}

const dpRequestsTotal = "headgate_proxy_requests_total"

// counted waits until so many requests are told.
func (p *dpProxy) counted(n int) map[string]*dto.MetricFamily {
	p.t.Helper()
	var families map[string]*dto.MetricFamily
	p.eventually(fmt.Sprintf("%d requests are counted", n), func() error {
		families = p.metrics()
		if got := dpSum(families[dpRequestsTotal]); got != float64(n) {
			return fmt.Errorf("%v: %v", got, dpSeries(families[dpRequestsTotal]))
		}
		return nil
	})
	return families
}

// TestMetrics is row I08 of the acceptance list, with our names: each request is counted once, by the route that it
// matched; hosts that nobody serves are one series, however many there are.
func TestMetrics(t *testing.T) {
	p, _ := dpCounted(t, dpSettings())
	n := 0
	send := func(times int, r dpRequest) {
		for range times {
			p.do(r)
			n++
		}
	}
	send(3, dpRequest{host: "a.test", path: "/x"})
	for range 2 {
		send(1, dpRequest{host: "a.test", path: "/y", method: http.MethodPost, body: strings.NewReader(strings.Repeat("b", 5000)), tls: true})
	}
	send(1, dpRequest{host: "a.test", path: "/y", method: "BREW"})
	send(1, dpRequest{host: "a.test", path: "/y", method: "BREWED"})
	send(1, dpRequest{host: "a.test", path: "/nothing"})
	for i := range 20 {
		send(1, dpRequest{host: fmt.Sprintf("h%d.wild.test", i), path: "/"})
		send(1, dpRequest{host: fmt.Sprintf("h%d.unknown.test", i), path: "/"})
	}
	p.raw("GET /a b HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
	n++
	families := p.counted(n)
	of := func(host, ingress, service string) string {
		port := map[string]string{"a": "80"}[service]
		return fmt.Sprintf("host=%s,ingress=%s,method=%%s,port=%s,service=%s,status=%%d", host, ingress, port, service)
	}
	want := map[string]float64{
		fmt.Sprintf(of("a.test", "d/one", "a"), "GET", 200):       3,
		fmt.Sprintf(of("a.test", "d/two", "a"), "POST", 200):      2,
		fmt.Sprintf(of("a.test", "d/two", "a"), "OTHER", 200):     2,
		fmt.Sprintf(of("a.test", "", ""), "GET", 404):             1,
		fmt.Sprintf(of("*.wild.test", "d/wild", "a"), "GET", 200): 20,
		fmt.Sprintf(of("", "", ""), "GET", 404):                   20,
		fmt.Sprintf(of("", "", ""), "OTHER", 400):                 1, // it was never read to its end
	}
	if got := dpSeries(families[dpRequestsTotal]); !maps.Equal(got, want) {
		t.Errorf("counted %v\nwant %v", got, want)
	}
	two := "host=a.test,ingress=d/two,port=80,service=a"
	for name, least := range map[string]float64{
		"headgate_proxy_received_bytes_total": 10_000, "headgate_proxy_sent_bytes_total": 1000,
		"headgate_proxy_request_duration_seconds": 4, "headgate_proxy_upstream_duration_seconds": 4,
	} {
		if got := dpSeries(families[name])[two]; got < least || least == 4 && got != 4 {
			t.Errorf("%s: %v", name, got)
		}
	}
	p.documented(families)
}

// documented holds what is told against what is documented.
func (p *dpProxy) documented(families map[string]*dto.MetricFamily) {
	p.t.Helper()
	known := map[string]lua.Family{}
	for _, f := range lua.Families() {
		known[f.Name] = f
	}
	for name, f := range families {
		doc := known[name]
		if f.GetHelp() != doc.Help || strings.ToLower(f.GetType().String()) != doc.Kind {
			p.t.Errorf("%s is told as %s %q, documented as %+v", name, f.GetType(), f.GetHelp(), doc)
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
			}
			if got := strings.Join(labels, ", "); got != doc.Labels {
				p.t.Errorf("%s has the labels %q, documented are %q", name, got, doc.Labels)
			}
		}
	}
	for _, name := range []string{
		"headgate_proxy_connections", "headgate_proxy_websockets", "headgate_proxy_workers", "headgate_proxy_revision",
		"headgate_proxy_dict_capacity_bytes", "headgate_proxy_dict_free_bytes", "headgate_proxy_metrics_dropped_total", "headgate_proxy_upstream_peers",
	} {
		if len(families[name].GetMetric()) == 0 {
			p.t.Errorf("%s is not told", name)
		}
	}
	if got := dpSeries(families["headgate_proxy_revision"])[""]; got != float64(p.revision) {
		p.t.Errorf("revision %v, want %d", got, p.revision)
	}
	problems, err := promlint.New(bytes.NewReader(p.must(http.MethodGet, "/v1/metrics", nil, nil).body)).Lint()
	if err != nil || len(problems) > 0 {
		p.t.Errorf("promlint: %v %v", problems, err)
	}
}

// TestMetricsAreOff: where nobody asked for them, nothing is counted.
func TestMetricsAreOff(t *testing.T) {
	p, _ := dpServe(t, dpSettings(), dpHost("a.test", dpRoute(model.PathPrefix, "/", "d/a/80")))
	p.get("a.test", "/")
	if got := p.metrics()[dpRequestsTotal]; got != nil {
		t.Errorf("%v", dpSeries(got))
	}
}

// TestCountersOutliveWorkers: no counter ever goes backwards: not when a worker is killed, not over reloads, and what a
// worker on its way out finishes counts as well.
func TestCountersOutliveWorkers(t *testing.T) {
	p, _ := dpCounted(t, dpSettings())
	peer := dpNewPeer(t, nil, dpSlow)
	p.model.Upstreams = append(p.model.Upstreams, dpAddressed("d/slow/80", peer.address))
	p.model.Hosts = append(p.model.Hosts, dpHost("slow.test", dpRoute(model.PathPrefix, "/", "d/slow/80")))
	p.push()
	const each = 20
	for range each {
		p.get("a.test", "/x")
	}
	p.counted(each)
	for _, pid := range p.workerPIDs() {
		p.killed = append(p.killed, pid)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	p.eventually("other workers answer", func() error {
		_, err := p.call(http.MethodGet, "/v1/state", nil, nil)
		return err
	})
	p.counted(each)
	for range each {
		p.get("a.test", "/x")
	}
	p.counted(2 * each)

	// A request is under way in a worker while it is replaced.
	ended, started := make(chan error, 1), make(chan struct{})
	body, say := io.Pipe()
	go func() {
		close(started)
		_, err := p.try(t.Context(), dpRequest{method: http.MethodPost, host: "slow.test", path: "/", body: body})
		ended <- err
	}()
	<-started
	p.model.Hosts[len(p.model.Hosts)-1].Routes[0].Profile = model.Profile{RequestUnbuffered: true}
	p.reload()
	if _, err := io.WriteString(say, "done"); err != nil {
		t.Fatal(err)
	}
	_ = say.Close()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	families := p.counted(2*each + 1)
	p.eventually("the workers that are gone are not told", func() error {
		if n := dpSum(p.metrics()["headgate_proxy_workers"]); n != float64(p.model.Settings.WorkerProcesses) {
			return fmt.Errorf("%v workers", n)
		}
		return nil
	})
	if got := dpSeries(families["headgate_proxy_metrics_dropped_total"])[""]; got != 0 {
		t.Errorf("%v counts dropped", got)
	}
}

// dpSlow answers when the body has come.
func dpSlow(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = io.WriteString(w, "fine")
}

// TestWebSocketsAreTold: while they are open, and once as requests of status 101.
func TestWebSocketsAreTold(t *testing.T) {
	p, _ := dpCounted(t, dpSettings())
	open := func(want float64) {
		t.Helper()
		p.eventually(fmt.Sprintf("%v tunnels", want), func() error {
			if got := dpSum(p.metrics()["headgate_proxy_websockets"]); got != want {
				return fmt.Errorf("%v", got)
			}
			return nil
		})
	}
	var conns []net.Conn
	for range 3 {
		conn, err := net.Dial("tcp", p.http.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(dpDeadline))
		_, err = io.WriteString(conn, "GET /x HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%v, %v", res, err)
		}
		conns = append(conns, conn)
	}
	open(3)
	_ = conns[0].Close()
	open(2)
	// A reload leaves them to workers on their way out, which tell of them as well.
	p.model.Settings.HSTS.Preload = true
	p.reload()
	p.get("a.test", "/x")
	open(2)
	_ = conns[1].Close()
	_ = conns[2].Close()
	open(0)
	families := p.counted(4)
	if got := dpSeries(families[dpRequestsTotal])["host=a.test,ingress=d/one,method=GET,port=80,service=a,status=101"]; got != 3 {
		t.Errorf("%v requests of status 101", got)
	}
	if got := dpSum(families["headgate_proxy_request_duration_seconds"]); got != 1 {
		t.Errorf("%v durations: a tunnel's is none", got)
	}
}

// TestExplainedRequestsLeaveNothing: what was handed over to the later phases of an explained request is not taken for that of
// a client's, at the same place in memory.
func TestExplainedRequestsLeaveNothing(t *testing.T) {
	settings := dpSettings()
	settings.WorkerProcesses = 1
	p, _ := dpCounted(t, settings)
	say := func(network, address, text string) net.Conn {
		t.Helper()
		conn, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(dpDeadline))
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	const upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
	for range 3 {
		say("tcp", p.http.String(), "GET /x HTTP/1.1\r\nHost: a.test\r\n"+upgrade)
	}
	const times = 10
	for range times {
		_ = say("unix", p.layout.ExplainSocket(model.HTTP), "PROXY TCP4 127.0.0.1 127.0.0.1 4000 80\r\nGET /x HTTP/1.1\r\nHost: a.test\r\n\r\n").Close()
	}
	for range times {
		_ = say("tcp", p.http.String(), "GET /x HTTP/1.1\r\nHost: nobody.test\r\n"+upgrade).Close()
	}
	p.counted(times)
	if got := dpSum(p.metrics()["headgate_proxy_websockets"]); got != 3 {
		t.Errorf("%v tunnels, want 3", got)
	}
}

// TestScrapeOfManyHosts: telling of 10,000 hosts goes on in pieces. The worker must not compute for more than 20 ms at a
// time, while it adds up what it counted and while it tells.
func TestScrapeOfManyHosts(t *testing.T) {
	settings := dpSettings()
	settings.WorkerProcesses, settings.StateMemoryBytes = 1, 64<<20
	p, _ := dpCounted(t, settings)
	const hosts, stall = 10_000, 20.0
	name := func(i int) string { return fmt.Sprintf("h%05d.many.test", i) }
	for i := range hosts {
		p.model.Hosts = append(p.model.Hosts, dpHost(model.HostName(name(i)), dpRoute(model.PathPrefix, "/", "d/a/80")))
	}
	slices.SortFunc(p.model.Hosts, func(a, b *model.Host) int { return strings.Compare(string(a.Name), string(b.Name)) })
	p.push()
	for i := 0; i < hosts; i += dpKept {
		p.batch(min(dpKept, hosts-i), func(k int) string { return name(i + k) })
	}
	// The stalls are measured in the worker itself while it answers two scrapes.
	measured := make(chan dpAnswer, 1)
	go func() {
		a, _ := p.call(http.MethodGet, "/v1/stalls?ms=5000", nil, nil)
		measured <- a
	}()
	p.eventually("all hosts are told", func() error {
		a := p.must(http.MethodGet, "/v1/metrics", nil, nil)
		if n := bytes.Count(a.body, []byte("\nheadgate_proxy_request_duration_seconds_count{")); n < hosts {
			return fmt.Errorf("%d hosts", n)
		}
		if !bytes.HasSuffix(a.body, []byte("\nheadgate_proxy_metrics_dropped_total 0\n")) {
			return fmt.Errorf("...%s", a.body[len(a.body)-200:])
		}
		t.Logf("%d bytes", len(a.body))
		return nil
	})
	a := <-measured
	var seen struct{ MaxLateMs, MaxCPUMs, Turns float64 }
	if err := json.Unmarshal(a.body, &seen); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	t.Logf("%+v", seen)
	if seen.MaxCPUMs > stall {
		t.Errorf("the worker computed for %.1f ms without a pause, want at most %.0f: %s", seen.MaxCPUMs, stall, a.body)
	}
}

// dpKept is below keepalive_requests.
const dpKept = 500

// batch sends n requests down one connection.
func (p *dpProxy) batch(n int, host func(int) string) {
	p.t.Helper()
	conn, err := net.Dial("tcp", p.http.String())
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(dpDeadline))
	r := bufio.NewReader(conn)
	for i := range n {
		if _, err := fmt.Fprintf(conn, "HEAD / HTTP/1.1\r\nHost: %s\r\n\r\n", host(i)); err != nil {
			p.t.Fatal(err)
		}
		res, err := http.ReadResponse(r, &http.Request{Method: http.MethodHead})
		if err != nil || res.StatusCode != http.StatusOK {
			p.t.Fatalf("request %d: %v, %v", i, res, err)
		}
	}
}
