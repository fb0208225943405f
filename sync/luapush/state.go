package luapush

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// State is what the proxy says of itself (GET /v1/state).
type State struct {
	// Boot changes whenever the shared dict was made anew: proxy start, or a reload that resized it.
	Boot string `json:"boot"`
	// Schema is the schema number of pushed state that the Lua code understands.
	Schema int `json:"schema"`
	// LuaBuild names the Lua files that are loaded.
	LuaBuild string `json:"luaBuild"`
	// Generation is nginxconf.Config.Generation of the configuration that was loaded last.
	Generation string `json:"generation"`
	// Listeners is how many listeners that configuration has; nil of a proxy that does not tell.
	Listeners *int `json:"listeners,omitempty"`
	// Revision is the committed revision; 0 while nothing was pushed.
	Revision uint64 `json:"revision"`
	// NginxVersion is the proxy's version, as nginx prints it ("1.22.1").
	NginxVersion string `json:"nginxVersion"`
	// MasterPID is the process ID of the nginx master.
	MasterPID int `json:"masterPid"`
	// Workers are those that reported, shutting down ones included.
	Workers []Worker `json:"workers"`
	Dict    Dict     `json:"dict"`
	Loaded  Loaded   `json:"loaded"`
	// Pusher names who committed last; "" when nobody did.
	Pusher string `json:"pusher"`
}

// Worker is the report of one nginx worker.
type Worker struct {
	PID        int    `json:"pid"`
	Generation string `json:"generation"`
	// Revision is the one that the worker last used.
	Revision uint64 `json:"revision"`
	// SeenMs is the age of the report in milliseconds.
	SeenMs int64 `json:"seenMs"`
	// Errors are objects that the worker could not decode, by pointer.
	Errors []string `json:"errors"`
	// Leaving tells that the worker takes no new connections: a later load of the configuration is in force.
	Leaving bool `json:"leaving"`
}

// Dict is the usage of the shared dict, in bytes. Free counts whole free pages only.
type Dict struct {
	Capacity int64 `json:"capacity"`
	Free     int64 `json:"free"`
}

// Loaded tells what the proxy loaded when it made its dict.
type Loaded struct {
	// From is "log" (the state log) or "empty".
	From     string `json:"from"`
	Revision uint64 `json:"revision"`
	Error    string `json:"error"`
}

// lenientList reads a list that cjson writes as {} when it is empty.
func lenientList[T any](raw json.RawMessage) ([]T, error) {
	t := bytes.TrimSpace(raw)
	if len(t) == 0 || string(t) == "null" || string(t) == "{}" {
		return nil, nil
	}
	var list []T
	err := json.Unmarshal(t, &list)
	return list, err
}

// UnmarshalJSON implements json.Unmarshaler. Lua's JSON encoder cannot tell an empty list from an
// empty object: both stand for no workers.
func (s *State) UnmarshalJSON(b []byte) error {
	type plain State
	v := struct {
		*plain
		Workers json.RawMessage `json:"workers"`
	}{plain: (*plain)(s)}
	err := json.Unmarshal(b, &v)
	if err != nil {
		return err
	}
	s.Workers, err = lenientList[Worker](v.Workers)
	return err
}

// UnmarshalJSON implements json.Unmarshaler; see State.UnmarshalJSON.
func (w *Worker) UnmarshalJSON(b []byte) error {
	type plain Worker
	v := struct {
		*plain
		Errors json.RawMessage `json:"errors"`
	}{plain: (*plain)(w)}
	err := json.Unmarshal(b, &v)
	if err != nil {
		return err
	}
	w.Errors, err = lenientList[string](v.Errors)
	return err
}

// State asks the proxy for its state. The error is ErrUnreachable when nobody answers.
func (c *Client) State(ctx context.Context) (State, error) {
	a, err := c.call(ctx, request{method: http.MethodGet, path: "/v1/state"})
	if err != nil {
		return State{}, err
	}
	var s State
	return s, decode(a, "GET /v1/state", &s)
}

// Keys is all that the dict holds, by name.
type Keys struct {
	// Pointers maps each pointer to the hash of its body.
	Pointers map[string]string
	// Bodies are the hashes of all bodies, those that no pointer names included.
	Bodies []string
}

// Keys lists the dict (GET /v1/keys). It is costly for the proxy (the dict is locked for the time of
// a listing) and meant for the moment when the daemon does not know what the proxy holds.
func (c *Client) Keys(ctx context.Context) (Keys, error) {
	a, err := c.call(ctx, request{method: http.MethodGet, path: "/v1/keys", limit: maxKeysBytes})
	if err != nil {
		return Keys{}, err
	}
	if a.status != http.StatusOK {
		return Keys{}, fmt.Errorf("GET /v1/keys: %w", refusal(a))
	}
	k, err := parseKeys(string(a.body))
	if err != nil {
		return Keys{}, fmt.Errorf("read the answer of GET /v1/keys: %w", err)
	}
	return k, nil
}

const bodyPrefix = "body/"

func parseKeys(text string) (Keys, error) {
	k := Keys{Pointers: make(map[string]string)}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		if hash, ok := strings.CutPrefix(line, bodyPrefix); ok {
			k.Bodies = append(k.Bodies, hash)
			continue
		}
		// A pointer may hold any byte but a space or a line end: host names and IDs do not.
		pointer, hash, ok := strings.Cut(line, " ")
		if !ok || hash == "" || strings.Contains(hash, " ") {
			return Keys{}, fmt.Errorf("line %d is neither a pointer with its hash nor a body", n)
		}
		k.Pointers[pointer] = hash
	}
	return k, nil
}

// CheckRegexes has the proxy's PCRE compile patterns (POST /v1/regex). The result maps each pattern
// to the error text, or to "" when it compiles.
func (c *Client) CheckRegexes(ctx context.Context, patterns []string) (map[string]string, error) {
	verdicts := make(map[string]string, len(patterns))
	for _, part := range regexParts(patterns) {
		body, err := json.Marshal(part)
		if err != nil {
			return nil, fmt.Errorf("encode patterns: %w", err)
		}
		a, err := c.call(ctx, request{
			method: http.MethodPost, path: "/v1/regex", body: body,
			header: http.Header{"Content-Type": {"application/json"}},
		})
		if err != nil {
			return nil, err
		}
		var texts []*string
		if err := decode(a, "POST /v1/regex", &texts); err != nil {
			return nil, err
		}
		if len(texts) != len(part) {
			return nil, fmt.Errorf("POST /v1/regex: %d verdicts for %d patterns", len(texts), len(part))
		}
		for i, t := range texts {
			verdicts[part[i]] = verdict(t)
		}
	}
	return verdicts, nil
}

func verdict(text *string) string {
	switch {
	case text == nil:
		return ""
	case *text == "":
		return "does not compile"
	}
	return *text
}

// regexParts keeps a request below the control socket's client_body_buffer_size.
func regexParts(patterns []string) [][]string {
	const most = 128 << 10
	var parts [][]string
	start, size := 0, 0
	for i, p := range patterns {
		n := 2*len(p) + 3 // escapes at most double the usual pattern
		if i > start && size+n > most {
			parts = append(parts, patterns[start:i])
			start, size = i, 0
		}
		size += n
	}
	if start < len(patterns) {
		parts = append(parts, patterns[start:])
	}
	return parts
}

// Peers asks how the answering worker sees an upstream's peers (GET /v1/peers). The answer is handed
// through for people to read; an upstream that the proxy does not know gives a *Refused of status 404.
func (c *Client) Peers(ctx context.Context, upstream string) (json.RawMessage, error) {
	path := "/v1/peers?upstream=" + url.QueryEscape(upstream)
	a, err := c.call(ctx, request{method: http.MethodGet, path: path})
	if err != nil {
		return nil, err
	}
	var raw json.RawMessage
	return raw, decode(a, "GET /v1/peers", &raw)
}
