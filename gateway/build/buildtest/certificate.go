package buildtest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"headgate/gateway/snapshot"
)

// CertificateSpec describes a TLS Secret that is made when the test runs, so that no key is committed.
// Equal specs give equal bytes: the keys are Ed25519, from the name.
type CertificateSpec struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	DNSNames          []string `json:"dnsNames"`
	CommonName        string   `json:"commonName"`
	// NotBefore and NotAfter are RFC 3339; without them the certificate is in its time at Now.
	NotBefore string `json:"notBefore"`
	NotAfter  string `json:"notAfter"`
	// Edition tells a renewed certificate from the one before.
	Edition string `json:"edition"`
	// Fault breaks the Secret: "type", "no-key", "other-key", "garbage", "encrypted", "leaf-last", "too-long".
	Fault string `json:"fault"`
	// CA adds the authority as ca.crt ("too"), leaves nothing else ("only"), or writes garbage there ("garbage").
	CA string `json:"ca"`
}

// Certificate makes the Secret. It panics on a spec that cannot be: specs come from tests only.
func Certificate(spec CertificateSpec) *snapshot.Secret {
	seed := spec.Namespace + "/" + spec.Name + "/" + spec.Edition
	caKey, key := keyFrom("ca "+seed), keyFrom(seed)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Test CA"},
		NotBefore: Now().AddDate(-5, 0, 0), NotAfter: Now().AddDate(5, 0, 0),
		IsCA: true, BasicConstraintsValid: true,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: spec.CommonName}, DNSNames: spec.DNSNames,
		NotBefore: timeOr(spec.NotBefore, Now().AddDate(0, -1, 0)),
		NotAfter:  timeOr(spec.NotAfter, Now().AddDate(0, 2, 0)),
	}
	caDER := signed(ca, ca, caKey.Public(), caKey)
	leafDER := signed(leaf, ca, key.Public(), caKey)
	chain := append(pemOf("CERTIFICATE", leafDER), pemOf("CERTIFICATE", caDER)...)
	s := &snapshot.Secret{
		Meta: snapshot.Meta{Key: snapshot.Key{Namespace: spec.Namespace, Name: spec.Name}, UID: string(spec.UID)},
		Type: "kubernetes.io/tls",
		Data: snapshot.SecretData{"tls.crt": chain, "tls.key": pemOf("PRIVATE KEY", pkcs8(key))},
	}
	breakSecret(s, spec.Fault, seed, leafDER, caDER)
	addCA(s, spec.CA, pemOf("CERTIFICATE", caDER))
	return s
}

func breakSecret(s *snapshot.Secret, fault, seed string, leafDER, caDER []byte) {
	switch fault {
	case "":
	case "type":
		s.Type = "Opaque"
	case "no-key":
		delete(s.Data, "tls.key")
	case "other-key":
		s.Data["tls.key"] = pemOf("PRIVATE KEY", pkcs8(keyFrom("other "+seed)))
	case "garbage":
		s.Data["tls.crt"] = pemOf("CERTIFICATE", []byte("no certificate"))
	case "encrypted":
		s.Data["tls.key"] = pemOf("ENCRYPTED PRIVATE KEY", []byte("no key"))
	case "leaf-last":
		s.Data["tls.crt"] = append(pemOf("CERTIFICATE", caDER), pemOf("CERTIFICATE", leafDER)...)
	case "too-long":
		s.Data["tls.crt"] = append(s.Data["tls.crt"], make([]byte, 200<<10)...)
	default:
		panic(fmt.Sprintf("unknown fault %q of a TestCertificate", fault))
	}
}

func addCA(s *snapshot.Secret, how string, ca []byte) {
	switch how {
	case "":
	case "too":
		s.Data["ca.crt"] = ca
	case "only":
		s.Type, s.Data = "Opaque", snapshot.SecretData{"ca.crt": ca}
	case "garbage":
		s.Data["ca.crt"] = pemOf("CERTIFICATE", []byte("no certificate"))
	default:
		panic(fmt.Sprintf("unknown ca %q of a TestCertificate", how))
	}
}

func keyFrom(seed string) ed25519.PrivateKey {
	sum := sha256.Sum256([]byte(seed))
	return ed25519.NewKeyFromSeed(sum[:])
}

func signed(template, parent *x509.Certificate, public, signer any) []byte {
	der, err := x509.CreateCertificate(nil, template, parent, public, signer)
	if err != nil {
		panic(fmt.Sprintf("making a test certificate: %v", err))
	}
	return der
}

func pkcs8(key any) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(fmt.Sprintf("encoding a test key: %v", err))
	}
	return der
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func timeOr(text string, fallback time.Time) time.Time {
	if text == "" {
		return fallback
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(fmt.Sprintf("reading the time of a test certificate: %v", err))
	}
	return t
}
