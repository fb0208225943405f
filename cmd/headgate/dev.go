package main

import "github.com/spf13/cobra"

func newDev() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "dev",
		Short:  "Tools for developing headgate itself",
		Long:   "dev holds what the quick start, the tests and `make generate` need. Nothing in it belongs on an edge host.",
		Hidden: true,
		Args:   cobra.NoArgs,
	}
	cmd.AddCommand(newDevEcho(), newDevDocs(), newDevMan())
	return cmd
}
