package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// pki names the key files of one cluster. The authority's own key is not kept.
type pki struct {
	caCert                  string
	serverCert, serverKey   string
	adminCert, adminKey     string
	kubeletCert, kubeletKey string
	serviceAccountKey       string
}

// loadOrCreatePKI makes keys and certificates valid for a year, or names those that an earlier start left in dir.
func loadOrCreatePKI(dir string) (pki, error) {
	p := pki{
		caCert:     filepath.Join(dir, "ca.crt"),
		serverCert: filepath.Join(dir, "server.crt"), serverKey: filepath.Join(dir, "server.key"),
		adminCert: filepath.Join(dir, "admin.crt"), adminKey: filepath.Join(dir, "admin.key"),
		kubeletCert: filepath.Join(dir, "kubelet-client.crt"), kubeletKey: filepath.Join(dir, "kubelet-client.key"),
		serviceAccountKey: filepath.Join(dir, "service-account.key"),
	}
	// ca.crt is written last: where it stands, the rest is complete.
	if _, err := os.Stat(p.caCert); err == nil {
		return p, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return pki{}, err
	}
	return p, p.create()
}

func (p pki) create() error {
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	server := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if err := ca.issue(server, p.serverCert, p.serverKey); err != nil {
		return err
	}
	if err := ca.issue(adminTemplate("testcluster-admin"), p.adminCert, p.adminKey); err != nil {
		return err
	}
	if err := ca.issue(adminTemplate("kube-apiserver-kubelet-client"), p.kubeletCert, p.kubeletKey); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := writeKey(p.serviceAccountKey, key); err != nil {
		return err
	}
	return writePEM(p.caCert, "CERTIFICATE", ca.cert.Raw)
}

func adminTemplate(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority() (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "testcluster-ca"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	if err := stamp(template); err != nil {
		return authority{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return authority{}, err
	}
	cert, err := x509.ParseCertificate(der)
	return authority{cert: cert, key: key}, err
}

func (a authority) issue(template *x509.Certificate, certPath, keyPath string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if err := stamp(template); err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	if err := writeKey(keyPath, key); err != nil {
		return err
	}
	return writePEM(certPath, "CERTIFICATE", der)
}

// stamp gives the certificate a serial number and a validity that forgives a clock one hour off.
func stamp(c *x509.Certificate) (err error) {
	c.NotBefore = time.Now().Add(-time.Hour)
	c.NotAfter = c.NotBefore.AddDate(1, 0, 0)
	c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return err
}

// writeKey uses the older encoding: the API server derives a public key from this one, not from PKCS 8.
func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// writeKubeconfig writes admin credentials, self-contained so that the file can be copied.
func writeKubeconfig(path, url string, p pki) error {
	const name = "testcluster"
	cluster := &clientcmdapi.Cluster{Server: url}
	user := &clientcmdapi.AuthInfo{}
	for _, f := range []struct {
		from string
		to   *[]byte
	}{
		{p.caCert, &cluster.CertificateAuthorityData},
		{p.adminCert, &user.ClientCertificateData},
		{p.adminKey, &user.ClientKeyData},
	} {
		b, err := os.ReadFile(f.from)
		if err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		*f.to = b
	}
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: user},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, path)
}
