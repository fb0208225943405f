package stage

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// Program is a benchmark as its main function runs it.
type Program struct {
	Name     string // "bench-churn"
	Division Division
	// Flags adds flags of its own; nil adds none.
	Flags func(*flag.FlagSet)
	// Binaries are paths that are flags with a default, made absolute before Run.
	Binaries []Binary
	// Run measures, in the namespace of the benchmark, and prints to out.
	Run func(ctx context.Context, s *Stage, out io.Writer) error
}

// Told makes a Run of what measures by a plan and what tells the figures. The plan is read when it runs: the flags are in it
// then.
func Told[P, F any](
	plan *P, measure func(context.Context, *Stage, P) (F, error), report func(context.Context, io.Writer, P, F) error,
) func(context.Context, *Stage, io.Writer) error {
	return func(ctx context.Context, s *Stage, out io.Writer) error {
		f, err := measure(ctx, s, *plan)
		if err != nil {
			return err
		}
		return report(ctx, out, *plan, f)
	}
}

// Binary is a program that is measured or needed.
type Binary struct {
	Flag, Default, Usage string
	Path                 *string
}

// Headgate is the flag of the binary to measure.
func Headgate(path *string) Binary {
	return Binary{Flag: "headgate", Default: "bin/headgate", Usage: "the `binary` to measure", Path: path}
}

// Testcluster is the flag of the API server.
func Testcluster(path *string) Binary {
	return Binary{Flag: "testcluster", Default: "bin/testcluster", Usage: "the `binary` of the API server", Path: path}
}

// Main runs the program with the arguments of the process until it ends or is asked to, and gives its exit code: 2 for
// flags that cannot be read, 1 for a benchmark that did not come to its end.
func (p Program) Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM) //nolint:forbidigo // a main makes the one
	defer stop()
	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	flags.SetOutput(os.Stderr)
	for _, b := range p.Binaries {
		flags.StringVar(b.Path, b.Flag, b.Default, b.Usage)
	}
	if p.Flags != nil {
		p.Flags(flags)
	}
	if err := flags.Parse(os.Args[1:]); err != nil {
		return 2
	}
	code, err := 0, error(nil)
	if Isolated() {
		err = p.run(ctx)
	} else {
		code, err = Isolate(ctx, p.Division)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, p.Name+":", err) // nobody is left to tell
		return 1
	}
	return code
}

func (p Program) run(ctx context.Context) (err error) {
	if err := Put(os.Getpid(), First); err != nil {
		return err
	}
	for _, b := range p.Binaries {
		if *b.Path, err = filepath.Abs(*b.Path); err != nil {
			return fmt.Errorf("find a binary: %w", err)
		}
	}
	s, err := New()
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := s.Close(); err == nil {
			err = closeErr
		}
	}()
	return p.Run(ctx, s, os.Stdout)
}

// Command is how a benchmark was called, for its heading.
func Command(name string) string {
	if Quick() {
		return "make " + name + " QUICK=1"
	}
	return "make " + name
}

// Versions asks each program for its own; one that does not answer is "unknown".
func Versions(ctx context.Context, programs ...[]string) string {
	var list []string
	for _, argv := range programs {
		first := "unknown"
		if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err == nil { //nolint:gosec // the benchmark's own list
			first, _, _ = strings.Cut(strings.TrimPrefix(string(out), "nginx version: "), "\n")
		}
		list = append(list, strings.TrimSpace(first))
	}
	return strings.Join(list, ", ")
}
