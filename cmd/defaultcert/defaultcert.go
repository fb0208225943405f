// Package defaultcert keeps the certificate that is shown for names that have none of their own: made once,
// self-signed, kept in the state directory, so that clients which pinned it and monitoring that counts its
// days see the same one after a restart. It never replaces a pair that is whole, and throws nothing away;
// cmd/headgate runs it at the start.
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
	"strings"
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
	// Refused says why the pair that was there is not used, and where it is now; nil when there was none or it is.
	Refused error
}

// refusedSuffix ends the names of files that were set aside.
const refusedSuffix = ".refused"

// Ensure gives the pair in stateDir and makes it when there is none. Of one that is damaged, does not fit together
// or lacks a half, what is there is set aside: it may be somebody's own, and without a certificate the proxy could
// not start. An expired one of ours is made anew. now is the time of the call.
func Ensure(stateDir string, now time.Time) (Files, error) {
	files := Files{Certificate: filepath.Join(stateDir, "default.crt"), Key: filepath.Join(stateDir, "default.key")}
	pair, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
	switch {
	case err != nil:
		aside, asideErr := setAside(files.Certificate, files.Key)
		if asideErr != nil {
			return Files{}, fmt.Errorf("read the default certificate: %w; %w: remove %s and %s to get a new pair", err, asideErr, files.Certificate, files.Key)
		}
		if len(aside) > 0 {
			files.Refused = fmt.Errorf("read the default certificate: %w; set aside: %s", err, strings.Join(aside, ", "))
		}
		return generate(files, now)
	case now.After(pair.Leaf.NotAfter) && pair.Leaf.Subject.CommonName == CommonName:
		return generate(files, now)
	}
	files.NotAfter = pair.Leaf.NotAfter
	return files, nil
}

// setAside gives the new names of those files that there were.
func setAside(paths ...string) ([]string, error) {
	var aside []string
	for _, path := range paths {
		err := os.Rename(path, path+refusedSuffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return aside, fmt.Errorf("set aside: %w", err)
		}
		aside = append(aside, path+refusedSuffix)
	}
	return aside, nil
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
	if err := renameio.WriteFile(path, text, mode, renameio.IgnoreUmask(), renameio.WithTempDir(filepath.Dir(path))); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return fmt.Errorf("protect %s: %w", path, err)
	}
	return nil
}
