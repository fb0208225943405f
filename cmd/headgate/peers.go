package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/cmd/peers"
	"headgate/gateway/model"
	"headgate/sync/admin"
	"headgate/sync/luapush"
)

func newPeers() *cobra.Command {
	output := textOutput
	cmd := &cobra.Command{
		Use:   "peers [UPSTREAM]",
		Short: "Show the upstreams, or how the proxy sees the peers of one",
		Long: `peers asks the running daemon of this host, and through it the proxy. Without an argument it lists all upstreams with
their counts. With one it shows each peer: address, weight, state, requests in flight, failures in a row, and the
share of its weight that it gets (less than 100% during a slow start). States:

  up        gets requests
  draining  its pod ends: it keeps sticky sessions, and gets new requests only when no other peer is left
  down      its active health check fails: no requests while another peer is up
  ejected   too many requests to it failed: no requests for the time that is shown

UPSTREAM is namespace/service/port, with # and letters behind it where several Ingresses balance one Service
differently. The beginning will do while it stands for one alone: namespace/service.

Exit codes:
  0  shown
  1  there is no such upstream, or the proxy does not answer; it is printed
  2  no daemon answers (or this user may not ask it)
  3  wrong usage or configuration`,
		Example: `  headgate peers
  headgate peers shop/web
  headgate peers shop/web/80 -o json | jq '.peers[] | select(.ejectedMs > 0)'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfig(cmd, config.NoSource)
			if err != nil {
				return err
			}
			name := ""
			if len(args) == 1 {
				if name = args[0]; name == "" {
					return usageError(errors.New("the name of the upstream is empty: write namespace/service/port, or nothing"))
				}
			}
			body, err := admin.AskPeers(cmd.Context(), c.RuntimeDir, name)
			if err != nil {
				return asked(err)
			}
			return showPeers(cmd, body, name != "", output)
		},
	}
	configFlags(cmd, "runtime-dir")
	outputFlag(cmd, &output)
	return cmd
}

// asked gives the exit code of a question that was not answered.
func asked(err error) error {
	if errors.Is(err, admin.ErrRefused) {
		return &exitError{exitFailed, err}
	}
	return &exitError{exitUnreachable, err}
}

func showPeers(cmd *cobra.Command, body []byte, single bool, as output) error { //nolint:revive // two kinds of answer
	var list peers.List
	var one luapush.UpstreamPeers
	answer, text := any(&list), func(w io.Writer) error { return peers.WriteList(w, list) }
	if single {
		answer, text = &one, func(w io.Writer) error { return peers.WriteUpstream(w, one) }
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("decode the daemon's answer: %w", err)}
	}
	return printAs(cmd.OutOrStdout(), as, answer, text)
}

// upstreams are those of the last build.
func (d *daemon) upstreams() []*model.Upstream {
	if r := d.loop.Status().Result; r != nil {
		return r.Model.Upstreams
	}
	return nil
}

// accept lets go of what the guard holds.
func (d *daemon) accept() admin.Acceptance {
	report := d.guard.Accept()
	if report.Since.IsZero() {
		return admin.Acceptance{}
	}
	return admin.Acceptance{Held: assemble.Held(report)}
}
