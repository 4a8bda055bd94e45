package scenario

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// Case is what varies between a scenario's rows, by field.
type Case map[string]string

// Contest measures each case with each subject beside the others, turn about: in each round, for each case, every
// subject once. So what drifts on the machine does it to all of them.
type Contest struct {
	Scenario string
	Subjects []*Subject
	Cases    []Case

	// Load is what a case's load generator is told, without the URL, the durations and what a target adds.
	Load func(c Case) []string

	// Duration is how long a case is measured; nil: as long as the bench says.
	Duration func(c Case) time.Duration

	// Path is that of a case's endpoint, where it is not the subject's own; nil: it is.
	Path func(c Case) string

	// Stream reports whether answers of a case must be passed on as they come.
	Stream func(c Case) bool

	// Figures are those of a row; beside are the rows of the same case and round that were measured before it, by
	// subject, without the discarded ones.
	Figures func(row record.Row, s *Subject, beside map[string]record.Row) map[string]float64
}

// Rows is how many the contest will measure.
func (b *Bench) Rows(c Contest) int { return b.Rounds * len(c.Cases) * len(c.Subjects) }

// Contest runs a contest.
func (b *Bench) Contest(ctx context.Context, c Contest) error {
	for round := 1; round <= b.Rounds; round++ {
		for _, k := range c.Cases {
			beside := map[string]record.Row{}
			for _, s := range c.Subjects {
				row, err := b.turn(ctx, c, k, s, round, beside)
				if err != nil {
					return err
				}
				if row.Discarded == "" {
					beside[s.Name] = row
				}
			}
		}
	}
	return nil
}

// turn measures one row of a contest.
func (b *Bench) turn(ctx context.Context, c Contest, k Case, s *Subject, round int, beside map[string]record.Row) (record.Row, error) {
	duration := b.Duration
	if c.Duration != nil {
		duration = c.Duration(k)
	}
	url := s.URL()
	switch {
	case c.Path != nil:
		url = "http://" + s.Process.Address + c.Path(k)
	case c.Stream != nil && c.Stream(k):
		url = s.Stream
	}
	args := append(c.Load(k), "-warm", b.Warm.String(), "-duration", duration.String())
	args = append(append(args, b.targetArgs()...), url)
	row := record.Row{Scenario: c.Scenario, Case: k, Subject: s.Name, Round: round}
	load := func(ctx context.Context) (record.Load, error) { return b.Layout.Load(ctx, args...) }
	return b.Row(ctx, row, load, func(row record.Row) map[string]float64 { return c.Figures(row, s, beside) })
}

// targetArgs are what the load generator must be told of a target.
func (b *Bench) targetArgs() []string {
	if b.Target == nil {
		return nil
	}
	return b.Target.Args
}

// anyServer reports whether the server is not bench/null, so that nothing of its answers can be chosen.
func (b *Bench) anyServer() bool { return b.Target != nil && b.Target.Gives() == AnyServer }

// cross makes every combination of values, given as field and values in turn: cross("era", "stateless,legacy", ...).
// The first field varies slowest.
func cross(pairs ...string) []Case {
	cases := []Case{{}}
	for i := 0; i < len(pairs); i += 2 {
		var more []Case
		for _, c := range cases {
			for v := range strings.SplitSeq(pairs[i+1], ",") {
				more = append(more, c.with(pairs[i], v))
			}
		}
		cases = more
	}
	return cases
}

// ofEra are the cases of the era that the bench is about, and those without one.
func (b *Bench) ofEra(cases []Case) []Case {
	return slices.DeleteFunc(cases, func(c Case) bool { return b.Era != "" && c["era"] != "" && c["era"] != b.Era })
}

// with is the case with a field set.
func (c Case) with(field, value string) Case {
	k := Case{field: value}
	for f, v := range c {
		if f != field {
			k[f] = v
		}
	}
	return k
}

// number is a field's value. Cases are written in this package, so one that is no number is a mistake of ours.
func (c Case) number(field string) float64 {
	v, err := strconv.ParseFloat(c[field], 64)
	if err != nil {
		panic("case " + field + "=" + c[field] + " is not a number")
	}
	return v
}
