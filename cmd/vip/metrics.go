package vip

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"headgate/sync/socket"
	"headgate/vip/speaker"
)

// metric is one family that is read from a Status, so that there is one account and no second one to keep in step.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	// read calls set for each series, with a value for each label.
	read func(s Status, set func(value float64, labels ...string))
}

func truth(b bool) float64 { return map[bool]float64{true: 1}[b] }

// single makes the read of a metric without a label.
func single(value func(Status) float64) func(Status, func(float64, ...string)) {
	return func(s Status, set func(float64, ...string)) { set(value(s)) }
}

// each makes the read of a metric of each VIP.
func each(value func(speaker.VIPStatus) float64) func(Status, func(float64, ...string)) {
	return func(s Status, set func(float64, ...string)) {
		for _, v := range s.VIPs {
			set(value(v), v.Name)
		}
	}
}

func metricList() []metric {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	vip, peer := []string{"vip"}, []string{"peer"}
	return append([]metric{
		{"headgate_vip_active", "1 while this host owns the VIP.", gauge, vip, each(func(v speaker.VIPStatus) float64 { return truth(v.State == speaker.Active) })},
		{"headgate_vip_owned", "1 while this host knows an owner of the VIP, itself or another host.", gauge, vip, each(func(v speaker.VIPStatus) float64 { return truth(v.Owner != "") })},
		{"headgate_vip_able", "1 while this host could take the VIP, but for its proxy.", gauge, vip, each(func(v speaker.VIPStatus) float64 { return truth(v.Able) })},
		{"headgate_vip_term", "Highest term that is known of the VIP; it rises with each change of owner.", gauge, vip, each(func(v speaker.VIPStatus) float64 { return float64(v.Term) })},
		{"headgate_vip_conflicts_total", "Announcements of the VIP by others while this host owned it.", counter, vip, each(func(v speaker.VIPStatus) float64 { return float64(v.Conflicts) })},
		{"headgate_vip_transitions_total", "Changes of the VIP's state on this host (init, backup, active) by reason.", counter, []string{"vip", "state", "reason"}, func(s Status, set func(float64, ...string)) {
			for _, c := range s.Counts {
				set(float64(c.Count), c.VIP, c.State, string(c.Reason))
			}
		}},
		{"headgate_vip_proxy_ready", "1 while the proxy of this host can serve.", gauge, nil, single(func(s Status) float64 { return truth(s.Ready) })},
		{"headgate_vip_draining", "1 while this host is drained.", gauge, nil, single(func(s Status) float64 { return truth(s.Draining) })},
		{"headgate_vip_degraded", "1 while `headgate vip status` says degraded.", gauge, nil, single(func(s Status) float64 { return truth(len(s.Degraded) > 0) })},
		{"headgate_vip_stalls_total", "How often the process did not run for longer than the kernel keeps an address.", counter, nil, single(func(s Status) float64 { return float64(s.Stalls) })},
		{"headgate_vip_peer_alive", "1 while the peer is heard.", gauge, peer, func(s Status, set func(float64, ...string)) {
			for _, p := range s.Peers {
				set(truth(p.Alive), string(p.Host))
			}
		}},
		{"headgate_vip_peer_ready", "1 while the peer's proxy can serve.", gauge, peer, func(s Status, set func(float64, ...string)) {
			for _, p := range s.Peers {
				set(truth(p.Alive && p.Ready), string(p.Host))
			}
		}},
		{"headgate_vip_kept_flows", "VIPs whose open connections live on after a planned move, by role (forwarding, keeping).", gauge, []string{"role"}, func(s Status, set func(float64, ...string)) {
			count := map[string]float64{"forwarding": 0, "keeping": 0}
			for _, f := range s.Flows {
				count[f.Role]++
			}
			for role, n := range count {
				set(n, role)
			}
		}},
	}, detectorMetrics()...)
}

func detectorMetrics() []metric {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	verdicts := []string{"peer", "verdict"}
	return []metric{
		{"headgate_detect_stalls_total", "How often the detectors found this process stalled, and paused judging.", counter, nil, single(func(s Status) float64 { return float64(s.DetectorStalls) })},
		{"headgate_detect_deaths_total", "Verdicts that the peer is dead (crashed, silent).", counter, verdicts, func(s Status, set func(float64, ...string)) {
			for _, p := range s.Detectors {
				set(float64(p.Crashes), p.Host, "crashed")
				set(float64(p.Silences), p.Host, "silent")
			}
		}},
		{"headgate_detect_false_deaths_total", "Those that the same process took back.", counter, verdicts, func(s Status, set func(float64, ...string)) {
			for _, p := range s.Detectors {
				set(float64(p.FalseCrashes), p.Host, "crashed")
				set(float64(p.FalseSilences), p.Host, "silent")
			}
		}},
		{"headgate_detect_lost", "1 while a detector does not hear the peer and another one does.", gauge, []string{"peer", "detector"}, func(s Status, set func(float64, ...string)) {
			for _, p := range s.Detectors {
				for _, d := range p.Detectors {
					set(truth(d.Lost), p.Host, string(d.Detector))
				}
			}
		}},
		{"headgate_gossip_members", "Hosts of the cluster that gossip knows, this one among them.", gauge, nil, single(func(s Status) float64 {
			if s.Gossip == nil {
				return 1
			}
			return float64(len(s.Gossip.Members))
		})},
		{"headgate_gossip_conditions_total", "How often something was wrong between this host and a peer, by kind.", counter, []string{"kind"}, func(s Status, set func(float64, ...string)) {
			if s.Gossip == nil {
				return
			}
			for kind, n := range s.Gossip.Counts {
				set(float64(n), string(kind))
			}
		}},
	}
}

// MetricDoc describes a metric for the reference page.
type MetricDoc struct {
	Name, Type, Label, Help string
}

// MetricDocs lists the metrics of the VIP process.
func MetricDocs() []MetricDoc {
	var docs []MetricDoc
	for _, m := range metricList() {
		d := MetricDoc{Name: m.name, Type: "gauge", Help: m.help}
		if m.kind == prometheus.CounterValue {
			d.Type = "counter"
		}
		for i, l := range m.labels {
			if i > 0 {
				d.Label += ", "
			}
			d.Label += l
		}
		docs = append(docs, d)
	}
	return docs
}

// collector reads a Status for each scrape.
type collector struct{ status func() Status }

func (m metric) desc() *prometheus.Desc { return prometheus.NewDesc(m.name, m.help, m.labels, nil) }

// Describe implements prometheus.Collector.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range metricList() {
		out <- m.desc()
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	s := c.status()
	for _, m := range metricList() {
		m.read(s, func(value float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(m.desc(), m.kind, value, labels...)
		})
	}
}

func registry(status func() Status) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collector{status}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func (p *Process) serveMetrics(ctx context.Context) error {
	if p.metrics == nil {
		<-ctx.Done()
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry(p.status), promhttp.HandlerOpts{}))
	return socket.Serve(ctx, p.metrics, mux)
}
