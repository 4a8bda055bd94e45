package report

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

func TestAnInterruptedRunIsReadUpToItsLastLine(t *testing.T) {
	whole := bytes.TrimRight(readFile(t, before, rowsFile), "\n")
	last := bytes.LastIndexByte(whole, '\n') + 1
	all, err := read(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []int{last + 1, last + 20, len(whole) - 1} {
		r, err := read(bytes.NewReader(whole[:cut]))
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if r.valid != all.valid-1 || len(r.notes) != 1 || !strings.Contains(r.notes[0], "interrupted") {
			t.Errorf("cut at %d: %d rows, notes %q; want %d and a note", cut, r.valid, r.notes, all.valid-1)
		}
	}
}

func TestWhatCannotBeReadIsAnError(t *testing.T) {
	good := `{"kind":"scenario","scenario":{"name":"s"}}` + "\n" + `{"kind":"row","row":{"scenario":"s","subject":"x"}}` + "\n"
	for name, c := range map[string]struct{ in, want string }{
		"empty":                     {"", "no rows"},
		"only an environment":       {`{"kind":"environment","environment":{}}`, "no rows"},
		"a broken line in between":  {good + "{\n" + good, "line 3"},
		"a number out of range":     {good + `{"kind":"row","row":{"values":{"x":1e999}}}` + "\n" + good, "line 3"},
		"another type than it has":  {`{"kind":"row","row":7}` + "\n" + good, "line 1"},
		"a line that does not end":  {strings.Repeat("x", maxLine+1), "too long"},
		"a first line cut, no rows": {`{"kind":"envi`, "no rows"},
	} {
		if _, err := read(strings.NewReader(c.in)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
	empty := t.TempDir()
	for name, err := range map[string]error{
		"Write": Write(empty), "AppendHistory": AppendHistory(filepath.Join(empty, "H.md"), empty), "Compare": Compare(&bytes.Buffer{}, empty, before),
	} {
		if err == nil || !strings.Contains(err.Error(), rowsFile) {
			t.Errorf("%s of a folder without rows: %v, want an error that names %s", name, err, rowsFile)
		}
	}
	if left, _ := os.ReadDir(empty); len(left) != 0 {
		t.Errorf("they left %v", left)
	}
}

func TestWhatIsNotKnownIsLeftOutAndNoted(t *testing.T) {
	r, err := read(strings.NewReader(`{"kind":"weather","weather":{"rain":true}}
{"kind":"environment","environment":{"machine":"m","phase":"moon"}}
{"kind":"environment","environment":{"machine":"n"}}
{"kind":"row","row":{"scenario":"later","subject":"x"}}
{"kind":"scenario","scenario":{"name":"s","figures":[{"name":"f"}],"extra":1}}

{"kind":"row","row":{"scenario":"s","subject":"x","case":{"new":"1"},"values":{"f":3,"g":4}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	if r.env.Machine != "m" || r.valid != 1 || len(r.tables) != 1 || r.tables[0].fields[0] != "new" {
		t.Errorf("got %+v of %q, want one row of one table with the field it brought", r.tables, r.env.Machine)
	}
	if len(r.notes) != 3 {
		t.Errorf("notes %q, want of two environments, a row before its scenario, and a line of another kind", r.notes)
	}
}

func TestOddValuesStillDraw(t *testing.T) {
	for name, values := range map[string][]float64{
		"zero": {0, 0}, "negative": {-3, 2}, "equal": {5, 5}, "tiny": {1e-300, 5e-324}, "small": {1e-11, 2e-11}, "large": {9e11, 1e11}, "one": {1},
	} {
		for _, kind := range []string{"bar", "line"} {
			for _, log := range []bool{false, true} {
				tab := &table{Scenario: record.Scenario{Fields: []string{"x"}, Figures: []record.Figure{{Name: "f"}}}, values: map[point][]float64{}}
				for i, v := range values {
					tab.rows = append(tab.rows, record.Row{Subject: "s", Case: map[string]string{"x": []string{"0", "1e11"}[i]}, Values: map[string]float64{"f": v}})
				}
				tab.index()
				d, err := newChart(tab, record.Chart{Kind: kind, X: "x", Y: "f", Series: "subject", LogX: log, LogY: log})
				if err != nil {
					t.Fatalf("%s, %s, log %v: %v", name, kind, log, err)
				}
				svg := paintSVG(t, d)
				if bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
					t.Errorf("%s, %s, log %v: NaN or Inf in the picture", name, kind, log)
				}
			}
		}
	}
}

func paintSVG(t testing.TB, d *chart) []byte {
	t.Helper()
	p, legend, err := d.plot()
	if err != nil {
		t.Fatal(err)
	}
	c := vgsvg.New(chartWidth, chartHeight)
	d.paint(p, legend, draw.New(c))
	var out bytes.Buffer
	if _, err := c.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestAChartThatNobodyCouldReadIsNotDrawn(t *testing.T) {
	tab := &table{Scenario: record.Scenario{Fields: []string{"x"}, Figures: []record.Figure{{Name: "f"}}}, values: map[point][]float64{}}
	for i := range mostCategories + 1 {
		tab.rows = append(tab.rows, record.Row{Subject: string(rune('a' + i)), Case: map[string]string{"x": "1"}, Values: map[string]float64{"f": 1e13}})
	}
	tab.index()
	for want, c := range map[string]record.Chart{
		"series":    {X: "x", Y: "f", Series: "subject"},
		"values of": {X: "subject", Y: "f"},
		"no values": {X: "x", Y: "g"},
		"1e+13":     {X: "x", Y: "f"},
	} {
		if _, err := newChart(tab, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error with %q", c, err, want)
		}
	}
}

// FuzzRead holds that no file of rows breaks the reader, the page's tables or the charts.
func FuzzRead(f *testing.F) {
	f.Add(encode(nastyRun()))
	f.Add(encode(exampleSessions(rand.New(rand.NewPCG(1, 1)))))
	f.Add([]byte(`{"kind":"row","row":{"values":{"x":1e308}}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := read(bytes.NewReader(in))
		if err != nil {
			return
		}
		var page strings.Builder
		writePage(&page, r, map[string][]picture{}, nil)
		checkTables(t, page.String())
		if _, err := summarise(r); err != nil {
			t.Fatal(err)
		}
		for _, tab := range r.tables {
			for _, c := range tab.Charts[:min(len(tab.Charts), 4)] {
				if d, err := newChart(tab, c); err == nil {
					paintSVG(t, d)
				}
			}
		}
	})
}

// FuzzMicro holds that no output of go test breaks its reader.
func FuzzMicro(f *testing.F) {
	f.Add(readFile(f, before, microFile))
	f.Add([]byte("Unit ns/op better=lower\nBenchmark/\t1 NaN ns/op\npkg: |\nBenchmarkX 1 1e999 ns/op"))
	f.Fuzz(func(t *testing.T, in []byte) {
		results, err := parseMicro(bytes.NewReader(in))
		if err != nil {
			return
		}
		var page strings.Builder
		writeMicro(&page, results)
		checkTables(t, page.String())
	})
}

func TestThePageSaysHowTheRunEnded(t *testing.T) {
	rows := `{"kind":"scenario","scenario":{"name":"s"}}` + "\n" + `{"kind":"row","row":{"scenario":"s","subject":"x"}}` + "\n"
	for _, tc := range []struct{ last, want, never string }{
		{"", "**Rows:** 1 count, 0 were discarded.", "not valid"},
		{`{"kind":"outcome","outcome":{"again":2,"noisy":0,"failed":0}}`,
			"0 were discarded (2 because of noise, and measured again). 0 stayed noisy to the last try, 0 failed.", "not valid"},
		{`{"kind":"outcome","outcome":{"problem":"3 of 4 rows stayed noisy | x","again":4,"noisy":3,"failed":0}}`,
			`> **Note.** This run is not valid: 3 of 4 rows stayed noisy &#124; x.`, "does not know"},
	} {
		r, err := read(strings.NewReader(rows + tc.last))
		if err != nil {
			t.Fatal(err)
		}
		var page strings.Builder
		writePage(&page, r, nil, nil)
		if got := page.String(); !strings.Contains(got, tc.want) || strings.Contains(got, tc.never) {
			t.Errorf("after the outcome %s the page is\n%s\nwant %q in it, and not %q", tc.last, got, tc.want, tc.never)
		}
	}
}
