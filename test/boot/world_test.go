package boot

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"headgate/test/cluster/harness"
	"headgate/test/netns"
)

// backendWord is what the backend answers.
const backendWord = "the shop is open"

// objects are what is served: one host, whose backend is the test.
const objects = `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: headgate}
spec: {controller: headgate.io/ingress}
---
apiVersion: v1
kind: Service
metadata: {namespace: default, name: shop}
spec: {ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: shop-1, labels: {kubernetes.io/service-name: shop}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [` + backendAddress + `], conditions: {ready: true}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: default, name: shop}
spec:
  ingressClassName: headgate
  rules:
  - host: ` + hostName + `
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: shop, port: {number: 80}}}}]}
`

// holdPath is answered in two parts: the second one when the test says so.
const holdPath = "/hold"

// backend is the pod.
type backend struct{ release chan struct{} }

// let has n of the requests to holdPath get their second part.
func (b *backend) let(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case b.release <- struct{}{}:
		case <-time.After(bootLimit):
			t.Fatal("no request waits for its second part")
		}
	}
}

// hold answers in two parts, which together are backendWord.
func (b *backend) hold(w http.ResponseWriter, r *http.Request) {
	const first = len(backendWord) / 2
	_, _ = io.WriteString(w, backendWord[:first]) // a client that left is not told
	if err := http.NewResponseController(w).Flush(); err != nil {
		return // likewise
	}
	select {
	case <-b.release:
		_, _ = io.WriteString(w, backendWord[first:]) // likewise
	case <-r.Context().Done():
	}
}

// startBackend answers on the lab's network until the test ends.
func startBackend(t *testing.T) *backend {
	t.Helper()
	b := &backend{make(chan struct{})}
	if err := makeBridge(); err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(backendAddress, "8080"))
	if err != nil {
		t.Fatal(err)
	}
	answers := http.NewServeMux()
	answers.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, backendWord) // a client that left is not told
	})
	answers.HandleFunc(holdPath, b.hold)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: answers}
	go func() { _ = server.Serve(l) }() // until the test closes it
	t.Cleanup(func() { _ = server.Close() })
	return b
}

// startCluster gives a real API server with the objects and the shipped roles, and a kubeconfig with which the
// lab's hosts reach it.
func startCluster(t *testing.T) (cluster *harness.Cluster, kubeconfig string) {
	t.Helper()
	if err := makeBridge(); err != nil {
		t.Fatal(err)
	}
	cluster = harness.Start(t)
	roles, err := os.ReadFile("../../packaging/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cluster.Apply(t, string(roles))
	cluster.Apply(t, objects)
	config, err := clientcmd.LoadFromFile(cluster.ServiceAccountKubeconfig(t, "headgate-system", "headgate"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Clusters {
		c.Server = "https://" + forward(t, strings.TrimPrefix(c.Server, "https://"))
		c.TLSServerName = "127.0.0.1" // whom its certificate names
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return cluster, string(text)
}

// forward makes an address of loopback reachable from the lab's hosts.
func forward(t *testing.T, to string) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(serverAddress, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return // the end of the test
			}
			go relay(from, to)
		}
	}()
	return l.Addr().String()
}

func relay(from net.Conn, to string) {
	defer func() { _ = from.Close() }()
	conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", to)
	if err != nil {
		return // the API server is down, and that is what the client sees
	}
	defer func() { _ = conn.Close() }()
	go func() {
		_, _ = io.Copy(conn, from) // its end is told by closing
		_ = conn.Close()
	}()
	_, _ = io.Copy(from, conn) // likewise
}

// serves waits until the address answers, and gives the time that it took.
func serves(t *testing.T, address string, limit time.Duration) time.Duration {
	t.Helper()
	client := newClient(address)
	client.Timeout = time.Second
	defer client.CloseIdleConnections()
	from := time.Now()
	var last error
	defer func() {
		if t.Failed() {
			t.Log("last:", last)
		}
	}()
	netns.Eventually(t, limit, address+" to serve", func() bool {
		last = get(client)
		return last == nil
	})
	return time.Since(from)
}

// refuses tells whether nobody listens there.
func refuses(address, port string) error {
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(address, port), time.Second)
	if err == nil {
		return errors.Join(errors.New("somebody listens"), conn.Close())
	}
	return nil
}
