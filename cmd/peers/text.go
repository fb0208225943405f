package peers

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"headgate/sync/luapush"
)

const columnGap = 2

// WriteList prints a list for people.
func WriteList(w io.Writer, l List) error {
	t := tabwriter.NewWriter(w, 0, 0, columnGap, ' ', 0)
	fmt.Fprintln(t, "UPSTREAM\tPEERS\tDRAINING\tDOWN\tEJECTED\tIN FLIGHT\tNOTE")
	for _, u := range l.Upstreams {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", u.Upstream, u.Peers, u.Draining, u.Down, u.Ejected, u.InFlight, note(u))
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write the upstreams: %w", err)
	}
	return nil
}

func note(u Upstream) string {
	switch {
	case u.Peers == 0:
		return "no peers: 503"
	case u.Panic:
		return "PANIC: too many are out, all are used"
	case u.Down >= u.Peers-u.Draining && u.Down > 0:
		return "all are down: they are used all the same"
	}
	return "-"
}

// WriteUpstream prints one upstream for people.
func WriteUpstream(w io.Writer, u luapush.UpstreamPeers) error {
	t := tabwriter.NewWriter(w, 0, 0, columnGap, ' ', 0)
	fmt.Fprintf(w, "%s: %s, %d peers, revision %d%s\n", u.Upstream, u.Algorithm, len(u.Peers), u.Revision, state(u))
	if len(u.Peers) > 0 {
		fmt.Fprintln(t, "ADDRESS\tWEIGHT\tSTATE\tIN FLIGHT\tFAILURES\tSHARE")
	}
	for _, p := range u.Peers {
		fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%d\t%.0f%%\n", p.Address, p.Weight, State(p), p.InFlight, p.Failures, 100*p.Share)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write the peers: %w", err)
	}
	return nil
}

func state(u luapush.UpstreamPeers) string {
	text := ""
	if u.Panic {
		text += "; PANIC: too many are out, all are used"
	}
	if u.Queued > 0 {
		text += fmt.Sprintf("; %d requests wait for a peer", u.Queued)
	}
	return text
}

// State names the state of a peer: "up", or all that keeps it from being picked.
func State(p luapush.PeerView) string {
	var words []string
	if p.Draining {
		words = append(words, "draining")
	}
	if p.Down {
		words = append(words, "down")
	}
	if p.EjectedMs > 0 {
		left := time.Duration(p.EjectedMs) * time.Millisecond
		words = append(words, fmt.Sprintf("ejected for %s (%d so far)", left.Round(time.Second/10), p.Ejections))
	}
	if len(words) == 0 {
		return "up"
	}
	return strings.Join(words, ", ")
}
