package kubewatch

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// RouteKlog makes client-go, which logs through the process-wide klog, log to log: its errors as warnings (we tell of
// them again in our own words where they matter), everything else as debug output. It is called once, by main.
func RouteKlog(log *slog.Logger) {
	klog.SetSlogLogger(slog.New(quieter{log.With("room", "client-go").Handler()}))
}

// quieter lowers the level of what client-go says: "Info" there is what we call debug.
type quieter struct{ slog.Handler }

func lowered(level slog.Level) slog.Level {
	if level >= slog.LevelError {
		return slog.LevelWarn
	}
	return min(level, slog.LevelDebug)
}

// Enabled implements slog.Handler. Verbosity above klog's 0 is below slog's Info, and left out.
func (q quieter) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo && q.Handler.Enabled(ctx, lowered(level))
}

// Handle implements slog.Handler.
func (q quieter) Handle(ctx context.Context, record slog.Record) error {
	record.Level = lowered(record.Level)
	return q.Handler.Handle(ctx, record)
}

// WithAttrs implements slog.Handler.
func (q quieter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quieter{q.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (q quieter) WithGroup(name string) slog.Handler { return quieter{q.Handler.WithGroup(name)} }
