package luapush

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
)

// UpstreamPeers is how the proxy sees one upstream (GET /v1/peers?upstream=ID).
type UpstreamPeers struct {
	Upstream  string `json:"upstream"`
	Revision  uint64 `json:"revision"`
	Pool      string `json:"pool"`
	Algorithm string `json:"algorithm"`
	// Panic tells that so many peers are out that all are used.
	Panic  bool       `json:"panic"`
	Queued int        `json:"queued"` // requests that wait for a peer
	Peers  []PeerView `json:"peers"`
}

// PeerView is how the proxy sees one peer.
type PeerView struct {
	Address  string `json:"address"` // IP and port
	Weight   int    `json:"weight"`
	Draining bool   `json:"draining"`
	// Down is the verdict of the active health check.
	Down bool `json:"down"`
	// EjectedMs is how long the peer stays ejected; 0: it is not.
	EjectedMs int64 `json:"ejectedMs"`
	Ejections int   `json:"ejections"` // so far
	Failures  int   `json:"failures"`  // in a row
	InFlight  int   `json:"inFlight"`
	// Share is 1, or less during slow start.
	Share float64 `json:"share"`
	// EWMAMs is the decayed response time; 0 when the algorithm knows none.
	EWMAMs float64 `json:"ewmaMs"`
}

// UnmarshalJSON implements json.Unmarshaler; see State.UnmarshalJSON. A share that is not told is the whole.
func (u *UpstreamPeers) UnmarshalJSON(b []byte) error {
	type plain UpstreamPeers
	v := struct {
		*plain
		Peers json.RawMessage `json:"peers"`
	}{plain: (*plain)(u)}
	err := json.Unmarshal(b, &v)
	if err != nil {
		return err
	}
	u.Peers, err = lenientList[PeerView](v.Peers)
	return err
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *PeerView) UnmarshalJSON(b []byte) error {
	type plain PeerView
	v := plain{Share: 1}
	err := json.Unmarshal(b, &v)
	*p = PeerView(v)
	return err
}

// Overview are the upstreams that some worker has used, or that have something to tell (GET /v1/peers).
type Overview struct {
	Revision  uint64            `json:"revision"`
	Upstreams []UpstreamSummary `json:"upstreams"`
}

// UpstreamSummary is a line of an Overview.
type UpstreamSummary struct {
	Upstream string `json:"upstream"`
	Peers    int    `json:"peers"`
	Down     int    `json:"down"`
	Ejected  int    `json:"ejected"`
	InFlight int    `json:"inFlight"`
	Panic    bool   `json:"panic"`
}

// UnmarshalJSON implements json.Unmarshaler; see State.UnmarshalJSON.
func (o *Overview) UnmarshalJSON(b []byte) error {
	type plain Overview
	v := struct {
		*plain
		Upstreams json.RawMessage `json:"upstreams"`
	}{plain: (*plain)(o)}
	err := json.Unmarshal(b, &v)
	if err != nil {
		return err
	}
	o.Upstreams, err = lenientList[UpstreamSummary](v.Upstreams)
	return err
}

// maxPeersBytes is enough for an upstream of 100,000 peers.
const maxPeersBytes = 64 << 20

// View asks how the proxy sees an upstream. An upstream that it does not know gives a *Refused of status 404.
func (c *Client) View(ctx context.Context, upstream string) (UpstreamPeers, error) {
	var v UpstreamPeers
	return v, c.askPeers(ctx, "/v1/peers?upstream="+url.QueryEscape(upstream), &v)
}

// Overview asks for the upstreams that the proxy has something to tell about.
func (c *Client) Overview(ctx context.Context) (Overview, error) {
	var o Overview
	return o, c.askPeers(ctx, "/v1/peers", &o)
}

func (c *Client) askPeers(ctx context.Context, path string, v any) error {
	a, err := c.call(ctx, request{method: http.MethodGet, path: path, limit: maxPeersBytes})
	if err != nil {
		return err
	}
	if err := decode(a, "GET /v1/peers", v); err != nil {
		return fmt.Errorf("ask for the peers: %w", err)
	}
	return nil
}
