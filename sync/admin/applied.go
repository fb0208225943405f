package admin

import (
	"context"
	"net/url"
)

// AskApplied gets the body of the daemon's Answers.Applied: its whole account, or with a pointer that one object. The
// error wraps ErrUnreachable like that of Ask, or ErrRefused with what the daemon says.
func AskApplied(ctx context.Context, runtimeDir, pointer string) ([]byte, error) {
	what := "/v1/applied"
	if pointer != "" {
		what += "?pointer=" + url.QueryEscape(pointer)
	}
	return ask(ctx, runtimeDir, get(what), "compares nothing")
}

// AskState gets the objects that the daemon wanted last, as luastate.Redacted writes them. Errors as those of AskApplied.
func AskState(ctx context.Context, runtimeDir string) ([]byte, error) {
	return ask(ctx, runtimeDir, get("/v1/applied?state"), "compares nothing")
}

// AskGoroutines gets what the daemon's goroutines do, as text. Errors as those of AskApplied.
func AskGoroutines(ctx context.Context, runtimeDir string) ([]byte, error) {
	return ask(ctx, runtimeDir, get("/debug/pprof/goroutine?debug=2"), "shows no goroutines")
}
