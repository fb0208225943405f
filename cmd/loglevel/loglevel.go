// Package loglevel shows and sets the log level of a running process over its admin socket: Handler answers there, Ask is
// the client. Both the daemon and the VIP process mount it; what is set lasts until they read their configuration again.
package loglevel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"headgate/cmd/config"
)

// Path is where Handler is mounted.
const Path = "/v1/log-level"

// Answer is what the process says: the level that is in force.
type Answer struct {
	Level config.LogLevel `json:"level"`
}

// Parse reads a level. The error says what to write.
func Parse(text string) (config.LogLevel, error) {
	switch l := config.LogLevel(text); l {
	case config.Debug, config.Info, config.Warn, config.Error:
		return l, nil
	}
	return "", fmt.Errorf("%q is no level: write debug, info, warn or error", text)
}

// Of is the slog.Level of a level that Parse or the configuration gave; info for any other.
func Of(l config.LogLevel) slog.Level {
	switch l {
	case config.Debug:
		return slog.LevelDebug
	case config.Warn:
		return slog.LevelWarn
	case config.Error:
		return slog.LevelError
	case config.Info:
	}
	return slog.LevelInfo
}

// name is the level that is written for l: those of slog between ours count as the less severe one.
func name(l slog.Level) config.LogLevel {
	switch {
	case l < slog.LevelInfo:
		return config.Debug
	case l < slog.LevelWarn:
		return config.Info
	case l < slog.LevelError:
		return config.Warn
	}
	return config.Error
}

// maxBody bounds an Answer that is sent.
const maxBody = 256

// Handler answers GET with the level in force and PUT, with an Answer as JSON, by setting it; 400 says what is wrong. It
// checks nobody: mount it where only administrators can reach it.
func Handler(level *slog.LevelVar, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet:
		case http.MethodPut:
			var wanted Answer
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&wanted); err != nil {
				http.Error(w, "decode the level: "+err.Error(), http.StatusBadRequest)
				return
			}
			l, err := Parse(string(wanted.Level))
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			set(level, l, log)
		default:
			w.Header().Set("Allow", "GET, PUT")
			http.Error(w, "use GET or PUT", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(Answer{name(level.Level())}) // a client that left has nothing to be told
	})
}

// set tells the change at both levels, so that a log that falls silent says why.
func set(level *slog.LevelVar, l config.LogLevel, log *slog.Logger) {
	before := name(level.Level())
	if before == l {
		return
	}
	log.Warn("the log level is set at run time", "from", before, "to", l)
	level.Set(Of(l))
}

// ErrUnreachable tells that no process answers on the socket, or that the caller may not ask it.
var ErrUnreachable = errors.New("no process answers")

// ErrRefused tells that a process answered, and did not do what it was asked for.
var ErrRefused = errors.New("not done")

const timeout = 5 * time.Second

// Ask asks the process on the unix socket for its level, and sets it first unless wanted is "".
func Ask(ctx context.Context, socket string, wanted config.LogLevel) (config.LogLevel, error) {
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	method, body := http.MethodGet, ""
	if wanted != "" {
		method, body = http.MethodPut, `{"level":"`+string(wanted)+`"}`
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://admin"+Path, strings.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("make request: %w", err)
	}
	res, err := client.Do(request)
	if err != nil {
		return "", fmt.Errorf("%w on %s: %s", ErrUnreachable, socket, advice(err))
	}
	defer func() { _ = res.Body.Close() }() // read as far as we need
	text, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	var a Answer
	switch {
	case err != nil:
		return "", fmt.Errorf("%w on %s: %w", ErrUnreachable, socket, err)
	case res.StatusCode == http.StatusNotFound:
		return "", fmt.Errorf("%w: the process is of a version whose level is fixed; restart it with this one", ErrRefused)
	case res.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%w: %s", ErrRefused, strings.TrimSpace(string(text)))
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return "", fmt.Errorf("%w on %s: no answer of ours: %w", ErrUnreachable, socket, err)
	}
	return a.Level, nil
}

func advice(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "permission denied: run this as root or as a member of the folder's group"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return "it does not run, or it has another runtimeDir (give --config or --runtime-dir)"
	}
	return err.Error()
}
