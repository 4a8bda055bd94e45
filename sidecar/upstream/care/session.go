package care

import (
	"context"
	"errors"

	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// session is a legacy session, which stays with the endpoint that opened it.
type session struct {
	endpoint *endpoint
	inner    upstream.Session
}

// sessionAt is nil when inner is.
func sessionAt(e *endpoint, inner upstream.Session) upstream.Session {
	if inner == nil {
		return nil
	}
	return &session{endpoint: e, inner: inner}
}

// Call implements upstream.Session. Nothing of a session is sent again that may have happened: it would be a second
// request with the same id.
func (s *session) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	e := s.endpoint
	if !takesPlace(c.Message) {
		a, ticket, err := s.send(ctx, c)
		if err == nil {
			e.succeeded(ticket)
			e.left()
		}
		return a, err
	}
	if err := e.server.enter(ctx, e); err != nil {
		return nil, err
	}
	a, ticket, err := s.send(ctx, c)
	if err != nil {
		e.server.gate.leave()
		return nil, err
	}
	e.server.learnFrom(c.Message, a)
	return e.server.track(ctx, e, ticket, a), nil
}

// send sends a message of the session, and again while it certainly did not happen and the resource has attempts for it.
func (s *session) send(ctx context.Context, c *upstream.Call) (*upstream.Answer, uint64, error) {
	e := s.endpoint
	r := e.server.retries
	r.count()
	for attempt := 0; ; attempt++ {
		ticket, ok := e.admitSoon(ctx)
		if !ok {
			return nil, 0, e.refused(ctx)
		}
		e.entered()
		a, err := s.inner.Call(ctx, c)
		if attempt > 0 {
			e.server.resent.note(err)
		}
		if err == nil {
			e.answers(ticket)
			return a, ticket, nil
		}
		e.failed(ctx, ticket, err)
		if !isUnreachable(err) || !r.safe(c.Message) || !r.again(ctx, e.server.tasks.Context(), attempt) {
			return nil, 0, err
		}
	}
}

// Listen implements upstream.Session. The stream takes no place, and its end tells nothing.
func (s *session) Listen(ctx context.Context) (upstream.EventStream, error) {
	e := s.endpoint
	ticket, ok := e.admitSoon(ctx)
	if !ok {
		return nil, e.refused(ctx)
	}
	stream, err := s.inner.Listen(ctx)
	outcome := judge(ctx, err)
	var failure *upstream.Error
	if errors.As(err, &failure) && failure.Kind == upstream.BadAnswer {
		outcome = noOutcome // servers answer a GET as they like
	}
	e.settle(ticket, outcome)
	return stream, err
}

// Close implements upstream.Session.
func (s *session) Close(ctx context.Context) error { return s.inner.Close(ctx) }
