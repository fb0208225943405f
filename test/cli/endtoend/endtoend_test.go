// Package endtoend runs the whole pipeline: a real API server on one end, a real nginx on the other, the
// headgate binary with the shipped RBAC between them, and requests that are answered by pods.
package endtoend

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"headgate/test/cluster/harness"
	"headgate/test/product"
)

func TestMain(m *testing.M) { harness.Main(m) }

const soon = 30 * time.Second

// gateway is one running daemon with its proxy.
type gateway struct {
	t           *testing.T
	dir         string
	http, https string
	cmd         *exec.Cmd
	log         *bytes.Buffer
}

func start(t *testing.T, kubeconfig string) *gateway {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // nginx's workers, another user, pass through
			t.Fatal(err)
		}
	}
	g := &gateway{t: t, dir: dir, http: free(t), https: free(t), log: &bytes.Buffer{}}
	binary := filepath.Join(dir, "headgate")
	if out, err := exec.CommandContext(t.Context(), "go", "build", race, "-o", binary, "headgate/cmd/headgate").CombinedOutput(); err != nil {
		t.Fatalf("build headgate: %v\n%s", err, out)
	}
	conf := fmt.Sprintf(`
kubeconfig: %q
listeners: {http: [%q], https: [%q]}
proxy: {mode: managed, stopWithDaemon: true, workerProcesses: 2, workerConnections: 512}
publish: {addresses: [192.0.2.10, edge.example.com]}
metrics: {listen: ""}
stateDir: %q
runtimeDir: %q
`, kubeconfig, g.http, g.https, filepath.Join(dir, "state"), filepath.Join(dir, "run"))
	if err := os.WriteFile(g.config(), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	g.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), binary, "run", "--config", g.config())
	g.cmd.Stdout, g.cmd.Stderr = g.log, g.log
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.stop)
	return g
}

func (g *gateway) config() string { return filepath.Join(g.dir, "headgate.yaml") }

func (g *gateway) stop() {
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	ended := make(chan error, 1)
	go func() { ended <- g.cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			g.t.Errorf("headgate did not stop cleanly: %v", err)
		}
	case <-time.After(soon):
		_ = g.cmd.Process.Kill()
		g.t.Error("headgate did not stop in time")
	}
	if _, err := os.Stat(filepath.Join(g.dir, "run", "proxy", "control.sock")); !errors.Is(err, os.ErrNotExist) {
		g.t.Errorf("the proxy's socket is left: %v", err)
	}
	if g.t.Failed() {
		g.t.Logf("headgate's log:\n%s", g.log)
	}
}

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// answer is what came back.
type answer struct {
	status   int
	location string
	leaf     string // common name of the certificate
	echo     harness.Echo
}

func (g *gateway) get(url string) (answer, error) {
	var a answer
	to := g.http
	if strings.HasPrefix(url, "https:") {
		to = g.https
	}
	request, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return a, err
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, to)
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the certificate is looked at, not trusted
	}
	res, err := transport.RoundTrip(request)
	if err != nil {
		return a, err
	}
	defer func() { _ = res.Body.Close() }()
	a.status, a.location = res.StatusCode, res.Header.Get("Location")
	if res.TLS != nil {
		a.leaf = res.TLS.PeerCertificates[0].Subject.CommonName
	}
	body, err := io.ReadAll(res.Body)
	if err == nil && a.status == http.StatusOK {
		err = json.Unmarshal(body, &a.echo)
	}
	return a, err
}

func (g *gateway) answers(url string, status int) {
	g.t.Helper()
	harness.Eventually(g.t, soon, func() error {
		a, err := g.get(url)
		if err == nil && a.status != status {
			err = fmt.Errorf("GET %s: status %d, want %d", url, a.status, status)
		}
		return err
	})
}

// status asks the daemon and gives its exit code.
func (g *gateway) status() (map[string]any, int) {
	g.t.Helper()
	out, err := exec.CommandContext(g.t.Context(), g.cmd.Path, "status", "-o", "json", "--config", g.config()).Output()
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	var s map[string]any
	if err := json.Unmarshal(out, &s); err != nil {
		g.t.Fatalf("headgate status: %v in %q", err, out)
	}
	return s, code
}

// secret makes a TLS Secret for a host.
func secret(t *testing.T, namespace, name, host string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: %s, namespace: %s}
data: {tls.crt: %s, tls.key: %s}
`, name, namespace, text("CERTIFICATE", der), text("PRIVATE KEY", keyDER))
}

const site = `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: edge}
spec: {controller: headgate.io/ingress}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: "headgate.test/echo:1", ports: [{containerPort: 8080}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
`

func ingress(name, host, tls string) string {
	section := ""
	if tls != "" {
		section = fmt.Sprintf("\n  tls: [{hosts: [%s], secretName: %s}]", host, tls)
	}
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: %s, namespace: shop}
spec:
  ingressClassName: edge%s
  rules:
  - host: %s
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}
`, name, section, host)
}

func TestFromARealClusterToAServedRequest(t *testing.T) {
	product.LookAt(t)
	cluster := harness.Start(t, harness.WithPods())
	rbac, err := os.ReadFile(filepath.Join("..", "..", "..", "packaging", "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	cluster.Apply(t, string(rbac))
	cluster.Apply(t, site+ingress("web", "shop.test", ""))
	g := start(t, cluster.ServiceAccountKubeconfig(t, "headgate-system", "headgate"))

	g.answers("http://shop.test/", http.StatusOK)
	g.answers("http://other.test/", http.StatusNotFound)
	pods := map[string]bool{}
	harness.Eventually(t, soon, func() error {
		a, err := g.get("http://shop.test/cart?x=1")
		if err != nil {
			return err
		}
		if pods[a.echo.Pod] = true; len(pods) < 2 {
			return fmt.Errorf("only %v answered", pods)
		}
		if a.echo.URI != "/cart?x=1" || a.echo.Host != "shop.test" {
			return fmt.Errorf("the pod was asked %+v", a.echo)
		}
		return nil
	})

	t.Run("the cluster is told the addresses", func(t *testing.T) {
		harness.Eventually(t, soon, func() error {
			o, err := cluster.Client.NetworkingV1().Ingresses("shop").Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if l := o.Status.LoadBalancer.Ingress; len(l) != 2 {
				return fmt.Errorf("status %v", l)
			}
			return nil
		})
	})
	t.Run("new hosts and certificates need no reload", func(t *testing.T) {
		cluster.Apply(t, secret(t, "shop", "tls", "tls.test"))
		cluster.Apply(t, ingress("tls", "tls.test", "tls"))
		g.answers("https://tls.test/", http.StatusOK)
		if a, err := g.get("https://tls.test/"); err != nil || a.leaf != "tls.test" {
			t.Errorf("certificate %q, %v", a.leaf, err)
		}
		if a, err := g.get("http://tls.test/x"); err != nil || a.status != http.StatusPermanentRedirect || a.location != "https://tls.test/x" {
			t.Errorf("plain http: %+v, %v", a, err)
		}
		s, _ := g.status()
		if reloads, ok := s["reloads"].(map[string]any); !ok || len(reloads) != 1 || reloads["first-start"] != 1.0 {
			t.Errorf("reloads %v", s["reloads"])
		}
	})
	t.Run("a problem becomes an Event", func(t *testing.T) {
		broken := strings.ReplaceAll(ingress("broken", "broken.test", ""), "service: {name: web,", "service: {name: nobody,")
		cluster.Apply(t, broken)
		g.answers("http://broken.test/", http.StatusServiceUnavailable)
		harness.Eventually(t, soon, func() error {
			list, err := cluster.Client.EventsV1().Events("shop").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, e := range list.Items {
				if e.Regarding.Name == "broken" && e.Reason == "BackendNotFound" {
					return nil
				}
			}
			return fmt.Errorf("no such Event among %d", len(list.Items))
		})
	})
	t.Run("an outage of the API changes nothing for traffic", func(t *testing.T) {
		cluster.Kill(t)
		harness.Eventually(t, soon, func() error {
			s, code := g.status()
			source, _ := s["source"].(map[string]any)
			if code != 1 || source["healthy"] != false {
				return fmt.Errorf("exit code %d, source %v", code, source)
			}
			return nil
		})
		g.answers("http://shop.test/", http.StatusOK)
		g.answers("https://tls.test/", http.StatusOK)
		cluster.Resume(t)
		cluster.Apply(t, ingress("late", "late.test", ""))
		g.answers("http://late.test/", http.StatusOK)
		harness.Eventually(t, soon, func() error {
			if s, code := g.status(); code != 0 {
				return fmt.Errorf("exit code %d: %v, %v", code, s["error"], s["source"])
			}
			return nil
		})
	})
}
