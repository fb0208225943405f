package luapush

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"headgate/gateway/luastate"
)

// PartBytes is the largest part of a push, unless one record alone is larger: it stays below the
// control socket's client_body_buffer_size, so that keys never spill to a temporary file.
const PartBytes = 256 << 10

// Push is one change of the proxy's state. Records stand in the contract's order (B, P, R, D, X) and
// hold exactly one R with Revision.
type Push struct {
	// Base is the revision that the records were computed against.
	Base uint64
	// AnyBase takes the place of Base: the records were computed against GET /v1/keys.
	AnyBase  bool
	Revision uint64
	Records  []luastate.Record
}

// Push sends p in parts and returns the revision that the proxy committed. A refusal is a *Refused
// wrapping one of the sentinel errors. After any error the state of the proxy is unknown: read it
// again before the next push.
func (c *Client) Push(ctx context.Context, p Push) (uint64, error) {
	parts := split(p.Records, PartBytes)
	base := strconv.FormatUint(p.Base, 10)
	if p.AnyBase {
		base = "*"
	}
	committed := uint64(0)
	for i, part := range parts {
		a, err := c.call(ctx, request{
			method: http.MethodPut, path: "/v1/state", body: part,
			header: http.Header{
				"Content-Type":        {"application/octet-stream"},
				"X-Headgate-Schema":   {strconv.Itoa(luastate.Schema)},
				"X-Headgate-Pusher":   {c.pusher},
				"X-Headgate-Revision": {strconv.FormatUint(p.Revision, 10)},
				"X-Headgate-Base":     {base},
				"X-Headgate-Part":     {fmt.Sprintf("%d/%d", i+1, len(parts))},
			},
		})
		if err != nil {
			return 0, fmt.Errorf("push revision %d, part %d of %d: %w", p.Revision, i+1, len(parts), err)
		}
		if a.status != http.StatusOK && a.status != http.StatusAccepted {
			return 0, fmt.Errorf("push revision %d, part %d of %d: %w", p.Revision, i+1, len(parts), refusal(a))
		}
		var ack struct {
			Revision uint64 `json:"revision"`
		}
		if err := json.Unmarshal(a.body, &ack); err != nil {
			return 0, fmt.Errorf("push revision %d, part %d of %d: decode the acknowledgement: %w",
				p.Revision, i+1, len(parts), err)
		}
		committed = ack.Revision
	}
	if committed != p.Revision {
		return committed, fmt.Errorf("push revision %d: the proxy acknowledged revision %d", p.Revision, committed)
	}
	return committed, nil
}

// split encodes records into parts of at most most bytes each; a larger record gets a part of its own.
func split(records []luastate.Record, most int) [][]byte {
	var parts [][]byte
	var part []byte
	for _, r := range records {
		before := len(part)
		part = luastate.AppendRecord(part, r)
		if before > 0 && len(part) > most {
			last := append([]byte(nil), part[before:]...)
			parts = append(parts, part[:before:before])
			part = last
		}
	}
	if len(part) > 0 {
		parts = append(parts, part)
	}
	return parts
}
