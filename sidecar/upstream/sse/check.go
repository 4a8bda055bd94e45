package sse

import (
	"context"

	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// checker is the session that readiness checks keep, so that a check is a ping and not one initialize more.
type checker struct {
	turn    chan struct{} // capacity 1: one check at a time; its holder owns session
	session upstream.Session
}

// Check implements upstream.Server: it opens the checker's session the first time, and pings on it from then on. A
// session that cannot be opened again makes room for a new one: the server may have come back as another release, and be
// well.
func (s *Server) Check(ctx context.Context) error {
	err := s.check(ctx)
	if s.client.credential.PerCaller() && isKind(err, upstream.Unauthorized) {
		return nil // it is there, and has nothing to say to who is no caller
	}
	return err
}

func (s *Server) check(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, s.timeouts.Handshake)
	defer stop()
	select {
	case s.checker.turn <- struct{}{}:
		defer func() { <-s.checker.turn }()
	case <-ctx.Done():
		return s.client.failure(ctx, ctx.Err(), false)
	}
	if s.checker.session == nil {
		return s.openChecker(ctx)
	}
	err := s.ping(ctx)
	if !isGone(err) {
		return err
	}
	_ = s.checker.session.Close(ctx) // which tells the server nothing that could fail
	s.checker.session = nil
	return s.openChecker(ctx)
}

// ping takes any response for a sign of health.
func (s *Server) ping(ctx context.Context) error {
	answer, err := s.checker.session.Call(ctx, &upstream.Call{Message: s.own.ping, Caller: upstream.Self})
	if err != nil || answer.Events == nil {
		return err
	}
	defer answer.Close()
	_, err = upstream.NextResponse(s.name, answer.Events)
	return err
}

func (s *Server) openChecker(ctx context.Context) error {
	session, _, err := s.Open(ctx, &upstream.Call{Message: s.own.initialize, Caller: upstream.Self})
	if err != nil {
		return err
	}
	if session == nil {
		return s.fault(upstream.BadAnswer, "answered initialize with an error", nil)
	}
	if _, err := session.Call(ctx, &upstream.Call{Message: s.own.initialized, Caller: upstream.Self}); err != nil {
		_ = session.Close(ctx) // which tells the server nothing that could fail
		return err
	}
	s.checker.session = session
	return nil
}
