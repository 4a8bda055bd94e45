// Package tostateless lets legacy clients, which know sessions only, use a stateless server (MCP 2026-07-28).
//
// A Server wraps another upstream.Server. What the wrapped one speaks itself goes straight through. When it speaks the
// stateless wire alone, a client's initialize is answered from server/discover with a session that lives here, and that
// the server never hears of:
//
//   - A request gets the _meta and the headers that the stateless wire asks for, and its answer loses what only that wire
//     has, or what the client's version does not know yet (request.go, result.go).
//   - input_required becomes requests to the client on the call's own stream; its answers become the retry (call.go).
//   - Changed lists and subscribed resources come from one subscriptions/listen, which is replaced by a wider one before
//     a subscription is confirmed, and read a little longer so that nothing is lost (feed.go).
//   - ping and logging/setLevel are answered here; notifications/cancelled ends the call at the server at once. A client
//     that only leaves has not cancelled: that is for whoever owns the call's context to say.
//
// Tasks of 2025-11-25 and the tasks extension have nothing in common but the name, so neither is offered.
//
// A Server and its sessions are safe for concurrent use. A call has no goroutine of its own; a session has one while it
// listens, and one more for each listen that was replaced just now; Close waits for them. Not here: the other direction
// (package tolegacy), session ids and resumption (packages proxy and session).
package tostateless

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// Options are what a Server needs beside the one it wraps. Zero takes the default.
type Options struct {
	Log      *slog.Logger // with the upstream's name already; default: nothing is logged
	Upstream string       // the resource's name, which errors give

	// Name and Version are the serverInfo for a server that does not say who it is. Default "outrigger" and "0".
	Name, Version string

	MaxRounds     int           // how often one call may ask its client; default 10
	AnswerTimeout time.Duration // how long a client may take to answer what a call asks; default 5m
	Handshake     time.Duration // for server/discover, and until a listen is acknowledged; default 10s

	// Budget bounds the answers that are in memory, of this Server and of whoever else has it; default: none
	Budget *budget.Budget
}

func (o *Options) complete() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Name == "" {
		o.Name, o.Version = "outrigger", "0"
	}
	if o.MaxRounds <= 0 {
		o.MaxRounds = 10
	}
	if o.AnswerTimeout <= 0 {
		o.AnswerTimeout = 5 * time.Minute
	}
	if o.Handshake <= 0 {
		o.Handshake = 10 * time.Second
	}
}

// Server is a stateless server that legacy clients can use. It is an upstream.Server.
type Server struct {
	// Set by New, never changed.
	inner upstream.Server
	o     Options

	lastID      atomic.Int64 // of requests of our own at the server
	discoveries discoveries
	mirrored    mirror.Tools

	mu       sync.Mutex // guards below
	sessions map[*session]struct{}
	closed   bool
}

var _ upstream.Server = (*Server)(nil)

// New wraps inner, which it owns from then on. It asks nothing of it.
func New(inner upstream.Server, o Options) *Server {
	o.complete()
	return &Server{inner: inner, o: o, sessions: make(map[*session]struct{})}
}

// Eras implements upstream.Server: what the wrapped server speaks, and Legacy where it speaks Stateless.
func (s *Server) Eras(ctx context.Context) (mcp.Eras, error) {
	eras, err := s.inner.Eras(ctx)
	if err == nil && eras.Has(mcp.Stateless) {
		eras |= mcp.EraSet(mcp.Legacy)
	}
	return eras, err
}

// Call implements upstream.Server: stateless clients speak with the wrapped server as it is.
func (s *Server) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	return s.inner.Call(ctx, c)
}

// Open implements upstream.Server: with a session of the server's own where it has them, and with one of ours else.
func (s *Server) Open(ctx context.Context, c *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	eras, err := s.inner.Eras(ctx)
	if err != nil {
		return nil, nil, err
	}
	if eras.Has(mcp.Legacy) || !eras.Has(mcp.Stateless) {
		session, answer, err := s.inner.Open(ctx, c)
		if session != nil || !s.knowsNoSessions(ctx, err) {
			return session, answer, err
		}
		_ = answer.Close() // it says that there are no sessions
	}
	return s.mint(ctx, c)
}

// knowsNoSessions reports whether a server that was thought to have sessions refused one because it has none.
func (s *Server) knowsNoSessions(ctx context.Context, err error) bool {
	var failed *upstream.Error
	wrongEra := errors.As(err, &failed) && failed.Kind == upstream.WrongEra
	if err != nil && !wrongEra {
		return false
	}
	eras, err := s.inner.Eras(ctx)
	return err == nil && eras.Has(mcp.Stateless) && (wrongEra || !eras.Has(mcp.Legacy))
}

// Check implements upstream.Server.
func (s *Server) Check(ctx context.Context) error { return s.inner.Check(ctx) }

// Owner implements upstream.Directory where what is behind does.
func (s *Server) Owner(ctx context.Context, c *upstream.Call, method, name string) string {
	if d, ok := s.inner.(upstream.Directory); ok {
		return d.Owner(ctx, c, method, name)
	}
	return ""
}

// Close implements upstream.Server: it ends the sessions, then the wrapped server.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	all := s.sessions
	s.sessions = nil
	s.mu.Unlock()
	for c := range all {
		c.stop()
	}
	var errs []error
	for c := range all {
		errs = append(errs, c.feed.wait(ctx))
	}
	return errors.Join(append(errs, s.inner.Close(ctx))...)
}

// add keeps a session until it is closed. It is not ok once the Server was closed.
func (s *Server) add(c *session) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.sessions[c] = struct{}{}
	}
	return !s.closed
}

func (s *Server) remove(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, c)
}

func (s *Server) fault(kind upstream.Kind, detail string, cause error) *upstream.Error {
	return &upstream.Error{Kind: kind, Upstream: s.o.Upstream, Detail: detail, Cause: cause}
}

// forLegacy is a failure of the stateless wire as the legacy wire may see it: with no HTTP status, since 404 means there
// that the session is gone.
func forLegacy(err error) error {
	var failed *upstream.Error
	if !errors.As(err, &failed) || failed.Status == 0 {
		return err
	}
	shown := *failed
	shown.Status = 0
	return &shown
}
