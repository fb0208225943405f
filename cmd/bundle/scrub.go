package bundle

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// scrubber puts hashes in the place of secrets: of those that it was told, in every form that they are written in, and of what
// looks like one. The hashes are keyed with random bytes that nobody keeps: equal secrets are seen to be equal within one
// bundle, and not even a short password can be guessed from its hash.
type scrubber struct {
	key   [32]byte
	known []string // the longest first
}

func newScrubber() *scrubber {
	s := &scrubber{}
	_, _ = rand.Read(s.key[:]) // never fails (crypto/rand)
	return s
}

// leastSecret is the length below which a secret is not looked for: it would be found in every text. Such a one is never
// written in the first place.
const leastSecret = 6

// learn takes a secret. Each line of a longer text is one of its own: a key is sometimes wrapped anew.
func (s *scrubber) learn(secret string) {
	secret = strings.TrimSpace(secret)
	forms := []string{
		secret, base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret)),
		hex.EncodeToString([]byte(secret)), escaped(secret), strings.Trim(strconv.Quote(secret), `"`), strings.Trim(strconv.QuoteToASCII(secret), `"`),
		url.UserPassword("", secret).String()[1:], url.PathEscape(secret), url.QueryEscape(secret),
	}
	for line := range strings.Lines(secret) {
		if line = strings.TrimSpace(line); len(line) >= 16 && !strings.HasPrefix(line, "-----") {
			forms = append(forms, line)
		}
	}
	for _, form := range forms {
		if len(form) >= leastSecret && !slices.Contains(s.known, form) {
			s.known = append(s.known, form)
		}
	}
	slices.SortStableFunc(s.known, func(a, b string) int { return len(b) - len(a) })
}

// escaped is the secret as it stands in JSON.
func escaped(secret string) string {
	text, err := json.Marshal(secret)
	if err != nil {
		return secret
	}
	return strings.Trim(string(text), `"`)
}

// hash stands for a secret.
func (s *scrubber) hash(secret string) string {
	mac := hmac.New(sha256.New, s.key[:])
	_, _ = mac.Write([]byte(secret)) // never fails
	return "[secret " + hex.EncodeToString(mac.Sum(nil))[:12] + "]"
}

// What looks like a secret, whoever wrote it: private keys in PEM, also within JSON; JSON Web Tokens (RFC 7519); credentials of
// HTTP (RFC 9110 section 11.4) and in URLs; cookies; words with a value behind them.
var (
	pemKey      = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)`)
	webToken    = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]*`)
	credentials = regexp.MustCompile(`(?i)\b((?:bearer|basic|digest) +)([A-Za-z0-9+/._~=-]{8,})`)
	inURL       = regexp.MustCompile(`(://[^/@\s:"']*:)([^/@\s"']+)(@)`)
	userInURL   = regexp.MustCompile(`(://)([^/@\s:"'\[]+)(@)`) // some servers take a token for the user
	cookie      = regexp.MustCompile(`(?i)\b((?:set-)?cookie"?: *"?)([^"\r\n]{4,})`)
	valued      = regexp.MustCompile(`(?i)\b((?:pass(?:word|wd|phrase)?|api[_-]?key|client[_-]?secret|access[_-]?token|auth[_-]?token)["']?\s*[:=]\s*["']?)([^\s"',;&}]{3,})`)
	joining     = regexp.MustCompile(`headgate-join-[0-9]+\.[A-Za-z0-9_-]+\.[0-9a-f]*`)
	query       = regexp.MustCompile(`(\?)([^\s"'<>]+)`)
)

// text scrubs a file of the bundle.
func (s *scrubber) text(in []byte) []byte {
	out := string(in)
	for _, secret := range s.known {
		if strings.Contains(out, secret) {
			out = strings.ReplaceAll(out, secret, s.hash(secret))
		}
	}
	for _, whole := range []*regexp.Regexp{pemKey, webToken, joining} {
		out = whole.ReplaceAllStringFunc(out, s.hash)
	}
	for _, part := range []*regexp.Regexp{credentials, inURL, userInURL, cookie, valued} {
		out = s.second(part, out)
	}
	return []byte(out)
}

// log scrubs what clients may have written into: queries hold tokens of all kinds.
func (s *scrubber) log(in []byte) []byte { return []byte(s.second(query, string(s.text(in)))) }

// second replaces the second group of each match.
func (s *scrubber) second(r *regexp.Regexp, text string) string {
	var out bytes.Buffer
	last := 0
	for _, m := range r.FindAllStringSubmatchIndex(text, -1) {
		out.WriteString(text[last:m[4]])
		if value := text[m[4]:m[5]]; strings.HasPrefix(value, "[secret ") || strings.HasPrefix(value, "[redacted") {
			out.WriteString(value)
		} else {
			out.WriteString(s.hash(value))
		}
		last = m[5]
	}
	out.WriteString(text[last:])
	return out.String()
}
