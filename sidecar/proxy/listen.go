package proxy

import (
	"context"
	"io"

	"github.com/outrigger-mesh/outrigger/sidecar/lazyctx"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/session"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// subscription is the answer to a stateless client's subscriptions/listen: its server's events, copied through.
type subscription struct {
	x        *exchange
	out      *eventWriter
	events   upstream.EventStream
	awaiter  upstream.Awaiter // events, if they are one
	ended    context.Context  // over when the answer has to end
	known    *open            // nil where its endpoint has no guard
	stop     func() bool      // takes that end off
	waited   bool             // await is over: from here on next waits, where there is no awaiter
	answered bool             // the response has passed
}

// subscribe carries a listen's answer. It ends with the server's, the client, and the endpoint.
func (x *exchange) subscribe(events upstream.EventStream) error {
	l := &subscription{x: x, out: x.openEvents(), events: events}
	l.awaiter, _ = events.(upstream.Awaiter)
	l.ended, l.known = x.enlist(true, l.out)
	l.stop = context.AfterFunc(l.ended, func() { events.Close() })
	return x.last(l)
}

// step implements lasting.
func (l *subscription) step() (more bool, err error) {
	for {
		event, err := l.next()
		switch {
		case err == mcp.ErrIdle:
			l.out.idle()
			return true, nil
		case err != nil:
			return false, l.over(err)
		}
		if !l.x.mayHear(event.Data) {
			continue
		}
		outcome := mcp.PeekOutcome(event.Data)
		l.x.outcome = recorded(outcome)
		l.answered = l.answered || outcome != mcp.OutcomeUnknown
		if l.out.send(mcp.Event{Data: event.Data}) != nil {
			return false, errClientGone
		}
		l.known.heard()
	}
}

// next is the next event, or mcp.ErrIdle when it has to be waited for.
func (l *subscription) next() (mcp.Event, error) {
	if l.awaiter != nil {
		return l.awaiter.Poll()
	}
	if !l.waited && !l.events.Ready() {
		return mcp.Event{}, mcp.ErrIdle
	}
	l.waited = false
	return l.events.Next()
}

// over ends an answer whose events ended with err.
func (l *subscription) over(err error) error {
	switch {
	case !l.answered && l.ended.Err() != nil:
		return l.out.send(mcp.Event{Data: l.x.listenEnd()})
	case err != io.EOF:
		l.out.fail(err)
	}
	return nil
}

// listenEnd is the graceful end of a listen (basic/patterns/subscriptions, Closing): the request's result.
func (x *exchange) listenEnd() []byte {
	id := x.msg.ID.Of(x.msg.Raw)
	b := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
	b = append(b, `,"result":{"resultType":"complete","_meta":{"`+mcp.MetaKeySubscriptionID+`":`...)
	return append(append(b, id...), `}}}`...)
}

// await implements lasting, on the stack of a goroutine that has done nothing else.
func (l *subscription) await(wake func()) {
	go func() {
		if l.awaiter != nil {
			l.awaiter.Await()
		}
		l.waited = true
		wake()
	}()
}

// end implements lasting.
func (l *subscription) end() {
	l.stop()
	l.known.drop()
	l.out.close()
	_ = l.events.Close() // nothing could be done about it
}

// following is the answer to a legacy client's GET: what a Reader hands out.
type following struct {
	x    *exchange
	out  *eventWriter
	r    *session.Reader
	gone lazyctx.Hooked

	ended context.Context // over when the answer has to end
	known *open           // nil where its endpoint has no guard
	stop  func() bool     // takes that end off
}

// follow sends what a Reader hands out, after the event first if that has an id. It ends with the stream, the client, the
// endpoint, and when another connection reads the stream.
func (x *exchange) follow(r *session.Reader, first mcp.Event) error {
	l := &following{x: x, out: x.openEvents(), r: r}
	l.gone = lazyctx.OnEnd(x.ctx, l)
	l.ended, l.known = x.enlist(true, l.out)
	l.stop = context.AfterFunc(l.ended, r.Wake)
	if first.HasID {
		_ = l.out.send(first)
	}
	return x.last(l)
}

// ContextEnded implements lazyctx.Hook: the client is gone.
func (l *following) ContextEnded() { l.r.Wake() }

// step implements lasting.
func (l *following) step() (more bool, err error) {
	for {
		number, data, err := l.r.Poll()
		switch {
		case data != nil:
		case err == io.EOF:
			return false, nil
		case l.x.ctx.Err() != nil:
			l.x.outcome = telemetry.Cancelled
			return false, nil
		case err != nil || l.ended.Err() != nil:
			return false, nil
		default:
			l.out.idle()
			return true, nil
		}
		if !l.x.mayHear(data) {
			continue
		}
		l.out.id = l.r.Stream().AppendEventID(l.out.id[:0], number)
		if l.out.send(mcp.Event{ID: l.out.id, HasID: true, Data: data}) != nil {
			return false, errClientGone
		}
	}
}

// await implements lasting.
func (l *following) await(wake func()) { l.r.Await(wake) }

// end implements lasting.
func (l *following) end() {
	l.stop()
	l.known.drop()
	l.gone.Undo()
	l.out.close()
	l.r.Detach()
}
