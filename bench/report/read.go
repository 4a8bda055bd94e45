package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// maxLine bounds a line of rows.jsonl, in bytes. The longest real one, an environment with every configuration, is some
// tens of KiB.
const maxLine = 16 << 20

// run is what a rows.jsonl holds.
type run struct {
	env       record.Environment
	tables    []*table // one for each scenario, as they came
	valid     int
	discarded []record.Row
	outcome   *record.Outcome // nil: it does not say
	notes     []string        // what was wrong with the file, in sentences
}

func (r *run) note(sentence string) { r.notes = append(r.notes, sentence) }

// readRun reads the rows of a results folder.
func readRun(dir string) (*run, error) {
	f, err := os.Open(filepath.Join(dir, rowsFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return r, nil
}

// read reads lines of package record. A last line that is no JSON is a run that was interrupted: it is left out and
// noted. Any other such line, or a file without rows, is an error.
func read(from io.Reader) (*run, error) {
	c := collector{run: &run{}, tables: map[string]*table{}}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxLine)
	var broken error
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if broken != nil {
			return nil, broken // it was not the last
		}
		var line record.Line
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			broken = fmt.Errorf("line %d: %w", n, err)
			continue
		}
		c.add(line)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if broken != nil {
		c.run.note("The run was interrupted: its last line is cut short and was left out.")
	}
	return c.finish()
}

// collector sorts the lines of a file into a run.
type collector struct {
	run          *run
	tables       map[string]*table
	environments int
	unknown      int // lines of no kind that is known
	orphans      int // rows of a scenario that no line described before them
}

func (c *collector) add(line record.Line) {
	switch {
	case line.Kind == record.KindEnvironment && line.Environment != nil:
		if c.environments == 0 {
			c.run.env = *line.Environment
		}
		c.environments++
	case line.Kind == record.KindScenario && line.Scenario != nil:
		c.describe(*line.Scenario)
	case line.Kind == record.KindRow && line.Row != nil:
		c.measure(*line.Row)
	case line.Kind == record.KindOutcome && line.Outcome != nil:
		c.run.outcome = line.Outcome
	default:
		c.unknown++
	}
}

// describe makes a scenario's table, or gives it the scenario's newer description.
func (c *collector) describe(s record.Scenario) {
	if t := c.tables[s.Name]; t != nil {
		t.Scenario = s
		return
	}
	t := &table{Scenario: s, values: map[point][]float64{}}
	c.tables[s.Name] = t
	c.run.tables = append(c.run.tables, t)
}

func (c *collector) measure(row record.Row) {
	t := c.tables[row.Scenario]
	switch {
	case t == nil:
		c.orphans++
	case row.Discarded != "":
		c.run.discarded = append(c.run.discarded, row)
	default:
		c.run.valid++
		t.rows = append(t.rows, row)
	}
}

// finish sorts rows by round within their case, now that every field is known, and says what was odd.
func (c *collector) finish() (*run, error) {
	r := c.run
	if r.valid+len(r.discarded)+c.orphans == 0 {
		return nil, fmt.Errorf("no rows: nothing was measured, or the run ended before its first measurement")
	}
	for _, t := range r.tables {
		t.index()
	}
	r.tables = slices.DeleteFunc(r.tables, func(t *table) bool { return len(t.rows) == 0 && !r.discards(t.Name) })
	if r.outcome != nil && r.outcome.Problem != "" {
		r.note("This run is not valid: " + r.outcome.Problem + ".")
	}
	if c.environments == 0 {
		r.note("The file does not say what the run was made on.")
	}
	if c.environments > 1 {
		r.note(fmt.Sprintf("The file describes %d environments. The first is shown, but the rows are of all of them.", c.environments))
	}
	if c.orphans > 0 {
		r.note(fmt.Sprintf("Rows of scenarios that the file does not describe, left out: %d.", c.orphans))
	}
	if c.unknown > 0 {
		r.note(fmt.Sprintf("Lines of a kind that this report does not know, left out: %d.", c.unknown))
	}
	return r, nil
}

// discards reports whether rows of a scenario were discarded.
func (r *run) discards(scenario string) bool {
	return slices.ContainsFunc(r.discarded, func(row record.Row) bool { return row.Scenario == scenario })
}
