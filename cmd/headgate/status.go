package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"headgate/cmd/config"
	"headgate/sync/admin"
)

func newStatus() *cobra.Command {
	output := textOutput
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the running daemon does, and what keeps it from doing it",
		Long: `status asks the running daemon, over its admin socket, how it is: whether the source is read and healthy, the
revision that is wanted and the one that the proxy acknowledged, each worker, the last reload and its reason, the
state log, and every problem of an object with what to change. What is wrong stands first.

A worker at an older revision is idle: it catches up with its next request. A problem costs only the object that
it names, so problems alone do not make the status degraded.

Exit codes:
  0  everything is as it should be
  1  degraded: something keeps the gateway from doing its whole work; it is printed
  2  no daemon answers (or this user may not ask it)
  3  wrong usage or configuration`,
		Example: `  headgate status
  headgate status -o json | jq '.problems[] | .namespace + "/" + .name + ": " + .message'
  headgate status --runtime-dir /run/headgate`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd, config.NoSource)
			if err != nil {
				return err
			}
			status, err := admin.Ask(cmd.Context(), c.RuntimeDir)
			if errors.Is(err, admin.ErrUnreachable) {
				return &exitError{exitUnreachable, err}
			}
			if err != nil {
				return &exitError{exitUnreachable, fmt.Errorf("ask the daemon: %w", err)}
			}
			return showStatus(cmd, status, output)
		},
	}
	configFlags(cmd, "runtime-dir")
	outputFlag(cmd, &output)
	return cmd
}

func showStatus(cmd *cobra.Command, status admin.Status, as output) error {
	if err := printAs(cmd.OutOrStdout(), as, status, status.WriteText); err != nil {
		return err
	}
	if len(status.Degraded()) > 0 {
		return &exitError{code: exitFailed}
	}
	return nil
}
