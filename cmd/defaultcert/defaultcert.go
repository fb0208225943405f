// Package defaultcert keeps the certificate that is shown for names that have none of their own: made once,
// self-signed, kept in the state directory, so that clients which pinned it and monitoring that counts its
// days see the same one after a restart. It never replaces a pair that is whole; cmd/headgate runs it at
// the start.
package defaultcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
)

// CommonName is what the generated certificate says about itself.
const CommonName = "headgate default certificate"

// lifetime of the generated certificate, in years.
const lifetime = 10

// Files are the paths of a PEM pair.
type Files struct {
	Certificate, Key string
	NotAfter         time.Time // when the certificate expires
}

// Ensure gives the pair in stateDir and makes it when it is missing or half of it is. A pair that does not
// fit together is an error: somebody put it there, and it is not ours to overwrite. An expired one is made
// anew. now is the time of the call.
func Ensure(stateDir string, now time.Time) (Files, error) {
	files := Files{Certificate: filepath.Join(stateDir, "default.crt"), Key: filepath.Join(stateDir, "default.key")}
	pair, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return generate(files, now)
	case err != nil:
		return Files{}, fmt.Errorf("read the default certificate: %w; remove %s and %s to get a new pair", err, files.Certificate, files.Key)
	case now.After(pair.Leaf.NotAfter) && pair.Leaf.Subject.CommonName == CommonName:
		return generate(files, now)
	}
	files.NotAfter = pair.Leaf.NotAfter
	return files, nil
}

// generate writes the key first: a certificate without its key is then never seen as a whole pair.
func generate(files Files, now time.Time) (Files, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Files{}, fmt.Errorf("make the key of the default certificate: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return Files{}, fmt.Errorf("make the serial number of the default certificate: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: CommonName},
		// A host whose clock is a little behind accepts it, too.
		NotBefore:   now.Add(-time.Hour),
		NotAfter:    now.AddDate(lifetime, 0, 0),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"headgate.invalid"},
		// Nobody shall be able to sign with it.
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return Files{}, fmt.Errorf("make the default certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Files{}, fmt.Errorf("encode the key of the default certificate: %w", err)
	}
	if err := writePEM(files.Key, "PRIVATE KEY", keyDER, 0o640); err != nil {
		return Files{}, err
	}
	if err := writePEM(files.Certificate, "CERTIFICATE", der, 0o644); err != nil {
		return Files{}, err
	}
	files.NotAfter = template.NotAfter
	return files, nil
}

func writePEM(path, kind string, der []byte, mode fs.FileMode) error {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := renameio.WriteFile(path, text, mode, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return fmt.Errorf("protect %s: %w", path, err)
	}
	return nil
}
