package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"headgate/cmd/config"
	"headgate/cmd/loglevel"
	"headgate/cmd/vip"
)

func newVIP() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vip",
		Short: "Share addresses between hosts: one owner each, taken over when it fails",
		Long: `vip run is the process that shares VIPs with other hosts; it needs neither the daemon nor the cluster, and
asks the proxy on this host whether it can serve. The other commands ask that process, or tell it what to do.

A VIP is configured in headgate.yaml:

  gossip: {peers: [192.0.2.11, 192.0.2.12], keyFile: /etc/headgate/gossip.key}
  vip: {interface: eth0, addresses: [192.0.2.10]}`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError(fmt.Errorf("write what to do; see '%s --help'", cmd.CommandPath()))
		},
	}
	cmd.AddCommand(newVIPRun(), newVIPStatus(), newVIPMove(), newVIPRelease(), newVIPCleanup(), newVIPConfigured(), newVIPImport())
	return cmd
}

func newVIPRun() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the process that owns VIPs",
		Long: `run shares the VIPs of the configuration with the hosts of gossip.peers until SIGTERM or SIGINT. Then it hands
them over, without refusing a connection; what nobody could take stays in the kernel for a minute, for the next start.

It needs the capabilities NET_ADMIN and NET_RAW, and SYS_NICE for the real-time scheduler (vip.realtime).

Exit codes:
  0  stopped by a signal
  1  something failed; it is printed
  3  wrong usage or configuration`,
		Example: `  headgate vip run --config /etc/headgate/headgate.yaml
  headgate vip run --set vip.interface=eth0 --set vip.addresses=192.0.2.10`,
		Args: cobra.NoArgs,
		RunE: runVIP,
	}
	configFlags(cmd, "state-dir", "runtime-dir", "log-level", "log-format")
	return cmd
}

func runVIP(cmd *cobra.Command, _ []string) error {
	c, err := loadConfig(cmd, config.NoSource)
	if err != nil {
		return err
	}
	log, level, err := newLogger(c.Log, cmd.ErrOrStderr())
	if err != nil {
		return usageError(err)
	}
	if c.VIP.Realtime {
		if err := vip.Realtime(); err != nil {
			log.Warn("without the real-time scheduler a busy host may be taken for a dead one: give the process CAP_SYS_NICE, or write vip.realtime: false", "err", err)
		}
	}
	p, err := vip.New(cmd.Context(), c, version, log)
	if errors.Is(err, vip.ErrNothing) {
		return usageError(err)
	}
	if err != nil {
		return &exitError{exitFailed, err}
	}
	p.LogLevel = loglevel.Handler(level, log)
	log.Info("the VIP process starts", "version", version, "scheduler", vip.Scheduler())
	if err := p.Run(cmd.Context()); err != nil {
		return &exitError{exitFailed, err}
	}
	log.Info("the VIP process stopped")
	return nil
}

func newVIPStatus() *cobra.Command {
	as, watch := textOutput, false
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show who owns the VIPs and why, and how the hosts hear each other",
		Long: `status asks the VIP process of this host. What is wrong stands first.

Exit codes:
  0  everything is as it should be
  1  degraded; it is printed
  2  no VIP process answers (or this user may not ask it)
  3  wrong usage or configuration`,
		Example: `  headgate vip status
  headgate vip status --watch
  headgate vip status -o json | jq '.vips[] | {name, owner, term}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd, config.NoSource)
			if err != nil {
				return err
			}
			if watch {
				return watchVIP(cmd, vip.PathsOf(c), as)
			}
			s, err := vip.Ask(cmd.Context(), vip.PathsOf(c))
			if err != nil {
				return &exitError{exitUnreachable, err}
			}
			return showVIP(cmd, s, as)
		},
	}
	configFlags(cmd, "runtime-dir")
	outputFlag(cmd, &as)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again every second, until interrupted; with -o json one line each")
	return cmd
}

func showVIP(cmd *cobra.Command, s vip.Status, as output) error {
	err := printAs(cmd.OutOrStdout(), as, s, s.WriteText)
	if err == nil && len(s.Degraded) > 0 {
		return &exitError{code: exitFailed}
	}
	return err
}

// clearScreen is ECMA-48: cursor home, erase all.
const clearScreen = "\x1b[H\x1b[2J"

func watchVIP(cmd *cobra.Command, paths vip.Paths, as output) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	if as == jsonOutput {
		as = jsonLine
	}
	w := cmd.OutOrStdout()
	for {
		if as == textOutput {
			_, _ = io.WriteString(w, clearScreen) // the next write meets the same end
		}
		s, err := vip.Ask(cmd.Context(), paths)
		if err == nil {
			err = printAs(w, as, s, s.WriteText)
		} else if cmd.Context().Err() == nil {
			_, err = fmt.Fprintln(w, err) // it may come back: that is what one watches for
		}
		if err != nil && cmd.Context().Err() == nil {
			return &exitError{exitFailed, err}
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-ticker.C:
		}
	}
}

// exitCodesOfOrders is what the help of each order ends with.
const exitCodesOfOrders = `

Exit codes:
  0  done
  1  not done; the reason is printed
  2  no VIP process answers (or this user may not ask it)
  3  wrong usage or configuration`

func newVIPMove() *cobra.Command {
	return order(&cobra.Command{
		Use:   "move VIP HOST",
		Short: "Move a VIP to another host, without refusing a connection",
		Long: `move asks the owner of the VIP, this host or another, to give it to HOST, and waits until it is there. HOST keeps it for
as long as it can serve it, even against a host of a higher priority. VIP is a name or an address.` + exitCodesOfOrders,
		Example: `  headgate vip move 192.0.2.10 edge2`,
		Args:    named("VIP", "HOST"),
	}, "move")
}

func newVIPRelease() *cobra.Command {
	return order(&cobra.Command{
		Use:   "release VIP",
		Short: "Give a VIP up on this host",
		Long: `release gives the VIP to another host, or to nobody when no other host can serve it. This host does not take it again
until 'headgate undrain', a 'headgate vip move' to it, or a restart of its VIP process.` + exitCodesOfOrders,
		Example: `  headgate vip release 192.0.2.10`,
		Args:    named("VIP"),
	}, "release")
}

// named wants one argument for each name, and no more.
func named(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return fmt.Errorf("%d arguments are given: write %s; see '%s --help'", len(args), strings.Join(names, " and "), cmd.CommandPath())
	}
}

// order makes a command that tells the VIP process what to do; its arguments are VIP and HOST.
func order(cmd *cobra.Command, name string) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := loadConfig(cmd, config.NoSource)
		if err != nil {
			return err
		}
		var o vip.Order
		if len(args) > 0 {
			o.VIP = args[0]
		}
		if len(args) > 1 {
			o.Host = args[1]
		}
		message, err := vip.Command(cmd.Context(), vip.PathsOf(c), name, o)
		if errors.Is(err, vip.ErrRefused) {
			return &exitError{exitFailed, err}
		}
		if err != nil {
			return &exitError{exitUnreachable, err}
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), message)
		return err
	}
	configFlags(cmd, "runtime-dir")
	return cmd
}

func newVIPCleanup() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Take the VIPs off this host after its VIP process died (for ExecStopPost)",
		Long: `cleanup removes the addresses that a dead VIP process left in the kernel; they would expire by themselves after two seconds.
What the proxy is answering then gets that time to end (vip.keepFlows: 0s cuts it). While no other host could take the addresses it
leaves them: the next start takes them over, and nothing is lost by a restart. It does nothing while the process runs.`,
		Example: `  ExecStopPost=/usr/bin/headgate vip cleanup`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := unitConfig(cmd) // a mistake, which the process has told, leaves no address behind
			if err != nil {
				return err
			}
			log, _, err := newLogger(c.Log, cmd.ErrOrStderr())
			if err != nil {
				return usageError(err)
			}
			text, err := vip.Cleanup(c, log)
			if err != nil {
				return &exitError{exitFailed, err}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
	configFlags(cmd, "runtime-dir")
	return cmd
}
