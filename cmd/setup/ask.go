package setup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Terminal asks a person.
type Terminal struct {
	in  *bufio.Reader
	out io.Writer
}

// NewTerminal asks on out and reads answers, a line each, from in.
func NewTerminal(in io.Reader, out io.Writer) *Terminal { return &Terminal{bufio.NewReader(in), out} }

// IsTerminal tells whether a person sits at the other end of r.
func IsTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS) //nolint:gosec // a file descriptor fits
	return err == nil
}

// ErrNoAnswer tells that the input ended before a question was answered.
var ErrNoAnswer = errors.New("no answer: the input ended")

// Ask asks until check accepts the answer; an empty one is otherwise. What check says is printed.
func (t *Terminal) Ask(question, otherwise string, check func(string) error) (string, error) {
	for {
		hint := ""
		if otherwise != "" {
			hint = " [" + otherwise + "]"
		}
		if _, err := fmt.Fprintf(t.out, "%s%s: ", question, hint); err != nil {
			return "", fmt.Errorf("ask: %w", err)
		}
		line, err := t.in.ReadString('\n')
		answer := strings.TrimSpace(line)
		if err != nil && answer == "" {
			return "", ErrNoAnswer
		}
		if answer == "" {
			answer = otherwise
		}
		wrong := check(answer)
		if wrong == nil {
			return answer, nil
		}
		if _, err := fmt.Fprintf(t.out, "  %v\n", wrong); err != nil {
			return "", fmt.Errorf("ask: %w", err)
		}
	}
}

// Words splits an answer that is a list: at commas and spaces.
func Words(answer string) []string {
	return strings.FieldsFunc(answer, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
}
