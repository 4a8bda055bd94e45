package wire

import (
	"bytes"
	"fmt"
	"io"
)

// Events reads an event stream (HTML Standard, 9.2, Server-sent events). Reset comes first. Of an event only the data
// is kept: MCP puts its messages there, and nothing here resumes a stream.
type Events struct {
	src        io.Reader
	buf        []byte
	start, end int    // what is read and not yet used of buf
	afterCR    bool   // a line ended in CR: an LF that follows belongs to it
	data       []byte // of the event being read
	hasData    bool
}

// eventBuffer is how many bytes the buffer has at first.
const eventBuffer = 4 << 10

// Reset prepares for a stream's body.
func (e *Events) Reset(src io.Reader) {
	if e.buf == nil {
		e.buf = make([]byte, eventBuffer)
	}
	*e = Events{src: src, buf: e.buf, data: e.data[:0]}
}

// Next is the data of the next event that has some, good until Next is called again. io.EOF is the stream's end; an
// event that it cuts short is lost, as the standard says.
func (e *Events) Next() ([]byte, error) {
	e.data, e.hasData = e.data[:0], false
	for {
		line, err := e.line()
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if len(e.data) > 0 {
				return e.data, nil
			}
			e.hasData = false
			continue
		}
		name, value, _ := bytes.Cut(line, colon)
		if string(name) != "data" {
			continue
		}
		if value = bytes.TrimPrefix(value, []byte(" ")); !e.hasData && len(value) > 0 && e.skipBlank() {
			return value, nil // most events are one line, and whole: no need to copy it
		}
		if e.hasData {
			e.data = append(e.data, '\n')
		}
		e.hasData = true
		if e.data = append(e.data, value...); len(e.data) > MaxBody {
			return nil, fmt.Errorf("an event is over %d bytes", MaxBody)
		}
	}
}

// skipBlank passes over an empty line, when one is buffered whole.
func (e *Events) skipBlank() bool {
	if e.afterCR || e.start == e.end || e.buf[e.start] != '\n' {
		return false
	}
	e.start++
	return true
}

// line is the next line without its end, good until the next call.
func (e *Events) line() ([]byte, error) {
	for searched := 0; ; {
		if e.afterCR && e.start < e.end {
			e.afterCR = false
			if e.buf[e.start] == '\n' {
				e.start++
			}
		}
		rest := e.buf[e.start:e.end]
		if i := lineEnd(rest[searched:]); i >= 0 {
			i += searched
			e.start += i + 1
			e.afterCR = rest[i] == '\r'
			return rest[:i], nil
		}
		searched = len(rest)
		if err := e.fill(); err != nil {
			return nil, err
		}
	}
}

// lineEnd is where the first line of b ends, in CR, LF or both; -1 when it does not.
func lineEnd(b []byte) int {
	lf := bytes.IndexByte(b, '\n')
	if lf >= 0 {
		b = b[:lf]
	}
	if cr := bytes.IndexByte(b, '\r'); cr >= 0 {
		return cr
	}
	return lf
}

// fill reads more of the stream, after moving what is left to the buffer's start and doubling a buffer that is full.
func (e *Events) fill() error {
	e.end = copy(e.buf, e.buf[e.start:e.end])
	e.start = 0
	if e.end == len(e.buf) {
		if len(e.buf) > MaxBody {
			return fmt.Errorf("a line is over %d bytes", MaxBody)
		}
		e.buf = append(e.buf, make([]byte, len(e.buf))...)
	}
	n, err := e.src.Read(e.buf[e.end:])
	e.end += n
	if n > 0 {
		return nil
	}
	return err
}
