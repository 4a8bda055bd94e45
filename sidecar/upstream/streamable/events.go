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
	maxEvent = 64 << 20 // bytes of one event, as of one message from a stdio server

	retryDefault = time.Second      // before a cut stream is resumed, unless the server says otherwise
	retryMost    = 30 * time.Second // whatever the server says
	maxResumes   = 5                // attempts in a row that bring nothing new

	tailTime = 250 * time.Millisecond // how long the end of a stream may take after its last event
)

// events are the messages of one call's stream; the last is the response.
//
// Next is for one goroutine, Close for any. A stream of a legacy session can be resumed: one that broke off after the
// server gave event ids goes on where it was (2025-11-25, basic/transports, "Resumability and Redelivery").
type events struct {
	reader   *mcp.EventReader
	answered atomic.Bool

	// Owned by Next.
	lastID  string
	retry   time.Duration
	resumes int // in a row
	resume  func(lastID string) (*exchange, error)
	ctx     context.Context // with resume: ends with the call, or with Close
	stop    context.CancelFunc
	waited  func() error // with resume: the failure when ctx ended in between

	mu     sync.Mutex // guards below
	x      *exchange
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
		e.note(&event)
		if !isMessage(&event) {
			continue
		}
		m, err := mcp.Scan(event.Data, mcp.Limits{})
		if err != nil {
			return mcp.Event{}, e.current().refuseEvent(err)
		}
		if m.Kind == mcp.Response {
			e.answered.Store(true)
		}
		return event, nil
	}
}

// isMessage tells messages from priming events, which have no data, and from events of other names, which are not MCP.
func isMessage(event *mcp.Event) bool {
	return len(event.Data) > 0 && (len(event.Type) == 0 || string(event.Type) == "message")
}

// note remembers what resuming needs.
func (e *events) note(event *mcp.Event) {
	if e.resume == nil {
		return
	}
	if event.HasID {
		e.lastID = string(event.ID)
	}
	if event.Retry > 0 {
		e.retry = min(event.Retry, retryMost)
	}
	if event.HasID || isMessage(event) {
		e.resumes = 0
	}
}

// goOnAfter resumes a stream that ended without its response, or says why that is the end.
func (e *events) goOnAfter(err error) error {
	x := e.current()
	if err = x.streamFailure(err, "the stream ended before the response"); e.resume == nil || e.lastID == "" {
		return err
	}
	for isBroken(err) && e.ctx.Err() == nil {
		if e.resumes++; e.resumes > maxResumes {
			return err
		}
		if !sleep(e.ctx, orRetry(e.retry)) {
			return e.waited()
		}
		var next *exchange
		if next, err = e.resume(e.lastID); err == nil {
			e.goOn(next)
			return nil
		}
	}
	return err
}

// errNotResumed is the cause when a server refuses to go on with a stream.
var errNotResumed = errors.New("not resumed")

// isBroken reports whether a connection was the trouble, and not what the server said.
func isBroken(err error) bool {
	var failed *upstream.Error
	return errors.As(err, &failed) && (failed.Kind == upstream.Lost || failed.Kind == upstream.Unreachable) &&
		failed.Cause != errNotResumed
}

func orRetry(d time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return retryDefault
}

// goOn makes next the stream's exchange.
func (e *events) goOn(next *exchange) {
	e.mu.Lock()
	e.x = next
	closed := e.closed
	e.mu.Unlock()
	if closed {
		next.finish(false)
	}
	e.reader.Reset(next)
}

func (e *events) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

func (e *events) current() *exchange {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.x
}

// Close implements upstream.EventStream. After the response the connection is saved if the server ends the stream soon.
func (e *events) Close() error {
	e.mu.Lock()
	x, again := e.x, e.closed
	e.closed = true
	e.mu.Unlock()
	if e.stop != nil {
		e.stop()
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
	default:
		_ = x.conn.net.SetReadDeadline(time.Now().Add(tailTime)) // fails on a closed connection, as the read then does
		if !x.client.tasks.run(x.readEnd) {
			x.finish(false)
		}
	}
}

// streamFailure says what the end of an event stream means.
func (x *exchange) streamFailure(err error, atEOF string) error {
	var known *upstream.Error
	switch {
	case errors.As(err, &known):
		return err
	case err == io.EOF:
		x.finish(false)
		return x.client.fault(upstream.Lost, atEOF, nil)
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

// sleep waits, or reports that ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
