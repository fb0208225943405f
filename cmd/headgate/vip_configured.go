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
  0    there is a VIP in the configuration
  1    there is none; that is printed
  255  the configuration cannot be read; what is wrong is printed`,
		Example: `  ExecCondition=/usr/bin/headgate vip configured`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd, config.NoSource)
			if err != nil {
				return &exitError{exitCondition, err}
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

// exitCondition is the code that fails a unit from its ExecCondition; lower ones skip it (systemd.service(5)).
const exitCondition = 255
