package tolegacy

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// stream is the session's stream of messages that belong to no call.
type stream struct {
	stop  context.CancelFunc
	known chan struct{} // closed when err is set
	err   error         // why there is none
	tries int           // before it, in a row, of which none lasted
}

// A pinned stream that was lost is opened again after a pause that doubles, so many times in a row; then the server is one
// that cannot ask aside. One that lasted for longer than the longest pause begins anew. What a transport can resume it has
// resumed already (2025-11-25, basic/transports, Resumability and Redelivery).
const (
	firstReopen = time.Second
	lastReopen  = time.Minute
	maxReopens  = 10
)

// streamLocked is the stream, opened if there is none, after some tries; nil when it is too late for that.
func (h *hub) streamLocked(tries int) *stream {
	if h.stream != nil {
		return h.stream
	}
	st := &stream{known: make(chan struct{}), tries: tries}
	var ctx context.Context
	ctx, st.stop = context.WithCancel(h.server().tasks.Context())
	if !h.server().tasks.Run(func() { h.read(ctx, st) }) {
		st.stop()
		return nil
	}
	h.stream = st
	return st
}

// pin opens the stream for as long as the session lasts, and waits a moment for it: a server that asks before it is there
// may ask nobody. One without a stream goes on without. A process that is asked several things at once says on the stream
// what it says of none of them, so there it has to be open too.
func (h *hub) pin(ctx context.Context) {
	h.mu.Lock()
	h.pinned = true
	st := h.streamLocked(0)
	h.mu.Unlock()
	if st == nil {
		return
	}
	t := time.NewTimer(pinTime)
	defer t.Stop()
	select {
	case <-st.known:
	case <-t.C:
	case <-ctx.Done():
	}
}

// asksAside reports whether the server may ask outside of calls' streams: it has not said that it has no other.
func (h *hub) asksAside() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.pinned || h.stream == nil {
		return false
	}
	select {
	case <-h.stream.known:
		return h.stream.err == nil
	default:
		return true
	}
}

// close gives the stream up with the session.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pinned = false
	if h.again != nil {
		h.again.Stop()
	}
	if h.stream != nil {
		h.stream.stop()
	}
}

// hears reports whether the server has a stream. One that does not say within a short time is taken at its word later.
func (h *hub) hears(ctx context.Context, st *stream) (bool, error) {
	t := time.NewTimer(streamVerdict)
	defer t.Stop()
	select {
	case <-st.known:
	case <-t.C:
		return true, nil
	case <-ctx.Done():
		return false, upstream.GaveUp(ctx, h.server().name)
	}
	var failed *upstream.Error
	switch {
	case st.err == nil:
		return true, nil
	case errors.As(st.err, &failed) && failed.Kind != upstream.BadAnswer:
		return false, st.err
	}
	return false, nil // it answers GET with 405, or with something that is no stream
}

// read is the task that reads the stream.
func (h *hub) read(ctx context.Context, st *stream) {
	defer st.stop()
	begun := time.Now()
	events, err := h.session.session.Listen(ctx)
	st.err = err
	close(st.known)
	if err == nil {
		defer events.Close()
		for err == nil {
			var e mcp.Event
			if e, err = events.Next(); err == nil {
				h.message(ctx, e.Data)
			}
		}
		if time.Since(begun) > lastReopen {
			st.tries = 0
		}
		h.lost(st, err)
		return
	}
	if errors.Is(err, upstream.ErrNoStream) {
		return // for as long as there are listens, which hear nothing
	}
	h.lost(st, err)
}

// lost ends the listens of a stream that broke off for good: their clients listen again and look at everything anew.
func (h *hub) lost(st *stream, err error) {
	var failed *upstream.Error
	if !errors.As(err, &failed) {
		err = h.server().fault(upstream.Lost, "the server ended the stream of its changes", err)
	}
	if isGone(err) {
		h.server().pool.forget(h.session)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stream != st {
		return
	}
	h.stream = nil
	h.reopenLocked(st, err)
	if failed != nil && failed.Kind == upstream.BadAnswer {
		return // it never was one; the listens hear nothing
	}
	for l := range h.listens {
		l.end(err)
	}
}

// reopenLocked has a pinned stream opened again in a while, if that may help.
func (h *hub) reopenLocked(lost *stream, why error) {
	var failed *upstream.Error
	never := errors.As(why, &failed) && (failed.Kind == upstream.Unauthorized || failed.Kind == upstream.SessionGone ||
		failed.Kind == upstream.BadAnswer && failed.Status < http.StatusInternalServerError)
	if !h.pinned || h.ended || never || lost.tries >= maxReopens {
		return
	}
	pause := min(firstReopen<<lost.tries, lastReopen)
	h.again = time.AfterFunc(pause-rand.N(pause/4), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.pinned && !h.ended {
			h.streamLocked(lost.tries + 1)
		}
	})
}

// message takes in what the server says outside of calls' streams. What comes there should belong to no call, but servers
// exist that send all of their requests there, or all that they log, or progress on whichever stream is free. Progress
// names its call. The rest can be no other's while exactly one call of the session is in flight that may ask, or log; else
// nobody can be asked, or told.
func (h *hub) message(ctx context.Context, data []byte) {
	m, err := mcp.ScanAnswer(data)
	if err != nil {
		return
	}
	switch {
	case m.Kind == mcp.Notification:
		h.notification(&m)
	case m.Kind == mcp.Request:
		result := noSuchThing
		if m.Method == mcp.MethodPing {
			result = pong
		} else if k := h.session.calls.asker(); k != nil && isQuestion(m.Method) && k.declared.lacks(&m) == "" {
			k.questionAside(&m)
			return
		}
		ctx, stop := context.WithTimeout(ctx, h.server().settings.times.Handshake)
		defer stop()
		if err := h.session.reply(ctx, m.ID.Of(m.Raw), result); err != nil {
			h.server().log.Debug("a request of the server's could not be answered", "error", err)
		}
	}
}

// notification gives what the server says outside of calls' streams to whom it concerns.
func (h *hub) notification(m *mcp.Message) {
	var k *call
	switch m.Method {
	case mcp.NotificationProgress:
		k = h.session.calls.withToken(m.ProgressToken.Of(m.Raw))
	case mcp.NotificationMessage:
		k = h.session.calls.logger()
	default:
		h.publish(m)
	}
	if k != nil {
		k.notificationAside(m)
	}
}
