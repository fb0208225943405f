package model

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ErrCiphers is what every error of ParseCiphers wraps.
var ErrCiphers = errors.New("not an OpenSSL cipher list")

// maxCiphersBytes is far above any list that makes sense, and far below the 4 KiB that nginx reads of one word.
const maxCiphersBytes = 2048

// cipherWord is one word of a cipher list (openssl-ciphers(1), CIPHER LIST FORMAT): a suite or a set of them, joined
// by "+", with what is done to it in front; or a command. It holds nothing that is syntax to nginx.
var cipherWord = regexp.MustCompile(`^(?:[!+-]?[A-Za-z0-9](?:[A-Za-z0-9_.-]*(?:\+[A-Za-z0-9][A-Za-z0-9_.-]*)*)|@STRENGTH|@SECLEVEL=[0-5])$`)

// ParseCiphers reads an OpenSSL cipher list: words between colons, such as "HIGH:!aNULL" or
// "ECDHE+AESGCM:!MD5". It gives the list as it was. Whether OpenSSL knows a word, only nginx can tell.
// Every error wraps ErrCiphers and says what to write instead.
func ParseCiphers(s string) (string, error) {
	if s == "" {
		return "", fmt.Errorf("%w: it is empty; write DEFAULT or leave it out", ErrCiphers)
	}
	if len(s) > maxCiphersBytes {
		return "", fmt.Errorf("%w: %d bytes long, write at most %d", ErrCiphers, len(s), maxCiphersBytes)
	}
	for word := range strings.SplitSeq(s, ":") {
		if !cipherWord.MatchString(word) {
			return "", fmt.Errorf("%w: %.40q is no word of one; write words of letters, digits, \"-\", \"_\" and \"+\" with \":\" between them, "+
				"such as HIGH:!aNULL", ErrCiphers, word)
		}
	}
	return s, nil
}
