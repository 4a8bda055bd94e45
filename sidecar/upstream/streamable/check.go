package streamable

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// checker is the legacy session that readiness checks keep, so that a check is a ping and not one initialize more.
type checker struct {
	turn    chan struct{} // capacity 1: one check at a time; its holder owns session
	session upstream.Session
}

// Check implements upstream.Server.
func (s *Server) Check(ctx context.Context) error {
	err := s.check(ctx)
	var failed *upstream.Error
	if s.client.credential.PerCaller() && errors.As(err, &failed) && failed.Kind == upstream.Unauthorized {
		return nil // it is there, and has nothing to say to who is no caller
	}
	return err
}

func (s *Server) check(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, s.timeouts.Handshake)
	defer stop()
	eras, err := s.Eras(ctx)
	if err != nil {
		return err
	}
	if eras.Has(mcp.Stateless) {
		return s.checkStateless(ctx)
	}
	select {
	case s.checker.turn <- struct{}{}:
		defer func() { <-s.checker.turn }()
		return s.checkLegacy(ctx)
	case <-ctx.Done():
		return s.client.unreachable(ctx, ctx.Err())
	}
}

// checkStateless takes any answer of MCP for a sign of health, but not a server's own trouble.
func (s *Server) checkStateless(ctx context.Context) error {
	status, body, err := s.discover(ctx, "")
	if err != nil {
		return err
	}
	if m, err := mcp.ScanAnswer(body); err != nil || m.Kind != mcp.Response || status >= http.StatusInternalServerError {
		return s.client.fault(upstream.BadAnswer, fmt.Sprintf("answered server/discover with %d and no response", status), err)
	}
	return nil
}

// checkLegacy opens the checker's session the first time, and pings on it from then on. A session that cannot be opened
// again makes room for a new one: the server may have come back as another release, and be well.
func (s *Server) checkLegacy(ctx context.Context) error {
	if s.checker.session == nil {
		return s.openChecker(ctx)
	}
	err := s.ping(ctx)
	if !isGone(err) {
		return err
	}
	s.abandon(s.checker.session)
	s.checker.session = nil
	return s.openChecker(ctx)
}

func (s *Server) ping(ctx context.Context) error {
	answer, err := s.checker.session.Call(ctx, &upstream.Call{Message: s.own.ping, Caller: upstream.Self})
	if err != nil {
		return err
	}
	_, _, err = upstream.ReadResponse(s.client.upstream, answer, nil, maxHandshake)
	return err
}

func (s *Server) openChecker(ctx context.Context) error {
	session, answer, err := s.Open(ctx, &upstream.Call{Message: s.own.initialize, Caller: upstream.Self})
	if err != nil {
		return err
	}
	if session == nil {
		_ = answer.Close() // a body in memory
		return s.client.fault(upstream.BadAnswer, "answered initialize with an error", nil)
	}
	if _, err := session.Call(ctx, &upstream.Call{Message: s.own.initialized, Caller: upstream.Self}); err != nil {
		s.abandon(session)
		return err
	}
	s.checker.session = session
	return nil
}

// abandon closes a session of the checker's in the background: no check waits for what the server says to that.
func (s *Server) abandon(session upstream.Session) {
	s.tasks.Run(func() { // or it ends with s
		ctx, stop := context.WithTimeout(s.tasks.Context(), cancelTime)
		defer stop()
		if err := session.Close(ctx); err != nil {
			s.log.Debug("a session of readiness checks was not closed", "error", err)
		}
	})
}
