package proxy

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outrigger-mesh/outrigger/sidecar/upstream/care"
)

// shown is a server that is as the test has it.
type shown struct {
	fake
	shot care.Snapshot
}

func (s *shown) Snapshot() care.Snapshot { return s.shot }

func TestMetricsShowHowUpstreamsAre(t *testing.T) {
	r := newRig(t, &shown{shot: care.Snapshot{
		InFlight: 3, Waiting: 2,
		Endpoints: []care.EndpointSnapshot{{Name: "a:1/mcp", Up: true}, {Name: "b:1/mcp"}, {Name: "b:1/mcp", Up: true}},
		Retries:   care.RetrySnapshot{Answered: 5, Failed: 4, NoBudget: 1},
	}})
	reg := prometheus.NewRegistry()
	reg.MustRegister(r.Upstreams())
	const want = `# HELP outrigger_upstream_calls Calls in flight at an upstream, without listens.
# TYPE outrigger_upstream_calls gauge
outrigger_upstream_calls{upstream="up"} 3
# HELP outrigger_upstream_retries_total Requests sent to an upstream again, by result; no_budget: not sent, since the budget of retries was spent.
# TYPE outrigger_upstream_retries_total counter
outrigger_upstream_retries_total{result="failed",upstream="up"} 4
outrigger_upstream_retries_total{result="no_budget",upstream="up"} 1
outrigger_upstream_retries_total{result="ok",upstream="up"} 5
# HELP outrigger_upstream_up Whether calls are let through to an endpoint of an upstream: 0 while it is left alone after faults of its own.
# TYPE outrigger_upstream_up gauge
outrigger_upstream_up{endpoint="a:1/mcp",upstream="up"} 1
outrigger_upstream_up{endpoint="b:1/mcp",upstream="up"} 0
# HELP outrigger_upstream_waiting_calls Calls that wait for a place at an upstream.
# TYPE outrigger_upstream_waiting_calls gauge
outrigger_upstream_waiting_calls{upstream="up"} 2
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
