package streamable

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	retryDefault = time.Second      // before a cut stream is resumed, unless the server says otherwise
	retryMost    = 30 * time.Second // whatever the server says
	maxResumes   = 5                // attempts in a row that bring nothing new
)

// resumption is what one stream of a legacy session needs to go on after a break. It belongs to the stream's Next.
type resumption struct {
	session  *session
	in       *incarnation
	call     context.Context // ends when the call is given up
	deadline time.Time       // the call's

	lastID   string // empty when there is nothing to resume after
	retry    time.Duration
	attempts int             // in a row
	ctx      context.Context // ends with call, or with the stream's Close; nil until the first break
	told     atomic.Bool     // the server was told that the call is given up
}

// errNotResumed is the cause when a server refuses to go on with a stream.
var errNotResumed = errors.New("not resumed")

// note remembers what an event says about resuming: after which event, when, and that there was progress.
func (r *resumption) note(event *mcp.Event) {
	if event.HasID {
		r.lastID = string(event.ID)
	}
	if event.Retry > 0 {
		r.retry = min(event.Retry, retryMost)
	}
	if event.HasID || isMessage(event) {
		r.attempts = 0
	}
}

// after asks for what follows the last event, once the stream broke with err. It waits before each attempt, and returns
// the exchange that carries the rest, or why there is none: err itself when the stream gave no ids to go on from. A call
// that is given up while no exchange carries it is cancelled at the server here.
func (r *resumption) after(e *events, err error) (*exchange, error) {
	if r.lastID == "" || !r.start(e) {
		return nil, err
	}
	for isBroken(err) && r.ctx.Err() == nil && r.attempts < maxResumes {
		r.attempts++
		if !r.wait() {
			err = r.session.server.client.unreachable(r.ctx, r.ctx.Err())
			break
		}
		var x *exchange
		if x, err = r.get(e.id); err == nil {
			return x, nil
		}
	}
	if r.ctx.Err() != nil && !e.current().told {
		r.session.server.tasks.Run(func() { r.cancel(e.id) })
	}
	return nil, err
}

// start makes, at the first break, the context that ends every wait from now on: with the call, or with e's Close, to
// which it leaves the means. It reports whether e is still open.
func (r *resumption) start(e *events) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.ctx == nil && !e.closed {
		r.ctx, e.stop = context.WithCancel(r.call)
	}
	return !e.closed
}

// wait lets the server's retry time pass, or reports that the call or the stream ended in it.
func (r *resumption) wait() bool {
	if r.retry == 0 {
		r.retry = retryDefault
	}
	t := time.NewTimer(r.retry)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.ctx.Done():
		return false
	}
}

// cancel implements canceller: it cancels the call at the server, once, unless only the stream was closed.
func (r *resumption) cancel(id []byte) {
	if (r.call.Err() != nil || !time.Now().Before(r.deadline)) && !r.told.Swap(true) {
		r.in.cancel(id)
	}
}

// get asks for the rest of the stream of the call with that id.
func (r *resumption) get(id []byte) (*exchange, error) {
	s := r.session
	x, err := s.server.client.send(r.ctx, &request{
		method: http.MethodGet, version: r.in.version, session: r.in.id, lastEventID: r.lastID,
		timeout: time.Until(r.deadline), id: id, canceller: r, caller: s.caller.Load(),
	})
	if err != nil {
		return nil, err
	}
	status := x.head.status
	if status == http.StatusOK && x.head.is(typeSSE) {
		return x, nil
	}
	x.discard()
	switch {
	case status == http.StatusNotFound:
		return nil, s.gone("forgot its session during a call, whose fate is unknown", errNotResumed)
	case status >= http.StatusInternalServerError:
		return nil, s.server.client.fault(upstream.Lost, fmt.Sprintf("answered %d for the rest of a stream", status), nil)
	}
	detail := fmt.Sprintf("the stream broke, and the server does not resume it (%d)", status)
	return nil, s.server.client.fault(upstream.Lost, detail, errNotResumed)
}

// isBroken reports whether a connection was the trouble, and not what the server said.
func isBroken(err error) bool {
	var failed *upstream.Error
	return errors.As(err, &failed) && (failed.Kind == upstream.Lost || failed.Kind == upstream.Unreachable) &&
		failed.Cause != errNotResumed
}
