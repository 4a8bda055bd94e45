package tolegacy

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	queuedMessages = 256     // that a client has not taken yet; then the server has to wait
	queuedBytes    = 1 << 20 // likewise; one message may be longer
	// firstMessage is how long the HTTP status of an answer waits for the first message, which may decide it. It is less
	// than any time after which a silent connection is cut.
	firstMessage = 5 * time.Second
)

// reader is what one request of a client gets: messages, of which the last is the response. It is an
// upstream.EventStream. One goroutine fills it, and waits for room; others may offer what can be left out.
type reader struct {
	// Set by newReader, never changed.
	server *Server
	id     []byte // the request's, as its token
	token  []byte // its progress token, likewise; nil when it gave none
	level  level
	leave  func() // what the client's leaving does, unless the reader is done

	unwatch func() bool // set by watch

	wake chan struct{} // capacity 1: there is something for Next
	room chan struct{} // capacity 1: there is something for put

	mu     sync.Mutex // guards below
	queue  [][]byte
	size   int   // bytes in queue
	taken  int   // bytes of the process's budget: those of queue, and of what Next gave out last
	lent   int   // the latter
	done   bool  // nothing comes any more
	status int   // of the response, once done
	err    error // what comes after the queue; nil: the orderly end
}

func (s *Server) newReader(m *mcp.Message, l level) *reader {
	return &reader{
		server: s, id: bytes.Clone(m.ID.Of(m.Raw)), token: bytes.Clone(m.ProgressToken.Of(m.Raw)), level: l,
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
}

// watch makes the end of ctx the client's leaving.
func (r *reader) watch(ctx context.Context) {
	r.unwatch = context.AfterFunc(ctx, func() { r.giveUp(upstream.GaveUp(ctx, r.server.name)) })
}

// put adds a message. It waits while the client is slow, and reports whether the client will get it.
func (r *reader) put(ctx context.Context, data []byte) bool {
	for {
		added, done := r.offer(data)
		if added || done {
			return added
		}
		select {
		case <-r.room:
		case <-ctx.Done():
			return false
		}
	}
}

// offer adds a message if there is room; done says that there will be none.
func (r *reader) offer(data []byte) (added, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	full := len(r.queue) >= queuedMessages || r.size > 0 && r.size+len(data) > queuedBytes
	if r.done || full || !r.addLocked(data) {
		return false, r.done
	}
	signal(r.wake)
	return true, false
}

// addLocked adds a message, or reports that there is no memory for it. While nothing waits for the client there is some
// in any case: who has taken everything is told when there is room again.
func (r *reader) addLocked(data []byte) bool {
	switch {
	case len(r.queue) == 0:
		r.server.budget.Hold(len(data))
	case !r.server.budget.Take(len(data)):
		return false
	}
	r.queue, r.size, r.taken = append(r.queue, data), r.size+len(data), r.taken+len(data)
	return true
}

// finish adds the last message, if it is not nil, and then err. It reports whether the reader was still open.
func (r *reader) finish(response []byte, status int, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return false
	}
	r.done, r.status, r.err = true, status, err
	switch {
	case response == nil:
	case r.server.budget.Take(len(response)):
		r.queue, r.size, r.taken = append(r.queue, response), r.size+len(response), r.taken+len(response)
	default:
		r.err = upstream.Unread(r.server.name, budget.ErrSpent)
	}
	signal(r.wake)
	signal(r.room)
	return true
}

// giveUp ends the reader because its client is gone.
func (r *reader) giveUp(why error) {
	if r.finish(nil, 0, why) && r.leave != nil {
		r.leave()
	}
}

// answer waits for what decides the HTTP status: the response, or that something comes before it.
func (r *reader) answer(ctx context.Context) (*upstream.Answer, error) {
	if a, err, known := r.known(); known {
		return a, err
	}
	timer := time.NewTimer(firstMessage)
	defer timer.Stop()
	for {
		select {
		case <-r.wake:
		case <-timer.C:
			return r.events(), nil
		case <-ctx.Done():
			r.giveUp(upstream.GaveUp(ctx, r.server.name)) // as the watch does
		}
		if a, err, known := r.known(); known {
			return a, err
		}
	}
}

// known is the answer, if what is here decides it.
func (r *reader) known() (a *upstream.Answer, err error, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.done && len(r.queue) == 1 && r.err == nil:
		r.unwatch()
		response := r.queue[0]
		r.queue, r.taken = nil, 0 // what was taken is the body's to give back
		return &upstream.Answer{Status: r.status, Length: int64(len(response)), Body: r.server.budget.Body(response)}, nil, true
	case r.done && len(r.queue) == 0:
		r.unwatch()
		return nil, r.err, true
	}
	return r.events(), nil, len(r.queue) > 0
}

func (r *reader) events() *upstream.Answer {
	return &upstream.Answer{Status: 200, Length: -1, Events: r}
}

// Next implements upstream.EventStream.
func (r *reader) Next() (mcp.Event, error) {
	for {
		r.mu.Lock()
		r.giveLocked(r.lent)
		r.lent = 0
		switch {
		case len(r.queue) > 0:
			defer r.mu.Unlock()
			data := r.queue[0]
			r.queue, r.size, r.lent = r.queue[1:], r.size-len(data), len(data)
			signal(r.room)
			return mcp.Event{Data: data}, nil
		case r.done:
			defer r.mu.Unlock()
			if r.err == nil {
				return mcp.Event{}, io.EOF
			}
			return mcp.Event{}, r.server.shown(r.err)
		}
		r.mu.Unlock()
		<-r.wake
	}
}

// Ready implements upstream.EventStream.
func (r *reader) Ready() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done || len(r.queue) > 0
}

// Close implements upstream.EventStream. Before the response it is the client's leaving.
func (r *reader) Close() error {
	r.unwatch()
	r.giveUp(r.server.fault(upstream.Lost, "the answer was given up", context.Canceled))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue, r.size, r.lent = nil, 0, 0
	r.giveLocked(r.taken)
	return nil
}

func (r *reader) giveLocked(n int) {
	r.taken -= n
	r.server.budget.Give(n)
}

// signal says on a channel of capacity 1 that there is something.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
