package http1

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
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

var (
	// errNotOurs ends the reading of requests on a connection that net/http must serve.
	errNotOurs = errors.New("not a plain request")
	// errEnded ends it after an answer that was the connection's last.
	errEnded = errors.New("the last request was answered")
	// errRests ends it for as long as an answer goes on without its handler (response.Rest).
	errRests = errors.New("the answer goes on after its handler")
)

// conn is one connection from its first byte to its end, or until it is handed over.
type conn struct {
	// Set by newConn, never changed.
	s      *Server
	nc     net.Conn
	raw    syscall.RawConn
	id     uint64 // unique in the server's life
	local  net.Addr
	remote string
	rd, wd deadline

	// Owned by serve, and by resume while an answer rests.
	in      []byte // in[r:w] was read and is not used yet; nil while an answer streams
	r, w    int
	head    knownHead   // of the last request
	answer  http.Header // of the answer
	vector  [3][]byte   // what one write sends
	buffers net.Buffers // vector's part that is left
	watched bool
	lingers bool                  // the last answer is to be read before the connection closes
	now     time.Time             // of the last write
	turns   func(fd uintptr) bool // turn, made once
	failed  error                 // why turn ended the reading of requests; nil when it left bytes to serve

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
		s: s, nc: nc, raw: raw, id: s.lastID.Add(1), local: nc.LocalAddr(), remote: nc.RemoteAddr().String(), now: time.Now(),
		head: knownHead{header: make(http.Header)}, answer: make(http.Header),
	}
	c.turns = c.turn
	c.rd.set, c.rd.def = nc.SetReadDeadline, s.IdleTimeout
	c.wd.set, c.wd.def = nc.SetWriteDeadline, writeTimeout
	return c
}

// serve answers requests until the connection ends, an answer rests, or a request is not plain.
func (c *conn) serve() {
	handed := false
	defer func() {
		if !handed {
			c.close()
		}
	}()
	for {
		err := c.nextHead()
		if err == nil {
			err = c.serveRequest()
		}
		switch {
		case err == errRests:
			handed = true
			c.letGo()
			return
		case err == errNotOurs && !c.refusePreface():
			handed = true
			c.handOver()
			return
		case err != nil:
			return
		}
	}
}

// nextHead waits for the next request that is not served in a turn, and takes its head.
func (c *conn) nextHead() error {
	if c.r == c.w {
		if err := c.await(); err != nil {
			return err
		}
	}
	return c.readHead()
}

// close ends the connection and gives back its place.
func (c *conn) close() {
	c.phase.Store(over)
	if c.lingers {
		c.linger()
	}
	_ = c.nc.Close() // closed before, or nothing could be done about it
	c.left()
	c.rest()
	c.s.watch.remove(c)
	c.s.forget(c)
	c.s.free()
}

// cut breaks the connection off, from any goroutine: what waits on it fails, and serve ends. To close it would wait for a
// handler that turn runs.
func (c *conn) cut() {
	shutdown(c.raw)
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
	c.rd.wake()
}

// refusePreface refuses what may be HTTP/2's preface behind requests. net/http sees a connection without a past and would
// take it, but one that has carried HTTP/1.1 carries nothing else. No method that the sidecar serves begins so.
func (c *conn) refusePreface() bool {
	if !c.watched || !bytes.HasPrefix(c.in[c.r:c.w], []byte("PR")) {
		return false
	}
	_ = c.write(time.Now(), []byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"), nil, nil) // the connection ends in any case
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

// await waits for the first bytes of a request. A socket's own connection serves meanwhile what needs no more than those.
func (c *conn) await() error {
	switch c.nc.(type) {
	case *net.TCPConn, *net.UnixConn:
		return c.serveTurns()
	}
	if err := c.takeTurn(); err != nil {
		return err
	}
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

// serveTurns waits for requests and serves those that come whole in one read, until one does not: then what has come of
// it is in the buffer. An error ends the connection.
func (c *conn) serveTurns() error {
	for {
		c.failed = nil
		c.rd.beginIdle(time.Now())
		err := c.raw.Read(c.turns)
		c.rd.end()
		switch {
		case err == nil:
			return c.failed
		case !c.gone.Load() || !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
		// left has ended the wait: the socket has the client's end, and perhaps a request before it.
	}
}

// turn reads what there is and serves the requests that it holds whole. It reports false to be called again when there is
// more, and true with an error in c.failed when the connection ends, or without when there are bytes left that need more.
//
// Hot: a call costs no read that finds nothing. As a function for RawConn.Read it waits for whatever came since it was
// called, also while a handler ran. What came just before is not told apart from what it read: of a client's end that
// was among it, left tells.
func (c *conn) turn(fd uintptr) (done bool) {
	c.rd.end()
	for {
		if c.failed = c.takeTurn(); c.failed != nil {
			return true
		}
		n, err := readNow(fd, c.in)
		if err != syscall.EAGAIN && n <= 0 {
			c.failed = cmp.Or(err, io.EOF)
			return true
		}
		for c.w = max(n, 0); c.r < c.w; {
			if !c.arrived() {
				return true
			}
			if c.failed = c.serveRequest(); c.failed != nil {
				return true
			}
		}
		if n < readBuffer && c.idles() {
			return false
		}
	}
}

// takeTurn makes the connection ready to read requests. It fails when Shutdown was faster.
func (c *conn) takeTurn() error {
	if len(c.in) != readBuffer {
		c.in = inputs.Get().(*[readBuffer]byte)[:]
	}
	c.r, c.w = 0, 0
	if c.phase.Load() != active && !c.phase.CompareAndSwap(idle, active) || c.s.stopping.Load() {
		return net.ErrClosed
	}
	return nil
}

// idles reports whether the connection may wait for a request, in which Shutdown can close it.
func (c *conn) idles() bool {
	c.rd.beginIdle(c.now)
	c.phase.Store(idle)
	return !c.gone.Load() && !c.s.stopping.Load()
}

// arrived reports whether the buffer holds a whole request that is ours, whose head it takes.
func (c *conn) arrived() bool {
	end, _, ok := c.takeHead(0)
	if !ok || end == 0 || int64(c.w-c.r-end) < c.head.length {
		return false
	}
	c.r += end
	return true
}

// readHead reads the head of a request of which some is in the buffer.
func (c *conn) readHead() error {
	for line, late := 0, false; ; {
		end, next, ok := c.takeHead(line)
		if !ok || end == 0 && c.w-c.r >= c.s.MaxHeadBytes {
			return errNotOurs
		}
		if end > 0 {
			c.r += end
			if late {
				c.rd.reset()
			}
			return nil
		}
		if line = next; !late {
			late = true
			c.rd.ask(time.Now().Add(c.s.HeadTimeout))
		}
		if err := c.fill(); err == io.EOF {
			return errNotOurs // half a head
		} else if err != nil {
			return err
		}
	}
}

// takeHead is headEnd for the buffer, which also takes a head that is whole and plain.
func (c *conn) takeHead(from int) (end, next int, ok bool) {
	b := c.in[c.r:c.w]
	if end = c.head.again(b); end > 0 {
		return end, 0, true
	}
	end, next, ok = headEnd(b, from)
	if !ok || end == 0 {
		return 0, next, ok
	}
	length, ok := plainHead(b[:end])
	if ok {
		c.head.learn(string(b[:end]), length)
	}
	return end, next, ok
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
	c.rd.begin(time.Now())
	defer c.rd.end()
	return c.nc.Read(p)
}

// write sends up to three parts in one piece, within the deadline. A client that cannot be written to has left.
func (c *conn) write(now time.Time, a, b, end []byte) error {
	c.now = now
	c.wd.begin(now)
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
