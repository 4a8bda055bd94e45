package report

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// microResult is one Go benchmark over the runs of -count.
type microResult struct {
	pkg, name           string
	nsOp, bOp, allocsOp Spread
}

// readMicro reads a folder's micro.txt. Without one there are no results.
func readMicro(dir string) ([]microResult, error) {
	f, err := os.Open(filepath.Join(dir, microFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMicro(f)
}

// parseMicro reads the output of `go test -bench`. Lines that are no benchmark's are passed over.
func parseMicro(from io.Reader) ([]microResult, error) {
	type benchmark struct{ pkg, name string }
	type runs struct{ ns, bytes, allocs []float64 }
	var order []benchmark
	found := map[benchmark]*runs{}
	lines := benchfmt.NewReader(from, microFile)
	for lines.Scan() {
		result, ok := lines.Result().(*benchfmt.Result)
		if !ok {
			continue // a syntax error or a unit's description
		}
		b := benchmark{result.GetConfig("pkg"), benchmarkName(result.Name)}
		if found[b] == nil {
			found[b] = &runs{}
			order = append(order, b)
		}
		r := found[b]
		if v, ok := result.Value("sec/op"); ok { // benchfmt's form of ns/op
			r.ns = append(r.ns, v*1e9)
		}
		if v, ok := result.Value("B/op"); ok {
			r.bytes = append(r.bytes, v)
		}
		if v, ok := result.Value("allocs/op"); ok {
			r.allocs = append(r.allocs, v)
		}
	}
	var results []microResult
	for _, b := range order {
		r := found[b]
		results = append(results, microResult{b.pkg, b.name, spreadOf(r.ns), spreadOf(r.bytes), spreadOf(r.allocs)})
	}
	return results, lines.Err()
}

// benchmarkName is a benchmark's name without the GOMAXPROCS at its end.
func benchmarkName(name benchfmt.Name) string {
	base, parts := name.Parts()
	full := string(base)
	for _, part := range parts {
		if !strings.HasPrefix(string(part), "-") {
			full += string(part)
		}
	}
	return full
}

// writeMicro writes a folded table for each package.
func writeMicro(w io.Writer, results []microResult) {
	if len(results) == 0 {
		return
	}
	fmt.Fprintf(w, "## Micro-benchmarks\n\nMedians over runs [min..max], from `%s`. Compare two versions with benchstat, not by eye.\n\n", microFile)
	for len(results) > 0 {
		n := 1
		for n < len(results) && results[n].pkg == results[0].pkg {
			n++
		}
		var rows [][]string
		for _, r := range results[:n] {
			rows = append(rows, []string{escape(r.name), r.nsOp.text(nanoDigits(r.nsOp.Median)), r.bOp.text(0), r.allocsOp.text(0)})
		}
		fmt.Fprintf(w, "<details><summary>%s</summary>\n\n", html.Replace(plain(results[0].pkg, maxCell)))
		writeTable(w, []string{"Benchmark", "ns/op", "B/op", "allocs/op"}, 1, rows)
		fmt.Fprint(w, "</details>\n\n")
		results = results[n:]
	}
}

// nanoDigits gives about three digits that count.
func nanoDigits(ns float64) int {
	switch {
	case ns < 10:
		return 2
	case ns < 100:
		return 1
	default:
		return 0
	}
}
