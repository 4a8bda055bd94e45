package scenario

import (
	"context"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

var _ = register(Scenario{
	Scenario: record.Scenario{
		Name:     "streaming",
		Title:    "Answers as event streams",
		Question: "What does an answer cost that comes as an event stream, and each event before it, and is the first event held up?",
		Method: "64 connections, closed loop, answers of 250 B. `share` of the answers come as an event stream, with `events` " +
			"notifications before the answer, each written by itself, `gap_ms` apart. " +
			"`event_us` is the CPU time that each of these adds to a call: the row's less that of the same subject, era and round " +
			"without events, divided by events. Without a gap a proxy may find several events in one read; with one each comes by " +
			"itself. nginx passes events on without buffering. `first_event_us` is the median until the first event is read, " +
			"`added_first_us` that less the direct row's.",
		Fields: []string{"era", "share", "events", "gap_ms"},
		Figures: []record.Figure{figureCPU, figureRatio,
			{Name: "event_us", Title: "CPU per event, us", Better: "lower", Digits: 2},
			{Name: "event_ratio_nginx", Title: "CPU per event, multiples of nginx", Better: "lower", Digits: 2},
			{Name: "events_s", Title: "events per second", Better: "higher", Digits: 0},
			{Name: "first_event_us", Title: "first event, p50, us", Better: "lower", Digits: 0},
			{Name: "added_first_us", Title: "added to the first event, us", Better: "lower", Digits: 0},
			figureCalls, figureP50, figureP99},
		Charts: []record.Chart{
			{Name: "share", Title: "CPU per call over the share of streamed answers", Kind: "line", X: "share", Y: "cpu_us", Series: "subject",
				Where: map[string]string{"era": "stateless", "events": "0", "gap_ms": "0"}},
			{Name: "events", Title: "CPU per call over events before the answer", Kind: "line", X: "events", Y: "cpu_us", Series: "subject",
				Where: map[string]string{"era": "stateless", "share": "1", "gap_ms": "0"}},
		},
		Targets: []record.Target{
			{Name: "an event that comes by itself, stateless, against nginx", Figure: "event_ratio_nginx", Subject: "sidecar",
				Where: Case{"era": "stateless", "events": "5", "gap_ms": "2"}, Most: 1.5, Gate: 2.5},
			{Name: "an event of ten at once, stateless, against nginx", Figure: "event_ratio_nginx", Subject: "sidecar",
				Where: Case{"era": "stateless", "events": "10", "gap_ms": "0"}, Most: 1.5, Gate: 2.5},
			{Name: "an event of ten at once, legacy, against nginx", Figure: "event_ratio_nginx", Subject: "sidecar",
				Where: Case{"era": "legacy", "events": "10", "gap_ms": "0"}, Most: 1.5, Gate: 2.5},
		},
	},
	Needs: NullServer,
	Run:   runStreaming,
})

func runStreaming(ctx context.Context, b *Bench) error {
	subjects, err := b.Subjects(ctx, "direct", "nginx", "sidecar", "peers")
	if err != nil {
		return err
	}
	plain := plainStreams{}
	c := Contest{
		Scenario: "streaming",
		Subjects: subjects,
		Cases:    b.ofEra(streamingCases(b.Short)),
		Stream:   func(Case) bool { return true },
		Load: func(k Case) []string {
			return []string{"-era", k["era"], "-conns", usualConns, "-streamed", k["share"], "-events", k["events"], "-event-gap", k["gap_ms"] + "ms"}
		},
		Figures: plain.figures,
	}
	b.Plan(b.Rows(c))
	return b.Contest(ctx, c)
}

// streamingCases begin, for each era, with a streamed answer without events: what events cost is counted from it.
func streamingCases(short bool) []Case {
	events := "1,10,100"
	if short {
		events = "10"
	}
	cases := cross("era", "stateless,legacy", "share", "1", "events", "0,"+events, "gap_ms", "0")
	if short {
		cases = append(cases, cross("era", "stateless", "share", "0,0.2", "events", "0", "gap_ms", "0")...)
		return append(cases, cross("era", "stateless", "share", "1", "events", "5", "gap_ms", "2")...)
	}
	cases = append(cases, cross("era", "stateless,legacy", "share", "0,0.2", "events", "0", "gap_ms", "0")...)
	return append(cases, cross("era", "stateless,legacy", "share", "1", "events", "5", "gap_ms", "2,20")...)
}

// plainStreams are the CPU times of calls whose streams have no events, in us, by subject, era and round.
type plainStreams map[plainStream]float64

type plainStream struct {
	subject, era string
	round        int
}

// figures are a row's. It notes those of plain streams.
func (p plainStreams) figures(row record.Row, s *Subject, beside map[string]record.Row) map[string]float64 {
	v := callFigures(row, s)
	delete(v, "p99_over_p50")
	delete(v, "rss_mib")
	compare(v, "cpu_us", "ratio_nginx", beside)
	if row.Load.Events > 0 && row.Load.Seconds > 0 {
		v["events_s"] = float64(row.Load.Events) / row.Load.Seconds
	}
	if first := row.Load.FirstEvent; first.Count > 0 {
		v["first_event_us"] = first.P50
		if s.Name != "direct" {
			addDifference(v, "first_event_us", "added_first_us", beside)
		}
	}
	k := Case(row.Case)
	key := plainStream{s.Name, k["era"], row.Round}
	switch cpu, measured := v["cpu_us"]; {
	case !measured || k["share"] != "1":
	case k["events"] == "0":
		p[key] = cpu
	case p[key] > 0:
		v["event_us"] = (cpu - p[key]) / k.number("events")
		compare(v, "event_us", "event_ratio_nginx", beside)
	}
	return v
}
