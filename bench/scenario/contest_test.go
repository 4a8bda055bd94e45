package scenario

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

// benchForTest is a bench whose load generator is a script that says found, and the rows that it has written.
func benchForTest(t *testing.T, found string) (*Bench, *[]record.Row) {
	t.Helper()
	dir := t.TempDir()
	load := filepath.Join(dir, "load")
	if err := os.WriteFile(load, []byte("#!/bin/sh\necho '"+found+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := layout.New(dir, layout.Programs{Load: load})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	l.NoiseLimit = math.Inf(1)
	var rows []record.Row
	return &Bench{Layout: l, Rounds: 1, Progress: new(strings.Builder),
		Write: func(r record.Row) error { rows = append(rows, r); return nil }}, &rows
}

// finding is a load that found this.
func finding(l record.Load) func(context.Context) (record.Load, error) {
	return func(context.Context) (record.Load, error) { return l, nil }
}

func noFigures(record.Row) map[string]float64 { return nil }

func TestANoisyRowIsMeasuredAgainAndWrittenEachTime(t *testing.T) {
	for _, tc := range []struct {
		keep  bool
		want  []bool // whether each row that was written is discarded
		tally Tally
	}{
		{false, []bool{true, true, true}, Tally{Again: 2, Noisy: 1}},
		{true, []bool{true, true, false}, Tally{Again: 2, Noisy: 1, Counted: 1}},
	} {
		b, rows := benchForTest(t, "")
		b.Layout.NoiseLimit, b.Retries, b.KeepNoisy = -1, 2, tc.keep
		if _, err := b.Row(t.Context(), record.Row{}, finding(record.Load{}), noFigures); err != nil {
			t.Fatal(err)
		}
		var got []bool
		for _, r := range *rows {
			got = append(got, r.Discarded != "")
		}
		if !slices.Equal(got, tc.want) || b.Tally != tc.tally {
			t.Errorf("keep %v: discarded %v and tally %+v, want %v and %+v", tc.keep, got, b.Tally, tc.want, tc.tally)
		}
	}
}

func TestAMachineThatIsNeverQuietDoesNotTakeForever(t *testing.T) {
	b, rows := benchForTest(t, "")
	b.Layout.NoiseLimit, b.Retries = -1, 2
	b.Plan(6)
	for range 6 {
		if _, err := b.Row(t.Context(), record.Row{}, finding(record.Load{}), noFigures); err != nil {
			t.Fatal(err)
		}
	}
	if want := (Tally{Again: 3, Noisy: 6}); len(*rows) != 9 || b.Tally != want {
		t.Errorf("6 rows took %d measurements, tally %+v, want 9 and %+v", len(*rows), b.Tally, want)
	}
}

func TestAWrongAnswerDiscardsItsRowAtOnce(t *testing.T) {
	b, rows := benchForTest(t, "")
	b.Retries, b.KeepNoisy = 2, true
	row, err := b.Row(t.Context(), record.Row{}, finding(record.Load{Calls: 9, Wrong: 1, FirstFailure: "another's"}), noFigures)
	if err != nil || len(*rows) != 1 || !strings.Contains(row.Discarded, "another's") || b.Tally != (Tally{Failed: 1}) {
		t.Errorf("row %+v (%v), %d written, tally %+v; want one that is discarded for its wrong answer", row, err, len(*rows), b.Tally)
	}
}

func TestSubjectsTakeTurns(t *testing.T) {
	b, rows := benchForTest(t, `{"calls":10,"seconds":0.001,"callsPerS":1000,"latency":{"p50":5}}`)
	b.Rounds = 2
	c := Contest{Scenario: "s", Cases: cross("n", "1,2"), Load: func(Case) []string { return nil },
		Figures: func(row record.Row, s *Subject, beside map[string]record.Row) map[string]float64 {
			return map[string]float64{"beside": float64(len(beside))}
		}}
	for _, name := range []string{"direct", "nginx"} {
		p, err := b.Layout.Running(name, "http://127.0.0.1:1/mcp", 0)
		if err != nil {
			t.Fatal(err)
		}
		c.Subjects = append(c.Subjects, &Subject{name, p, p.URL})
	}
	b.Plan(b.Rows(c))
	if err := b.Contest(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range *rows {
		got = append(got, fmt.Sprintf("%d/%s/%s/%v", r.Round, r.Case["n"], r.Subject, r.Values["beside"]))
	}
	want := strings.Fields("1/1/direct/0 1/1/nginx/1 1/2/direct/0 1/2/nginx/1 2/1/direct/0 2/1/nginx/1 2/2/direct/0 2/2/nginx/1")
	if !slices.Equal(got, want) {
		t.Errorf("measured %q, want %q", got, want)
	}
	if progress := b.Progress.(*strings.Builder).String(); !strings.Contains(progress, "(8 of 8, 0s left)") {
		t.Errorf("progress %q does not end with all rows", progress)
	}
}

// rowOf is a row of a subject that used some CPU, in seconds, for a number of calls.
func rowOf(subject string, k Case, cpu float64, calls int64) record.Row {
	return record.Row{Subject: subject, Case: k, Round: 1, Load: &record.Load{Calls: calls, CallsPerS: float64(calls), Seconds: 1,
		Latency: record.Latency{P50: 100, P99: 250}}, Usage: []record.Usage{{Process: subject, UserSeconds: cpu / 4, SystemSeconds: 3 * cpu / 4, RSSMiB: 20}}}
}

func TestFiguresOfAPathRow(t *testing.T) {
	k := Case{"loop": "closed", "bytes": "1048576"}
	nginx := rowOf("nginx", k, 0.5, 10_000)
	nginx.Values = pathFigures(nginx, &Subject{Name: "nginx"}, nil)
	got := pathFigures(rowOf("sidecar", k, 0.6, 8_000), &Subject{Name: "sidecar"}, map[string]record.Row{"nginx": nginx})
	for name, want := range map[string]float64{"cpu_us": 75, "ratio_nginx": 1.5, "calls_s": 8000, "rate_nginx": 0.8, "mib_s": 8000,
		"p50_us": 100, "p99_us": 250, "p99_over_p50": 2.5, "rss_mib": 20} {
		if math.Abs(got[name]-want) > 1e-9 {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
	if ratio, ok := nginx.Values["ratio_nginx"]; ok {
		t.Errorf("nginx is compared with itself: %v", ratio)
	}
	if direct := pathFigures(rowOf("upstream", k, 1, 100), &Subject{Name: "direct"}, nil); direct["cpu_us"] != 0 {
		t.Errorf("direct has CPU time of a proxy: %v", direct)
	}
}

func TestTheOpenLoopGoesByTheRateThroughNginx(t *testing.T) {
	r := closedRates{}
	k := Case{"era": "legacy", "answer": "json", "bytes": "250", "conns": "64"}
	r.note(rowOf("nginx", k, 1, 10_000), &Subject{Name: "nginx"}, nil)
	r.note(rowOf("sidecar", k, 1, 5_000), &Subject{Name: "sidecar"}, nil)
	r.note(rowOf("nginx", k.with("conns", "1"), 1, 3_000), &Subject{Name: "nginx"}, nil)
	if got := r.share(k.with("loop", "open")); got != 4000 {
		t.Errorf("due are %v calls per second, want 4000", got)
	}
}

func TestPathCasesVaryEachFieldAndKeepTheGatedOnes(t *testing.T) {
	for _, tc := range []struct {
		name         string
		b            Bench
		closed, open int
	}{
		{"gate", Bench{Short: true, Gate: true}, 4, 0},
		{"short", Bench{Short: true}, 11, 2},
		{"full", Bench{}, 28, 4},
		{"any server", Bench{Target: &Target{AnyServer: true}}, 8, 2},
	} {
		closed, open := pathCases(&tc.b)
		if len(closed) != tc.closed || len(open) != tc.open {
			t.Errorf("%s: %d closed and %d open cases, want %d and %d", tc.name, len(closed), len(open), tc.closed, tc.open)
		}
		seen := map[string]bool{}
		for _, k := range append(closed, open...) {
			if text := fmt.Sprint(k); seen[text] {
				t.Errorf("%s: %s is measured twice", tc.name, text)
			} else {
				seen[text] = true
			}
		}
	}
}

func TestOnlyOneEraIsMeasuredWhenAskedFor(t *testing.T) {
	cases := append(cross("era", "stateless,legacy"), Case{"sessions": "1"})
	for era, want := range map[string]int{"": 3, "legacy": 2, "stateless": 2} {
		got := (&Bench{Era: era}).ofEra(slices.Clone(cases))
		if len(got) != want || era != "" && got[0]["era"] != era {
			t.Errorf("of era %q are %v, want %d cases", era, got, want)
		}
	}
}

func TestTheCostOfAnEventIsWhatItAddsToAStreamWithout(t *testing.T) {
	p := plainStreams{}
	k := Case{"era": "legacy", "share": "1", "events": "0", "gap_ms": "0"}
	row := func(subject string, k Case, cpu float64, beside map[string]record.Row) map[string]float64 {
		r := rowOf(subject, k, cpu, 1_000_000)
		r.Load.Events = 10_000_000
		return p.figures(r, &Subject{Name: subject}, beside)
	}
	row("nginx", k, 10, nil)
	row("sidecar", k, 20, nil)
	ten := k.with("events", "10")
	nginx := record.Row{Values: row("nginx", ten, 30, nil)}
	got := row("sidecar", ten, 50, map[string]record.Row{"nginx": nginx})
	if got["event_us"] != 3 || got["event_ratio_nginx"] != 1.5 || nginx.Values["event_us"] != 2 {
		t.Errorf("an event costs %v us, %v times nginx's %v; want 3, 1.5 and 2", got["event_us"], got["event_ratio_nginx"], nginx.Values["event_us"])
	}
	if apart := row("sidecar", ten.with("gap_ms", "2"), 80, nil); apart["event_us"] != 6 {
		t.Errorf("an event that comes by itself costs %v us, want 6", apart["event_us"])
	}
	if some := row("sidecar", ten.with("share", "0.2"), 50, nil); some["event_us"] != 0 {
		t.Errorf("when only some calls have events, an event costs %v us, want no such figure", some["event_us"])
	}
}

func TestCallsAreDueAtARateThatTheBackendCanKeep(t *testing.T) {
	for _, tc := range []struct {
		delay, sessions string
		rate            float64
		least           time.Duration
	}{
		{"0", "1000", 0, 0},
		{"5", "1000", mostDue, 4 * time.Millisecond},
		{"500", "1", 1.6, 12500 * time.Millisecond},
		{"50", "100", 1600, 12500 * time.Microsecond},
	} {
		k := Case{"delay_ms": tc.delay, "sessions": tc.sessions}
		if rate, least := dueRate(k), leastFor(k); rate != tc.rate || least != tc.least {
			t.Errorf("%s sessions before a backend of %s ms: %v calls per second for %v at least, want %v and %v",
				tc.sessions, tc.delay, rate, least, tc.rate, tc.least)
		}
	}
}

func TestTheShareIsOfWhatTheCallerWaitsFor(t *testing.T) {
	k := Case{"delay_ms": "5", "sessions": "1"}
	row := rowOf("sidecar", k, 1, 10)
	direct := record.Row{Values: map[string]float64{"p50_us": 90}}
	got := concurrencyFigures(row, &Subject{Name: "sidecar"}, map[string]record.Row{"direct": direct})
	if got["added_p50_us"] != 10 || got["share"] != 10 {
		t.Errorf("p50 of 100 us, directly 90: added %v us, %v %%, want 10 and 10", got["added_p50_us"], got["share"])
	}
	if alone := concurrencyFigures(row, &Subject{Name: "sidecar"}, nil); len(alone) == 0 || alone["share"] != 0 {
		t.Errorf("without a direct row there is a share: %v", alone)
	}
}

// loadOf is a load whose calls took these times, in us.
func loadOf(t *testing.T, us ...int64) record.Load {
	t.Helper()
	h := hdrhistogram.New(1, int64(time.Hour), 3)
	for _, v := range us {
		h.RecordValue(v * 1000)
	}
	text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	return record.Load{Calls: int64(len(us)), Histogram: string(text), Latency: record.Latency{P50: float64(h.ValueAtQuantile(50)) / 1000}}
}

func TestWhatIsAddedIsTheMedianOfBlocks(t *testing.T) {
	b := blocks{
		direct:  []record.Load{loadOf(t, 10, 10), loadOf(t, 20, 20), loadOf(t, 10, 10)},
		through: []record.Load{loadOf(t, 110, 110), loadOf(t, 60, 60), loadOf(t, 60, 60)},
	}
	sum, err := mergeLoads(b.through)
	if err != nil {
		t.Fatal(err)
	}
	got := b.figures(record.Row{Load: &sum})
	if math.Abs(got["added_p50_us"]-50) > 0.5 || math.Abs(got["p50_us"]-60) > 0.5 || math.Abs(got["direct_p50_us"]-10) > 0.5 {
		t.Errorf("blocks that add 100, 40 and 50 us: %v, want 50 added to 10, and a p50 of 60", got)
	}
	if sum.Calls != 6 || sum.Latency.Count != 6 || math.Abs(sum.Latency.Max-110) > 0.5 {
		t.Errorf("merged they are %+v, want 6 calls of at most 110 us", sum)
	}
}

func TestScenariosDescribeWhatTheyMeasure(t *testing.T) {
	for _, s := range All() {
		figures, fields := map[string]bool{}, map[string]bool{"subject": true}
		for _, f := range s.Figures {
			figures[f.Name] = true
		}
		for _, f := range s.Fields {
			fields[f] = true
		}
		known := func(what string, where map[string]string) {
			for f := range where {
				if !fields[f] {
					t.Errorf("%s: %s chooses by %q, which is no field", s.Name, what, f)
				}
			}
		}
		if s.Title == "" || s.Question == "" || s.Method == "" || s.Run == nil {
			t.Errorf("%s lacks a title, question, method or function", s.Name)
		}
		for _, c := range s.Charts {
			known("chart "+c.Name, c.Where)
			if !figures[c.Y] || !fields[c.X] || !fields[c.Series] {
				t.Errorf("%s: chart %s draws %s over %s by %s, which it does not have", s.Name, c.Name, c.Y, c.X, c.Series)
			}
		}
		for _, target := range s.Targets {
			known("target "+target.Name, target.Where)
			if !figures[target.Figure] || target.Most == 0 && target.Least == 0 {
				t.Errorf("%s: target %q is of no figure, or has no limit", s.Name, target.Name)
			}
		}
	}
	var names []string
	for _, s := range All() {
		names = append(names, s.Name)
	}
	if !slices.Equal(names[:4], order[:4]) {
		t.Errorf("the scenarios are %q, want them to begin with %q", names, order[:4])
	}
}
