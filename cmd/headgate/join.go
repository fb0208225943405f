package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"headgate/cmd/config"
	"headgate/cmd/setup"
	"headgate/cmd/shell"
	"headgate/cmd/vip"
	"headgate/sync/gossip"
)

type joinFlags struct {
	setupFlags
	show bool
}

func newJoin() *cobra.Command {
	f := &joinFlags{}
	cmd := &cobra.Command{
		Use:   "join [STRING | -]",
		Short: "Write the configuration of a further host, from a line that another one printed",
		Long: `join takes the string that 'headgate init' printed on the first host: the name of the cluster of hosts, their addresses,
the VIPs, and their SECRET. Whoever has the string can take the VIPs: carry it as a password. With - it is read from standard
input and stays out of the list of processes and of the shell's history.

It writes the same files as init, under the same rules. What a host has of its own no string tells: --interface and
--kubeconfig (or --api-server with --token-file and --ca, or --manifests), which are asked for on a terminal.

--show prints the string of a host that is set up, for the next one.

Exit codes:
  0  written, or shown
  1  not written; the reason is printed
  3  wrong usage, or a string or an answer that cannot be used`,
		Example: `  ssh edge1 headgate join --show | ssh edge2 headgate join - --kubeconfig /etc/headgate/kubeconfig
  headgate join headgate-join-1.… --interface eth0 --kubeconfig /root/headgate.kubeconfig`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.show {
				return f.print(cmd, args)
			}
			return f.run(cmd, args)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.show, "show", false, "print the string for the next host, with the secret, and write nothing")
	return cmd
}

// maxString bounds what is read from standard input.
const maxString = 64 << 10

func joinString(cmd *cobra.Command, args []string) (string, error) {
	switch {
	case len(args) == 0:
		return "", errors.New("write the string that 'headgate init' printed on another host, or - to read it from standard input")
	case args[0] != "-":
		return args[0], nil
	}
	text, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxString))
	if err != nil {
		return "", fmt.Errorf("read the string from standard input: %w", err)
	}
	// The whole line of init may have been copied.
	return strings.TrimPrefix(strings.TrimSpace(string(text)), "headgate join "), nil
}

func (f *joinFlags) run(cmd *cobra.Command, args []string) error {
	text, err := joinString(cmd, args)
	if err != nil {
		return usageError(err)
	}
	j, err := setup.ParseJoin(text)
	if err != nil {
		return usageError(err)
	}
	if err := setup.Permit(f.config, f.how()); err != nil {
		return &exitError{exitFailed, err}
	}
	vips := joinedVIPs(j)
	if args[0] != "-" && setup.IsTerminal(cmd.InOrStdin()) {
		t := setup.NewTerminal(cmd.InOrStdin(), cmd.ErrOrStderr())
		err := f.askSource(cmd.Context(), t)
		if err == nil {
			err = f.askInterface(cmd.Context(), t, vips)
		}
		if err != nil {
			return &exitError{exitFailed, err}
		}
	}
	c, kubeconfig, err := f.compose(j, vips)
	if err != nil {
		return usageError(err)
	}
	if err := setup.TakeSecret(c.Gossip.KeyFile, j.Secret, f.how()); err != nil {
		return &exitError{exitFailed, err}
	}
	if err := f.write(cmd.ErrOrStderr(), c, kubeconfig); err != nil {
		return &exitError{exitFailed, err}
	}
	return f.tell(cmd, c, j)
}

func joinedVIPs(j setup.Join) []string {
	vips := slices.Clone(j.Addresses)
	for _, g := range j.Groups {
		vips = append(vips, g.Addresses...)
	}
	return vips
}

func (f *joinFlags) compose(j setup.Join, vips []string) (c config.Config, kubeconfig []byte, err error) {
	if err := f.network(vips); err != nil {
		return c, nil, err
	}
	a := setup.Answers{Interface: f.iface, Own: f.address}
	if a.Kubeconfig, kubeconfig, err = f.source(); err != nil {
		return c, nil, err
	}
	if a.Manifests, err = f.folders(); err != nil {
		return c, nil, err
	}
	if a.KeyFile, err = f.beside("gossip.key"); err != nil {
		return c, nil, err
	}
	c, err = a.ComposeJoin(j)
	return c, kubeconfig, err
}

func (f *joinFlags) tell(cmd *cobra.Command, c config.Config, j setup.Join) error {
	var b strings.Builder
	fmt.Fprintf(&b, `
This host is set up for the cluster %s, with %s.
Next:
  1. look whether everything is well: headgate doctor --config %s
  2. start it: systemctl enable --now headgate headgate-vip
`, c.Gossip.Cluster, strings.Join(joinedVIPs(j), ", "), shell.Word(f.config))
	if !slices.Contains(j.Peers, f.address) {
		fmt.Fprintf(&b, "  3. add %s to gossip.peers on the other hosts, so that each finds this one by itself, and restart headgate-vip there\n", f.address)
	}
	if _, err := io.WriteString(cmd.ErrOrStderr(), b.String()); err != nil {
		return &exitError{exitFailed, fmt.Errorf("print: %w", err)}
	}
	return nil
}

// print shows the string of a host that is set up.
func (f *joinFlags) print(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(errors.New("--show takes no string: it prints one"))
	}
	c, err := config.Load(f.config, nil, config.NoSource)
	if err != nil {
		return usageError(fmt.Errorf("configuration:\n%w", err))
	}
	if len(c.VIP.All()) == 0 || len(c.Gossip.Peers) == 0 {
		return usageError(fmt.Errorf("%s has no VIP, or names no hosts in gossip.peers: there is nothing to join", f.config))
	}
	secret, err := secretInUse(cmd, c)
	if err != nil {
		return &exitError{exitFailed, err}
	}
	j := setup.JoinOf(c, secret)
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), j.Reveal()); err != nil {
		return &exitError{exitFailed, fmt.Errorf("print: %w", err)}
	}
	if setup.IsTerminal(cmd.InOrStdin()) {
		_, _ = fmt.Fprint(cmd.ErrOrStderr(), joinWarning) // the string is what counts
	}
	return nil
}

// secretInUse is the secret that the hosts use now: after a rotation it is in the keyring, and the file of the configuration
// still has the one before. The running process knows; without one the keyring goes first.
func secretInUse(cmd *cobra.Command, c config.Config) (gossip.Secret, error) {
	paths := vip.PathsOf(c)
	secrets, err := gossip.ReadSecretFile(paths.Keyring)
	if errors.Is(err, fs.ErrNotExist) {
		secrets, err = gossip.ReadSecretFile(c.Gossip.KeyFile)
	}
	if err != nil {
		return gossip.Secret{}, err
	}
	status, err := gossip.Ask(cmd.Context(), paths.Socket)
	if err != nil || len(status.Keys) == 0 {
		return secrets[0], nil //nolint:nilerr // nobody runs who could say more
	}
	if first, err := gossip.ReadSecretFile(c.Gossip.KeyFile); err == nil {
		secrets = append(secrets, first...)
	}
	for _, s := range secrets {
		if s.ID() == status.Keys[0] {
			return s, nil
		}
	}
	return gossip.Secret{}, fmt.Errorf("the running VIP process uses the key %s, which is neither in %s nor in %s: restart it, or see headgate gossip status",
		status.Keys[0], paths.Keyring, c.Gossip.KeyFile)
}
