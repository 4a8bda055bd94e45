package streamable

import (
	"context"
	"errors"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// reopen opens the session again after the server forgot old; whoever needs it meanwhile waits for the same attempt.
func (s *session) reopen(ctx context.Context, old *incarnation) (*incarnation, error) {
	s.mu.Lock()
	f := s.reopening
	switch {
	case s.closed:
		s.mu.Unlock()
		return nil, s.gone("the session was closed", errClosed)
	case s.current != old:
		defer s.mu.Unlock()
		return s.current, nil
	case f == nil:
		f = newFlight[*incarnation]()
		if !s.server.tasks.Run(func() { f.land(s.replace(old)) }) {
			s.mu.Unlock()
			return nil, s.gone("the upstream was removed", errClosed)
		}
		s.reopening = f
	}
	s.mu.Unlock()
	return f.wait(ctx, func() error { return s.server.client.unreachable(ctx, ctx.Err()) })
}

// replace is reopen's task.
func (s *session) replace(old *incarnation) (*incarnation, error) {
	in, err := s.again(old)
	s.mu.Lock()
	s.reopening = nil
	closed := s.closed
	if err == nil && !closed {
		s.current = in
		s.interruptListensLocked()
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case closed:
		_ = s.end(s.server.tasks.Context(), in) // or the server forgets it in time
		return nil, s.gone("the session was closed", errClosed)
	}
	s.server.log.Info("opened a session again that the server had forgotten")
	return in, nil
}

// again does the handshake once more, as the client did it, and tells the server what it knew of the session.
func (s *session) again(old *incarnation) (*incarnation, error) {
	ctx, stop := context.WithTimeout(s.server.tasks.Context(), s.server.timeouts.Handshake)
	defer stop()
	in, _, err := s.server.handshake(ctx, s.initialize, s.initializeID, nil, s.caller.Load())
	switch {
	case in == nil && (err == nil || deniesSessions(err)):
		return nil, s.gone("forgot its session and does not open another", err)
	case err != nil:
		return nil, err
	}
	in.caller = &s.caller
	switch {
	case in.version != old.version:
		err = s.gone("came back with another protocol version", nil)
	default:
		err = s.catchUp(ctx, in)
	}
	if err != nil {
		s.server.tasks.Run(func() { _ = s.end(s.server.tasks.Context(), in) }) // or the server forgets it in time
		return nil, err
	}
	return in, nil
}

// deniesSessions reports whether a server answered initialize as one that has no sessions at that place any more.
func deniesSessions(err error) bool {
	var failed *upstream.Error
	return errors.As(err, &failed) &&
		(failed.Status == http.StatusNotFound || failed.Status == http.StatusMethodNotAllowed)
}

// catchUp brings a new incarnation to where the old one was: initialized, and with the session's settings.
func (s *session) catchUp(ctx context.Context, in *incarnation) error {
	s.mu.Lock()
	initialized := s.initialized
	s.mu.Unlock()
	if initialized != nil {
		x, err := s.server.client.send(ctx, &request{
			method: http.MethodPost, body: initialized, version: in.version, session: in.id, caller: s.caller.Load(),
			timeout: s.server.timeouts.Handshake,
		})
		if err != nil {
			return err
		}
		x.discard()
	}
	return s.restore(ctx, in)
}
