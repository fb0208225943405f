package keepalived

import (
	"errors"
	"strings"
)

// The mistakes of a script's line.
var (
	errQuote  = errors.New("a quote without its partner")
	errEscape = errors.New("a backslash at the end")
	errNone   = errors.New("no program")
)

// command is a script with its arguments, and the user and group it is run as, if they are written.
type command struct {
	argv []string // at least one
	user []string
}

// readCommand reads the line of a script (keepalived.conf(5), "Quoted strings"): the keyword, the program with its
// arguments in quotes, then user and group.
func readCommand(raw string) (command, error) {
	words, err := shellWords(raw)
	if err != nil {
		return command{}, err
	}
	if len(words) < 2 {
		return command{}, errNone
	}
	argv, err := arguments(words[1])
	if err != nil {
		return command{}, err
	}
	return command{argv, words[2:]}, nil
}

// arguments splits at white space; single quotes are around what holds some.
func arguments(text string) ([]string, error) {
	var argv []string
	for {
		text = strings.TrimLeft(text, " \t")
		if text == "" {
			break
		}
		var word strings.Builder
		for text != "" && text[0] != ' ' && text[0] != '\t' {
			if text[0] != '\'' {
				word.WriteByte(text[0])
				text = text[1:]
				continue
			}
			inner, after, closed := strings.Cut(text[1:], "'")
			if !closed {
				return nil, errQuote
			}
			word.WriteString(inner)
			text = after
		}
		argv = append(argv, word.String())
	}
	if len(argv) == 0 || argv[0] == "" {
		return nil, errNone
	}
	return argv, nil
}

// shellWords splits at white space, with both kinds of quotes, also within a word, and escapes.
func shellWords(text string) ([]string, error) {
	var words []string
	for {
		text = strings.TrimLeft(text, " \t\r")
		if text == "" {
			return words, nil
		}
		var word strings.Builder
		quote := byte(0)
		for text != "" {
			c := text[0]
			if quote == 0 && (c == ' ' || c == '\t' || c == '\r') {
				break
			}
			text = text[1:]
			switch {
			case c == '\\':
				if text == "" {
					return nil, errEscape
				}
				var b byte
				b, text = escaped(text)
				word.WriteByte(b)
			case c == quote:
				quote = 0
			case quote == 0 && (c == '"' || c == '\''):
				quote = c
			default:
				word.WriteByte(c)
			}
		}
		if quote != 0 {
			return nil, errQuote
		}
		words = append(words, word.String())
	}
}

// escaped is the character that stands behind a backslash, and what follows it.
func escaped(text string) (c byte, rest string) {
	switch c = text[0]; {
	case c == 'x' && len(text) > 1 && digit(text[1]) < hexadecimal:
		return number(text[1:], hexadecimal, len(text))
	case c == 'c' && len(text) > 1:
		return text[1] & 0x1f, text[2:]
	case digit(c) < octal:
		return number(text, octal, 3)
	}
	if i := strings.IndexByte("abEfnrtv", c); i >= 0 {
		c = "\a\b\x1b\f\n\r\t\v"[i]
	}
	return c, text[1:]
}

const (
	octal       = 8
	hexadecimal = 16
	noDigit     = 255
)

func number(text string, base byte, most int) (c byte, rest string) {
	i := 0
	for i < most && i < len(text) && digit(text[i]) < base {
		c = c*base + digit(text[i])
		i++
	}
	return c, text[i:]
}

func digit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return noDigit
}
