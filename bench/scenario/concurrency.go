package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

var _ = register(Scenario{
	Scenario: record.Scenario{
		Name:     "concurrency",
		Title:    "Many sessions, slow backends",
		Question: "How much of what a caller waits for is the proxy's doing, for 1 to 1,000 sessions and backends of 0 to 500 ms?",
		Method: "Each session is a legacy one on a connection of its own. Before a backend that answers at once it is a closed " +
			"loop: every session calls again as soon as it has its answer, so nothing is left of the machine, and waiting " +
			"for one's turn is most of the latency. Before slower ones calls are due evenly, in an open loop, at the rate that " +
			"keeps the sessions waiting for the backend 80 % of their time, but at most 5,000 calls per second. " +
			"`added_p50_us` is the p50 less that of the direct row in the same round; `share` is that in hundredths of the p50.",
		Fields: []string{"delay_ms", "sessions"},
		Figures: []record.Figure{figureAdded,
			{Name: "share", Title: "share of p50, %", Better: "lower", Digits: 2},
			figureP50, figureP99, figureCalls, figureCPU, figureRSS,
			{Name: "unsent", Title: "calls that were due but never sent", Better: "lower", Digits: 0}},
		Charts: []record.Chart{
			{Name: "share", Title: "Share of p50 over the backend's delay, 100 sessions", Kind: "line", X: "delay_ms", Y: "share", Series: "subject",
				Where: map[string]string{"sessions": "100"}},
			{Name: "added", Title: "Added to p50 over sessions, backend of 50 ms", Kind: "line", X: "sessions", Y: "added_p50_us", Series: "subject",
				Where: map[string]string{"delay_ms": "50"}, LogX: true},
		},
	},
	Needs: NullServer,
	Run:   runConcurrency,
})

// mostDue bounds the open loop's rate, in calls per second, so that the load generator is never the limit.
const mostDue = 5000

func runConcurrency(ctx context.Context, b *Bench) error {
	subjects, err := b.Subjects(ctx, "direct", "nginx", "sidecar", "peers")
	if err != nil {
		return err
	}
	c := Contest{
		Scenario: "concurrency",
		Subjects: subjects,
		Cases:    concurrencyCases(b.Short),
		Load:     concurrencyLoad,
		Duration: func(k Case) time.Duration { return max(b.Duration, leastFor(k)) },
		Figures:  concurrencyFigures,
	}
	b.Plan(b.Rows(c))
	return b.Contest(ctx, c)
}

// concurrencyCases are all pairs, or in a short run one line along each field.
func concurrencyCases(short bool) []Case {
	if !short {
		return cross("delay_ms", "0,5,50,200,500", "sessions", "1,10,100,1000")
	}
	return append(cross("delay_ms", "0,5,50,200,500", "sessions", "100"), cross("delay_ms", "50", "sessions", "1,1000")...)
}

// dueRate is how many calls per second are due; 0 for a closed loop.
func dueRate(k Case) float64 {
	delay := k.number("delay_ms")
	if delay == 0 {
		return 0
	}
	return min(mostDue, 0.8*k.number("sessions")*1000/delay)
}

// leastFor is how long it takes to make enough calls for a median.
func leastFor(k Case) time.Duration {
	const enough = 20
	if rate := dueRate(k); rate > 0 {
		return time.Duration(enough / rate * float64(time.Second))
	}
	return 0
}

func concurrencyLoad(k Case) []string {
	args := []string{"-era", "legacy", "-conns", k["sessions"], "-delay", k["delay_ms"] + "ms"}
	if rate := dueRate(k); rate > 0 {
		args = append(args, "-rate", fmt.Sprintf("%g", rate))
	}
	return args
}

func concurrencyFigures(row record.Row, s *Subject, beside map[string]record.Row) map[string]float64 {
	v := callFigures(row, s)
	delete(v, "p99_over_p50")
	v["unsent"] = float64(row.Load.Unsent)
	if s.Name == "direct" {
		return v
	}
	addDifference(v, "p50_us", "added_p50_us", beside)
	if added, ok := v["added_p50_us"]; ok && v["p50_us"] > 0 {
		v["share"] = 100 * added / v["p50_us"]
	}
	return v
}
