package proxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/sidecar/upstream/care"
)

// cared is a server that says how its endpoints are.
type cared interface{ Snapshot() care.Snapshot }

// Upstreams are the metrics of the servers that run, read when metrics are: no call pays for them. A server that is
// replaced begins to count anew.
func (p *Proxy) Upstreams() prometheus.Collector { return upstreams{p} }

type upstreams struct{ p *Proxy }

var (
	upDesc = prometheus.NewDesc("outrigger_upstream_up",
		"Whether calls are let through to an endpoint of an upstream: 0 while it is left alone after faults of its own.",
		[]string{"upstream", "endpoint"}, nil)
	inFlightDesc = prometheus.NewDesc("outrigger_upstream_calls",
		"Calls in flight at an upstream, without listens.", []string{"upstream"}, nil)
	waitingDesc = prometheus.NewDesc("outrigger_upstream_waiting_calls",
		"Calls that wait for a place at an upstream.", []string{"upstream"}, nil)
	retriesDesc = prometheus.NewDesc("outrigger_upstream_retries_total",
		"Requests sent to an upstream again, by result; no_budget: not sent, since the budget of retries was spent.",
		[]string{"upstream", "result"}, nil)
)

// Describe implements prometheus.Collector.
func (u upstreams) Describe(to chan<- *prometheus.Desc) {
	to <- upDesc
	to <- inFlightDesc
	to <- waitingDesc
	to <- retriesDesc
}

// Collect implements prometheus.Collector.
func (u upstreams) Collect(to chan<- prometheus.Metric) {
	for name, s := range u.p.table.Load().servers {
		c, ok := s.Server.(cared)
		if !ok {
			continue
		}
		shot := c.Snapshot()
		to <- prometheus.MustNewConstMetric(inFlightDesc, prometheus.GaugeValue, float64(shot.InFlight), name)
		to <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(shot.Waiting), name)
		for result, n := range map[string]uint64{
			"ok": shot.Retries.Answered, "failed": shot.Retries.Failed, "no_budget": shot.Retries.NoBudget,
		} {
			to <- prometheus.MustNewConstMetric(retriesDesc, prometheus.CounterValue, float64(n), name, result)
		}
		seen := make(map[string]bool)
		for _, e := range shot.Endpoints {
			if seen[e.Name] { // the same URL twice: one series
				continue
			}
			seen[e.Name] = true
			up := 0.0
			if e.Up {
				up = 1
			}
			to <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up, name, e.Name)
		}
	}
}
