package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"headgate/cmd/config"
	"headgate/cmd/difference"
	"headgate/sync/admin"
	"headgate/sync/luapush"
)

func newDiff() *cobra.Command {
	output := textOutput
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "Show what would change if the running daemon served these manifests",
		Long: `diff reads folders of manifests once, builds them with the options of the running daemon, and compares the result
with what that daemon has applied: which hosts, paths, upstreams, peers and certificates would be added (+), changed
(~) and removed (-) by a push, whether nginx would be reloaded and why, and which problems of objects would come and
go. Nothing is pushed, written or reloaded. Private keys stay in the daemon: they are compared by their hashes.

The folders stand for everything that the daemon would read. The proxy is asked to compile regular expressions; names
of ExternalName services have the addresses that the daemon knows.

Exit codes:
  0  nothing would change
  1  something would change; it is printed
  2  no daemon answers (or this user may not ask it)
  3  wrong usage or configuration, or a folder that cannot be read`,
		Example: `  headgate diff --manifests ./site
  headgate diff --manifests ./site -o json | jq '.reloads'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd, config.NoSource)
			if err != nil {
				return err
			}
			if len(c.Manifests) == 0 {
				return usageError(errors.New("nothing to compare with: give --manifests DIR"))
			}
			report, err := diff(cmd.Context(), c)
			if err != nil {
				return err
			}
			return showDiff(cmd, report, output)
		},
	}
	configFlags(cmd, "manifests", "runtime-dir")
	outputFlag(cmd, &output)
	return cmd
}

func diff(ctx context.Context, c config.Config) (difference.Report, error) {
	text, err := admin.AskApplied(ctx, c.RuntimeDir, "")
	if err != nil {
		return difference.Report{}, &exitError{exitUnreachable, err}
	}
	var answer difference.Answer
	if err := json.Unmarshal(text, &answer); err != nil {
		return difference.Report{}, &exitError{exitUnreachable, fmt.Errorf("decode the daemon's answer: %w", err)}
	}
	control := luapush.New(luapush.Config{Socket: answer.Layout.ControlSocket})
	defer control.Close()
	report, err := difference.Compare(ctx, answer, c.Manifests, running{control, c.RuntimeDir}, time.Now())
	if err != nil {
		return report, usageError(err)
	}
	if answer.Version != version {
		report.Notes = append(report.Notes, fmt.Sprintf("the daemon is version %s, this binary is %s: what differs between them is shown, too", answer.Version, version))
	}
	return report, nil
}

// running is the daemon and its proxy.
type running struct {
	*luapush.Client
	runtimeDir string
}

// Object implements difference.Daemon.
func (r running) Object(ctx context.Context, pointer string) ([]byte, error) {
	return admin.AskApplied(ctx, r.runtimeDir, pointer)
}

func showDiff(cmd *cobra.Command, report difference.Report, as output) error {
	if err := printAs(cmd.OutOrStdout(), as, report, report.WriteText); err != nil {
		return err
	}
	if !report.Empty() {
		return &exitError{code: exitFailed}
	}
	return nil
}
