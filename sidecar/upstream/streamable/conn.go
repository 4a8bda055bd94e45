package streamable

import (
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readBuffer = 4 << 10  // bytes; what a connection keeps. A larger one, grown for a large head, is dropped
	maxHead    = 64 << 10 // bytes of an answer's status line and header
	maxLine    = 1 << 10  // bytes of a chunk's size line or of a trailer
)

// inputs are buffers of connections that need none at present.
var inputs = sync.Pool{New: func() any { return new([readBuffer]byte) }}

// conn is one HTTP/1.1 connection. One exchange at a time owns it, or the pool does; only close may be called by others.
type conn struct {
	net  net.Conn
	raw  syscall.RawConn // the socket
	bare bool            // nothing lies between net and raw, as TLS does
	pool *pool

	in    []byte // in[r:w] was read and is not used yet; nil before the first read, and in await
	r, w  int
	early error     // of a read that sendAndWait made; fill returns it
	until time.Time // the deadline that the socket was told; zero for none

	idleAt  time.Time     // when it was last put into the pool
	idleFor time.Duration // how long it may lie there

	turn turn
}

func newConn(p *pool, nc net.Conn, raw syscall.RawConn, bare bool) *conn {
	c := &conn{net: nc, raw: raw, bare: bare, pool: p}
	c.turn.look, c.turn.step = c.lookAt, c.takeStep
	return c
}

// limit bounds every wait from now on. It may come late by a thirty-second part of the time there is: a socket that was
// told a deadline for one call need not be told for the next.
func (c *conn) limit(t, now time.Time) {
	latest := t.Add(t.Sub(now) / 32)
	if c.until.Before(t) || c.until.After(latest) {
		c.limitNow(latest)
	}
}

// limitNow is limit without delay; the zero time is no limit.
func (c *conn) limitNow(t time.Time) {
	c.until = t
	_ = c.net.SetDeadline(t) // fails on a closed connection only, and then the write or read says so
}

// close may be called more than once and from any goroutine; a read or write that waits returns.
func (c *conn) close() {
	c.pool.forget(c)
	_ = c.net.Close() // nothing could be done about it
}

// await waits until there is something to read, an end or an error included. While it does so the connection has no
// buffer: idle streams are many. Over TLS it returns at once, for what can be read may have come already.
func (c *conn) await() {
	if !c.bare || c.r < c.w || c.early != nil {
		return
	}
	if len(c.in) == readBuffer {
		inputs.Put((*[readBuffer]byte)(c.in))
	}
	c.in, c.r, c.w = nil, 0, 0
	_ = c.raw.Read(readable) // a failure is the next read's too
}

// readable reports whether reading a socket would not wait.
func readable(fd uintptr) bool {
	for {
		sockets := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(sockets[:], 0); err != unix.EINTR {
			return n != 0
		}
	}
}

// fill reads once more from the network into a buffer of at most limit bytes, and fails when that is full.
func (c *conn) fill(limit int) error {
	if c.r == c.w {
		c.r, c.w = 0, 0
	}
	switch {
	case c.early != nil:
		return c.early
	case c.in == nil:
		c.in = inputs.Get().(*[readBuffer]byte)[:]
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

// head reads an answer's head into h, passing over the interim ones. h aliases the buffer until the next read.
func (c *conn) head(h *head) error {
	for range maxInterim + 1 {
		b, err := c.headBytes()
		if err != nil {
			return err
		}
		if err := h.parse(b); err != nil || h.status >= 200 {
			return err
		}
		if h.status == 101 {
			return malformed("a switch of protocols that nobody asked for")
		}
	}
	return malformed("interim answers without end")
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
