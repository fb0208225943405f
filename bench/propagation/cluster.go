package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
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
	namespace   = metav1.NamespaceDefault
	backendPort = 8080
	// pathsPerIngress is an Ingress of the middling kind: one host, five paths.
	pathsPerIngress = 5
	// services that the routes share, each with servicePeers endpoints.
	services, servicePeers = 200, 4
	writers                = 8 // requests at a time while the cluster is filled
	apiTimeout             = time.Minute
)

// cluster is the API server with a client of its own.
type cluster struct {
	kubeconfig string
	client     kubernetes.Interface
	routes     int
}

// startCluster starts etcd and kube-apiserver in one process, with what every size has: a class and services.
func startCluster(ctx context.Context, s *stage.Stage, binary string) (*cluster, error) {
	dir, err := s.Folder("cluster")
	if err != nil {
		return nil, err
	}
	p, err := s.Start(ctx, "testcluster", nil, binary, "--dir", dir, "--ephemeral")
	if err != nil {
		return nil, err
	}
	c := &cluster{}
	if err := p.Await(ctx, apiTimeout, func(context.Context) error {
		said, _ := p.Said("READY ")
		var url string
		if _, err := fmt.Sscan(said, &url, &c.kubeconfig); err != nil {
			return fmt.Errorf("it has not said READY but %q", said)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return c, c.seed(ctx)
}

func (c *cluster) seed(ctx context.Context) error {
	class := &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: "headgate"}, Spec: networkingv1.IngressClassSpec{Controller: "headgate.io/ingress"},
	}
	if _, err := c.client.NetworkingV1().IngressClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the class: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for i := range services {
		g.Go(func() error {
			var peers []string
			for p := range servicePeers {
				n := i*servicePeers + p
				peers = append(peers, fmt.Sprintf("10.244.%d.%d", 10+n/250, n%250+1))
			}
			return c.service(ctx, fmt.Sprintf("s%d", i), peers...)
		})
	}
	g.Go(func() error { return c.service(ctx, probed, peerA) })
	return g.Wait() //nolint:wrapcheck // service did
}

// service creates a Service and its EndpointSlice.
func (c *cluster) service(ctx context.Context, name string, peers ...string) error {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	if _, err := c.client.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create service %s: %w", name, err)
	}
	if _, err := c.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice(name, peers...), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the endpoints of %s: %w", name, err)
	}
	return nil
}

func slice(service string, peers ...string) *discoveryv1.EndpointSlice {
	name, port, protocol := "http", int32(backendPort), corev1.ProtocolTCP
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

// grow adds Ingresses until the cluster has that many routes. The first one leads to the probed service.
func (c *cluster) grow(ctx context.Context, routes int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for ; c.routes < routes; c.routes += pathsPerIngress {
		n := c.routes / pathsPerIngress
		service := fmt.Sprintf("s%d", n%services)
		if n == 0 {
			service = probed
		}
		g.Go(func() error {
			return c.create(ctx, ingress(fmt.Sprintf("h%d", n), service, "/", "/api", "/static", "/login", "/api/v2"))
		})
	}
	return g.Wait() //nolint:wrapcheck // create did
}

func (c *cluster) create(ctx context.Context, i *networkingv1.Ingress) error {
	if _, err := c.client.NetworkingV1().Ingresses(namespace).Create(ctx, i, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create ingress %s: %w", i.Name, err)
	}
	return nil
}

func (c *cluster) remove(ctx context.Context, name string) error {
	if err := c.client.NetworkingV1().Ingresses(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete ingress %s: %w", name, err)
	}
	return nil
}

// point makes peers the endpoints of the probed service.
func (c *cluster) point(ctx context.Context, peers ...string) error {
	if _, err := c.client.DiscoveryV1().EndpointSlices(namespace).Update(ctx, slice(probed, peers...), metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update the endpoints: %w", err)
	}
	return nil
}

// ingress is one host, NAME.test, with some paths to one service.
func ingress(name, service string, paths ...string) *networkingv1.Ingress {
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

// The probed service has one endpoint at a time: one of two backends that tell who they are.
const (
	probed = "probed"
	peerA  = "10.244.0.1"
	peerB  = "10.244.0.2"
)

// serveBackends answers with the address of the backend until ctx ends.
func serveBackends(ctx context.Context, g *errgroup.Group) error {
	for _, address := range []string{peerA, peerB} {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("%s:%d", address, backendPort))
		if err != nil {
			return fmt.Errorf("listen for backend %s: %w", address, err)
		}
		server := &http.Server{
			ReadHeaderTimeout: time.Minute,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(address)) // a client that went away needs no answer
			}),
		}
		g.Go(func() error {
			_ = server.Serve(l) // ends with Close
			return nil
		})
		context.AfterFunc(ctx, func() { _ = server.Close() })
	}
	return nil
}
