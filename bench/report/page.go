package report

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// What keeps a page readable.
const (
	mostColumns = 5        // figures in a table with a row for each subject
	openRows    = 16       // longer tables are folded
	mostConfig  = 16 << 10 // bytes shown of a process's configuration
	mostReasons = 10       // shown for discarded rows
)

// writePage writes README.md. Everything in the run is a stranger's text: it goes through escape, prose or fenced.
func writePage(w io.Writer, r *run, pictures map[string][]picture, micro []microResult) {
	fmt.Fprintf(w, "# Benchmark of %s, commit %s\n\n", r.env.Time.UTC().Format("2006-01-02 15:04 UTC"), orDash(r.env.Commit))
	fmt.Fprintf(w, "Written from `%s` by `bench/report`: change nothing here by hand. `%s` has the same figures for programs.\n\n",
		rowsFile, summaryFile)
	for _, note := range r.notes {
		fmt.Fprintf(w, "> **Note.** %s\n\n", escape(note))
	}
	writeEnvironment(w, r.env)
	writeDiscarded(w, r)
	writeTargets(w, r)
	for _, t := range r.tables {
		writeScenario(w, t, pictures[t.Name])
	}
	writeMicro(w, micro)
}

func writeEnvironment(w io.Writer, e record.Environment) {
	fmt.Fprint(w, "## Environment\n\n")
	rows := [][]string{
		{"Machine", fmt.Sprintf("%s, %d cores, %s MiB", orDash(e.Machine), e.Cores, number(float64(e.MemoryMiB), 0))},
		{"Kernel", orDash(e.Kernel)},
		{"Go", orDash(e.Go)},
		{"Versions", named(e.Versions)},
		{"Cores by process", named(e.Pinned)},
		{"Noise limit", fmt.Sprintf("%s %% of the machine used by others", limit(e.NoiseLimit*100))},
		{"Command", orDash(e.Command)},
	}
	writeTable(w, []string{"", ""}, 2, rows)
	writeBuilds(w, e.Builds)
	for _, process := range slices.Sorted(maps.Keys(e.Config)) {
		config := e.Config[process]
		if len(config) > mostConfig {
			config = strings.ToValidUTF8(config[:mostConfig], "") + "\n(cut here; " + rowsFile + " has it whole)"
		}
		fmt.Fprintf(w, "<details><summary>Configuration of %s</summary>\n\n%s\n</details>\n\n",
			html.Replace(plain(process, maxCell)), fenced(config))
	}
}

func writeBuilds(w io.Writer, builds map[string]string) {
	if len(builds) == 0 {
		return
	}
	var rows [][]string
	for _, program := range slices.Sorted(maps.Keys(builds)) {
		rows = append(rows, []string{escape(program), escape(builds[program])})
	}
	fmt.Fprint(w, "<details><summary>SHA-256 of each program</summary>\n\n")
	writeTable(w, []string{"Program", "SHA-256"}, 2, rows)
	fmt.Fprint(w, "</details>\n\n")
}

// digitsInReason are what differs between reasons that are otherwise the same.
var digitsInReason = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)

// writeDiscarded says how many rows do not count and why; reasons that differ only in numbers are one.
func writeDiscarded(w io.Writer, r *run) {
	fmt.Fprintf(w, "**Rows:** %s count, %s were discarded", number(float64(r.valid), 0), number(float64(len(r.discarded)), 0))
	if o := r.outcome; o != nil {
		fmt.Fprintf(w, " (%d because of noise, and measured again). %d stayed noisy to the last try, %d failed", o.Again, o.Noisy, o.Failed)
	}
	fmt.Fprint(w, ".\n\n")
	counts := map[string]int{}
	for _, row := range r.discarded {
		counts[row.Scenario+": "+digitsInReason.ReplaceAllString(row.Discarded, "N")]++
	}
	reasons := slices.Sorted(maps.Keys(counts))
	slices.SortStableFunc(reasons, func(a, b string) int { return counts[b] - counts[a] })
	for i, reason := range reasons {
		if i == mostReasons {
			fmt.Fprintf(w, "- and %d other reasons\n", len(reasons)-mostReasons)
			break
		}
		fmt.Fprintf(w, "- %d of %s\n", counts[reason], escape(reason))
	}
	if len(reasons) > 0 {
		fmt.Fprintln(w)
	}
}

func writeTargets(w io.Writer, r *run) {
	verdicts := r.judge()
	if len(verdicts) == 0 {
		return
	}
	fmt.Fprint(w, "## Targets\n\nMeasured is the median over rounds [min..max].\n\n")
	var rows [][]string
	for _, v := range verdicts {
		rows = append(rows, []string{escape(v.Scenario), escape(v.Target.Name), escape(v.Target.Subject), v.limits(),
			v.Measured.text(r.digits(v)), v.word()})
	}
	writeTable(w, []string{"Scenario", "Target", "Subject", "Asked", "Measured", "Verdict"}, 6, rows)
}

// writeScenario writes what was asked, how it was measured, the charts, and the tables.
func writeScenario(w io.Writer, t *table, pictures []picture) {
	fmt.Fprintf(w, "## %s: %s\n\n", escape(t.Name), escape(t.Title))
	if t.Question != "" {
		fmt.Fprintf(w, "**Question.** %s\n\n", prose(t.Question))
	}
	if t.Method != "" {
		fmt.Fprintf(w, "**Method.** %s\n\n", prose(t.Method))
	}
	if len(t.rows) == 0 {
		fmt.Fprint(w, "Every row of this scenario was discarded.\n\n")
		return
	}
	if same := t.constant(); same != "" {
		fmt.Fprintf(w, "**In all cases:** %s.\n\n", escape(same))
	}
	for _, p := range pictures {
		writePicture(w, p)
	}
	if len(t.cases) > 1 && len(t.subjects) > 1 {
		for _, f := range t.leading() {
			writeFigure(w, t, f)
		}
		fmt.Fprint(w, "<details><summary>All figures</summary>\n\n")
		writeFigures(w, t)
		fmt.Fprint(w, "</details>\n\n")
		return
	}
	writeFigures(w, t)
}

func writePicture(w io.Writer, p picture) {
	if p.problem != "" {
		fmt.Fprintf(w, "> **Note.** The chart “%s” is not drawn: %s.\n\n", escape(p.title), escape(p.problem))
		return
	}
	fmt.Fprintf(w, "![%s](%s.svg)\n\n%s ([PNG](%s.png))\n\n", escape(p.title), p.file, escape(p.caption), p.file)
}

// leading are the figures with a table of their own: the first, then those of targets.
func (t *table) leading() []record.Figure {
	figures := t.measured(t.subjects...)
	return slices.DeleteFunc(figures, func(f record.Figure) bool {
		return f.Name != figures[0].Name &&
			!slices.ContainsFunc(t.Targets, func(target record.Target) bool { return target.Figure == f.Name })
	})
}

// writeFigure writes one figure: a row for each case that has it, a column for each subject.
func writeFigure(w io.Writer, t *table, f record.Figure) {
	subjects := slices.DeleteFunc(slices.Clone(t.subjects), func(s string) bool { return !t.has(s, f.Name) })
	fields := t.varying()
	var rows [][]string
	for _, kase := range t.cases {
		row, found := fieldCells(kase, fields), false
		for _, subject := range subjects {
			values := t.of(kase, subject, f.Name)
			row = append(row, spreadOf(values).text(f.Digits))
			found = found || len(values) > 0
		}
		if found {
			rows = append(rows, row)
		}
	}
	heads := append(slices.Clone(fields), subjects...)
	for i := range heads {
		heads[i] = escape(heads[i])
	}
	caption := label(f) + better(f) + ": median over rounds [min..max]"
	if len(rows) > openRows {
		fmt.Fprintf(w, "<details><summary>%s, %d cases</summary>\n\n", html.Replace(plain(caption, maxCell)), len(rows))
		writeTable(w, heads, len(fields), rows)
		fmt.Fprint(w, "</details>\n\n")
		return
	}
	fmt.Fprintf(w, "**%s**\n\n", escape(caption))
	writeTable(w, heads, len(fields), rows)
}

// writeFigures writes every figure: a row for each subject in each case, a column for each figure, in as many tables as
// that takes.
func writeFigures(w io.Writer, t *table) {
	fields := t.varying()
	for figures := range slices.Chunk(t.measured(t.subjects...), mostColumns) {
		var heads []string
		for _, field := range fields {
			heads = append(heads, escape(field))
		}
		heads = append(heads, "subject", "rounds")
		for _, f := range figures {
			heads = append(heads, escape(label(f)))
		}
		var rows [][]string
		for _, kase := range t.cases {
			for _, subject := range t.subjects {
				rounds, cells := figureCells(t, kase, subject, figures)
				if rounds != "0" {
					rows = append(rows, slices.Concat(fieldCells(kase, fields), []string{escape(subject), rounds}, cells))
				}
			}
		}
		writeTable(w, heads, len(fields)+1, rows)
	}
}

// figureCells is one subject in one case: over how many rounds, and each figure.
func figureCells(t *table, kase map[string]string, subject string, figures []record.Figure) (rounds string, cells []string) {
	var counts []int
	for _, f := range figures {
		s := spreadOf(t.of(kase, subject, f.Name))
		cells = append(cells, s.text(f.Digits))
		if s.N > 0 {
			counts = append(counts, s.N)
		}
	}
	switch {
	case len(counts) == 0:
		return "0", cells
	case slices.Min(counts) == slices.Max(counts):
		return fmt.Sprint(counts[0]), cells
	default:
		return fmt.Sprintf("%d–%d", slices.Min(counts), slices.Max(counts)), cells
	}
}

func fieldCells(kase map[string]string, fields []string) []string {
	var cells []string
	for _, field := range fields {
		cells = append(cells, orDash(kase[field]))
	}
	return cells
}

// writeTable writes cells that are Markdown already. Columns from left on are numbers, to the right.
func writeTable(w io.Writer, heads []string, left int, rows [][]string) {
	rules := make([]string, len(heads))
	for i := range rules {
		rules[i] = "---"
		if i >= left {
			rules[i] = "--:"
		}
	}
	for _, cells := range slices.Concat([][]string{heads, rules}, rows) {
		fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
	}
	fmt.Fprintln(w)
}

// named is a map as "name value" pairs in a cell.
func named(m map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, plain(name, maxCell)+" "+plain(m[name], maxCell))
	}
	return orDash(strings.Join(parts, ", "))
}

func orDash(s string) string {
	if s = escape(s); s == "" {
		return "–"
	}
	return s
}

// better says in which direction a figure is good.
func better(f record.Figure) string {
	switch f.Better {
	case "lower", "higher":
		return " (" + f.Better + " is better)"
	default:
		return ""
	}
}

// units by the ends of figures' names. "_s" is none of them: calls_s is per second and boot_s is seconds.
var units = map[string]string{
	"ns": "ns", "us": "µs", "ms": "ms", "kib": "KiB", "mib": "MiB", "gib": "GiB", "bytes": "bytes", "pct": "%",
}

// label is a figure's title with its unit, unless the title says it.
func label(f record.Figure) string {
	title := f.Title
	if title == "" {
		title = f.Name
	}
	if bare, ok := strings.CutSuffix(title, ", us"); ok {
		title = bare + ", µs"
	}
	unit := units[f.Name[strings.LastIndex(f.Name, "_")+1:]]
	if unit == "" || strings.Contains(title, unit) {
		return title
	}
	return title + ", " + unit
}

// fieldLabel is a field's name as a chart's axis has it: "delay, ms" of delay_ms.
func fieldLabel(field string) string {
	if at := strings.LastIndex(field, "_"); at > 0 && units[field[at+1:]] != "" {
		field = field[:at] + ", " + units[field[at+1:]]
	}
	return strings.ReplaceAll(field, "_", " ")
}
