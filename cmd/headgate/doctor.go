package main

import (
	"github.com/spf13/cobra"

	"headgate/cmd/check"
)

func newDoctor() *cobra.Command {
	output := textOutput
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at everything on and around this host, and say what is wrong and how to mend it",
		Long: `doctor does what 'headgate check' does, and looks at what only a host in its place can show: the capabilities of the VIP
process; the secret and the ports of the hosts that share VIPs, and whether each other host answers and has the same secret; the
MTU of the way to each of them; each VIP: its interface, whether it is in the interface's network, and who answers for it; some
pods, whether they are reached; and other services that get in the way (keepalived, the distribution's nginx, settings of
systemd-networkd).

Each line that is not well has the command that mends it. Nothing is changed, and no secret is shown. It sends a few packets:
probes for VIPs, a greeting and pings to the other hosts, connections to a few pods. Run it as root: others see less.

Exit codes:
  0  nothing must be mended; there may be something to look at
  1  something must be mended
  3  wrong usage`,
		Example: `  headgate doctor
  headgate doctor -o json | jq -r '.lines[] | select(.verdict == "fail") | .message + " -> " + .fix'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := runCheck(cmd, check.Doctor)
			if err != nil {
				return err
			}
			return showReport(cmd, report, output)
		},
	}
	allConfigFlags(cmd)
	outputFlag(cmd, &output)
	return cmd
}
