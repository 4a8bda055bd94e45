package report

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// subjectField is the name under which charts and their filters know a row's subject.
const subjectField = "subject"

// table is a scenario with its valid rows.
type table struct {
	record.Scenario
	rows []record.Row

	// Set by index.
	fields   []string            // the scenario's, then any other that its rows have
	cases    []map[string]string // as they came
	subjects []string            // as they came
	values   map[point][]float64 // over rounds
}

// point is what a figure was measured of. The case is a key made by table.key.
type point struct{ kase, subject, figure string }

// Spread is a figure over rounds.
type Spread struct {
	N      int     `json:"n"` // rounds; when 0, so are the others
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spreadOf sums up values, which it leaves as they are.
func spreadOf(values []float64) Spread {
	n := len(values)
	if n == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(values))
	return Spread{N: n, Median: s[(n-1)/2]/2 + s[n/2]/2, Min: s[0], Max: s[n-1]}
}

// index sorts the rows into cases, subjects and values.
func (t *table) index() {
	t.fields = slices.Clone(t.Fields)
	extra := map[string]bool{}
	for _, row := range t.rows {
		for field := range row.Case {
			extra[field] = !slices.Contains(t.Fields, field)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(extra)) {
		if extra[field] {
			t.fields = append(t.fields, field)
		}
	}
	seen := map[string]bool{}
	for _, row := range t.rows {
		key := t.key(row.Case)
		if !seen[key] {
			seen[key] = true
			t.cases = append(t.cases, row.Case)
		}
		if !slices.Contains(t.subjects, row.Subject) {
			t.subjects = append(t.subjects, row.Subject)
		}
		for _, f := range t.Figures {
			if v, ok := row.Values[f.Name]; ok {
				p := point{key, row.Subject, f.Name}
				t.values[p] = append(t.values[p], v)
			}
		}
	}
}

// key is a case as text, equal for equal cases.
func (t *table) key(kase map[string]string) string {
	var b strings.Builder
	for _, field := range t.fields {
		if value, ok := kase[field]; ok {
			b.WriteString(strconv.Quote(value))
		}
		b.WriteByte(',') // so that absent is not empty
	}
	return b.String()
}

// of is a figure's values of a subject in a case.
func (t *table) of(kase map[string]string, subject, figure string) []float64 {
	return t.values[point{t.key(kase), subject, figure}]
}

// chosen reports whether a case and its subject have all the values of where.
func chosen(kase map[string]string, subject string, where map[string]string) bool {
	for field, want := range where {
		if got, ok := fieldOf(kase, subject, field); !ok || got != want {
			return false
		}
	}
	return true
}

// fieldOf is a case's value, or the subject.
func fieldOf(kase map[string]string, subject, field string) (string, bool) {
	if field == subjectField {
		return subject, true
	}
	value, ok := kase[field]
	return value, ok
}

// figure is the scenario's figure of a name. One that the scenario does not list has its name for title.
func (t *table) figure(name string) record.Figure {
	for _, f := range t.Figures {
		if f.Name == name {
			return f
		}
	}
	return record.Figure{Name: name, Title: name, Digits: 2}
}

// varying are the fields that have more than one value over the cases, in order.
func (t *table) varying() []string {
	var fields []string
	for _, field := range t.fields {
		for _, kase := range t.cases {
			if kase[field] != t.cases[0][field] {
				fields = append(fields, field)
				break
			}
		}
	}
	return fields
}

// constant says the fields that have one value in all cases: "answer=json, bytes=250".
func (t *table) constant() string {
	if len(t.cases) == 0 {
		return ""
	}
	varying := t.varying()
	var parts []string
	for _, field := range t.fields {
		if value, ok := t.cases[0][field]; ok && !slices.Contains(varying, field) {
			parts = append(parts, field+"="+value)
		}
	}
	return strings.Join(parts, ", ")
}

// measured are the figures that have a value for one of the subjects in any case.
func (t *table) measured(subjects ...string) []record.Figure {
	return slices.DeleteFunc(slices.Clone(t.Figures), func(f record.Figure) bool {
		return !slices.ContainsFunc(subjects, func(s string) bool { return t.has(s, f.Name) })
	})
}

// has reports whether a figure has a value for a subject in any case.
func (t *table) has(subject, figure string) bool {
	return slices.ContainsFunc(t.cases, func(kase map[string]string) bool { return len(t.of(kase, subject, figure)) > 0 })
}
