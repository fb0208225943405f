package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// AskApplied gets the body of the daemon's Answers.Applied: its whole account, or with a pointer that one object. The
// error wraps ErrUnreachable like that of Ask, or ErrRefused with what the daemon says.
func AskApplied(ctx context.Context, runtimeDir, pointer string) ([]byte, error) {
	what := "/v1/applied"
	if pointer != "" {
		what += "?pointer=" + url.QueryEscape(pointer)
	}
	status, body, err := call(ctx, runtimeDir, http.MethodGet, what, nil)
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusNotFound:
		return nil, fmt.Errorf("%w: it is of a version that compares nothing; restart it with this one", ErrRefused)
	case status != http.StatusOK:
		return nil, fmt.Errorf("%w: %s", ErrRefused, oneLine(strings.TrimSpace(string(body))))
	}
	return body, nil
}

// AskState gets the objects that the daemon wanted last, as luastate.Redacted writes them. Errors as those of AskApplied.
func AskState(ctx context.Context, runtimeDir string) ([]byte, error) {
	return ask(ctx, runtimeDir, http.MethodGet, "/v1/applied?state")
}

// AskGoroutines gets what the daemon's goroutines do, as text. Errors as those of AskApplied.
func AskGoroutines(ctx context.Context, runtimeDir string) ([]byte, error) {
	return ask(ctx, runtimeDir, http.MethodGet, "/debug/pprof/goroutine?debug=2")
}
