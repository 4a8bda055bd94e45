package care

import (
	"context"
	"io"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// tracked is an answer on its way to the caller: a call in flight. It stands in the Answer for the endpoint's own body or
// events, whichever there is, and when these end, or are closed, tells the breaker and gives the place back.
//
// It is never used again for another call, since its caller may close it as late and as often as it likes.
type tracked struct {
	endpoint *endpoint
	ticket   uint64
	ctx      context.Context // the call's
	over     atomic.Bool     // the place is given back
	body     io.ReadCloser   // nil when there are events
	events   upstream.EventStream
}

// track follows a to its end.
func (s *Server) track(ctx context.Context, e *endpoint, ticket uint64, a *upstream.Answer) *upstream.Answer {
	switch {
	case a != nil && a.Body != nil:
		a.Body = &tracked{endpoint: e, ticket: ticket, ctx: ctx, body: a.Body}
	case a != nil && a.Events != nil:
		a.Events = &tracked{endpoint: e, ticket: ticket, ctx: ctx, events: a.Events}
	default:
		e.succeeded(ticket)
		e.left()
		s.gate.leave()
	}
	return a
}

// Read implements io.Reader.
func (t *tracked) Read(p []byte) (int, error) {
	n, err := t.body.Read(p)
	if err != nil {
		t.end(err)
	}
	return n, err
}

// Next implements upstream.EventStream.
func (t *tracked) Next() (mcp.Event, error) {
	event, err := t.events.Next()
	if err != nil {
		t.end(err)
	}
	return event, err
}

// Ready implements upstream.EventStream.
func (t *tracked) Ready() bool { return t.events.Ready() }

// Close implements io.Closer and upstream.EventStream. An answer that its caller gives up says nothing about the endpoint,
// nor does the error of a Next that waits meanwhile.
func (t *tracked) Close() error {
	first := t.over.CompareAndSwap(false, true)
	var err error
	if t.body != nil {
		err = t.body.Close()
	} else {
		err = t.events.Close()
	}
	if first {
		t.leave(noOutcome)
	}
	return err
}

// end is the end of what the endpoint had to say: io.EOF, or an error.
func (t *tracked) end(err error) {
	if !t.over.CompareAndSwap(false, true) {
		return
	}
	if err == io.EOF {
		t.leave(succeeded)
		return
	}
	t.leave(judge(t.ctx, err))
}

func (t *tracked) leave(outcome event) {
	t.endpoint.settle(t.ticket, outcome)
	t.endpoint.left()
	t.endpoint.server.gate.leave()
}
