package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(m)
}

// now is when every status of these tests was taken.
func now() time.Time { return time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC) }

// healthy is a gateway that has nothing to hide.
func healthy() Status {
	return Status{
		Version: "v1.2.3", PID: 42, Started: now().Add(-26 * time.Hour), Time: now(),
		Source:   Source{Kind: "cluster", Detail: "https://10.0.0.1:6443", Synced: true, Healthy: true, Since: now().Add(-time.Hour)},
		Revision: Revision{Desired: 41, Applied: 41},
		Proxy: Proxy{
			Mode: "external", Reachable: true, MasterPID: 7, NginxVersion: "1.22.1", LuaBuild: "abc", Generation: "0123456789abcdef0123",
			Workers: []Worker{
				{PID: 8, Generation: "0123456789abcdef0123", Revision: 41, SeenMs: 310},
				{PID: 9, Generation: "0123456789abcdef0123", Revision: 40, SeenMs: 905},
			},
			DictCapacityBytes: 32 << 20, DictFreeBytes: 30 << 20,
		},
		StateLog: StateLog{Revision: 41, SizeBytes: 3 << 20},
		Ready:    true,
		Counts:   Counts{Hosts: 3, Routes: 12, Upstreams: 4, Peers: 9, Certificates: 2},
		Reloads:  map[string]uint64{"first-start": 1, "new-profile": 2},
		LastReload: &Reload{
			Time: now().Add(-90 * time.Minute), Reasons: []string{"new-profile"},
		},
		Passes: 77, Pushes: 40, Failures: 1,
		Problems: []Problem{{
			Kind: "Ingress", Namespace: "shop", Name: "web", Origin: "shop.yaml:12", Field: "spec.rules[0].host",
			Reason: "HostConflict", Message: "the older Ingress shop/old has this host: remove one",
		}, {
			Kind: "Secret", Namespace: "shop", Name: "tls", Reason: "CertificateExpired", Message: "it expired yesterday: renew it", Warning: true,
		}, {
			Origin: "broken.yaml:3", Reason: "Unreadable", Message: "not YAML: close the bracket",
		}},
		Certificates: []Certificate{
			{ID: "blog/tls", NotAfter: now().Add(80 * 24 * time.Hour)}, {ID: "shop/tls", NotAfter: now().Add(-24 * time.Hour)},
		},
	}
}

// broken has everything that can be wrong at once.
func broken() Status {
	s := healthy()
	s.Source.Healthy, s.Source.Error = false, "connection refused"
	s.LastKnownGood, s.Ready = true, false
	s.Error = "push revision 42: no answer"
	s.Revision.Desired = 42
	s.Proxy.Workers[1].Errors = []string{"host/shop.example: bad JSON"}
	s.StateLog.Error = "no space left on device"
	s.Health = Health{Up: 5, Down: 3, Unknown: 1, AllDown: []string{"shop/web/80"}, Running: 2, LateMs: 1500, Succeeded: 100, Failed: 20, Void: 1, WentDown: 4, CameUp: 1}
	s.LossGuard = LossGuard{
		Held: &Held{
			Since: now().Add(-time.Minute), Until: now().Add(9 * time.Minute), Why: "a watch broke off",
			Before: Amount{Routes: 40, Endpoints: 80, Services: 20, Secrets: 5}, Now: Amount{Routes: 12, Services: 20},
		},
		AgeSeconds: 90_000, MaxAgeSeconds: 86_400, TooOld: true, Holds: 2,
	}
	s.LastReload.Error = "no worker of the new generation reported"
	return s
}

func cases() map[string]Status {
	dead := Status{Version: "v1.2.3", PID: 42, Started: now(), Time: now(), Source: Source{Kind: "manifests", Detail: "/m"}, Proxy: Proxy{Mode: "managed"}}
	return map[string]Status{"healthy": healthy(), "broken": broken(), "starting": dead}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites):\n%s", file, diff)
	}
}

func TestText(t *testing.T) {
	for name, s := range cases() {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := s.normal().WriteText(&out); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", out.Bytes())
		})
	}
}

func TestDegraded(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Status)
		want   string
	}{
		"nothing":   {func(*Status) {}, ""},
		"problems":  {func(s *Status) { s.Problems = append(s.Problems, Problem{}) }, ""},
		"unsynced":  {func(s *Status) { s.Source.Synced = false }, "the source has not been read completely yet"},
		"no source": {func(s *Status) { s.Source.Synced, s.Source.Healthy, s.Source.Error = false, false, "no such folder" }, "not been read completely yet: no such folder"},
		"unhealthy": {func(s *Status) { s.Source.Healthy = false }, "cannot be read since 2026-11-29T02:00:00Z: unknown"},
		"last good": {func(s *Status) { s.LastKnownGood = true }, "last known good"},
		"proxy":     {func(s *Status) { s.Proxy.Reachable = false }, "does not answer: unknown"},
		"rival":     {func(s *Status) { s.Rival = "abc" }, "another daemon (abc)"},
		"too large": {func(s *Status) { s.TooLarge = []string{"host/a", "host/b"} }, "2 objects are too large for the proxy, such as host/a"},
		"pass":      {func(s *Status) { s.Error = "x" }, "retried: x"},
		"not ready": {func(s *Status) { s.Ready = false }, "no complete state"},
		"worker":    {func(s *Status) { s.Proxy.Workers[0].Errors = []string{"a", "b"} }, "worker 8 reports 2 errors"},
		"state log": {func(s *Status) { s.StateLog.Error = "full" }, "cannot be written: full"},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy()
			c.change(&s)
			why := s.Degraded()
			if c.want == "" && len(why) > 0 || c.want != "" && (len(why) != 1 || !strings.Contains(why[0], c.want)) {
				t.Errorf("degraded for %q, want %q", why, c.want)
			}
		})
	}
}

func TestWhateverIsSaidStaysOnItsLine(t *testing.T) {
	s := healthy()
	s.Error = "first\nMAINPID=1\x1b[31m" + strings.Repeat("é", 1000)
	s.LastReload.Error = s.Error
	s.Problems[0].Message = s.Error
	why := s.Degraded()[0]
	if strings.ContainsAny(why, "\n\x1b") || len([]rune(why)) > 500 || !strings.Contains(why, "first; MAINPID=1 [31m") {
		t.Errorf("degraded for %q", why)
	}
	var out bytes.Buffer
	if err := s.WriteText(&out); err != nil || strings.Contains(out.String(), "\nMAINPID") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// open claims a runtime directory and serves until the test ends.
func open(t *testing.T, dir string, status func() Status) *Socket {
	t.Helper()
	socket, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- socket.Serve(ctx, Answers{Status: status}) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, socket.Close()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(SocketPath(dir)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left: %v", err)
		}
	})
	return socket
}

func TestAsk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	open(t, dir, healthy)
	got, err := Ask(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(healthy().normal(), got); diff != "" {
		t.Errorf("status over the socket (-want +got):\n%s", diff)
	}
	info, err := os.Stat(filepath.Join(dir, "admin"))
	if err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("folder of the socket: %v, %v; want 0750", info.Mode(), err)
	}
}

func TestAskExplain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	socket, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	explain := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) == "bad" {
			http.Error(w, "no\nquestion", http.StatusBadRequest)
			return
		}
		_, _ = w.Write(append([]byte("answer to "), body...))
	})
	go func() { ended <- socket.Serve(ctx, Answers{Status: healthy, Explain: explain}) }()
	if got, err := AskExplain(t.Context(), dir, []byte("good")); err != nil || string(got) != "answer to good" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := AskExplain(t.Context(), dir, []byte("bad")); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "no; question") {
		t.Error(err)
	}
	cancel()
	if err := errors.Join(<-ended, socket.Close()); err != nil {
		t.Error(err)
	}
	if _, err := AskExplain(t.Context(), dir, nil); !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
	older := filepath.Join(t.TempDir(), "older")
	open(t, older, healthy)
	if _, err := AskExplain(t.Context(), older, nil); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "explains nothing") {
		t.Error(err)
	}
}

func TestSecondDaemon(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, healthy)
	_, err := Open(t.Context(), dir)
	if !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), fmt.Sprintf("PID %d holds %s", os.Getpid(), dir)) {
		t.Errorf("second daemon: %v", err)
	}
	if _, err := Ask(t.Context(), dir); err != nil {
		t.Errorf("the first one answers no more: %v", err)
	}
}

// TestDeadSocket: what a killed daemon left does not keep the next one out.
func TestDeadSocket(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "admin"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", SocketPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) //nolint:forcetypeassert // made just above
	_ = l.Close()
	if err := os.WriteFile(filepath.Join(dir, "admin", "daemon.lock"), []byte("999999999999\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Ask(t.Context(), dir); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "it does not run") {
		t.Errorf("ask a dead socket: %v", err)
	}
	open(t, dir, healthy)
	if _, err := Ask(t.Context(), dir); err != nil {
		t.Error(err)
	}
}

func TestUnreachable(t *testing.T) {
	if _, err := Ask(t.Context(), t.TempDir()); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "it does not run") {
		t.Errorf("ask nobody: %v", err)
	}
}

// over asks the admin socket for one path.
func over(t *testing.T, dir, method, path string) (int, string) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", SocketPath(dir))
	}}
	request, err := http.NewRequestWithContext(t.Context(), method, "http://admin"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

func TestPaths(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, func() Status { return Status{} })
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/v1/status", 200}, {"GET", "/v1/problems", 200}, {"GET", "/debug/pprof/goroutine?debug=1", 200},
		{"POST", "/v1/status", 405}, {"DELETE", "/v1/problems", 405}, {"GET", "/metrics", 404}, {"GET", "/", 404},
	} {
		if got, _ := over(t, dir, c.method, c.path); got != c.status {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, got, c.status)
		}
	}
	_, body := over(t, dir, "GET", "/v1/status")
	var s map[string]any
	if err := json.Unmarshal([]byte(body), &s); err != nil || s["problems"] == nil || s["reloads"] == nil {
		t.Errorf("an empty status has null where a list or map belongs: %v %s", err, body)
	}
}

// scrape gives what Prometheus gets, without the metrics of the runtime.
func scrape(t *testing.T, s Status) string {
	t.Helper()
	m := NewMetrics(func() Status { return s })
	m.ObserveBuild(3 * time.Millisecond)
	m.ObservePush(700 * time.Microsecond)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(res.Status, err)
	}
	var ours strings.Builder
	for line := range strings.Lines(string(body)) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if strings.HasPrefix(name, "headgate_") && !strings.HasPrefix(line, "headgate_daemon_version_info") {
			ours.WriteString(line)
		}
	}
	return ours.String()
}

func TestMetrics(t *testing.T) {
	for name, s := range cases() {
		t.Run(name, func(t *testing.T) { golden(t, name+".metrics", []byte(scrape(t, s))) })
	}
}

func TestMetricsAreLintedAndDocumented(t *testing.T) {
	m := NewMetrics(healthy)
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	gathered := map[string]bool{proxyUp: true} // see TestProxyMetrics
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "headgate_") {
			continue
		}
		gathered[family.GetName()] = true
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			t.Fatal(err)
		}
	}
	problems, err := promlint.New(&text).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, doc := range MetricDocs() {
		if !gathered[doc.Name] {
			t.Errorf("%s is documented and not gathered", doc.Name)
		}
		delete(gathered, doc.Name)
	}
	for name := range gathered {
		t.Errorf("%s is gathered and not documented", name)
	}
}

func TestCertificateSeriesAreBounded(t *testing.T) {
	s := healthy()
	for i := range maxCertificates + 50 {
		s.Certificates = append(s.Certificates, Certificate{ID: fmt.Sprintf("many/c%d", i), NotAfter: now().Add(time.Duration(i) * time.Hour)})
	}
	text := scrape(t, s)
	if n := strings.Count(text, "\nheadgate_build_certificate_expiry_timestamp_seconds{"); n != maxCertificates {
		t.Errorf("%d series, want %d", n, maxCertificates)
	}
	if !strings.Contains(text, `certificate="shop/tls"`) || strings.Contains(text, `certificate="blog/tls"`) {
		t.Error("not those that expire first")
	}
}

func TestAskApplied(t *testing.T) {
	dir := t.TempDir()
	socket, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- socket.Serve(ctx, Answers{Status: healthy, Applied: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if pointer := r.URL.Query().Get("pointer"); pointer == "host/a b&c" {
				http.Error(w, "busy\nindeed", http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write([]byte(r.URL.String()))
		})})
	}()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, socket.Close()); err != nil {
			t.Error(err)
		}
	})
	if body, err := AskApplied(t.Context(), dir, ""); err != nil || string(body) != "/v1/applied" {
		t.Errorf("%s, %v", body, err)
	}
	if _, err := AskApplied(t.Context(), dir, "host/a b&c"); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "busy; indeed") {
		t.Errorf("a refusal: %v", err)
	}
	if _, err := AskApplied(t.Context(), t.TempDir(), ""); !errors.Is(err, ErrUnreachable) {
		t.Errorf("nobody: %v", err)
	}
	other := t.TempDir()
	open(t, other, healthy)
	if _, err := AskApplied(t.Context(), other, ""); !errors.Is(err, ErrRefused) {
		t.Errorf("a daemon that compares nothing: %v", err)
	}
}

func TestRemovedSocketIsTold(t *testing.T) {
	dir := t.TempDir()
	socket, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(SocketPath(dir)); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("PID %d runs, but somebody removed its admin socket", os.Getpid())
	if _, err := Ask(t.Context(), dir); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), want) {
		t.Errorf("Ask: %v, want %q", err, want)
	}
	if err := socket.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Ask(t.Context(), dir); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "it does not run") {
		t.Errorf("Ask after the end: %v", err)
	}
}
