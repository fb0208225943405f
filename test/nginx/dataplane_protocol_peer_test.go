package nginx_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/fcgi"
	"net/netip"
	"sync"
	"testing"
	"time"

	"headgate/gateway/model"
)

// dpCA is a certificate authority of a test.
type dpCA struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func dpNewCA(t *testing.T, name string) *dpCA {
	t.Helper()
	ca := &dpCA{t: t}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	ca.cert, ca.key = ca.sign(template, nil, nil)
	ca.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
	return ca
}

// sign makes a certificate; a nil parent signs itself.
func (ca *dpCA) sign(template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	ca.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		ca.t.Fatal(err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		ca.t.Fatal(err)
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		ca.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		ca.t.Fatal(err)
	}
	return cert, key
}

// issue makes a certificate for a name, as PEM.
func (ca *dpCA) issue(name string) (certificate, key []byte) {
	ca.t.Helper()
	cert, private := ca.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}}, ca.cert, ca.key)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		ca.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (ca *dpCA) keyPair(name string) tls.Certificate {
	ca.t.Helper()
	pair, err := tls.X509KeyPair(ca.issue(name))
	if err != nil {
		ca.t.Fatal(err)
	}
	return pair
}

func (ca *dpCA) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// dpCall is one request as a peer saw it, with the connection that it came on.
type dpCall struct {
	conn                   net.Conn
	proto, sni, clientName string
	path                   string
}

// dpPeer is a peer that remembers on which connection each request came.
type dpPeer struct {
	dpBackend
	mu    sync.Mutex
	calls []dpCall
}

type dpConnKey struct{}

// dpNewPeer serves http (HTTP/1 and h2c), or https (HTTP/1 and HTTP/2) where config is not nil.
func dpNewPeer(t *testing.T, config *tls.Config, handler http.HandlerFunc) *dpPeer {
	t.Helper()
	p := &dpPeer{dpBackend: dpBackend{name: "peer"}}
	if handler == nil {
		handler = p.ServeHTTP
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = netip.MustParseAddrPort(l.Addr().String())
	server := &http.Server{
		Protocols: new(http.Protocols), TLSConfig: config, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, dpConnKey{}, c) },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p.note(r)
			handler(w, r)
		}),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(config != nil)
	server.Protocols.SetUnencryptedHTTP2(config == nil)
	go func() {
		if config != nil {
			_ = server.ServeTLS(l, "", "")
		} else {
			_ = server.Serve(l)
		}
	}()
	t.Cleanup(func() { _ = server.Close() })
	return p
}

func (p *dpPeer) note(r *http.Request) {
	c := dpCall{conn: r.Context().Value(dpConnKey{}).(net.Conn), proto: r.Proto, path: r.URL.Path}
	if r.TLS != nil {
		c.sni = r.TLS.ServerName
		if len(r.TLS.PeerCertificates) > 0 {
			c.clientName = r.TLS.PeerCertificates[0].Subject.CommonName
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, c)
}

func (p *dpPeer) seen() []dpCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]dpCall(nil), p.calls...)
}

// dpNewFastCGI serves FastCGI and counts connections.
func dpNewFastCGI(t *testing.T, handler http.Handler) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = fcgi.Serve(l, handler) }()
	t.Cleanup(func() { _ = l.Close() })
	return netip.MustParseAddrPort(l.Addr().String())
}

// dpProtocolRoute is a route of a profile.
func dpProtocolRoute(path string, upstream model.UpstreamID, p model.Profile) *model.Route {
	r := dpRoute(model.PathPrefix, path, upstream)
	r.Profile = p
	return r
}

// load makes nginx run the model: reload, and push.
func (p *dpProxy) load() {
	p.t.Helper()
	var old []int
	p.eventually("all workers are there", func() error {
		// One that is missed would serve on without the new profiles.
		if old = p.workerPIDs(); len(old) != p.model.Settings.WorkerProcesses {
			return fmt.Errorf("%d workers", len(old))
		}
		return nil
	})
	p.reload()
	p.settle(old)
	p.push()
}

// dpLoad starts a proxy that runs the model.
func dpLoad(t *testing.T, settings model.Settings, m model.Model) *dpProxy {
	t.Helper()
	p := dpStart(t, settings)
	m.Settings, m.Listeners = settings, p.model.Listeners
	p.model = &m
	p.load()
	return p
}

// dpAddressed is an upstream of one address.
func dpAddressed(id model.UpstreamID, addresses ...netip.AddrPort) *model.Upstream {
	u := &model.Upstream{ID: id, Algorithm: model.RoundRobin}
	for _, a := range addresses {
		u.Peers = append(u.Peers, model.Peer{Address: a, Weight: 1})
	}
	return u
}
