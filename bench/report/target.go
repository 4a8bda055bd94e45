package report

import (
	"strings"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// Verdict is a target with what was measured of it.
type Verdict struct {
	Scenario string        `json:"scenario"`
	Target   record.Target `json:"target"`
	Measured Spread        `json:"measured"` // over all rows that the target chooses; N is 0 when there are none
}

// Judge reads the rows of a results folder and returns a verdict for each target of its scenarios. A scenario that was
// not run has none.
func Judge(dir string) ([]Verdict, error) {
	r, err := readRun(dir)
	if err != nil {
		return nil, err
	}
	return r.judge(), nil
}

func (r *run) judge() []Verdict {
	var verdicts []Verdict
	for _, t := range r.tables {
		for _, target := range t.Targets {
			var values []float64
			for _, kase := range t.cases {
				if chosen(kase, target.Subject, target.Where) {
					values = append(values, t.of(kase, target.Subject, target.Figure)...)
				}
			}
			verdicts = append(verdicts, Verdict{Scenario: t.Name, Target: target, Measured: spreadOf(values)})
		}
	}
	return verdicts
}

// Met reports whether the median is within the target's limits. What was not measured is not met.
func (v Verdict) Met() bool {
	m := v.Measured.Median
	return v.Measured.N > 0 && (v.Target.Most == 0 || m <= v.Target.Most) && (v.Target.Least == 0 || m >= v.Target.Least)
}

// FailsGate reports whether CI must fail: the target is gated, and its median is beyond the gate or was not measured.
// A gate is a lower limit when the target has only a lower one, and an upper limit otherwise.
func (v Verdict) FailsGate() bool {
	gate, m := v.Target.Gate, v.Measured
	switch {
	case gate == 0:
		return false
	case m.N == 0:
		return true
	case v.Target.Most == 0 && v.Target.Least != 0:
		return m.Median < gate
	default:
		return m.Median > gate
	}
}

// word is the verdict in the page's words.
func (v Verdict) word() string {
	switch {
	case v.Measured.N == 0:
		return "not measured"
	case v.FailsGate():
		return "**not met, beyond the gate**"
	case !v.Met():
		return "**not met**"
	default:
		return "met"
	}
}

// limits is what the target asks for: "at most 1.5, gate 2.2".
func (v Verdict) limits() string {
	var parts []string
	if v.Target.Least != 0 {
		parts = append(parts, "at least "+limit(v.Target.Least))
	}
	if v.Target.Most != 0 {
		parts = append(parts, "at most "+limit(v.Target.Most))
	}
	if v.Target.Gate != 0 {
		parts = append(parts, "gate "+limit(v.Target.Gate))
	}
	return strings.Join(parts, ", ")
}

// digits are those of the target's figure.
func (r *run) digits(v Verdict) int {
	for _, t := range r.tables {
		if t.Name == v.Scenario {
			return t.figure(v.Target.Figure).Digits
		}
	}
	return 2
}
