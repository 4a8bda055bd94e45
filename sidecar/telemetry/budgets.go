package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
)

// Budgets are the metrics of a process's budgets, by the names of what they bound. They are read when metrics are: nobody
// who takes from a budget pays for them.
type Budgets map[string]*budget.Budget

var (
	budgetUsed = prometheus.NewDesc("outrigger_budget_bytes",
		"Memory taken of a budget of the process, by what it bounds.", []string{"budget"}, nil)
	budgetLimit = prometheus.NewDesc("outrigger_budget_limit_bytes",
		"How much a budget of the process has, by what it bounds.", []string{"budget"}, nil)
	budgetRefused = prometheus.NewDesc("outrigger_budget_refused_total",
		"How often a budget of the process had no room, by what it bounds.", []string{"budget"}, nil)
)

// Describe implements prometheus.Collector.
func (Budgets) Describe(to chan<- *prometheus.Desc) {
	to <- budgetUsed
	to <- budgetLimit
	to <- budgetRefused
}

// Collect implements prometheus.Collector.
func (all Budgets) Collect(to chan<- prometheus.Metric) {
	for name, b := range all {
		to <- prometheus.MustNewConstMetric(budgetUsed, prometheus.GaugeValue, float64(b.Used()), name)
		to <- prometheus.MustNewConstMetric(budgetLimit, prometheus.GaugeValue, float64(b.Most()), name)
		to <- prometheus.MustNewConstMetric(budgetRefused, prometheus.CounterValue, float64(b.Refused()), name)
	}
}
