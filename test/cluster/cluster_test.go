// Package cluster holds the tests of the rooms that speak with a Kubernetes API server, against a real one.
package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"headgate/gateway/build"
	"headgate/gateway/snapshot"
	"headgate/sync/kubestatus"
	"headgate/sync/kubewatch"
	"headgate/test/cluster/harness"
)

const soon = 20 * time.Second

func TestMain(m *testing.M) {
	kubewatch.RouteKlog(slog.New(slog.DiscardHandler))
	harness.Main(m)
}

// journal is a log that a test can read.
type journal struct {
	mu    sync.Mutex
	lines strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lines.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lines.String()
}

func (j *journal) logger(t *testing.T) *slog.Logger {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s", t.Name(), j)
		}
	})
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// start runs something until stop is called or the test ends.
func start(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("Run does not end")
		}
	})
	t.Cleanup(stop)
	return stop
}

// watching starts a source.
func watching(t *testing.T, config kubewatch.Config) (*kubewatch.Source, *journal) {
	t.Helper()
	j := &journal{}
	config.Logger = j.logger(t)
	source, err := kubewatch.New(config)
	if err != nil {
		t.Fatal(err)
	}
	start(t, source.Run)
	return source, j
}

// complete waits for the first snapshot.
func complete(t *testing.T, source *kubewatch.Source) *snapshot.Snapshot {
	t.Helper()
	var s *snapshot.Snapshot
	harness.Eventually(t, soon, func() error {
		var ok bool
		if s, ok = source.Snapshot(); !ok {
			return fmt.Errorf("not complete: %+v", source.Health())
		}
		return nil
	})
	return s
}

// sees waits until a snapshot pleases f.
func sees(t *testing.T, source *kubewatch.Source, f func(*snapshot.Snapshot) error) *snapshot.Snapshot {
	t.Helper()
	var s *snapshot.Snapshot
	harness.Eventually(t, soon, func() error {
		var ok bool
		if s, ok = source.Snapshot(); !ok {
			return fmt.Errorf("not complete: %+v", source.Health())
		}
		return f(s)
	})
	return s
}

func ingress(namespace, name, host string) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: %s, name: %s}
spec:
  ingressClassName: headgate
  rules:
  - host: %s
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
---
`, namespace, name, host)
}

func findIngress(s *snapshot.Snapshot, namespace, name string) *snapshot.Ingress {
	for _, i := range s.Ingresses {
		if i.Namespace == namespace && i.Name == name {
			return i
		}
	}
	return nil
}

func host(i *snapshot.Ingress) string {
	if i == nil || len(i.Spec.Rules) == 0 {
		return ""
	}
	return i.Spec.Rules[0].Host
}

func hasHost(namespace, name, want string) func(*snapshot.Snapshot) error {
	return func(s *snapshot.Snapshot) error {
		if got := host(findIngress(s, namespace, name)); got != want {
			return fmt.Errorf("host of %s/%s is %q, want %q", namespace, name, got, want)
		}
		return nil
	}
}

// shippedRoles applies packaging/rbac.yaml and gives a kubeconfig of its ServiceAccount.
func shippedRoles(t *testing.T, c *harness.Cluster) string {
	t.Helper()
	roles, err := os.ReadFile("../../packaging/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(t, string(roles))
	return c.ServiceAccountKubeconfig(t, "headgate-system", "headgate")
}

// copyFile gives a kubeconfig of its own that the test may replace.
func copyFile(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "kubeconfig")
	replace(t, to, read(t, from))
	return to
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func replace(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// host of an edge: a source, a writer, and a loop that takes everything of class headgate for served.
type edge struct {
	source *kubewatch.Source
	writer *kubestatus.Writer
	log    *journal
	stop   func() // of the writer

	mu       sync.Mutex
	problems []build.Problem
	kick     chan struct{}
}

func newEdge(t *testing.T, kubeconfig, identity string, change func(*kubestatus.Config)) *edge {
	t.Helper()
	return newEdgeOf(t, kubewatch.Config{Kubeconfig: kubeconfig, Version: "test"}, identity, change)
}

func newEdgeOf(t *testing.T, read kubewatch.Config, identity string, change func(*kubestatus.Config)) *edge {
	t.Helper()
	e := &edge{kick: make(chan struct{}, 1)}
	e.source, e.log = watching(t, read)
	complete(t, e.source)
	config := kubestatus.Config{
		Client:        func() kubernetes.Interface { return e.source.Client() },
		Addresses:     []string{"192.0.2.10", "edge.example.org"},
		Identity:      identity,
		LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 500 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(e.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&config)
	}
	var err error
	if e.writer, err = kubestatus.New(config); err != nil {
		t.Fatal(err)
	}
	e.stop = start(t, e.writer.Run)
	start(t, e.loop)
	return e
}

func (e *edge) loop(ctx context.Context) error {
	for {
		s, ok := e.source.Snapshot()
		if ok {
			var served []snapshot.Key
			for _, i := range s.Ingresses {
				if i.Spec.IngressClassName != nil && *i.Spec.IngressClassName == "headgate" {
					served = append(served, i.Key)
				}
			}
			e.mu.Lock()
			problems := e.problems
			e.mu.Unlock()
			e.writer.Update(kubestatus.Desired{Snapshot: s, Served: served, Problems: problems})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-e.source.Changed():
		case <-e.kick:
		}
	}
}

func (e *edge) setProblems(list ...build.Problem) {
	e.mu.Lock()
	e.problems = list
	e.mu.Unlock()
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// leads waits until this host writes.
func (e *edge) leads(t *testing.T) {
	t.Helper()
	harness.Eventually(t, soon, func() error {
		if identity, mine := e.writer.Leader(); !mine {
			return fmt.Errorf("%s leads", identity)
		}
		return nil
	})
}
