package streamable

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"sync"
	"syscall"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// How long an unused connection is kept. One that the server has closed is noticed when it is about to be used, but not
// one that it closes just then: a server that is busy closes what lay idle too long before it reads what has come, and the
// call is lost. So the sidecar must be first, also where the server does not say when: Node's servers and uvicorn close
// after 5 s, and those of the TypeScript SDK do not say so, since they set Connection themselves.
const (
	idleLimit   = 30 * time.Second // where the server says more
	idleUnknown = 4 * time.Second  // where it says nothing
)

var errClosed = errors.New("the upstream is closed")

// pool holds connections to one server: the one used last is used first, so that few stay warm and the rest run out.
// It starts no goroutine. address sets it up.
type pool struct {
	network, target string
	tls             *tls.Config   // nil for plain HTTP
	timeout         time.Duration // to reach the server, TLS handshake included
	maxIdle         int

	mu     sync.Mutex         // guards below
	open   map[*conn]struct{} // every connection, idle or not
	idle   []*conn            // the one used last is last
	reaper *time.Timer        // runs while there are idle connections
	closed bool
}

// address settles where and how the pool dials.
func (p *pool) address(to *url.URL, h *outriggerv1.HTTPTransport, timeout time.Duration) error {
	const defaultMaxIdle = 128
	p.timeout, p.maxIdle = timeout, defaultMaxIdle
	if n := h.GetMaxIdleConnections(); n > 0 {
		p.maxIdle = int(n)
	}
	port := to.Port()
	if port == "" {
		port = to.Scheme // a service name that net knows: http or https
	}
	p.network, p.target = "tcp", net.JoinHostPort(to.Hostname(), port)
	if path := h.GetUnixSocket(); path != "" {
		p.network, p.target = "unix", path
	}
	if to.Scheme != "https" {
		return nil
	}
	p.tls = &tls.Config{ServerName: to.Hostname(), NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	return p.trust(h.GetCaFile())
}

// trust takes the authorities in a PEM file for the only ones; without a file the system's are.
func (p *pool) trust(file string) error {
	if file == "" {
		return nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("http.ca_file: %w", err)
	}
	p.tls.RootCAs = x509.NewCertPool()
	if !p.tls.RootCAs.AppendCertsFromPEM(pem) {
		return fmt.Errorf("http.ca_file: no certificate in %q", file)
	}
	return nil
}

// get gives a connection to the caller, and reports whether it was used before.
func (p *pool) get(ctx context.Context, now time.Time) (c *conn, used bool, err error) {
	for c = p.take(); c != nil; c = p.take() {
		if now.Sub(c.idleAt) < c.idleFor {
			return c, true, nil
		}
		c.close()
	}
	c, err = p.dial(ctx)
	return c, false, err
}

// take removes the connection used last from the idle ones; nil when there is none.
func (p *pool) take() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle) - 1
	if n < 0 {
		return nil
	}
	c := p.idle[n]
	p.idle[n] = nil
	p.idle = p.idle[:n]
	return c
}

// put takes back a connection whose answer was read whole. serverLimit is the server's Keep-Alive timeout, or zero.
func (p *pool) put(c *conn, serverLimit time.Duration) {
	c.trim()
	c.idleAt, c.idleFor = time.Now(), idleFor(serverLimit)
	if !p.keep(c) {
		c.close()
	}
}

// keep reports whether c is idle now; when there are enough idle ones already, it is not.
func (p *pool) keep(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= p.maxIdle {
		return false
	}
	p.idle = append(p.idle, c)
	if p.reaper == nil {
		p.reaper = time.AfterFunc(c.idleFor, p.reap)
	}
	return true
}

// idleFor leaves the server's own limit a margin, so that it is not the server that closes first.
func idleFor(serverLimit time.Duration) time.Duration {
	switch {
	case serverLimit == 0:
		return idleUnknown
	case serverLimit <= 2*time.Second:
		return serverLimit / 2
	default:
		return min(serverLimit-time.Second, idleLimit)
	}
}

// reap closes the connections that lay idle too long and sets the timer for those that remain.
func (p *pool) reap() {
	now := time.Now()
	var old []*conn
	next := idleLimit
	p.mu.Lock()
	kept := p.idle[:0]
	for _, c := range p.idle {
		if left := c.idleFor - now.Sub(c.idleAt); left > 0 {
			kept = append(kept, c)
			next = min(next, left)
		} else {
			old = append(old, c)
		}
	}
	clear(p.idle[len(kept):])
	p.idle = kept
	if len(kept) == 0 || p.closed {
		p.reaper = nil
	} else {
		p.reaper = time.AfterFunc(next, p.reap)
	}
	p.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

// dial opens a connection. Nothing was sent to the server when it fails, but for a TLS handshake. It has a goroutine of
// its own, which it waits for: no step of a call needs more stack, and a goroutine whose stack has grown keeps it.
func (p *pool) dial(ctx context.Context) (c *conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err = p.connect(ctx)
	}()
	<-done
	return c, err
}

func (p *pool) connect(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("no connection within %v", p.timeout))
	defer cancel()
	var d net.Dialer
	nc, err := d.DialContext(ctx, p.network, p.target)
	if err != nil {
		return nil, err
	}
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		_ = nc.Close() // the first error is the one to tell
		return nil, err
	}
	if p.tls != nil {
		over := tls.Client(nc, p.tls)
		if err := over.HandshakeContext(ctx); err != nil {
			_ = nc.Close() // as above
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
		nc = over
	}
	return p.register(newConn(p, nc, raw, p.tls == nil))
}

// register makes a new connection known, so that close finds it.
func (p *pool) register(c *conn) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.net.Close() // the pool's end is what to tell
		return nil, errClosed
	}
	if p.open == nil {
		p.open = make(map[*conn]struct{})
	}
	p.open[c] = struct{}{}
	return c, nil
}

// forget undoes register.
func (p *pool) forget(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

// close ends every connection, those in use too, and every later get.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	open := p.open
	p.open, p.idle = nil, nil
	if p.reaper != nil {
		p.reaper.Stop()
	}
	p.mu.Unlock()
	for c := range open {
		_ = c.net.Close() // nothing could be done about it
	}
}
