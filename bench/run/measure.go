package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/record"
	"github.com/outrigger-mesh/outrigger/bench/report"
	"github.com/outrigger-mesh/outrigger/bench/scenario"
)

// mostNoisy is the share of a run's rows that may stay noisy before the run is invalid.
const mostNoisy = 0.2

// measure runs the scenarios, and writes the report of whatever was measured, also when the run was interrupted.
func measure(ctx context.Context, o *options, out, progress io.Writer) error {
	dir := o.out
	if dir == "" {
		var err error
		if dir, err = freshFolder("bench/results", time.Now().Format(time.DateOnly)+"-"+layout.Commit(ctx)); err != nil {
			return err
		}
	}
	tally, runErr := measureInto(ctx, o, dir, asItIs, progress)
	if tally == (scenario.Tally{}) {
		return runErr
	}
	if err := report.Write(dir); err != nil {
		return errors.Join(runErr, fmt.Errorf("write the report: %w", err))
	}
	fmt.Fprintf(out, "%s: %d rows count; %d measurements made again because of noise; %d rows stayed noisy; %d failed\n",
		filepath.Join(dir, "README.md"), tally.Counted, tally.Again, tally.Noisy, tally.Failed)
	if runErr != nil {
		return runErr
	}
	if err := verdict(tally, o.keepNoisy); err != nil {
		return err
	}
	if o.history == "" {
		return nil
	}
	return report.AppendHistory(o.history, dir)
}

// verdict says whether a whole run may be believed.
func verdict(t scenario.Tally, keepNoisy bool) error {
	rows := t.Counted + t.Failed
	if !keepNoisy {
		rows += t.Noisy
	}
	switch {
	case t.Failed > 0:
		return fmt.Errorf("%d of %d rows had failures or wrong answers", t.Failed, rows)
	case !keepNoisy && float64(t.Noisy) > mostNoisy*float64(rows):
		return fmt.Errorf("%w: %d of %d rows stayed noisy, more than %.0f %%; something else uses this machine (-keep-noisy counts them)",
			errInvalid, t.Noisy, rows, 100*mostNoisy)
	}
	return nil
}

// outcome is how a run ended, with what it adds up to or with an error.
func outcome(t scenario.Tally, keepNoisy bool, err error) record.Line {
	if err == nil {
		err = verdict(t, keepNoisy)
	}
	o := record.Outcome{Again: t.Again, Noisy: t.Noisy, Failed: t.Failed}
	if err != nil {
		o.Problem = strings.TrimPrefix(err.Error(), errInvalid.Error()+": ")
	}
	return record.Line{Kind: record.KindOutcome, Outcome: &o}
}

// freshFolder makes a folder that does not exist yet, with a number added to its name if need be.
func freshFolder(parent, name string) (string, error) {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	for n := 1; ; n++ {
		dir := filepath.Join(parent, name)
		if n > 1 {
			dir = fmt.Sprintf("%s-%d", dir, n)
		}
		err := os.Mkdir(dir, 0o755)
		if !errors.Is(err, os.ErrExist) {
			return dir, err
		}
	}
}

// rows is a run's rows.jsonl, written as it goes.
type rows struct{ file *os.File }

func newRows(dir string) (*rows, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(dir, "rows.jsonl"))
	return &rows{f}, err
}

func (r *rows) write(l record.Line) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_, err = r.file.Write(append(text, '\n'))
	return err
}

// measureInto runs the scenarios one after the other, their rows in dir, which is emptied of an earlier run's. The last
// line says how it ended, also when it was interrupted.
func measureInto(ctx context.Context, o *options, dir string, describe func(record.Scenario) record.Scenario, progress io.Writer) (total scenario.Tally, err error) {
	r, err := newRows(dir)
	if err != nil {
		return total, err
	}
	defer func() { err = errors.Join(err, r.write(outcome(total, o.keepNoisy, err)), r.file.Close()) }()
	e := layout.Environment(ctx, o.command, o.programs)
	for _, p := range o.peers {
		e.Config[p.Name] = p.Command
	}
	if err := r.write(record.Line{Kind: record.KindEnvironment, Environment: &e}); err != nil {
		return total, err
	}
	for i, s := range o.scenarios {
		fmt.Fprintf(progress, "scenario %d of %d, %s: %s\n", i+1, len(o.scenarios), s.Name, s.Question)
		described := describe(s.Scenario)
		if err := r.write(record.Line{Kind: record.KindScenario, Scenario: &described}); err != nil {
			return total, err
		}
		tally, err := o.runScenario(ctx, s, r, progress)
		total.Add(tally)
		if err != nil {
			return total, fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return total, nil
}

// runScenario runs one scenario with processes of its own, and ends them.
func (o *options) runScenario(ctx context.Context, s scenario.Scenario, r *rows, progress io.Writer) (_ scenario.Tally, err error) {
	logs := filepath.Join(o.logs, s.Name)
	if err := os.RemoveAll(logs); err != nil {
		return scenario.Tally{}, err
	}
	l, err := layout.New(logs, o.programs)
	if err != nil {
		return scenario.Tally{}, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	b := &scenario.Bench{
		Layout: l, Short: o.short, Gate: o.gate, Rounds: o.rounds, Warm: o.warm, Duration: o.duration, Retries: o.retries,
		Peers: o.peers, Target: o.target, Era: o.era, KeepNoisy: o.keepNoisy, Progress: progress,
		Write: func(row record.Row) error { return r.write(record.Line{Kind: record.KindRow, Row: &row}) },
	}
	err = s.Run(ctx, b)
	return b.Tally, err
}

// asItIs describes a scenario by its own words.
func asItIs(s record.Scenario) record.Scenario { return s }
