package care

import (
	"context"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// Eras implements upstream.Server. Of several endpoints, each with a verdict of its own, it is what those speak that are
// known and well; the others are asked in the background.
func (s *Server) Eras(ctx context.Context) (mcp.Eras, error) {
	s.use()
	if len(s.endpoints) == 1 {
		return s.endpoints[0].eras(ctx)
	}
	var known, well mcp.Eras
	for _, e := range s.endpoints {
		v := mcp.Eras(e.verdict.Load())
		if known |= v; e.up() {
			well |= v
		}
	}
	if known == 0 {
		return s.ask(ctx)
	}
	for _, e := range s.endpoints {
		if e.verdict.Load() == 0 && e.up() {
			s.learn(e)
		}
	}
	if well == 0 {
		return known, nil // a call will say why there is nobody to take it
	}
	return well, nil
}

// learn asks an endpoint for its eras in the background, once at a time.
func (s *Server) learn(e *endpoint) {
	if !e.asked.CompareAndSwap(false, true) {
		return
	}
	s.tasks.Run(func() { // or s is closed
		defer e.asked.Store(false)
		ctx, stop := context.WithTimeout(s.tasks.Context(), e.times.Connect+e.times.Handshake)
		defer stop()
		if _, err := e.eras(ctx); err != nil {
			s.log.Debug("an endpoint did not say which wires it speaks", "endpoint", e.name, "error", err)
		}
	})
}

// question is the eras asked of every endpoint at once, by one task for all callers.
type question struct {
	done chan struct{} // closed when the fields below are set
	eras mcp.Eras
	err  error
}

// ask waits for the first endpoint that says what it speaks. A request that came through sidecars has a question of its
// own (upstream.WithVia).
func (s *Server) ask(ctx context.Context) (mcp.Eras, error) {
	s.mu.Lock()
	q, shared := s.asking, upstream.Via(ctx) == ""
	if q == nil || !shared {
		q = &question{done: make(chan struct{})}
		way := context.WithoutCancel(ctx)
		if !s.tasks.Run(func() { s.answer(way, q) }) {
			s.mu.Unlock()
			return 0, s.removed()
		}
		if shared {
			s.asking = q
		}
	}
	s.mu.Unlock()
	select {
	case <-q.done:
		return q.eras, q.err
	case <-ctx.Done():
		return 0, s.gaveUp(ctx, "before the server said which wires it speaks")
	}
}

// answer is the task of ask. way is a context that does not end.
func (s *Server) answer(way context.Context, q *question) {
	ctx, stop := context.WithCancel(way)
	defer stop()
	defer context.AfterFunc(s.tasks.Context(), stop)()
	type verdict struct {
		eras mcp.Eras
		err  error
	}
	verdicts := make(chan verdict, len(s.endpoints))
	for _, e := range s.endpoints {
		if !s.tasks.Run(func() { eras, err := e.eras(ctx); verdicts <- verdict{eras, err} }) {
			verdicts <- verdict{0, s.removed()}
		}
	}
	for range s.endpoints {
		v := <-verdicts
		if v.err == nil {
			q.eras, q.err = v.eras, nil
			break
		}
		q.err = firstOf(q.err, v.err)
	}
	s.mu.Lock()
	if s.asking == q {
		s.asking = nil
	}
	s.mu.Unlock()
	close(q.done)
}
