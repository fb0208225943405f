package config

import (
	"errors"
	"slices"
	"strings"
	"unicode"
)

// FieldError is one thing that is wrong with the configuration.
type FieldError struct {
	Place   string // "/etc/headgate/headgate.yaml:12", "HEADGATE_PROXY_MODE", "--set"; "" when nobody wrote it
	Key     string // "proxy.mode", "trustedProxies[1]", or "" for the file as a whole
	Message string // what is wrong and what to write instead
}

// Error implements error.
func (e *FieldError) Error() string {
	parts := []string{e.Place, e.Key, e.Message}
	if e.Place == e.Key || e.Place == flagOf(e.Key) {
		parts = []string{e.Place, e.Message}
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

// flagOf is the flag that has the name of the key: "stateDir" is --state-dir.
func flagOf(key string) string {
	var b strings.Builder
	b.WriteString("--")
	for _, r := range key {
		if unicode.IsUpper(r) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func join(errs []*FieldError) error {
	all := make([]error, len(errs))
	for i, e := range errs {
		all[i] = e
	}
	return errors.Join(all...)
}

func contains(list []string, s string) bool { return slices.Contains(list, s) }
