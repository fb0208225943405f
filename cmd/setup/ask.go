package setup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// ErrNoAnswer tells that the input ended, or the person gave up (Ctrl-C), before a question was answered.
var ErrNoAnswer = errors.New("no answer: nothing is written")

// line reads one, until ctx ends. Then the read goes on, for the terminal cannot be told: the process must end soon.
func (t *Terminal) line(ctx context.Context) (string, error) {
	type read struct {
		text string
		err  error
	}
	got := make(chan read, 1) // nobody may be left to take it
	go func() {
		text, err := t.in.ReadString('\n')
		got <- read{text, err}
	}()
	select {
	case <-ctx.Done():
		_, _ = fmt.Fprintln(t.out) // behind the question
		return "", ctx.Err()
	case r := <-got:
		return r.text, r.err
	}
}

// Ask asks until check accepts the answer; an empty one is otherwise. What check says is printed. The error is ErrNoAnswer when
// the input or ctx ends.
func (t *Terminal) Ask(ctx context.Context, question, otherwise string, check func(string) error) (string, error) {
	for {
		hint := ""
		if otherwise != "" {
			hint = " [" + otherwise + "]"
		}
		if _, err := fmt.Fprintf(t.out, "%s%s: ", question, hint); err != nil {
			return "", fmt.Errorf("ask: %w", err)
		}
		line, err := t.line(ctx)
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

// Path is the path that an answer means: "~" is the home folder, as in a shell.
func Path(answer string) string {
	rest, ok := strings.CutPrefix(answer, "~/")
	home, err := os.UserHomeDir()
	if !ok || err != nil {
		return answer
	}
	return filepath.Join(home, rest)
}

// Words splits an answer that is a list: at commas and spaces.
func Words(answer string) []string {
	return strings.FieldsFunc(answer, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
}
