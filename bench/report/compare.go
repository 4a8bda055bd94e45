package report

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// A difference's verdicts, in the order in which they are written.
const (
	worse        = "worse"
	improved     = "better"
	changed      = "changed" // beyond noise, of a figure that is neither good nor bad
	withinNoise  = "within noise"
	tooFew       = "too few rounds"
	otherMachine = "other machine"
)

var verdictOrder = []string{worse, improved, changed, withinNoise, tooFew, otherMachine}

// Compare writes to w what changed from the run in folder a to the one in folder b: for each figure of each subject in
// each case that both measured, the medians, their ratio, a 95 % confidence interval of the difference, and whether
// that is better, worse or within noise. With too few rounds it says so and claims nothing. On different machines it
// judges only ratios to a subject of the same run (ratio_nginx), and writes other figures only of scenarios without.
//
// It fails when a folder cannot be read, as Write does, or when the two have nothing in common.
func Compare(w io.Writer, a, b string) error {
	from, err := readRun(a)
	if err != nil {
		return err
	}
	to, err := readRun(b)
	if err != nil {
		return err
	}
	c := comparison{w: w, counts: map[string]int{}}
	c.otherMachine = from.env.Machine != to.env.Machine || from.env.Cores != to.env.Cores
	fmt.Fprintf(w, "A  %s\nB  %s\n\n", side(a, from), side(b, to))
	c.warn(from, to)
	for _, t := range to.tables {
		for _, before := range from.tables {
			if before.Name == t.Name {
				c.scenario(before, t)
			}
		}
	}
	if len(c.counts) == 0 {
		return fmt.Errorf("%s and %s have no figure in common", a, b)
	}
	c.sum()
	return nil
}

// side names a run.
func side(dir string, r *run) string {
	return fmt.Sprintf("%s: commit %s, %s, %s, %d rows count, %d discarded", filepath.Base(filepath.Clean(dir)),
		plain(r.env.Commit, 60), r.env.Time.UTC().Format("2006-01-02 15:04"), plain(r.env.Machine, 60), r.valid, len(r.discarded))
}

// comparison is one Compare.
type comparison struct {
	w            io.Writer
	otherMachine bool
	counts       map[string]int // differences by verdict
	controls     int            // of them, of subjects that no version of ours changes, and judged
	controlsMove int            // of these, beyond noise
}

// warn says where the two runs were not made alike.
func (c *comparison) warn(from, to *run) {
	a, b := from.env, to.env
	c.warnIf("machines", fmt.Sprintf("%s, %d cores, %d MiB", a.Machine, a.Cores, a.MemoryMiB),
		fmt.Sprintf("%s, %d cores, %d MiB", b.Machine, b.Cores, b.MemoryMiB))
	c.warnIf("kernels", a.Kernel, b.Kernel)
	c.warnIf("Go versions", a.Go, b.Go)
	c.warnIf("pinned cores", pairs(a.Pinned), pairs(b.Pinned))
	c.warnIf("nginx versions", a.Versions["nginx"], b.Versions["nginx"])
	for _, process := range slices.Sorted(maps.Keys(b.Config)) {
		if config, ok := a.Config[process]; ok && config != b.Config[process] {
			fmt.Fprintf(c.w, "warning: %s ran with another configuration\n", plain(process, 60))
		}
	}
	for i, r := range []*run{from, to} {
		for _, note := range r.notes {
			fmt.Fprintf(c.w, "note: %s: %s\n", []string{"A", "B"}[i], plain(note, maxCell))
		}
	}
	if c.otherMachine {
		fmt.Fprintln(c.w, "Only ratios within a run are judged, because the machines differ.")
	}
}

func (c *comparison) warnIf(what, a, b string) {
	if a != b {
		fmt.Fprintf(c.w, "warning: %s differ: A %s; B %s\n", what, orNone(a), orNone(b))
	}
}

func orNone(s string) string {
	if s = plain(s, maxCell); s == "" {
		return "none"
	}
	return s
}

// pairs is a map as "name=value" in order.
func pairs(m map[string]string) string { return where(m) }

// difference is a line of the comparison.
type difference struct {
	kase, subject string
	figure        record.Figure
	a, b          Spread
	shift         shift
	verdict       string
}

// scenario compares what both tables of a scenario have.
func (c *comparison) scenario(from, to *table) {
	before := map[string]map[string]string{} // cases by their text
	for _, kase := range from.cases {
		before[where(kase)] = kase
	}
	var lines []difference
	matched := 0
	for _, kase := range to.cases {
		old, ok := before[where(kase)]
		if !ok {
			continue
		}
		matched++
		for _, subject := range to.subjects {
			for _, f := range to.Figures {
				a, b := from.of(old, subject, f.Name), to.of(kase, subject, f.Name)
				if len(a) > 0 && len(b) > 0 && c.wanted(to, f) {
					lines = append(lines, c.difference(to.caseName(kase), subject, f, a, b))
				}
			}
		}
	}
	slices.SortStableFunc(lines, func(a, b difference) int {
		return slices.Index(verdictOrder, a.verdict) - slices.Index(verdictOrder, b.verdict)
	})
	fmt.Fprintf(c.w, "\n%s: %s\n", plain(to.Name, 60), plain(to.Title, maxCell))
	if onlyA, onlyB := len(from.cases)-matched, len(to.cases)-matched; onlyA+onlyB > 0 {
		fmt.Fprintf(c.w, "cases only in A: %d, only in B: %d\n", onlyA, onlyB)
	}
	writeDifferences(c.w, lines)
}

// isRatio reports whether a figure is in multiples of another subject's in the same run: ratio_nginx, rate_nginx.
func isRatio(f record.Figure) bool {
	return strings.HasPrefix(f.Name, "ratio_") || strings.HasSuffix(f.Name, "_nginx") || strings.HasSuffix(f.Name, "_direct")
}

// wanted reports whether a figure says something here: on another machine, where there are ratios, only they do.
func (c *comparison) wanted(t *table, f record.Figure) bool {
	return !c.otherMachine || isRatio(f) || !slices.ContainsFunc(t.measured(t.subjects...), isRatio)
}

// caseName is what tells a case from the others of its table.
func (t *table) caseName(kase map[string]string) string {
	var parts []string
	for _, field := range t.varying() {
		if value, ok := kase[field]; ok {
			parts = append(parts, field+"="+value)
		}
	}
	return strings.Join(parts, " ")
}

// difference judges a figure and counts the verdict.
func (c *comparison) difference(kase, subject string, f record.Figure, a, b []float64) difference {
	d := difference{kase: kase, subject: subject, figure: f, a: spreadOf(a), b: spreadOf(b), shift: shiftOf(a, b)}
	up := d.shift.low > 0
	switch {
	case c.otherMachine && !isRatio(f):
		d.verdict = otherMachine
	case !d.shift.enough:
		d.verdict = tooFew
	case !d.shift.differs:
		d.verdict = withinNoise
	case f.Better == "lower" && up, f.Better == "higher" && !up:
		d.verdict = worse
	case f.Better == "lower", f.Better == "higher":
		d.verdict = improved
	default:
		d.verdict = changed
	}
	c.counts[d.verdict]++
	if (subject == "direct" || subject == "nginx") && d.shift.enough && d.verdict != otherMachine {
		c.controls++
		if d.shift.differs {
			c.controlsMove++
		}
	}
	return d
}

func writeDifferences(w io.Writer, lines []difference) {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "verdict\tcase\tsubject\tfigure\tA\tB\tB/A\t95 % CI of B-A\trounds")
	for _, d := range lines {
		ratio, interval := "-", "-"
		if d.a.Median > 0 {
			ratio = number(d.b.Median/d.a.Median, 3)
		}
		if d.shift.enough {
			interval = signed(d.shift.low, d.figure.Digits) + " .. " + signed(d.shift.high, d.figure.Digits)
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d+%d\n", d.verdict, plain(d.kase, 80), plain(d.subject, 40),
			plain(d.figure.Name, 40), number(d.a.Median, d.figure.Digits), number(d.b.Median, d.figure.Digits), ratio, interval,
			d.shift.n1, d.shift.n2)
	}
	out.Flush()
}

// signed is a difference with one digit more than its figure, and with its sign.
func signed(v float64, digits int) string {
	s := number(v, digits+1)
	if v > 0 {
		return "+" + s
	}
	return s
}

// sum ends the comparison: the verdicts counted, and how far they can be believed.
func (c *comparison) sum() {
	var parts []string
	for _, verdict := range verdictOrder {
		if n := c.counts[verdict]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, verdict))
		}
	}
	fmt.Fprintf(c.w, "\n%s.\n", strings.Join(parts, ", "))
	if judged := c.counts[worse] + c.counts[improved] + c.counts[changed] + c.counts[withinNoise]; judged > 0 {
		fmt.Fprintf(c.w, "Each is judged at 95 %% (Mann-Whitney U): of %d, about %.0f would look changed by chance alone.\n",
			judged, 0.05*float64(judged))
		fmt.Fprintln(c.w, "Rounds of one run share the state of its machine: repeat both runs before you believe a few per cent.")
	}
	if c.counts[tooFew] > 0 {
		fmt.Fprintln(c.w, "Too few rounds to say anything: measure at least 4 in each run.")
	}
	if float64(c.controlsMove) > 2+0.1*float64(c.controls) {
		fmt.Fprintf(c.w, "warning: direct and nginx, which no version of ours changes, moved in %d of %d figures: "+
			"the machine did, so believe only ratios.\n", c.controlsMove, c.controls)
	}
}
