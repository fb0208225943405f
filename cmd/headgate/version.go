package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"headgate/gateway/luastate"
	"headgate/lua"
)

func newVersion() *cobra.Command {
	output := textOutput
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `version prints the version of this binary, the build of the Lua files that it brings, and the schema of the
state that it pushes. A proxy that runs other Lua files is reloaded once when this binary takes over.`,
		Example: "  headgate version\n  headgate version -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			build := lua.Build()
			v := map[string]any{"version": version, "go": runtime.Version(), "luaBuild": build, "schema": luastate.Schema}
			return printAs(cmd.OutOrStdout(), output, v, sentence("headgate %s (%s, Lua %s, schema %d)", version, runtime.Version(), build, luastate.Schema))
		},
	}
	outputFlag(cmd, &output)
	return cmd
}
