package http1

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// maxWhole is the longest answer without a Content-Length that is held back to find its length.
	maxWhole = 32 << 10
	// maxHeld is how many bytes of a longer answer wait for more, to be written in one piece.
	maxHeld = 4 << 10
	// keptChunk is the largest buffer that goes back to the pool.
	keptChunk = 64 << 10
)

// chunks are the buffers of answers. One belongs to an answer from its first byte until it is written.
var chunks = sync.Pool{New: func() any { b := make([]byte, 0, readBuffer); return &b }}

// errFinished is what a handler gets that writes after it returned.
var errFinished = errors.New("http1: the answer has ended")

// response is an http.ResponseWriter. What is to be sent gathers in out, head included, so that a small answer, and
// each flush, is one write.
//
//	         WriteHeader          frame                       finish
//	nothing ────────────▶ head ──────────▶ Content-Length ──┬────────▶ ended
//	                                  └──▶ chunked ─────────┘
//
// frame waits until it knows the length: Content-Length was set, the handler returned, or there was a flush or more
// than maxWhole bytes, which makes it chunked.
type response struct {
	c      *conn
	body   *body // the request's
	header http.Header

	out     []byte
	pooled  *[]byte // where out came from
	mark    int     // where in out the head's own lines end; once framed, where the body bytes begin
	status  int     // 0 before WriteHeader
	framed  bool
	chunked bool
	closing bool // the connection ends with this answer
	untyped bool // Content-Type is to be found from the body
	dated   bool // the handler gave a Date
	ended   bool
	then    func() // Rest's, until it is called

	declared int64 // Content-Length as the handler set it; -1 for not
	written  int64 // bytes of the body
	err      error // of the first write that failed
}

// Header implements http.ResponseWriter. After a rest it is empty: the head was sent.
func (w *response) Header() http.Header {
	if w.header == nil {
		w.header = make(http.Header)
	}
	return w.header
}

// Rest lets the handler return while its answer, whose head was flushed, goes on: then waiting needs no goroutine, or a new
// one, which has done nothing else and has a small stack. The request and its context stay as they are.
//
// When the handler has returned, and the connection has let go of what only its next request needs, then is called. It has
// to see to it that Resume is called, once and by any goroutine, when there is more to write or the request's context has
// ended. Until Resume is called anybody may write and flush, but only one goroutine at a time.
func (w *response) Rest(then func()) { w.then = then }

// Resume runs f, on the caller's goroutine, as what is left of the handler of an answer that rests. The answer ends when f
// returns, unless it has called Rest again.
func (w *response) Resume(f func()) { w.c.resume(f) }

// SetReadDeadline is for http.ResponseController. It bounds reading the request's body; zero takes the default.
func (w *response) SetReadDeadline(t time.Time) error {
	if w.ended {
		return errFinished
	}
	w.c.rd.ask(t)
	return nil
}

// SetWriteDeadline is for http.ResponseController. Zero takes the default.
func (w *response) SetWriteDeadline(t time.Time) error {
	if w.ended {
		return errFinished
	}
	w.c.wd.ask(t)
	return nil
}

// WriteHeader implements http.ResponseWriter. Interim answers are sent at once.
func (w *response) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http does
	}
	if w.status != 0 || w.ended {
		return
	}
	w.take()
	if status < 200 && status != http.StatusSwitchingProtocols {
		w.out = append(w.appendHead(w.out, status), "\r\n"...)
		w.send(time.Now(), nil)
		return
	}
	w.status = status
	w.look()
	w.out = w.appendHead(w.out, status)
	w.mark = len(w.out)
}

// look takes from the header what decides on the framing.
func (w *response) look() {
	w.untyped = len(w.header["Content-Encoding"]) == 0
	if _, typed := w.header["Content-Type"]; typed {
		w.untyped = false
	}
	_, w.dated = w.header["Date"]
	if v := w.header["Content-Length"]; len(v) > 0 && bodyAllowed(w.status) {
		if n, ok := parseLength([]byte(strings.TrimSpace(v[0]))); ok {
			w.declared = n
		}
	}
	for _, v := range w.header["Connection"] {
		for token := range strings.SplitSeq(v, ",") {
			w.closing = w.closing || strings.EqualFold(strings.TrimSpace(token), "close")
		}
	}
}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	if err := w.admit(len(p)); err != nil {
		return 0, err
	}
	if w.holds(p) {
		w.out = append(w.out, p...)
		return len(p), nil
	}
	if err := w.send(time.Now(), p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// admit begins the answer if it has not begun, and counts n bytes of its body.
func (w *response) admit(n int) error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.ended:
		return errFinished
	case w.err != nil:
		return w.err
	case !bodyAllowed(w.status):
		return http.ErrBodyNotAllowed
	case w.declared >= 0 && int64(n) > w.declared-w.written:
		return http.ErrContentLength
	}
	w.written += int64(n)
	w.take()
	return nil
}

// holds reports whether p, the next of the body, can wait in out. If not, the answer is framed.
func (w *response) holds(p []byte) bool {
	if !w.framed {
		if w.declared < 0 && len(w.out)-w.mark+len(p) <= maxWhole {
			return true
		}
		w.frame(time.Now(), w.declared, p)
	}
	return len(w.out)+len(p) <= maxHeld
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() } // it has no way to say

// FlushError sends what was written so far.
func (w *response) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.ended:
		return errFinished
	case w.err != nil:
		return w.err
	}
	w.take()
	now := time.Now()
	if !w.framed {
		w.frame(now, w.declared, nil)
	}
	if c := w.c; c.r == c.w && w.body.left == 0 {
		c.rest()
	}
	return w.send(now, nil)
}

// frame completes the head: the answer has length bytes, or comes in chunks when that is -1. The request's body is
// read to its end first: a client that still sends may not be reading, and what follows it may be the next request.
// next is what of the answer's body comes behind out.
func (w *response) frame(now time.Time, length int64, next []byte) {
	w.framed = true
	w.closing = w.closing || w.c.s.stopping.Load() || w.status == http.StatusSwitchingProtocols || !w.body.drain()
	w.body.closed = true
	var space [256]byte
	f := space[:0]
	if !w.dated {
		f = append(append(append(f, "Date: "...), w.c.s.date(now)...), crlf...)
	}
	if bodyAllowed(w.status) {
		begin := w.out[w.mark:]
		if len(begin) == 0 {
			begin = next
		}
		if w.untyped && len(begin) > 0 {
			f = append(append(append(f, "Content-Type: "...), http.DetectContentType(begin)...), "\r\n"...)
		}
		if length >= 0 {
			f = append(strconv.AppendInt(append(f, "Content-Length: "...), length, 10), "\r\n"...)
		} else {
			w.chunked = true
			f = append(f, "Transfer-Encoding: chunked\r\n"...)
		}
	}
	if w.closing {
		f = append(f, "Connection: close\r\n"...)
	}
	f = append(f, "\r\n"...)
	w.out = slices.Insert(w.out, w.mark, f...)
	w.mark += len(f)
}

// take gets a buffer for out.
func (w *response) take() {
	if w.pooled == nil {
		w.pooled = chunks.Get().(*[]byte)
		w.out, w.mark = (*w.pooled)[:0], 0
	}
}

// discard forgets what was not sent and gives back the buffer.
func (w *response) discard() {
	if w.pooled == nil {
		return
	}
	if cap(w.out) <= keptChunk {
		*w.pooled = w.out[:0]
		chunks.Put(w.pooled)
	}
	w.pooled, w.out, w.mark = nil, nil, 0
}

// send writes out and more as one piece. After a failure nothing is written: what the client has may end anywhere.
func (w *response) send(now time.Time, more []byte) error {
	var end []byte
	if n := len(w.out) - w.mark + len(more); w.chunked && n > 0 {
		w.openChunk(n)
		if end = crlf; len(more) == 0 {
			w.out, end = append(w.out, crlf...), nil
		}
	}
	if w.err == nil && len(w.out)+len(more) > 0 {
		w.err = w.c.write(now, w.out, more, end)
	}
	w.discard()
	return w.err
}

var crlf = []byte("\r\n")

// openChunk writes a chunk's size before the body bytes in out.
func (w *response) openChunk(n int) {
	var space [20]byte
	size := append(strconv.AppendInt(space[:0], int64(n), 16), crlf...)
	w.out = slices.Insert(w.out, w.mark, size...)
}

// finish ends the answer after the handler returned. It reports whether the connection can carry another request.
func (w *response) finish() (keep bool) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.take()
	now := time.Now()
	if !w.framed {
		length := w.declared
		if length < 0 {
			length = w.written
		}
		w.frame(now, length, nil)
	}
	short := w.declared > w.written
	if w.chunked {
		if n := len(w.out) - w.mark; n > 0 {
			w.openChunk(n)
			w.out = append(w.out, crlf...)
		}
		w.out = append(w.out, "0\r\n\r\n"...)
		w.chunked = false
	}
	if w.send(now, nil) != nil || short {
		return false // cut off: the client must not take it for whole
	}
	w.c.lingers = w.closing && (w.body.left > 0 || w.c.r < w.c.w)
	return !w.closing
}

// appendHead writes the status line and the handler's header without what frame decides on.
func (w *response) appendHead(b []byte, status int) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = append(strconv.AppendInt(b, int64(status), 10), ' ')
	b = append(append(b, http.StatusText(status)...), crlf...)
	for name, values := range w.header {
		if framing(name, status) || !all([]byte(name), inName) || name == "" {
			continue
		}
		for _, v := range values {
			b = append(append(b, name...), ": "...)
			b = append(appendValue(b, v), crlf...)
		}
	}
	return b
}

// framing reports whether a header is not the handler's to write.
func framing(name string, status int) bool {
	switch name {
	case "Content-Length", "Transfer-Encoding", "Connection", "Trailer":
		return true
	case "Content-Type":
		return status == http.StatusNotModified
	}
	return false
}

// appendValue writes a header's value. What would end the line becomes a space.
func appendValue(b []byte, v string) []byte {
	if !strings.ContainsAny(v, "\r\n\x00") {
		return append(b, v...)
	}
	for i := range len(v) {
		switch c := v[i]; c {
		case '\r', '\n', 0:
			b = append(b, ' ')
		default:
			b = append(b, c)
		}
	}
	return b
}
