package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/sync/nginxproc"
)

// request is a Reconfigure that waits for its answer.
type request struct {
	change func(*Config)
	answer chan error // capacity 1, so that the loop never waits for who asked
}

// ErrPending tells that a changed configuration is in force in the loop, and that the proxy could not be brought to it yet:
// that is tried again.
var ErrPending = errors.New("the proxy does not have it yet, and gets it as soon as that is possible")

// Reconfigure has Run's goroutine change its Config between two passes, and runs a pass with it at once. change gets a
// copy; it may replace Builder, Layout, Settings, Listeners, Window, MaxDelay and Applied, and nothing else. It is called on
// Run's goroutine, so that it may use the Builder. Where nginx does not accept what came of it, or does not come up with it,
// the former Config is in force again, and the error says why. ErrPending and ErrBusy as of Moment.
func (l *Loop) Reconfigure(ctx context.Context, change func(*Config)) error {
	r := request{change, make(chan error, 1)}
	select {
	case l.changes <- r:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	}
	// A change that has begun is waited for: half an answer helps nobody.
	return <-r.answer
}

// reconfigure goes over to the changed configuration, and back where the proxy does not take it.
func (l *Loop) reconfigure(ctx context.Context, change func(*Config)) error {
	before, next := l.cfg, l.cfg
	change(&next)
	empty := &model.Model{Settings: next.Settings, Listeners: next.Listeners}
	if _, err := nginxconf.Render(empty, next.Layout); err != nil {
		return err
	}
	l.use(next)
	err := l.passNow(ctx)
	if err == nil {
		return nil
	}
	if !refuses(err) {
		return fmt.Errorf("%w: %w", ErrPending, err)
	}
	l.log.Warn("the changed configuration is given up: the proxy does not take it", "err", err)
	l.use(before)
	if back := l.passNow(ctx); back != nil {
		return fmt.Errorf("%w; the former configuration is in force again, and could not be applied either: %w", err, back)
	}
	return err
}

// use takes a configuration in force from the next pass on.
func (l *Loop) use(c Config) {
	defaultTo(&c.Window, defaultWindow)
	defaultTo(&c.MaxDelay, defaultMaxDelay)
	l.cfg = c
	l.debounce.window, l.debounce.maxDelay = c.Window, c.MaxDelay
}

// passNow runs a pass, unless another daemon must be left alone for a while.
func (l *Loop) passNow(ctx context.Context) error {
	now := time.Now()
	if now.Before(l.rival.until()) {
		l.debounce.change(now)
		return errRival
	}
	return l.run(ctx, now)
}

// refuses tells that it is the configuration that the proxy does not take, and not that it cannot be asked.
func refuses(err error) bool {
	var conf *nginxproc.ConfError
	var load *nginxproc.ReloadError
	return errors.As(err, &conf) || errors.As(err, &load)
}
