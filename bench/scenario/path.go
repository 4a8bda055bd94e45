package scenario

import (
	"context"
	"fmt"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// Sizes and connections at which the gate and most targets are.
const (
	usualBytes = "250"
	usualConns = "64"
)

var _ = register(Scenario{
	Scenario: record.Scenario{
		Name:     "path",
		Title:    "What a call costs",
		Question: "How much CPU, rate and latency does each thing between client and server cost, for one tools/call?",
		Method: "Each case is measured directly, through nginx and through the sidecar, one after the other, in each round. " +
			"A call is a POST of 350 B; the upstream answers at once; every answer is compared byte for byte. " +
			"In the closed loop each connection has one call in flight, so it shows cost; `cpu_us` is user and system time " +
			"of the proxy's process alone, divided by calls. " +
			"In the open loop calls are due evenly, for every subject at two fifths of the rate that the closed loop reaches through " +
			"nginx, and latency counts from the time a call was due. " +
			"The direct rows show the limit of the load generator and the upstream.",
		Fields: []string{"loop", "era", "answer", "bytes", "conns"},
		Figures: []record.Figure{figureCPU, figureRatio, figureCalls,
			{Name: "mib_s", Title: "answers, MiB/s", Better: "higher", Digits: 0},
			{Name: "rate_nginx", Title: "calls per second, multiples of nginx", Better: "higher", Digits: 2},
			figureP50, figureP99, figureP999, figureTail, figureRSS,
			{Name: "unsent", Title: "calls that were due but never sent", Better: "lower", Digits: 0}},
		Charts: []record.Chart{
			{Name: "cpu", Title: "CPU per call at 64 connections, 250 B answers", Kind: "bar", X: "era", Y: "cpu_us", Series: "subject",
				Where: map[string]string{"loop": "closed", "conns": usualConns, "bytes": usualBytes, "answer": "json"}},
			{Name: "cpu-stream", Title: "CPU per call at 64 connections, 250 B as an event stream", Kind: "bar", X: "era", Y: "cpu_us", Series: "subject",
				Where: map[string]string{"loop": "closed", "conns": usualConns, "bytes": usualBytes, "answer": "sse"}},
			{Name: "rate", Title: "Calls per second over connections, stateless", Kind: "line", X: "conns", Y: "calls_s", Series: "subject", LogX: true,
				Where: map[string]string{"loop": "closed", "era": "stateless", "answer": "json", "bytes": usualBytes}},
			{Name: "size", Title: "Throughput over size of answer, stateless", Kind: "line", X: "bytes", Y: "mib_s", Series: "subject", LogX: true, LogY: true,
				Where: map[string]string{"loop": "closed", "era": "stateless", "answer": "json", "conns": usualConns}},
		},
		Targets: pathTargets(),
	},
	Needs: AnyServer,
	Run:   runPath,
})

// pathGates are the ratios to nginx that fail CI, by form of answer: wide, since what a call costs beside nginx differs
// between kernels and machines. They are there for a call that becomes dear, not for one of a few percent.
var pathGates = map[string]float64{"json": 2.2, "sse": 2.5}

// pathTargets are the ratios to nginx that a call must keep, gated, and those of what large answers and the tail do.
func pathTargets() (list []record.Target) {
	for _, c := range cross("era", "stateless,legacy", "answer", "json,sse") {
		gate := pathGates[c["answer"]]
		where := c.with("loop", "closed").with("bytes", usualBytes).with("conns", usualConns)
		name := fmt.Sprintf("%s call answered as %s, against nginx", c["era"], c["answer"])
		list = append(list, record.Target{Name: name, Figure: "ratio_nginx", Subject: "sidecar", Where: where, Most: 1.5, Gate: gate},
			record.Target{Name: name + ": p99 / p50", Figure: "p99_over_p50", Subject: "sidecar", Where: where, Most: 3})
	}
	for _, bytes := range []string{"65536", "1048576"} {
		list = append(list, record.Target{Name: bytes + " B answers, rate against nginx", Figure: "rate_nginx", Subject: "sidecar",
			Where: Case{"loop": "closed", "era": "stateless", "answer": "json", "bytes": bytes, "conns": usualConns}, Least: 0.9, Gate: 0.7})
	}
	return append(list, record.Target{Name: "RSS at 64 connections, MiB", Figure: "rss_mib", Subject: "sidecar",
		Where: Case{"loop": "closed", "bytes": usualBytes, "conns": usualConns}, Most: 60, Gate: 90})
}

func runPath(ctx context.Context, b *Bench) error {
	names := []string{"direct", "nginx", "sidecar", "peers"}
	if b.Gate {
		names = []string{"nginx", "sidecar"}
	}
	subjects, err := b.Subjects(ctx, names...)
	if err != nil {
		return err
	}
	closed, open := pathCases(b)
	closed, open = b.ofEra(closed), b.ofEra(open)
	b.Plan(b.Rounds * (len(closed) + len(open)) * len(subjects))
	rates := closedRates{}
	c := Contest{Scenario: "path", Subjects: subjects, Cases: closed, Stream: isStream, Load: pathLoad, Figures: rates.note}
	if err := b.Contest(ctx, c); err != nil {
		return err
	}
	c.Cases = open
	c.Load = func(k Case) []string { return append(pathLoad(k), "-rate", fmt.Sprintf("%.0f", rates.share(k))) }
	c.Figures = pathFigures
	return b.Contest(ctx, c)
}

// pathCases are the closed loop's and the open loop's.
func pathCases(b *Bench) (closed, open []Case) {
	usual := cross("loop", "closed", "bytes", usualBytes, "conns", usualConns, "era", "stateless,legacy", "answer", "json,sse")
	if b.Gate {
		return usual, nil
	}
	eras, answers := "stateless,legacy", "json,sse"
	if b.Short {
		eras, answers = "stateless", "json"
	}
	if b.anyServer() {
		return cross("loop", "closed", "era", "stateless,legacy", "conns", "1,8,64,256"),
			cross("loop", "open", "era", "stateless,legacy", "conns", usualConns)
	}
	closed = append(usual, cross("loop", "closed", "era", eras, "answer", answers, "bytes", usualBytes, "conns", "1,8,256")...)
	closed = append(closed, cross("loop", "closed", "era", eras, "answer", answers, "bytes", "1024,65536,1048576", "conns", usualConns)...)
	if b.Short {
		closed = append(closed, cross("loop", "closed", "era", eras, "answer", "sse", "bytes", "65536", "conns", usualConns)...)
	}
	return closed, cross("loop", "open", "era", "stateless,legacy", "answer", answers, "bytes", usualBytes, "conns", usualConns)
}

func isStream(k Case) bool { return k["answer"] == "sse" }

// pathLoad is a case's load. Cases of any server say nothing of answers.
func pathLoad(k Case) []string {
	args := []string{"-era", k["era"], "-conns", k["conns"]}
	if k["bytes"] == "" {
		return args
	}
	streamed := "0"
	if isStream(k) {
		streamed = "1"
	}
	return append(args, "-answer-bytes", k["bytes"], "-streamed", streamed)
}

// pathFigures are a row's.
func pathFigures(row record.Row, s *Subject, beside map[string]record.Row) map[string]float64 {
	v := callFigures(row, s)
	compare(v, "cpu_us", "ratio_nginx", beside)
	compare(v, "calls_s", "rate_nginx", beside)
	if bytes := row.Case["bytes"]; bytes != "" && bytes != usualBytes {
		v["mib_s"] = v["calls_s"] * Case(row.Case).number("bytes") / (1 << 20)
	}
	if row.Case["loop"] == "open" {
		v["p999_us"] = row.Load.Latency.P999
		v["unsent"] = float64(row.Load.Unsent)
	}
	return v
}

// closedRates are what the closed loop reached at usualConns through nginx, or at the target: calls per second by era
// and form of answer. The open loop goes by them, since what one core of a proxy can carry is far below what the load
// and the upstream can do directly.
type closedRates map[string]float64

// note takes a row's figures, and its rate when it is one to go by.
func (r closedRates) note(row record.Row, s *Subject, beside map[string]record.Row) map[string]float64 {
	v := pathFigures(row, s, beside)
	k := Case(row.Case)
	if usual := k["bytes"] == usualBytes || k["bytes"] == ""; usual && k["conns"] == usualConns && (s.Name == "nginx" || s.Name == "target") {
		r[r.key(k)] = v["calls_s"]
	}
	return v
}

// share is the rate at which calls of a case are due, per second.
func (r closedRates) share(k Case) float64 { return max(1, 0.4*r[r.key(k)]) }

func (closedRates) key(k Case) string { return k["era"] + " " + k["answer"] }
