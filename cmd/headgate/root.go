package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// The exit codes that all commands share; `headgate status` adds its own meaning to 1 and 2.
const (
	exitFailed      = 1
	exitUnreachable = 2
	exitUsage       = 3
)

// exitError carries the exit code of a command; a nil err says that everything was printed already.
type exitError struct {
	code int
	err  error
}

// Error implements error.
func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap gives the cause.
func (e *exitError) Unwrap() error { return e.err }

func usageError(err error) error { return &exitError{exitUsage, err} }

// execute runs the command line and gives the exit code.
func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	root := newRoot() //nolint:contextcheck // commands get the context from cobra: cmd.Context()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	code := exitUsage // what cobra itself refuses
	var coded *exitError
	if errors.As(err, &coded) {
		code = coded.code
	}
	if text := err.Error(); text != "" {
		_, _ = fmt.Fprintf(errOut, "headgate: %s\n", text) // nobody is left to tell
	}
	return code
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "headgate",
		Short: "Edge gateway for Kubernetes, outside the cluster",
		Long: `headgate reads Ingresses from a Kubernetes cluster (or from a folder of manifests) and serves them from a
host at the edge, through nginx or OpenResty on that host. Changes are pushed into the running proxy; nginx is
reloaded only when it must be.

The daemon is 'headgate run'. The other commands look at it, or show what it would do.`,
		Example: `  headgate run --manifests ./site              serve a folder
  headgate run --config /etc/headgate/headgate.yaml
  headgate render --manifests ./site --out /tmp/out
  headgate status
  headgate explain https://shop.example.com/cart`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(fmt.Errorf("%w; see '%s --help'", err, cmd.CommandPath()))
	})
	root.AddCommand(newInit(), newJoin(), newRun(), newRender(), newStatus(), newExplain(), newPeers(), newAccept(), newCheck(), newDoctor(), newSupportBundle(), newDiff(), newRBAC(), newReload(), newLogLevel(), newGossip(), newVIP(), newDrain(), newUndrain(), newProxy(), newVersion(), newDev())
	return root
}
