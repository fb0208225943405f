package build

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// The limits of a TLS Secret. The longest chains in use have four certificates of 2 KiB.
const (
	maxChainBytes = 128 << 10
	maxKeyBytes   = 16 << 10 // an RSA key of 16384 bits, the most that OpenSSL takes
	maxChain      = 16
	minRSABits    = 2048 // OpenSSL at its usual security level 2 refuses less
)

const tlsSecretType = "kubernetes.io/tls"

// certificate is what a TLS Secret holds. Of the parsed leaf only this is kept: at 5,000 certificates the rest takes 8 MB.
type certificate struct {
	model *model.Certificate
	names []string // whom it is made for, as it says it
	// unnamed tells that it is made for IP addresses alone; names is the common name then, which does not count.
	unnamed    bool
	begin, end time.Time
}

// parseCertificate reads a TLS Secret. The error names the key of the Secret and what to write, and never
// holds any of its bytes.
func parseCertificate(s *snapshot.Secret) (*certificate, error) {
	if s.Type != tlsSecretType {
		return nil, fmt.Errorf("the Secret has type %q; write type %s", s.Type, tlsSecretType)
	}
	chain, err := parseChain(s.Data["tls.crt"])
	if err != nil {
		return nil, fmt.Errorf("tls.crt %w", err)
	}
	key, err := parseKey(s.Data["tls.key"])
	if err != nil {
		return nil, fmt.Errorf("tls.key %w", err)
	}
	if err := checkFit(chain, key); err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, errors.New("tls.key holds a kind of key that cannot be served; write an RSA, ECDSA or Ed25519 key")
	}
	leaf := chain[0]
	out := &certificate{names: leaf.DNSNames, begin: leaf.NotBefore, end: leaf.NotAfter, model: &model.Certificate{
		ID: certificateID(s.Key), Key: der, NotAfter: leaf.NotAfter,
	}}
	if len(out.names) == 0 {
		out.names, out.unnamed = []string{leaf.Subject.CommonName}, len(leaf.IPAddresses) > 0
	}
	for _, c := range chain {
		out.model.Chain = append(out.model.Chain, c.Raw)
	}
	return out, nil
}

func certificateID(key snapshot.Key) model.CertificateID { return model.CertificateID(key.String()) }

func parseChain(data []byte) ([]*x509.Certificate, error) {
	switch {
	case len(data) == 0:
		return nil, errors.New("is missing; write the certificate chain in PEM, the leaf first")
	case len(data) > maxChainBytes:
		return nil, fmt.Errorf("has %d bytes; write at most %d", len(data), maxChainBytes)
	}
	var chain []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a PEM block %q; write only certificates there", block.Type)
		}
		if len(chain) == maxChain {
			return nil, fmt.Errorf("holds more than %d certificates; write the leaf and its intermediates only", maxChain)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("holds a certificate that cannot be read (number %d): %w", len(chain)+1, err)
		}
		if err := checkStrength(c); err != nil {
			return nil, fmt.Errorf("holds a certificate (number %d) that OpenSSL refuses: %w", len(chain)+1, err)
		}
		chain = append(chain, c)
	}
	if len(chain) == 0 {
		return nil, errors.New("holds no PEM block CERTIFICATE; write the certificate chain in PEM, the leaf first")
	}
	return chain, nil
}

// checkStrength refuses what OpenSSL would refuse when the proxy loads it (SSL_CTX_set_security_level(3),
// level 2): the handshake would then fail instead of serving the default certificate.
func checkStrength(c *x509.Certificate) error {
	if key, ok := c.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() < minRSABits {
		return fmt.Errorf("its RSA key has %d bits; use at least %d", key.N.BitLen(), minRSABits)
	}
	if bytes.Equal(c.RawSubject, c.RawIssuer) {
		return nil // nobody checks the signature of a root
	}
	//nolint:exhaustive // the weak ones are listed; what else there is, is accepted.
	switch c.SignatureAlgorithm {
	case x509.MD2WithRSA, x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.ECDSAWithSHA1:
		return fmt.Errorf("it is signed with %s; use SHA-256 or better", c.SignatureAlgorithm)
	}
	return nil
}

func parseKey(data []byte) (crypto.Signer, error) {
	switch {
	case len(data) == 0:
		return nil, errors.New("is missing; write the private key in PEM")
	case len(data) > maxKeyBytes:
		return nil, fmt.Errorf("has %d bytes; write at most %d", len(data), maxKeyBytes)
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch {
		case block.Type == "ENCRYPTED PRIVATE KEY" || strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED"):
			return nil, errors.New("is encrypted; write it without a pass phrase")
		case strings.HasSuffix(block.Type, "PRIVATE KEY"):
			return parseKeyBlock(block)
		}
	}
	return nil, errors.New("holds no PEM block of a private key; write the private key in PEM")
}

func parseKeyBlock(block *pem.Block) (crypto.Signer, error) {
	var key any
	var err error
	switch block.Type {
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	default:
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	}
	if err != nil {
		// What the parser says could quote the key.
		return nil, fmt.Errorf("holds a PEM block %q that cannot be read; write the key as openssl wrote it", block.Type)
	}
	switch key := key.(type) {
	case *rsa.PrivateKey:
		return key, nil
	case *ecdsa.PrivateKey:
		return key, nil
	case ed25519.PrivateKey:
		return key, nil
	}
	return nil, errors.New("holds a kind of key that cannot be served; write an RSA, ECDSA or Ed25519 key")
}

// checkFit makes sure that the key belongs to the first certificate.
func checkFit(chain []*x509.Certificate, key crypto.Signer) error {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok {
		return errors.New("tls.key holds a kind of key that cannot be served; write an RSA, ECDSA or Ed25519 key")
	}
	if public.Equal(chain[0].PublicKey) {
		return nil
	}
	for _, c := range chain[1:] {
		if public.Equal(c.PublicKey) {
			return errors.New("tls.crt holds the certificate of tls.key, but not at its beginning; write the leaf first, then its intermediates")
		}
	}
	return errors.New("tls.key does not belong to the certificate in tls.crt; write the key that the certificate was made for")
}

// covers tells whether the certificate is made for a host. The common name counts only where there are no
// alternative names, as in ingress-nginx.
func (c *certificate) covers(name model.HostName) bool {
	if name == model.AnyHost || c.unnamed {
		return false
	}
	for _, n := range c.names {
		san, err := model.ParseHostName(n)
		if err != nil || san == model.AnyHost {
			continue
		}
		if san == name || (!name.Wildcard() && san.Covers(string(name))) {
			return true
		}
	}
	return false
}

// shownNames tells for whom the certificate is made, for a message.
func (c *certificate) shownNames() string {
	const most = 5
	text := strings.Join(c.names[:min(most, len(c.names))], ", ")
	if len(c.names) > most {
		text += ", …"
	}
	return shown(text)
}
