package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"headgate/cmd/check"
	"headgate/cmd/config"
	"headgate/cmd/setup"
	"headgate/cmd/vip"
)

func newDrain() *cobra.Command {
	wait := time.Minute
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Move all VIPs away from this host, before work on it",
		Long: `drain gives all VIPs of this host to other hosts, without refusing a connection, and waits until they are there. The host
takes none for as long as another one can serve it; that lasts over restarts of the VIP process, until 'headgate undrain'
or a reboot.

Then it waits, for --wait at most, until the connections that were open have ended, and shows how many are left: those that
the kernel can lead on from the new owner go on here meanwhile (vip.keepFlows). After that time the host is drained all the
same.` + exitCodesOfOrders,
		Example: `  headgate drain && systemctl restart headgate-proxy && headgate undrain
  headgate drain --wait 0s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return usageError(errors.New("--wait is negative: write a time such as 1m, or 0s not to wait"))
			}
			c, err := loadConfig(cmd, config.NoSource)
			if err != nil {
				return err
			}
			if err := give(cmd, c, "drain"); err != nil {
				return err
			}
			return awaitConnections(cmd, c, wait)
		},
	}
	configFlags(cmd, "runtime-dir")
	cmd.Flags().DurationVar(&wait, "wait", wait, "`time` to wait until connections have ended; 0s does not wait")
	return cmd
}

// give gives an order and prints what happened.
func give(cmd *cobra.Command, c config.Config, name string) error {
	message, err := vip.Command(cmd.Context(), vip.PathsOf(c), name, vip.Order{})
	if errors.Is(err, vip.ErrRefused) {
		return &exitError{exitFailed, err}
	}
	if err != nil {
		return &exitError{exitUnreachable, err}
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), message)
	return err
}

// awaitConnections shows how many connections to the VIPs are open until none is, for at most limit.
func awaitConnections(cmd *cobra.Command, c config.Config, limit time.Duration) error {
	s, err := vip.Ask(cmd.Context(), vip.PathsOf(c))
	if err != nil {
		return &exitError{exitUnreachable, err}
	}
	for _, v := range s.VIPs {
		if string(v.Owner) == string(s.Host) {
			return nil // new ones still come
		}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	defer cancel()
	p := vip.Progress{W: cmd.OutOrStdout(), Overwrite: setup.IsTerminal(cmd.InOrStdin())}
	left, err := p.Wait(ctx, func() (int, error) { return check.Established(toVIPs(c)) })
	switch {
	case err != nil:
		return &exitError{exitFailed, err}
	case left == 0:
		err = p.End("no connection to the VIPs is open")
	case cmd.Context().Err() != nil:
		return &exitError{exitFailed, errors.New("interrupted; the host stays drained")}
	default:
		err = p.End("%d connections to the VIPs are still open after %s; the host is drained all the same", left, limit)
	}
	if err != nil {
		return &exitError{exitFailed, err}
	}
	return nil
}

// toVIPs tells whether a connection is one of a client to a VIP.
func toVIPs(c config.Config) func(netip.AddrPort) bool {
	ports := map[uint16]bool{}
	for _, a := range slices.Concat(c.Listeners.HTTP, c.Listeners.HTTPS) {
		ports[a.Port()] = true
	}
	vips := map[netip.Addr]bool{}
	for _, g := range c.VIP.All() {
		for _, text := range g.Addresses {
			if p, err := config.ParseVIP(text); err == nil {
				vips[p.Addr()] = true
			}
		}
	}
	return func(local netip.AddrPort) bool { return ports[local.Port()] && vips[local.Addr()] }
}

func newUndrain() *cobra.Command {
	return order(&cobra.Command{
		Use:   "undrain",
		Short: "Let this host take VIPs again",
		Long: `undrain ends 'headgate drain' and 'headgate vip release'. VIPs that prefer this host come back after their preempt
delay.` + exitCodesOfOrders,
		Example: `  headgate undrain`,
		Args:    cobra.NoArgs,
	}, "undrain")
}
