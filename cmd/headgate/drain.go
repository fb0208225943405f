package main

import "github.com/spf13/cobra"

func newDrain() *cobra.Command {
	return order(&cobra.Command{
		Use:   "drain",
		Short: "Move all VIPs away from this host, before work on it",
		Long: `drain gives all VIPs of this host to other hosts, without refusing a connection, and waits until they are there. The host
takes none for as long as another one can serve it; that lasts over restarts of the VIP process, until 'headgate undrain'
or a reboot.` + exitCodesOfOrders,
		Example: `  headgate drain && systemctl restart headgate-proxy && headgate undrain`,
		Args:    cobra.NoArgs,
	}, "drain")
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
