package gossip

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
)

const (
	maxSecrets = 4
	maxRetired = 16
)

// keyring is the secrets that are valid. The file of it has a secret a line, then notes:
//
//	turn N              how often another secret was taken in use: of two keyrings the higher is the newer
//	seed ID,ID          the secrets of the configuration that it was made from
//	retired ID TIME     a secret that is valid no more (RFC 3339)
type keyring struct {
	Secrets []Secret // the first is used, all are accepted
	Retired []retiredKey
	Seed    string
	Turn    uint64
}

type retiredKey struct {
	ID string
	At time.Time
}

const keyringHead = "# headgate's gossip keyring, kept by the daemon: the first secret is in use, the others are accepted.\n"

func (k keyring) text() string {
	var b strings.Builder
	b.WriteString(keyringHead)
	for _, s := range k.Secrets {
		b.WriteString(s.Reveal() + "\n")
	}
	if k.Turn > 0 {
		b.WriteString("turn " + strconv.FormatUint(k.Turn, 10) + "\n")
	}
	if k.Seed != "" {
		b.WriteString("seed " + k.Seed + "\n")
	}
	for _, r := range k.Retired {
		b.WriteString("retired " + r.ID + " " + r.At.UTC().Format(time.RFC3339) + "\n")
	}
	return b.String()
}

// parseKeyring reads a file of secrets or a keyring. Errors name the line, never what stands in it.
func parseKeyring(text string) (keyring, error) {
	var k keyring
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := k.parseLine(strings.Fields(line)); err != nil {
			return keyring{}, fmt.Errorf("line %d: %w", number, err)
		}
	}
	switch {
	case len(k.Secrets) == 0:
		return keyring{}, errors.New("it holds no secret: write one with 'headgate gossip genkey'")
	case len(k.Secrets) > maxSecrets:
		return keyring{}, fmt.Errorf("it holds %d secrets: at most %d", len(k.Secrets), maxSecrets)
	}
	return k, nil
}

func (k *keyring) parseLine(words []string) error {
	switch {
	case words[0] == "turn" && len(words) == 2:
		turn, err := strconv.ParseUint(words[1], 10, 63)
		if err != nil {
			return errors.New("no number after turn")
		}
		k.Turn = turn
		return nil
	case words[0] == "seed" && len(words) == 2:
		k.Seed = words[1]
		return nil
	case words[0] == "retired" && len(words) == 3 && validID(words[1]):
		at, err := time.Parse(time.RFC3339, words[2])
		if err != nil {
			return errors.New("no time: write it as 2006-01-02T15:04:05Z")
		}
		k.retire(words[1], at)
		return nil
	case len(words) > 1:
		return errors.New("neither a secret nor a note of the daemon")
	}
	s, err := ParseSecret(words[0])
	if err != nil {
		return err
	}
	if !slices.Contains(k.Secrets, s) {
		k.Secrets = append(k.Secrets, s)
	}
	return nil
}

func validID(text string) bool {
	return len(text) == 8 && strings.Trim(text, "0123456789abcdef") == ""
}

func (k *keyring) retire(id string, at time.Time) {
	k.Retired = slices.DeleteFunc(slices.Clone(k.Retired), func(r retiredKey) bool { return r.ID == id })
	k.Retired = append(k.Retired, retiredKey{ID: id, At: at})
	k.Retired = k.Retired[max(0, len(k.Retired)-maxRetired):]
}

// keep gives the keyring with the secrets; those that fall out are retired, those that come back are not.
func (k keyring) keep(secrets []Secret, now time.Time) keyring {
	next := keyring{Secrets: secrets, Retired: slices.Clone(k.Retired), Seed: k.Seed, Turn: k.Turn}
	for _, s := range k.Secrets {
		if !slices.Contains(secrets, s) {
			next.retire(s.ID(), now)
		}
	}
	next.Retired = slices.DeleteFunc(next.Retired, func(r retiredKey) bool { _, valid := next.byID(r.ID); return valid })
	return next
}

func (k keyring) byID(id string) (Secret, bool) {
	i := slices.IndexFunc(k.Secrets, func(s Secret) bool { return s.ID() == id })
	if i < 0 {
		return Secret{}, false
	}
	return k.Secrets[i], true
}

func (k keyring) retiredAt(id string) (time.Time, bool) {
	i := slices.IndexFunc(k.Retired, func(r retiredKey) bool { return r.ID == id })
	if i < 0 {
		return time.Time{}, false
	}
	return k.Retired[i].At, true
}

// openKeyring reads the file, or makes it from the configured secrets. When those were changed by hand since, they come
// first, and what the file held is still accepted. A file that holds no keyring is put aside and told.
func openKeyring(path string, configured []Secret, log *slog.Logger) (keyring, error) {
	fresh := keyring{Secrets: configured, Seed: idList(configured)}
	if path == "" {
		return fresh, nil
	}
	b, err := readClosed(path)
	if errors.Is(err, os.ErrNotExist) {
		return fresh, writeKeyring(path, fresh)
	}
	if err != nil {
		return keyring{}, err
	}
	k, err := parseKeyring(string(b))
	switch {
	case err != nil:
		log.Error("the keyring cannot be used: it is put aside, and the configured secret is used", "path", path, "aside", path+".refused", "err", err)
		if err := os.Rename(path, path+".refused"); err != nil {
			return keyring{}, fmt.Errorf("put the keyring aside: %w", err)
		}
		return fresh, writeKeyring(path, fresh)
	case k.Seed == fresh.Seed:
		return k, nil
	}
	next := keyring{Secrets: slices.Clone(configured), Retired: k.Retired, Seed: fresh.Seed, Turn: k.Turn}
	if configured[0] != k.Secrets[0] {
		next.Turn++
		log.Warn("the configured secret was changed: it is used from now on, and the secrets of the keyring are still accepted", "path", path, "uses", configured[0].ID())
	}
	for _, s := range k.Secrets {
		if len(next.Secrets) < maxSecrets && !slices.Contains(next.Secrets, s) {
			next.Secrets = append(next.Secrets, s)
		}
	}
	return next, writeKeyring(path, next)
}

func writeKeyring(path string, k keyring) error {
	if err := renameio.WriteFile(path, []byte(k.text()), 0o600); err != nil {
		return fmt.Errorf("write the keyring: %w", err)
	}
	return nil
}
