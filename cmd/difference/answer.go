// Package difference says what would change on the running daemon if it served other manifests: what is pushed, in
// words of hosts, paths and peers, what makes nginx reload and why, and which problems come and go. The daemon tells
// what it has applied and with which options it builds (Answer); the caller builds, renders and plans with those, in
// its own process, and nothing is changed anywhere. Bodies with secrets never leave the daemon: they are compared by
// their hashes. `headgate diff` prints the result.
package difference

import (
	"context"
	"encoding/json"
	"net/http"

	"headgate/gateway/build"
	"headgate/gateway/luastate"
	"headgate/gateway/nginxconf"
	"headgate/gateway/snapshot"
	"headgate/sync/admin"
)

// Answer is the daemon's account, as GET /v1/applied sends it.
type Answer struct {
	Version  string `json:"version"`
	Revision uint64 `json:"revision"`
	// Known is false while the daemon does not know what the proxy has.
	Known bool `json:"known"`

	Config        nginxconf.Config  `json:"config"` // without its text
	LuaBuild      string            `json:"luaBuild"`
	Schema        int               `json:"schema"`
	StateBytes    int64             `json:"stateBytes"`
	MemoryRefused bool              `json:"memoryRefused"`
	Pointers      map[string]string `json:"pointers"` // to hashes of bodies
	Bodies        map[string]int    `json:"bodies"`   // lengths by hash

	// With these the daemon builds and renders.
	Options     Options                `json:"options"`
	Layout      nginxconf.Layout       `json:"layout"`
	Resolutions []*snapshot.Resolution `json:"resolutions"`
	Verdicts    []snapshot.Verdict     `json:"verdicts"`
	StateDir    string                 `json:"stateDir"`
	LastGood    string                 `json:"lastGood"` // file

	Problems []admin.Problem `json:"problems"`
}

// Options are build.Options that can be sent: the function in them is the same on both sides.
type Options struct {
	build.Options
	// ProfileName hides the function of that name.
	ProfileName *struct{} `json:"ProfileName,omitempty"`
}

// Moment is an Answer, and the objects that its pointers may point to.
type Moment struct {
	Answer Answer
	State  luastate.State
}

// Handler answers GET /v1/applied with the Answer, and with ?pointer=… the one object as luastate.Redacted writes it:
// private keys are hashes. With ?state it is all of them.
func Handler(tell func(context.Context) (Moment, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		moment, err := tell(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		var body []byte
		if r.URL.Query().Has("state") {
			body = luastate.Redacted(moment.State)
		} else if pointer := r.URL.Query().Get("pointer"); pointer != "" {
			body = luastate.Redacted(only(moment.State, pointer))
		} else if body, err = json.Marshal(moment.Answer); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // a client that left has nothing to be told
	})
}

func only(s luastate.State, pointer string) luastate.State {
	for _, o := range s.Objects {
		if o.Pointer == pointer {
			return luastate.State{Objects: []*luastate.Object{o}}
		}
	}
	return luastate.State{}
}
