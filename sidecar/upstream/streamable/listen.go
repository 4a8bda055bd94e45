package streamable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/lazyctx"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	backoffLeast = 500 * time.Millisecond
	backoffMost  = 30 * time.Second
)

// listen is the stream of messages that belong to no call: a GET that is made again, with pauses, whenever it ends.
//
// Next is for one goroutine, Close for any.
type listen struct {
	session *session
	ctx     lazyctx.Context // ends with Listen's, or with Close
	outer   lazyctx.Hooked  // on Listen's
	wake    chan struct{}   // capacity 1: that the session changed, not how often

	// Owned by Listen, then by Next.
	in       *incarnation // whose stream it is now
	reader   *mcp.EventReader
	lastID   string
	retry    time.Duration
	failures int // in a row

	mu     sync.Mutex // guards below
	x      *exchange
	closed bool
}

// ContextEnded implements lazyctx.Hook: Listen's context has ended.
func (l *listen) ContextEnded() { l.ctx.Cancel() }

// Listen implements upstream.Session.
func (s *session) Listen(ctx context.Context) (upstream.EventStream, error) {
	l := &listen{session: s, wake: make(chan struct{}, 1), reader: mcp.NewEventReader(nil, maxEvent)}
	l.outer = lazyctx.OnEnd(ctx, l)
	s.track(l)
	if err := l.connect(); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (s *session) track(l *listen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listens = append(s.listens, l)
}

func (s *session) untrack(l *listen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.listens, l); i >= 0 {
		s.listens = slices.Delete(s.listens, i, i+1)
	}
}

// connect opens the stream, and the session before it when the server has forgotten that.
func (l *listen) connect() error {
	in, err := l.session.now()
	if err != nil {
		return err
	}
	x, err := l.get(in)
	if err == nil && x.head.status == http.StatusNotFound && in.id != "" {
		x.discard()
		if in, err = l.session.reopen(&l.ctx, in); err != nil {
			return err
		}
		x, err = l.get(in)
	}
	if err != nil {
		return err
	}
	switch status := x.head.status; {
	case status == http.StatusOK && x.head.is(typeSSE):
		x.conn.limitNow(time.Time{})
		l.goOn(x)
		return nil
	case status == http.StatusMethodNotAllowed, status == http.StatusNotFound:
		x.discard()
		return upstream.ErrNoStream
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		_, err := x.errorAnswer()
		return err
	default:
		return x.refuse(fmt.Sprintf("answered %d when asked for its stream", status))
	}
}

// get asks for the stream.
func (l *listen) get(in *incarnation) (*exchange, error) {
	if in != l.in {
		l.in, l.lastID = in, "" // ids are the old session's
	}
	return l.session.server.client.send(&l.ctx, &request{
		method: http.MethodGet, version: in.version, session: in.id, lastEventID: l.lastID,
		timeout: l.session.server.timeouts.Call, // for the head
		caller:  l.session.caller.Load(),
	})
}

// goOn makes x the stream's exchange, if it still is its session's.
func (l *listen) goOn(x *exchange) {
	l.reader.Reset(x)
	l.reader.Rest(x.await, x.buffered)
	l.mu.Lock()
	l.x = x
	closed := l.closed
	l.mu.Unlock()
	select {
	case <-l.wake: // about a change that connect knew of
	default:
	}
	if in, err := l.session.now(); closed || err != nil || in != l.in {
		x.finish(false)
	}
}

// interrupt makes a Next that waits look at the session again.
func (l *listen) interrupt() {
	select {
	case l.wake <- struct{}{}:
	default: // it will already
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.x != nil {
		l.x.finish(false)
	}
}

// Next implements upstream.EventStream.
func (l *listen) Next() (mcp.Event, error) {
	for {
		event, err := l.reader.Next()
		if err == mcp.ErrIdle {
			return mcp.Event{}, err
		}
		if err != nil {
			if err = l.reconnect(err); err != nil {
				return mcp.Event{}, err
			}
			continue
		}
		l.note(&event)
		if !isMessage(&event) {
			continue
		}
		m, err := scanEvent(event.Data)
		keepMessage(m)
		if err != nil {
			l.session.server.log.Warn("dropped an event that is not a JSON-RPC message", "error", err)
			continue
		}
		return event, nil
	}
}

func (l *listen) note(event *mcp.Event) {
	if event.HasID {
		l.lastID = string(event.ID)
	}
	if event.Retry > 0 {
		l.retry = min(event.Retry, backoffMost)
	}
	l.failures = 0
}

// reconnect opens the stream again, until that succeeds or there is a reason to stop.
func (l *listen) reconnect(err error) error {
	l.x.finish(false)
	if errors.Is(err, mcp.ErrEventTooLarge) {
		return l.x.refuseEvent(err) // it would only come again
	}
	for {
		in, err := l.session.now()
		if err != nil {
			return io.EOF
		}
		if in == l.in {
			l.pause()
		}
		if l.ctx.Err() != nil {
			return l.ended()
		}
		switch err = l.connect(); {
		case err == nil:
			return nil
		case errors.Is(err, upstream.ErrNoStream):
			return io.EOF
		case isFinal(err):
			return err
		}
	}
}

// isFinal reports whether trying again would be in vain.
func isFinal(err error) bool {
	var failed *upstream.Error
	return isGone(err) || errors.As(err, &failed) && failed.Kind == upstream.Unauthorized
}

// ended is io.EOF when the stream was closed or the session was, and otherwise why the context ended.
func (l *listen) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return io.EOF
	}
	return l.session.server.client.unreachable(&l.ctx, l.ctx.Err())
}

// pause waits before another attempt, or until the session or the stream changes. The time grows with the failures and
// is spread, so that many sidecars do not come back at once.
func (l *listen) pause() {
	ceiling := min(backoffMost, 2*backoffLeast<<min(l.failures, 10))
	l.failures++
	t := time.NewTimer(max(l.retry, backoffLeast+rand.N(ceiling-backoffLeast)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.ctx.Done():
	case <-l.wake:
	}
}

// Ready implements upstream.EventStream. Messages outside of calls are rare: each is flushed.
func (l *listen) Ready() bool { return false }

// Poll implements upstream.Awaiter.
func (l *listen) Poll() (mcp.Event, error) {
	l.reader.Poll(true)
	defer l.reader.Poll(false)
	return l.Next()
}

// Await implements upstream.Awaiter.
func (l *listen) Await() { l.reader.Await() }

// Close implements upstream.EventStream.
func (l *listen) Close() error {
	l.session.untrack(l)
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.outer.Undo()
	l.ctx.Cancel()
	l.interrupt()
	return nil
}
