package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"headgate/cmd/config"
	"headgate/cmd/rbac"
)

type rbacFlags struct {
	account string
	out     string
	output  manifestFormat
}

func newRBAC() *cobra.Command {
	f := &rbacFlags{output: yamlFormat}
	cmd := &cobra.Command{
		Use:   "rbac",
		Short: "Print the roles that headgate needs in the cluster",
		Long: `rbac prints a ServiceAccount and the smallest roles with which headgate works under the given configuration,
ready for kubectl apply. Each rule says what it is for.

Without namespaces the roles hold in the whole cluster. With them (--namespaces, or the key of the configuration)
there is a Role in each namespace, and headgate can read nothing in any other; the configuration must then name the
same ones. IngressClasses belong to no namespace and need one small ClusterRole all the same. With status.enabled
false nothing that writes is allowed, and defaultCertificate adds the one Secret that it names.

'headgate check' asks the API server whether each of these rules is granted.

Exit codes:
  0  printed
  3  wrong usage or configuration`,
		Example: `  headgate rbac | kubectl apply -f -
  headgate rbac --namespaces shop,blog | kubectl apply -f -
  headgate rbac --service-account edge/headgate-blue --set status.enabled=false -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	configFlags(cmd, "namespaces")
	cmd.Flags().StringVar(&f.account, "service-account", "headgate-system/headgate", "`namespace/name` to bind the roles to; the name begins those of the roles")
	cmd.Flags().StringVar(&f.out, "out", "", "`file` to write to instead of standard output")
	cmd.Flags().VarP(&f.output, "output", "o", "`format` of the output: yaml or json")
	return cmd
}

func (f *rbacFlags) run(cmd *cobra.Command) error {
	c, err := loadConfig(cmd, config.NoSource)
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("namespaces") && len(c.Namespaces) == 0 {
		return usageError(errors.New("--namespaces is empty: write the namespaces, or leave the flag out for roles in the whole cluster"))
	}
	options := rbac.From(c)
	namespace, name, found := strings.Cut(f.account, "/")
	if !found || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return usageError(fmt.Errorf("--service-account %q: write namespace/name, such as headgate-system/headgate", f.account))
	}
	options.Account = rbac.Account{Namespace: namespace, Name: name}
	text := rbac.YAML(options, f.command(c))
	if f.output == jsonFormat {
		if text, err = rbac.JSON(options); err != nil {
			return &exitError{exitFailed, err}
		}
	}
	if f.out == "" {
		_, err = cmd.OutOrStdout().Write(text)
	} else {
		err = os.WriteFile(f.out, text, 0o644) //nolint:gosec // nothing in it is secret
	}
	if err != nil {
		return &exitError{exitFailed, fmt.Errorf("write the roles: %w", err)}
	}
	return nil
}

// command is what to type to get the same again.
func (f *rbacFlags) command(c config.Config) string {
	text := "headgate rbac"
	if len(c.Namespaces) > 0 {
		text += " --namespaces " + strings.Join(c.Namespaces, ",")
	}
	if f.account != "headgate-system/headgate" {
		text += " --service-account " + f.account
	}
	return text
}

// manifestFormat is the value of -o of commands that print Kubernetes objects.
type manifestFormat string

const (
	yamlFormat manifestFormat = "yaml"
	jsonFormat manifestFormat = "json"
)

// String implements pflag.Value.
func (o *manifestFormat) String() string { return string(*o) }

// Type implements pflag.Value.
func (*manifestFormat) Type() string { return "yaml|json" }

// Set implements pflag.Value.
func (o *manifestFormat) Set(text string) error {
	switch manifestFormat(text) {
	case yamlFormat, jsonFormat:
		*o = manifestFormat(text)
		return nil
	}
	return fmt.Errorf("write yaml or json")
}
