package streamable

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// probePause is how long a failed probe answers for, so that a server that is down is not asked by every call.
const probePause = 200 * time.Millisecond

// eraCache is what is known of a server's eras. The zero value knows nothing.
type eraCache struct {
	fixed mcp.Eras // by configuration; 0 to ask

	mu       sync.Mutex                   // guards below
	known    mcp.Eras                     // 0 until a probe said
	probes   map[string]*flight[mcp.Eras] // under way, by the way of the request that needs it (upstream.Via)
	failure  error
	failedAt time.Time
}

// maxProbes is how many probes are under way at once; a request by one way more waits for the one of those by none.
const maxProbes = 8

func fixedEras(e outriggerv1.Era) mcp.Eras {
	switch e {
	case outriggerv1.Era_ERA_LEGACY:
		return mcp.EraSet(mcp.Legacy)
	case outriggerv1.Era_ERA_STATELESS:
		return mcp.EraSet(mcp.Stateless)
	}
	return 0
}

// Eras implements upstream.Server. Callers that come by the same way during a probe share it: one by another may wait for
// what this sidecar is asked itself, which would never end if that waited for the first.
func (s *Server) Eras(ctx context.Context) (mcp.Eras, error) {
	c := &s.eras
	if c.fixed != 0 {
		return c.fixed, nil
	}
	via := upstream.Via(ctx)
	c.mu.Lock()
	if len(c.probes) >= maxProbes && c.probes[via] == nil {
		via = ""
	}
	f := c.probes[via]
	switch {
	case c.known != 0:
		defer c.mu.Unlock()
		return c.known, nil
	case f == nil && c.failure != nil && time.Since(c.failedAt) < probePause:
		defer c.mu.Unlock()
		return 0, c.failure
	case f == nil:
		f = newFlight[mcp.Eras]()
		if !s.tasks.Run(func() { f.land(s.probe(via)) }) {
			c.mu.Unlock()
			return 0, s.client.fault(upstream.Unreachable, "the upstream was removed", errClosed)
		}
		c.probes[via] = f
	}
	c.mu.Unlock()
	return f.wait(ctx, func() error { return s.client.unreachable(ctx, ctx.Err()) })
}

// forget makes the next Eras ask again, since an answer showed that the last verdict was wrong.
func (c *eraCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = 0
}

// probe is the task of Eras. That the server leads back to where a request came from is nothing to others.
func (s *Server) probe(via string) (mcp.Eras, error) {
	eras, err := s.ask(via)
	c := &s.eras
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.probes, via)
	if err == nil {
		c.known = eras
	}
	if !isLoop(err) {
		c.failure, c.failedAt = err, time.Now()
	}
	return eras, err
}

func isLoop(err error) bool {
	var e *upstream.Error
	return errors.As(err, &e) && e.Kind == upstream.Loop
}

// ask sends server/discover and judges the answer (basic/versioning, "Backward Compatibility").
func (s *Server) ask(via string) (mcp.Eras, error) {
	status, body, err := s.discover(s.tasks.Context(), via)
	var eras mcp.Eras
	switch {
	case err != nil:
	case status == http.StatusLoopDetected:
		return 0, s.client.fault(upstream.Loop, "leads back to a sidecar that the request has passed", nil)
	default:
		var known bool
		if eras, known = mcp.Verdict(status, body); !known {
			err = s.client.fault(upstream.BadAnswer, "is not well enough to say which versions it speaks", nil)
		}
	}
	switch {
	case err != nil && s.initializes(err):
		eras = mcp.EraSet(mcp.Legacy)
	case err != nil:
		return 0, err
	case eras == 0:
		return 0, s.client.fault(upstream.WrongEra, "speaks no protocol version that is spoken here", nil)
	}
	s.log.Info("asked the server which wires it speaks",
		"stateless", eras.Has(mcp.Stateless), "legacy", eras.Has(mcp.Legacy))
	return eras, nil
}

// initializes reports whether a server that gave no answer to server/discover, for that reason, opens a session: there are
// servers that fail, hang or hang up on a method that they do not know. One that was not reached, or wants another
// credential, is not tried.
func (s *Server) initializes(failure error) bool {
	var fault *upstream.Error
	if !errors.As(failure, &fault) || fault.Kind == upstream.Unreachable || fault.Kind == upstream.Unauthorized {
		return false
	}
	session, answer, err := s.Open(s.tasks.Context(), &upstream.Call{Message: s.own.initialize, Caller: upstream.Self})
	if answer != nil {
		_ = answer.Close() // a body in memory
	}
	if session == nil || err != nil {
		return false
	}
	s.abandon(session)
	return true
}

// discover returns the status and the response of a server/discover, whatever they are. It goes by a way (upstream.Via),
// which may be empty.
func (s *Server) discover(ctx context.Context, via string) (int, []byte, error) {
	r := request{
		method: http.MethodPost, body: s.own.discover.Raw, timeout: s.timeouts.Handshake, caller: upstream.Self,
	}
	if via != "" {
		r.relay = http.Header{"Via": {via}}
	}
	r.mirror(s.own.discover, nil)
	x, err := s.client.send(ctx, &r)
	if err != nil {
		return 0, nil, err
	}
	if x.head.status >= 400 {
		refused, err := x.errorAnswer()
		if err != nil {
			return 0, nil, err
		}
		return refused.status, refused.body, nil
	}
	status := x.head.status
	body, err := x.response(idOf(s.own.discover))
	return status, body, err
}
