package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"headgate/cmd/config"
)

// heedHangup decides what SIGHUP means while the daemon runs: a terminal that closed, or somebody who hopes that the
// configuration is read again. Where the proxy ends with the daemon, the result ends, as after SIGTERM: a proxy that
// was started for a look must not stay when its terminal is gone. Elsewhere it is told and ignored. A process that was
// started with SIGHUP ignored (nohup(1)) goes on ignoring it. The caller calls the function in the end.
func heedHangup(ctx context.Context, proxy config.Proxy, log *slog.Logger) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if signal.Ignored(syscall.SIGHUP) {
		return ctx, cancel
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangups:
			}
			if proxy.StopWithDaemon {
				log.Info("SIGHUP: stopping, with the proxy (proxy.stopWithDaemon)")
				cancel()
				return
			}
			log.Info("SIGHUP is ignored: 'headgate reload' reads the configuration again")
		}
	}()
	return ctx, func() {
		cancel()
		<-ended
		signal.Stop(hangups)
	}
}
