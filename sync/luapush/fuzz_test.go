package luapush

import (
	"encoding/json"
	"net/http"
	"testing"
)

// FuzzState: whatever answers on the socket gives a state or an error, never a panic; and what was read can be
// written and read again.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"boot":"a","schema":1,"revision":7,"workers":[{"pid":1,"generation":"g","revision":7,"seenMs":3,"errors":["host/a: x"]}],"dict":{"capacity":1,"free":1},"loaded":{"from":"log","revision":1,"error":""}}`))
	f.Add([]byte(`{"workers":{}}`))
	f.Add([]byte(`{"workers":[{"errors":{}},{"errors":null}]}`))
	f.Add([]byte(`{"workers":[[]],"revision":-1}`))
	f.Add([]byte(`{"revision":1e400}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var s State
		if decode(answer{status: 200, body: body}, "GET /v1/state", &s) != nil {
			return
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var again State
		if err := json.Unmarshal(text, &again); err != nil || len(again.Workers) != len(s.Workers) || again.Revision != s.Revision {
			t.Errorf("%s: %v", text, err)
		}
	})
}

// FuzzSighting: whatever the router says of a request is read or refused, and so are peers.
func FuzzSighting(f *testing.F) {
	f.Add(`{"host":"a","path":"/"}`, `{"request":"GET /x HTTP/1.1","host":"a"}`)
	f.Add(`[]`, `{"request":" HTTP/ HTTP/1.1"}`)
	f.Add(`{"upstream":{"count":-1}}`, `{"request":1}`)
	f.Add(`{"peers":{}}`, `{"peers":[{"address":"10.0.0.1:80","weight":1}]}`)
	f.Fuzz(func(t *testing.T, router, sent string) {
		var s Sighting
		err := s.read(http.Header{"X-Headgate-Explain": {router}, "X-Headgate-Sent": {sent}})
		if err == nil && sent != "" && s.Sent == nil {
			t.Errorf("%q was lost", sent)
		}
		if _, err := ParsePeers(json.RawMessage(sent)); err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
	})
}
