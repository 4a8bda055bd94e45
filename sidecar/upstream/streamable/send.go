package streamable

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// errStale is a connection that the server closed, or wrote to unasked, while it lay idle. Nothing was sent on it.
var errStale = errors.New("the idle connection was closed by the server, or written to")

// turn is one request on a connection that lay idle: a look whether it still is good, the request, and the first bytes
// of the answer. All of it happens while the socket waits to become readable, so that whatever comes after the look wakes
// it: nobody asks for the answer before it can be there, which saves one system call in four.
type turn struct {
	// conn's methods, made once so that a call allocates nothing.
	look func(fd uintptr)
	step func(fd uintptr) (done bool)

	out  []byte // to be sent
	sent int
	err  error // of the look or the write
	wait bool  // all was sent: the next step reads
}

// send sends an encoded request, whose body follows if it was too long to be copied. n is how many bytes of it may have
// gone out: if none, the server has not seen the request. used is for a connection from the pool: one that the server
// closed, or wrote to unasked, is refused.
func (c *conn) send(encoded, body []byte, used bool) (n int64, err error) {
	short := len(body) <= copiedBody
	switch {
	case used && c.bare && short:
		return c.sendAndWait(encoded)
	case used && !c.alive():
		return 0, errStale
	case short:
		m, err := c.net.Write(encoded)
		return int64(m), err
	}
	return (&net.Buffers{encoded, body}).WriteTo(c.net)
}

// alive reports whether an idle connection is still open. One that the server closed, or wrote to unasked, is not;
// since such a connection is given up, it does no harm that the look takes a byte from it.
func (c *conn) alive() bool {
	c.turn.err = nil
	return c.raw.Control(c.turn.look) == nil && c.turn.err == nil
}

// sendAndWait is send, and waits until the server answers. What was read, or why nothing could be, is fill's to return.
//
// Hot: runs on every call but a connection's first.
func (c *conn) sendAndWait(encoded []byte) (n int64, err error) {
	if c.in == nil {
		c.in = inputs.Get().(*[readBuffer]byte)[:]
	}
	c.r, c.w = 0, 0
	t := &c.turn
	t.out, t.sent, t.err, t.wait = encoded, 0, nil, false
	err = c.raw.Read(t.step)
	t.out = nil
	switch {
	case t.err != nil:
		return int64(t.sent), t.err
	case !t.wait && err == nil: // the socket's buffer is full
		m, err := c.net.Write(encoded[t.sent:])
		return int64(t.sent + m), err
	case t.wait && err != nil:
		c.early, err = err, nil
	}
	return int64(t.sent), err
}

// lookAt notes when there is something to read, if only an end. The socket never blocks: net made it so.
func (c *conn) lookAt(fd uintptr) {
	var b [1]byte
	if _, err := syscall.Read(int(fd), b[:]); err != syscall.EAGAIN {
		c.turn.err = errStale
	}
}

// takeStep makes the next step of a turn. If that is not the last, it comes again when the socket is readable.
func (c *conn) takeStep(fd uintptr) (done bool) {
	t := &c.turn
	if t.wait {
		return c.takeAnswer(fd)
	}
	if c.lookAt(fd); t.err != nil {
		return true
	}
	n, err := syscall.Write(int(fd), t.out)
	switch err {
	case nil:
		t.sent = n
	case syscall.EAGAIN, syscall.EINTR: // sendAndWait tries again
	default:
		t.err = os.NewSyscallError("write", err)
	}
	t.wait = t.sent == len(t.out)
	return !t.wait
}

// takeAnswer reads what came.
func (c *conn) takeAnswer(fd uintptr) (done bool) {
	n, err := 0, error(syscall.EINTR)
	for err == syscall.EINTR {
		n, err = syscall.Read(int(fd), c.in)
	}
	switch {
	case err == syscall.EAGAIN:
		return false
	case err != nil:
		c.early = os.NewSyscallError("read", err)
	case n == 0:
		c.early = io.EOF
	default:
		c.w = n
	}
	return true
}
