package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

func TestAHistoryHasOneLineForEachRun(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "HISTORY.md")
	results := filepath.Join(dir, "results")
	for i, slower := range []float64{1, 1.5} {
		run := filepath.Join(results, []string{"one", "two (2)"}[i])
		if err := os.MkdirAll(run, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(run, rowsFile), encode(example(uint64(i+1), slower, nil)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	add := func(run string) string {
		if err := AppendHistory(file, filepath.Join(results, run)); err != nil {
			t.Fatal(err)
		}
		return string(readFile(t, file))
	}
	add("one")
	history := add("two (2)")
	golden(t, "history.md", []byte(history))
	checkTables(t, history)
	if again := add("one"); again != history {
		t.Errorf("a run that is there already changes the file to\n%s", again)
	}
	if !strings.Contains(history, "(results/two%20%282%29/README.md)") {
		t.Errorf("no link to the second run in\n%s", history)
	}
}

func TestAHistoryKeepsWhatPeopleWroteIntoIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "HISTORY.md")
	if err := AppendHistory(file, before); err != nil {
		t.Fatal(err)
	}
	const mine = "\nThe machine changed here.\n"
	if err := os.WriteFile(file, append(readFile(t, file), mine...), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := AppendHistory(file, after); err != nil {
		t.Fatal(err)
	}
	history := string(readFile(t, file))
	table, rest, ok := strings.Cut(history, mine)
	if !ok || rest != "" || strings.Count(table, "\n| [") != 2 {
		t.Errorf("want two lines in the table, then %q; got\n%s", mine, history)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".*")); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

func TestAHistoryTakesNoRunWithoutATime(t *testing.T) {
	file := filepath.Join(t.TempDir(), "HISTORY.md")
	if err := AppendHistory(file, folder(t, nastyRun())); err == nil {
		t.Error("no error for a run that does not say when it was made")
	}
	lines := nastyRun()
	lines[0].Environment.Time = time.Unix(1e9, 0)
	lines = append(lines, record.Line{Kind: record.KindEnvironment, Environment: lines[0].Environment})
	if err := AppendHistory(file, folder(t, lines)); err != nil {
		t.Fatal(err)
	}
	if got := string(readFile(t, file)); strings.Count(got, "\n# ") != 0 || strings.Contains(got, "<script") {
		t.Errorf("a stranger's names broke the history:\n%s", got)
	} else {
		checkTables(t, got)
	}
}
