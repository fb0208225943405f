package luapush

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// The ways in which the proxy refuses a push. Each comes wrapped in a *Refused.
var (
	// ErrStale: the dict holds this revision or a newer one.
	ErrStale = errors.New("the proxy already holds this revision or a newer one")
	// ErrBase: the dict is not at the revision that the delta was computed against.
	ErrBase = errors.New("the proxy holds another state than the push was computed against")
	// ErrBusy: another pusher holds the push lock; Refused.Pusher names it.
	ErrBusy = errors.New("another pusher is at work")
	// ErrSchema: the proxy's Lua code understands another schema of pushed state.
	ErrSchema = errors.New("the proxy's Lua code has another schema")
	// ErrMemory: the shared dict is full. When it came before the first pointer was written (the
	// usual case) the old state is untouched.
	ErrMemory = errors.New("the proxy's state memory is full")
	// ErrUnreachable: no proxy answers on the control socket, or it stopped answering midway.
	ErrUnreachable = errors.New("the proxy's control socket does not answer")
)

// Refused is an answer other than success.
type Refused struct {
	// Kind is one of the sentinel errors above, or nil for an answer that none of them describes.
	Kind error
	// Status is the HTTP status.
	Status int
	// Revision is the one that the proxy holds; 0 when the answer does not tell.
	Revision uint64
	// Pusher names who pushed last, or who holds the lock; "" when the answer does not tell.
	Pusher string
	// Detail is the proxy's own text.
	Detail string
}

// Error implements error.
func (r *Refused) Error() string {
	var b strings.Builder
	if r.Kind != nil {
		b.WriteString(r.Kind.Error())
	} else {
		fmt.Fprintf(&b, "the proxy answered %d", r.Status)
		if r.Detail != "" {
			fmt.Fprintf(&b, ": %s", r.Detail)
		}
	}
	if r.Revision != 0 {
		fmt.Fprintf(&b, " (revision %d)", r.Revision)
	}
	if r.Pusher != "" {
		fmt.Fprintf(&b, " (pusher %s)", r.Pusher)
	}
	return b.String()
}

// Unwrap gives Kind.
func (r *Refused) Unwrap() error { return r.Kind }

// refusal reads an answer that is not a success. A body that is not ours (nginx's own error page)
// still gives a usable error.
func refusal(a answer) *Refused {
	var body struct {
		Error    string `json:"error"`
		Revision uint64 `json:"revision"`
		Pusher   string `json:"pusher"`
		Message  string `json:"message"`
	}
	r := &Refused{Status: a.status}
	if err := json.Unmarshal(a.body, &body); err != nil {
		r.Detail = firstLine(a.body)
		return r
	}
	r.Revision, r.Pusher, r.Detail = body.Revision, body.Pusher, body.Error
	if body.Message != "" {
		r.Detail += ": " + body.Message
	}
	switch {
	case a.status == http.StatusConflict && body.Error == "stale":
		r.Kind = ErrStale
	case a.status == http.StatusConflict && body.Error == "base":
		r.Kind = ErrBase
	case a.status == http.StatusConflict && body.Error == "busy":
		r.Kind = ErrBusy
	case a.status == http.StatusConflict && body.Error == "schema":
		r.Kind = ErrSchema
	case a.status == http.StatusInsufficientStorage:
		r.Kind = ErrMemory
	}
	return r
}

func firstLine(b []byte) string {
	const most = 200
	s, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	if len(s) > most {
		s = s[:most] + "…"
	}
	return s
}
