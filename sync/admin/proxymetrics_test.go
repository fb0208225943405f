package admin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// TestProxyMetrics: whatever the proxy says, the daemon's own metrics come; what is no text exposition of its own
// families counts as no answer.
func TestProxyMetrics(t *testing.T) {
	const good = "# HELP headgate_proxy_requests_total Requests.\n# TYPE headgate_proxy_requests_total counter\n" +
		"headgate_proxy_requests_total{host=\"a\\\"\\\\b\\n.test\"} 7\n"
	for name, c := range map[string]struct {
		text string
		err  error
		up   bool
	}{
		"an answer":        {text: good, up: true},
		"nothing counted":  {text: "", up: true},
		"no answer":        {err: errors.New("the control socket is gone")},
		"garbage":          {text: "<html>503</html>"},
		"cut in a line":    {text: good[:len(good)-10]},
		"a foreign family": {text: good + "# TYPE go_goroutines gauge\ngo_goroutines 1\n"},
		"our own word":     {text: "# TYPE headgate_proxy_up gauge\nheadgate_proxy_up 1\n"},
		"twice the same":   {text: good + "headgate_proxy_requests_total{host=\"a\\\"\\\\b\\n.test\"} 8\n", up: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewMetrics(healthy)
			m.Follow(func(context.Context) ([]byte, error) { return []byte(c.text), c.err })
			w := httptest.NewRecorder()
			m.answer(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
			body := w.Body.String()
			if w.Code != http.StatusOK || !strings.Contains(body, "\nheadgate_reconcile_ready 1\n") || !strings.Contains(body, "\ngo_goroutines ") {
				t.Fatalf("%d %s", w.Code, body)
			}
			if got := strings.Contains(body, "\nheadgate_proxy_up 1\n"); got != c.up {
				t.Errorf("up: %v, want %v", got, c.up)
			}
			if got, want := strings.Contains(body, `{host="a\"\\b\n.test"} 7`), c.text == good; want && !got {
				t.Errorf("what the proxy counted is missing:\n%s", body)
			}
			parser := expfmt.NewTextParser(model.LegacyValidation)
			if _, err := parser.TextToMetricFamilies(strings.NewReader(body)); err != nil {
				t.Errorf("the whole cannot be parsed: %v", err)
			}
			problems, err := promlint.New(strings.NewReader(body)).Lint()
			if err != nil {
				t.Error(err)
			}
			for _, p := range problems {
				if strings.HasPrefix(p.Metric, "headgate_") {
					t.Errorf("%s: %s", p.Metric, p.Text)
				}
			}
		})
	}
}
