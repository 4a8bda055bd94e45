package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/outrigger-mesh/outrigger/bench/record"
	"github.com/outrigger-mesh/outrigger/bench/report"
)

// gateTries is how often everything is measured before a gate fails.
const gateTries = 4

// gate measures the gated cases of the path, and returns an error when one of them is beyond its gate in every try: a
// noisy machine is beyond one by chance, a slower sidecar every time. Rows that stay noisy count, since the ratios are to
// nginx beside them. Its last line of output is what the tries add up to, for .ci/run.
func gate(ctx context.Context, o *options, out, progress io.Writer) error {
	limits, err := gatesFromEnvironment()
	if err != nil {
		return usageError{err}
	}
	o.keepNoisy = true
	dir := o.out
	if dir == "" {
		dir = filepath.Join(filepath.Dir(o.logs), "gate")
	}
	var best []report.Verdict
	for try := 1; ; try++ {
		verdicts, failedRows, err := gateTry(ctx, o, dir, limits, progress)
		last := try == gateTries || ctx.Err() != nil
		if err != nil && last {
			return err
		}
		best = lower(best, verdicts)
		passed, failed := judge(out, best, failedRows)
		held := err == nil && failed == 0 && passed > 0
		if !held && !last {
			fmt.Fprintf(out, "gate: try %d of %d does not hold, and is made again%s\n", try, gateTries, because(err))
			continue
		}
		fmt.Fprintf(out, "bench-gate: %d passed, %d failed\n", passed, failed)
		if !held {
			return fmt.Errorf("gate: %d of %d hold", passed, passed+failed)
		}
		return nil
	}
}

// gateTry measures once. Rows with failures make its verdicts nothing.
func gateTry(ctx context.Context, o *options, dir string, limits gates, progress io.Writer) (verdicts []report.Verdict, failedRows int, err error) {
	tally, err := measureInto(ctx, o, dir, limits.describe, progress)
	if err != nil || tally.Failed > 0 {
		return nil, tally.Failed, err
	}
	verdicts, err = report.Judge(dir)
	return verdicts, 0, err
}

// lower are for each case the lower of two tries' medians; either may be of no try.
func lower(a, b []report.Verdict) []report.Verdict {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	for i, v := range b {
		if m := v.Measured.Median; m > 0 && (a[i].Measured.Median <= 0 || m < a[i].Measured.Median) {
			a[i] = v
		}
	}
	return a
}

// because is what follows a line about an error, if there is one.
func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// gates are limits that replace those of the scenario's targets, by form of answer.
type gates map[string]float64

// gatesFromEnvironment reads GATE_JSON and GATE_SSE, multiples of nginx.
func gatesFromEnvironment() (gates, error) {
	g := gates{}
	for name, answer := range map[string]string{"GATE_JSON": "json", "GATE_SSE": "sse"} {
		s := os.Getenv(name)
		if s == "" {
			continue
		}
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || v <= 0 {
			return nil, fmt.Errorf("%s: %q is not a number above 0", name, s)
		}
		g[answer] = v
	}
	return g, nil
}

// describe is a scenario with only its gated ratios to nginx, at the limits of g.
func (g gates) describe(s record.Scenario) record.Scenario {
	var gated []record.Target
	for _, t := range s.Targets {
		if t.Figure != "ratio_nginx" || t.Gate == 0 {
			continue
		}
		if limit, ok := g[t.Where["answer"]]; ok {
			t.Gate = limit
		}
		gated = append(gated, t)
	}
	s.Targets = gated
	return s
}

// judge prints each gate's verdict and returns how many hold and how many do not; failed rows are one more that does not.
func judge(out io.Writer, verdicts []report.Verdict, failedRows int) (passed, failed int) {
	for _, v := range verdicts {
		word := "pass"
		if v.FailsGate() || v.Measured.Median <= 0 {
			word = "fail"
			failed++
		} else {
			passed++
		}
		fmt.Fprintf(out, "gate era=%s answer=%s ratio_nginx=%.2f limit=%.2f: %s\n", v.Target.Where["era"], v.Target.Where["answer"],
			v.Measured.Median, v.Target.Gate, word)
	}
	if failedRows > 0 {
		fmt.Fprintf(out, "gate rows with failures or wrong answers: %d: fail\n", failedRows)
		failed++
	}
	return passed, failed
}
