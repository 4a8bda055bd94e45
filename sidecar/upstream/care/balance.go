package care

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// acquire chooses the endpoint for a call and gets it past its breaker. The caller tells it the outcome, and that it left.
//
// Hot: with one endpoint it is the breaker's one atomic operation.
func (s *Server) acquire(ctx context.Context, era mcp.Era) (*endpoint, uint64, error) {
	if len(s.endpoints) > 1 {
		return s.acquireOf(ctx, era)
	}
	e := s.endpoints[0]
	ticket, ok := e.admit()
	if !ok {
		if ticket, ok = e.admitSoon(ctx); !ok {
			return nil, 0, e.refused(ctx)
		}
	}
	return e, ticket, nil
}

// acquireOf is acquire where there is a choice. When every endpoint is left alone it takes the one that may try soonest.
func (s *Server) acquireOf(ctx context.Context, era mcp.Era) (*endpoint, uint64, error) {
	if e, ticket := s.another(era, 0); e != nil {
		return e, ticket, nil
	}
	for _, e := range s.endpoints {
		e.demand(time.Now(), e.begun()) // whichever is well again serves the next call
	}
	e := s.soonest(s.endpoints)
	ticket, ok := e.admitSoon(ctx)
	if !ok {
		return nil, 0, e.refused(ctx)
	}
	e.entered()
	return e, ticket, nil
}

// another chooses among the endpoints that are not in tried: nil when every other is left alone.
func (s *Server) another(era mcp.Era, tried uint64) (*endpoint, uint64) {
	for len(s.endpoints) > 1 {
		e := s.least(era, tried)
		if e == nil {
			return nil, 0
		}
		if ticket, ok := e.admit(); ok {
			e.entered()
			return e, ticket
		}
		tried |= e.bit // it was ejected meanwhile
	}
	return nil, 0
}

// least is an endpoint with the fewest calls in flight, by chance among equals, of those that are well and not in tried.
// Those that are known to speak the era come first, then those of which nothing is known. Without active checks an
// endpoint that may be tried again is given the call.
func (s *Server) least(era mcp.Era, tried uint64) (best *endpoint) {
	const unknown, foreign = 1 << 32, 1 << 33 // more than there are calls
	var fewest int64
	equals := 0
	for _, e := range s.endpoints {
		if e.bit&tried != 0 {
			continue
		}
		if !e.up() {
			if !s.checked && e.mayTry() {
				return e
			}
			continue
		}
		n := e.calls.Load()
		switch v := mcp.Eras(e.verdict.Load()); {
		case v == 0:
			n += unknown
		case !v.Has(era) && tried != 0:
			continue // what failed elsewhere would fail there for certain
		case !v.Has(era):
			n += foreign
		}
		switch {
		case best == nil || n < fewest:
			best, fewest, equals = e, n, 1
		case n == fewest:
			if equals++; rand.IntN(equals) == 0 {
				best = e
			}
		}
	}
	return best
}

// mayTry reports whether the breaker would let a call try now.
func (e *endpoint) mayTry() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, passes := e.breaker.ask(time.Now())
	return passes
}

func (e *endpoint) retryAt() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.breaker.retryAt
}

// soonest is the one of es that may be tried next.
func (s *Server) soonest(es []*endpoint) (first *endpoint) {
	for _, e := range es {
		if first == nil || e.retryAt().Before(first.retryAt()) {
			first = e
		}
	}
	return first
}

// refusal is the error of a call that no endpoint would take now; nil if one might. only is the one it must go to. Nobody
// waits, but those that may be well are asked, for the next call.
func (s *Server) refusal(only *endpoint) error {
	es := s.endpoints
	if only != nil {
		es = []*endpoint{only}
	}
	for _, e := range es {
		if e.up() || e.mayTry() {
			return nil
		}
	}
	for _, e := range es {
		e.demand(time.Now(), e.begun())
	}
	return s.soonest(es).refusal()
}
