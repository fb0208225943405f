package loglevel

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"headgate/cmd/config"
)

// serve puts h on a socket, as the admin sockets do.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "admin.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return socket
}

func TestTheLevelIsShownAndSet(t *testing.T) {
	level, out := new(slog.LevelVar), new(bytes.Buffer)
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
	mux := http.NewServeMux()
	mux.Handle(Path, Handler(level, log))
	socket := serve(t, mux)

	if got, err := Ask(t.Context(), socket, ""); err != nil || got != config.Info {
		t.Fatalf("at first %q, %v", got, err)
	}
	for _, l := range []config.LogLevel{config.Debug, config.Error, config.Warn, config.Info} {
		if got, err := Ask(t.Context(), socket, l); err != nil || got != l {
			t.Errorf("set %q: %q, %v", l, got, err)
		}
		if got, err := Ask(t.Context(), socket, ""); err != nil || got != l || level.Level() != Of(l) {
			t.Errorf("after %q: %q, %v, %v", l, got, err, level.Level())
		}
	}
	if n := strings.Count(out.String(), "the log level is set at run time"); n != 3 { // not when it was error
		t.Errorf("told %d times:\n%s", n, out)
	}
	if _, err := Ask(t.Context(), socket, "loud"); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), `"loud" is no level: write debug`) {
		t.Errorf("a level that is none: %v", err)
	}
	if level.Level() != slog.LevelInfo {
		t.Errorf("a refused level changed it to %v", level.Level())
	}
}

func TestWhoCannotAnswer(t *testing.T) {
	if _, err := Ask(t.Context(), filepath.Join(t.TempDir(), "none.sock"), ""); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "it does not run") {
		t.Errorf("no socket: %v", err)
	}
	if _, err := Ask(t.Context(), serve(t, http.NotFoundHandler()), config.Debug); !errors.Is(err, ErrRefused) {
		t.Errorf("another version: %v", err)
	}
	nonsense := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })
	if _, err := Ask(t.Context(), serve(t, nonsense), ""); !errors.Is(err, ErrUnreachable) {
		t.Errorf("another server: %v", err)
	}
}

func TestHandlerRefusesWhatIsNoRequestOfOurs(t *testing.T) {
	for _, c := range []struct {
		method, body string
		code         int
	}{
		{http.MethodPost, `{"level":"debug"}`, http.StatusMethodNotAllowed},
		{http.MethodPut, `debug`, http.StatusBadRequest},
		{http.MethodPut, `{}`, http.StatusBadRequest},
		{http.MethodPut, `{"level":"` + strings.Repeat("x", 1000) + `"}`, http.StatusBadRequest},
	} {
		level := new(slog.LevelVar)
		w := httptest.NewRecorder()
		Handler(level, slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), c.method, Path, strings.NewReader(c.body)))
		if w.Code != c.code || level.Level() != slog.LevelInfo {
			t.Errorf("%s %s: %d, level %v", c.method, c.body, w.Code, level.Level())
		}
	}
}
