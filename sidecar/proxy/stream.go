package proxy

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/lazyctx"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/session"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// keepAlive is the comment sent on a quiet stream.
var keepAlive = []byte(": keep-alive\n\n")

// longData is how long an event's data must be to be written from where it is, in bytes. Shorter data is copied, so that
// the event is written at once.
const longData = 16 << 10

var eventEnd = []byte(mcp.EventEnd)

// eventWriter is an open SSE answer. What is written goes out at the next flush, which comes before every wait; after a
// quiet time a comment is sent. Its methods may be called by several goroutines.
type eventWriter struct {
	x       *exchange
	control http.ResponseController
	id      []byte // space for an event's id; owned by who sends

	mu     sync.Mutex // guards below, and writing
	buf    []byte
	quiet  *time.Timer // nil until the first flush: most answers end before
	failed error       // the first failure; nothing is written after it
}

// eventWriters are those that never flushed: of one with a timer a comment may be under way.
var eventWriters = sync.Pool{New: func() any { return new(eventWriter) }}

// openEvents begins an SSE answer. close must follow.
func (x *exchange) openEvents() *eventWriter {
	h := x.w.Header()
	h["Content-Type"] = sseType
	h["Cache-Control"] = noStore
	h["X-Accel-Buffering"] = unbuffer
	x.writeHeader(http.StatusOK)
	x.ep.metrics.Streams[telemetry.EraIndex(x.era)].Inc()
	s := eventWriters.Get().(*eventWriter)
	s.x, s.control = x, *http.NewResponseController(x.w)
	return s
}

// send writes one event.
func (s *eventWriter) send(e mcp.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(e.Data) > longData {
		if start, ok := mcp.AppendEventStart(s.buf[:0], e); ok {
			s.buf = start
			s.writeLocked(start)
			s.writeLocked(e.Data)
			s.writeLocked(eventEnd)
			return s.failed
		}
	}
	s.buf = mcp.AppendEvent(s.buf[:0], e)
	s.writeLocked(s.buf)
	if cap(s.buf) > keptBody {
		s.buf = nil
	}
	return s.failed
}

// flush sends what was written. It is called before anything is waited for.
func (s *eventWriter) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushLocked()
	if s.quiet == nil {
		s.quiet = time.AfterFunc(s.x.ep.keepAlive, s.comment)
	} else {
		s.quiet.Reset(s.x.ep.keepAlive)
	}
	return s.failed
}

// sendNow is send and flush.
func (s *eventWriter) sendNow(e mcp.Event) error {
	if err := s.send(e); err != nil {
		return err
	}
	return s.flush()
}

// idle is flush before a wait that may last: it leaves no memory for the next event.
func (s *eventWriter) idle() {
	_ = s.flush() // a client that is gone shows when the next event is sent, or ends the request's context
	s.mu.Lock()
	s.buf = nil
	s.mu.Unlock()
}

// next takes the data of a server's next event. If that may take time, what was written is flushed first.
func (s *eventWriter) next(events upstream.EventStream) ([]byte, error) {
	if !events.Ready() {
		_ = s.flush() // a client that is gone shows when the event is sent, or ends the call by its context
	}
	ev, err := events.Next()
	return ev.Data, err
}

func (s *eventWriter) comment() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeLocked(keepAlive)
	s.flushLocked()
	if s.failed == nil {
		s.quiet.Reset(s.x.ep.keepAlive)
	}
}

func (s *eventWriter) writeLocked(b []byte) {
	if s.failed == nil {
		s.failed = s.x.write(b)
	}
}

func (s *eventWriter) flushLocked() {
	if s.failed == nil {
		s.failed = s.control.Flush()
	}
}

// close ends the writing; the answer itself ends when the handler returns. Nobody may use s afterwards.
func (s *eventWriter) close() {
	s.x.ep.metrics.Streams[telemetry.EraIndex(s.x.era)].Dec()
	s.mu.Lock()
	waited := s.quiet != nil
	if waited {
		s.quiet.Stop()
		s.failed = cmp.Or(s.failed, errClientGone) // a comment that was about to be written is not
	}
	s.mu.Unlock()
	if !waited {
		s.x, s.control, s.failed = nil, http.ResponseController{}, nil
		eventWriters.Put(s)
	}
}

// fail says on an open stream what ended it.
func (s *eventWriter) fail(err error) {
	s.mu.Lock()
	_, e, _ := s.x.show(err)
	s.mu.Unlock()
	_ = s.send(mcp.Event{Data: mcp.AppendError(nil, e.ID, e)}) // a client that is gone cannot be told
}

// relay copies a stateless answer's events through. The wire has no event ids: a stream that breaks is lost.
func (x *exchange) relay(events upstream.EventStream) error {
	out := x.openEvents()
	defer out.close()
	ended, o := x.enlist(false, out)
	defer o.drop()
	if ended != nil {
		stop := context.AfterFunc(ended, func() { events.Close() })
		defer stop()
	}
	for {
		data, err := out.next(events)
		switch {
		case err == io.EOF:
			return nil
		case err != nil && ended != nil && ended.Err() != nil:
			out.fail(credentialEnded())
			return nil
		case err != nil:
			out.fail(err)
			return nil
		}
		x.outcome = outcomeOf(data)
		if err := out.send(mcp.Event{Data: data}); err != nil {
			return errClientGone
		}
	}
}

// keep copies a legacy call's events through, and keeps them for a client that comes back: leaving is no cancellation on
// that wire (2025-11-25, basic/transports, Sending Messages to the Server), so the copying ends with the events. The
// connection is held as long; what the session holds for its client is let go when that leaves.
func (x *exchange) keep(st *session.Stream, version string, events upstream.EventStream) error {
	defer st.End()
	reader := st.Attach()
	defer reader.Detach()
	gone := lazyctx.OnEnd(x.ctx, reader)
	defer gone.Undo()
	out := x.openEvents()
	defer out.close()
	ended, o := x.enlist(false, out)
	defer o.drop()
	if ended != nil {
		stop := context.AfterFunc(ended, func() { events.Close() })
		defer stop()
	}
	if first := priming(version, reader); first.HasID && out.send(first) != nil {
		reader.Detach()
	}
	for {
		data, err := out.next(events)
		if err == io.EOF {
			return nil
		}
		if err != nil && ended != nil && ended.Err() != nil {
			err = credentialEnded()
		}
		data = x.keepable(data, err)
		number, mine := st.Append(data, reader)
		out.id = st.AppendEventID(out.id[:0], number)
		if mine && out.send(mcp.Event{ID: out.id, HasID: true, Data: data}) != nil {
			reader.Detach()
		}
		if err != nil {
			return nil
		}
	}
}

// keepable is the message that a stream goes on with: the server's, or what ended the server's stream.
func (x *exchange) keepable(data []byte, err error) []byte {
	if err == nil {
		x.outcome = outcomeOf(data)
		return data
	}
	_, e, _ := x.show(err)
	return mcp.AppendError(nil, e.ID, e)
}

// reconnectAfter is how long a client should wait before it resumes a stream that broke.
const reconnectAfter = time.Second

// priming is the event that gives a client something to resume from before there was a message, and says when to. Only
// 2025-11-25 has it (basic/transports, Sending Messages to the Server); for others it has no id.
func priming(version string, r *session.Reader) mcp.Event {
	if version != mcp.Version20251125 {
		return mcp.Event{}
	}
	return mcp.Event{ID: r.Before(), HasID: true, Retry: reconnectAfter}
}
