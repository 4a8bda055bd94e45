package http1

import (
	"io"
	"net"
	"sync"
)

// handover is the listener through which net/http's server gets connections.
type handover struct {
	addr  net.Addr // set before Accept
	conns chan net.Conn

	once   sync.Once
	closed chan struct{}
}

func newHandover() *handover {
	return &handover{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// give waits until the server has taken nc. Once the server stopped, nc is closed.
func (h *handover) give(nc net.Conn) {
	select {
	case h.conns <- nc:
	case <-h.closed:
		_ = nc.Close() // nobody is left to serve it
	}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case nc := <-h.conns:
		return nc, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

func (h *handover) Addr() net.Addr { return h.addr }

// handedConn is a connection of which some bytes were read before net/http got it. What strict refuses never gets there.
type handedConn struct {
	net.Conn

	// One goroutine reads at a time.
	read    []byte // comes before what the connection still holds
	strict  strict
	refused bool // read is the rest of the refusal, and the last

	once sync.Once
	free func() // gives back the connection's place
}

func (c *handedConn) Read(p []byte) (n int, err error) {
	switch {
	case len(c.read) > 0:
		n = copy(p, c.read)
		if c.read = c.read[n:]; len(c.read) == 0 {
			c.read = nil
		}
	case c.refused:
		return 0, io.EOF
	default:
		n, err = c.Conn.Read(p)
	}
	if c.refused {
		return n, err
	}
	if good := c.strict.pass(p[:n]); good < n {
		n = good + copy(p[good:], refusal)
		c.read, c.refused = []byte(refusal[n-good:]), true
		return n, nil
	}
	return n, err
}

func (c *handedConn) Close() error {
	c.once.Do(c.free)
	return c.Conn.Close()
}

// CloseWrite lets net/http end an answer before it closes the connection.
func (c *handedConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(nc net.Conn) error {
	if w, ok := nc.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}
