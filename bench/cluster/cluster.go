// Package cluster is the real API server of a benchmark (bin/testcluster), with the objects that benchmarks
// make there. It measures nothing.
package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"headgate/bench/stage"
)

const (
	// Namespace is where everything is made.
	Namespace = metav1.NamespaceDefault
	// BackendPort is the port of every endpoint.
	BackendPort = 8080
	// PathsPerIngress is an Ingress of the middling kind: one host, five paths.
	PathsPerIngress = 5

	writers    = 8 // requests at a time
	apiTimeout = time.Minute
)

// Cluster is the API server with a client of its own, which has no rate limit.
type Cluster struct {
	Kubeconfig string
	Client     kubernetes.Interface
	pid        int
}

// Stop stops the API server where it stands (SIGSTOP): it accepts connections and answers nobody.
func (c *Cluster) Stop() error { return c.signal(syscall.SIGSTOP) }

// Continue lets it go on.
func (c *Cluster) Continue() error { return c.signal(syscall.SIGCONT) }

func (c *Cluster) signal(sig syscall.Signal) error {
	if err := syscall.Kill(c.pid, sig); err != nil {
		return fmt.Errorf("signal the API server: %w", err)
	}
	return nil
}

// Config says what to start.
type Config struct {
	// Binary is bin/testcluster; Flags are more of its flags.
	Binary string
	Flags  []string
	// Rank of the API server: stage.Elsewhere, as on real edge hosts, for what is measured beside it; stage.Beside, the
	// default, for what is measured through it.
	Rank stage.Rank
}

// Start starts etcd and kube-apiserver in one process and makes the IngressClass headgate. It ends with the stage.
func Start(ctx context.Context, s *stage.Stage, config Config) (*Cluster, error) {
	dir, err := s.Folder("cluster")
	if err != nil {
		return nil, err
	}
	argv := append([]string{config.Binary, "--dir", dir, "--ephemeral"}, config.Flags...)
	p, err := s.StartAt(ctx, config.Rank, "testcluster", nil, argv...)
	if err != nil {
		return nil, err
	}
	c := &Cluster{pid: p.PID()}
	if err := p.Await(ctx, apiTimeout, func(context.Context) error {
		said, _ := p.Said("READY ")
		var url string
		if _, err := fmt.Sscan(said, &url, &c.Kubeconfig); err != nil {
			return fmt.Errorf("it has not said READY but %q", said)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	rest, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	rest.QPS = -1
	if c.Client, err = kubernetes.NewForConfig(rest); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	class := &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: "headgate"}, Spec: networkingv1.IngressClassSpec{Controller: "headgate.io/ingress"},
	}
	if _, err := c.Client.NetworkingV1().IngressClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create the class: %w", err)
	}
	return c, nil
}

// Each calls f for 0 to n-1, some at a time, and gives the first error.
func Each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return f(ctx, i) })
	}
	return g.Wait() //nolint:wrapcheck // f did
}

// Service creates a Service and its EndpointSlice. The API server refuses endpoints in 127.0.0.0/8; those of
// 10.244.0.0/16 are local to the namespace of the stage.
func (c *Cluster) Service(ctx context.Context, name string, peers ...string) error {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	if _, err := c.Client.CoreV1().Services(Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create service %s: %w", name, err)
	}
	if _, err := c.Client.DiscoveryV1().EndpointSlices(Namespace).Create(ctx, slice(name, peers...), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the endpoints of %s: %w", name, err)
	}
	return nil
}

// Point makes peers the endpoints of a service.
func (c *Cluster) Point(ctx context.Context, service string, peers ...string) error {
	if _, err := c.Client.DiscoveryV1().EndpointSlices(Namespace).Update(ctx, slice(service, peers...), metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update the endpoints of %s: %w", service, err)
	}
	return nil
}

// CreateUnwatched creates a ConfigMap that no gateway watches, for WriteUnwatched.
func (c *Cluster) CreateUnwatched(ctx context.Context) error {
	if _, err := c.Client.CoreV1().ConfigMaps(Namespace).Create(ctx, unwatched("0"), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the config map that nobody watches: %w", err)
	}
	return nil
}

// WriteUnwatched is a write that costs the API server what Point does, and a gateway nothing.
func (c *Cluster) WriteUnwatched(ctx context.Context, n int) error {
	if _, err := c.Client.CoreV1().ConfigMaps(Namespace).Update(ctx, unwatched(strconv.Itoa(n)), metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update the config map that nobody watches: %w", err)
	}
	return nil
}

func unwatched(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "unwatched"}, Data: map[string]string{"text": text}}
}

func slice(service string, peers ...string) *discoveryv1.EndpointSlice {
	name, port, protocol := "http", int32(BackendPort), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	for _, address := range peers {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return s
}

// Create creates an Ingress.
func (c *Cluster) Create(ctx context.Context, i *networkingv1.Ingress) error {
	if _, err := c.Client.NetworkingV1().Ingresses(Namespace).Create(ctx, i, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create ingress %s: %w", i.Name, err)
	}
	return nil
}

// Remove deletes an Ingress.
func (c *Cluster) Remove(ctx context.Context, name string) error {
	if err := c.Client.NetworkingV1().Ingresses(Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete ingress %s: %w", name, err)
	}
	return nil
}

// Ingress is one host, NAME.test, with some paths to one service.
func Ingress(name, service string, paths ...string) *networkingv1.Ingress {
	class, prefix := "headgate", networkingv1.PathTypePrefix
	rule := &networkingv1.HTTPIngressRuleValue{}
	for _, path := range paths {
		rule.Paths = append(rule.Paths, networkingv1.HTTPIngressPath{
			Path: path, PathType: &prefix,
			Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
				Name: service, Port: networkingv1.ServiceBackendPort{Number: 80},
			}},
		})
	}
	return &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.IngressSpec{
			IngressClassName: &class,
			Rules:            []networkingv1.IngressRule{{Host: name + ".test", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: rule}}},
		},
	}
}

// FivePaths are the paths of an Ingress of the middling kind.
func FivePaths() []string { return []string{"/", "/api", "/static", "/login", "/api/v2"} }

// Peer is the n-th endpoint address, 0 ≤ n < 50,000; the first is 10.244.0.1.
func Peer(n int) string {
	const inThird = 250
	return fmt.Sprintf("10.244.%d.%d", n/inThird, n%inThird+1)
}

// ServeBackends makes every Peer answer with its own address, until
// ctx ends; g waits for the end.
func ServeBackends(ctx context.Context, g *errgroup.Group) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+strconv.Itoa(BackendPort))
	if err != nil {
		return fmt.Errorf("listen for the backends: %w", err)
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			own, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
			host, _, _ := net.SplitHostPort(own.String()) // an address of the server's own
			_, _ = w.Write([]byte(host))                  // a client that went away needs no answer
		}),
	}
	g.Go(func() error {
		_ = server.Serve(l) // ends with Close
		return nil
	})
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return nil
}
