package http1

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	readBuffer = 4 << 10 // bytes; what a connection keeps. A larger one, grown for a large head, is dropped

	// An unread body of up to maxDrain bytes is read within drainTimeout, to keep the connection.
	maxDrain     = 256 << 10
	drainTimeout = 2 * time.Second
	// lingerTimeout is how long a client may take to read an answer that ends a connection on which more was sent than
	// read: closing at once would reset it, and the answer with it.
	lingerTimeout = 500 * time.Millisecond
	writeTimeout  = 30 * time.Second // for each write, unless the handler sets another
)

// A connection's phases. Shutdown moves idle to over; all other moves are the connection's own.
const (
	active int32 = iota
	idle
	over
)

// inputs are buffers of connections that need none at present.
var inputs = sync.Pool{New: func() any { return new([readBuffer]byte) }}

// errNotOurs ends the reading of requests on a connection that net/http must serve.
var errNotOurs = errors.New("not a plain request")

// conn is one connection from its first byte to its end, or until it is handed over.
type conn struct {
	// Set by newConn, never changed.
	s        *Server
	nc       net.Conn
	raw      syscall.RawConn
	id       uint64 // unique in the server's life
	local    net.Addr
	template *http.Request // what all its requests have in common
	rd, wd   deadline

	// Owned by serve.
	in      []byte // in[r:w] was read and is not used yet; nil while an answer streams
	r, w    int
	header  http.Header // of the request
	answer  http.Header // of the answer
	values  []string    // what header's values lie in
	vector  [3][]byte   // what one write sends
	buffers net.Buffers // vector's part that is left
	watched bool

	phase   atomic.Int32
	gone    atomic.Bool // the client closed, or its side of the connection
	current atomic.Pointer[call]
}

// rawConn is a connection's socket, if it has one.
func rawConn(nc net.Conn) (syscall.RawConn, bool) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil, false
	}
	raw, err := sc.SyscallConn()
	return raw, err == nil
}

func newConn(s *Server, nc net.Conn, raw syscall.RawConn) *conn {
	c := &conn{
		s: s, nc: nc, raw: raw, id: s.lastID.Add(1), local: nc.LocalAddr(),
		header: make(http.Header), answer: make(http.Header),
		template: &http.Request{
			Method: http.MethodPost, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: nc.RemoteAddr().String(),
		},
	}
	c.template.Header = c.header
	c.rd.set, c.rd.def = nc.SetReadDeadline, s.IdleTimeout
	c.wd.set, c.wd.def = nc.SetWriteDeadline, writeTimeout
	return c
}

// serve answers requests until the connection ends or one is not plain.
func (c *conn) serve() {
	handed := false
	defer func() {
		if !handed {
			c.close()
		}
	}()
	for {
		head, length, err := c.readHead()
		if err == errNotOurs && !c.refusePreface() {
			handed = true
			c.handOver()
			return
		}
		if err != nil || !c.serveRequest(head, length) {
			return
		}
	}
}

// close ends the connection and gives back its place.
func (c *conn) close() {
	c.phase.Store(over)
	c.cut()
	c.rest()
	c.s.watch.remove(c)
	c.s.forget(c)
	c.s.free()
}

// cut breaks the connection off, from any goroutine: what waits on it fails, and serve ends.
func (c *conn) cut() {
	_ = c.nc.Close() // closed before, or nothing could be done about it
	c.left()
}

// closeIfIdle closes a connection that waits for a request.
func (c *conn) closeIfIdle() {
	if c.phase.CompareAndSwap(idle, over) {
		_ = c.nc.Close() // nothing could be done about it
	}
}

// left notes that the client is gone, which cancels the request under way. Any goroutine may call it.
func (c *conn) left() {
	c.gone.Store(true)
	if x := c.current.Load(); x != nil {
		x.ctx.Cancel()
	}
}

// refusePreface refuses what may be HTTP/2's preface behind requests. net/http sees a connection without a past and would
// take it, but one that has carried HTTP/1.1 carries nothing else. No method that the sidecar serves begins so.
func (c *conn) refusePreface() bool {
	if !c.watched || !bytes.HasPrefix(c.in[c.r:c.w], []byte("PR")) {
		return false
	}
	_ = c.write([]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"), nil, nil) // the connection ends in any case
	return true
}

func (c *conn) handOver() {
	if c.watched {
		c.s.watch.drop(c)
	}
	_ = c.nc.SetDeadline(time.Time{}) // fails when closed, which net/http finds
	c.s.handOver(c.nc, c.in[c.r:c.w])
	c.s.forget(c)
}

// readHead waits for a request and reads its head, which stays in the buffer: it holds until the next read.
func (c *conn) readHead() (head []byte, length int64, err error) {
	if c.r == c.w {
		if err := c.await(); err != nil {
			return nil, 0, err
		}
	}
	for line, late := 0, false; ; {
		end, next, ok := headEnd(c.in[c.r:c.w], line)
		if !ok || end == 0 && c.w-c.r >= c.s.MaxHeadBytes {
			return nil, 0, errNotOurs
		}
		if end > 0 {
			head = c.in[c.r : c.r+end]
			if length, ok = plainHead(head); !ok {
				return nil, 0, errNotOurs
			}
			c.r += end
			if late {
				c.rd.ask(time.Time{})
			}
			return head, length, nil
		}
		if line = next; !late {
			late = true
			c.rd.ask(time.Now().Add(c.s.HeadTimeout))
		}
		if err := c.fill(); err == io.EOF {
			return nil, 0, errNotOurs // half a head
		} else if err != nil {
			return nil, 0, err
		}
	}
}

// await reads the first bytes of a request. Until they come the connection is idle, and Shutdown may close it.
func (c *conn) await() error {
	if len(c.in) != readBuffer {
		c.in = inputs.Get().(*[readBuffer]byte)[:]
	}
	c.r, c.w = 0, 0
	c.phase.Store(idle)
	if c.s.stopping.Load() {
		return net.ErrClosed
	}
	n, err := c.read(c.in)
	if !c.phase.CompareAndSwap(idle, active) {
		return net.ErrClosed
	}
	if c.w = n; n > 0 {
		return nil // an error that came with bytes comes again
	}
	return err
}

// rest gives the buffer away while an answer goes on without it: idle streams are many.
func (c *conn) rest() {
	if len(c.in) == readBuffer {
		inputs.Put((*[readBuffer]byte)(c.in))
	}
	c.in, c.r, c.w = nil, 0, 0
}

// fill reads more of a head.
func (c *conn) fill() error {
	switch {
	case c.w < len(c.in):
	case c.r > 0:
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
	default:
		more := max(0, min(len(c.in), c.s.MaxHeadBytes-len(c.in)))
		c.in = append(c.in, make([]byte, more)...)
	}
	n, err := c.read(c.in[c.w:])
	if c.w += n; n > 0 {
		return nil
	}
	return err
}

// read reads from the network within the deadline.
func (c *conn) read(p []byte) (int, error) {
	c.rd.begin()
	defer c.rd.end()
	return c.nc.Read(p)
}

// write sends up to three parts in one piece, within the deadline. A client that cannot be written to has left.
func (c *conn) write(a, b, end []byte) error {
	c.wd.begin()
	defer c.wd.end()
	var err error
	if len(b) == 0 && len(end) == 0 {
		_, err = c.nc.Write(a)
	} else {
		c.vector = [3][]byte{a, b, end}
		c.buffers = c.vector[:]
		_, err = c.buffers.WriteTo(c.nc)
		c.vector = [3][]byte{}
	}
	if err != nil {
		c.left()
	}
	return err
}

// linger lets the client read the answer that ends a connection before bytes that nobody will read reset it.
func (c *conn) linger() {
	if closeWrite(c.nc) != nil {
		return
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(lingerTimeout)) // a failure ends the copy
	_, _ = io.Copy(io.Discard, c.nc)                        // until the client closes or the time is over
}
