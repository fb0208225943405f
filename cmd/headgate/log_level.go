package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"headgate/cmd/config"
	"headgate/cmd/loglevel"
	"headgate/cmd/vip"
	"headgate/sync/admin"
)

// theVIP is the argument of --process that means the VIP process.
const (
	theDaemon = "daemon"
	theVIP    = "vip"
)

func newLogLevel() *cobra.Command {
	output, process := textOutput, theDaemon
	cmd := &cobra.Command{
		Use:   "log-level [debug|info|warn|error]",
		Short: "Show the log level of the running daemon, or set it",
		Long: `log-level asks the running daemon what is the least severe level that it logs, and sets it when one is given. That lasts
until 'headgate reload', which brings back log.level of the configuration, or until the daemon restarts. With --process vip
it does the same with the VIP process, which keeps it until it restarts.

Exit codes:
  0  printed, or set
  1  the process cannot do it; it is printed
  2  the process does not answer (or this user may not ask it)
  3  wrong usage or configuration`,
		Example: `  headgate log-level
  headgate log-level debug
  headgate log-level --process vip debug`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{string(config.Debug), string(config.Info), string(config.Warn), string(config.Error)},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfig(cmd, config.NoSource)
			if err != nil {
				return err
			}
			socket := admin.SocketPath(c.RuntimeDir)
			switch process {
			case theDaemon:
			case theVIP:
				socket = vip.PathsOf(c).Socket
			default:
				return usageError(fmt.Errorf("--process %q: write daemon or vip", process))
			}
			var wanted config.LogLevel
			if len(args) > 0 {
				if wanted, err = loglevel.Parse(args[0]); err != nil {
					return usageError(err)
				}
			}
			level, err := loglevel.Ask(cmd.Context(), socket, wanted)
			switch {
			case errors.Is(err, loglevel.ErrRefused):
				return &exitError{exitFailed, err}
			case err != nil:
				return &exitError{exitUnreachable, err}
			}
			return printAs(cmd.OutOrStdout(), output, loglevel.Answer{Level: level}, sentence("%s", level))
		},
	}
	configFlags(cmd, "runtime-dir")
	outputFlag(cmd, &output)
	cmd.Flags().StringVar(&process, "process", theDaemon, "`whose` level: daemon or vip")
	return cmd
}
