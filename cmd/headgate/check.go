package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"headgate/cmd/assemble"
	"headgate/cmd/check"
	"headgate/cmd/config"
)

func newCheck() *cobra.Command {
	output := textOutput
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Look at the configuration and this host, and say what is missing",
		Long: `check looks at everything that the daemon needs, and says of each thing whether it is well, and if not, which
command mends it: the configuration (all mistakes at once, and which changed keys a running daemon takes by a reload and
which need a restart), nginx with
its Lua modules and files and whether nginx accepts the configuration, the addresses and ports to listen on and who
holds them, privileges, folders and their modes, space, limits of open files, the kubeconfig and when its credentials
end, the API server with its version and clock, each right that is needed there, the manifests, and the name servers.
'headgate doctor' looks at all of this and at the network around the host, too.

Nothing is changed, no secret is shown. Run it as the user who runs the daemon: as another one it sees less.

Exit codes:
  0  nothing must be mended; there may be something to look at
  1  something must be mended
  3  wrong usage`,
		Example: `  headgate check
  headgate check --config ./headgate.yaml
  headgate check -o json | jq '.lines[] | select(.verdict == "fail")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := runCheck(cmd, check.Run)
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

// runCheck has look examine the configuration of the command line on this host.
func runCheck(cmd *cobra.Command, look func(context.Context, check.Subject) check.Report) (check.Report, error) {
	overrides, err := givenFlags(cmd)
	if err != nil {
		return check.Report{}, usageError(err)
	}
	file, err := cmd.Flags().GetString("config")
	if err != nil {
		return check.Report{}, fmt.Errorf("read --config: %w", err)
	}
	c, err := assemble.Host().Load(file, overrides, config.Source)
	if err != nil {
		return check.Refused(err), nil
	}
	if file == "" {
		file = config.DefaultFile
	}
	return look(cmd.Context(), check.Subject{Config: c, File: file, Version: version, Host: check.This()}), nil
}

func showReport(cmd *cobra.Command, report check.Report, as output) error {
	if err := printAs(cmd.OutOrStdout(), as, report, report.WriteText); err != nil {
		return err
	}
	if report.Count(check.Fail) > 0 {
		return &exitError{code: exitFailed}
	}
	return nil
}
