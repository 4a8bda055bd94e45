package care

import (
	"context"
	"io"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// flight is a call in flight, which ends once: with the end of its answer, or when that is closed.
//
// It is never used again for another call, since whoever has the answer may close it as late and as often as he likes.
type flight struct {
	endpoint *endpoint
	ticket   uint64
	ctx      context.Context // the call's
	over     atomic.Bool
}

// trackedBody and trackedEvents stand in an Answer for what the endpoint gave, and see its end.
type trackedBody struct {
	flight
	inner io.ReadCloser
}

type trackedEvents struct {
	flight
	inner    upstream.EventStream
	answered atomic.Bool // the response has passed: what is left is the stream's end, which few wait for
}

// track follows a to its end. It costs one allocation of 64 bytes.
func (s *Server) track(ctx context.Context, e *endpoint, ticket uint64, a *upstream.Answer) *upstream.Answer {
	switch {
	case a != nil && a.Body != nil:
		a.Body = &trackedBody{flight{endpoint: e, ticket: ticket, ctx: ctx}, a.Body}
	case a != nil && a.Events != nil:
		t := &trackedEvents{flight: flight{endpoint: e, ticket: ticket, ctx: ctx}, inner: a.Events}
		if w, ok := a.Events.(upstream.Awaiter); ok {
			a.Events = &trackedSubscription{t, w}
		} else {
			a.Events = t
		}
	default:
		e.succeeded(ticket)
		e.left()
		s.gate.leave()
	}
	return a
}

// Read implements io.Reader.
func (t *trackedBody) Read(p []byte) (int, error) {
	n, err := t.inner.Read(p)
	if err != nil {
		t.end(err)
	}
	return n, err
}

// Close implements io.Closer.
func (t *trackedBody) Close() error { return t.giveUp(t.inner, noOutcome) }

// Next implements upstream.EventStream.
func (t *trackedEvents) Next() (mcp.Event, error) {
	return t.passed(t.inner.Next())
}

// passed notes what came.
func (t *trackedEvents) passed(event mcp.Event, err error) (mcp.Event, error) {
	if err != nil {
		t.end(err)
	} else if mcp.PeekOutcome(event.Data) != mcp.OutcomeUnknown {
		t.answered.Store(true)
	}
	return event, err
}

// trackedSubscription is trackedEvents of an upstream.Awaiter.
type trackedSubscription struct {
	*trackedEvents
	awaiter upstream.Awaiter
}

// Poll implements upstream.Awaiter.
func (t *trackedSubscription) Poll() (mcp.Event, error) {
	event, err := t.awaiter.Poll()
	if err == mcp.ErrIdle {
		return event, err
	}
	return t.passed(event, err)
}

// Await implements upstream.Awaiter.
func (t *trackedSubscription) Await() { t.awaiter.Await() }

// Ready implements upstream.EventStream.
func (t *trackedEvents) Ready() bool { return t.inner.Ready() }

// Close implements upstream.EventStream.
func (t *trackedEvents) Close() error {
	if t.answered.Load() {
		return t.giveUp(t.inner, succeeded)
	}
	return t.giveUp(t.inner, noOutcome)
}

// end is the end of what the endpoint had to say: io.EOF, or an error.
func (f *flight) end(err error) {
	if !f.over.CompareAndSwap(false, true) {
		return
	}
	if err == io.EOF {
		f.leave(succeeded)
		return
	}
	f.leave(judge(f.ctx, err))
}

// giveUp closes an answer. If that was not read to its end, outcome is what it said about the endpoint; the error of a Next
// that waits meanwhile says nothing.
func (f *flight) giveUp(answer io.Closer, outcome event) error {
	first := f.over.CompareAndSwap(false, true)
	err := answer.Close()
	if first {
		f.leave(outcome)
	}
	return err
}

// leave tells the breaker and gives the place back.
func (f *flight) leave(outcome event) {
	f.endpoint.settle(f.ticket, outcome)
	f.endpoint.left()
	f.endpoint.server.gate.leave()
}
