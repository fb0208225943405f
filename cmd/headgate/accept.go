package main

import (
	"github.com/spf13/cobra"

	"headgate/cmd/config"
	"headgate/sync/admin"
)

func newAccept() *cobra.Command {
	output := textOutput
	cmd := &cobra.Command{
		Use:   "accept",
		Short: "Believe a loss of the source that the daemon holds back",
		Long: `accept tells the running daemon of this host that what its source has lost is really gone. When a source suddenly
loses most of its routes or endpoints while its connection is troubled (lossGuard in the configuration), the daemon
serves the old ones on, and headgate status says DEGRADED and what is held. They are let go when they come back, when
a complete reading of the source confirms the loss, after lossGuard.hold at the latest, or with this command at once.
That nothing at all is left is confirmed by no reading: that takes the time, or this command.

Each host has its own daemon: run it on each of them.

Exit codes:
  0  let go, or nothing was held; it is printed
  1  the daemon cannot do it; it is printed
  2  no daemon answers (or this user may not ask it)
  3  wrong usage or configuration`,
		Example: `  headgate status | head -3
  headgate accept`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd, config.NoSource)
			if err != nil {
				return err
			}
			a, err := admin.AskAccept(cmd.Context(), c.RuntimeDir)
			if err != nil {
				return asked(err)
			}
			text := sentence("nothing is held: what the source has is served")
			if a.Held != nil {
				text = sentence("let go: the source had %s and has %s, which is served now", a.Held.Before, a.Held.Now)
			}
			return printAs(cmd.OutOrStdout(), output, a, text)
		},
	}
	configFlags(cmd, "runtime-dir")
	outputFlag(cmd, &output)
	return cmd
}
