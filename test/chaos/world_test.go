package chaos

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"headgate/sync/admin"
	"headgate/sync/statelog"
	"headgate/test/cluster/harness"
)

// world is a cluster with a gateway in front.
type world struct {
	*gateway
	cluster *harness.Cluster
	api     *apiProxy // between the daemon and the API server
	changes int
	present string // the manifest of the last change, "" before the first
}

// The addresses of the backends: local in the test's network namespace, and no loopback ones, which the API server refuses.
const (
	backendA = "10.244.0.1"
	backendB = "10.244.0.2"
)

// always are the requests of the load: two hosts, one of them over TLS.
func always() []target {
	return []target{{"http://plain.test/", "a"}, {"https://tls.test/", "a"}}
}

func newWorld(t *testing.T, binary string) *world {
	t.Helper()
	serveBackend(t, backendA, "a")
	serveBackend(t, backendB, "b")
	w := &world{cluster: harness.Start(t)}
	w.api = startAPIProxy(t, w.cluster)
	w.gateway = newGateway(t, binary, 8080, `
kubeconfig: "`+filepath.Join(t.TempDir(), "kubeconfig")+`"
proxy: {mode: managed, workerProcesses: 2}
publish: {addresses: [192.0.2.1]}
`)
	roles, err := os.ReadFile("../../packaging/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	w.cluster.Apply(t, string(roles))
	w.cluster.Apply(t, objects(certificate(t, "tls.test", time.Now().Add(-time.Hour))))
	w.replaceKubeconfig(w.api.kubeconfig(w.token("headgate")))
	w.start()
	w.awaitStatus("served for the first time", well)
	for _, a := range always() {
		w.serves(a)
	}
	return w
}

// objects are what every part serves.
func objects(tls string) string {
	return strings.Join([]string{`
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: headgate}
spec: {controller: headgate.io/ingress}
`, service("a", backendA), service("b", backendB), secret("tls", tls), ingress("plain", "plain.test", "a"), `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: tls}
spec:
  ingressClassName: headgate
  tls: [{hosts: [tls.test], secretName: tls}]
  rules: [{host: tls.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]
`}, "---\n")
}

func ingress(name, host, service string) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: %s}
spec:
  ingressClassName: headgate
  rules: [{host: %s, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: %s, port: {number: 80}}}}]}}]
`, name, host, service)
}

// service is one without a selector, with a slice of its own.
func service(name, address string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-slice, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: "", port: 8080, protocol: TCP}]
endpoints: [{addresses: [%[2]s], conditions: {ready: true}}]
`, name, address)
}

func secret(name, data string) string {
	return fmt.Sprintf("\napiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ntype: kubernetes.io/tls\ndata: {%s}\n", name, data)
}

// certificate gives the data of a TLS Secret, valid for a day from notBefore on.
func certificate(t *testing.T, host string, notBefore time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: notBefore, NotAfter: notBefore.Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, b []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return fmt.Sprintf("tls.crt: %s, tls.key: %s", encode("CERTIFICATE", der), encode("PRIVATE KEY", private))
}

// serveBackend answers every request with name after a few milliseconds, so that some are always in flight; a request
// to upgrade becomes a WebSocket that sends back what it gets.
func serveBackend(t *testing.T, address, name string) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "8080"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "websocket" {
			echoWebSocket(w, r)
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, name)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

// load asks for what is always there.
func (w *world) load() *load { return startLoad(w.t, w.http, w.https, always()...) }

// change makes another Ingress through the API server, and takes the one of the last change away.
func (w *world) change() {
	w.t.Helper()
	w.changes++
	before := w.present
	w.present = ingress(fmt.Sprintf("change-%d", w.changes), w.changeHost(), "b")
	w.cluster.Apply(w.t, w.present)
	if before != "" {
		w.cluster.Delete(w.t, before)
	}
}

func (w *world) changeHost() string { return fmt.Sprintf("change-%d.test", w.changes) }

// changeServed waits until the last change is served and the one before is not.
func (w *world) changeServed() {
	w.t.Helper()
	w.serves(target{"http://" + w.changeHost() + "/", "b"})
	if w.changes > 1 {
		w.awaitCode(fmt.Sprintf("http://change-%d.test/", w.changes-1), http.StatusNotFound)
	}
}

// settled makes a change and proves that it is everywhere: in the daemon, in the proxy, in every worker, on disk and in
// the cluster; and that no process is left over.
func (w *world) settled() {
	w.t.Helper()
	if w.t.Failed() {
		return
	}
	w.change()
	w.changeServed()
	s := w.awaitStatus("all is well again", well)
	w.everyWorker(s)
	w.sameOnDisk()
	w.processes(s)
}

// everyWorker asks until each worker of the newest generation has used the newest revision.
func (w *world) everyWorker(s admin.Status) {
	w.t.Helper()
	harnessEventually(w.t, patience, func() error {
		if _, err := w.answers(always()[0].url); err != nil {
			return err
		}
		now, err := w.proxyState()
		if err != nil {
			return err
		}
		if now.Revision < s.Revision.Applied || now.Generation != s.Proxy.Generation {
			return fmt.Errorf("nginx has revision %d of %s, the daemon %d of %s", now.Revision, now.Generation, s.Revision.Applied, s.Proxy.Generation)
		}
		living := w.workers()
		if len(living) != 2 {
			return fmt.Errorf("workers %v, want two", living)
		}
		for _, pid := range living {
			if err := caughtUp(now.Workers, pid, now.Revision); err != nil {
				return err
			}
		}
		return nil
	})
}

// sameOnDisk: what nginx would load after a restart is what it has.
func (w *world) sameOnDisk() {
	w.t.Helper()
	harnessEventually(w.t, patience, func() error {
		text, err := os.ReadFile(filepath.Join(w.stateDir, "state.log"))
		if err != nil {
			return err
		}
		twin := filepath.Join(w.t.TempDir(), "state.log")
		if err := os.WriteFile(twin, text, 0o600); err != nil {
			return err
		}
		log, found := statelog.Open(statelog.Config{Path: twin})
		defer func() { _ = log.Close() }()
		if found.CutBytes > 0 || found.Refused != nil {
			return fmt.Errorf("the state log is damaged: %+v", found)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		keys, err := w.control.Keys(ctx)
		if err != nil {
			return err
		}
		held, bodies := log.Held()
		if !maps.Equal(held, keys.Pointers) {
			return fmt.Errorf("on disk %v, in nginx %v", held, keys.Pointers)
		}
		if have := slices.Sorted(slices.Values(keys.Bodies)); !slices.Equal(have, slices.Sorted(maps.Keys(bodies))) {
			return fmt.Errorf("bodies on disk %v, in nginx %v", slices.Sorted(maps.Keys(bodies)), have)
		}
		return nil
	})
}

// processes: one master, which the daemon knows, its workers, and nothing that a dead one left.
func (w *world) processes(s admin.Status) {
	w.t.Helper()
	harnessEventually(w.t, patience, func() error {
		all := w.nginx()
		for _, p := range all {
			if p.master() && p.pid != s.Proxy.MasterPID || p.worker() && p.parent != s.Proxy.MasterPID {
				return fmt.Errorf("nginx processes %v, the daemon's master is %d", all, s.Proxy.MasterPID)
			}
		}
		return nil
	})
}

// published: the address stands in the status of the last change's Ingress.
func (w *world) published() {
	w.t.Helper()
	harnessEventually(w.t, patience, func() error {
		ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
		defer cancel()
		in, err := w.cluster.Client.NetworkingV1().Ingresses("default").Get(ctx, fmt.Sprintf("change-%d", w.changes), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if list := in.Status.LoadBalancer.Ingress; len(list) != 1 || list[0].IP != "192.0.2.1" {
			return fmt.Errorf("status of %s: %v", in.Name, list)
		}
		return nil
	})
}

// token is a fresh one of a ServiceAccount in headgate-system.
func (w *world) token(account string) string {
	w.t.Helper()
	return tokenIn(w.t, w.cluster.ServiceAccountKubeconfig(w.t, "headgate-system", account))
}
