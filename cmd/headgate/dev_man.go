package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newDevMan() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "man",
		Short: "Write the man pages and the completions of shells, for the packages",
		Long: `man writes a page for each command into man1, and the completions into bash-completion/completions,
zsh/vendor-completions and fish/vendor_completions.d. The pages carry the date of SOURCE_DATE_EPOCH, if that is set.`,
		Example: "  headgate dev man --out build/share",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return writeMan(cmd.Root(), out) },
	}
	cmd.Flags().StringVar(&out, "out", "build/share", "`folder` to write to")
	return cmd
}

func writeMan(root *cobra.Command, out string) error {
	pages := filepath.Join(out, "man", "man1")
	if err := os.MkdirAll(pages, 0o755); err != nil { //nolint:gosec // documentation
		return fmt.Errorf("make the folder of the pages: %w", err)
	}
	root.DisableAutoGenTag = true
	date := time.Unix(0, 0).UTC() // GenManTree heeds SOURCE_DATE_EPOCH where there is no date
	header := &doc.GenManHeader{Title: "HEADGATE", Section: "1", Source: "headgate", Manual: "headgate", Date: &date}
	if os.Getenv("SOURCE_DATE_EPOCH") != "" {
		header.Date = nil
	}
	if err := doc.GenManTree(root, header, pages); err != nil {
		return fmt.Errorf("write the man pages: %w", err)
	}
	for _, shell := range []struct {
		file  string
		write func(string) error
	}{
		{"bash-completion/completions/headgate", func(f string) error { return root.GenBashCompletionFileV2(f, true) }},
		{"zsh/vendor-completions/_headgate", root.GenZshCompletionFile},
		{"fish/vendor_completions.d/headgate.fish", func(f string) error { return root.GenFishCompletionFile(f, true) }},
	} {
		path := filepath.Join(out, shell.file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // documentation
			return fmt.Errorf("make the folder of the completions: %w", err)
		}
		if err := shell.write(path); err != nil {
			return fmt.Errorf("write the completions: %w", err)
		}
	}
	return nil
}
