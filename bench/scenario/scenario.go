// Package scenario is what the bench measures: each file one scenario, with the cases it goes through, the load that it
// puts on them, the figures that it takes from each row, and how those are to be read.
//
// A scenario is run once, with a Bench that says how long and how often to measure, and gives it a Layout of its own to
// start processes in. It measures its rows with Bench.Row, those to compare beside each other, turn about. Not here:
// where rows are written, and what is made of them (bench/run, package report).
package scenario

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

// Scenario is one thing to measure.
type Scenario struct {
	record.Scenario
	Needs Needs // decides whether a running deployment can be measured

	// Run measures every row. An error ends the run; a row that does not count is not one.
	Run func(ctx context.Context, b *Bench) error
}

// Needs are what a scenario must have to be run; the later ones can be had in more places.
type Needs int

const (
	OwnProcesses Needs = iota // it starts, stops and restarts them
	NullServer                // bench/null behind whatever is measured
	AnyServer                 // any MCP server, with a tool to call
)

// all are the scenarios in the order in which they run. Each file adds its own with register.
var all = map[string]Scenario{}

// order is that of a run and a report. A scenario that is not named comes last.
var order = []string{"path", "latency", "concurrency", "streaming", "sessions", "bridge", "authorised", "federation", "memory", "boot", "soak"}

// register adds a scenario, once for each name:  var _ = register(Scenario{...})
func register(s Scenario) struct{} {
	all[s.Name] = s
	return struct{}{}
}

// All are the scenarios, in the order in which they run.
func All() []Scenario {
	place := func(s Scenario) int {
		if i := slices.Index(order, s.Name); i >= 0 {
			return i
		}
		return len(order)
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Scenario) int {
		if d := place(a) - place(b); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// Peer is another proxy to measure in the same places.
type Peer struct {
	Name    string // of its rows
	Command string // a shell's, with {UPSTREAM} and {PORT}
}

// Target is a deployment that already runs.
type Target struct {
	URL  string
	PIDs []int    // the proxy's first; none: no CPU figures
	Args []string // of the load generator: headers, which tool to call and what to expect

	AnyServer bool // bench/null is not behind it
}

// Gives is what a scenario may need at most to be measured on the target.
func (t *Target) Gives() Needs {
	if t.AnyServer {
		return AnyServer
	}
	return NullServer
}

// Bench is what a scenario runs with.
type Bench struct {
	// Set before a scenario runs, never changed by it.
	Layout    *layout.Layout // the scenario's own; the caller closes it
	Short     bool           // a small set of cases, for CI and a first look
	Gate      bool           // only the cases with a gate
	Rounds    int            // how often each case is measured
	Warm      time.Duration  // of a row, not counted
	Duration  time.Duration  // of a row
	Retries   int            // how often a row is measured again when the machine was not quiet
	Peers     []Peer
	Target    *Target // measured alone, when it is not nil
	Era       string  // only cases of this one; empty: of both
	KeepNoisy bool    // a row that stays noisy counts

	Write    func(record.Row) error // takes each row, discarded ones too
	Progress io.Writer              // one line for each row

	// Of the scenario that runs.
	rows, planned int
	began         time.Time
	Tally         Tally
}

// Tally is what became of a scenario's rows.
type Tally struct {
	Counted int // rows that count
	Again   int // measurements that were made again, since the machine was not quiet
	Noisy   int // rows that stayed noisy to the last try, kept or not
	Failed  int // rows with failures or wrong answers
}

// Add puts another tally to it.
func (t *Tally) Add(o Tally) {
	t.Counted += o.Counted
	t.Again += o.Again
	t.Noisy += o.Noisy
	t.Failed += o.Failed
}

// Plan says how many rows the scenario is going to measure, for the estimate of the time that is left.
func (b *Bench) Plan(rows int) { b.planned, b.rows, b.began = rows, 0, time.Now() }

// Subject is what stands between the load and the upstream.
type Subject struct {
	Name    string
	Process *layout.Process // of the proxy; the upstream's own for "direct"
	Stream  string          // the URL at which answers are passed on as they come
}

// URL is the subject's MCP endpoint.
func (s *Subject) URL() string { return s.Process.URL }

// Usage is what the subject's own process used in a row; zero for direct and where it is not known.
func (s *Subject) Usage(row record.Row) record.Usage {
	for _, u := range row.Usage {
		if u.Process == s.Name {
			return u
		}
	}
	return record.Usage{}
}

// Subjects starts an upstream that does nothing, and the named subjects in front of it: any of "direct", "nginx",
// "sidecar" and "peers" (all of them). With a target there is only that.
func (b *Bench) Subjects(ctx context.Context, names ...string) ([]*Subject, error) {
	if t := b.Target; t != nil {
		return b.target(t)
	}
	up, err := b.Layout.Null(ctx)
	if err != nil {
		return nil, err
	}
	return b.SubjectsBefore(ctx, up, names...)
}

// SubjectsBefore starts the named subjects in front of an upstream that runs.
func (b *Bench) SubjectsBefore(ctx context.Context, up *layout.Process, names ...string) (list []*Subject, err error) {
	for _, name := range names {
		switch name {
		case "direct":
			list = append(list, &Subject{name, up, up.URL})
		case "nginx":
			p, err := b.Layout.Nginx(ctx, up)
			if err != nil {
				return nil, err
			}
			list = append(list, &Subject{name, p, "http://" + p.Address + layout.StreamPath})
		case "sidecar":
			p, err := b.Layout.Sidecar(ctx, layout.SidecarYAML(up.URL))
			if err != nil {
				return nil, err
			}
			list = append(list, &Subject{name, p, p.URL})
		case "peers":
			for _, peer := range b.Peers {
				p, err := b.Layout.Peer(ctx, peer.Name, peer.Command, up.URL)
				if err != nil {
					return nil, err
				}
				list = append(list, &Subject{peer.Name, p, p.URL})
			}
		default:
			return nil, fmt.Errorf("no subject is called %q", name)
		}
	}
	return list, nil
}

// target is the running deployment as the only subject. Its further processes are counted, not shown as its own.
func (b *Bench) target(t *Target) ([]*Subject, error) {
	pid := 0
	if len(t.PIDs) > 0 {
		pid = t.PIDs[0]
	}
	p, err := b.Layout.Running("target", t.URL, pid)
	if err != nil {
		return nil, err
	}
	for _, other := range t.PIDs[min(1, len(t.PIDs)):] {
		if _, err := b.Layout.Running(fmt.Sprintf("target-%d", other), t.URL, other); err != nil {
			return nil, err
		}
	}
	return []*Subject{{"target", p, p.URL}}, nil
}

// Row measures one case of one subject, again while the machine is not quiet, and writes every try. A scenario measures
// again at most half as often as it has rows, so that it ends in time on a machine that is never quiet. values takes the
// figures from the row that was measured. The row that comes back may be discarded: look at Discarded before using it.
func (b *Bench) Row(ctx context.Context, row record.Row, load func(context.Context) (record.Load, error), values func(record.Row) map[string]float64) (record.Row, error) {
	b.rows++
	for try := 0; ; try++ {
		got, err := b.Layout.Measure(ctx, row, load)
		if err != nil {
			return got, fmt.Errorf("%s: %w", Describe(row), err)
		}
		got.Values = values(got)
		failed := got.Load.Wrong > 0 || got.Load.Failures > 0
		noisy := got.Discarded != "" && !failed
		last := !noisy || try >= b.Retries || b.planned > 0 && b.Tally.Again >= b.planned/2
		if noisy && last && b.KeepNoisy {
			got.Discarded = ""
		}
		if err := b.Write(got); err != nil {
			return got, err
		}
		b.report(got, last)
		if last {
			b.count(got, noisy)
			return got, nil
		}
		b.Tally.Again++
	}
}

// count puts the last try of a row into the tally.
func (b *Bench) count(row record.Row, noisy bool) {
	if noisy {
		b.Tally.Noisy++
	}
	switch {
	case row.Discarded == "":
		b.Tally.Counted++
	case !noisy:
		b.Tally.Failed++
	}
}

// Emit writes a row that was measured in another way than by Row.
func (b *Bench) Emit(row record.Row) error {
	b.rows++
	if err := b.Write(row); err != nil {
		return err
	}
	b.count(row, false)
	b.report(row, true)
	return nil
}

// report writes a line of progress.
func (b *Bench) report(row record.Row, last bool) {
	var text strings.Builder
	fmt.Fprintf(&text, "%s", Describe(row))
	for _, name := range slices.Sorted(maps.Keys(row.Values)) {
		fmt.Fprintf(&text, " %s=%.4g", name, row.Values[name])
	}
	switch {
	case row.Discarded != "" && !last:
		fmt.Fprintf(&text, " again: %s", row.Discarded)
	case row.Discarded != "":
		fmt.Fprintf(&text, " DISCARDED: %s", row.Discarded)
	}
	if b.planned > 0 && b.rows > 0 {
		rest := time.Since(b.began) / time.Duration(b.rows) * time.Duration(max(0, b.planned-b.rows))
		fmt.Fprintf(&text, "  (%d of %d, %v left)", b.rows, b.planned, rest.Round(time.Second))
	}
	fmt.Fprintln(b.Progress, text.String())
}

// Describe names a row for people: scenario, round, subject and case.
func Describe(row record.Row) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s round %d %s", row.Scenario, row.Round, row.Subject)
	for _, field := range slices.Sorted(maps.Keys(row.Case)) {
		fmt.Fprintf(&text, " %s=%s", field, row.Case[field])
	}
	return text.String()
}
