package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"headgate/sync/socket"
)

// AskPeers gets the body of the daemon's Answers.Peers: all upstreams, or with a name that one. The error wraps
// ErrUnreachable like that of Ask, or ErrRefused with what the daemon says.
func AskPeers(ctx context.Context, runtimeDir, upstream string) ([]byte, error) {
	what := "/v1/peers"
	if upstream != "" {
		what += "?upstream=" + url.QueryEscape(upstream)
	}
	return ask(ctx, runtimeDir, get(what), "shows no peers")
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
	body, err := ask(ctx, runtimeDir, socket.Question{Method: http.MethodPost, Path: "/v1/accept"}, "holds nothing")
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return a, fmt.Errorf("decode the answer from %s: %w", SocketPath(runtimeDir), err)
	}
	return a, nil
}
