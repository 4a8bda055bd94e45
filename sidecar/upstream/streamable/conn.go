package streamable

import (
	"net"
	"syscall"
	"time"
)

const (
	readBuffer = 4 << 10  // bytes; what a connection keeps. A larger one, grown for a large head, is dropped
	maxHead    = 64 << 10 // bytes of an answer's status line and header
	maxLine    = 1 << 10  // bytes of a chunk's size line or of a trailer
)

// conn is one HTTP/1.1 connection. One exchange at a time owns it, or the pool does; only close may be called by others.
type conn struct {
	net  net.Conn
	raw  syscall.RawConn // the socket, below TLS
	pool *pool

	in   []byte // in[r:w] was read and is not used yet
	r, w int

	idleAt  time.Time     // when it was last put into the pool
	idleFor time.Duration // how long it may lie there

	look  func(fd uintptr) // sets quiet; made once, so that a look allocates nothing
	quiet bool
	abort func() // close, made once
}

func newConn(p *pool, nc net.Conn, raw syscall.RawConn) *conn {
	c := &conn{net: nc, raw: raw, pool: p}
	c.look = func(fd uintptr) {
		var b [1]byte
		_, err := syscall.Read(int(fd), b[:]) // the socket never blocks: net made it so
		c.quiet = err == syscall.EAGAIN
	}
	c.abort = c.close
	return c
}

// alive reports whether an idle connection is still open. One that the server closed, or wrote to unasked, is not;
// since such a connection is given up, it does no harm that the look takes a byte from it.
func (c *conn) alive() bool {
	c.quiet = false
	return c.r == c.w && c.raw.Control(c.look) == nil && c.quiet
}

// close may be called more than once and from any goroutine; a read or write that waits returns.
func (c *conn) close() {
	c.pool.forget(c)
	_ = c.net.Close() // nothing could be done about it
}

// fill reads once more from the network into a buffer of at most limit bytes, and fails when that is full.
func (c *conn) fill(limit int) error {
	if c.r == c.w {
		c.r, c.w = 0, 0
	}
	switch {
	case c.in == nil:
		c.in = make([]byte, readBuffer)
	case c.w < len(c.in):
	case c.r > 0:
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
	case len(c.in) >= limit:
		return malformed("a part longer than the sidecar takes")
	default:
		c.in = append(c.in, make([]byte, min(len(c.in), limit-len(c.in)))...)
	}
	n, err := c.net.Read(c.in[c.w:])
	c.w += n
	if n > 0 {
		return nil // an error that came with bytes comes again
	}
	return err
}

// read is an io.Reader's Read of what the server sends, head and framing included.
func (c *conn) read(p []byte) (int, error) {
	if c.r == c.w {
		if len(p) >= readBuffer {
			return c.net.Read(p)
		}
		if err := c.fill(readBuffer); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.in[c.r:c.w])
	c.r += n
	return n, nil
}

// line reads up to CRLF, which is cut off. The bytes hold until the next read.
func (c *conn) line() ([]byte, error) {
	for scanned := 0; ; {
		b := c.in[c.r:c.w]
		if n := indexLF(b, scanned); n >= 0 {
			if n > maxLine {
				return nil, malformed("a line longer than the sidecar takes")
			}
			line, _, err := cutLine(b)
			c.r += n + 1
			return line, err
		}
		if scanned = len(b); scanned > maxLine {
			return nil, malformed("a line longer than the sidecar takes")
		}
		if err := c.fill(readBuffer); err != nil {
			return nil, err
		}
	}
}

// head reads an answer's head, passing over the interim ones. What it returns aliases the buffer until the next read.
func (c *conn) head() (head, error) {
	for range maxInterim + 1 {
		b, err := c.headBytes()
		if err != nil {
			return head{}, err
		}
		h, err := parseHead(b)
		if err != nil || h.status >= 200 {
			return h, err
		}
		if h.status == 101 {
			return head{}, malformed("a switch of protocols that nobody asked for")
		}
	}
	return head{}, malformed("interim answers without end")
}

// headBytes reads until an empty line, which it includes.
func (c *conn) headBytes() ([]byte, error) {
	for scanned := 0; ; {
		b := c.in[c.r:c.w]
		if n := headEnd(b, scanned); n > 0 {
			c.r += n
			return b[:n], nil
		}
		scanned = len(b)
		if err := c.fill(maxHead); err != nil {
			return nil, err
		}
	}
}

// trim makes a connection ready to lie idle: a buffer that grew is dropped.
func (c *conn) trim() {
	if len(c.in) > readBuffer {
		c.in, c.r, c.w = nil, 0, 0
	}
}
