package sse

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/mailbox"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/settings"
)

// heldBytes is how much waits for a slow client, of a call or of what a session's server says outside of calls.
const heldBytes = 4 << 20

// call is one request in flight on a link.
type call struct {
	// Set by begin, never changed.
	link    *link
	key     string            // of the id
	id      []byte            // its token
	token   string            // the key of the progress token; empty when it gave none
	own     bool              // it is the sidecar's, which nothing else of the server's belongs to
	setting *settings.Setting // what the server grants with its result; nil for most
	box     *mailbox.Box
	ctx     context.Context // of the POST
	stop    context.CancelFunc

	status int // of an error that came as the answer to the POST; set before box is finished

	// Guarded by the link's lock.
	timer     *time.Timer
	unwatch   func() bool
	written   bool // the server has the whole request
	abandoned bool
	told      bool // the client's own cancellation went to the server
}

// errRepeated is begin's answer to an id that is in flight.
var errRepeated = errors.New("a request with this id is in flight")

// begin registers a request. ctx and timeout end it before its response; timeout 0 is none. Errors: errNotTaken when the
// link has ended, errRepeated, or an *upstream.Error.
func (l *link) begin(ctx context.Context, m *mcp.Message, timeout time.Duration, own bool) (*call, error) {
	k := &call{link: l, id: slices.Clone(m.ID.Of(m.Raw)), own: own, box: mailbox.New(l.server.log, heldBytes)}
	k.key = keyOf(k.id)
	if m.ProgressToken.Present() {
		k.token = keyOf(m.ProgressToken.Of(m.Raw))
	}
	if !own && settings.Is(m) {
		set := settings.New(m)
		k.setting = &set
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return nil, errNotTaken
	case l.findLocked(k.key) != nil:
		return nil, errRepeated
	case len(l.calls) == maxCalls:
		return nil, l.server.fault(upstream.Overloaded, fmt.Sprintf("%d calls of one session are in flight", maxCalls), nil)
	}
	k.ctx, k.stop = context.WithCancel(l.ctx)
	k.unwatch = context.AfterFunc(ctx, func() { l.abandon(k, l.server.client.failure(ctx, ctx.Err(), true)) })
	if timeout > 0 {
		k.timer = time.AfterFunc(timeout, func() {
			l.abandon(k, l.server.fault(upstream.TimedOut, "no whole answer within the time configured", nil))
		})
	}
	l.calls = append(l.calls, k)
	return k, nil
}

// disarmLocked ends what could end the call. Its POST may take a moment more: a response may overtake the answer to it.
func (k *call) disarmLocked() {
	k.unwatch()
	if k.timer != nil {
		k.timer.Stop()
	}
	if k.ctx.Err() == nil {
		time.AfterFunc(postTail, k.stop)
	}
}

// abandon ends a call before its response. The server is told, if it has the request; otherwise that is not sent to its
// end.
func (l *link) abandon(k *call, why error) {
	l.mu.Lock()
	there := l.removeLocked(k)
	k.abandoned = k.abandoned || there
	tell, unsent := there && k.written && !k.told, there && !k.written
	l.mu.Unlock()
	if !there {
		return
	}
	k.box.Fail(why)
	if unsent {
		k.stop()
	}
	if tell {
		l.cancelAtServer(k)
	}
}

// wrote notes that the server has the whole request. It may have been abandoned just before.
func (l *link) wrote(k *call) {
	l.mu.Lock()
	tell := k.abandoned && !k.written && !k.told
	k.written = true
	l.mu.Unlock()
	if tell {
		l.cancelAtServer(k)
	}
}

// cancelAtServer sends notifications/cancelled. An initialize must not be cancelled (basic/utilities, "Cancellation");
// its link ends instead.
func (l *link) cancelAtServer(k *call) {
	if !k.own {
		l.server.tasks.Run(func() { l.tell(cancelledMessage(k.id)) }) // or the link ends, which cancels too
	}
}

// clientCancelled notes that the client's own cancellation of a call goes to the server.
func (l *link) clientCancelled(id []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.findLocked(keyOf(id)); k != nil {
		k.told = true
	}
}

// send POSTs the request in the background; body is the call's own memory. Not every server answers a POST before it has
// answered the request, so nobody waits for that.
func (k *call) send(relay http.Header, body []byte) {
	l := k.link
	started := l.server.tasks.Run(func() {
		defer k.stop()
		if err := l.server.client.post(k.ctx, l, relay, l.session.caller.Load(), body, func() { l.wrote(k) }); err != nil {
			l.refuse(k, err)
		}
	})
	if !started {
		l.abandon(k, l.server.fault(upstream.Lost, "the upstream was removed", errClosed))
	}
}

// refuse ends a call whose POST failed, unless it has ended: with the error that the server gave, or as a failure.
func (l *link) refuse(k *call, err error) {
	why := l.refusedByServer(err) // which looks whether the link has ended
	l.mu.Lock()
	there := l.removeLocked(k)
	l.mu.Unlock()
	if !there {
		return
	}
	var r *rejection
	if errors.As(err, &r) && !errors.Is(why, errNotTaken) && !isKind(why, upstream.Unauthorized) {
		if m, err := mcp.ScanAnswer(r.body); err == nil && m.Error.Present() && m.Answers(k.id) {
			k.status = r.status
			k.box.Finish(m.Raw)
			return
		}
	}
	k.box.Fail(why)
}

// answer waits for the first message: when it is the response the answer is that, otherwise a stream.
func (k *call) answer() (*upstream.Answer, error) {
	first, last, err := k.box.Next(nil)
	switch {
	case err != nil:
		return nil, err
	case last && k.status != 0:
		return upstream.Whole(k.status, first), nil
	case last:
		return upstream.Whole(http.StatusOK, first), nil
	}
	events := &callEvents{call: k, first: first, stop: make(chan struct{})}
	return &upstream.Answer{Status: http.StatusOK, Length: -1, Events: events}, nil
}

// callEvents are a call's messages. Giving them up before the response cancels the call.
type callEvents struct {
	call  *call
	first []byte // owned by Next
	close sync.Once
	stop  chan struct{} // closed by Close
}

// Next implements upstream.EventStream.
func (e *callEvents) Next() (mcp.Event, error) {
	if data := e.first; data != nil {
		e.first = nil
		return mcp.Event{Data: data}, nil
	}
	data, _, err := e.call.box.Next(e.stop)
	if errors.Is(err, errNotTaken) { // too late to send it again: something of it was answered
		err = e.call.link.server.fault(upstream.Lost, "the server lost the session during the call", err)
	}
	return mcp.Event{Data: data}, err
}

// Ready implements upstream.EventStream.
func (e *callEvents) Ready() bool { return e.first != nil || e.call.box.HoldsAny() }

// Close implements upstream.EventStream.
func (e *callEvents) Close() error {
	e.close.Do(func() {
		close(e.stop)
		e.call.link.abandon(e.call, mailbox.ErrGivenUp)
	})
	return nil
}
