// Package echo is a small HTTP/1.1 backend that tells who it is and what it was asked. It stands behind the
// gateway in the quick start and in tests, in the place of real pods; it is never part of the gateway.
// `headgate dev echo` runs it.
//
//	any path          200, the request as JSON (Answer)
//	/status/NNN       status NNN with the same body
//	/delay?ms=N       the answer after N milliseconds, at most a minute
//	Upgrade: websocket  a WebSocket (RFC 6455) that sends every message back
package echo

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Answer is what the backend tells about a request. It is written with indentation: people read it, too.
type Answer struct {
	Name   string      `json:"name"`   // of this backend
	Method string      `json:"method"` // as received
	URI    string      `json:"uri"`    // request target, byte for byte
	Host   string      `json:"host"`
	Proto  string      `json:"proto"`
	Remote string      `json:"remote"` // address:port of the peer
	Header http.Header `json:"header"` // without Host
}

// maxDelay bounds /delay, so that a typo holds no connection for a day.
const maxDelay = time.Minute

// Handler answers in the name of one backend.
type Handler struct{ Name string }

// ServeHTTP implements http.Handler.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Echo-Name", h.Name)
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		serveWebSocket(w, r)
		return
	}
	status := http.StatusOK
	if code, found := strings.CutPrefix(r.URL.Path, "/status/"); found {
		n, err := strconv.Atoi(code)
		if err != nil || n < 200 || n > 599 {
			http.Error(w, "write /status/NNN with a number from 200 to 599", http.StatusBadRequest)
			return
		}
		status = n
	}
	if r.URL.Path == "/delay" && !wait(w, r) {
		return
	}
	h.answer(w, r, status)
}

// wait is false when the request is over: its delay is no number, or the client left.
func wait(w http.ResponseWriter, r *http.Request) bool {
	ms, err := strconv.ParseUint(r.URL.Query().Get("ms"), 10, 32)
	delay := time.Duration(ms) * time.Millisecond //nolint:gosec // 32 bits of milliseconds fit
	if err != nil || delay > maxDelay {
		http.Error(w, "write /delay?ms=N with a number from 0 to 60000", http.StatusBadRequest)
		return false
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

func (h Handler) answer(w http.ResponseWriter, r *http.Request, status int) {
	body, err := json.MarshalIndent(Answer{
		Name: h.Name, Method: r.Method, URI: r.RequestURI, Host: r.Host, Proto: r.Proto, Remote: r.RemoteAddr, Header: r.Header,
	}, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if status == http.StatusNoContent || status == http.StatusNotModified {
		w.WriteHeader(status) // these have no body (RFC 9110 section 6.4.1)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that left has nothing to be told
}
