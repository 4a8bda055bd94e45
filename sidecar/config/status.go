package config

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// Where a configuration came from.
const (
	SourceNone         = "none" // nothing runs yet
	SourceFile         = "file"
	SourceDisk         = "disk" // last known good; the control plane has not confirmed it yet
	SourceControlPlane = "control plane"
)

// Status is what runs and how current it is, for the admin page and readiness. Operators' scripts read its JSON form:
// add fields freely, do not rename.
type Status struct {
	// Source is where what runs came from; SourceNone means that nothing is configured.
	Source string `json:"source"`
	// Generation is what runs.
	Generation string `json:"generation"`
	// Confirmed is when what runs was last known to be what should; the present while connected. Zero, and absent in
	// JSON, while nothing runs.
	Confirmed time.Time `json:"confirmed,omitzero"`
	// Connected is whether the control plane answers, Since from when it has been so or not. False for a file.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	// Refused is what does not run as it should, ordered by kind and name. Errors of a whole file have no name.
	Refused []Refusal `json:"refused"`
}

// board is where a source puts its status for others to read.
type board struct {
	mu     sync.Mutex // guards below
	status Status
}

func (b *board) update(change func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.status)
}

// read is the status as it is now.
func (b *board) read() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.status
	out.Refused = append([]Refusal{}, out.Refused...) // none is [], not null
	if out.followed() {
		out.Confirmed = time.Now()
	}
	out.Confirmed, out.Since = out.Confirmed.UTC(), out.Since.UTC()
	return out
}

// followed is whether what runs is what the control plane wants now.
func (s Status) followed() bool { return s.Connected && s.Source == SourceControlPlane }

// age is how old the confirmation of what runs is, in seconds; -1 when nothing runs.
func (s Status) age() float64 {
	switch {
	case s.Confirmed.IsZero():
		return -1
	case s.followed():
		return 0
	}
	return max(0, time.Since(s.Confirmed).Seconds())
}

// newFileMetrics registers a file's metrics and returns the counter of its readings.
func newFileMetrics(r prometheus.Registerer, b *board) *prometheus.CounterVec {
	f := promauto.With(r)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "outrigger_config_refused",
		Help: "1 while the configuration file, or part of it, is refused and what ran before goes on.",
	}, func() float64 {
		if len(b.read().Refused) > 0 {
			return 1
		}
		return 0
	})
	reloads := f.NewCounterVec(prometheus.CounterOpts{
		Name: "outrigger_config_reloads_total",
		Help: "Readings of the configuration file, the first included, by what became of them: applied or refused.",
	}, []string{"result"})
	reloads.WithLabelValues("applied") // both there from the start, for rates
	reloads.WithLabelValues("refused")
	return reloads
}

// metrics of the xDS client. Dashboards and alerts read these names: add freely, do not rename.
type metrics struct {
	updates *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer, b *board) *metrics {
	f := promauto.With(r)
	gauge := func(name, help string, value func(Status) float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(b.read()) })
	}
	gauge("outrigger_xds_connected", "1 while the control plane answers.", func(s Status) float64 {
		if s.Connected {
			return 1
		}
		return 0
	})
	gauge("outrigger_xds_config_age_seconds", "Since the configuration was last known to be current; 0 while connected, -1 when there is none.",
		Status.age)
	gauge("outrigger_xds_refused_resources", "Resources that do not run in the version that they should.", func(s Status) float64 {
		return float64(len(s.Refused))
	})
	return &metrics{updates: f.NewCounterVec(prometheus.CounterOpts{
		Name: "outrigger_xds_updates_total",
		Help: "Resources received, by kind and by what became of them: accepted, refused or removed.",
	}, []string{"type", "result"})}
}

// count notes what a response brought.
func (m *metrics) count(kind string, accepted, refused, removed int) {
	m.updates.WithLabelValues(kind, "accepted").Add(float64(accepted))
	m.updates.WithLabelValues(kind, "refused").Add(float64(refused))
	m.updates.WithLabelValues(kind, "removed").Add(float64(removed))
}

// refusalsOf lists all that a state refuses.
func refusalsOf(s *state) []Refusal {
	all := map[key]fault{}
	for k, f := range s.refused {
		all[k] = f
	}
	for k, f := range s.faults {
		all[k] = f
	}
	var out []Refusal
	for _, k := range slices.SortedFunc(keysOf(all), key.compare) {
		kind, ok := resource.KindOfTypeURL(k.typeURL)
		if !ok {
			kind = "Manifest"
		}
		out = append(out, Refusal{Kind: kind, Name: k.name, Reason: all[k].reason})
	}
	return out
}
