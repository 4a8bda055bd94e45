package streamable

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// maxEvent is in bytes, of one event. It bounds what a call can make the sidecar hold, since an event is read whole
	// while a body in JSON of any length passes through; stdio servers have a limit of their own, max_message_bytes.
	maxEvent = 16 << 20
	tailTime = 250 * time.Millisecond // how long the end of a stream may take after its last event
)

// events are the messages of one call's stream; the last is the response. What the server has no business to send there
// is dropped: responses to other requests, and on the stateless wire requests (basic/transports/streamable-http,
// "Sending Messages to the Server").
//
// Next is for one goroutine, Close for any. A stream of a legacy session can be resumed: one that broke off after the
// server gave event ids goes on where it was (2025-11-25, basic/transports, "Resumability and Redelivery").
type events struct {
	reader    *mcp.EventReader
	answered  atomic.Bool
	id        []byte // of the request
	stateless bool
	strayed   bool // a response to another request was dropped

	ahead  bool // Ready has called advance, whose results are next and failed
	next   mcp.Event
	failed error

	resumption *resumption // nil when the stream cannot be resumed; owned by Next

	mu     sync.Mutex // guards below
	x      *exchange
	stop   context.CancelFunc // ends a resumption that waits; nil until the first break
	closed bool
}

// eventReaders are owned by one stream until its Next was called after the response, when nobody looks at the last
// event any more. A reader drops a buffer that is too large to keep.
var eventReaders = sync.Pool{New: func() any { return mcp.NewEventReader(nil, maxEvent) }}

// begin makes e, which is new, the events of x.
func (e *events) begin(x *exchange) {
	e.x, e.id, e.reader = x, x.id, eventReaders.Get().(*mcp.EventReader)
	e.reader.Reset(x)
}

// Next implements upstream.EventStream.
func (e *events) Next() (mcp.Event, error) {
	if e.ahead {
		e.ahead = false
		return e.next, e.failed
	}
	if e.answered.Load() {
		if e.reader != nil {
			e.reader.Reset(nil)
			eventReaders.Put(e.reader)
			e.reader = nil
		}
		return mcp.Event{}, io.EOF
	}
	for {
		if event, passes, err := e.advance(); passes || err != nil {
			return event, err
		}
	}
}

// advance reads one event, or goes on after a break, and reports whether there is a message now that passes.
func (e *events) advance() (event mcp.Event, passes bool, err error) {
	if event, err = e.reader.Next(); err == mcp.ErrIdle {
		return mcp.Event{}, false, err
	} else if err != nil {
		return mcp.Event{}, false, e.goOnAfter(err)
	}
	if e.resumption != nil {
		e.resumption.note(&event)
	}
	if !isMessage(&event) {
		return mcp.Event{}, false, nil
	}
	if passes, err = e.judge(event.Data); err != nil {
		return mcp.Event{}, false, err
	}
	return event, passes, nil
}

// messages are what events are scanned into, one at a time: on its stack one would take a stream's goroutine more memory
// than all else that it needs, and for as long as it waits.
var messages = sync.Pool{New: func() any { return new(mcp.Message) }}

// scanEvent is mcp.ScanAnswer for an event's data. keepMessage must follow.
func scanEvent(data []byte) (*mcp.Message, error) {
	m := messages.Get().(*mcp.Message)
	return m, mcp.ScanInto(m, data, mcp.Limits{MaxDepth: mcp.AnswerDepth})
}

func keepMessage(m *mcp.Message) {
	*m = mcp.Message{}
	messages.Put(m)
}

// judge scans a message and reports whether it is for the client.
func (e *events) judge(data []byte) (passes bool, err error) {
	m, err := scanEvent(data)
	defer keepMessage(m)
	if err != nil {
		return false, e.current().refuseEvent(err)
	}
	return e.pass(m), nil
}

// pass reports whether a message is for the client, and takes note of the response.
func (e *events) pass(m *mcp.Message) bool {
	switch {
	case m.Kind == mcp.Response && !m.Answers(e.id):
		e.strayed = true
		e.current().client.log.Debug("dropped a response to another request than the stream's")
		return false
	case m.Kind == mcp.Request && e.stateless:
		e.current().client.log.Debug("dropped a request, which servers do not send on the stateless wire", "method", m.Method)
		return false
	case m.Kind == mcp.Response:
		e.answered.Store(true)
	}
	return true
}

// Ready implements upstream.EventStream. An event that is here may be dropped, so whether there is one to return is known
// only when it was looked at.
func (e *events) Ready() bool {
	for !e.ahead && !e.answered.Load() {
		if !e.reader.Ready(e.current().buffered) {
			return false
		}
		e.next, e.ahead, e.failed = e.advance()
		e.ahead = e.ahead || e.failed != nil
	}
	return true
}

// listened are the events of a listen, which take no buffer while there are none.
type listened struct{ events }

// Poll implements upstream.Awaiter.
func (s *listened) Poll() (mcp.Event, error) {
	if s.answered.Load() {
		return s.Next() // which may give the reader away
	}
	s.reader.Poll(true)
	defer s.reader.Poll(false)
	return s.Next()
}

// Await implements upstream.Awaiter.
func (s *listened) Await() {
	if !s.ahead && !s.answered.Load() {
		s.reader.Await()
	}
}

// isMessage tells messages from priming events, which have no data, and from events of other names, which are not MCP.
func isMessage(event *mcp.Event) bool {
	return len(event.Data) > 0 && (len(event.Type) == 0 || string(event.Type) == "message")
}

// goOnAfter resumes a stream that ended without its response, or says why that is the end.
func (e *events) goOnAfter(err error) error {
	err = e.current().streamFailure(err)
	if e.resumption == nil {
		return e.afterStraying(err)
	}
	next, err := e.resumption.after(e, err)
	if err != nil {
		return e.afterStraying(err)
	}
	e.mu.Lock()
	e.x = next
	closed := e.closed
	e.mu.Unlock()
	if closed {
		next.finish(false)
	}
	e.reader.Reset(next)
	return nil
}

// afterStraying is a stream's last error. If it was given up for want of the response, but had one to another request,
// the server has answered after all.
func (e *events) afterStraying(err error) error {
	var failed *upstream.Error
	if e.strayed && errors.As(err, &failed) && failed.Kind == upstream.Lost && e.current().ctx.Err() == nil {
		return e.current().client.fault(upstream.BadAnswer, anotherRequest, err)
	}
	return err
}

func (e *events) current() *exchange {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.x
}

// Close implements upstream.EventStream. After the response the connection is saved if the server ends the stream soon.
func (e *events) Close() error {
	e.mu.Lock()
	x, stop, again := e.x, e.stop, e.closed
	e.closed = true
	e.mu.Unlock()
	if stop != nil {
		stop()
	}
	switch {
	case again:
	case !e.answered.Load():
		x.finish(false)
	default:
		x.readTail()
	}
	return nil
}

// readTail finishes an exchange of which everything was read but the end itself.
func (x *exchange) readTail() {
	switch {
	case x.ended || !x.head.keep || !x.head.chunked || x.left > 0:
		x.finish(x.ended)
	case x.endIsHere():
		x.readEnd()
	case !x.unhook():
		x.finish(false) // the call was given up meanwhile
	default:
		// The call was answered: that its context ends now is no cancellation.
		x.hooks, x.stop = nil, nil
		x.conn.limitNow(time.Now().Add(tailTime))
		if !x.client.tasks.Run(x.readEnd) {
			x.finish(false)
		}
	}
}

// streamFailure says what the end of an event stream means.
func (x *exchange) streamFailure(err error) error {
	var known *upstream.Error
	switch {
	case errors.As(err, &known):
		return err
	case err == io.EOF:
		x.finish(false)
		return x.client.fault(upstream.Lost, "the stream ended before the response", nil)
	}
	return x.refuseEvent(err)
}

// refuseEvent gives up a stream that is not MCP, or too large.
func (x *exchange) refuseEvent(err error) error {
	x.finish(false)
	if errors.Is(err, mcp.ErrEventTooLarge) {
		return x.client.fault(upstream.Overloaded, "sent an event larger than the sidecar takes", err)
	}
	return x.client.fault(upstream.BadAnswer, "sent an event that is not a JSON-RPC message", err)
}
