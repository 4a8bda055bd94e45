package sse

import (
	"context"
	"errors"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// flight is a re-opening that one task does and many callers wait for.
type flight struct {
	done chan struct{} // closed when the fields below are set
	link *link
	err  error
}

// connect opens a link and does the client's handshake on it. ctx bounds that. response is the client's form of the
// answer to initialize; without a link it is an error that the server gave.
func (s *session) connect(ctx context.Context, relay http.Header) (l *link, response []byte, err error) {
	relay = travelling(relay)
	l = newLink(s)
	unwatch := context.AfterFunc(ctx, l.stop)
	defer unwatch()
	if err = l.open(ctx, relay); err != nil {
		return nil, nil, err
	}
	response, err = l.initialize(ctx, relay)
	if err != nil || l.version() == "" {
		l.end(s.server.fault(upstream.Lost, "the session was not opened", err))
		return nil, response, err
	}
	return l, response, nil
}

// open asks for the event stream, and reads it from then on.
func (l *link) open(ctx context.Context, relay http.Header) error {
	body, err := l.server.client.get(l.ctx, ctx, relay, l.session.caller.Load())
	if err != nil {
		l.stop()
		return err
	}
	reader := mcp.NewEventReader(body, maxEvent)
	err = l.firstEvent(reader)
	if ctx.Err() != nil {
		err = l.server.client.failure(ctx, ctx.Err(), true)
	}
	if err == nil && !l.server.tasks.Run(func() { l.read(body, reader) }) {
		err = l.server.fault(upstream.Lost, "the upstream was removed", errClosed)
	}
	if err != nil {
		l.stop()
		body.Close()
	}
	return err
}

// initialize sends the session's own. It sets the version unless the server answered with an error.
func (l *link) initialize(ctx context.Context, relay http.Header) (response []byte, err error) {
	k, err := l.begin(ctx, &l.session.initialize, 0, true)
	if err == nil {
		k.send(relay, l.session.initialize.Raw)
		response, err = k.box.Response()
	}
	switch {
	case ctx.Err() != nil:
		return nil, l.server.client.failure(ctx, ctx.Err(), true)
	case errors.Is(err, errNotTaken) && l.ended():
		return nil, l.server.fault(upstream.BadAnswer, "ended its event stream before it answered initialize", err)
	case errors.Is(err, errNotTaken):
		return nil, l.server.fault(upstream.BadAnswer, "does not know the session that it has just opened", err)
	case err != nil:
		return nil, err
	}
	m, err := mcp.ScanAnswer(response)
	if err != nil || m.Error.Present() {
		return response, err
	}
	response, version := present(&m)
	if !isVisible(version) {
		return nil, l.server.fault(upstream.BadAnswer, "answered initialize without a usable version", nil)
	}
	l.agreeOn(version)
	return response, nil
}

// isVisible reports whether a version can go into a header.
func isVisible(version string) bool {
	for i := range len(version) {
		if version[i] <= ' ' || version[i] > '~' {
			return false
		}
	}
	return len(version) > 0 && len(version) <= 100
}

// reopen opens the session again after old ended, or the server forgot it; whoever needs it meanwhile waits for the same
// attempt.
func (s *session) reopen(ctx context.Context, old *link) (*link, error) {
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
		f = &flight{done: make(chan struct{})}
		started := s.server.tasks.Run(func() {
			f.link, f.err = s.replace(old)
			close(f.done)
		})
		if !started {
			s.mu.Unlock()
			return nil, s.gone("the upstream was removed", errClosed)
		}
		s.reopening = f
	}
	s.mu.Unlock()
	select {
	case <-f.done:
		return f.link, f.err
	case <-ctx.Done():
		return nil, s.server.client.failure(ctx, ctx.Err(), false)
	}
}

// replace is reopen's task.
func (s *session) replace(old *link) (*link, error) {
	old.end(s.server.fault(upstream.Lost, "the server lost the session during the call", errNotTaken))
	s.box.DropRequests() // whose answers would mean nothing to another link
	l, err := s.again(old)
	s.mu.Lock()
	s.reopening = nil
	closed := s.closed
	if err == nil && !closed {
		s.current = l
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case closed:
		l.end(s.server.fault(upstream.Lost, "the session was closed", errClosed))
		return nil, s.gone("the session was closed", errClosed)
	}
	s.server.log.Info("opened a session again whose event stream had ended")
	return l, nil
}

// again does the handshake once more, as the client did it, and tells the server what it knew of the session.
func (s *session) again(old *link) (*link, error) {
	ctx, stop := context.WithTimeout(s.server.tasks.Context(), s.server.timeouts.Handshake)
	defer stop()
	l, _, err := s.connect(ctx, nil)
	switch {
	case l == nil && (err == nil || deniesSessions(err)):
		return nil, s.gone("lost its session and does not open another", err)
	case err != nil:
		return nil, err
	case l.version() != old.version():
		err = s.gone("came back with another protocol version", nil)
	default:
		err = s.catchUp(ctx, l)
	}
	if err != nil {
		l.end(s.server.fault(upstream.Lost, "the session was not opened again", err))
		return nil, err
	}
	return l, nil
}

// deniesSessions reports whether a server has no event stream at that place any more.
func deniesSessions(err error) bool {
	var failed *upstream.Error
	return errors.As(err, &failed) &&
		(failed.Status == http.StatusNotFound || failed.Status == http.StatusMethodNotAllowed)
}

// catchUp brings a new link to where the old one was: initialized, and with the session's settings.
func (s *session) catchUp(ctx context.Context, l *link) error {
	s.mu.Lock()
	initialized := s.initialized
	s.mu.Unlock()
	if initialized != nil {
		if err := s.server.client.post(ctx, l, nil, s.caller.Load(), initialized, nil); err != nil {
			return s.taken(l.refusedByServer(err))
		}
	}
	return s.restore(ctx, l)
}
