// Package care spares MCP servers: it bounds the calls in flight, leaves an endpoint alone that fails, finds out when it
// is well again, spreads calls over the endpoints of one Upstream, and sends once more what may be sent once more.
//
// A Server is an upstream.Server around one or more others, its endpoints. A call's life: it takes a place (gate), or
// waits for one in the order of arrival; it gets the endpoint with the fewest calls among those whose breaker lets it
// through (balance); it is sent, and after a failure perhaps sent again (retry); and when its answer was read to the end,
// or closed, its outcome is told to the breaker and its place is free (flight). Subscriptions take no place.
//
// What a breaker counts are the endpoint's own faults: not reached, lost, timed out, 501 and above. A 500, and what is not
// MCP, may be one tool's: these count once a check has failed too. A call that its client gave up says nothing about the
// endpoint, and an error that the endpoint answered says that it is well.
//
// A Server is safe for concurrent use. Its goroutines are one for the checks of each endpoint, from the first use on, and
// short tasks; Close ends them and waits. Not here: what is on the wire (the transports), what a client sees of a
// failure (package proxy).
package care

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/background"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// Options are what a Server needs beside its resource.
type Options struct {
	Log *slog.Logger // with the upstream's name already; default: nothing is logged
}

// Server is one MCP server behind its endpoints. It is an upstream.Server.
type Server struct {
	// Set by New, never changed.
	name      string
	log       *slog.Logger
	endpoints []*endpoint
	checked   bool // there are active checks
	gate      gate
	retries   *retries // nil: nothing is sent again that may have happened
	tasks     *background.Tasks

	used   atomic.Bool // checks were started
	resent resent

	mu     sync.Mutex // guards below
	asking *question  // of the eras, while none is known
}

var _ upstream.Server = (*Server)(nil)

// New makes the Server for the endpoints of a resource, with its defaults filled in (resource.WithDefaults): for the http
// transport that of url and those of more_urls, in this order. They are the Server's from here on.
func New(endpoints []upstream.Server, spec *outriggerv1.Upstream, o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		name:    spec.GetName(),
		log:     o.Log,
		checked: spec.GetHealth().GetInterval().AsDuration() > 0,
		tasks:   background.New(),
		retries: newRetries(spec.GetRetry()),
	}
	s.gate.limit(spec.GetConcurrency())
	names := endpointNames(spec, len(endpoints))
	for i, inner := range endpoints {
		s.endpoints = append(s.endpoints, newEndpoint(s, inner, names[i], uint(i), spec))
	}
	return s
}

// use starts the active checks, the first time.
func (s *Server) use() {
	if s.used.Load() || !s.checked || s.used.Swap(true) {
		return
	}
	for _, e := range s.endpoints {
		s.tasks.Run(func() { e.watch(s.tasks.Context()) }) // or s is closed
	}
}

// Call implements upstream.Server.
//
// Hot: runs on every call. With one endpoint that is well it costs a few atomic operations and one small allocation,
// which follows the answer to its end (BenchmarkCall, TestACallAllocatesOnce).
func (s *Server) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	s.use()
	if !takesPlace(c.Message) {
		a, e, ticket, err := s.send(ctx, c)
		if err == nil {
			e.succeeded(ticket)
			e.left()
		}
		return a, err
	}
	if err := s.enter(ctx, nil); err != nil {
		return nil, err
	}
	a, e, ticket, err := s.send(ctx, c)
	if err != nil {
		s.gate.leave()
		return nil, err
	}
	s.learnFrom(c.Message, a)
	return s.track(ctx, e, ticket, a), nil
}

// takesPlace reports whether a message counts as a call in flight. A listen lasts as long as its client likes, and what
// has no answer, or is one, may be what a call in flight waits for.
func takesPlace(m *mcp.Message) bool { return m.Kind == mcp.Request && m.Method != mcp.MethodListen }

// advice is for whoever called too often.
const advice = "try again later, and make fewer calls at once"

// enter takes a place, which gate.leave gives back. only is the endpoint that the call must go to, nil for any.
func (s *Server) enter(ctx context.Context, only *endpoint) error {
	if s.gate.tryEnter() {
		return nil
	}
	if err := s.refusal(only); err != nil {
		return err // no need to wait for that
	}
	switch s.gate.wait(ctx, s.tasks.Context().Done()) {
	case full:
		return s.fault(upstream.Overloaded, fmt.Sprintf("%d calls are in flight and %d wait, as many as configured: %s",
			s.gate.max, s.gate.maxWaiting, advice), nil)
	case tooLate:
		return s.fault(upstream.Overloaded, fmt.Sprintf("%d calls are in flight, as many as configured, and the call's turn "+
			"did not come within %v: %s", s.gate.max, s.gate.maxWait, advice), nil)
	case givenUp:
		return s.gaveUp(ctx, "while it waited for its turn")
	case gateClosed:
		return s.removed()
	}
	return nil
}

// send sends a stateless message to one endpoint after another until there is an answer or no reason to go on.
func (s *Server) send(ctx context.Context, c *upstream.Call) (*upstream.Answer, *endpoint, uint64, error) {
	s.retries.count()
	e, ticket, err := s.acquire(ctx, mcp.Stateless)
	if err != nil {
		return nil, nil, 0, err
	}
	a, err := e.inner.Call(ctx, c)
	if err == nil {
		e.answers(ticket)
		return a, e, ticket, nil
	}
	e.failed(ctx, ticket, err)
	return s.sendAgain(ctx, c, e, err)
}

// Open implements upstream.Server. The session stays with the endpoint that opened it.
func (s *Server) Open(ctx context.Context, c *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	s.use()
	if err := s.enter(ctx, nil); err != nil {
		return nil, nil, err
	}
	defer s.gate.leave()
	e, ticket, err := s.acquire(ctx, mcp.Legacy)
	if err != nil {
		return nil, nil, err
	}
	inner, a, err := s.openAt(ctx, e, ticket, c)
	if err != nil && isUnreachable(err) && ctx.Err() == nil {
		if e, ticket := s.another(mcp.Legacy, e.bit); e != nil {
			inner, a, err = s.openAt(ctx, e, ticket, c)
			s.resent.note(err)
			return sessionAt(e, inner), a, err
		}
	}
	return sessionAt(e, inner), a, err
}

// openAt opens a session at e and tells its breaker what came of it.
func (s *Server) openAt(
	ctx context.Context, e *endpoint, ticket uint64, c *upstream.Call,
) (upstream.Session, *upstream.Answer, error) {
	inner, a, err := e.inner.Open(ctx, c)
	if err != nil {
		e.failed(ctx, ticket, err)
		return nil, nil, err
	}
	e.succeeded(ticket)
	e.left()
	return inner, a, nil
}

// Check implements upstream.Server: it is ready while an endpoint is, which one that hangs does not hold up.
func (s *Server) Check(ctx context.Context) error {
	s.use()
	if len(s.endpoints) == 1 {
		return s.endpoints[0].checkNow(ctx)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	results := make(chan error, len(s.endpoints))
	for _, e := range s.endpoints {
		if !s.tasks.Run(func() { results <- e.checkNow(ctx) }) {
			return s.removed()
		}
	}
	var first error
	for range s.endpoints {
		err := <-results // bounded by what bounds the endpoints' own
		if err == nil {
			return nil
		}
		first = firstOf(first, err)
	}
	return first
}

// Close implements upstream.Server. It closes the endpoints together and waits for every goroutine.
func (s *Server) Close(ctx context.Context) error {
	s.tasks.Stop()
	var g errgroup.Group
	for _, e := range s.endpoints {
		g.Go(func() error { return e.inner.Close(ctx) })
	}
	return errors.Join(g.Wait(), s.tasks.Wait(ctx))
}

func (s *Server) fault(kind upstream.Kind, detail string, cause error) error {
	return &upstream.Error{Kind: kind, Upstream: s.name, Detail: detail, Cause: cause}
}

// gaveUp is the error of a call whose own context ended.
func (s *Server) gaveUp(ctx context.Context, when string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return s.fault(upstream.TimedOut, "the call's deadline passed "+when, ctx.Err())
	}
	return s.fault(upstream.Lost, "the call was cancelled "+when, ctx.Err())
}

func (s *Server) removed() error { return s.fault(upstream.Lost, "the upstream was removed", nil) }

// firstOf is the first of two errors that is one.
func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func isUnreachable(err error) bool {
	var e *upstream.Error
	return errors.As(err, &e) && e.Kind == upstream.Unreachable
}

// durationOr is d, or otherwise when d is not above zero.
func durationOr(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}
