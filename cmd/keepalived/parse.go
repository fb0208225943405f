package keepalived

import (
	"fmt"
	"regexp"
	"strings"
)

// statement is a keyword with its values, on one line, and the block behind it if there is one.
type statement struct {
	place  Place
	words  []string // at least one
	raw    string   // the line up to { or }, for scripts, whose words are quoted in another way
	opened bool     // there is a block, which may be empty
	block  []*statement
}

func (s *statement) keyword() string { return s.words[0] }

// word is the i-th word, or "".
func (s *statement) word(i int) string {
	if i < len(s.words) {
		return s.words[i]
	}
	return ""
}

// values are the words behind the keyword, and in its block.
func (s *statement) values() []string {
	list := append([]string{}, s.words[1:]...)
	for _, inner := range s.block {
		list = append(list, inner.words...)
	}
	return list
}

// maxDepth is beyond what keepalived knows blocks within blocks for (virtual_server, real_server, a check, url).
const maxDepth = 16

// parse makes a tree of lines. A block may begin on the line of its keyword or on the next one.
func parse(lines []line) ([]*statement, error) {
	root := &statement{opened: true}
	open := []*statement{root}
	for _, l := range lines {
		for rest := l.text; rest != ""; {
			end := brace(rest)
			words, err := split(rest[:end])
			if err != "" {
				return nil, &SyntaxError{l.place, err}
			}
			top := open[len(open)-1]
			if len(words) > 0 {
				top.block = append(top.block, &statement{place: l.place, words: words, raw: strings.TrimSpace(rest[:end])})
			}
			if end == len(rest) {
				break
			}
			if rest[end] == '{' {
				open, err = enter(open)
			} else if open = open[:len(open)-1]; len(open) == 0 {
				err = "a } without its {: remove it"
			}
			if err != "" {
				return nil, &SyntaxError{l.place, err}
			}
			rest = rest[end+1:]
		}
	}
	if len(open) > 1 {
		s := open[len(open)-1]
		return nil, &SyntaxError{s.place, fmt.Sprintf("the block of %s is not closed: write its }", shown(s.keyword()))}
	}
	return root.block, nil
}

// enter opens the block of the last statement.
func enter(open []*statement) (deeper []*statement, mistake string) {
	block := open[len(open)-1].block
	if len(block) == 0 || block[len(block)-1].opened {
		return open, "a { without a keyword in front of it"
	}
	if len(open) > maxDepth {
		return open, fmt.Sprintf("blocks are more than %d deep: this is no keepalived.conf", maxDepth)
	}
	s := block[len(block)-1]
	s.opened = true
	return append(open, s), ""
}

var braced = regexp.MustCompile(`^\$\{[A-Za-z_][A-Za-z0-9_]*\}`)

// brace is where the first { or } stands that is neither in double quotes nor a part of ${…}; the length when there is none.
func brace(text string) int {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '$':
			if at := braced.FindStringIndex(text[i:]); at != nil {
				i += at[1] - 1
			}
		case c == '{' || c == '}':
			return i
		}
	}
	return len(text)
}

// split makes words: white space is between them, double quotes are around those that hold some.
func split(text string) (words []string, mistake string) {
	for {
		text = strings.TrimLeft(text, " \t\r")
		if text == "" {
			return words, ""
		}
		if rest, quoted := strings.CutPrefix(text, `"`); quoted {
			end := upTo(rest, `"`)
			if end == len(rest) {
				return nil, `a double quote (") without its partner: close it`
			}
			words, text = append(words, rest[:end]), rest[end+1:]
			continue
		}
		end := upTo(text, " \t\r\"")
		words, text = append(words, text[:end]), text[end:]
	}
}

// upTo is where one of the characters stands without a backslash in front; the length when none does.
func upTo(text, characters string) int {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case strings.IndexByte(characters, c) >= 0:
			return i
		}
	}
	return len(text)
}
