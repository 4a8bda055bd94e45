package stream

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// Names of metrics and labels. Dashboards and alerts read these: add freely; rename by adding the new name, keeping
// the old for one release, and saying so in the change log.
type metrics struct {
	connected prometheus.Gauge
	pushes    *prometheus.CounterVec
	acks      *prometheus.CounterVec
	nacks     *prometheus.CounterVec
	latency   *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_controlplane_connected_sidecars", Help: "Sidecars with a stream to this replica.",
		}),
		pushes: counter("outrigger_controlplane_pushes_total", "Responses sent to sidecars."),
		acks:   counter("outrigger_controlplane_acks_total", "Responses that sidecars accepted."),
		nacks:  counter("outrigger_controlplane_nacks_total", "Responses that sidecars refused, wholly or in part."),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "outrigger_controlplane_answer_seconds",
			Help:    "From sending a response to its ACK or NACK; a manifest's includes the swap.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 12), // to 24 s
		}, []string{"type"}),
	}
	r.MustRegister(m.connected, m.pushes, m.acks, m.nacks, m.latency)
	return m
}

func counter(name, help string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type"})
}

func (m *metrics) pushed(typeURL string) { m.pushes.WithLabelValues(typeLabel(typeURL)).Inc() }

// answered counts an ACK or NACK that came after this long.
func (m *metrics) answered(typeURL string, kind eventKind, after time.Duration) {
	label := typeLabel(typeURL)
	if kind == nack {
		m.nacks.WithLabelValues(label).Inc()
	} else {
		m.acks.WithLabelValues(label).Inc()
	}
	m.latency.WithLabelValues(label).Observe(after.Seconds())
}

// typeLabel is revocations, upstream, binding or manifest.
func typeLabel(typeURL string) string {
	switch typeURL {
	case resource.ManifestTypeURL:
		return "manifest"
	case resource.RevocationsTypeURL:
		return "revocations"
	case resource.TypeURL(resource.KindUpstream):
		return "upstream"
	default:
		return "binding"
	}
}
