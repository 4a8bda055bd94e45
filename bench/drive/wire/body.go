package wire

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// Body reads the body that follows a head, whichever way its end is marked (RFC 9112, 6.3). Reset comes first. After
// io.EOF the connection stands at the next message, unless the body lasted until the connection's end.
type Body struct {
	r       *bufio.Reader
	left    int64 // of the body, or of the chunk being read
	chunked bool
	first   bool // no chunk has been read
	done    bool
}

// Reset prepares for the body of the message whose head was just read from r.
func (b *Body) Reset(r *bufio.Reader, h *Head) {
	*b = Body{r: r, left: h.Length, chunked: h.Chunked, first: true}
	switch {
	case h.Status == 204 || h.Status == 304 || h.Status > 0 && h.Status < 200:
		b.left, b.chunked, b.done = 0, false, true
	case h.Chunked:
		b.left = 0
	case h.Length < 0 && h.Status != 0:
		b.left = math.MaxInt64 // an answer without a length lasts until the connection ends
	case h.Length <= 0:
		b.left, b.done = 0, true
	}
}

// UntilClose reports whether the body's end is the connection's.
func (b *Body) UntilClose() bool { return b.left > MaxBody }

// Read reads some of the body. io.EOF is its end; one that is cut short is io.ErrUnexpectedEOF.
func (b *Body) Read(p []byte) (int, error) {
	if b.left == 0 && b.chunked && !b.done {
		if err := b.nextChunk(); err != nil {
			return 0, cutShort(err)
		}
	}
	if b.done || b.left == 0 {
		b.done = true
		return 0, io.EOF
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	if err == io.EOF && b.UntilClose() {
		b.done = true
		return n, io.EOF
	}
	b.left -= int64(n)
	return n, cutShort(err)
}

// nextChunk reads up to the next chunk's data, or past the last chunk and its trailers (RFC 9112, 7.1).
func (b *Body) nextChunk() error {
	if !b.first {
		end, err := b.line()
		if err != nil {
			return err
		}
		if len(end) > 0 {
			return fmt.Errorf("a chunk is followed by %.20q", end)
		}
	}
	b.first = false
	line, err := b.line()
	if err != nil {
		return err
	}
	size, _, _ := bytes.Cut(line, []byte(";"))
	n, err := strconv.ParseUint(string(bytes.TrimRight(size, " \t")), 16, 63)
	if err != nil || n > MaxBody {
		return fmt.Errorf("chunk size %.20q", line)
	}
	if b.left = int64(n); n > 0 {
		return nil
	}
	b.done = true
	for {
		if line, err = b.line(); err != nil || len(line) == 0 {
			return err
		}
	}
}

// line is the next line without its end.
func (b *Body) line() ([]byte, error) {
	line, err := b.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], crlf[:1]), nil
}

// Append appends the rest of the body. One over MaxBody bytes is an error.
func (b *Body) Append(to []byte) ([]byte, error) {
	if !b.chunked && !b.UntilClose() {
		at, n := len(to), int(b.left)
		to = slices.Grow(to, n)[:at+n]
		read, err := io.ReadFull(b.r, to[at:])
		b.left, b.done = b.left-int64(read), true
		return to[:at+read], cutShort(err)
	}
	for start := len(to); len(to)-start <= MaxBody; {
		to = slices.Grow(to, 512)
		n, err := b.Read(to[len(to):cap(to)])
		to = to[:len(to)+n]
		if err == io.EOF {
			return to, nil
		}
		if err != nil {
			return to, err
		}
	}
	return to, fmt.Errorf("the body is over %d bytes", MaxBody)
}

// cutShort is err, with the connection's end told from the body's.
func cutShort(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
