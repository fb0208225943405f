package admin

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

const (
	proxyPrefix = "headgate_proxy_"
	proxyUp     = proxyPrefix + "up"
	proxyUpHelp = "1 when the proxy told its metrics for this scrape; without them only those of the daemon are here."
	// proxyPatience is below the time that Prometheus gives a scrape by default (10 s).
	proxyPatience = 6 * time.Second
)

// Follow has each scrape tell the metrics of the proxy behind those of the daemon: ask gives them as text exposition
// format 0.0.4. It must be called before Serve.
func (m *Metrics) Follow(ask func(context.Context) ([]byte, error)) { m.ask = ask }

// answer serves one scrape.
func (m *Metrics) answer(w http.ResponseWriter, r *http.Request) {
	gatherers := prometheus.Gatherers{m.registry}
	if m.ask != nil {
		families := m.proxyFamilies(r.Context())
		gatherers = append(gatherers, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return families, nil }))
	}
	// What is wrong with one family must not hide the others.
	promhttp.HandlerFor(gatherers, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
}

// proxyFamilies asks the proxy. Where it does not answer, or with something else, that alone is told.
func (m *Metrics) proxyFamilies(ctx context.Context) []*dto.MetricFamily {
	ctx, cancel := context.WithTimeout(ctx, proxyPatience)
	defer cancel()
	text, err := m.ask(ctx)
	var families []*dto.MetricFamily
	if err == nil {
		families, err = parseProxy(text)
	}
	return append(families, upFamily(truth(err == nil)))
}

func upFamily(up float64) *dto.MetricFamily {
	name, help, kind := proxyUp, proxyUpHelp, dto.MetricType_GAUGE
	return &dto.MetricFamily{Name: &name, Help: &help, Type: &kind, Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &up}}}}
}

// parseProxy reads what the proxy told: nothing but families of its own.
func parseProxy(text []byte) ([]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	byName, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read the proxy's metrics: %w", err)
	}
	families := make([]*dto.MetricFamily, 0, len(byName))
	for name, f := range byName {
		if !strings.HasPrefix(name, proxyPrefix) || name == proxyUp {
			return nil, fmt.Errorf("read the proxy's metrics: %q is not its own", name)
		}
		families = append(families, f)
	}
	return families, nil
}
