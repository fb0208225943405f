package main

import (
	"github.com/spf13/cobra"

	"headgate/cmd/config"
	"headgate/cmd/vip"
)

func newVIPConfigured() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "configured",
		Short: "Tell whether this host has a VIP to share (for ExecCondition)",
		Long: `configured lets headgate-vip.service be started with the others on a host that has no VIP: it is skipped then.

Exit codes:
  0  there is a VIP in the configuration, or this cannot be known because of a mistake in it: 'headgate vip run' says which
  1  there is none; that is printed`,
		Example: `  ExecCondition=/usr/bin/headgate vip configured`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd, config.NoSource)
			if err != nil {
				// A failed condition would be tried again and again, and a skipped one would be a start that went well:
				// only the main process can fail a unit for good (RestartPreventExitStatus= in systemd.service(5)).
				return nil //nolint:nilerr // see above
			}
			if len(c.VIP.All()) == 0 {
				return &exitError{exitFailed, vip.ErrNothing}
			}
			return nil
		},
	}
	configFlags(cmd)
	return cmd
}
