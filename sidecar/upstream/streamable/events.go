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
	maxEvent = 64 << 20               // bytes of one event, as of one message from a stdio server
	tailTime = 250 * time.Millisecond // how long the end of a stream may take after its last event
)

// events are the messages of one call's stream; the last is the response.
//
// Next is for one goroutine, Close for any. A stream of a legacy session can be resumed: one that broke off after the
// server gave event ids goes on where it was (2025-11-25, basic/transports, "Resumability and Redelivery").
type events struct {
	reader   *mcp.EventReader
	answered atomic.Bool

	resumption *resumption // nil when the stream cannot be resumed; owned by Next

	mu     sync.Mutex // guards below
	x      *exchange
	stop   context.CancelFunc // ends a resumption that waits; nil until the first break
	closed bool
}

// eventReaders are owned by one stream until its Next was called after the response, when nobody looks at the last
// event any more. A reader drops a buffer that is too large to keep.
var eventReaders = sync.Pool{New: func() any { return mcp.NewEventReader(nil, maxEvent) }}

func newEvents(x *exchange) *events {
	reader := eventReaders.Get().(*mcp.EventReader)
	reader.Reset(x)
	return &events{x: x, reader: reader}
}

// Next implements upstream.EventStream.
func (e *events) Next() (mcp.Event, error) {
	if e.answered.Load() {
		if e.reader != nil {
			e.reader.Reset(nil)
			eventReaders.Put(e.reader)
			e.reader = nil
		}
		return mcp.Event{}, io.EOF
	}
	for {
		event, err := e.reader.Next()
		if err != nil {
			if err = e.goOnAfter(err); err != nil {
				return mcp.Event{}, err
			}
			continue
		}
		if e.resumption != nil {
			e.resumption.note(&event)
		}
		if !isMessage(&event) {
			continue
		}
		m, err := scanAnswer(event.Data)
		if err != nil {
			return mcp.Event{}, e.current().refuseEvent(err)
		}
		if m.Kind == mcp.Response {
			e.answered.Store(true)
		}
		return event, nil
	}
}

// Ready implements upstream.EventStream.
func (e *events) Ready() bool {
	return e.answered.Load() || e.reader.Ready(e.current().buffered)
}

// isMessage tells messages from priming events, which have no data, and from events of other names, which are not MCP.
func isMessage(event *mcp.Event) bool {
	return len(event.Data) > 0 && (len(event.Type) == 0 || string(event.Type) == "message")
}

// goOnAfter resumes a stream that ended without its response, or says why that is the end.
func (e *events) goOnAfter(err error) error {
	err = e.current().streamFailure(err)
	if e.resumption == nil {
		return err
	}
	next, err := e.resumption.after(e, err)
	if err != nil {
		return err
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
	case x.stop != nil && !x.stop():
		x.finish(false) // the call was given up meanwhile
	default:
		// The call was answered: that its context ends now is no cancellation.
		x.stop = nil
		_ = x.conn.net.SetReadDeadline(time.Now().Add(tailTime)) // fails on a closed connection, as the read then does
		if !x.client.tasks.run(x.readEnd) {
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
