package http1

import (
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"time"
)

// call is what a request has for itself. It is one piece of memory, new for each request: what a handler leaves behind
// cannot reach the next.
type call struct {
	ctx  requestContext
	url  url.URL
	body body
	w    response
}

// plainRequest is what all requests have in common.
var plainRequest = &http.Request{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}

// serveRequest runs the handler for the request whose head was taken and ends its answer. The error is nil when the
// connection can carry another, errRests when the answer goes on, and errEnded otherwise.
//
// Hot: two allocations, which are the call and the request (TestAPlainCallCostsTwoAllocations); more when the handler
// waits on the context.
func (c *conn) serveRequest() error {
	x := &call{}
	x.ctx.c = c
	x.url.Path = c.head.path
	x.body = body{c: c, left: c.head.length}
	x.w = response{c: c, body: &x.body, header: c.answer, declared: -1}

	r := plainRequest.WithContext(&x.ctx)
	r.Method, r.Host, r.URL = c.head.method, c.head.host, &x.url
	r.RequestURI, r.ContentLength = c.head.path, c.head.length
	r.Header, r.RemoteAddr = c.head.header, c.remote
	r.Body = http.NoBody
	if x.body.left > 0 {
		r.Body = &x.body
	}
	c.begin(x)
	return c.settle(x, c.handle(&x.w, r))
}

// settle ends the answer of a handler that returned, or panicked, unless it rests. Its error is serveRequest's.
func (c *conn) settle(x *call, returned bool) error {
	if returned && x.w.then != nil {
		return errRests
	}
	x.ctx.Cancel()
	keep := false
	if returned {
		keep = x.w.finish()
	} else {
		x.w.discard()
	}
	x.w.ended, x.body.c = true, nil
	c.end()
	if !keep {
		return errEnded
	}
	return nil
}

// letGo leaves the connection to whoever is to resume the answer under way. What only the next request needs is not kept
// meanwhile: answers that rest are many. What is written at the same time (response.Rest) needs nothing of it.
func (c *conn) letGo() {
	x := c.current.Load()
	then := x.w.then
	x.w.then, x.w.header = nil, nil
	c.head, c.answer = knownHead{}, nil
	then()
}

// resume runs f as what is left of the handler of an answer that rests, and goes on with the connection after it.
func (c *conn) resume(f func()) {
	handed := false
	defer func() {
		if !handed {
			c.close()
		}
	}()
	switch c.settle(c.current.Load(), c.run(f)) {
	case nil:
		handed = true
		go c.serve()
	case errRests:
		handed = true
		c.letGo()
	}
}

// end leaves nothing of a request on the connection but what is known of its head.
func (c *conn) end() {
	c.current.Store(nil)
	c.rd.reset()
	c.wd.reset()
	if c.answer == nil { // the answer rested
		c.answer, c.head.header = make(http.Header), make(http.Header)
	}
	clear(c.answer)
	if len(c.head.lines) == 0 {
		c.head.forget()
	}
}

// begin makes x what a client's leaving cancels.
func (c *conn) begin(x *call) {
	c.current.Store(x)
	if !c.watched {
		c.watched = true
		c.s.watch.add(c)
	}
	if c.gone.Load() {
		x.ctx.Cancel()
	}
}

// handle runs the handler. It reports whether that returned, and did not panic.
func (c *conn) handle(w http.ResponseWriter, r *http.Request) (returned bool) {
	defer c.recovered()
	c.s.handler.ServeHTTP(w, r)
	return true
}

// run is handle for what is left of a handler.
func (c *conn) run(f func()) (returned bool) {
	defer c.recovered()
	f()
	return true
}

// recovered is deferred where a handler may panic.
func (c *conn) recovered() {
	if v := recover(); v != nil && v != http.ErrAbortHandler {
		c.s.Log.Error("a handler panicked", "remote", c.remote, "panic", v, "stack", string(debug.Stack()))
	}
}

// body is a request's body: what the buffer holds of it, then the connection.
type body struct {
	c      *conn // nil after the request
	left   int64 // bytes not read yet
	closed bool
}

// Read implements io.Reader. It fails with http.ErrBodyReadAfterClose once the answer began or the body was closed.
func (b *body) Read(p []byte) (n int, err error) {
	if b.closed || b.c == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.read(p)
}

func (b *body) read(p []byte) (n int, err error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	if c := b.c; c.r < c.w {
		n = copy(p, c.in[c.r:c.w])
		c.r += n
	} else {
		n, err = c.read(p)
	}
	b.left -= int64(n)
	switch {
	case b.left == 0:
		return n, io.EOF
	case err == io.EOF:
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// Buffered is how many bytes a Read returns without waiting for the network.
func (b *body) Buffered() int {
	if b.closed || b.c == nil {
		return 0
	}
	return int(min(b.left, int64(b.c.w-b.c.r)))
}

// Close implements io.Closer. What is unread is drained with the answer.
func (b *body) Close() error {
	b.closed = true
	return nil
}

// drain reads what the handler left. It reports whether the connection is at the body's end.
func (b *body) drain() bool {
	if b.left == 0 || b.left > maxDrain {
		return b.left == 0
	}
	b.c.rd.ask(time.Now().Add(drainTimeout))
	defer b.c.rd.reset()
	chunk := chunks.Get().(*[]byte)
	defer chunks.Put(chunk)
	for {
		if _, err := b.read((*chunk)[:cap(*chunk)]); err != nil {
			return err == io.EOF
		}
	}
}
