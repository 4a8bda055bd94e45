package report

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

func compared(t *testing.T, a, b string) string {
	t.Helper()
	var out bytes.Buffer
	if err := Compare(&out, a, b); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestTheComparisonIsTheOneInTestdata(t *testing.T) {
	golden(t, "comparison.txt", []byte(compared(t, before, after)))
}

// The example's sidecar costs 15 % more, under noise of 3 %; nginx is the same.
func TestACostlierSidecarIsWorseAndNginxIsNot(t *testing.T) {
	worseSidecar, worseNginx := 0, 0
	for line := range strings.Lines(compared(t, before, after)) {
		if strings.HasPrefix(line, worse) && strings.Contains(line, "bytes=250 ") {
			worseSidecar += strings.Count(line, "  sidecar  cpu_us")
			worseNginx += strings.Count(line, "  nginx  cpu_us")
		}
	}
	if worseSidecar != 4 || worseNginx != 0 {
		t.Errorf("CPU is worse in %d cases of the sidecar and %d of nginx, want 4 and 0", worseSidecar, worseNginx)
	}
}

// Critical values of U at p = 0.05, two-sided, from Mann and Whitney's table; the interval begins one place further in.
func TestTheIntervalIsThatOfTheMannWhitneyTable(t *testing.T) {
	for _, c := range []struct{ n1, n2, critical int }{
		{1, 20, -1}, {3, 3, -1}, {3, 4, -1}, {3, 5, 0}, {4, 4, 0}, {4, 5, 1}, {5, 5, 2}, {6, 6, 5}, {8, 8, 13}, {10, 10, 23}, {20, 20, 127},
	} {
		if got := outside(c.n1, c.n2); got != c.critical+1 {
			t.Errorf("outside(%d, %d) = %d, want %d", c.n1, c.n2, got, c.critical+1)
		}
	}
}

func TestShiftsWithKnownAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		a, b      []float64
		enough    bool
		differs   bool
		low, high float64
	}{
		"far apart":                 {[]float64{1, 2, 3, 4}, []float64{11, 12, 13, 14}, true, true, 7, 13},
		"far apart, downwards":      {[]float64{11, 12, 13, 14}, []float64{1, 2, 3, 4}, true, true, -13, -7},
		"three rounds say nothing":  {[]float64{1, 2, 3}, []float64{101, 102, 103}, false, false, 0, 0},
		"three and five say little": {[]float64{1, 2, 3}, []float64{11, 12, 13, 14, 15}, true, true, 8, 14},
		"the same values":           {[]float64{1, 2, 3, 4}, []float64{1, 2, 3, 4}, true, false, -3, 3},
		"all equal":                 {[]float64{7, 7, 7, 7}, []float64{7, 7, 7, 7}, true, false, 0, 0},
		"equal on each side":        {[]float64{3, 3, 3, 3, 3}, []float64{4, 4, 4, 4, 4}, true, true, 1, 1},
		"one overlaps":              {[]float64{1, 2, 3, 10}, []float64{9, 11, 12, 13}, true, false, -1, 12},
		"none on one side":          {nil, []float64{1, 2, 3, 4}, false, false, 0, 0},
	} {
		got := shiftOf(c.a, c.b)
		if got.enough != c.enough || got.differs != c.differs || got.low != c.low || got.high != c.high {
			t.Errorf("%s: %v to %v gives %+v, want enough %v, differs %v, %v..%v", name, c.a, c.b, got, c.enough, c.differs, c.low, c.high)
		}
	}
}

// Over many made runs, equal ones are called different in at most one of twenty, the interval holds the true shift in
// at least nineteen of twenty, and a shift of ten deviations is always seen.
func TestVerdictsAreRightAsOftenAsTheyClaim(t *testing.T) {
	const trials = 2000
	noise := rand.New(rand.NewPCG(7, 7))
	// Skewed, as latencies are.
	sample := func(shift float64) []float64 {
		v := make([]float64, 5)
		for i := range v {
			v[i] = 100 + noise.ExpFloat64() + shift
		}
		return v
	}
	falseAlarms, held, seen := 0, 0, 0
	for range trials {
		if shiftOf(sample(0), sample(0)).differs {
			falseAlarms++
		}
		if s := shiftOf(sample(0), sample(1)); s.low <= 1 && 1 <= s.high {
			held++
		}
		if s := shiftOf(sample(0), sample(10)); s.differs && s.low > 0 {
			seen++
		}
	}
	// Three deviations of a count of 2,000 at 5 % are 29.
	if falseAlarms > trials/20+29 || falseAlarms == 0 {
		t.Errorf("%d false alarms in %d, want a few and at most one in twenty", falseAlarms, trials)
	}
	if held < trials*19/20-29 {
		t.Errorf("the interval held the truth %d times of %d, want 95 %%", held, trials)
	}
	if seen < trials*99/100 {
		t.Errorf("a large shift was seen %d times of %d", seen, trials)
	}
}

// runOf is a run of one figure, with values by round.
func runOf(env record.Environment, f record.Figure, subject string, values ...float64) []record.Line {
	lines := []record.Line{{Kind: record.KindEnvironment, Environment: &env},
		scenarioLine(record.Scenario{Name: "s", Figures: []record.Figure{f}})}
	for i, v := range values {
		lines = append(lines, rowLine(record.Row{Scenario: "s", Subject: subject, Round: i + 1, Values: map[string]float64{f.Name: v}}))
	}
	return lines
}

func TestAVerdictFollowsWhatIsBetter(t *testing.T) {
	low, high := []float64{1, 2, 3, 4}, []float64{11, 12, 13, 14}
	for _, c := range []struct {
		better   string
		from, to []float64
		want     string
	}{
		{"lower", low, high, worse}, {"lower", high, low, improved}, {"higher", low, high, improved},
		{"higher", high, low, worse}, {"", low, high, changed}, {"lower", low, low, withinNoise},
		{"lower", low[:3], high[:3], tooFew},
	} {
		f := record.Figure{Name: "f", Better: c.better}
		out := compared(t, folder(t, runOf(record.Environment{}, f, "x", c.from...)), folder(t, runOf(record.Environment{}, f, "x", c.to...)))
		if !strings.Contains(out, "\n"+c.want+" ") || !strings.Contains(out, "1 "+c.want) {
			t.Errorf("better %q, %v to %v: want %q in\n%s", c.better, c.from, c.to, c.want, out)
		}
	}
}

func TestOnAnotherMachineOnlyRatiosAreJudged(t *testing.T) {
	other := folder(t, example(2, 1.15, func(e *record.Environment) {
		e.Machine, e.Go, e.Pinned = "Xeon", "go1.27", map[string]string{"load": "0-3"}
		e.Config = map[string]string{"nginx": "worker_processes 2;"}
	}))
	out := compared(t, before, other)
	for _, want := range []string{"machines differ: A AMD EPYC, 2 cores, 7937 MiB; B Xeon", "Go versions differ", "pinned cores differ",
		"nginx ran with another configuration", "ratio_nginx", "Only ratios"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	path, rest, _ := strings.Cut(out[strings.Index(out, "\npath: "):], "\nsessions: ")
	if strings.Contains(path, "cpu_us") {
		t.Errorf("absolute figures beside ratios:\n%s", path)
	}
	for line := range strings.Lines(rest) {
		if strings.HasPrefix(line, worse+" ") || strings.HasPrefix(line, improved+" ") {
			t.Errorf("an absolute figure is judged: %s", line)
		}
	}
}

func TestWhenNginxMovedTheMachineDid(t *testing.T) {
	f := record.Figure{Name: "f", Better: "lower"}
	lines := func(add float64) []record.Line {
		s := record.Scenario{Name: "s", Fields: []string{"case"}, Figures: []record.Figure{f}}
		all := []record.Line{scenarioLine(s)}
		for _, kase := range []string{"a", "b", "c"} {
			for round := range 4 {
				all = append(all, rowLine(record.Row{Scenario: "s", Subject: "nginx", Case: map[string]string{"case": kase},
					Values: map[string]float64{"f": float64(round) + add}}))
			}
		}
		return all
	}
	const warning = "moved in 3 of 3 figures"
	if out := compared(t, folder(t, lines(0)), folder(t, lines(100))); !strings.Contains(out, warning) {
		t.Errorf("no %q in\n%s", warning, out)
	}
	if out := compared(t, folder(t, lines(0)), folder(t, lines(0))); strings.Contains(out, "moved in") {
		t.Errorf("a warning although nothing moved:\n%s", out)
	}
}

func TestRunsWithNothingInCommonAreAnError(t *testing.T) {
	a := folder(t, runOf(record.Environment{}, record.Figure{Name: "f"}, "x", 1, 2))
	b := folder(t, runOf(record.Environment{}, record.Figure{Name: "g"}, "x", 1, 2))
	if err := Compare(&bytes.Buffer{}, a, b); err == nil || !strings.Contains(err.Error(), "in common") {
		t.Errorf("%v, want an error that they have nothing in common", err)
	}
}
