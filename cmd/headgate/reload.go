package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"headgate/cmd/config"
	"headgate/sync/admin"
)

func newReload() *cobra.Command {
	output, dry := textOutput, false
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have the running daemon read its configuration again",
		Long: `reload has the daemon read its configuration file again, with the variables and flags that it was started with, and
returns when what changed is in force and the proxy serves by it. A configuration with a mistake in it, or one that nginx does
not take, is refused: the exit code is 1, the reason is printed, and everything stays as it was.

Some keys cannot be changed in a running daemon. They are named, and left as they are until it is restarted, which drops no
request either. The table of the keys (/usr/share/doc/headgate/reference/configuration.md) says which need that.

The VIP process reads its keys when it starts. Its restart hands the VIPs over and back.

Exit codes:
  0  everything that can be changed is in force; what needs a restart is named
  1  refused; nothing is changed
  2  no daemon answers (or this user may not ask it)
  3  wrong usage or configuration`,
		Example: `  headgate reload
  headgate reload --dry-run
  headgate reload -o json | jq -r '.restart[]'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := runtimeDir(cmd)
			if err != nil {
				return err
			}
			ask := admin.AskReload
			if dry {
				ask = admin.AskCompare
			}
			r, err := ask(cmd.Context(), dir)
			switch {
			case errors.Is(err, admin.ErrNotReloaded):
				return &exitError{exitFailed, err}
			case err != nil:
				return &exitError{exitUnreachable, err}
			}
			return printAs(cmd.OutOrStdout(), output, r, func(w io.Writer) error { return writeReload(w, r) })
		},
	}
	configFlags(cmd, "runtime-dir")
	outputFlag(cmd, &output)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what a reload would do, and do nothing")
	return cmd
}

// runtimeDir finds where the daemon answers. The file may be the one that the daemon is to refuse: then the place comes
// from the rest, or from the default.
func runtimeDir(cmd *cobra.Command) (string, error) {
	c, err := loadConfig(cmd, config.NoSource)
	if err == nil {
		return c.RuntimeDir, nil
	}
	file, fileErr := configFile(cmd)
	overrides, flagErr := givenFlags(cmd)
	if errors.Join(fileErr, flagErr) != nil {
		return "", err
	}
	dir, found := config.RuntimeDirOf(file, overrides)
	if !found {
		return "", err
	}
	return dir, nil
}

func writeReload(w io.Writer, r admin.Reconfiguration) error {
	var b strings.Builder
	verb := "would be in force"
	if r.Done {
		verb = "in force"
	}
	if len(r.Reload) > 0 {
		fmt.Fprintf(&b, "%s: %s\n", verb, strings.Join(r.Reload, ", "))
	}
	if r.Pending != "" {
		fmt.Fprintf(&b, "waiting: %s\n", r.Pending)
	}
	if len(r.Restart) > 0 {
		fmt.Fprintf(&b, "needs 'systemctl restart headgate' (no request is lost): %s\n", strings.Join(r.Restart, ", "))
	}
	if len(r.RestartVIP) > 0 {
		fmt.Fprintf(&b, "needs 'systemctl restart headgate-vip', if that was not done since: %s\n", strings.Join(r.RestartVIP, ", "))
	}
	if b.Len() == 0 {
		b.WriteString("nothing changed\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
