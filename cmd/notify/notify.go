// Package notify tells systemd how the daemon is (sd_notify(3)): READY once the proxy serves a complete
// state (the last known good one, where the source is away), a line of STATUS whenever it changes, STOPPING at the
// end, and WATCHDOG as long as the loop is alive. It asks for the status and sends words; cmd/headgate runs it.
package notify

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"headgate/sync/admin"
)

// interval is how often the status is looked at: systemd shows it to people. Until READY somebody waits, and it is
// looked at more often.
const (
	interval      = time.Second
	firstInterval = 50 * time.Millisecond
)

// Send hands a message to systemd, or to nobody when NOTIFY_SOCKET is not set.
func Send(message string) error {
	if _, err := daemon.SdNotify(false, message); err != nil {
		return fmt.Errorf("tell systemd: %w", err)
	}
	return nil
}

// Run tells what changes until ctx ends. The watchdog is fed once a second while beats counts up: with a loop that
// hangs systemd hears nothing, and after WatchdogSec ends the process. An error of send is final: whoever listened is
// gone for good.
func Run(ctx context.Context, status func() admin.Status, beats func() uint64, send func(message string) error) error {
	ticker := time.NewTicker(firstInterval)
	defer ticker.Stop()
	ready, last, beaten := false, "", uint64(0)
	for {
		if now := beats(); now != beaten {
			beaten = now
			if err := send(daemon.SdNotifyWatchdog); err != nil {
				return err
			}
		}
		s := status()
		// The last known good state counts: a host that boots during an outage of its cluster is up.
		if (s.Ready || s.LastKnownGood) && !ready {
			ready = true
			ticker.Reset(interval)
			if err := send(daemon.SdNotifyReady); err != nil {
				return err
			}
		}
		if now := line(s); now != last {
			last = now
			if err := send("STATUS=" + now); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return send(daemon.SdNotifyStopping)
		case <-ticker.C:
		}
	}
}

// line is short and does not change while nothing does.
func line(s admin.Status) string {
	if why := s.Degraded(); len(why) > 0 {
		return "degraded: " + why[0]
	}
	return fmt.Sprintf("revision %d: %d hosts, %d routes; %d problems", s.Revision.Applied, s.Counts.Hosts, s.Counts.Routes, len(s.Problems))
}
