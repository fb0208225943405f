package main

import (
	"context"
	"errors"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"headgate/cmd/config"
	"headgate/sync/gossip"
)

func newGossip() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gossip",
		Short: "The secret of the hosts that share VIPs, and their membership",
		Long: `The hosts that share VIPs find each other by gossip, which is encrypted with keys derived from one secret. These
commands make that secret, show who is a member and what keeps others from it, and replace the secret on all hosts
without a gap.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newGossipGenkey(), newGossipStatus(), newGossipRotate())
	return cmd
}

func newGossipGenkey() *cobra.Command {
	out := ""
	cmd := &cobra.Command{
		Use:   "genkey",
		Short: "Make a new secret",
		Long: `genkey draws a secret of 32 bytes. Write it to a file that only root and the daemon can read (mode 0600 or 0640), copy that
file to all hosts, and name it in the configuration (gossip.keyFile). A file that exists is never written over.

Exit codes:
  0  written
  1  the file cannot be written
  3  wrong usage`,
		Example: `  headgate gossip genkey --out /etc/headgate/gossip.key
  headgate gossip genkey | ssh edge2 'umask 077; cat > /etc/headgate/gossip.key'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			secret := gossip.NewSecret()
			var err error
			if out != "" {
				err = gossip.WriteSecretFile(out, secret)
			} else {
				_, err = io.WriteString(cmd.OutOrStdout(), secret.Reveal()+"\n")
			}
			if err != nil {
				return &exitError{exitFailed, err}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "new `file` to write to, with mode 0600, instead of standard output")
	return cmd
}

func newGossipStatus() *cobra.Command {
	output := textOutput
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the members, the keys by their IDs, and what keeps hosts out",
		Long: `status asks the VIP process of this host who is a member of the cluster, which keys are valid, and what is wrong between
this host and others: a wrong key, another cluster's name, a name that two hosts bear, a peer that cannot be reached. What is
wrong stands first. A key is shown by its ID, which tells nothing about it.

Exit codes:
  0  everything is as it should be
  1  something is wrong; it is printed
  2  no VIP process answers (or this user may not ask it)
  3  wrong usage or configuration`,
		Example: `  headgate gossip status
  headgate gossip status -o json | jq '.conditions[] | .kind + " " + .peer + ": " + .message'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			socket, err := gossipSocket(cmd)
			if err != nil {
				return err
			}
			status, err := gossip.Ask(cmd.Context(), socket)
			if err != nil {
				return &exitError{exitUnreachable, err}
			}
			if err := printAs(cmd.OutOrStdout(), output, status, status.WriteText); err != nil {
				return err
			}
			if status.Degraded() {
				return &exitError{code: exitFailed}
			}
			return nil
		},
	}
	configFlags(cmd, "runtime-dir")
	outputFlag(cmd, &output)
	return cmd
}

func newGossipRotate() *cobra.Command {
	output, finish := textOutput, false
	cmd := &cobra.Command{
		Use:   "rotate-key",
		Short: "Replace the secret on all hosts, without a gap",
		Long: `rotate-key draws a new secret and brings it to all members: first all accept it, then all use it, then the old one is
accepted no more. If a member cannot take it, nothing changes. What each host did is printed.

If a configured peer is away, the old secret stays accepted: that host fetches the new one when it comes back. Run rotate-key
--finish then. A host that is still away when the rotation is finished is refused afterwards, and told so on both sides; copy
the file gossip.keyring from the state directory of another host to it, as its gossip.keyFile.

Each host keeps its secrets in gossip.keyring in its state directory; what gossip.keyFile holds counts again only when somebody
changes it. A new host needs a copy of that keyring as its gossip.keyFile.

The new secret travels under the old one. If somebody else may have the old one, do not rotate: write a new gossip.keyFile on all
hosts, remove gossip.keyring, and restart the VIP process.

Exit codes:
  0  the new key is in use on all members
  1  the key was not rotated, or a host lacks the new one; it is printed
  2  no VIP process answers (or this user may not ask it)
  3  wrong usage or configuration`,
		Example: `  headgate gossip rotate-key
  headgate gossip rotate-key --finish`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			socket, err := gossipSocket(cmd)
			if err != nil {
				return err
			}
			ask := gossip.AskToRotate
			if finish {
				ask = gossip.AskToFinish
			}
			return rotate(cmd, socket, ask, output)
		},
	}
	configFlags(cmd, "runtime-dir")
	outputFlag(cmd, &output)
	cmd.Flags().BoolVar(&finish, "finish", false, "accept the old secret no more, and draw no new one")
	return cmd
}

func rotate(cmd *cobra.Command, socket string, ask func(context.Context, string) (gossip.Rotation, error), as output) error {
	r, err := ask(cmd.Context(), socket)
	if errors.Is(err, gossip.ErrUnreachable) {
		return &exitError{exitUnreachable, err}
	}
	if printing := printAs(cmd.OutOrStdout(), as, r, r.WriteText); printing != nil {
		return printing
	}
	if err != nil {
		return &exitError{exitFailed, err}
	}
	if !r.Finished {
		return &exitError{code: exitFailed}
	}
	return nil
}

// gossipSocket is the admin socket of the VIP process.
func gossipSocket(cmd *cobra.Command) (string, error) {
	c, err := loadConfig(cmd, config.NoSource)
	if err != nil {
		return "", err
	}
	return filepath.Join(c.RuntimeDir, "vip", "vip.sock"), nil
}
