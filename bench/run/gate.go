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

// gateTries is how often everything is measured before a gate fails: a noisy machine is over it by chance, a slower
// sidecar every time.
const gateTries = 3

// gate measures the gated cases of the path, and returns an error when in every try one of them is beyond its gate.
// Rows that stay noisy count, since the ratios are to nginx beside them. Its last line of output is what the last try
// adds up to, for .ci/run.
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
	for try := 1; ; try++ {
		tally, err := measureInto(ctx, o, dir, limits.describe, progress)
		if err != nil {
			return err
		}
		verdicts, err := report.Judge(dir)
		if err != nil {
			return err
		}
		passed, failed := judge(out, verdicts, tally.Failed)
		held := failed == 0 && passed > 0
		if !held && try < gateTries {
			fmt.Fprintf(out, "gate: try %d of %d does not hold, and is made again\n", try, gateTries)
			continue
		}
		fmt.Fprintf(out, "bench-gate: %d passed, %d failed\n", passed, failed)
		if !held {
			return fmt.Errorf("gate: %d of %d hold", passed, passed+failed)
		}
		return nil
	}
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
