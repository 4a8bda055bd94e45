package streamable

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/settings"
)

const (
	cancelTime      = 2 * time.Second // for what nobody waits for: a notifications/cancelled, the end of a check's session
	closingTogether = 16              // sessions ended at once when a Server closes
)

// session is one client's legacy session. What the server calls it may change (incarnation); the client does not see that.
type session struct {
	// Set by Open, never changed.
	server       *Server
	initialize   []byte // the client's own, for opening the session again
	initializeID []byte // its id

	settings settings.Kept                      // has a lock of its own
	caller   atomic.Pointer[identity.Principal] // as it last called

	mu          sync.Mutex // guards below; taken before a listen's
	current     *incarnation
	initialized []byte // the client's notifications/initialized; nil until the server took it
	reopening   *flight[*incarnation]
	listens     []*listen // open streams, which end with an incarnation
	closed      bool
}

// incarnation is a session as the server knows it. It is never changed.
type incarnation struct {
	server  *Server
	id      string                              // Mcp-Session-Id; empty when the server keeps no sessions
	version string                              // negotiated, for MCP-Protocol-Version
	caller  *atomic.Pointer[identity.Principal] // its session's
}

// Call implements upstream.Session.
func (s *session) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	in, err := s.now()
	if err != nil {
		return nil, err
	}
	x, refused, err := s.send(ctx, in, c)
	if err == nil && in.forgotten(refused) {
		if in, err = s.reopen(ctx, in); err != nil {
			return nil, err
		}
		x, refused, err = s.send(ctx, in, c) // 404 said that the first did not happen
	}
	switch {
	case err != nil:
		return nil, err
	case in.forgotten(refused):
		return nil, s.gone("forgot its session twice in a row", nil)
	case refused != nil:
		return refused.answer(idOf(c.Message))
	}
	return s.accept(ctx, in, c.Message, x)
}

// accept makes the Answer of x, and remembers what the server took that must be told again to another incarnation.
func (s *session) accept(ctx context.Context, in *incarnation, m *mcp.Message, x *exchange) (*upstream.Answer, error) {
	answer, err := x.answer(m, func(x *exchange, _ *mcp.Message) upstream.EventStream {
		return s.callEvents(ctx, in, x)
	})
	switch {
	case err != nil:
		return nil, err
	case settings.Is(m):
		return s.watch(settings.New(m), x, answer)
	case m.Kind == mcp.Request:
		return answer, nil
	case m.Method == mcp.NotificationInitialized:
		s.remember(m.Raw)
	}
	return nil, nil
}

// send makes one attempt. It returns an exchange below status 400, or an error answer, or an error.
func (s *session) send(ctx context.Context, in *incarnation, c *upstream.Call) (*exchange, *errorAnswer, error) {
	r := request{
		method: http.MethodPost, body: c.Message.Raw, relay: c.Header, traceOnly: true,
		version: in.version, session: in.id, timeout: s.server.timeouts.Call, caller: s.callerOf(c),
	}
	if c.Message.Kind == mcp.Request {
		r.id, r.canceller = idOf(c.Message), in
	}
	x, err := s.server.client.send(ctx, &r)
	if err != nil || x.head.status < 400 {
		return x, nil, err
	}
	refused, err := x.errorAnswer()
	return nil, refused, err
}

// callerOf is who makes a call, and who makes the session's own requests from now on: the same principal, whose token may be
// another by now.
func (s *session) callerOf(c *upstream.Call) *identity.Principal {
	if s.server.client.varies && c.Caller != nil && c.Caller != s.caller.Load() {
		s.caller.Store(c.Caller)
	}
	return s.caller.Load()
}

// forgotten reports whether an answer says that the server does not know the session: 404, unless it is about the method.
func (in *incarnation) forgotten(r *errorAnswer) bool {
	return r != nil && r.status == http.StatusNotFound && in.id != "" && r.code != mcp.CodeMethodNotFound
}

// cancel implements canceller, with the call's own id. It takes a connection of its own, so it overtakes whatever the
// call's carries.
func (in *incarnation) cancel(id []byte) {
	ctx, stop := context.WithTimeout(in.server.tasks.Context(), cancelTime)
	defer stop()
	x, err := in.server.client.send(ctx, &request{
		method: http.MethodPost, body: cancelledMessage(id), version: in.version, session: in.id,
		timeout: cancelTime, caller: in.caller.Load(),
	})
	if err != nil {
		in.server.log.Debug("a cancellation was not taken", "error", err)
		return
	}
	x.discard()
}

// callEvents are a call's events, resumed when they break off.
func (s *session) callEvents(ctx context.Context, in *incarnation, x *exchange) upstream.EventStream {
	e := &struct { // one piece of memory
		events
		own resumption
	}{own: resumption{session: s, in: in, call: ctx, deadline: x.deadline}}
	e.begin(x)
	e.resumption = &e.own
	return &e.events
}

func (s *session) now() (*incarnation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, s.gone("the session was closed", errClosed)
	}
	return s.current, nil
}

func (s *session) remember(initialized []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.initialized = slices.Clone(initialized)
}

func (s *session) gone(detail string, cause error) error {
	return s.server.client.fault(upstream.SessionGone, detail, cause)
}

func isGone(err error) bool {
	var failed *upstream.Error
	return errors.As(err, &failed) && failed.Kind == upstream.SessionGone
}

// interruptListensLocked makes every open stream look at the session again.
func (s *session) interruptListensLocked() {
	for _, l := range s.listens {
		l.interrupt()
	}
}

// Close implements upstream.Session.
func (s *session) Close(ctx context.Context) error {
	s.server.mu.Lock()
	delete(s.server.sessions, s)
	s.server.mu.Unlock()
	s.mu.Lock()
	in, again := s.current, s.closed
	s.closed = true
	s.interruptListensLocked()
	s.mu.Unlock()
	if again {
		return nil
	}
	return s.end(ctx, in)
}

// end tells the server that an incarnation is not used any more. Servers may answer what they like.
func (s *session) end(ctx context.Context, in *incarnation) error {
	if in.id == "" {
		return nil
	}
	x, err := s.server.client.send(ctx, &request{
		method: http.MethodDelete, version: in.version, session: in.id,
		timeout: s.server.timeouts.Handshake, caller: s.caller.Load(),
	})
	if err != nil {
		return err
	}
	x.discard()
	return nil
}

// endAll closes sessions, several at once, until ctx ends; it returns the first error.
func endAll(ctx context.Context, sessions map[*session]struct{}) error {
	var g errgroup.Group
	g.SetLimit(closingTogether)
	for s := range sessions {
		g.Go(func() error { return s.Close(ctx) })
	}
	return g.Wait()
}
