package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"image"
	"image/color"
	"image/png"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// Results folders in testdata, written by -update: two runs of the example, the second with a sidecar that costs 15 %
// more per call.
const (
	before = "testdata/before"
	after  = "testdata/after"
)

var update = flag.Bool("update", false, "write testdata anew")

func TestMain(m *testing.M) {
	flag.Parse()
	if *update {
		for dir, lines := range map[string][]record.Line{before: example(1, 1, nil), after: example(2, 1.15, nil)} {
			if err := os.WriteFile(filepath.Join(dir, rowsFile), encode(lines), 0o644); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

// golden compares got with a file of testdata, which -update writes.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what is written now: run with -update and read the difference. Got:\n%s", name, got)
	}
}

// folder makes a results folder of lines.
func folder(t *testing.T, lines []record.Line) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, rowsFile), encode(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// written copies a results folder, writes its report, and returns the copy.
func written(t *testing.T, from string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{rowsFile, microFile} {
		content, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func readFile(t testing.TB, elem ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestThePageIsTheOneInTestdata(t *testing.T) {
	dir := written(t, before)
	page := readFile(t, dir, readmeFile)
	golden(t, "page.md", page)
	checkTables(t, string(page))
}

// A link of the page, to a chart.
var link = regexp.MustCompile(`\]\((charts/[^)]*)\)`)

func TestEveryChartOfThePageIsAnSVGAndAPNG(t *testing.T) {
	dir := written(t, before)
	var linked []string
	for _, m := range link.FindAllStringSubmatch(string(readFile(t, dir, readmeFile)), -1) {
		linked = append(linked, m[1])
	}
	there, err := filepath.Glob(filepath.Join(dir, chartsDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(linked) != 10 || len(there) != 10 {
		t.Fatalf("%d links to charts and %d files, want 10 of each: %q", len(linked), len(there), linked)
	}
	for _, name := range linked {
		content := readFile(t, dir, name)
		if strings.HasSuffix(name, ".svg") {
			checkSVG(t, name, content)
		} else {
			checkPNG(t, name, content)
		}
	}
}

// checkSVG holds an SVG to be XML with a white ground that shows texts.
func checkSVG(t *testing.T, name string, content []byte) {
	t.Helper()
	var texts []string
	in := xml.NewDecoder(bytes.NewReader(content))
	for {
		token, err := in.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if data, ok := token.(xml.CharData); ok && len(bytes.TrimSpace(data)) > 0 {
			texts = append(texts, string(data))
		}
	}
	want := map[string][]string{
		"charts/path-cpu.svg":     {"CPU per call by connections", "answer=json, bytes=250, era=stateless", "CPU per call, µs", "conns", "64", "nginx", "sidecar"},
		"charts/sessions-rss.svg": {"RSS, MiB", "10,000", "session", "stream"},
		"charts/memory-peak.svg":  {"a gateway on the SDK", "RSS peak, MiB"},
	}
	for _, text := range want[name] {
		if !slices.Contains(texts, text) {
			t.Errorf("%s shows no %q, but %q", name, text, texts)
		}
	}
	if !bytes.Contains(content, []byte(`<path d="M0,0L640,0L640,340L0,340Z" style="fill:#FFFFFF"`)) {
		t.Errorf("%s has no white ground", name)
	}
}

// checkPNG holds a PNG to be of the right size, white at its corners, and to show the sidecar's colour or that of what
// stands in its place.
func checkPNG(t *testing.T, name string, content []byte) {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(content))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if got, want := img.Bounds().Size(), (image.Point{X: 1280, Y: 680}); got != want {
		t.Errorf("%s is %v, want %v", name, got, want)
	}
	colors := map[color.RGBA]int{}
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			colors[color.RGBAModel.Convert(img.At(x, y)).(color.RGBA)]++
		}
	}
	white := color.RGBA{R: 0xff, G: 0xff, B: 0xff, A: 0xff}
	if got := color.RGBAModel.Convert(img.At(0, 0)); got != white {
		t.Errorf("%s has %v in its corner, want white", name, got)
	}
	if colors[palette[2]] < 200 {
		t.Errorf("%s has %d pixels of %v, want a line or bar of it", name, colors[palette[2]], palette[2])
	}
}

func TestASecondWriteGivesTheSamePageAndRemovesOldCharts(t *testing.T) {
	dir := written(t, folder(t, exampleMemory(rand.New(rand.NewPCG(1, 1)))))
	page := readFile(t, dir, readmeFile)
	stale := filepath.Join(dir, chartsDir, "stale.svg")
	if err := os.WriteFile(stale, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the stale chart: %v, want that it is gone", err)
	}
	if again := readFile(t, dir, readmeFile); !bytes.Equal(again, page) {
		t.Errorf("the second page is\n%s\nthe first was\n%s", again, page)
	}
}

func TestTheSummaryHasEveryMedian(t *testing.T) {
	r, err := readRun(before)
	if err != nil {
		t.Fatal(err)
	}
	out, err := summarise(r)
	if err != nil {
		t.Fatal(err)
	}
	var got summary
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if got.Valid != r.valid || got.Discarded != len(r.discarded) || got.Discarded == 0 || got.Commit != "0123456789ab" {
		t.Errorf("summary of %d rows, %d discarded, commit %q; want %d, %d", got.Valid, got.Discarded, got.Commit, r.valid, len(r.discarded))
	}
	if len(got.Targets) != 5 || !got.Targets[0].Met || got.Targets[1].Met {
		t.Errorf("targets %+v, want five, the first met and the second not", got.Targets)
	}
	for _, f := range got.Figures {
		if f.N == 0 || f.Min > f.Median || f.Median > f.Max {
			t.Errorf("a spread out of order: %+v", f)
		}
	}
	if len(got.Figures) < 100 {
		t.Errorf("%d figures, want those of every case", len(got.Figures))
	}
}

// nasty is what a stranger's file may hold where a name is expected.
const nasty = "x|y`z\n\n# owned\n```\n<script>alert(1)</script> ../../[a](b) \x00\u202e </details> &"

func nastyRun() []record.Line {
	names := map[string]string{nasty: nasty, "same": nasty}
	row := record.Row{Scenario: nasty, Subject: nasty, Round: 1, Case: names, Values: map[string]float64{nasty: 1, "b": 2}}
	var lines []record.Line
	env := record.Environment{Command: nasty, Commit: nasty, Machine: nasty, Kernel: nasty, Go: nasty,
		Versions: names, Builds: names, Pinned: names, Config: names}
	lines = append(lines, record.Line{Kind: record.KindEnvironment, Environment: &env}, scenarioLine(record.Scenario{
		Name: nasty, Title: nasty, Question: nasty, Method: nasty, Fields: []string{nasty},
		Figures: []record.Figure{{Name: nasty, Title: nasty, Better: nasty, Digits: 1 << 30}, {Name: "b", Digits: -5}},
		Charts: []record.Chart{
			{Name: nasty, Title: nasty, Kind: nasty, X: nasty, Y: nasty, Series: nasty, Where: names},
			{Name: "../" + nasty, Title: nasty, Kind: "line", X: nasty, Y: "b", Series: subjectField, LogX: true, LogY: true},
			{Name: "", X: "absent", Y: nasty},
		},
		Targets: []record.Target{{Name: nasty, Figure: nasty, Subject: nasty, Where: names, Most: 1e300, Gate: -1}},
	}))
	for round := 1; round <= 3; round++ {
		r := row
		r.Values = maps.Clone(row.Values)
		lines = append(lines, record.Line{Kind: record.KindRow, Row: &r})
	}
	row.Subject, row.Case = "other", map[string]string{nasty: "|"}
	discarded := row
	discarded.Discarded = nasty
	return append(lines, record.Line{Kind: record.KindRow, Row: &row}, record.Line{Kind: record.KindRow, Row: &discarded})
}

func TestNamesCannotBreakThePageOrLeaveTheFolder(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "run")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, rowsFile), encode(nastyRun()), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir); err != nil {
		t.Fatal(err)
	}
	page := string(readFile(t, dir, readmeFile))
	checkTables(t, page)
	outside := withoutFences(page)
	for _, bad := range []string{"<script", "\n# owned", "\n```", "\x00", "\u202e"} {
		if strings.Contains(outside, bad) {
			t.Errorf("the page holds %q:\n%s", bad, outside)
		}
	}
	if opened, closed := strings.Count(outside, "<details>"), strings.Count(outside, "</details>"); opened != closed {
		t.Errorf("%d <details> and %d </details>", opened, closed)
	}
	safe := regexp.MustCompile(`^(run|run/README\.md|run/rows\.jsonl|run/summary\.json|run/charts(/[a-z0-9-]+\.(svg|png))?|\.)$`)
	charts := 0
	if err := fs.WalkDir(os.DirFS(parent), ".", func(path string, _ fs.DirEntry, err error) error {
		if !safe.MatchString(path) {
			t.Errorf("wrote %q", path)
		}
		if strings.HasSuffix(path, ".svg") {
			charts++
			checkSVG(t, path, readFile(t, parent, path))
		}
		return err
	}); err != nil || charts != 2 {
		t.Errorf("%d charts, %v; want 2", charts, err)
	}
}

// withoutFences is a page without its code blocks.
func withoutFences(page string) string {
	var out strings.Builder
	fence := ""
	for line := range strings.Lines(page) {
		bare := strings.TrimRight(line, "\n")
		switch {
		case fence == "" && strings.HasPrefix(bare, "```") && strings.Trim(bare, "`") == "":
			fence = bare
		case fence == "":
			out.WriteString(line)
		case bare == fence:
			fence = ""
		}
	}
	return out.String()
}

// checkTables holds every row of a table to have as many cells as its head.
func checkTables(t testing.TB, page string) {
	t.Helper()
	cells := 0
	for line := range strings.Lines(withoutFences(page)) {
		if !strings.HasPrefix(line, "|") {
			cells = 0
			continue
		}
		n := strings.Count(line, "|")
		if cells != 0 && n != cells {
			t.Errorf("a row of %d bars in a table of %d: %s", n, cells, line)
		}
		cells = n
	}
}

func TestMicroBenchmarksAreMediansWithoutTheCores(t *testing.T) {
	const out = "goos: linux\npkg: example.com/a\nBenchmarkX/size=1-2 \t 100 \t 30.0 ns/op \t 8 B/op \t 1 allocs/op\n" +
		"BenchmarkX/size=1-2 100 10.0 ns/op 8 B/op 1 allocs/op\nBenchmarkX/size=1-2 100 20.0 ns/op 16 B/op 3 allocs/op\nPASS\n" +
		"pkg: example.com/b\nBenchmarkX/size=1-2 100 5 ns/op\nFAIL\n"
	got, err := parseMicro(strings.NewReader(out))
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v; want two benchmarks", got, err)
	}
	first := got[0]
	if first.pkg != "example.com/a" || first.name != "X/size=1" || first.bOp.Median != 8 || first.allocsOp.Max != 3 || first.nsOp.N != 3 {
		t.Errorf("got %+v", first)
	}
	if text := first.nsOp.text(nanoDigits(first.nsOp.Median)); text != "20.0 [10.0..30.0]" {
		t.Errorf("ns/op is %q, want 20.0 [10.0..30.0]", text)
	}
}
