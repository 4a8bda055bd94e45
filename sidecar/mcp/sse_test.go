package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// readAll reads events until the error, copying them.
func readAll(r *EventReader) (events []Event, err error) {
	for {
		e, err := r.Next()
		if err != nil {
			return events, err
		}
		events = append(events, copyEvent(e))
	}
}

func copyEvent(e Event) Event {
	return Event{
		ID: bytes.Clone(e.ID), HasID: e.HasID, Type: bytes.Clone(e.Type), Data: bytes.Clone(e.Data), Retry: e.Retry,
	}
}

// show is an event for comparing and printing: nil and empty slices are the same.
func show(events []Event) (s []string) {
	for _, e := range events {
		s = append(s, fmt.Sprintf("id=%q,%v type=%q data=%q retry=%v", e.ID, e.HasID, e.Type, e.Data, e.Retry))
	}
	return s
}

func TestEventReader(t *testing.T) {
	for _, row := range []struct {
		name, stream string
		want         []Event
	}{
		{"one event", "data: {}\n\n", []Event{{Data: []byte("{}")}}},
		{"CR alone", "data: a\r\rdata: b\r\r", []Event{{Data: []byte("a")}, {Data: []byte("b")}}},
		{"CRLF", "event: message\r\ndata: a\r\n\r\ndata: b\r\n\r\n", []Event{{Type: []byte("message"), Data: []byte("a")}, {Data: []byte("b")}}},
		{"all line ends mixed", "data: a\rdata: b\ndata: c\r\n\n\rdata: d\r\r\n", []Event{{Data: []byte("a\nb\nc")}, {Data: []byte("d")}}},
		{"several data lines", "data: {\ndata:\ndata:  \"a\":1\ndata\ndata:}\n\n", []Event{{Data: []byte("{\n\n \"a\":1\n\n}")}}},
		{"other fields between data lines", "data: a\nid: 5\nevent: x\ndata: b\n\n", []Event{{ID: []byte("5"), HasID: true, Type: []byte("x"), Data: []byte("a\nb")}}},
		{"comments", ": hello\n\n:\n: x\ndata: a\n: y\n\n: bye\n\n", []Event{{Data: []byte("a")}}},
		{"a byte order mark", "\ufeffdata: a\n\n\ufeffdata: b\n\ndata: c\n\n", []Event{{Data: []byte("a")}, {Data: []byte("c")}}},
		{"a priming event", "id: s3_0\ndata:\n\n", []Event{{ID: []byte("s3_0"), HasID: true}}},
		{"an id alone", "id: s3_0\n\n", []Event{{ID: []byte("s3_0"), HasID: true}}},
		{"an id that is empty", "id\ndata: a\n\n", []Event{{HasID: true, Data: []byte("a")}}},
		{"an id with NUL", "id: a\x00b\ndata: a\n\n", []Event{{Data: []byte("a")}}},
		{"the last id wins", "id: a\nid: b\n\n", []Event{{ID: []byte("b"), HasID: true}}},
		{"empty data", "data\n\n", []Event{{}}},
		{"a retry time", "retry: 2000\n\n", []Event{{Retry: 2 * time.Second}}},
		{"retry times that are none", "retry: -1\nretry: 1.5\nretry: 99999999999999999999\nretry: 9300000000000000\ndata: a\n\n", []Event{{Data: []byte("a")}}},
		{"a type alone", "event: ping\n\ndata: a\n\n", []Event{{Data: []byte("a")}}},
		{"unknown fields", "foo: 1\nData: 2\n data: 3\ndata : 4\n\ndata: a\n\n", []Event{{Data: []byte("a")}}},
		{"a colon in data", "data: a: b\n\n", []Event{{Data: []byte("a: b")}}},
		{"cut off before its blank line", "data: a\n\ndata: b\n", []Event{{Data: []byte("a")}}},
		{"cut off inside a line", "data: a\n\ndata: b", []Event{{Data: []byte("a")}}},
		{"nothing", "", nil},
	} {
		for chunks, wrap := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "data with error": iotest.DataErrReader,
		} {
			got, err := readAll(NewEventReader(wrap(strings.NewReader(row.stream)), 1<<20))
			if err != io.EOF || !reflect.DeepEqual(show(got), show(row.want)) {
				t.Errorf("%s (%s): %q: got %v, %v; want %v", row.name, chunks, row.stream, show(got), err, show(row.want))
			}
		}
	}
}

// askedTwice fails the test when it is read again after its text: an event must not wait for more than its blank line.
type askedTwice struct {
	t    *testing.T
	text string
}

func (r *askedTwice) Read(p []byte) (int, error) {
	if r.text == "" {
		r.t.Fatal("read on although the event was whole")
	}
	n := copy(p, r.text)
	r.text = r.text[n:]
	return n, nil
}

func TestAnEventIsReturnedOnceItsBlankLineIsThere(t *testing.T) {
	for _, stream := range []string{"data: a\n\n", "data: a\r\r", "data: a\r\n\r", "data: a\r\n\r\n", "data: a\n\n: more"} {
		e, err := NewEventReader(&askedTwice{t, stream}, 1<<20).Next()
		if err != nil || string(e.Data) != "a" {
			t.Errorf("%q: got %q, %v", stream, e.Data, err)
		}
	}
}

// L33: a line over 64 KiB ends nothing.
func TestALineOfFiveMebibytesIsRead(t *testing.T) {
	line := strings.Repeat("x", 5<<20)
	r := NewEventReader(strings.NewReader("data: a\n\ndata: "+line+"\n\ndata: b\n\n"), 6<<20)
	got, err := readAll(r)
	if err != io.EOF || len(got) != 3 || string(got[1].Data) != line || string(got[2].Data) != "b" {
		t.Fatalf("got %d events, %v", len(got), err)
	}
	if cap(r.buf) > eventBuffer {
		t.Errorf("a buffer of %d bytes is kept after a large event, want at most %d", cap(r.buf), eventBuffer)
	}
}

func TestAnEventAboveTheLimitEndsTheStream(t *testing.T) {
	for _, row := range []struct {
		name, stream string
		events       int
		want         error
	}{
		{"just fits", "data: 3456789\n\ndata: b\n\n", 2, io.EOF},
		{"a long line", "data: b\n\ndata: 34567890123\n\ndata: b\n\n", 1, ErrEventTooLarge},
		{"a long line that does not end", "data: b\n\n" + strings.Repeat("x", 100), 1, ErrEventTooLarge},
		{"many lines", "data: b\n\ndata: 3\ndata: 6\n\n", 1, ErrEventTooLarge},
		{"a long comment", ":" + strings.Repeat("x", 100) + "\n", 0, ErrEventTooLarge},
		{"any number of comments", strings.Repeat(": x\n", 100) + "data: b\n\n", 1, io.EOF},
	} {
		for chunks, wrap := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader} {
			r := NewEventReader(wrap(strings.NewReader(row.stream)), 14)
			got, err := readAll(r)
			if err != row.want || len(got) != row.events {
				t.Errorf("%s (%s): got %v, %v; want %d events, %v", row.name, chunks, show(got), err, row.events, row.want)
			}
			if _, again := r.Next(); again != row.want {
				t.Errorf("%s (%s): a call after the end: got %v, want %v", row.name, chunks, again, row.want)
			}
		}
	}
}

// TestARestingReaderHoldsNothing: it waits before each read, without a buffer unless it has read some of an event. One that
// polls waits at the same places, but only when it is told to.
func TestARestingReaderHoldsNothing(t *testing.T) {
	for _, polls := range []bool{false, true} {
		pieces := []string{"data: 1\n\n", ": comment\n\n", "data: 2\r\n\r", "\nda", "ta: 3\n\ndata: 4\n\n"}
		next, waits, got, may := 0, []int(nil), "", !polls
		r := NewEventReader(readerFunc(func(p []byte) (int, error) {
			if next == len(pieces) {
				return 0, io.EOF
			}
			next++
			return copy(p, pieces[next-1]), nil
		}), 1<<20)
		r.Poll(polls)
		r.Rest(func() {
			waits = append(waits, next)
			if r.buf != nil || !may {
				t.Errorf("polls %v: a buffer of %d bytes while it waits for piece %d; want none, and no wait unasked", polls, cap(r.buf), next)
			}
		}, func() bool { return false })
		for {
			e, err := r.Next()
			if err == ErrIdle && polls {
				may = true
				r.Await()
				may = false
				continue
			}
			if err != nil {
				break
			}
			got += string(e.Data)
		}
		if want := []int{0, 1, 2, 3, 5}; got != "1234" || !slices.Equal(waits, want) {
			t.Errorf("polls %v: got events %q and waits before the pieces %v, want 1234 and %v", polls, got, waits, want)
		}
	}
}

// TestAPollingReaderReadsWhatIsReady: it is not told to wait for that.
func TestAPollingReaderReadsWhatIsReady(t *testing.T) {
	left := []string{": comment\n\n", "data: 1\n\n"}
	r := NewEventReader(readerFunc(func(p []byte) (int, error) {
		piece := left[0]
		left = left[1:]
		return copy(p, piece), nil
	}), 1<<20)
	r.Poll(true)
	r.Rest(func() { t.Error("it waits") }, func() bool { return len(left) > 0 })
	if e, err := r.Next(); string(e.Data) != "1" || err != nil {
		t.Errorf("got %q, %v, want event 1", e.Data, err)
	}
	if e, err := r.Next(); err != ErrIdle {
		t.Errorf("got %q, %v, want %v", e.Data, err, ErrIdle)
	}
}

func TestLargeEventsShareTheirMemory(t *testing.T) {
	const events, size = 100, 100 << 10
	stream := strings.Repeat("data: "+strings.Repeat("x", size)+"\n\n", events)
	r := NewEventReader(strings.NewReader(stream), 1<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range events {
		if e, err := r.Next(); err != nil || len(e.Data) != size {
			t.Fatalf("event %d: %d bytes, %v", i, len(e.Data), err)
		}
	}
	runtime.ReadMemStats(&after)
	// The race detector drops a quarter of what is kept.
	if took := after.TotalAlloc - before.TotalAlloc; took > events*size*3/2 {
		t.Errorf("%d events of %d bytes took %d bytes of new memory", events, size, took)
	}
}

func TestEventsWithLongDataAreWrittenInParts(t *testing.T) {
	for _, e := range []Event{
		{Data: []byte("{}")},
		{ID: []byte("7_1"), HasID: true, Type: []byte("message"), Retry: time.Second, Data: []byte("{}")},
		{Data: []byte("{\n}")}, {Data: []byte("{\r}")}, {ID: []byte("7_1"), HasID: true},
	} {
		start, ok := AppendEventStart([]byte(": before\n"), e)
		if want := len(e.Data) == 2; ok != want {
			t.Errorf("%q: ok %v, want %v", e.Data, ok, want)
		}
		got, want := string(start)+string(e.Data)+EventEnd, ": before\n"+string(AppendEvent(nil, e))
		if ok && got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if !ok && string(start) != ": before\n" {
			t.Errorf("%q: appended %q although it is not ok", e.Data, start)
		}
	}
}

func TestTheBufferOfALargeEventIsGivenBackAtOnce(t *testing.T) {
	large := "data: " + strings.Repeat("x", 5<<20) + "\n\n"
	for _, behind := range []string{"data: the next", "data: the next\n\n"} { // what was read together with the large event
		in, out := io.Pipe()
		go func() {
			_, _ = io.WriteString(out, large+behind)
			_, _ = io.WriteString(out, strings.Repeat(" ", 10)+"\n\ndata: small\n\n")
			out.Close()
		}()
		r := NewEventReader(in, 16<<20)
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		if c := cap(r.buf); c > 16<<20+eventBuffer {
			t.Errorf("a buffer of %d bytes, want no more than the limit and a read", c)
		}
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		if c := cap(r.buf); c > eventBuffer {
			t.Errorf("with %q behind the event, a buffer of %d bytes is kept, want at most %d", behind, c, eventBuffer)
		}
	}
}

func TestEventsBeforeAnErrorAreReturnedFirst(t *testing.T) {
	broken := errors.New("broken")
	r := NewEventReader(io.MultiReader(strings.NewReader("data: a\n\ndata: b\n\ndata:"), iotest.ErrReader(broken)), 1<<10)
	got, err := readAll(r)
	if err != broken || len(got) != 2 {
		t.Errorf("got %v, %v; want two events and %v", show(got), err, broken)
	}
	r.Reset(strings.NewReader("\ufeffdata: c\n\n"))
	if got, err := readAll(r); err != io.EOF || len(got) != 1 || string(got[0].Data) != "c" {
		t.Errorf("after Reset: got %v, %v; want c", show(got), err)
	}
}

func TestAReaderThatGivesNothingIsGivenUp(t *testing.T) {
	r := NewEventReader(readerFunc(func([]byte) (int, error) { return 0, nil }), 1<<10)
	if _, err := r.Next(); err != io.ErrNoProgress {
		t.Errorf("got %v, want %v", err, io.ErrNoProgress)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestAppendEvent(t *testing.T) {
	for _, row := range []struct {
		name  string
		event Event
		want  string
	}{
		{"data", Event{Data: []byte("{}")}, "data: {}\n\n"},
		{"all fields", Event{ID: []byte("1"), HasID: true, Type: []byte("message"), Data: []byte("{}"), Retry: 1500 * time.Millisecond}, "id: 1\nevent: message\nretry: 1500\ndata: {}\n\n"},
		{"priming", Event{ID: []byte("s3_0"), HasID: true}, "id: s3_0\ndata: \n\n"},
		{"retry alone", Event{Retry: 2 * time.Second}, "retry: 2000\n\n"},
		{"an id that is not meant", Event{ID: []byte("1"), Data: []byte("{}")}, "data: {}\n\n"},
		{"lines of data", Event{Data: []byte("a\nb\r\nc\rd\n")}, "data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n"},
		{"leading space", Event{Data: []byte(" a")}, "data:  a\n\n"},
		{"an id that injects", Event{ID: []byte("1\ndata: evil"), HasID: true, Data: []byte("{}")}, "data: {}\n\n"},
		{"an id with NUL", Event{ID: []byte("1\x00"), HasID: true}, "data: \n\n"},
		{"a type that injects", Event{Type: []byte("x\r\rdata: evil"), Data: []byte("{}")}, "data: {}\n\n"},
	} {
		if got := string(AppendEvent(nil, row.event)); got != row.want {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
	}
}

// referenceEvents reads a whole stream the plain way.
func referenceEvents(stream string) (events []Event) {
	stream = strings.TrimPrefix(stream, "\ufeff")
	stream = strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(stream, "\n")
	var e Event
	var data []string
	for _, line := range lines[:len(lines)-1] {
		if line == "" {
			if e.Data = []byte(strings.Join(data, "\n")); data != nil || e.HasID || e.Retry > 0 {
				events = append(events, e)
			}
			e, data = Event{}, nil
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case name == "data":
			data = append(data, value)
		case name == "event":
			e.Type = []byte(value)
		case name == "id" && !strings.Contains(value, "\x00"):
			e.ID, e.HasID = []byte(value), true
		case name == "retry":
			e.Retry = retryTime([]byte(value))
		}
	}
	return events
}

// FuzzEventReader compares with the reference, in chunks of any size, and reads back what AppendEvent writes.
func FuzzEventReader(f *testing.F) {
	for _, seed := range []string{
		"id: 1\nevent: message\ndata: {}\n\n", "event: message\nid: 1\ndata: {}\n\ndata: {\"a\":1}\n\nid: 2\ndata:\n\ndata: {}\n\n", "data: a\r\rdata: b\r\n\r\n",
		"id: 1\r\nevent: message\r\ndata: {}\r\n\r\ndata: {\"a\":1}\r\n\r\n", "id: 5\r\rdata: {}\ndata: {}\n\n", "data: {}\r\revent: x\n\n", "\ufeffdata\n\n: c\nretry: 10\n\n", "data: a\nid: 2\ndata: b\n\nx",
	} {
		f.Add([]byte(seed), uint8(3), uint8(12))
	}
	f.Fuzz(func(t *testing.T, stream []byte, size, limit uint8) {
		got, err := readAll(NewEventReader(bytes.NewReader(stream), 1<<20))
		if want := referenceEvents(string(stream)); err != io.EOF || !reflect.DeepEqual(show(got), show(want)) {
			t.Errorf("%q: got %v, %v; want %v", stream, show(got), err, show(want))
		}
		for _, max := range []int{1 << 20, int(limit)} {
			whole, wholeErr := readAll(NewEventReader(bytes.NewReader(stream), max))
			parts, partsErr := readAll(NewEventReader(chunked(stream, int(size)+1), max))
			if wholeErr != partsErr || !reflect.DeepEqual(show(whole), show(parts)) {
				t.Errorf("%q, limit %d: whole %v, %v; in chunks of %d %v, %v", stream, max, show(whole), wholeErr, int(size)+1, show(parts), partsErr)
			}
		}
		if asked, err := readAsking(t, stream, int(size)+1); err != io.EOF || !reflect.DeepEqual(show(asked), show(got)) {
			t.Errorf("%q, asked before each: got %v, %v; want %v", stream, show(asked), err, show(got))
		}
		var wire []byte
		for _, e := range got {
			wire = AppendEvent(wire, e)
		}
		for i := range got {
			if len(got[i].Data) == 0 && !got[i].HasID && got[i].Retry == 0 {
				return // an event of nothing is not written
			}
			got[i].Retry = got[i].Retry.Truncate(time.Millisecond)
		}
		if again, err := readAll(NewEventReader(bytes.NewReader(wire), 1<<20)); err != io.EOF || !reflect.DeepEqual(show(again), show(got)) {
			t.Errorf("%q written as %q: got %v, %v; want %v", stream, wire, show(again), err, show(got))
		}
	})
}

func TestPlainEventsThatCameAreReady(t *testing.T) {
	const lines, other = "data: {}\n\n", ": ping\n"
	for event, want := range map[string]bool{
		lines:                                true,
		"event: message\n" + lines:           true,
		"id: 7_12\nevent: message\n" + lines: true,
		"event: message\nid: 7_12\n" + lines: true,
		"event: endpoint\n" + lines:          false,
		"id: 7_12\n\n" + lines:               false, // an event without data comes first
		"data: {\ndata: }\n\n":               false,
		"data: text\n\n":                     false,
		"data: {}\n":                         false, // the end is not there
		"data: {}":                           false,
		"\n" + lines:                         false,
		other + lines:                        false,
		"retry: 10\n" + lines:                false,
		"id: 7\revent: endpoint\r\r" + lines: false,
	} {
		for _, end := range []string{"\n", "\r\n"} {
			in := strings.ReplaceAll(event, "\n", end)
			e := NewEventReader(strings.NewReader(lines+in), 1<<20)
			if _, err := e.Next(); err != nil { // which reads both
				t.Fatal(err)
			}
			if got := e.Ready(func() bool { return false }); got != want {
				t.Errorf("%q: ready is %v, want %v", in, got, want)
			}
		}
	}
}

// An event's last LF may come with the event behind it.
func TestAnEventBehindHalfALineEndIsReady(t *testing.T) {
	const event = "data: {}\r\n\r\n"
	e := NewEventReader(io.MultiReader(strings.NewReader(event[:len(event)-1]), strings.NewReader("\n"+event)), 1<<20)
	if _, err := e.Next(); err != nil {
		t.Fatal(err)
	}
	if e.Ready(func() bool { return false }) {
		t.Error("ready though nothing more has come")
	}
	if !e.Ready(func() bool { return true }) {
		t.Error("not ready though the event has come")
	}
	if event, err := e.Next(); err != nil || string(event.Data) != "{}" {
		t.Errorf("got %q, %v; want {}", event.Data, err)
	}
}

// readAsking reads all events and asks before each, with a byte more or less to be had each time. What is said to be
// ready must be had without a read.
func readAsking(t *testing.T, stream []byte, size int) (all []Event, err error) {
	source, reads, asked := chunked(stream, size), 0, 0
	e := NewEventReader(readerFunc(func(p []byte) (int, error) { reads++; return source.Read(p) }), 1<<20)
	for {
		ready := e.Ready(func() bool { asked++; return asked%3 != 0 })
		before := reads
		event, err := e.Next()
		if err != nil {
			return all, err
		}
		if ready && (reads != before || len(event.Data) == 0) {
			t.Errorf("%q: event %q was said to be ready; Next made %d reads for it", stream, event.Data, reads-before)
		}
		all = append(all, copyEvent(event))
	}
}

// chunked reads at most size bytes at once.
func chunked(data []byte, size int) io.Reader {
	r := bytes.NewReader(data)
	return readerFunc(func(p []byte) (int, error) { return r.Read(p[:min(size, len(p))]) })
}

func TestEventReaderDoesNotAllocatePerEvent(t *testing.T) {
	stream := strings.Repeat("event: message\nid: 7_12\ndata: "+statelessCall+"\n\n", 300)
	r := NewEventReader(strings.NewReader(stream), 1<<20)
	if n := testing.AllocsPerRun(200, func() {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for an event, want 0", n)
	}
}

func BenchmarkEventReader(b *testing.B) {
	for _, size := range []int{100, 4 << 10, 1 << 20} {
		event := "event: message\ndata: " + strings.Repeat("x", size) + "\n\n"
		stream := []byte(strings.Repeat(event, max(1, (1<<20)/size)))
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			source := bytes.NewReader(stream)
			r := NewEventReader(source, 2<<20)
			b.SetBytes(int64(len(stream)))
			b.ReportAllocs()
			for b.Loop() {
				source.Reset(stream)
				r.Reset(source)
				for {
					if _, err := r.Next(); err != nil {
						break
					}
				}
			}
		})
	}
}
