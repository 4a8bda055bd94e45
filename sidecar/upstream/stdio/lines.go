package stdio

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"regexp"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

const (
	readBuffer  = 64 << 10
	keepScratch = 1 << 20 // a line buffer that grew beyond this is not kept
	headKept    = 4 << 10 // of a line that is too long
	tailKept    = 256
)

// line is one line of a process's output, without its end. Its bytes are valid until the next is read.
type line struct {
	data []byte // the line; when it was too long, its first bytes
	tail []byte // when it was too long, its last bytes
	long bool
}

// lineReader cuts output into lines of at most max bytes, a carriage return counted, and skips the rest of longer ones.
type lineReader struct {
	r       *bufio.Reader
	max     int
	scratch []byte
}

func newLineReader(r io.Reader, max int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, readBuffer), max: max}
}

// next returns the next line. The last one needs no line end. It returns the reader's error when nothing is left.
//
// Hot: a line that fits the read buffer is not copied.
func (l *lineReader) next() (line, error) {
	part, err := l.r.ReadSlice('\n')
	if err == nil && len(part)-1 <= l.max {
		return line{data: trimEnd(part)}, nil
	}
	if cap(l.scratch) > keepScratch {
		l.scratch = nil
	}
	l.scratch = append(l.scratch[:0], part...)
	for err == bufio.ErrBufferFull && len(l.scratch) <= l.max {
		part, err = l.r.ReadSlice('\n')
		l.scratch = append(l.scratch, part...)
	}
	if whole := bytes.TrimSuffix(l.scratch, []byte("\n")); err != bufio.ErrBufferFull && len(whole) <= l.max {
		if err != nil && len(whole) == 0 {
			return line{}, err
		}
		return line{data: trimEnd(whole)}, nil
	}
	return l.skip(err), nil
}

// skip reads to the end of a line that is too long, whose beginning is in scratch, and keeps its two ends.
func (l *lineReader) skip(err error) line {
	tail := append(make([]byte, 0, 2*tailKept), lastBytes(l.scratch)...)
	for err == bufio.ErrBufferFull {
		var part []byte
		part, err = l.r.ReadSlice('\n')
		if keep := lastBytes(part); len(keep) == tailKept {
			tail = append(tail[:0], keep...)
		} else {
			joined := append(tail, keep...)
			tail = append(tail[:0], lastBytes(joined)...)
		}
	}
	head := trimEnd(l.scratch[:min(len(l.scratch), headKept)])
	return line{data: head, tail: trimEnd(tail), long: true}
}

func lastBytes(b []byte) []byte { return b[max(0, len(b)-tailKept):] }

func trimEnd(b []byte) []byte {
	b = bytes.TrimSuffix(b, []byte("\n"))
	return bytes.TrimSuffix(b, []byte("\r"))
}

// The places where SDKs put the id of a response: before its result, or last. In both it can only be the envelope's.
var (
	leadingID   = regexp.MustCompile(`^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]{1,19})\s*,\s*"(?:jsonrpc|result|error)"`)
	resultFirst = regexp.MustCompile(`^\s*\{\s*"(?:result|error)"`)
	trailingID  = regexp.MustCompile(`[,{]\s*"id"\s*:\s*([0-9]{1,19})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$`)
)

// legibleID finds the id of a response that cannot be scanned, so that its call need not wait for ever. It returns nil
// when it is not sure.
func (l line) legibleID() []byte {
	if m := leadingID.FindSubmatch(l.data); m != nil {
		return m[1]
	}
	end := l.data
	if l.long {
		end = l.tail
	}
	if m := trailingID.FindSubmatch(lastBytes(end)); m != nil && resultFirst.Match(l.data) {
		return m[1]
	}
	return nil
}

// idDespite is legibleID of a line that could not be scanned for err, which may know the id.
func (l line) idDespite(err error) []byte {
	if refusal := (*mcp.Error)(nil); errors.As(err, &refusal) && refusal.ID != nil {
		return refusal.ID
	}
	return l.legibleID()
}
