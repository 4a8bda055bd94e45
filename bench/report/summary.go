package report

import (
	"encoding/json"
	"time"
)

// summary is summary.json. Other programs read it: add fields; never rename one or change its meaning.
type summary struct {
	Time      time.Time        `json:"time"`
	Commit    string           `json:"commit"`
	Machine   string           `json:"machine"`
	Valid     int              `json:"validRows"`
	Discarded int              `json:"discardedRows"`
	Notes     []string         `json:"notes,omitempty"`
	Targets   []judged         `json:"targets"`
	Figures   []summaryOfPoint `json:"figures"`
}

// judged is a verdict with its outcome.
type judged struct {
	Verdict
	Met bool `json:"met"`
}

// summaryOfPoint is one figure of one subject in one case.
type summaryOfPoint struct {
	Scenario string            `json:"scenario"`
	Case     map[string]string `json:"case"`
	Subject  string            `json:"subject"`
	Figure   string            `json:"figure"`
	Spread
}

// summarise is a run as summary.json.
func summarise(r *run) ([]byte, error) {
	s := summary{
		Time: r.env.Time, Commit: r.env.Commit, Machine: r.env.Machine,
		Valid: r.valid, Discarded: len(r.discarded), Notes: r.notes,
		Targets: []judged{}, Figures: []summaryOfPoint{},
	}
	for _, v := range r.judge() {
		s.Targets = append(s.Targets, judged{v, v.Met()})
	}
	for _, t := range r.tables {
		for _, kase := range t.cases {
			for _, subject := range t.subjects {
				for _, f := range t.Figures {
					if spread := spreadOf(t.of(kase, subject, f.Name)); spread.N > 0 {
						s.Figures = append(s.Figures, summaryOfPoint{t.Name, kase, subject, f.Name, spread})
					}
				}
			}
		}
	}
	out, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(out, '\n'), nil
}
