package nginxproc

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
)

// busTimeout bounds a call to systemd: a reload of nginx's unit has nginx check its configuration.
const busTimeout = 30 * time.Second

// UnitReloader makes a Config.ReloadUnit that asks systemd, over D-Bus. A user that is not root needs a rule of
// polkit which permits it (systemd's action org.freedesktop.systemd1.manage-units).
func UnitReloader(unit string) func(context.Context) error {
	return func(ctx context.Context) error { return ReloadUnit(ctx, unit) }
}

// ReloadUnit has systemd reload a unit, as `systemctl reload` does, and waits for the end of it.
func ReloadUnit(ctx context.Context, unit string) error {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	bus, err := dbus.NewSystemConnectionContext(ctx)
	if err != nil {
		return fmt.Errorf("reload %s: no way to systemd: %w", unit, err)
	}
	defer bus.Close()
	done := make(chan string, 1) // the library sends once, maybe after we have left
	if _, err := bus.ReloadUnitContext(ctx, unit, "replace", done); err != nil {
		return fmt.Errorf("reload %s: %w", unit, err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("reload %s: systemd says %q: 'journalctl -u %s' tells why", unit, result, unit)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("reload %s: %w", unit, ctx.Err())
	}
}

// Stopping tells whether systemd is stopping a unit for good: somebody wants it so, or the host is going down. It is not
// when the unit is restarted, or when its process has died.
func Stopping(ctx context.Context, unit string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	bus, err := dbus.NewSystemConnectionContext(ctx)
	if err != nil {
		return false, fmt.Errorf("ask systemd about %s: %w", unit, err)
	}
	defer bus.Close()
	jobs, err := bus.ListJobsContext(ctx)
	if err != nil {
		return false, fmt.Errorf("ask systemd about %s: %w", unit, err)
	}
	for _, j := range jobs {
		if j.Unit == unit {
			return j.JobType == "stop", nil
		}
	}
	return false, nil
}
