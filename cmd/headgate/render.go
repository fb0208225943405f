package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"headgate/cmd/config"
	"headgate/cmd/preview"
)

type renderFlags struct {
	out    string
	strict bool
	output output
}

func newRender() *cobra.Command {
	f := &renderFlags{output: textOutput}
	cmd := &cobra.Command{
		Use:   "render",
		Short: "Show what a folder of manifests becomes, without running anything",
		Long: `render reads folders of manifests once and writes what the daemon would give to the proxy: nginx.conf, and
state.json, the objects that are pushed (hosts with their routes, upstreams, certificates), with private keys as
hashes. Problems of objects are printed on standard error; an object with a problem costs only itself.

Nothing is started, asked or resolved: regular expressions are not validated (the proxy's PCRE does that), and
ExternalName services have no addresses. nginx and its Lua files are looked for on this host; where there are none,
the layout of Debian is assumed.

Exit codes:
  0  rendered; there may be problems
  1  not rendered, or with --strict: there are problems that are more than warnings
  3  wrong usage or configuration`,
		Example: `  headgate render --manifests ./site --out /tmp/out
  headgate render --manifests ./site --strict >/dev/null      a check for CI
  headgate render --manifests ./site -o json | jq .problems`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd) },
	}
	configFlags(cmd, "manifests", "ingress-class")
	cmd.Flags().StringVar(&f.out, "out", "", "`folder` to write nginx.conf and state.json to; without it they are printed")
	cmd.Flags().BoolVar(&f.strict, "strict", false, "fail when there are problems")
	outputFlag(cmd, &f.output)
	return cmd
}

func (f *renderFlags) run(ctx context.Context, cmd *cobra.Command) error {
	c, err := loadConfig(cmd, config.NoSource)
	if err != nil {
		return err
	}
	if len(c.Manifests) == 0 {
		return usageError(errors.New("no folder to render: give --manifests DIR"))
	}
	page, err := preview.Render(ctx, c)
	if err != nil {
		return &exitError{exitFailed, err}
	}
	if err := writePage(cmd, page, f.out, f.output); err != nil {
		return &exitError{exitFailed, err}
	}
	if n := page.Errors(); f.strict && n > 0 {
		return &exitError{exitFailed, fmt.Errorf("%d problems", n)}
	}
	return nil
}

// writePage puts the files on disk or on standard output, and the problems on standard error.
func writePage(cmd *cobra.Command, page preview.Page, out string, as output) error {
	if out != "" {
		if err := writeFiles(page, out); err != nil {
			return err
		}
	}
	text := sentence("%s\n%s", page.NginxConf, page.State)
	if out != "" {
		text = sentence("%s, in %s and %s", page.Summary(), filepath.Join(out, "nginx.conf"), filepath.Join(out, "state.json"))
	}
	if err := printAs(cmd.OutOrStdout(), as, page, text); err != nil {
		return err
	}
	return printProblems(cmd.ErrOrStderr(), page)
}

func writeFiles(page preview.Page, out string) error {
	if err := os.MkdirAll(out, 0o755); err != nil { //nolint:gosec // secrets are hashes in it
		return fmt.Errorf("make the folder: %w", err)
	}
	for name, text := range map[string][]byte{"nginx.conf": []byte(page.NginxConf), "state.json": page.State} {
		if err := os.WriteFile(filepath.Join(out, name), text, 0o644); err != nil { //nolint:gosec // likewise
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}

func printProblems(w io.Writer, page preview.Page) error {
	for _, line := range page.Notes() {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return fmt.Errorf("print problems: %w", err)
		}
	}
	return nil
}
