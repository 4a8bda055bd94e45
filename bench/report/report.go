// Package report turns what a benchmark run wrote down (package record) into what a person reads: a page with tables and
// charts, a line of history, and a comparison of two runs.
//
// Write, AppendHistory and Compare take folders. A folder holds rows.jsonl, as bench/run writes it, and may hold
// micro.txt, the output of `go test -bench`. Everything else in it is derived from these two and can be written anew.
//
// The rows are believed as figures but not as text: names in them may come from strangers' files, so they reach Markdown
// escaped and file names only as letters, digits and dashes. Functions here are safe to call at once for folders and
// history files that differ. Not here: measuring, or which rows are noise (package layout).
package report

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Names in a results folder.
const (
	rowsFile    = "rows.jsonl"
	microFile   = "micro.txt"
	readmeFile  = "README.md"
	summaryFile = "summary.json"
	chartsDir   = "charts"
)

// Write reads dir/rows.jsonl, and dir/micro.txt if there is one, and writes dir/README.md, dir/summary.json, and
// dir/charts with each chart as SVG and PNG. What an earlier Write left is replaced.
//
// It fails when the rows cannot be read or there are none. A last line that was cut short, a chart that cannot be
// drawn, or a damaged micro.txt is not an error: the page says so.
func Write(dir string) error {
	root, err := os.OpenRoot(dir) // no name in the rows can lead out of it
	if err != nil {
		return err
	}
	defer root.Close()
	r, err := readRun(dir)
	if err != nil {
		return err
	}
	micro, err := readMicro(dir)
	if err != nil {
		r.note("The micro-benchmarks in " + microFile + " could not be read: " + err.Error())
	}
	pictures, err := drawAll(root, r)
	if err != nil {
		return err
	}
	var page strings.Builder
	writePage(&page, r, pictures, micro)
	summary, err := summarise(r)
	if err != nil {
		return err
	}
	return errors.Join(
		root.WriteFile(readmeFile, []byte(page.String()), 0o644),
		root.WriteFile(summaryFile, summary, 0o644),
	)
}

// picture is a chart as the page shows it.
type picture struct {
	title   string
	caption string
	file    string // below the folder, without .svg or .png; empty when it was not drawn
	problem string // why it was not drawn
}

// drawAll draws every chart of a run, replaces what charts/ held, and returns the pictures by scenario.
func drawAll(root *os.Root, r *run) (map[string][]picture, error) {
	if err := root.RemoveAll(chartsDir); err != nil {
		return nil, err
	}
	pictures := map[string][]picture{}
	taken := map[string]bool{}
	for _, t := range r.tables {
		for _, c := range t.Charts {
			p := picture{title: c.Title}
			drawn, err := newChart(t, c)
			if err != nil {
				p.problem = err.Error()
				pictures[t.Name] = append(pictures[t.Name], p)
				continue
			}
			p.caption = drawn.caption()
			p.file = chartsDir + "/" + fileName(t.Name, c.Name, taken)
			if err := drawn.write(root, p.file); err != nil {
				return nil, fmt.Errorf("chart %q: %w", c.Name, err)
			}
			pictures[t.Name] = append(pictures[t.Name], p)
		}
	}
	return pictures, nil
}

// fileName is a chart's name after its scenario's, as a file's: lower-case letters, digits and dashes, at most 60, and
// unlike all that are taken.
func fileName(scenario, name string, taken map[string]bool) string {
	if !strings.HasPrefix(name, scenario) {
		name = scenario + "-" + name
	}
	slug := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		default:
			return '-'
		}
	}, name)
	slug = strings.Trim(slug[:min(len(slug), 60)], "-")
	if slug == "" {
		slug = "chart"
	}
	unique := slug
	for n := 2; taken[unique]; n++ {
		unique = fmt.Sprintf("%s-%d", slug, n)
	}
	taken[unique] = true
	return unique
}
