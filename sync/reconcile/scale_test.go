package reconcile

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"headgate/gateway/build"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/snapshot"
	"headgate/sync/luapush"
)

// The size that the budgets of docs/performance.md are for.
const (
	scaleIngresses           = 10_000
	scalePaths               = 5
	scaleIngressesPerService = 2
	scaleEndpointsPerService = 10
)

// sink is a control socket that acknowledges every push: the proxy's work is not what is measured.
type sink struct{ session }

func (s sink) Push(_ context.Context, p luapush.Push) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dict.revision, s.pusher = p.Revision, s.name
	return p.Revision, nil
}

// BenchmarkOneIngress has the loop follow one changed Ingress of 10,000, with the real build, encoder, plan and state log
// (budget with the source's work: 20 ms of CPU). cpu-ms/op holds the collector's work, too; live-MiB is the heap that is left after a collection.
func BenchmarkOneIngress(b *testing.B) {
	ctx := b.Context()
	w := newWorld(b)
	w.nginx.capacity = 1 << 30
	settings := model.Settings{WorkerConnections: 512, StateMemoryBytes: 1 << 30}
	w.cfg.Builder = build.New(build.Options{
		IngressClass: "headgate", Settings: settings, Listeners: w.cfg.Listeners, DefaultMaxBodyBytes: 1 << 20,
		ProfileName: nginxconf.ProfileName,
	})
	w.cfg.Settings, w.cfg.Control, w.cfg.Log = settings, sink{session{w.nginx, "me"}}, nil
	w.cfg.Applied = nil
	s := bigSite(b)
	w.source.snap, w.source.complete = s, true
	loop := New(w.cfg)
	loop.begin(ctx)
	if err := loop.run(ctx, time.Now()); err != nil {
		b.Fatal(err)
	}
	if got := len(loop.result.Model.Certificates); got != scaleIngresses/2 {
		b.Fatalf("%d certificates, problems %v", got, loop.result.Problems[:min(3, len(loop.result.Problems))])
	}
	pushes := loop.now.Pushes
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	b.ReportAllocs()
	before := processCPU(b)
	n := 0
	for ; b.Loop(); n++ {
		next := *w.source.snap
		next.Ingresses = slices.Clone(next.Ingresses)
		i := n * 7919 % scaleIngresses
		next.Ingresses[i] = bigIngress(i, fmt.Sprintf("/turn-%d", n))
		w.source.snap = &next
		if err := loop.run(ctx, time.Now()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((processCPU(b)-before).Microseconds())/1000/float64(n), "cpu-ms/op")
	b.ReportMetric(float64(memory.HeapAlloc)/(1<<20), "live-MiB")
	if got := loop.now.Pushes - pushes; got != uint64(n) { //nolint:gosec // counts up
		b.Fatalf("%d pushes for %d changes", got, n)
	}
	if err := w.log.Close(); err != nil {
		b.Fatal(err)
	}
}

func processCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// bigSite is 10,000 Ingresses of five paths over 5,000 Services of ten endpoints, every other one with a certificate.
func bigSite(b *testing.B) *snapshot.Snapshot {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	s := &snapshot.Snapshot{}
	for i := range scaleIngresses {
		s.Ingresses = append(s.Ingresses, bigIngress(i, "/"))
		if i%2 == 0 {
			s.Secrets = append(s.Secrets, bigSecret(b, i, key))
		}
		if i%scaleIngressesPerService == 0 {
			name := bigKey("s", i/scaleIngressesPerService)
			s.Services = append(s.Services, &snapshot.Service{
				Meta: snapshot.Meta{Key: name}, Type: snapshot.ServiceClusterIP,
				Ports: []snapshot.ServicePort{{Name: "http", Number: 80, Protocol: "TCP"}},
			})
			s.EndpointSlices = append(s.EndpointSlices, bigSlice(name, i))
		}
	}
	return s
}

func bigKey(kind string, i int) snapshot.Key {
	return snapshot.Key{Namespace: "site", Name: fmt.Sprintf("%s%05d", kind, i)}
}

func bigIngress(i int, lastPath string) *snapshot.Ingress {
	key := bigKey("h", i)
	host := key.Name + ".test"
	prefix := networkingv1.PathTypePrefix
	http := &networkingv1.HTTPIngressRuleValue{}
	for p := range scalePaths {
		path := fmt.Sprintf("/path-%d", p)
		if p == scalePaths-1 {
			path = lastPath
		}
		http.Paths = append(http.Paths, networkingv1.HTTPIngressPath{
			Path: path, PathType: &prefix,
			Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
				Name: bigKey("s", i/scaleIngressesPerService).Name, Port: networkingv1.ServiceBackendPort{Number: 80},
			}},
		})
	}
	in := &snapshot.Ingress{
		Meta: snapshot.Meta{Key: key, UID: "u-" + key.Name, Created: time.Unix(int64(i%977), 0)},
		Annotations: map[string]string{
			"kubernetes.io/ingress.class": "headgate", "nginx.ingress.kubernetes.io/ssl-redirect": "false",
		},
		Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{
			Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: http},
		}}},
	}
	if i%2 == 0 {
		in.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{host}, SecretName: key.Name}}
	}
	return in
}

func bigSlice(service snapshot.Key, i int) *snapshot.EndpointSlice {
	s := &snapshot.EndpointSlice{
		Meta: snapshot.Meta{Key: snapshot.Key{Namespace: service.Namespace, Name: service.Name + "-1"}}, Service: service,
		Ports: []snapshot.EndpointPort{{Name: "http", Number: 8080, Protocol: "TCP"}},
	}
	for e := range scaleEndpointsPerService {
		address := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(e + 1)}) //nolint:gosec // as intended
		s.Endpoints = append(s.Endpoints, snapshot.Endpoint{Addresses: []netip.Addr{address}, Ready: true, Serving: true})
	}
	return s
}

func bigSecret(b *testing.B, i int, key *ecdsa.PrivateKey) *snapshot.Secret {
	b.Helper()
	name := bigKey("h", i)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(i + 1)), DNSNames: []string{name.Name + ".test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		b.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		b.Fatal(err)
	}
	return &snapshot.Secret{Meta: snapshot.Meta{Key: name}, Type: "kubernetes.io/tls", Data: snapshot.SecretData{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}}
}
