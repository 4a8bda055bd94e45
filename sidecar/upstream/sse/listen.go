package sse

import (
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	backoffLeast = 500 * time.Millisecond
	backoffMost  = 30 * time.Second
)

// listen is a reader of what belongs to no call. While somebody listens, a session whose link ended is opened again
// without waiting for a call. Streams of one session share its messages: each goes to one of them.
//
// Next is for one goroutine, Close for any.
type listen struct {
	session *session
	ctx     context.Context // ends with Listen's, or with Close
	stop    context.CancelFunc
	end     sync.Once

	// Owned by Listen, then by Next.
	link     *link
	failures int // in a row
}

// Listen implements upstream.Session.
func (s *session) Listen(ctx context.Context) (upstream.EventStream, error) {
	l, err := s.live(ctx)
	if err != nil {
		return nil, err
	}
	s.listeners.Add(1)
	n := &listen{session: s, link: l}
	n.ctx, n.stop = context.WithCancel(ctx)
	return n, nil
}

// Next implements upstream.EventStream.
func (n *listen) Next() (mcp.Event, error) {
	for {
		if n.ctx.Err() != nil {
			return mcp.Event{}, io.EOF
		}
		if data, _, found, err := n.session.box.Take(); found {
			n.failures = 0
			return mcp.Event{Data: data}, err
		}
		select {
		case <-n.session.box.Wake():
		case <-n.ctx.Done():
		case <-n.link.over:
			if err := n.revive(); err != nil {
				return mcp.Event{}, err
			}
		}
	}
}

// revive waits for the session's next link, and opens it unless somebody else does.
func (n *listen) revive() error {
	for {
		l, err := n.session.now()
		if err != nil {
			return io.EOF // the session was closed
		}
		if l == n.link && n.pause() {
			l, err = n.session.reopen(n.ctx, l)
		}
		switch {
		case n.ctx.Err() != nil:
			return io.EOF
		case err == nil:
			n.link = l
			return nil
		case isGone(err), isKind(err, upstream.Unauthorized):
			return err
		}
	}
}

// pause waits before another attempt. The time grows with the failures and is spread, so that many sidecars do not come
// back at once. It reports whether the listener still waits.
func (n *listen) pause() bool {
	ceiling := min(backoffMost, 2*backoffLeast<<min(n.failures, 10))
	n.failures++
	t := time.NewTimer(backoffLeast + rand.N(ceiling-backoffLeast))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-n.ctx.Done():
		return false
	}
}

// Ready implements upstream.EventStream.
func (n *listen) Ready() bool { return n.session.box.HoldsAny() }

// Close implements upstream.EventStream.
func (n *listen) Close() error {
	n.end.Do(func() {
		n.session.listeners.Add(-1)
		n.stop()
		n.session.box.Signal() // for another stream, if this one took the last signal
	})
	return nil
}
