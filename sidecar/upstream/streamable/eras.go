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

	mu       sync.Mutex // guards below
	known    mcp.Eras   // 0 until a probe said
	probe    *flight[mcp.Eras]
	failure  error
	failedAt time.Time
}

func fixedEras(e outriggerv1.Era) mcp.Eras {
	switch e {
	case outriggerv1.Era_ERA_LEGACY:
		return mcp.EraSet(mcp.Legacy)
	case outriggerv1.Era_ERA_STATELESS:
		return mcp.EraSet(mcp.Stateless)
	}
	return 0
}

// Eras implements upstream.Server. Callers that come during a probe share it.
func (s *Server) Eras(ctx context.Context) (mcp.Eras, error) {
	c := &s.eras
	if c.fixed != 0 {
		return c.fixed, nil
	}
	c.mu.Lock()
	f := c.probe
	switch {
	case c.known != 0:
		defer c.mu.Unlock()
		return c.known, nil
	case f == nil && c.failure != nil && time.Since(c.failedAt) < probePause:
		defer c.mu.Unlock()
		return 0, c.failure
	case f == nil:
		f = newFlight[mcp.Eras]()
		if !s.tasks.run(func() { f.land(s.probe()) }) {
			c.mu.Unlock()
			return 0, s.client.fault(upstream.Unreachable, "the upstream was removed", errClosed)
		}
		c.probe = f
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

// probe is the task of Eras.
func (s *Server) probe() (mcp.Eras, error) {
	eras, err := s.ask()
	c := &s.eras
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probe, c.known, c.failure, c.failedAt = nil, eras, err, time.Now()
	return eras, err
}

// ask sends server/discover and judges the answer (basic/versioning, "Backward Compatibility").
func (s *Server) ask() (mcp.Eras, error) {
	status, body, err := s.discover(s.tasks.ctx)
	var eras mcp.Eras
	if err == nil {
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
	session, answer, err := s.Open(s.tasks.ctx, &upstream.Call{Message: s.own.initialize})
	if answer != nil {
		_ = answer.Close() // a body in memory
	}
	if session == nil || err != nil {
		return false
	}
	s.abandon(session)
	return true
}

// discover returns the status and the response of a server/discover, whatever they are.
func (s *Server) discover(ctx context.Context) (int, []byte, error) {
	r := request{
		method: http.MethodPost, body: s.own.discover.Raw, timeout: s.timeouts.Handshake,
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
