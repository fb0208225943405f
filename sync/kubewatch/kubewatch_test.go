package kubewatch

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"headgate/gateway/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTablesEqualASort: whatever happens to objects, the list is the sorted set of what is there, and a list
// that was handed out does not change.
func TestTablesEqualASort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := newTable(func(o *snapshot.Service) snapshot.Key { return o.Key })
		model := map[snapshot.Key]*snapshot.Service{}
		keys := rapid.Custom(func(t *rapid.T) snapshot.Key {
			return snapshot.Key{Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "ns"), Name: rapid.StringMatching(`[a-d]{1,2}`).Draw(t, "name")}
		})
		var handed, copied []*snapshot.Service
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			key := keys.Draw(t, "key")
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				o := &snapshot.Service{Meta: snapshot.Meta{Key: key}}
				table.put(o)
				model[key] = o
			case 2:
				table.remove(key)
				delete(model, key)
			case 3:
				handed = table.sorted()
				copied = slices.Clone(handed)
			}
		}
		got := table.sorted()
		if len(got) != len(model) || !slices.IsSortedFunc(got, func(a, b *snapshot.Service) int { return a.Compare(b.Key) }) {
			t.Fatalf("%d objects, want %d sorted", len(got), len(model))
		}
		for _, o := range got {
			if model[o.Key] != o {
				t.Fatalf("%s is another one", o.Key)
			}
		}
		if !slices.Equal(handed, copied) {
			t.Fatal("a list that was handed out has changed")
		}
	})
}

func meta(name, uid, version string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid), ResourceVersion: version}
}

func convert(t *testing.T, m *memo, in any) *held {
	t.Helper()
	out, err := m.transform(in)
	if err != nil {
		t.Fatal(err)
	}
	return out.(*held)
}

func TestTheMemoKeepsPointers(t *testing.T) {
	m := newMemo()
	first := convert(t, m, &corev1.Service{ObjectMeta: meta("web", "u1", "5")})
	if again := convert(t, m, &corev1.Service{ObjectMeta: meta("web", "u1", "5")}); again != first {
		t.Error("the same version must give the same copy")
	}
	if out, _ := m.transform(first); out != first {
		t.Error("what was converted must pass")
	}
	newer := convert(t, m, &corev1.Service{ObjectMeta: meta("web", "u1", "6")})
	other := convert(t, m, &corev1.Service{ObjectMeta: meta("web", "u2", "6")})
	if newer == first || other == newer {
		t.Error("another version, or another object of that name, is another copy")
	}
	if sameName := convert(t, m, &networkingv1.Ingress{ObjectMeta: meta("web", "u2", "6")}); sameName == other {
		t.Error("another kind is another object")
	}
	m.drop(newer)
	if convert(t, m, &corev1.Service{ObjectMeta: meta("web", "u2", "6")}) != other {
		t.Error("dropping an older version must not forget the newer one")
	}
	m.keep(func(identity) bool { return false })
	if len(m.known) != 0 {
		t.Errorf("%d left", len(m.known))
	}
	// The informer reads keys and versions from what is held.
	key, err := cache.MetaNamespaceKeyFunc(other)
	if err != nil || key != "shop/web" || other.GetObjectMeta().GetResourceVersion() != "6" {
		t.Errorf("key %q, %v", key, err)
	}
}

func TestTheHandler(t *testing.T) {
	tables, m := newTables(), newMemo()
	count := 0
	h := &handler{kind: serviceKind, tables: tables, memo: m, changed: func() { count++ }}
	web := convert(t, m, &corev1.Service{ObjectMeta: meta("web", "u1", "5")})
	api := convert(t, m, &corev1.Service{ObjectMeta: meta("api", "u3", "5")})
	names := func() (list []string) {
		for _, o := range tables.snapshot().Services {
			list = append(list, o.Name)
		}
		return list
	}
	h.OnAdd(web, true)
	h.OnAdd(api, true)
	if got := names(); !slices.Equal(got, []string{"api", "web"}) || count != 2 {
		t.Errorf("%v after %d changes", got, count)
	}
	before := tables.snapshot()
	h.OnUpdate(web, web)
	if count != 2 || tables.snapshot() != before {
		t.Error("a relist that brings the same is no change")
	}
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "shop/web", Obj: web})
	if got := names(); !slices.Equal(got, []string{"api"}) || count != 3 {
		t.Errorf("%v after %d changes", got, count)
	}
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "shop/api"})
	if got := names(); len(got) != 0 || count != 4 {
		t.Errorf("%v after %d changes", got, count)
	}
	h.OnDelete("nonsense")
	h.OnAdd("nonsense", false)
	if count != 4 || tables.size() != 0 {
		t.Error("nonsense must not count")
	}
}

func TestSlicesWithoutAddressesAreTold(t *testing.T) {
	tables, m := newTables(), newMemo()
	fqdn := convert(t, m, &discoveryv1.EndpointSlice{ObjectMeta: meta("web-1", "u1", "5"), AddressType: discoveryv1.AddressTypeFQDN})
	tables.put(fqdn)
	s := tables.snapshot()
	if len(s.EndpointSlices) != 0 || len(s.Faults) != 1 || s.Faults[0].Key.Name != "web-1" || !tables.has(fqdn.id) {
		t.Errorf("got %+v", s)
	}
	tables.put(convert(t, m, &discoveryv1.EndpointSlice{ObjectMeta: meta("web-1", "u1", "6"), AddressType: discoveryv1.AddressTypeIPv4}))
	if s := tables.snapshot(); len(s.EndpointSlices) != 1 || len(s.Faults) != 0 {
		t.Errorf("got %+v", s)
	}
	tables.put(fqdn)
	tables.remove(fqdn.id)
	if s := tables.snapshot(); len(s.EndpointSlices) != 0 || len(s.Faults) != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestReadOf(t *testing.T) {
	for _, c := range []struct {
		method, url string
		want        read
		ok          bool
	}{
		{"GET", "/api/v1/services", read{"list", "", "services", ""}, true},
		{"GET", "/api/v1/services?watch=true", read{"watch", "", "services", ""}, true},
		{"GET", "/api/v1/namespaces/shop/secrets?fieldSelector=x&watch=1", read{"watch", "", "secrets", "shop"}, true},
		{"GET", "/apis/networking.k8s.io/v1/ingresses", read{"list", "networking.k8s.io", "ingresses", ""}, true},
		{"GET", "/k8s/clusters/c-1/apis/discovery.k8s.io/v1/namespaces/a/endpointslices", read{"list", "discovery.k8s.io", "endpointslices", "a"}, true},
		{"GET", "/api/v1/namespaces/shop/secrets/one", read{}, false},
		{"GET", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", read{}, false},
		{"PATCH", "/apis/networking.k8s.io/v1/namespaces/a/ingresses", read{}, false},
		{"GET", "/readyz", read{}, false},
		{"GET", "/api", read{}, false},
		{"GET", "/apis/a/b", read{}, false},
	} {
		request := httptest.NewRequest(c.method, c.url, nil)
		got, ok := readOf(request)
		if ok != c.ok || (ok && got != c.want) {
			t.Errorf("%s %s: got %+v, %v", c.method, c.url, got, ok)
		}
	}
	const want = `may not watch secrets in namespace shop: add to the Role (or ClusterRole) of headgate's ServiceAccount: {apiGroups: [""], resources: [secrets], verbs: [list, watch]}`
	if got := (read{"watch", "", "secrets", "shop"}).advice(); got != want {
		t.Errorf("advice %s", got)
	}
}

func TestHealthIsToldOnTransitionsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h := newHealth(slog.New(slog.NewTextHandler(&log, nil)), "/etc/kubeconfig")
		began := time.Now()
		steps := func(errs ...error) {
			for _, err := range errs {
				<-time.After(time.Second)
				h.take(err)
			}
		}
		refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		steps(refused, refused, refused)
		if c := h.condition(); c.Healthy || !c.Since.Equal(began) || c.LastError != "connection refused" {
			t.Errorf("at the start: %+v", c)
		}
		steps(nil)
		healthySince := time.Now()
		steps(nil, refused, nil)
		if c := h.condition(); !c.Healthy || !c.Since.Equal(healthySince) || c.LastError != "" {
			t.Errorf("one failure is no outage: %+v", c)
		}
		steps(refused, refused)
		if c := h.condition(); c.Healthy || !c.Since.Equal(time.Now()) {
			t.Errorf("two are: %+v", c)
		}
		steps(refused, nil)
		for _, line := range []string{"trying on", "what was read last stays"} {
			if n := strings.Count(log.String(), line); n != 1 {
				t.Errorf("%q was logged %d times:\n%s", line, n, log.String())
			}
		}
		if n := strings.Count(log.String(), "the API server answers"); n != 2 {
			t.Errorf("that it answers was logged %d times", n)
		}
	})
}

func TestExplain(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler), "/etc/kubeconfig")
	for _, c := range []struct {
		err  error
		want string
	}{
		{apierrors.NewUnauthorized("x"), "it refuses our credentials (401): renew the token or certificate in /etc/kubeconfig"},
		{fmt.Errorf("get: %w", context.DeadlineExceeded), "no answer in time"},
		{os.ErrDeadlineExceeded, "no answer in time"},
		{&net.DNSError{Name: "api.test", Err: "no such host", IsNotFound: true}, "its name api.test does not resolve: no such host"},
		{fmt.Errorf(`Get "https://x/readyz": %w`, x509.UnknownAuthorityError{}), "x509: certificate signed by unknown authority"},
		{errors.New("other"), "other"},
	} {
		if got := h.explain(c.err); got != c.want {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
	}
}

func TestRefusalsComeAndGo(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler), "")
	ask := func(url string, status int) {
		h.answered(httptest.NewRequest(http.MethodGet, url, nil), status)
	}
	ask("/api/v1/secrets?watch=true", http.StatusForbidden)
	ask("/api/v1/secrets", http.StatusForbidden)
	ask("/api/v1/services", http.StatusForbidden)
	if got := h.condition().Forbidden; len(got) != 3 {
		t.Errorf("forbidden: %q", got)
	}
	ask("/api/v1/secrets?watch=true", http.StatusOK)
	ask("/api/v1/namespaces/a/services", http.StatusOK)
	if got := h.condition().Forbidden; len(got) != 1 || !strings.HasPrefix(got[0], "may not list services") {
		t.Errorf("forbidden: %q", got)
	}
	if h.condition().LastContact.IsZero() {
		t.Error("an answer is a contact")
	}
	ask("/api/v1/secrets", http.StatusUnauthorized)
	select {
	case <-h.nudge:
	default:
		t.Error("refused credentials must be looked at")
	}
}

func TestPeers(t *testing.T) {
	for host, want := range map[string]string{
		"https://10.0.0.1:6443":    "[10.0.0.1]",
		"https://[fd00::1]:6443/x": "[fd00::1]",
		"10.0.0.1":                 "[10.0.0.1]",
		"https://api.test:6443":    "[]",
	} {
		if got := fmt.Sprint(newPeers(host, func() {}).list()); got != want {
			t.Errorf("%s: got %s, want %s", host, got, want)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	changed := 0
	p := newPeers("https://api.test", func() { changed++ })
	for range 2 {
		conn, err := p.dial(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	if got := p.list(); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("127.0.0.1")}) || changed != 1 {
		t.Errorf("dialed %v, %d changes", got, changed)
	}
	p.name = "localhost"
	p.resolve(t.Context())
	if len(p.resolved) == 0 {
		t.Error("localhost must resolve")
	}
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %s}}]
users: [{name: u, user: {token: secret-token%s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLoadKubeconfig(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "kubeconfig")
	config := Config{Kubeconfig: path, Version: "1.2.3"}
	for _, c := range []struct{ name, content, want string }{
		{"missing", "", "does not exist: create it, or name another one"},
		{"not YAML", "a: [", "cannot be read"},
		{"empty", "{}", "has no current-context: write the name of one of its contexts"},
		{"context without cluster", strings.Replace(fmt.Sprintf(kubeconfig, "https://x", ""), "cluster: c, ", "", 1), "cannot be used"},
		{"missing certificate", fmt.Sprintf(kubeconfig, "https://x, certificate-authority: ca.crt", ""), "ca.crt"},
	} {
		if c.content != "" {
			write(t, path, c.content)
		}
		_, err := loadKubeconfig(config)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v", c.name, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret-token") {
			t.Errorf("%s: the error shows a token", c.name)
		}
	}
	write(t, path, fmt.Sprintf(kubeconfig, "https://127.0.0.1:1, certificate-authority: ca.crt", ", tokenFile: token"))
	write(t, filepath.Join(folder, "ca.crt"), "one")
	write(t, filepath.Join(folder, "token"), "one")
	first, err := loadKubeconfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if first.config.UserAgent != "headgate/1.2.3" || first.config.BearerTokenFile != filepath.Join(folder, "token") || string(first.config.CAData) != "one" {
		t.Errorf("config %s", first.config)
	}
	if want := []string{path, filepath.Join(folder, "ca.crt"), filepath.Join(folder, "token")}; !slices.Equal(first.files, want) {
		t.Errorf("files %v", first.files)
	}
	write(t, filepath.Join(folder, "token"), "two")
	if again, _ := loadKubeconfig(config); again.print != first.print || again.token == first.token {
		t.Error("a new token in a tokenFile is client-go's affair, and is seen")
	}
	write(t, filepath.Join(folder, "ca.crt"), "two")
	if again, _ := loadKubeconfig(config); again.print == first.print {
		t.Error("a new CA is another set of credentials")
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("no kubeconfig must be an error")
	}
	s, err := New(Config{Kubeconfig: "/none"})
	if err != nil {
		t.Fatal(err)
	}
	if got, complete := s.Snapshot(); got == nil || complete || s.Client() != nil || len(s.APIServers()) != 0 {
		t.Error("before Run there is nothing")
	}
}

// TestRunEndsWhateverTheServerDoes runs against servers that are there, and are no API server.
func TestRunEndsWhateverTheServerDoes(t *testing.T) {
	var agents sync.Map
	var hits atomic.Int32
	for name, serve := range map[string]http.HandlerFunc{
		"not found": func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) },
		"refuses":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"garbage":   func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{") },
		"hangs":     func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			before := hits.Load()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				hits.Add(1)
				agents.Store(r.UserAgent(), true)
				serve(w, r)
			}))
			defer server.Close()
			path := filepath.Join(t.TempDir(), "kubeconfig")
			write(t, path, fmt.Sprintf(kubeconfig, server.URL, ""))
			source, err := New(Config{Kubeconfig: path, Version: "9"})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- source.Run(ctx) }()
			deadline := time.After(10 * time.Second)
			// A server that answers /readyz with anything counts as ready; that nothing can be read is told by the log.
			for source.Health().LastError == "" && (name != "garbage" || hits.Load() < before+6) {
				select {
				case <-deadline:
					t.Fatal("nothing is told")
				case <-time.After(10 * time.Millisecond):
				}
			}
			if _, complete := source.Snapshot(); complete {
				t.Error("nothing can be complete")
			}
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("Run does not end")
			}
		})
	}
	agents.Range(func(agent, _ any) bool {
		if agent != "headgate/9" {
			t.Errorf("User-Agent %q", agent)
		}
		return true
	})
	if hits.Load() == 0 {
		t.Error("no server was asked")
	}
}

// TestRunFollowsTheKubeconfig: what is swapped is tried at once, long before the rescan.
func TestRunFollowsTheKubeconfig(t *testing.T) {
	versions := make(chan string, 1) // of the kubeconfig: each has another path to the server
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		version, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		select {
		case versions <- version:
		default:
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	mount := func(t *testing.T, folder, version string) {
		t.Helper()
		content := filepath.Join(folder, "..version-"+version)
		if err := os.MkdirAll(content, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(content, "kubeconfig"), fmt.Sprintf(kubeconfig, server.URL+"/"+version, ""))
		link := filepath.Join(folder, "..data")
		if err := errors.Join(os.Symlink(filepath.Base(content), link+"_tmp"), os.Rename(link+"_tmp", link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		swap func(t *testing.T, folder, version string)
	}{
		{"a mounted Secret", mount},
		{"a file that is renamed over", func(t *testing.T, folder, version string) {
			t.Helper()
			path := filepath.Join(folder, "kubeconfig")
			write(t, path+".new", fmt.Sprintf(kubeconfig, server.URL+"/"+version, ""))
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}},
		{"a folder that is replaced", func(t *testing.T, folder, version string) {
			t.Helper()
			if err := os.Mkdir(folder+version, 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(folder+version, "kubeconfig"), fmt.Sprintf(kubeconfig, server.URL+"/"+version, ""))
			if err := errors.Join(os.Rename(folder, folder+version+".old"), os.Rename(folder+version, folder)); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "kube")
			mount(t, folder, "1")
			path := filepath.Join(folder, "kubeconfig")
			if err := os.Symlink(filepath.Join("..data", "kubeconfig"), path); err != nil {
				t.Fatal(err)
			}
			source, err := New(Config{Kubeconfig: path})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- source.Run(ctx) }()
			defer func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
			expectVersion(t, versions, "1")
			for _, version := range []string{"2", "3"} {
				c.swap(t, folder, version)
				expectVersion(t, versions, version)
			}
		})
	}
}

// expectVersion waits until the server was asked by it.
func expectVersion(t *testing.T, versions <-chan string, want string) {
	t.Helper()
	deadline := time.After(rescanInterval / 2)
	for {
		select {
		case got := <-versions:
			if got == want {
				return
			}
		case <-deadline:
			t.Fatalf("nobody came with the version %s", want)
		}
	}
}

func TestQuieter(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(quieter{slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})})
	log.Log(t.Context(), slog.Level(-4), "verbose")
	log.Info("info")
	log.With("a", 1).WithGroup("g").Error("error", "b", 2)
	got := out.String()
	if strings.Contains(got, "verbose") || !strings.Contains(got, "level=DEBUG msg=info") || !strings.Contains(got, "level=WARN msg=error a=1 g.b=2") {
		t.Errorf("log:\n%s", got)
	}
	out.Reset()
	log = slog.New(quieter{slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})})
	log.Info("info")
	if out.Len() > 0 {
		t.Errorf("log: %s", out.String())
	}
}
