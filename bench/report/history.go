package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const historyHead = `# History of benchmark runs

A line for each run, oldest first; ` + "`make bench`" + ` adds it. Rows are measurements: those that count, and those discarded
because of noise on the machine. Targets are those of the scenarios that were run: how many are met of how many were
measured. Figures are the targets' medians; bold ones miss their target. Compare only lines of one machine, and figures in
multiples of nginx over all of them. A run's page has the spread.

| Date (UTC) | Commit | Machine | Rows | Discarded | Targets met | Figures |
| --- | --- | --- | --: | --: | --: | --- |
`

// AppendHistory adds a line for the run in dir to the Markdown table in file, which it makes with its explanation when
// it is not there. A run is known by its time and commit: its line is replaced if there is one. Whatever else the file
// holds stays.
func AppendHistory(file, dir string) error {
	r, err := readRun(dir)
	if err != nil {
		return err
	}
	if r.env.Time.IsZero() {
		return fmt.Errorf("%s: the run does not say when it was made", dir)
	}
	old, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		old, err = []byte(historyHead), nil
	}
	if err != nil {
		return err
	}
	link, err := relative(file, dir)
	if err != nil {
		return err
	}
	return replaceFile(file, []byte(withLine(string(old), r, link)))
}

// relative is a run's page as seen from the history file.
func relative(file, dir string) (string, error) {
	from, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	path, err := filepath.Rel(from, to)
	return filepath.ToSlash(path) + "/" + readmeFile, err
}

// withLine is a history with the run's line in it: in its old one's place, else after the last line of the table.
func withLine(history string, r *run, link string) string {
	date := r.env.Time.UTC().Format("2006-01-02 15:04:05")
	start := fmt.Sprintf("| [%s](", date)
	commit := fmt.Sprintf(") | %s |", orDash(r.env.Commit))
	line := start + linkTarget(link) + commit + historyCells(r)
	lines := strings.Split(strings.TrimRight(history, "\n"), "\n")
	at, after := -1, len(lines)
	for i, have := range lines {
		if strings.HasPrefix(have, "|") {
			after = i + 1
		}
		if strings.HasPrefix(have, start) && strings.Contains(have, commit) {
			at = i
		}
	}
	if at >= 0 {
		lines[at] = line
	} else {
		lines = slices.Insert(lines, after, line)
	}
	return strings.Join(lines, "\n") + "\n"
}

// linkTarget escapes what would end a link in Markdown, or its cell.
func linkTarget(path string) string {
	return strings.NewReplacer(" ", "%20", "(", "%28", ")", "%29", "|", "%7C", "<", "%3C", ">", "%3E", "\n", "%0A").Replace(path)
}

// historyCells are a line's cells after the commit.
func historyCells(r *run) string {
	met, measured := 0, 0
	var figures []string
	for _, v := range r.judge() {
		if v.Measured.N == 0 {
			continue
		}
		measured++
		value := number(v.Measured.Median, r.digits(v))
		if v.Met() {
			met++
		} else {
			value = "**" + value + "**"
		}
		figures = append(figures, escape(v.Scenario+", "+v.Target.Name)+": "+value)
	}
	targets := "–"
	if measured > 0 {
		targets = fmt.Sprintf("%d of %d", met, measured)
	}
	return fmt.Sprintf(" %s, %d cores | %d | %d | %s | %s |", orDash(r.env.Machine), r.env.Cores, r.valid, len(r.discarded),
		targets, strings.Join(figures, "<br>"))
}

// replaceFile writes a file whole or not at all.
func replaceFile(name string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".history-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
