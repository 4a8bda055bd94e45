package report

import (
	"cmp"
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
	mostLegend     = 22   // characters of a series' name
	mostMagnitude  = 1e12 // beyond it, up or down, labels are too long
)

// chart is a picture's data: each point is a figure over rounds.
type chart struct {
	title, subtitle string
	x, y            string // of the axes
	bars            bool
	logX, logY      bool
	even            bool // the x axis has names at even steps, not numbers
	digits          int  // of the figure
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
	g := gather(t, c)
	switch {
	case len(g.values) == 0:
		return nil, fmt.Errorf("it has no values")
	case len(g.names) > mostSeries:
		return nil, fmt.Errorf("it has %d series, and at most %d can be told apart", len(g.names), mostSeries)
	case len(g.xs) > mostCategories:
		return nil, fmt.Errorf("it has %d values of %s, and at most %d have room", len(g.xs), c.X, mostCategories)
	}
	f := t.figure(c.Y)
	d := &chart{
		title: plain(c.Title, 80), subtitle: plain(where(c.Where), 100),
		x: plain(fieldLabel(c.X), 40), y: plain(label(f), 60),
		bars: c.Kind != "line", logX: c.LogX, logY: c.LogY, digits: f.Digits, over: g.over,
	}
	d.place(g)
	return d, d.check()
}

// mark is where a chart's values go: a place on the x axis and a series.
type mark struct{ x, series string }

// gathered is what a chart shows.
type gathered struct {
	values    map[mark][]float64
	xs, names []string // the places on the x axis and the series, in order
	over      []string // fields that vary although they are neither an axis, the series nor a filter
}

// gather puts the values that the chart wants at their marks.
func gather(t *table, c record.Chart) gathered {
	g := gathered{values: map[mark][]float64{}}
	fields := append([]string{subjectField}, t.fields...)
	first := map[string]string{}
	for _, kase := range t.cases {
		for _, subject := range t.subjects {
			x, ok := fieldOf(kase, subject, c.X)
			v := t.of(kase, subject, c.Y)
			if !ok || len(v) == 0 || !chosen(kase, subject, c.Where) {
				continue
			}
			name, _ := fieldOf(kase, subject, c.Series)
			at := mark{x, name}
			g.values[at] = append(g.values[at], v...)
			g.xs, g.names = with(g.xs, x), with(g.names, name)
			for _, field := range fields {
				value, _ := fieldOf(kase, subject, field)
				if _, ok := first[field]; !ok {
					first[field] = value
				}
				if value != first[field] && field != c.X && field != c.Series {
					g.over = with(g.over, field)
				}
			}
		}
	}
	g.xs, g.names = inOrder(g.xs), inOrder(g.names)
	return g
}

// with is a list that has s at its end, unless it has it already.
func with(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// known subjects in the order of their charts, so that each has the same colour in all of them.
var known = []string{"direct", "nginx", "sidecar"}

// inOrder sorts the places of an axis, or the series: numbers by value, then known subjects, then others as they came.
func inOrder(names []string) []string {
	rank := func(name string) (class int, value float64) {
		if v, ok := numeric(name); ok {
			return 0, v
		}
		if i := slices.Index(known, name); i >= 0 {
			return 1, float64(i)
		}
		return 2, 0
	}
	slices.SortStableFunc(names, func(a, b string) int {
		classA, valueA := rank(a)
		classB, valueB := rank(b)
		return cmp.Or(cmp.Compare(classA, classB), cmp.Compare(valueA, valueB))
	})
	return names
}

func numeric(s string) (float64, bool) {
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil && math.Abs(v) <= mostMagnitude
}

// place gives each mark its position.
func (d *chart) place(g gathered) {
	at := d.positions(g.xs)
	for i, x := range g.xs {
		d.ticks = append(d.ticks, tick{at[i], tickLabel(x)})
	}
	for _, name := range g.names {
		s := series{name: plain(name, mostLegend)}
		for i, x := range g.xs {
			if v := g.values[mark{x, name}]; len(v) > 0 {
				s.points = append(s.points, chartPoint{at[i], spreadOf(v)})
			}
		}
		d.series = append(d.series, s)
	}
}

// positions are the numbers that the names are, or even steps for bars and for names that are no numbers.
func (d *chart) positions(xs []string) []float64 {
	at := make([]float64, len(xs))
	d.even = d.bars
	for i, x := range xs {
		v, ok := numeric(x)
		d.even = d.even || !ok || (d.logX && v <= 0)
		at[i] = v
	}
	if !d.even {
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
	return plain(name, 40)
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
	caption := "One round: no spread."
	if rounds > 1 {
		caption = "Median over rounds; whiskers from the smallest to the largest."
	}
	switch {
	case d.logX && d.logY:
		caption += " Both axes are logarithmic."
	case d.logX:
		caption += " The x axis is logarithmic."
	case d.logY:
		caption += " The y axis is logarithmic."
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
