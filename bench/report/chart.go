package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// What a chart can show and still be read.
const (
	mostSeries     = 8
	mostCategories = 24
	mostLegend     = 28   // characters of a series' name
	mostMagnitude  = 1e12 // beyond it, up or down, labels are too long
)

// chart is a picture's data: each point is a figure over rounds.
type chart struct {
	title, subtitle string
	x, y            string // of the axes
	bars            bool
	logX, logY      bool
	digits          int // of the figure
	ticks           []tick
	series          []series
	over            []string // fields whose values a point puts together
}

// tick is a place on the x axis that has a name.
type tick struct {
	at    float64
	label string
}

type series struct {
	name   string
	points []chartPoint // from left to right
}

type chartPoint struct {
	x float64
	Spread
}

// newChart gathers a chart's data. It fails when there is none, or too much to read. A log axis whose values are not
// all above zero becomes a plain one, and an x axis that is not all numbers becomes even steps.
func newChart(t *table, c record.Chart) (*chart, error) {
	values, over := gather(t, c)
	xs, names := axes(values)
	switch {
	case len(values) == 0:
		return nil, fmt.Errorf("it has no values")
	case len(names) > mostSeries:
		return nil, fmt.Errorf("it has %d series, and at most %d can be told apart", len(names), mostSeries)
	case len(xs) > mostCategories:
		return nil, fmt.Errorf("it has %d values of %s, and at most %d have room", len(xs), c.X, mostCategories)
	}
	f := t.figure(c.Y)
	d := &chart{
		title: plain(c.Title, 80), subtitle: plain(where(c.Where), 100),
		x: plain(c.X, 40), y: plain(label(f), 60),
		bars: c.Kind != "line", logX: c.LogX, logY: c.LogY, digits: f.Digits, over: over,
	}
	d.place(xs, names, values)
	return d, d.check()
}

// mark is where a chart's values go: a place on the x axis and a series.
type mark struct{ x, series string }

// gather puts the values that the chart wants at their marks. It also returns the fields that vary although the chart
// names them neither as an axis, a series nor a filter.
func gather(t *table, c record.Chart) (values map[mark][]float64, over []string) {
	values = map[mark][]float64{}
	seen := map[string]map[string]bool{}
	for _, kase := range t.cases {
		for _, subject := range t.subjects {
			x, ok := fieldOf(kase, subject, c.X)
			v := t.of(kase, subject, c.Y)
			if !ok || len(v) == 0 || !chosen(kase, subject, c.Where) {
				continue
			}
			name, _ := fieldOf(kase, subject, c.Series)
			values[mark{x, name}] = append(values[mark{x, name}], v...)
			for _, field := range append([]string{subjectField}, t.fields...) {
				if seen[field] == nil {
					seen[field] = map[string]bool{}
				}
				value, _ := fieldOf(kase, subject, field)
				seen[field][value] = true
			}
		}
	}
	for _, field := range append([]string{subjectField}, t.fields...) {
		if len(seen[field]) > 1 && field != c.X && field != c.Series {
			over = append(over, field)
		}
	}
	return values, over
}

// axes are the places on the x axis and the series, each in order: numbers by value, before words by the alphabet,
// except that what is measured against comes first.
func axes(values map[mark][]float64) (xs, names []string) {
	x, name := map[string]bool{}, map[string]bool{}
	for m := range values {
		x[m.x], name[m.series] = true, true
	}
	return slices.SortedFunc(maps.Keys(x), compareNames), slices.SortedFunc(maps.Keys(name), compareNames)
}

// known subjects in the order of their charts, so that each has the same colour in all of them.
var known = []string{"direct", "nginx", "sidecar"}

func compareNames(a, b string) int {
	rank := func(s string) (class int, value float64) {
		if v, ok := numeric(s); ok {
			return 0, v
		}
		if i := slices.Index(known, s); i >= 0 {
			return 1, float64(i)
		}
		return 2, 0
	}
	classA, valueA := rank(a)
	classB, valueB := rank(b)
	switch {
	case classA != classB:
		return classA - classB
	case valueA < valueB:
		return -1
	case valueA > valueB:
		return 1
	default:
		return strings.Compare(a, b)
	}
}

func numeric(s string) (float64, bool) {
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil && math.Abs(v) <= mostMagnitude
}

// place gives each mark its position.
func (d *chart) place(xs, names []string, values map[mark][]float64) {
	at := d.positions(xs)
	for i, x := range xs {
		d.ticks = append(d.ticks, tick{at[i], tickLabel(x)})
	}
	for _, name := range names {
		s := series{name: plain(name, mostLegend)}
		for i, x := range xs {
			if v := values[mark{x, name}]; len(v) > 0 {
				s.points = append(s.points, chartPoint{at[i], spreadOf(v)})
			}
		}
		d.series = append(d.series, s)
	}
}

// positions are the numbers that the names are, or even steps for bars and for names that are no numbers.
func (d *chart) positions(xs []string) []float64 {
	at := make([]float64, len(xs))
	even := d.bars
	for i, x := range xs {
		v, ok := numeric(x)
		even = even || !ok || (d.logX && v <= 0)
		at[i] = v
	}
	if !even {
		return at
	}
	d.logX = false
	for i := range at {
		at[i] = float64(i)
	}
	return at
}

// tickLabel is a place's name; a number has its thousands set apart.
func tickLabel(name string) string {
	if v, ok := numeric(name); ok {
		return limit(v)
	}
	return plain(name, 20)
}

// check refuses values that cannot be drawn and makes a log axis plain when it must.
func (d *chart) check() error {
	for _, s := range d.series {
		for _, p := range s.points {
			if math.Max(math.Abs(p.Min), math.Abs(p.Max)) > mostMagnitude {
				return fmt.Errorf("it has a value of %g", p.Max)
			}
			if p.Min < 1/mostMagnitude {
				d.logY = false
			}
		}
	}
	return nil
}

// caption says how to read the picture.
func (d *chart) caption() string {
	rounds := 1
	for _, s := range d.series {
		for _, p := range s.points {
			rounds = max(rounds, p.N)
		}
	}
	caption := "Median over rounds."
	if rounds > 1 {
		caption = "Median over rounds; whiskers from the smallest to the largest."
	}
	if d.logX || d.logY {
		caption += " Logarithmic:" + strings.Join(slices.DeleteFunc([]string{
			map[bool]string{true: " x axis"}[d.logX], map[bool]string{true: " y axis"}[d.logY],
		}, func(s string) bool { return s == "" }), ",") + "."
	}
	if len(d.over) > 0 {
		caption += " Each point puts together every " + strings.Join(d.over, ", ") + "."
	}
	return caption
}

// where is a chart's filter as text: "era=stateless, conns=64".
func where(fields map[string]string) string {
	var parts []string
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		parts = append(parts, field+"="+fields[field])
	}
	return strings.Join(parts, ", ")
}
