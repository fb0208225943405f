package luapush

import (
	"context"
	"fmt"
	"net/http"
)

// maxMetricsBytes is far above what 10,000 hosts make (about 50 MiB).
const maxMetricsBytes = 512 << 20

// Metrics asks for the data plane's metrics: the text exposition format of Prometheus, version 0.0.4.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	a, err := c.call(ctx, request{method: http.MethodGet, path: "/v1/metrics", limit: maxMetricsBytes})
	if err != nil {
		return nil, err
	}
	if a.status != http.StatusOK {
		return nil, fmt.Errorf("metrics of the proxy: %w", refusal(a))
	}
	return a.body, nil
}
