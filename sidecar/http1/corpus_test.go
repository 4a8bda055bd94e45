package http1

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what the sidecar's servers make of testdata/requests into it")

// example is what a client sends on one connection: a case of testdata/requests, whose README.md says how it is written.
type example struct {
	name string
	raw  []byte
	want []string // what the sidecar makes of it, as outcome.lines tells
}

// corpusFile is a file of examples. text is its part without what the sidecar makes of them.
type corpusFile struct {
	path     string
	examples []*example
	text     [][]string // text[0] comes before the first example, text[i] is that of examples[i-1]
}

// readCorpus reads all examples, in the files' order.
func readCorpus(tb testing.TB) []*corpusFile {
	tb.Helper()
	paths, err := filepath.Glob("testdata/requests/*.txt")
	if err != nil || len(paths) == 0 {
		tb.Fatalf("testdata/requests has %d files (%v)", len(paths), err)
	}
	var files []*corpusFile
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		f, err := parseCorpus(path, string(b))
		if err != nil {
			tb.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// corpus is every example.
func corpus(tb testing.TB) (all []*example) {
	tb.Helper()
	for _, f := range readCorpus(tb) {
		all = append(all, f.examples...)
	}
	return all
}

func parseCorpus(path, text string) (*corpusFile, error) {
	f := &corpusFile{path: path, text: [][]string{nil}}
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if name, ok := strings.CutPrefix(line, "== "); ok {
			f.examples = append(f.examples, &example{name: name})
			f.text = append(f.text, nil)
		}
		if len(f.examples) > 0 {
			if err := f.examples[len(f.examples)-1].line(line); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, i+1, err)
			}
		}
		if !strings.HasPrefix(line, "< ") {
			f.text[len(f.text)-1] = append(f.text[len(f.text)-1], line)
		}
	}
	return f, nil
}

// line takes one line of an example's text.
func (e *example) line(line string) error {
	kind, rest, _ := strings.Cut(line, " ")
	if kind == "<" {
		e.want = append(e.want, rest)
	}
	if !strings.HasPrefix(kind, ">") {
		return nil
	}
	times := 1
	if count, ok := strings.CutPrefix(kind, ">*"); ok {
		var err error
		if times, err = strconv.Atoi(count); err != nil {
			return err
		}
	}
	bytesOf, err := strconv.Unquote(`"` + strings.ReplaceAll(rest, `"`, `\"`) + `"`)
	e.raw = append(e.raw, strings.Repeat(bytesOf, times)...)
	return err
}

// write puts what the sidecar makes of the examples behind each.
func (f *corpusFile) write(tb testing.TB) {
	var out bytes.Buffer
	for i, lines := range f.text {
		for len(lines) > 0 && lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		lines = slices.Clone(lines)
		if i > 0 {
			for _, l := range f.examples[i-1].want {
				lines = append(lines, "< "+l)
			}
		}
		if i > 0 {
			out.WriteByte('\n')
		}
		fmt.Fprintln(&out, strings.Join(lines, "\n"))
	}
	if err := os.WriteFile(f.path, out.Bytes(), 0o644); err != nil {
		tb.Fatal(err)
	}
}

func TestTheCorpusIsRead(t *testing.T) {
	f, err := parseCorpus("x", "# head\n\n== one\n# why\n> POST / \"\\r\\n\n>*3 \\x00a\n< 400\n\n== two\n< none\n")
	if err != nil {
		t.Fatal(err)
	}
	one := f.examples[0]
	if got, want := string(one.raw), "POST / \"\r\n\x00a\x00a\x00a"; len(f.examples) != 2 || one.name != "one" || got != want || len(one.want) != 1 {
		t.Errorf("got %d examples, the first %+v, want 2 and %q", len(f.examples), one, want)
	}
	names := map[string]bool{}
	for _, e := range corpus(t) {
		if names[e.name] || len(e.want) == 0 {
			t.Errorf("example %q: twice, or without what the sidecar makes of it", e.name)
		}
		names[e.name] = true
	}
}
