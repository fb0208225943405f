package admin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"headgate/sync/socket"
)

// maxCertificates bounds the series of certificate expiry: those that expire first are told.
const maxCertificates = 200

// The histograms; everything else is in metricList.
const (
	buildDuration = "headgate_build_duration_seconds"
	buildHelp     = "Time from a snapshot to the model and the objects to push."
	pushDuration  = "headgate_luapush_duration_seconds"
	pushHelp      = "Time from the first byte of a push to its acknowledgement."
)

// Metrics are the numbers of one daemon. All but the histograms are read from a Status when they are asked
// for, so that there is one account and no second one to keep in step.
type Metrics struct {
	registry *prometheus.Registry
	build    prometheus.Histogram
	push     prometheus.Histogram
	ask      func(context.Context) ([]byte, error) // see Follow; nil: nobody is asked
}

// NewMetrics makes a registry of its own. status is called for each scrape.
func NewMetrics(status func() Status) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		build: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: buildDuration, Help: buildHelp,
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 13),
		}),
		push: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: pushDuration, Help: pushHelp,
			Buckets: prometheus.ExponentialBuckets(0.0002, 2, 14),
		}),
	}
	m.registry.MustRegister(m.build, m.push, &statusCollector{status},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// ObserveBuild notes how long one build took.
func (m *Metrics) ObserveBuild(d time.Duration) { m.build.Observe(d.Seconds()) }

// ObservePush notes how long one acknowledged push took.
func (m *Metrics) ObservePush(d time.Duration) { m.push.Observe(d.Seconds()) }

// Gatherer gives the registry to read.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// Serve answers GET /metrics on l until ctx ends, and nothing else.
func (m *Metrics) Serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", m.answer)
	return socket.Serve(ctx, l, mux)
}

// metric is one family that is read from a Status.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	label      string // "" for a single series
	// read calls set for each series; the label value is "" when there is no label.
	read func(s Status, set func(label string, value float64))
}

// single makes the read of a metric without a label.
func single(value func(Status) float64) func(Status, func(string, float64)) {
	return func(s Status, set func(string, float64)) { set("", value(s)) }
}

// truth is 1 or 0.
func truth(b bool) float64 { return map[bool]float64{true: 1}[b] }

func metricList() []metric {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	return []metric{
		{"headgate_daemon_version_info", "Always 1; the version of the daemon and the Go it was built with.", gauge, "version", func(s Status, set func(string, float64)) {
			set(s.Version+" "+runtime.Version(), 1)
		}},
		{"headgate_source_synced", "1 once everything was read from the source (cluster or manifests).", gauge, "source", func(s Status, set func(string, float64)) {
			set(s.Source.Kind, truth(s.Source.Synced))
		}},
		{"headgate_source_healthy", "0 while the source cannot be read; what is served stays.", gauge, "source", func(s Status, set func(string, float64)) {
			set(s.Source.Kind, truth(s.Source.Healthy))
		}},
		{"headgate_source_age_seconds", "Time that the source has been in its present health.", gauge, "source", func(s Status, set func(string, float64)) {
			set(s.Source.Kind, max(0, s.Time.Sub(s.Source.Since).Seconds()))
		}},
		{"headgate_reconcile_ready", "1 while the proxy is known to serve a complete desired state.", gauge, "", single(func(s Status) float64 { return truth(s.Ready) })},
		{"headgate_reconcile_degraded", "1 while `headgate status` says degraded.", gauge, "", single(func(s Status) float64 { return truth(len(s.Degraded()) > 0) })},
		{"headgate_reconcile_last_known_good", "1 while only the state log is served, because no source was complete since the start.", gauge, "", single(func(s Status) float64 { return truth(s.LastKnownGood) })},
		{"headgate_reconcile_desired_revision", "Revision that the proxy should have.", gauge, "", single(func(s Status) float64 { return float64(s.Revision.Desired) })},
		{"headgate_reconcile_applied_revision", "Revision that the proxy acknowledged.", gauge, "", single(func(s Status) float64 { return float64(s.Revision.Applied) })},
		{"headgate_reconcile_passes_total", "Passes of the loop.", counter, "", single(func(s Status) float64 { return float64(s.Passes) })},
		{"headgate_reconcile_failures_total", "Passes that ended in an error and were retried.", counter, "", single(func(s Status) float64 { return float64(s.Failures) })},
		{"headgate_nginxproc_reloads_total", "Reloads of nginx by reason; a reload with two reasons counts under both.", counter, "reason", func(s Status, set func(string, float64)) {
			for reason, n := range s.Reloads {
				set(reason, float64(n))
			}
		}},
		{"headgate_nginxproc_workers", "nginx workers that report.", gauge, "", single(func(s Status) float64 { return float64(len(s.Proxy.Workers)) })},
		{"headgate_nginxproc_restarts_total", "Restarts of a managed nginx that had died.", counter, "", single(func(s Status) float64 { return float64(s.Proxy.Restarts) })},
		{"headgate_nginxproc_reachable", "1 while the proxy's control socket answers.", gauge, "", single(func(s Status) float64 { return truth(s.Proxy.Reachable) })},
		{"headgate_luapush_pushes_total", "Pushes that the proxy acknowledged.", counter, "", single(func(s Status) float64 { return float64(s.Pushes) })},
		{"headgate_luapush_dict_capacity_bytes", "Size of the shared memory for pushed state.", gauge, "", single(func(s Status) float64 { return float64(s.Proxy.DictCapacityBytes) })},
		{"headgate_luapush_dict_free_bytes", "Free pages of the shared memory for pushed state.", gauge, "", single(func(s Status) float64 { return float64(s.Proxy.DictFreeBytes) })},
		{"headgate_statelog_size_bytes", "Size of the state log.", gauge, "", single(func(s Status) float64 { return float64(s.StateLog.SizeBytes) })},
		{"headgate_statelog_healthy", "0 while the state log cannot be written; traffic goes on.", gauge, "", single(func(s Status) float64 { return truth(s.StateLog.Error == "") })},
		{"headgate_health_peers", "Peers with an active health check, by what it found: up, down, unknown (taken for well).", gauge, "state", func(s Status, set func(string, float64)) {
			set("up", float64(s.Health.Up))
			set("down", float64(s.Health.Down))
			set("unknown", float64(s.Health.Unknown))
		}},
		{"headgate_health_all_down", "Upstreams whose peers are all down by their health check: they are used all the same.", gauge, "", single(func(s Status) float64 { return float64(len(s.Health.AllDown)) })},
		{"headgate_health_checks_total", "Active health checks by outcome: succeeded, failed, void (the daemon did not run, or lacked the means).", counter, "outcome", func(s Status, set func(string, float64)) {
			set("succeeded", float64(s.Health.Succeeded))
			set("failed", float64(s.Health.Failed))
			set("void", float64(s.Health.Void))
		}},
		{"headgate_health_transitions_total", "Changes of verdicts on peers: down, up.", counter, "to", func(s Status, set func(string, float64)) {
			set("down", float64(s.Health.WentDown))
			set("up", float64(s.Health.CameUp))
		}},
		{"headgate_health_running", "Active health checks under way.", gauge, "", single(func(s Status) float64 { return float64(s.Health.Running) })},
		{"headgate_health_late_seconds", "How far the active health checks are behind; more than a moment means that healthChecks.concurrency is too low.", gauge, "", single(func(s Status) float64 { return float64(s.Health.LateMs) / 1000 })},
		{"headgate_lossguard_held", "What is served although the source has lost it, which may not be true: routes, endpoints, services, secrets.", gauge, "what", func(s Status, set func(string, float64)) {
			var before, now Amount
			if h := s.LossGuard.Held; h != nil {
				before, now = h.Before, h.Now
			}
			set("routes", float64(max(0, before.Routes-now.Routes)))
			set("endpoints", float64(max(0, before.Endpoints-now.Endpoints)))
			set("services", float64(max(0, before.Services-now.Services)))
			set("secrets", float64(max(0, before.Secrets-now.Secrets)))
		}},
		{"headgate_lossguard_holds_total", "How often a loss was held back.", counter, "", single(func(s Status) float64 { return float64(s.LossGuard.Holds) })},
		{"headgate_lossguard_age_seconds", "Age of the last good reading of the source; 0 while it is current.", gauge, "", single(func(s Status) float64 { return s.LossGuard.AgeSeconds })},
		{"headgate_lossguard_max_age_seconds", "The age that lossGuard.maxAge allows; 0: any.", gauge, "", single(func(s Status) float64 { return s.LossGuard.MaxAgeSeconds })},
		{"headgate_build_problems", "Problems of objects as they stand, by reason.", gauge, "reason", func(s Status, set func(string, float64)) {
			byReason := map[string]int{}
			for _, p := range s.Problems {
				byReason[p.Reason]++
			}
			for reason, n := range byReason {
				set(reason, float64(n))
			}
		}},
		{"headgate_build_hosts", "Hosts that are served.", gauge, "", single(func(s Status) float64 { return float64(s.Counts.Hosts) })},
		{"headgate_build_routes", "Routes that are served.", gauge, "", single(func(s Status) float64 { return float64(s.Counts.Routes) })},
		{"headgate_build_upstreams", "Upstreams that are served.", gauge, "", single(func(s Status) float64 { return float64(s.Counts.Upstreams) })},
		{"headgate_build_peers", "Peers of all upstreams.", gauge, "", single(func(s Status) float64 { return float64(s.Counts.Peers) })},
		{"headgate_build_certificates", "Certificates that are served.", gauge, "", single(func(s Status) float64 { return float64(s.Counts.Certificates) })},
		{"headgate_build_certificate_expiry_timestamp_seconds", fmt.Sprintf("When a certificate expires, in Unix time; the %d that expire first.", maxCertificates), gauge, "certificate", func(s Status, set func(string, float64)) {
			for _, c := range s.Certificates[:min(len(s.Certificates), maxCertificates)] {
				set(c.ID, float64(c.NotAfter.Unix()))
			}
		}},
	}
}

// MetricDoc describes one metric of ours for the reference page.
type MetricDoc struct{ Name, Kind, Label, Help string }

// MetricDocs lists the metrics of the daemon, sorted by name; those of the Go runtime and the process are not in it.
func MetricDocs() []MetricDoc {
	docs := []MetricDoc{
		{buildDuration, "histogram", "", buildHelp},
		{pushDuration, "histogram", "", pushHelp},
		{proxyUp, "gauge", "", proxyUpHelp},
	}
	for _, m := range metricList() {
		kind := "gauge"
		if m.kind == prometheus.CounterValue {
			kind = "counter"
		}
		docs = append(docs, MetricDoc{m.name, kind, m.label, m.help})
	}
	slices.SortFunc(docs, func(a, b MetricDoc) int { return strings.Compare(a.Name, b.Name) })
	return docs
}

// statusCollector turns a Status into metrics when Prometheus asks.
type statusCollector struct{ status func() Status }

func (m metric) desc() *prometheus.Desc {
	var labels []string
	if m.label != "" {
		labels = []string{m.label}
	}
	return prometheus.NewDesc(m.name, m.help, labels, nil)
}

// Describe implements prometheus.Collector.
func (*statusCollector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range metricList() {
		out <- m.desc()
	}
}

// Collect implements prometheus.Collector.
func (c *statusCollector) Collect(out chan<- prometheus.Metric) {
	s := c.status().normal()
	for _, m := range metricList() {
		desc := m.desc()
		m.read(s, func(label string, value float64) {
			var labels []string
			if m.label != "" {
				labels = []string{label}
			}
			out <- prometheus.MustNewConstMetric(desc, m.kind, value, labels...)
		})
	}
}
