package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	slogjournal "github.com/systemd/slog-journal"

	"headgate/cmd/config"
	"headgate/cmd/loglevel"
	"headgate/sync/kubewatch"
)

// newLogger writes to w, or to systemd's journal when that is wanted and standard error leads there
// (JOURNAL_STREAM, systemd.exec(5)); elsewhere the format journal falls back to text. client-go's own log is
// led into it. The level may be set at any time.
func newLogger(c config.Log, w io.Writer) (*slog.Logger, *slog.LevelVar, error) {
	level := new(slog.LevelVar)
	level.Set(loglevel.Of(c.Level))
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler
	switch {
	case c.Format == config.JSON:
		handler = slog.NewJSONHandler(w, options)
	case c.Format == config.Journal && os.Getenv("JOURNAL_STREAM") != "":
		h, err := slogjournal.NewHandler(&slogjournal.Options{Level: options.Level, ReplaceGroup: journalKey, ReplaceAttr: journalAttr})
		if err != nil {
			return nil, nil, fmt.Errorf("open the journal (log.format journal; write text to do without): %w", err)
		}
		handler = h
	default:
		handler = slog.NewTextHandler(w, options)
	}
	log := slog.New(handler)
	kubewatch.RouteKlog(log)
	return log, level, nil
}

// journalKey makes a key that the journal accepts: upper case, digits and '_'.
func journalKey(key string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key)
}

func journalAttr(_ []string, a slog.Attr) slog.Attr {
	a.Key = journalKey(a.Key)
	return a
}
