package model

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// AnyHost is the name of the host that serves every name that nobody else claims.
const AnyHost HostName = ""

// ErrHostName is what every error of ParseHostName wraps.
var ErrHostName = errors.New("not a host name")

// The limits of a DNS name in its text form (RFC 1035 section 2.3.4, RFC 1123 section 2.1).
const (
	maxHostNameBytes  = 253
	maxHostLabelBytes = 63
)

// ParseHostName reads a DNS name (RFC 1123 section 2.1), a one-label wildcard such as
// "*.example.org", or "" for any host. Upper case becomes lower case. Addresses, ports, trailing dots
// and underscores are refused: no client could be routed by them, and none may reach nginx.
// Every error wraps ErrHostName and says what to write instead.
func ParseHostName(s string) (HostName, error) {
	if s == "" {
		return AnyHost, nil
	}
	if len(s) > maxHostNameBytes {
		return "", fmt.Errorf("%w: %d bytes long, write at most %d", ErrHostName, len(s), maxHostNameBytes)
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return "", fmt.Errorf("%w: %q is an address; write a DNS name, or leave the host out", ErrHostName, s)
	}
	name := asciiLower(s)
	rest := strings.TrimPrefix(name, "*.")
	if strings.Contains(rest, "*") {
		return "", fmt.Errorf("%w: %q: a wildcard stands for the whole first label; write \"*.example.org\"", ErrHostName, s)
	}
	if strings.HasSuffix(rest, ".") {
		return "", fmt.Errorf("%w: %q: write it without the dot at the end", ErrHostName, s)
	}
	if strings.Contains(rest, ":") {
		return "", fmt.Errorf("%w: %q: write the name alone, without a port or a scheme", ErrHostName, s)
	}
	for label := range strings.SplitSeq(rest, ".") {
		if err := checkHostLabel(label); err != nil {
			return "", fmt.Errorf("%w: %q: %w", ErrHostName, s, err)
		}
	}
	return HostName(name), nil
}

func checkHostLabel(label string) error {
	switch {
	case label == "":
		return errors.New("a label is empty; write a name such as shop.example.org, with something before and behind each dot")
	case len(label) > maxHostLabelBytes:
		return fmt.Errorf("the label %q has %d bytes, write at most %d", label, len(label), maxHostLabelBytes)
	case label[0] == '-' || label[len(label)-1] == '-':
		return fmt.Errorf("the label %q begins or ends with \"-\"; write it without", label)
	}
	for i := range len(label) {
		c := label[i]
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return fmt.Errorf("the label %q holds %q; write letters, digits and \"-\" only", label, label[i:i+1])
		}
	}
	return nil
}

// asciiLower lowers A–Z only: Unicode folding could turn a name into another one.
func asciiLower(s string) string {
	i := strings.IndexFunc(s, func(r rune) bool { return r >= 'A' && r <= 'Z' })
	if i < 0 {
		return s
	}
	b := []byte(s)
	for ; i < len(b); i++ {
		if b[i] >= 'A' && b[i] <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return string(b)
}

// Wildcard tells whether the name stands for every name with one more label.
func (h HostName) Wildcard() bool { return strings.HasPrefix(string(h), "*.") }

// Covers tells whether requests for name, which is exact and in lower case, may be served by h:
// the same name, a wildcard one label up, or any host.
func (h HostName) Covers(name string) bool {
	switch {
	case h == AnyHost:
		return true
	case h.Wildcard():
		first, rest, found := strings.Cut(name, ".")
		return found && first != "" && first != "*" && rest == string(h[2:])
	}
	return string(h) == name
}

// String gives the name for people: "(any host)" for AnyHost.
func (h HostName) String() string {
	if h == AnyHost {
		return "(any host)"
	}
	return string(h)
}
