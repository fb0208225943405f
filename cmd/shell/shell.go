// Package shell writes words of commands that people copy into a shell.
package shell

import (
	"regexp"
	"strings"
)

// plain is what every shell leaves as it is.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,=-]+$`)

// Word writes text so that a shell reads it back as one word: between single quotes where it must be (POSIX, Shell Command
// Language, section 2.2.2).
func Word(text string) string {
	if plain.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
