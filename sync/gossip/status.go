package gossip

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

// Status is what 'headgate gossip status' shows. It holds no secret.
type Status struct {
	Cluster string `json:"cluster"`
	Host    string `json:"host"`
	Address string `json:"address"`
	// Keys are the IDs of the valid keys, the one in use first; more than one: a rotation is not finished.
	Keys    []string       `json:"keys"`
	Retired []RetiredKeyID `json:"retired,omitempty"`
	Members []Member       `json:"members"`
	// Clash says why this host must not serve, or "".
	Clash      string      `json:"clash,omitempty"`
	Conditions []Condition `json:"conditions"`
	// Counts says how often each kind of condition was met, since the start.
	Counts map[Kind]uint64 `json:"counts"`
}

// RetiredKeyID names a key that is valid no more.
type RetiredKeyID struct {
	ID string    `json:"id"`
	At time.Time `json:"at"`
}

// Status tells how it is.
func (g *Gossip) Status() Status {
	ring := g.ring.Load()
	s := Status{
		Cluster: g.cfg.Cluster, Host: g.cfg.Host, Address: g.address.String(), Keys: ids(ring.Secrets),
		Members: g.Members(), Clash: g.Clash(), Conditions: g.conditions.list(), Counts: g.conditions.counted(),
	}
	for _, r := range ring.Retired {
		s.Retired = append(s.Retired, RetiredKeyID(r))
	}
	return s
}

// Secrets are the valid ones, the one in use first.
func (g *Gossip) Secrets() []Secret {
	return append([]Secret(nil), g.ring.Load().Secrets...)
}

// The paths of Handler, on the admin socket of the process that gossips.
const (
	StatusPath = "/v1/gossip"
	RotatePath = "/v1/gossip/rotate"
	FinishPath = "/v1/gossip/rotate/finish"
)

// Reply is what the paths that rotate answer: 200, or 409 with Error.
type Reply struct {
	Rotation
	Error string `json:"error,omitempty"`
}

// Handler serves GET StatusPath, POST RotatePath and POST FinishPath, as JSON. It checks nobody: mount it on a socket
// that only the daemon's group can reach.
func (g *Gossip) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+StatusPath, func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, g.Status())
	})
	mux.HandleFunc("POST "+RotatePath, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := toTheEnd(r.Context())
		defer cancel()
		rotation, err := g.RotateKey(ctx)
		replyRotation(w, rotation, err)
	})
	mux.HandleFunc("POST "+FinishPath, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := toTheEnd(r.Context())
		defer cancel()
		rotation, err := g.FinishRotation(ctx)
		replyRotation(w, rotation, err)
	})
	return mux
}

// rotationLimit is enough for the timeouts of all hosts in all steps.
const rotationLimit = 2 * time.Minute

// toTheEnd makes a rotation go on when the command that asked for it was interrupted: half of one helps nobody.
func toTheEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), rotationLimit)
}

func replyRotation(w http.ResponseWriter, r Rotation, err error) {
	switch {
	case err == nil:
		reply(w, http.StatusOK, Reply{Rotation: r})
	case errors.Is(err, ErrRotation):
		reply(w, http.StatusConflict, Reply{Rotation: r, Error: err.Error()})
	default:
		reply(w, http.StatusInternalServerError, Reply{Rotation: r, Error: err.Error()})
	}
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client went
}
