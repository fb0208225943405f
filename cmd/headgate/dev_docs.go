package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"headgate/cmd/reference"
)

func newDevDocs() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "docs",
		Short: "Write the reference pages",
		Long: `docs writes the generated pages of docs/reference: the command line, the configuration, the annotations and
the metrics. Each comes from the list that the code itself uses, so it cannot say anything else than the code does.
'make generate' runs it.`,
		Example: "  headgate dev docs --out docs/reference",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := os.MkdirAll(out, 0o755); err != nil { //nolint:gosec // documentation
				return fmt.Errorf("make the folder of the pages: %w", err)
			}
			for name, text := range reference.Pages(cmd.Root()) {
				if err := os.WriteFile(filepath.Join(out, name), []byte(text), 0o644); err != nil { //nolint:gosec // documentation
					return fmt.Errorf("write a page: %w", err)
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "docs/reference", "`folder` to write to")
	return cmd
}
