package wire

import (
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// readEvents reads a stream's events.
func readEvents(src io.Reader) (events []string, err error) {
	var e Events
	e.Reset(src)
	for {
		data, err := e.Next()
		if err != nil {
			return events, err
		}
		events = append(events, string(data))
	}
}

func TestEventsAreReadAsTheStandardSays(t *testing.T) {
	long := strings.Repeat("x", 3*eventBuffer)
	for name, tc := range map[string]struct {
		in   string
		want []string
	}{
		"one":                         {"event: message\ndata: a\n\n", []string{"a"}},
		"without a space":             {"data:a\n\n", []string{"a"}},
		"only one space is dropped":   {"data:  a\n\n", []string{" a"}},
		"lines are joined":            {"data: a\ndata: b\ndata:\n\n", []string{"a\nb\n"}},
		"any end of line":             {"data: a\r\n\r\ndata: b\r\rdata: c\n\r\n", []string{"a", "b", "c"}},
		"comments and other fields":   {": hello\n\nid: 1\nretry: 5\n\ndata: a\nid: 2\n\n", []string{"a"}},
		"an event without data":       {"id: 1\ndata:\n\ndata: a\n\n", []string{"a"}},
		"one that is cut short":       {"data: a\n\ndata: b\n", []string{"a"}},
		"a field without a colon":     {"data\n\ndata: a\n\n", []string{"a"}},
		"a line longer than a buffer": {"data: " + long + "\n\ndata: b\n\n", []string{long, "b"}},
		"nothing":                     {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			for how, src := range map[string]io.Reader{
				"whole": strings.NewReader(tc.in), "byte by byte": iotest.OneByteReader(strings.NewReader(tc.in)),
			} {
				if got, err := readEvents(src); err != io.EOF || !slices.Equal(got, tc.want) {
					t.Errorf("events of %.60q, read %s: %.60q, %v; want %.60q", tc.in, how, got, err, tc.want)
				}
			}
		})
	}
}

// FuzzEvents holds that events do not depend on how the network cut them.
func FuzzEvents(f *testing.F) {
	for _, s := range []string{"data: a\n\n", "data: a\r\ndata\r\n\r\n", "\r\r\n\ndata:x\r\r", ":\n\ndata: a\n\ndata: b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		whole, err := readEvents(strings.NewReader(s))
		parts, partsErr := readEvents(iotest.OneByteReader(strings.NewReader(s)))
		if err != io.EOF || partsErr != io.EOF || !slices.Equal(whole, parts) {
			t.Errorf("events of %q: whole %q, %v; byte by byte %q, %v", s, whole, err, parts, partsErr)
		}
	})
}
