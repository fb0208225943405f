// Package peers tells how the proxy sees the peers of an upstream: who is up, draining, down by its health check or ejected,
// and for how long. The daemon knows which upstreams there are, the proxy the rest; nothing is changed. `headgate peers`
// prints it.
package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"headgate/gateway/model"
	"headgate/sync/luapush"
)

// Proxy is who knows; *luapush.Client does.
type Proxy interface {
	View(ctx context.Context, upstream string) (luapush.UpstreamPeers, error)
	Overview(ctx context.Context) (luapush.Overview, error)
}

// Upstream is a line of the list of all upstreams.
type Upstream struct {
	Upstream string `json:"upstream"`
	Peers    int    `json:"peers"`
	Draining int    `json:"draining"` // of Peers
	Down     int    `json:"down"`     // of Peers, by their health check
	Ejected  int    `json:"ejected"`  // of Peers
	InFlight int    `json:"inFlight"`
	Panic    bool   `json:"panic"`
}

// List is the answer to a question about no upstream in particular.
type List struct {
	Revision  uint64     `json:"revision"`
	Upstreams []Upstream `json:"upstreams"` // sorted by name
}

// ErrUnknown tells that a name stands for no upstream, or for several.
var ErrUnknown = errors.New("no such upstream")

// Handler answers GET /v1/peers with a List, and with ?upstream=NAME with the luapush.UpstreamPeers of that one. known gives the
// upstreams of the last build.
func Handler(proxy Proxy, known func() []*model.Upstream) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := answer(r.Context(), proxy, known(), r.URL.Query().Get("upstream"))
		switch {
		case errors.Is(err, ErrUnknown):
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // a client that left has nothing to be told
	})
}

func answer(ctx context.Context, proxy Proxy, known []*model.Upstream, name string) (any, error) {
	if name == "" {
		return list(ctx, proxy, known)
	}
	id, err := find(known, name)
	if err != nil {
		return nil, err
	}
	view, err := proxy.View(ctx, id)
	if refused := (*luapush.Refused)(nil); errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return nil, fmt.Errorf("%w in the proxy: %s is not pushed yet; ask again", ErrUnknown, id)
	}
	return view, err
}

// list joins what is known of all upstreams with what the proxy tells of those that it uses.
func list(ctx context.Context, proxy Proxy, known []*model.Upstream) (List, error) {
	overview, err := proxy.Overview(ctx)
	if err != nil {
		return List{}, err
	}
	told := make(map[string]luapush.UpstreamSummary, len(overview.Upstreams))
	for _, u := range overview.Upstreams {
		told[u.Upstream] = u
	}
	out := List{Revision: overview.Revision, Upstreams: []Upstream{}}
	for _, u := range known {
		one := count(u)
		seen := told[one.Upstream]
		one.Ejected, one.InFlight, one.Panic = seen.Ejected, seen.InFlight, seen.Panic
		out.Upstreams = append(out.Upstreams, one)
	}
	return out, nil
}

func count(u *model.Upstream) Upstream {
	out := Upstream{Upstream: string(u.ID), Peers: len(u.Peers)}
	for i := range u.Peers {
		if u.Peers[i].Draining {
			out.Draining++
		}
		if u.Peers[i].Down {
			out.Down++
		}
	}
	return out
}

// find gives the upstream of that name: its ID, or the beginning of one alone ("shop/web" for "shop/web/80#0a1b2c3d").
func find(known []*model.Upstream, name string) (string, error) {
	var matches []string
	for _, u := range known {
		id := string(u.ID)
		if id == name {
			return id, nil
		}
		if rest, ok := strings.CutPrefix(id, name); ok && (rest[0] == '/' || rest[0] == '#') {
			matches = append(matches, id)
		}
	}
	slices.Sort(matches)
	switch len(matches) {
	case 0:
		return "", fmt.Errorf("%w: %q; write one of those that `headgate peers` lists, such as namespace/service/port", ErrUnknown, name)
	case 1:
		return matches[0], nil
	}
	const most = 10
	more := ""
	if len(matches) > most {
		more = fmt.Sprintf(" and %d more", len(matches)-most)
		matches = matches[:most]
	}
	return "", fmt.Errorf("%w: %q stands for several; write one of %s%s", ErrUnknown, name, strings.Join(matches, ", "), more)
}
