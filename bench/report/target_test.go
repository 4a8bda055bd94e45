package report

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

func TestVerdictsOnTargets(t *testing.T) {
	most := record.Target{Most: 1.5, Gate: 2.2}
	least := record.Target{Least: 100, Gate: 50}
	for _, c := range []struct {
		target record.Target
		median float64
		met    bool
		fails  bool
	}{
		{most, 1.5, true, false}, {most, 1.51, false, false}, {most, 2.2, false, false}, {most, 2.21, false, true},
		{least, 100, true, false}, {least, 99, false, false}, {least, 50, false, false}, {least, 49, false, true},
		{record.Target{Most: 2}, 9, false, false}, {record.Target{Least: 1, Most: 2}, 0.5, false, false}, {record.Target{Gate: 2}, 3, true, true},
	} {
		v := Verdict{Target: c.target, Measured: spreadOf([]float64{c.median})}
		if v.Met() != c.met || v.FailsGate() != c.fails {
			t.Errorf("%+v at %v: met %v, fails the gate %v; want %v, %v", c.target, c.median, v.Met(), v.FailsGate(), c.met, c.fails)
		}
	}
	if v := (Verdict{Target: most}); v.Met() || !v.FailsGate() {
		t.Error("a gated target that was not measured must not be met, and must fail the gate")
	}
}

func TestATargetIsJudgedOverTheRowsItChooses(t *testing.T) {
	verdicts, err := Judge(before)
	if err != nil {
		t.Fatal(err)
	}
	if len(verdicts) != 5 {
		t.Fatalf("%d verdicts, want 5", len(verdicts))
	}
	if v := verdicts[0]; v.Scenario != "path" || v.Measured.N != 4 || v.Measured.Median < 1.1 || v.Measured.Median > 1.5 {
		t.Errorf("%+v, want the four rounds of one case, about 1.3", v)
	}
	if v := verdicts[3]; v.Measured.N != 0 || v.word() != "not measured" {
		t.Errorf("%+v is %q, want not measured: no row has answer=sse", v, v.word())
	}
}

func TestMediansOfEvenAndOddCounts(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want Spread
	}{
		{nil, Spread{}}, {[]float64{3}, Spread{1, 3, 3, 3}}, {[]float64{3, 1, 2}, Spread{3, 2, 1, 3}}, {[]float64{4, 1, 3, 2}, Spread{4, 2.5, 1, 4}},
		{[]float64{1.7e308, 1.7e308}, Spread{2, 1.7e308, 1.7e308, 1.7e308}},
	} {
		if got := spreadOf(c.in); got != c.want {
			t.Errorf("spreadOf(%v) = %+v, want %+v", c.in, got, c.want)
		}
	}
}

func TestNumbersAsText(t *testing.T) {
	for _, c := range []struct {
		v      float64
		digits int
		want   string
	}{
		{38400, 0, "38,400"}, {1.5, 2, "1.50"}, {-1234567.891, 1, "-1,234,567.9"}, {999, 0, "999"}, {0, 1, "0.0"}, {1e15, 2, "1e+15"}, {1, 99, "1.000000"},
	} {
		if got := number(c.v, c.digits); got != c.want {
			t.Errorf("number(%v, %d) = %q, want %q", c.v, c.digits, got, c.want)
		}
	}
}
