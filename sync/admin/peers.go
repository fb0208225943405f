package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// AskPeers gets the body of the daemon's Answers.Peers: all upstreams, or with a name that one. The error wraps
// ErrUnreachable like that of Ask, or ErrRefused with what the daemon says.
func AskPeers(ctx context.Context, runtimeDir, upstream string) ([]byte, error) {
	what := "/v1/peers"
	if upstream != "" {
		what += "?upstream=" + url.QueryEscape(upstream)
	}
	return ask(ctx, runtimeDir, http.MethodGet, what)
}

// Acceptance is the answer to POST /v1/accept.
type Acceptance struct {
	// Held is what was let go; null when nothing was held.
	Held *Held `json:"held"`
}

// AcceptHandler makes Answers.Accept: accept lets go of what is held and says what that was.
func AcceptHandler(accept func() Acceptance) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, accept()) })
}

// AskAccept has the daemon let go of what it holds back. The error is like that of AskPeers.
func AskAccept(ctx context.Context, runtimeDir string) (Acceptance, error) {
	var a Acceptance
	body, err := ask(ctx, runtimeDir, http.MethodPost, "/v1/accept")
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return a, fmt.Errorf("decode the answer from %s: %w", SocketPath(runtimeDir), err)
	}
	return a, nil
}

func ask(ctx context.Context, runtimeDir, method, what string) ([]byte, error) {
	status, body, err := call(ctx, runtimeDir, method, what, nil)
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusNotFound:
		return nil, fmt.Errorf("%w: it is of a version that does not know this; restart it with this one", ErrRefused)
	case status != http.StatusOK:
		return nil, fmt.Errorf("%w: %s", ErrRefused, oneLine(strings.TrimSpace(string(body))))
	}
	return body, nil
}
