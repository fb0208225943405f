package vip

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"headgate/vip/speaker"
)

// notifySystemd tells systemd that we are up once it is known whose the VIPs are, what we do, and that the speaker's
// goroutine runs: its status is young, or the watchdog is not fed.
func (p *Process) notifySystemd(ctx context.Context) error {
	every := 500 * time.Millisecond
	if watchdog, err := daemon.SdWatchdogEnabled(false); err == nil && watchdog > 0 {
		every = min(every, watchdog/3)
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	ready, last := false, ""
	for {
		select {
		case <-ctx.Done():
			p.send(daemon.SdNotifyStopping)
			return nil
		case <-ticker.C:
		}
		s := p.speaker.Status()
		if time.Since(s.Time) < time.Second {
			p.send(daemon.SdNotifyWatchdog)
		}
		looksAround := slices.ContainsFunc(s.VIPs, func(v speaker.VIPStatus) bool { return v.State == speaker.Init })
		if !ready && !s.Time.IsZero() && !looksAround {
			ready = true
			p.send(daemon.SdNotifyReady)
		}
		if now := line(s); now != last {
			last = now
			p.send("STATUS=" + now)
		}
	}
}

// send tells systemd, or nobody when NOTIFY_SOCKET is not set. Whoever does not listen must not stop a VIP.
func (p *Process) send(message string) {
	if _, err := daemon.SdNotify(false, message); err != nil {
		p.log.Warn("systemd does not listen", "err", err)
	}
}

// line does not change while nothing does.
func line(s speaker.Status) string {
	var active []string
	for _, v := range s.VIPs {
		if v.State == speaker.Active {
			active = append(active, v.Name)
		}
	}
	alive := 0
	for _, peer := range s.Peers {
		if peer.Alive {
			alive++
		}
	}
	const most = 5
	names := strings.Join(active[:min(len(active), most)], ", ")
	if len(active) > most {
		names += ", …"
	}
	text := fmt.Sprintf("owns %d of %d VIPs", len(active), len(s.VIPs))
	if names != "" {
		text += " (" + names + ")"
	}
	text += fmt.Sprintf("; %d other hosts", alive)
	switch {
	case s.Draining:
		text += "; drained"
	case !s.Ready:
		text += "; the proxy is not ready"
	}
	return text
}
