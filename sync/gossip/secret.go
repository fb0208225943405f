package gossip

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
)

const secretBytes = 32

// Secret is what the hosts of a cluster share. No key is the secret itself: each use derives its own. It prints as
// [redacted]. The zero value is no secret.
type Secret struct{ text string }

const redacted = "[redacted]"

// NewSecret draws one.
func NewSecret() Secret {
	var b [secretBytes]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return Secret{string(b[:])}
}

// ParseSecret reads what Reveal wrote: 32 bytes in standard base64.
func ParseSecret(text string) (Secret, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != secretBytes {
		return Secret{}, errors.New("no secret: write 32 bytes in base64, as 'headgate gossip genkey' prints them")
	}
	return Secret{string(b)}, nil
}

// Reveal is the secret as text, for a file that only root and the daemon can read.
func (s Secret) Reveal() string { return base64.StdEncoding.EncodeToString([]byte(s.text)) }

// IsZero says whether there is no secret.
func (s Secret) IsZero() bool { return s.text == "" }

// Key derives 32 bytes for a use by HKDF-SHA256 (RFC 5869) with the label as info: "gossip", "heartbeat".
func (s Secret) Key(label string) []byte { return s.derive(nil, label) }

func (s Secret) derive(salt []byte, label string) []byte {
	key, err := hkdf.Key(sha256.New, []byte(s.text), salt, label, sha256.Size)
	if err != nil {
		panic(err) // only for more than 255 blocks
	}
	return key
}

// ID names the secret without telling anything about it: eight hexadecimal digits. "" for none.
func (s Secret) ID() string {
	if s.IsZero() {
		return ""
	}
	return hex.EncodeToString(s.Key("id")[:4])
}

// String implements fmt.Stringer.
func (Secret) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (Secret) GoString() string { return redacted }

// Format implements fmt.Formatter: no verb shows the bytes.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// ReadSecretFile reads the secrets of a file, one a line, the first in use and the others accepted; empty lines and
// those that begin with # do not count, nor do the notes of a keyring file. The file must be closed to other users: mode 0600 or 0640.
func ReadSecretFile(path string) ([]Secret, error) {
	b, err := readClosed(path)
	if err != nil {
		return nil, err
	}
	ring, err := parseKeyring(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return ring.Secrets, nil
}

// maxFile bounds what is read of a file that may be anything.
const maxFile = 64 << 10

func readClosed(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the gossip secret: %w", err)
	}
	switch mode := info.Mode(); {
	case !mode.IsRegular():
		return nil, fmt.Errorf("read the gossip secret: %s is no regular file", path)
	case mode.Perm()&^0o640 != 0:
		return nil, fmt.Errorf("read the gossip secret: %s has mode %04o, so that others can read or change it: run chmod 0640 %s", path, mode.Perm(), path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("read the gossip secret: %s has %d bytes: that is no file of secrets", path, info.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the gossip secret: %w", err)
	}
	return b, nil
}

// WriteSecretFile writes a new file with the secret, mode 0600. One that exists is an error: it may hold the only copy.
func WriteSecretFile(path string, s Secret) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the gossip secret: %w", err)
	}
	_, err = f.WriteString(secretFileHead + s.Reveal() + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write the gossip secret: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}

const secretFileHead = "# The secret of headgate's hosts. Copy this file to each of them; mode 0600 or 0640.\n"

func ids(secrets []Secret) []string {
	list := make([]string, 0, len(secrets))
	for _, s := range secrets {
		list = append(list, s.ID())
	}
	return list
}

func idList(secrets []Secret) string { return strings.Join(ids(secrets), ",") }
