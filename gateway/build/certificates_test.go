package build

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

var testNow = time.Date(2026, time.July, 1, 12, 0, 0, 0, time.UTC)

// testCertificates makes Secrets of every sort: for one host, for a wildcard, expired, soon expired, broken.
func testCertificates() []*snapshot.Secret {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	day := 24 * time.Hour
	broken := tlsSecret("c", key, time.Hour, time.Hour, "a.example")
	broken.Data["tls.key"] = []byte("no key")
	return []*snapshot.Secret{
		tlsSecret("c", key, 90*day, 90*day, "a.example"),
		tlsSecret("c", key, 90*day, 90*day, "*.example"),
		tlsSecret("c", key, 90*day, -day, "a.example", "b.example"),
		tlsSecret("c", key, 90*day, day, "a.example"),
		tlsSecret("c", key, -day, 90*day, "a.example"),
		withCA(tlsSecret("c", key, 90*day, 90*day, "b.example")),
		withCA(tlsSecret("c", key, 90*day, 90*day, "c.example")),
		broken,
	}
}

// withCA adds the certificate itself as the authority of peers.
func withCA(s *snapshot.Secret) *snapshot.Secret {
	s.Data["ca.crt"] = s.Data["tls.crt"]
	return s
}

// tlsSecret makes a self-signed certificate that is valid from testNow-before to testNow+after.
func tlsSecret(name string, key crypto.Signer, before, after time.Duration, hosts ...string) *snapshot.Secret {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: hosts[0]}, DNSNames: hosts,
		NotBefore: testNow.Add(-before), NotAfter: testNow.Add(after),
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	return &snapshot.Secret{
		Meta: snapshot.Meta{Key: snapshot.Key{Namespace: "n", Name: name}},
		Type: tlsSecretType,
		Data: snapshot.SecretData{
			"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))}),
		},
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("making a test certificate: %v", err))
	}
	return v
}

func TestParseCertificateKinds(t *testing.T) {
	rsaKey := must(rsa.GenerateKey(rand.Reader, 2048))
	ecKey := must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	pkcs1 := tlsSecret("rsa", rsaKey, time.Hour, time.Hour, "a.example")
	pkcs1.Data["tls.key"] = pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey)})
	sec1 := tlsSecret("ec", ecKey, time.Hour, time.Hour, "a.example")
	sec1.Data["tls.key"] = append(
		[]byte("-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: must(x509.MarshalECPrivateKey(ecKey))})...)
	for _, s := range []*snapshot.Secret{pkcs1, sec1, tlsSecret("p8", rsaKey, time.Hour, time.Hour, "a.example")} {
		c, err := parseCertificate(s)
		if err != nil {
			t.Errorf("%s: %v", s.Name, err)
			continue
		}
		if _, err := x509.ParsePKCS8PrivateKey(c.model.Key); err != nil {
			t.Errorf("%s: the key in the model is not PKCS #8: %v", s.Name, err)
		}
	}
}

func TestParseCertificateRefuses(t *testing.T) {
	ecKey := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	weak := tlsSecret("weak", must(rsa.GenerateKey(rand.Reader, 1024)), time.Hour, time.Hour, "a.example")
	many := tlsSecret("many", ecKey, time.Hour, time.Hour, "a.example")
	many.Data["tls.crt"] = []byte(strings.Repeat(string(many.Data["tls.crt"]), maxChain+1))
	keyInChain := tlsSecret("key", ecKey, time.Hour, time.Hour, "a.example")
	keyInChain.Data["tls.crt"] = append(keyInChain.Data["tls.crt"], keyInChain.Data["tls.key"]...)
	torn := tlsSecret("torn", ecKey, time.Hour, time.Hour, "a.example")
	torn.Data["tls.key"] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("hunter2")})
	for want, s := range map[string]*snapshot.Secret{
		"1024 bits":             weak,
		"more than 16":          many,
		"write only certificat": keyInChain,
		"cannot be read":        torn,
	} {
		_, err := parseCertificate(s)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", s.Name, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error quotes the key: %v", s.Name, err)
		}
	}
}

func TestCovers(t *testing.T) {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	c := must(parseCertificate(tlsSecret("c", key, time.Hour, time.Hour, "a.example", "*.B.example")))
	for name, want := range map[model.HostName]bool{
		"a.example": true, "b.example": false, "x.b.example": true, "x.y.b.example": false,
		"*.b.example": true, "*.a.example": false, "*.example": false, "": false,
	} {
		if got := c.covers(name); got != want {
			t.Errorf("covers(%q) = %v", name, got)
		}
	}
}

func FuzzParseCertificate(f *testing.F) {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	s := tlsSecret("c", key, time.Hour, time.Hour, "a.example")
	f.Add(s.Data["tls.crt"], s.Data["tls.key"])
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
	f.Add([]byte(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, crt, key []byte) {
		c, err := parseCertificate(&snapshot.Secret{Type: tlsSecretType, Data: snapshot.SecretData{"tls.crt": crt, "tls.key": key}})
		if err == nil && (len(c.model.Chain) == 0 || len(c.model.Key) == 0) {
			t.Error("a certificate without chain or key was accepted")
		}
	})
}
