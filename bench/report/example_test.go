package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// example is a made run with the shapes of real scenarios: many cases and subjects, one subject with many figures, and
// one with a single case. slower multiplies the sidecar's cost per call; the same seed gives the same noise.
func example(seed uint64, slower float64, edit func(*record.Environment)) []record.Line {
	noise := rand.New(rand.NewPCG(seed, 1))
	env := record.Environment{
		Time: time.Date(2026, 11, 30, 9, 0, int(seed), 0, time.UTC), Command: "bin/bench/run run", Commit: "0123456789ab",
		Machine: "AMD EPYC", Cores: 2, MemoryMiB: 7937, Kernel: "6.1.0", Go: "go1.26.8", NoiseLimit: 0.05,
		Versions: map[string]string{"nginx": "1.22.1", "sidecar": "0.2.0"},
		Builds:   map[string]string{"sidecar": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"},
		Pinned:   map[string]string{"load": "0", "nginx": "1", "sidecar": "1", "upstream": "0"},
		Config:   map[string]string{"nginx": "worker_processes 1;\nevents {}\n"},
	}
	if edit != nil {
		edit(&env)
	}
	lines := []record.Line{{Kind: record.KindEnvironment, Environment: &env}}
	lines = append(lines, examplePath(noise, slower)...)
	lines = append(lines, exampleSessions(noise)...)
	return append(lines, exampleMemory(noise)...)
}

func scenarioLine(s record.Scenario) record.Line {
	return record.Line{Kind: record.KindScenario, Scenario: &s}
}

func rowLine(r record.Row) record.Line {
	for figure, v := range r.Values {
		r.Values[figure] = math.Round(v*1000) / 1000 // the same on every machine
	}
	return record.Line{Kind: record.KindRow, Row: &r}
}

func examplePath(noise *rand.Rand, slower float64) []record.Line {
	lines := []record.Line{scenarioLine(record.Scenario{
		Name: "path", Title: "what a call costs", Question: "What does a call cost, compared with nginx?",
		Method: "Closed loop, turn about, every answer checked. CPU is `user + system` of the proxy alone, divided by calls.",
		Fields: []string{"era", "answer", "conns", "bytes"},
		Figures: []record.Figure{
			{Name: "cpu_us", Title: "CPU per call", Better: "lower", Digits: 1},
			{Name: "ratio_nginx", Title: "CPU per call against nginx", Better: "lower", Digits: 2},
			{Name: "calls_s", Title: "calls/s", Better: "higher"},
			{Name: "p50_us", Title: "p50, us", Better: "lower"},
			{Name: "p99_us", Title: "p99", Better: "lower"},
			{Name: "rss_mib", Title: "RSS", Better: "lower", Digits: 1},
		},
		Charts: []record.Chart{
			{Name: "cpu", Title: "CPU per call by connections", Kind: "line", X: "conns", Y: "cpu_us", Series: "subject",
				Where: map[string]string{"era": "stateless", "answer": "json", "bytes": "250"}, LogX: true},
			{Name: "path-bytes", Title: "Calls per second by answer size", Kind: "line", X: "bytes", Y: "calls_s", Series: "subject",
				Where: map[string]string{"era": "stateless", "answer": "json", "conns": "64"}, LogX: true, LogY: true},
			{Name: "path-bars", Title: "CPU per call, 64 connections", Kind: "bar", X: "era", Y: "cpu_us", Series: "subject",
				Where: map[string]string{"answer": "json", "conns": "64", "bytes": "250"}},
		},
		Targets: []record.Target{
			{Name: "unary call, 64 connections", Figure: "ratio_nginx", Subject: "sidecar", Most: 1.5, Gate: 2.2,
				Where: map[string]string{"era": "stateless", "answer": "json", "conns": "64", "bytes": "250"}},
			{Name: "unary call, 64 connections, legacy", Figure: "ratio_nginx", Subject: "sidecar", Most: 1.2, Gate: 2.2,
				Where: map[string]string{"era": "legacy", "answer": "json", "conns": "64", "bytes": "250"}},
			{Name: "calls per second", Figure: "calls_s", Subject: "sidecar", Least: 15000,
				Where: map[string]string{"era": "legacy", "answer": "json", "conns": "64", "bytes": "250"}},
			{Name: "streamed", Figure: "ratio_nginx", Subject: "sidecar", Most: 1.5, Where: map[string]string{"answer": "sse"}},
		},
	})}
	for round := 1; round <= 4; round++ {
		for _, era := range []string{"stateless", "legacy"} {
			for _, conns := range []int{1, 64} {
				for _, size := range []int{250, 65536} {
					lines = append(lines, pathRows(noise, slower, round, era, conns, size)...)
				}
			}
		}
	}
	return lines
}

func pathRows(noise *rand.Rand, slower float64, round int, era string, conns, size int) (lines []record.Line) {
	cost := func(us float64) float64 {
		return (us + 20/float64(conns) + float64(size)/2000) * (1 + 0.03*noise.NormFloat64())
	}
	nginx := cost(39)
	for _, subject := range []string{"direct", "nginx", "sidecar"} {
		values := map[string]float64{"calls_s": 1e6 / cost(26)}
		switch subject {
		case "nginx":
			values["cpu_us"] = nginx
		case "sidecar":
			values["cpu_us"] = cost(50 * slower)
			values["ratio_nginx"] = values["cpu_us"] / nginx
		}
		if subject != "direct" {
			values["calls_s"] = 1e6 / values["cpu_us"]
			values["rss_mib"] = 9 + float64(conns)/40
		}
		values["p50_us"] = float64(conns) * 1e6 / values["calls_s"]
		values["p99_us"] = values["p50_us"] * (1.8 + 0.2*noise.Float64())
		row := record.Row{Scenario: "path", Subject: subject, Round: round, Values: values, Case: map[string]string{
			"era": era, "answer": "json", "conns": strconv.Itoa(conns), "bytes": strconv.Itoa(size)}}
		if noise.IntN(30) == 0 { // and measured again
			discarded := row
			discarded.Values = map[string]float64{"cpu_us": 1000}
			discarded.Discarded = fmt.Sprintf("other processes used %.1f %% of the machine", 5+10*noise.Float64())
			lines = append(lines, rowLine(discarded))
		}
		lines = append(lines, rowLine(row))
	}
	return lines
}

func exampleSessions(noise *rand.Rand) []record.Line {
	lines := []record.Line{scenarioLine(record.Scenario{
		Name: "sessions", Title: "what a session holds", Question: "How much memory does an open session or stream take?",
		Method: "Open, wait, read `/proc`.", Fields: []string{"kind", "count"},
		Figures: []record.Figure{
			{Name: "each_kib", Title: "memory of each", Better: "lower", Digits: 1},
			{Name: "rss_mib", Title: "RSS", Better: "lower", Digits: 1},
			{Name: "opens_s", Title: "opened per second", Better: "higher"},
		},
		Charts: []record.Chart{{Name: "sessions-rss", Title: "RSS by what is open", Kind: "line", X: "count", Y: "rss_mib",
			Series: "kind", LogX: true, LogY: true}},
		Targets: []record.Target{{Name: "memory of an idle stream", Figure: "each_kib", Subject: "sidecar", Most: 12, Gate: 18,
			Where: map[string]string{"kind": "stream", "count": "10000"}}},
	})}
	for round := 1; round <= 3; round++ {
		for _, kind := range []string{"session", "stream"} {
			for _, count := range []int{1, 1000, 10000} {
				each := map[string]float64{"session": 3.4, "stream": 10.8}[kind] * (1 + 0.05*noise.NormFloat64())
				lines = append(lines, rowLine(record.Row{Scenario: "sessions", Subject: "sidecar", Round: round,
					Case: map[string]string{"kind": kind, "count": strconv.Itoa(count)},
					Values: map[string]float64{"each_kib": each, "rss_mib": 14 + each*float64(count)/1024,
						"opens_s": 4000 + 300*noise.NormFloat64()}}))
			}
		}
	}
	return lines
}

func exampleMemory(noise *rand.Rand) []record.Line {
	lines := []record.Line{scenarioLine(record.Scenario{
		Name: "memory", Title: "bursts and rest", Question: "Does memory come back after a burst?", Method: "Rest, burst, rest.",
		Figures: []record.Figure{
			{Name: "before_mib", Title: "RSS before", Better: "lower", Digits: 1},
			{Name: "peak_mib", Title: "RSS peak", Better: "lower", Digits: 1},
			{Name: "after_mib", Title: "RSS after", Better: "lower", Digits: 1},
		},
		Charts: []record.Chart{{Name: "memory-peak", Title: "Peak RSS in a burst", Kind: "bar", X: "subject", Y: "peak_mib"}},
	})}
	for round := 1; round <= 3; round++ {
		for i, subject := range []string{"nginx", "sidecar", "a gateway on the SDK"} {
			before := []float64{9, 15, 47}[i] + noise.Float64()
			lines = append(lines, rowLine(record.Row{Scenario: "memory", Subject: subject, Round: round,
				Values: map[string]float64{"before_mib": before, "peak_mib": before*2 + 2*noise.Float64(), "after_mib": before * 1.2}}))
		}
	}
	return lines
}

// encode is lines as a rows.jsonl.
func encode(lines []record.Line) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	for _, line := range lines {
		if err := enc.Encode(line); err != nil {
			panic(err) // only for values that JSON has not
		}
	}
	return out.Bytes()
}
