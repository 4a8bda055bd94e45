package mcp

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"time"
)

// Event is one server-sent event (WHATWG HTML, 9.2, "Server-sent events").
type Event struct {
	ID    []byte
	HasID bool // an id that is present and empty takes the last one back
	Type  []byte
	// Data is without line prefixes; empty in a priming event, which only tells its ID (2025-11-25, basic/transports).
	Data  []byte
	Retry time.Duration // how long to wait before reconnecting; 0 for none
}

// ErrEventTooLarge is an event above the reader's limit. The stream cannot be read on.
var ErrEventTooLarge = errors.New("a server-sent event above the size limit")

// ErrIdle is that nothing of an event is there yet (EventReader.Poll).
var ErrIdle = errors.New("no server-sent event has begun")

const (
	eventBuffer = 4 << 10 // bytes of the first read, and of the buffer that a reader keeps between events
	quickGrowth = 8       // times, of a buffer up to slowGrowth bytes; a larger one doubles
	slowGrowth  = 256 << 10
)

// EventReader reads server-sent events. An event is returned once its blank line is there, without waiting for more
// bytes. Lines have no limit of their own. Not safe for concurrent use.
type EventReader struct {
	r        io.Reader
	maxEvent int
	wait     func()      // Rest's; nil for a reader that keeps its buffer
	ready    func() bool // Rest's
	polls    bool        // Poll's
	awaited  bool        // Await has waited, and nothing was read since
	err      error       // of r, or ErrEventTooLarge; returned when the buffer has no more events

	// buf holds what was read: [start:line] the lines of the event so far, [line:seen] a line whose end is not there
	// yet, [seen:] what was not looked at.
	buf               []byte
	start, line, seen int
	lf                int  // no '\n' in buf[seen:lf]; below seen when not known
	skipLF            bool // the last line ended with CR, whose LF may still come
	begun             bool // the first line was read

	event partial
}

// partial is the event that is being read.
type partial struct {
	begun    bool   // it has a field
	id, kind []byte // own memory, for data lines may be moved over theirs
	hasID    bool
	data     Span // in the event's lines
	hasData  bool
	retry    time.Duration
}

// NewEventReader reads events from r whose lines are of at most maxEvent bytes together.
func NewEventReader(r io.Reader, maxEvent int) *EventReader {
	e := &EventReader{maxEvent: maxEvent}
	e.Reset(r)
	return e
}

// Reset makes the reader read another stream from its beginning, with the same limit. Memory is kept unless a large
// event made it large.
func (e *EventReader) Reset(r io.Reader) {
	e.giveBack()
	*e = EventReader{r: r, maxEvent: e.maxEvent, polls: e.polls, buf: e.buf[:0], lf: -1, event: e.event}
	e.event.clear()
}

// Rest makes the reader hold no buffer while it waits for an event to begin: wait, which returns once r has something to
// read, is called before such a read until the next Reset. ready reports whether r can be read without waiting. It is for
// streams on which little happens.
func (e *EventReader) Rest(wait func(), ready func() bool) { e.wait, e.ready = wait, ready }

// Poll makes Next return ErrIdle, until Poll(false), where Rest's wait would be called: that is Await's to do.
func (e *EventReader) Poll(yes bool) { e.polls = yes }

// Await waits for an event to begin, without a buffer. The slices of the last event may not be used any more.
func (e *EventReader) Await() {
	if e.wait == nil || e.err != nil {
		return
	}
	if e.leaveEvent(); e.start == len(e.buf) {
		e.rest()
		e.awaited = true
	}
}

// rest waits without a buffer.
func (e *EventReader) rest() {
	keepBuffer(e.buf)
	e.buf = nil
	e.rebase()
	e.wait()
}

// Next returns the next event that has data, an id or a retry time. Its slices are valid until the following call. An
// event that the end of the stream cut off is dropped; then, and at the end, the error is the reader's: io.EOF as a rule.
func (e *EventReader) Next() (Event, error) {
	e.leaveEvent()
	e.event.clear()
	for e.err != ErrEventTooLarge {
		begin, end, ok := e.nextLine()
		switch {
		case !ok:
			if err := e.fill(); err != nil {
				return Event{}, err
			}
		case end-e.start > e.maxEvent:
			e.err = ErrEventTooLarge
		case begin < end:
			e.event.field(e.buf[e.start:], begin-e.start, end-e.start)
			if !e.event.begun {
				e.start = e.line // comments before an event are no part of it
			}
		case e.event.hasID, e.event.hasData, e.event.retry > 0:
			return e.event.finish(e.buf[e.start:]), nil
		default:
			e.start = e.line
			e.event.clear()
		}
	}
	return Event{}, e.err
}

// Ready reports whether Next is known to return an event with data without waiting. Only plain events are recognized:
// lines end with LF or CRLF, and the type is absent or message. more reports whether r can be read without waiting; while
// it does, Ready reads r, so the slices of the last event may not be used any more once it was called. An error of such a
// read is Next's to return.
func (e *EventReader) Ready(more func() bool) bool {
	for {
		e.finishCRLF()
		plain, known := plainEvent(e.buf[e.line:])
		if plain || known || e.err != nil || !more() {
			return plain
		}
		e.leaveEvent()
		e.lf = -1 // fill brings more behind what it stands for
		if e.fill() != nil {
			return false
		}
	}
}

// plainEvent reports whether b begins with a whole event that holds one line of data, which is a JSON object. It is not
// known when that takes more bytes to tell.
func plainEvent(b []byte) (plain, known bool) {
	for {
		end := bytes.IndexByte(b, '\n')
		if end < 0 {
			return false, false
		}
		line := bytes.TrimSuffix(b[:end], []byte("\r"))
		b = b[end+1:]
		switch {
		case len(line) == 0:
			return plain, true
		case bytes.HasPrefix(line, []byte("data: {")) && !plain:
			plain = true
		case string(line) == "event: message":
		case bytes.HasPrefix(line, []byte("id: ")) && bytes.IndexByte(line, '\r') < 0:
		default:
			return false, true
		}
	}
}

// nextLine takes a line off the buffer, buf[begin:end] without its end; not ok when the buffer has no whole line.
func (e *EventReader) nextLine() (begin, end int, ok bool) {
	e.finishCRLF()
	if end, ok = e.lineEnd(); !ok {
		return 0, 0, false
	}
	begin = e.line
	e.skipLF = e.buf[end] == '\r'
	e.line, e.seen = end+1, end+1
	if !e.begun && bytes.HasPrefix(e.buf[begin:end], []byte("\uFEFF")) {
		begin += len("\uFEFF")
	}
	e.begun = true
	return begin, end, true
}

// finishCRLF drops the LF that completes a CRLF, once it is there.
func (e *EventReader) finishCRLF() {
	if !e.skipLF || e.line == len(e.buf) {
		return
	}
	e.skipLF = false
	if e.buf[e.line] != '\n' {
		return
	}
	if e.start == e.line {
		e.start++
	}
	e.line++
	e.seen = max(e.seen, e.line)
}

// lineEnd finds the next CR or LF. It looks at no byte twice, whichever of the two a stream uses.
func (e *EventReader) lineEnd() (end int, ok bool) {
	if e.lf < e.seen {
		e.lf = len(e.buf)
		if i := bytes.IndexByte(e.buf[e.seen:], '\n'); i >= 0 {
			e.lf = e.seen + i
		}
	}
	if i := bytes.IndexByte(e.buf[e.seen:e.lf], '\r'); i >= 0 {
		return e.seen + i, true
	}
	if e.lf < len(e.buf) {
		return e.lf, true
	}
	e.seen, e.lf = len(e.buf), -1
	return 0, false
}

// fill reads more.
func (e *EventReader) fill() error {
	if len(e.buf)-e.start > e.maxEvent {
		e.err = ErrEventTooLarge
	}
	if e.err != nil {
		return e.err
	}
	if e.wait != nil && e.start == len(e.buf) && !e.awaited {
		switch {
		case !e.polls:
			e.rest()
		case !e.ready():
			return ErrIdle
		}
	}
	e.awaited = false
	e.makeRoom()
	for range 100 {
		n, err := e.r.Read(e.buf[len(e.buf):cap(e.buf)])
		e.buf, e.err = e.buf[:len(e.buf)+n], err
		switch {
		case n > 0:
			return nil // an error waits until the events before it were returned
		case err != nil:
			return err
		}
	}
	e.err = io.ErrNoProgress
	return e.err
}

// makeRoom leaves space to read into: by dropping what was returned, or with a larger buffer.
func (e *EventReader) makeRoom() {
	pending := e.buf[e.start:]
	switch {
	case len(pending) == 0:
		e.giveBack()
		if cap(e.buf) == 0 {
			e.buf = takeBuffer(eventBuffer)
		}
	case len(e.buf) < cap(e.buf):
		return
	case len(pending) <= cap(e.buf)/2:
		e.buf = append(e.buf[:0], pending...)
	default:
		size := 2 * cap(e.buf)
		if cap(e.buf) < slowGrowth {
			size = quickGrowth * cap(e.buf)
		}
		larger := append(takeBuffer(min(size, e.maxEvent+eventBuffer)), pending...)
		keepBuffer(e.buf)
		e.buf = larger
	}
	e.rebase()
}

// leaveEvent makes room of the last event, which nobody needs any more. A buffer that only a large event needed is given
// back at once, whatever was read behind the event.
func (e *EventReader) leaveEvent() {
	e.start = e.line
	if rest := e.buf[e.start:]; cap(e.buf) > eventBuffer && len(rest) <= eventBuffer/2 {
		small := append(takeBuffer(eventBuffer), rest...)
		keepBuffer(e.buf)
		e.buf = small
		e.rebase()
	}
}

// rebase follows a move of buf[start:] to the buffer's beginning.
func (e *EventReader) rebase() {
	e.line -= e.start
	e.seen -= e.start
	e.start, e.lf = 0, -1
}

// giveBack empties the buffer, and gives it up if a large event made it large.
func (e *EventReader) giveBack() {
	if cap(e.buf) <= eventBuffer {
		e.buf = e.buf[:0]
		return
	}
	keepBuffer(e.buf)
	e.buf = nil
}

// keepSmall empties a buffer, and gives it up if a large event made it large.
func keepSmall(buf []byte) []byte {
	if cap(buf) > eventBuffer {
		return nil
	}
	return buf[:0]
}

func (p *partial) clear() {
	*p = partial{id: keepSmall(p.id), kind: keepSmall(p.kind)}
}

// field takes in the line text[begin:end]; text begins where the event does. Data lines are moved together in place.
func (p *partial) field(text []byte, begin, end int) {
	name, value := text[begin:end], text[end:end]
	if i := bytes.IndexByte(name, ':'); i >= 0 {
		name, value = name[:i], bytes.TrimPrefix(name[i+1:], []byte(" "))
	}
	p.begun = p.begun || len(name) > 0
	switch string(name) {
	case "data":
		if !p.hasData {
			p.hasData, p.data = true, Span{end - len(value), end}
			return
		}
		text[p.data.End] = '\n'
		p.data.End += 1 + copy(text[p.data.End+1:], value)
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			p.hasID, p.id = true, append(p.id[:0], value...)
		}
	case "event":
		p.kind = append(p.kind[:0], value...)
	case "retry":
		p.retry = retryTime(value)
	}
}

func (p *partial) finish(text []byte) Event {
	return Event{ID: p.id, HasID: p.hasID, Type: p.kind, Data: text[p.data.Start:p.data.End], Retry: p.retry}
}

// retryTime reads milliseconds in digits; 0 for anything else.
func retryTime(value []byte) time.Duration {
	ms, err := strconv.ParseUint(string(value), 10, 63)
	if err != nil || ms > math.MaxInt64/uint64(time.Millisecond) {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// AppendEvent appends an event as it goes on the wire, with its blank line. Data of several lines takes as many data
// lines. An ID or Type that holds a line break is left out, so that neither can pass for another field, and so is an ID
// with NUL, which no client would keep. The data line is there if there is data or an ID (a priming event has both
// fields, the data empty).
func AppendEvent(dst []byte, e Event) []byte {
	const around = len("id: \nevent: \nretry: 1234567890\ndata: \n\n")
	dst = slices.Grow(dst, len(e.ID)+len(e.Type)+len(e.Data)+around) // once, when dst is new
	dst = appendFields(dst, e)
	if len(e.Data) > 0 || e.HasID {
		dst = appendData(dst, e.Data)
	}
	return append(dst, '\n')
}

// EventEnd is what comes after the data of an event that AppendEventStart began.
const EventEnd = "\n\n"

// AppendEventStart is AppendEvent up to the data, which is the caller's to write: for long data, which should not be copied.
// It is not ok when the data cannot be written as it is, since it has more than one line.
func AppendEventStart(dst []byte, e Event) (_ []byte, ok bool) {
	if len(e.Data) == 0 || lineBreak(e.Data) >= 0 {
		return dst, false
	}
	return append(appendFields(dst, e), "data: "...), true
}

// appendFields appends what comes before an event's data.
func appendFields(dst []byte, e Event) []byte {
	if e.HasID && !bytes.ContainsAny(e.ID, "\r\n\x00") {
		dst = appendField(dst, "id", e.ID)
	}
	if len(e.Type) > 0 && !bytes.ContainsAny(e.Type, "\r\n") {
		dst = appendField(dst, "event", e.Type)
	}
	if e.Retry > 0 {
		dst = append(dst, "retry: "...)
		dst = strconv.AppendInt(dst, e.Retry.Milliseconds(), 10)
		dst = append(dst, '\n')
	}
	return dst
}

func appendData(dst, data []byte) []byte {
	for {
		i := lineBreak(data)
		if i < 0 {
			return appendField(dst, "data", data)
		}
		dst = appendField(dst, "data", data[:i])
		if bytes.HasPrefix(data[i:], []byte("\r\n")) {
			i++
		}
		data = data[i+1:]
	}
}

// lineBreak is the first CR or LF in data, or -1. Two quick searches cost less than one for either.
func lineBreak(data []byte) int {
	i := bytes.IndexByte(data, '\n')
	if i >= 0 {
		data = data[:i]
	}
	if j := bytes.IndexByte(data, '\r'); j >= 0 {
		return j
	}
	return i
}

func appendField(dst []byte, name string, value []byte) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, '\n')
}
