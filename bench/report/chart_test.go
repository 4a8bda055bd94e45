package report

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// charted is a table of one figure with a value for each subject in each case of one field.
func charted(figure string, cases []string, subjects []string, value func(kase, subject int) float64) *table {
	t := &table{
		Scenario: record.Scenario{Name: "s", Fields: []string{"phase"}, Figures: []record.Figure{{Name: figure, Digits: 1}}},
		values:   map[point][]float64{},
	}
	for round := range 3 {
		for i, kase := range cases {
			for j, subject := range subjects {
				v := value(i, j)
				t.rows = append(t.rows, record.Row{Subject: subject, Round: round, Case: map[string]string{"phase": kase},
					Values: map[string]float64{figure: v * (1 + 0.02*float64(round))}})
			}
		}
	}
	t.index()
	return t
}

func TestAnAxisHasNumbersByValueAndNamesAsTheyCame(t *testing.T) {
	for _, c := range []struct{ in, want []string }{
		{[]string{"rest", "burst", "after"}, []string{"rest", "burst", "after"}},
		{[]string{"64", "8", "1e3"}, []string{"8", "64", "1e3"}},
		{[]string{"peer", "sidecar", "another", "direct", "nginx"}, []string{"direct", "nginx", "sidecar", "peer", "another"}},
	} {
		tab := charted("f", c.in, []string{"sidecar"}, func(int, int) float64 { return 1 })
		d, err := newChart(tab, record.Chart{Kind: "bar", X: "phase", Y: "f"})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, tick := range d.ticks {
			got = append(got, tick.label)
		}
		want := slices.Clone(c.want)
		for i := range want {
			want[i] = tickLabel(want[i])
		}
		if !slices.Equal(got, want) {
			t.Errorf("of %q the axis is %q, want %q", c.in, got, want)
		}
	}
}

func TestASubjectHasOneColourInAllCharts(t *testing.T) {
	for _, names := range [][]string{{"sidecar"}, {"direct", "nginx", "sidecar"}, {"nginx", "sidecar", "a peer", "another"}} {
		seen := map[int]string{}
		for i, name := range names {
			at := look(names, i)
			if seen[at] != "" {
				t.Errorf("in %q, %q and %q have one colour", names, name, seen[at])
			}
			seen[at] = name
			if name == "sidecar" && at != 2 {
				t.Errorf("in %q the sidecar has colour %d, want 2", names, at)
			}
		}
	}
}

func TestLabelsSayTheUnitOnce(t *testing.T) {
	for _, c := range []struct{ name, title, want string }{
		{"cpu_us", "CPU per call", "CPU per call, µs"}, {"cpu_us", "CPU per call, us", "CPU per call, µs"}, {"rss_mib", "RSS, MiB", "RSS, MiB"},
		{"ratio_nginx", "multiples of nginx", "multiples of nginx"}, {"calls_s", "", "calls_s"}, {"worst_ms", "worst", "worst, ms"},
	} {
		if got := label(record.Figure{Name: c.name, Title: c.title}); got != c.want {
			t.Errorf("the label of %s, %q, is %q; want %q", c.name, c.title, got, c.want)
		}
	}
	for field, want := range map[string]string{"delay_ms": "delay, ms", "conns": "conns", "of_what": "of what", "_ms": " ms"} {
		if got := fieldLabel(field); got != want {
			t.Errorf("the label of the field %s is %q, want %q", field, got, want)
		}
	}
}

func TestAChartsFileIsNamedForItsScenario(t *testing.T) {
	taken := map[string]bool{}
	for _, c := range []struct{ scenario, name, want string }{
		{"latency", "added", "latency-added"}, {"concurrency", "added", "concurrency-added"}, {"latency", "latency-added", "latency-added-2"},
		{"", "../../etc", "etc"}, {"", "///", "chart"}, {"", "", "chart-2"}, {"", "ÄÖ", "chart-3"},
	} {
		if got := fileName(c.scenario, c.name, taken); got != c.want {
			t.Errorf("the chart %q of %q is in %q, want %q", c.name, c.scenario, got, c.want)
		}
	}
}

func TestNamesAreBrokenIntoAtMostThreeLines(t *testing.T) {
	for _, c := range []struct {
		name  string
		width int
		want  string
		fit   bool
	}{
		{"at rest", 16, "at rest", true}, {"1000 connections", 12, "1000\nconnections", true}, {"a b c d", 1, "a\nb\nc\nd", false},
		{"connections", 5, "connections", false}, {"µµ µµ", 5, "µµ µµ", true}, {"", 0, "", true},
	} {
		if got, fit := breakLines(c.name, c.width); got != c.want || fit != c.fit {
			t.Errorf("%q in %d letters is %q, %v; want %q, %v", c.name, c.width, got, fit, c.want, c.fit)
		}
	}
}

func TestACrowdedAxisStillNamesEveryCase(t *testing.T) {
	var cases, subjects []string
	for i := range 9 {
		cases = append(cases, fmt.Sprintf("phase-of-the-burst-%d", i))
	}
	for i := range mostSeries {
		subjects = append(subjects, fmt.Sprintf("gateway %d", i))
	}
	tab := charted("rss_mib", cases, subjects, func(i, j int) float64 { return float64(3 + i*j) })
	for _, kind := range []string{"bar", "line"} {
		d, err := newChart(tab, record.Chart{Kind: kind, X: "phase", Y: "rss_mib", Series: "subject", LogY: true})
		if err != nil {
			t.Fatal(err)
		}
		svg := string(paintSVG(t, d))
		for _, name := range slices.Concat(cases, subjects) {
			if !strings.Contains(svg, ">"+name+"<") {
				t.Errorf("a %s chart does not name %q", kind, name)
			}
		}
	}
}
