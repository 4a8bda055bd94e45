package streamable

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/lazyctx"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// exchange is one request that was sent, and its answer's body as it arrives. It is the answer's io.ReadCloser.
//
// It owns its connection until it is finished: by the reader at the body's end, by Close, or by the end of ctx.
// Reading is for one goroutine; Close may come from another.
type exchange struct {
	client   *client
	conn     *conn
	ctx      context.Context
	deadline time.Time
	hooks    hooker      // ctx, if it takes x for a hook
	stop     func() bool // takes x off any other ctx; nil when that never ends
	done     atomic.Bool // finished: the connection is the pool's, or closed
	told     bool        // ctx had ended when x was finished, so the canceller is told; set by who finishes x

	canceller canceller // tells the server when ctx or the time ends; nil if closing the connection says it
	id        []byte    // of the call, with a canceller or events; its own memory, for the Message may be gone by then
	shortID   [32]byte  // where id is, if it is no longer

	head     head
	left     int64 // bytes of the body, or of the chunk being read; -1 until the connection closes
	inChunks bool  // a chunk was read before, whose CRLF comes first
	ended    bool  // the body was read whole

	result upstream.Answer // what answer returns
}

// canceller tells the server that nobody waits for the call with that id any more.
type canceller interface{ cancel(id []byte) }

// hooker is a context that tells of its end at no cost (package lazyctx).
type hooker interface {
	Hook(lazyctx.Hook)
	Unhook(lazyctx.Hook) bool
}

// begin makes c carry r, whose time began at start: from here on its deadline and the end of ctx end every wait.
func (cl *client) begin(ctx context.Context, c *conn, r *request, start time.Time) *exchange {
	x := &exchange{client: cl, conn: c, ctx: ctx, deadline: start.Add(r.timeout), canceller: r.canceller}
	x.id = append(x.shortID[:0], r.id...)
	c.limit(x.deadline, start)
	if hooks, ok := ctx.(hooker); ok {
		x.hooks = hooks
		hooks.Hook(x)
	} else if ctx.Done() != nil {
		x.stop = context.AfterFunc(ctx, x.ContextEnded)
	}
	return x
}

// readHead waits for the answer's head. It finishes x when that fails.
func (x *exchange) readHead() error {
	if err := x.conn.head(&x.head); err != nil {
		x.finish(false)
		return x.failure(err, true)
	}
	x.left = x.head.length
	return nil
}

// ContextEnded implements lazyctx.Hook: it ends every wait of x.
func (x *exchange) ContextEnded() {
	c := x.conn
	if x.canceller == nil {
		c.close()
		return
	}
	_ = c.net.SetDeadline(time.Unix(1, 0)) // wakes the reader; the connection stays until the server was told
	if !x.client.tasks.Run(func() { x.canceller.cancel(x.id); c.close() }) {
		c.close()
	}
}

// unhook makes the end of ctx nothing to x. It reports whether it comes before that.
func (x *exchange) unhook() bool {
	switch {
	case x.hooks != nil:
		return x.hooks.Unhook(x)
	case x.stop != nil:
		return x.stop()
	}
	return true
}

// finish gives the connection back, or up. Only the first call does anything.
func (x *exchange) finish(reusable bool) {
	if !x.done.CompareAndSwap(false, true) {
		return
	}
	if !x.unhook() {
		x.told = true
		return // ctx has ended, and what follows from that closes the connection
	}
	if reusable && x.head.keep && x.conn.r == x.conn.w {
		x.client.pool.put(x.conn, x.head.idle)
		return
	}
	x.conn.close()
}

// Close gives up what is left of the body.
func (x *exchange) Close() error {
	x.finish(x.ended)
	return nil
}

// discard finishes x without waiting for a body that nobody reads.
func (x *exchange) discard() {
	buffered := int64(x.conn.w - x.conn.r)
	switch {
	case x.head.chunked && x.endIsHere():
		x.readEnd()
	case !x.head.chunked && x.left >= 0 && x.left <= buffered:
		x.conn.r += int(x.left)
		x.finish(true)
	default:
		x.finish(false)
	}
}

// endIsHere reports whether the end of a body of chunks, and nothing else, was read from the network already.
func (x *exchange) endIsHere() bool {
	rest := x.conn.in[x.conn.r:x.conn.w]
	if x.inChunks {
		return x.left == 0 && string(rest) == "\r\n0\r\n\r\n"
	}
	return string(rest) == "0\r\n\r\n"
}

// buffered reports whether bytes of the body, or its end, were read from the network already.
func (x *exchange) buffered() bool {
	rest := x.conn.in[x.conn.r:x.conn.w]
	switch {
	case x.ended, x.endIsHere():
		return true
	case !x.head.chunked || x.left > 0:
		return len(rest) > 0 && x.left != 0
	case x.inChunks && len(rest) < 2:
		return false
	case x.inChunks:
		rest = rest[2:]
	}
	// A chunk with its size, which may have zeros before it, and some of its data; the last one was looked for above.
	line := bytes.IndexByte(rest, '\n')
	if line < 1 || line+1 == len(rest) {
		return false
	}
	size, err := parseChunkSize(rest[:line-1])
	return err != nil || size > 0
}

// readEnd takes the last chunk, which is empty, and finishes x.
func (x *exchange) readEnd() {
	last, err := x.nextChunk()
	x.finish(err == nil && last)
}

// Read reads the body. The connection goes back to the pool with the last byte. Errors are *upstream.Error.
func (x *exchange) Read(p []byte) (int, error) {
	if x.ended {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := x.readBody(p)
	switch {
	case err == io.EOF:
		x.ended = true
		x.finish(true)
	case err != nil:
		x.finish(false)
		err = x.failure(err, true)
	}
	return n, err
}

// await waits for more of the body without a buffer (conn.await).
func (x *exchange) await() {
	if x.ended {
		return // the connection may be another's
	}
	c := x.conn
	if x.inChunks && x.left == 0 && string(c.in[c.r:c.w]) == "\r\n" { // the end of the chunk that was read
		c.r, x.inChunks = c.w, false
	}
	c.await()
}

// readBody returns io.EOF only at the body's proper end, which it reports together with the last bytes when it can.
func (x *exchange) readBody(p []byte) (int, error) {
	if x.head.chunked && x.left <= 0 {
		if last, err := x.nextChunk(); err != nil {
			return 0, err
		} else if last {
			return 0, io.EOF
		}
	}
	switch {
	case x.left == 0:
		return 0, io.EOF
	case x.left > 0 && int64(len(p)) > x.left:
		p = p[:x.left]
	}
	n, err := x.conn.read(p)
	if x.left < 0 {
		return n, err // whose io.EOF is the end here
	}
	x.left -= int64(n)
	switch {
	case x.left == 0 && !x.head.chunked:
		return n, io.EOF
	case n > 0:
		return n, nil // an error that came with bytes comes again
	}
	return n, unexpected(err)
}

// nextChunk reads up to the next chunk's data, or up to the end of the body (RFC 9112, section 7.1).
func (x *exchange) nextChunk() (last bool, err error) {
	c := x.conn
	if x.inChunks {
		if b, err := c.line(); err != nil {
			return false, unexpected(err)
		} else if len(b) > 0 {
			return false, malformed("a chunk longer than it said")
		}
	}
	size, err := c.line()
	if err != nil {
		return false, unexpected(err)
	}
	x.inChunks = true
	if x.left, err = parseChunkSize(size); err != nil || x.left > 0 {
		return false, err
	}
	for range maxFields {
		if b, err := c.line(); err != nil {
			return false, unexpected(err)
		} else if len(b) == 0 {
			return true, nil
		}
	}
	return false, malformed("more trailers than the sidecar takes")
}

// parseChunkSize reads hexadecimal digits; an extension after them means nothing here.
func parseChunkSize(line []byte) (int64, error) {
	digits, _, _ := bytes.Cut(line, []byte(";"))
	if len(digits) == len(line) {
		digits = bytes.TrimRight(digits, " \t") // as some servers pad it
	}
	if len(digits) == 0 || len(digits) > 15 {
		return 0, malformed("a chunk's size that is not a number")
	}
	var n int64
	for _, c := range digits {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, malformed("a chunk's size that is not a number")
		}
		n = n<<4 | int64(c)
	}
	return n, nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// failure says what an error on the wire means for the call. sent is whether the server may have seen any of it.
func (x *exchange) failure(err error, sent bool) error {
	var bad malformed
	kind, detail := upstream.Lost, "the connection broke before the answer was whole"
	switch {
	case x.ctx.Err() != nil:
		kind, detail, err = cancelled(x.ctx)
	case errors.As(err, &bad):
		kind, detail = upstream.BadAnswer, "answered with "+string(bad)
	case errors.Is(err, os.ErrDeadlineExceeded):
		kind, detail = upstream.TimedOut, "no whole answer within the time configured"
		if x.canceller != nil {
			x.client.tasks.Run(func() { x.canceller.cancel(x.id) })
		}
	case !sent:
		kind, detail = upstream.Unreachable, "the connection broke before anything was sent"
	}
	return x.client.fault(kind, detail, err)
}
