package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

const scrapeTimeout = 10 * time.Second

// longest gives an upper bound of the longest observation of one of the daemon's histograms: their sum, which one
// observation makes up nearly alone after a start.
func longest(ctx context.Context, name string) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAddress+"/metrics", nil)
	if err != nil {
		return 0, fmt.Errorf("ask for metrics: %w", err)
	}
	client := &http.Client{Timeout: scrapeTimeout}
	res, err := client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask for metrics: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(res.Body)
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	family := families[name]
	if family == nil || len(family.GetMetric()) == 0 {
		return 0, fmt.Errorf("the daemon has no metric %s", name)
	}
	seconds := family.GetMetric()[0].GetHistogram().GetSampleSum()
	return time.Duration(seconds * float64(time.Second)), nil
}
