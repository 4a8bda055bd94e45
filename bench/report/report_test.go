package report

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

var update = flag.Bool("update", false, "write testdata anew")

// writeRows makes a results folder of lines.
func writeRows(t *testing.T, lines []record.Line) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, rowsFile), encode(t, lines), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// golden compares got with a file of testdata, which -update writes.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what is written now; see the difference with -update and git diff. Got:\n%s", name, got)
	}
}

func TestAPageHasTheEnvironmentTargetsChartsAndTables(t *testing.T) {
	dir := writeRows(t, example(1, 1, nil))
	micro, err := os.ReadFile(filepath.Join("testdata", "example", microFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, microFile), micro, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{readmeFile} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		golden(t, filepath.Join("example", name), got)
	}
	if out := os.Getenv("SHOW"); out != "" {
		os.CopyFS(out, os.DirFS(dir))
	}
}
