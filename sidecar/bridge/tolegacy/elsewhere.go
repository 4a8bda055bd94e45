package tolegacy

import (
	"bytes"
	"context"
	"errors"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// elsewhere hands a retry to the sidecar that holds the call, and its answer on.
func (s *Server) elsewhere(ctx context.Context, o *order, st *state) (*upstream.Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := s.peers.Resume(ctx, Holder{ID: st.Holder, Address: st.Address}, &outriggerv1.ResumeRequest{
		Upstream: s.name, Binding: o.call.Binding, Message: bytes.Clone(o.m.Raw), Principal: o.principal,
	})
	if err != nil {
		gone := ctx.Err()
		cancel()
		var known *upstream.Error
		switch {
		case errors.As(err, &known):
			return nil, err
		case gone != nil:
			return nil, upstream.GaveUp(ctx, s.name)
		}
		s.log.Warn("a sidecar that holds a call could not be asked", "holder", st.Holder, "error", err)
		return refusal(o.m, invalid(heldFarAway)), nil
	}
	r := s.newReader(o.m, o.level)
	r.leave = func() { _ = stream.Close() }
	r.watch(ctx)
	task := func() {
		defer cancel()
		defer stream.Close()
		s.copy(ctx, r, stream)
	}
	if !s.tasks.Run(task) {
		cancel()
		return nil, s.fault(upstream.Lost, "the upstream was removed", stream.Close())
	}
	return r.answer(ctx)
}

// copy reads another sidecar's stream for r.
func (s *Server) copy(ctx context.Context, r *reader, stream upstream.EventStream) {
	for {
		e, err := stream.Next()
		if err != nil {
			s.lostElsewhere(r, err)
			return
		}
		m, err := mcp.ScanAnswer(bytes.Clone(e.Data))
		switch {
		case err != nil:
			r.finish(nil, 0, s.fault(upstream.BadAnswer, "the sidecar that holds the call sent what is not JSON-RPC", err))
			return
		case m.Kind == mcp.Response && m.Error.Present():
			r.finish(m.Raw, statusOf(upstream.ErrorCode(&m)), nil)
			return
		case m.Kind == mcp.Response:
			r.finish(m.Raw, 200, nil)
			return
		}
		r.put(ctx, m.Raw)
	}
}

// lostElsewhere ends r, whose stream from another sidecar failed.
func (s *Server) lostElsewhere(r *reader, err error) {
	var known *upstream.Error
	switch {
	case errors.As(err, &known):
		r.finish(nil, 0, err)
	case errors.Is(err, upstream.ErrNotHere):
		refused := invalid(heldFarAway)
		r.finish(mcp.AppendError(nil, r.id, refused), statusOf(refused.Code), nil)
	default:
		r.finish(nil, 0, s.fault(upstream.Lost, "the sidecar that holds the call was lost during it", err))
	}
}
