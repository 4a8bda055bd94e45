package session

import (
	"context"
	"errors"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// Listen attaches to the stream of messages outside of calls, which GET reads. The first call opens it at the server;
// from then on a goroutine of the session's keeps what comes, with a Reader attached or without, until the server or the
// session ends: a client that leaves holds nothing. The call after that opens it again.
//
// ctx bounds the wait for another call's opening; the opening itself ends with the session. Errors are ctx's, and those of
// the server's Listen, as upstream.ErrNoStream. Detach must follow.
func (c *Session) Listen(ctx context.Context) (*Reader, error) {
	for {
		r, opening, mine := c.joinGeneral()
		switch {
		case r != nil:
			return r, nil
		case mine:
			return c.openGeneral()
		}
		select {
		case <-opening:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// joinGeneral attaches to the stream if it is open. Otherwise opening is closed once that was tried, which is the caller's
// to do if mine.
func (c *Session) joinGeneral() (r *Reader, opening chan struct{}, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if st := c.general; st != nil && st.ended.IsZero() {
		return st.attachLocked(st.sent), nil, false
	}
	if mine = c.opening == nil; mine {
		c.opening = make(chan struct{})
	}
	return nil, c.opening, mine
}

func (c *Session) openGeneral() (*Reader, error) {
	events, err := c.Upstream.Listen(&c.ctx)
	st, r := c.opened(err == nil)
	if err != nil {
		return nil, err
	}
	if !c.store.run(func() { c.await(st, events) }) {
		c.keep(st, events) // which ends at once, as the session has
	}
	return r, nil
}

// opened ends the wait of others for the opening, and attaches to a new stream if that succeeded.
func (c *Session) opened(ok bool) (st *Stream, r *Reader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.opening)
	c.opening = nil
	if !ok {
		return nil, nil
	}
	st = c.newStreamLocked()
	c.general = st
	return st, st.attachLocked(st.sent)
}

// openStream is the stream outside of calls; nil where none is open.
func (c *Session) openStream() *Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	if st := c.general; st != nil && st.ended.IsZero() {
		return st
	}
	return nil
}

// await keeps what comes. Most streams do little but wait, so that begins on the stack of a goroutine that has done nothing
// else.
func (c *Session) await(st *Stream, events upstream.EventStream) {
	if a, ok := events.(upstream.Awaiter); ok {
		a.Await()
	}
	c.keep(st, events)
}

// keep appends a server's messages to the stream until they end, or leaves that to another goroutine when more are to be
// waited for. A server that has forgotten the session ends it.
func (c *Session) keep(st *Stream, events upstream.EventStream) {
	next := events.Next
	if a, ok := events.(upstream.Awaiter); ok {
		next = a.Poll
	}
	for {
		ev, err := next()
		switch {
		case err == nil:
			st.Append(ev.Data, nil)
		case err != mcp.ErrIdle:
			c.EndIfGone(err)
			st.End()
			_ = events.Close() // nothing could be done about it
			return
		case c.store.run(func() { c.await(st, events) }):
			return
		default:
			next = events.Next // for the session's end, which is near
		}
	}
}

// EndIfGone ends the session when err says that the server's is gone for good: the client's next use of it finds none.
func (c *Session) EndIfGone(err error) {
	var e *upstream.Error
	if !errors.As(err, &e) || e.Kind != upstream.SessionGone {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	c.store.End(ctx, c.ID)
}
