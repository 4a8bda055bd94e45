// Package telemetry is what a sidecar says of itself: metrics, and one access line per call.
//
// Names of metrics and labels are a promise to dashboards and alerts: add freely; rename by adding the new name and
// keeping the old for one release.
package telemetry

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// Outcome is how a call ended, as its metric label says it.
type Outcome uint8

const (
	OK        Outcome = iota // answered with a result, or accepted
	RPCError                 // answered by the server with a JSON-RPC error
	Refused                  // the sidecar said no
	Failed                   // the server could not be reached, or its answer did not come
	Cancelled                // the client left or cancelled before the answer
	outcomes
)

func (o Outcome) String() string {
	return [outcomes]string{"ok", "rpc_error", "refused", "failed", "cancelled"}[o]
}

// methods are the values of the label method; whatever else a client sends counts as "other", so that strangers cannot
// make series.
var methods = []string{
	"other", mcp.MethodInitialize, mcp.MethodPing, mcp.MethodDiscover, mcp.MethodToolsList, mcp.MethodToolsCall,
	mcp.MethodPromptsList, mcp.MethodPromptsGet, mcp.MethodResourcesList, mcp.MethodResourceTemplatesList,
	mcp.MethodResourcesRead, mcp.MethodResourcesSubscribe, mcp.MethodResourcesUnsubscribe, mcp.MethodListen,
	mcp.MethodComplete, mcp.MethodSetLevel, mcp.MethodTasksGet, mcp.MethodTasksResult, mcp.MethodTasksList,
	mcp.MethodTasksCancel, mcp.MethodTasksUpdate, mcp.NotificationInitialized, mcp.NotificationCancelled,
	mcp.NotificationProgress, mcp.NotificationRootsChanged, "response", "GET", "DELETE",
}

var methodIndex = func() map[string]int {
	m := make(map[string]int, len(methods))
	for i, name := range methods {
		m[name] = i
	}
	return m
}()

// Metrics are a sidecar's call metrics.
type Metrics struct {
	duration *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	streams  *prometheus.GaugeVec
	sessions *prometheus.GaugeVec
	denials  *prometheus.CounterVec
}

// NewMetrics registers the call metrics and the build's.
func NewMetrics(reg prometheus.Registerer, version string) *Metrics {
	m := &Metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "outrigger_call_duration_seconds",
			Help: "Time from a request's head to its answer's last byte, by binding, method, era and outcome. Streams count when they end.",
			Buckets: []float64{50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3,
				100e-3, 250e-3, 500e-3, 1, 2.5, 10, 60},
		}, []string{"binding", "method", "era", "outcome"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_refusals_total",
			Help: "Requests that the sidecar answered itself with an error, by reason.",
		}, []string{"binding", "reason"}),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outrigger_open_streams",
			Help: "SSE streams open towards clients.",
		}, []string{"binding", "era"}),
		sessions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outrigger_sessions",
			Help: "Legacy sessions alive.",
		}, []string{"binding"}),
	}
	m.denials = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outrigger_policy_denials_total",
		Help: "Calls that rules refused, by the policy and rule that did; enforced is false for those that an audit-only policy would have refused.",
	}, []string{"binding", "policy", "rule", "enforced"})
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "outrigger_build_info", Help: "Always 1; its labels tell the build.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	reg.MustRegister(m.duration, m.refusals, m.streams, m.sessions, m.denials, build)
	return m
}

// Binding is one binding's metrics, with the children that calls touch resolved once.
type Binding struct {
	metrics  *Metrics
	name     string
	children [3][][outcomes]atomic.Pointer[prometheus.Observer] // by eraSlot, method, outcome
	Streams  [2]prometheus.Gauge                                // by EraIndex
	Sessions prometheus.Gauge
}

// EraIndex places an era in Binding.Streams.
func EraIndex(e mcp.Era) int {
	if e == mcp.Stateless {
		return 1
	}
	return 0
}

// eraSlot places an era, or none, in Binding.children.
func eraSlot(e mcp.Era) int {
	switch e {
	case mcp.Legacy:
		return 0
	case mcp.Stateless:
		return 1
	}
	return 2
}

// Binding resolves a binding's metrics.
func (m *Metrics) Binding(name string) *Binding {
	b := &Binding{metrics: m, name: name, Sessions: m.sessions.WithLabelValues(name)}
	for i := range b.children {
		b.children[i] = make([][outcomes]atomic.Pointer[prometheus.Observer], len(methods))
	}
	for i, era := range []mcp.Era{mcp.Legacy, mcp.Stateless} {
		b.Streams[i] = m.streams.WithLabelValues(name, era.String())
	}
	return b
}

// Forget removes a binding's series, when the binding is gone.
func (m *Metrics) Forget(name string) {
	label := prometheus.Labels{"binding": name}
	m.duration.DeletePartialMatch(label)
	m.refusals.DeletePartialMatch(label)
	m.streams.DeletePartialMatch(label)
	m.sessions.DeletePartialMatch(label)
	m.denials.DeletePartialMatch(label)
}

// Observe counts one call.
//
// Hot: runs once per call. A child is looked up once in its life; after that this allocates nothing
// (TestObserveDoesNotAllocate).
func (b *Binding) Observe(era mcp.Era, method string, o Outcome, took time.Duration) {
	i := methodIndex[method] // 0, "other", when unknown
	slot := &b.children[eraSlot(era)][i][o]
	child := slot.Load()
	if child == nil {
		resolved := b.metrics.duration.WithLabelValues(b.name, methods[i], era.String(), o.String())
		child = &resolved
		slot.Store(child)
	}
	(*child).Observe(took.Seconds())
}

// Refusal counts an answer that the sidecar gave itself.
func (b *Binding) Refusal(reason string) {
	b.metrics.refusals.WithLabelValues(b.name, reason).Inc()
}

// Denial counts a call that rules refused, or would have.
func (b *Binding) Denial(policy, rule string, enforced bool) {
	b.metrics.denials.WithLabelValues(b.name, policy, rule, strconv.FormatBool(enforced)).Inc()
}

// RefusalOutside counts a refusal of a request that reached no binding.
func (m *Metrics) RefusalOutside(reason string) {
	m.refusals.WithLabelValues("", reason).Inc()
}
