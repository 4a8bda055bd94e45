package sse

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/mailbox"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/settings"
)

// session is one client's session. The link behind it may be another after the server forgot it; the client does not see
// that.
type session struct {
	// Set by newSession, never changed.
	server     *Server
	initialize mcp.Message  // the client's own, for opening the session again
	box        *mailbox.Box // what belongs to no call, until a stream takes it
	listeners  atomic.Int32

	settings settings.Kept                      // has a lock of its own
	caller   atomic.Pointer[identity.Principal] // as it last called

	mu          sync.Mutex // guards below; taken before a link's
	current     *link      // set by Open
	initialized []byte     // the client's notifications/initialized; nil until the server took it
	reopening   *flight
	closed      bool
}

func newSession(s *Server, c *upstream.Call) *session {
	ses := &session{server: s, box: mailbox.New(s.log, heldBytes)}
	ses.caller.Store(c.Caller)
	ses.initialize = *c.Message
	ses.initialize.Raw = slices.Clone(c.Message.Raw) // which the spans are of; nothing else of it is used
	return ses
}

// heard reports whether somebody reads the session's own stream.
func (s *session) heard() bool { return s.listeners.Load() > 0 }

// Call implements upstream.Session.
func (s *session) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	m := c.Message
	if c.Caller != nil {
		s.caller.Store(c.Caller) // the same principal, whose token may be another by now
	}
	switch {
	case m.Kind == mcp.Response:
		return nil, s.respond(ctx, c)
	case m.Method == mcp.NotificationCancelled && m.Kind == mcp.Notification:
		return nil, s.cancel(ctx, c)
	case m.Method == mcp.MethodInitialize && m.Kind == mcp.Request:
		return refusal(m, "the session is initialized already"), nil
	}
	l, err := s.live(ctx)
	if err != nil {
		return nil, err
	}
	a, err := s.attempt(ctx, l, c)
	if !errors.Is(err, errNotTaken) {
		return a, err
	}
	if l, err = s.reopen(ctx, l); err != nil {
		return nil, err
	}
	if a, err = s.attempt(ctx, l, c); errors.Is(err, errNotTaken) { // the first was not taken, so it was sent once
		return nil, s.gone("forgot its session twice in a row", err)
	}
	return a, err
}

// attempt sends a request or a notification once. It returns errNotTaken when the server did not take it for want of the
// session.
func (s *session) attempt(ctx context.Context, l *link, c *upstream.Call) (*upstream.Answer, error) {
	m := c.Message
	if m.Kind != mcp.Request {
		err := s.notify(ctx, l, c)
		if err == nil && m.Method == mcp.NotificationInitialized {
			s.remember(m.Raw)
		}
		return nil, err
	}
	k, err := l.begin(ctx, m, s.server.timeouts.Call, false)
	switch {
	case errors.Is(err, errRepeated):
		return refusal(m, err.Error()), nil
	case err != nil:
		return nil, err
	}
	k.send(travelling(c.Header), slices.Clone(m.Raw)) // the POST may outlive the answer
	return k.answer()
}

// notify sends a message that has no response, and waits until the server has accepted it.
func (s *session) notify(ctx context.Context, l *link, c *upstream.Call) error {
	bounded, stop := context.WithTimeout(ctx, s.server.timeouts.Call)
	defer stop()
	unwatch := context.AfterFunc(l.ctx, stop)
	defer unwatch()
	err := s.server.client.post(bounded, l, travelling(c.Header), s.caller.Load(), slices.Clone(c.Message.Raw), nil)
	switch {
	case err == nil:
		return nil
	case l.ctx.Err() != nil && isKind(err, upstream.Lost) && ctx.Err() == nil:
		return s.server.fault(upstream.Lost, "the event stream ended before the message was taken", err)
	}
	return l.refusedByServer(err)
}

// respond sends the client's response to a request of the server's. One to a request that this server did not make, or
// that it has an answer to, goes nowhere: after a re-opening another request may have the same id.
func (s *session) respond(ctx context.Context, c *upstream.Call) error {
	l, err := s.now()
	if err != nil {
		return err
	}
	if l.ended() || !l.settle(c.Message.ID.Of(c.Message.Raw)) {
		s.server.log.Debug("dropped a response to no request of the server's")
		return nil
	}
	return s.taken(s.notify(ctx, l, c))
}

// cancel sends the client's cancellation. After a re-opening there is nothing to cancel.
func (s *session) cancel(ctx context.Context, c *upstream.Call) error {
	l, err := s.now()
	if err != nil || l.ended() {
		return err
	}
	if id := c.Message.RequestID; id.Present() {
		l.clientCancelled(id.Of(c.Message.Raw))
	}
	return s.taken(s.notify(ctx, l, c))
}

// taken is the error for a message that would mean nothing to another link.
func (s *session) taken(err error) error {
	if errors.Is(err, errNotTaken) {
		return s.server.fault(upstream.Lost, "the server lost the session", err)
	}
	return err
}

// now is the current link, which may have ended.
func (s *session) now() (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, s.gone("the session was closed", errClosed)
	}
	return s.current, nil
}

// live is the current link, opened again when it has ended.
func (s *session) live(ctx context.Context) (*link, error) {
	l, err := s.now()
	if err == nil && l.ended() {
		return s.reopen(ctx, l)
	}
	return l, err
}

func (s *session) remember(initialized []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.initialized = slices.Clone(initialized)
}

// Close implements upstream.Session: the end of the event stream is the session's, and tells the server.
func (s *session) Close(context.Context) error {
	s.server.mu.Lock()
	delete(s.server.sessions, s)
	s.server.mu.Unlock()
	s.mu.Lock()
	l := s.current
	s.closed = true
	s.mu.Unlock()
	l.end(s.server.fault(upstream.Lost, "the session was closed", errClosed))
	return nil
}

func (s *session) gone(detail string, cause error) error {
	return s.server.fault(upstream.SessionGone, detail, cause)
}

func isGone(err error) bool { return isKind(err, upstream.SessionGone) }

func isKind(err error, kind upstream.Kind) bool {
	var failed *upstream.Error
	return errors.As(err, &failed) && failed.Kind == kind
}
