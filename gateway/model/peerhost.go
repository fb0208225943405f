package model

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrPeerHost is what every error of ParsePeerHost wraps.
var ErrPeerHost = errors.New("not a host for peers")

// ParsePeerHost reads a Host header that the proxy sends (RFC 9110 section 7.2): a name of letters, digits, "-", "_" and ".",
// or an IPv4 address, with or without ":" and a port from 1 to 65535. It gives it as it was: peers may compare it byte by
// byte. Every error wraps ErrPeerHost and says what to write instead.
func ParsePeerHost(s string) (string, error) {
	name, port, hasPort := strings.Cut(s, ":")
	if n, err := strconv.ParseUint(port, 10, 16); hasPort && (err != nil || n == 0) {
		return "", fmt.Errorf("%w: %.40q is no port; write 1 to 65535 behind the \":\"", ErrPeerHost, port)
	}
	switch {
	case name == "":
		return "", fmt.Errorf("%w: the name is empty; write one such as shop.internal", ErrPeerHost)
	case len(s) > maxHostNameBytes:
		return "", fmt.Errorf("%w: %d bytes long, write at most %d", ErrPeerHost, len(s), maxHostNameBytes)
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" {
			return "", fmt.Errorf("%w: %.80q: there is nothing before or behind a dot; write a name such as shop.internal", ErrPeerHost, s)
		}
	}
	for i := range len(name) {
		c := name[i]
		if c != '-' && c != '_' && c != '.' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return "", fmt.Errorf("%w: %.80q holds %q; write letters, digits, \".\", \"-\" and \"_\" only", ErrPeerHost, s, name[i:i+1])
		}
	}
	return s, nil
}
