package http1

import (
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

// handedConn is a connection of which some bytes were read before net/http got it.
type handedConn struct {
	net.Conn
	read []byte // comes before what the connection still holds; one goroutine reads at a time

	once sync.Once
	free func() // gives back the connection's place
}

func (c *handedConn) Read(p []byte) (int, error) {
	if len(c.read) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.read)
	if c.read = c.read[n:]; len(c.read) == 0 {
		c.read = nil
	}
	return n, nil
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
